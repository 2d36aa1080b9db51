"""Operands of few numbers, each of which goes with a short run of elements: these are spread first."""

from __future__ import annotations

import math

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.core.arguments import Shape
from convalgos.core.bound_run import BoundRun
from convalgos.cpu.elementwise.bound_steps import FLOAT, BoundStep, bound
from convalgos.cpu.elementwise.plan import UpsamplingPlan

SHORT = 16  # elements of a run, up to which to go from one to the next takes longer than to combine them


def spread_shape(shape: Shape, whole: Shape) -> Shape | None:
    """That of an operand once its numbers are repeated along the last dimensions of what it is broadcast to;
    None where the runs that they go with are long, or most of it would only be repeated.

    Example:
        >>> spread_shape((1, 64, 1, 1), (32, 64, 3, 3))
        (1, 64, 3, 3)
    """
    last = next((i for i in range(len(shape), 0, -1) if shape[i - 1] != 1), 0)
    found = (*shape[:last], *whole[last:])
    short = 1 < math.prod(whole[last:]) <= SHORT
    return found if last and short and 2 * math.prod(found) <= math.prod(whole) else None


class SpreadOperandPlan(BoundStep):
    """A step of two operands, of which one is spread before.

    Args:
        plan: of both, once it is.
        which: the operand.
        shape: its own.
        spread: see `spread_shape`.
    """

    def __init__(self, plan: BoundStep, which: int, shape: Shape, spread: Shape):
        self._plan, self._which, self._spread = plan, which, spread
        count = math.prod(shape)
        self._seen = (1, count, 1)
        self._repeated = UpsamplingPlan(self._seen, (math.prod(spread) // count,), "channels_first")

    def bind(self, *arrays: np.ndarray) -> BoundRun:
        own, (given, y) = [*arrays], (arrays[self._which], arrays[-1])
        made = aligned_empty(math.prod(self._spread), FLOAT)
        own[self._which] = made.reshape(self._spread)
        first = self._repeated.bind(given.reshape(self._seen), made.reshape(1, self._seen[1], -1))
        second = self._plan.bind(*own)
        return bound([*(first.launches or ()), *(second.launches or ())], first, second, y)
