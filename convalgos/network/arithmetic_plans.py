"""Plans of whole arrays of any rank: sums, differences, products, quotients, and arrays side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.core.bound_run import BoundRun
from convalgos.core.errors import Unsupported
from convalgos.core.laid_arrays import as_laid
from convalgos.cpu.elementwise.bound_steps import BoundStep
from convalgos.cpu.elementwise.crossing import CrossingPlan
from convalgos.cpu.elementwise.plan import ConcatenationPlan, ElementwisePlan
from convalgos.cpu.elementwise.spreading import SpreadOperandPlan, spread_shape
from convalgos.network.array_functions import ArrayFunction
from convalgos.network.graph import Shapes

OPERATION = {"add": "add", "subtract": "subtract", "multiply": "multiply", "quotient": "divide"}
FEWEST = 2  # dimensions that kernels know


class OfWholeArrays(BoundStep):
    """A step of two arrays, inputs or constants, seen as of as many dimensions."""

    def __init__(self, step: ArrayFunction, plan: BoundStep, shapes: Sequence[Shape]):
        self._step, self._plan, self._shapes = step, plan, shapes

    def bind(self, *arrays: np.ndarray) -> BoundRun:
        *inputs, y = arrays
        operands = [*(as_laid(np.asarray(o)) for o in self._step.operands(inputs)), y]  # of a file, anywhere
        return self._plan.bind(*(o.reshape(s) for o, s in zip(operands, self._shapes, strict=True)))


class SideBySide(BoundStep):
    """Arrays side by side along any dimension, as rows of what lies from there on."""

    told = True

    def __init__(self, shapes: Sequence[Shape], axis: int):
        rows = math.prod(shapes[0][:axis])
        self._rows = [(rows, math.prod(shape[axis:])) for shape in shapes]
        self._plan = ConcatenationPlan(self._rows, "channels_first")

    def bind(self, *arrays: np.ndarray) -> BoundRun:
        *inputs, y = arrays
        seen = [x.reshape(shape) for x, shape in zip(inputs, self._rows, strict=True)]
        return self._plan.bind(*seen, y.reshape(self._rows[0][0], -1))


def concatenation_plan(step: ArrayFunction, shapes: Shapes) -> BoundStep | None:
    """Kernels that put float32 arrays side by side; None where NumPy does."""
    own, axis = [shapes[name] for name in step.inputs], dict(step.options)["axis"]
    if any(array is not None for array in step.constants) or 0 in shapes[step.output]:
        return None
    return SideBySide(own, axis % max(1, len(own[0])))


def arithmetic_plan(step: ArrayFunction, shapes: Shapes) -> BoundStep | None:
    """Kernels of a function of two float32 arrays; None where NumPy computes it."""
    given = step.operands(step.inputs)
    own = [o.shape if isinstance(o, np.ndarray) else shapes[o] for o in given]
    constants = [o for o in given if isinstance(o, np.ndarray)]
    if len(own) != 2 or any(c.dtype != np.float32 or not c.flags.c_contiguous for c in constants):
        return None
    rank = max(FEWEST, *map(len, own))
    a, b = ((1,) * (rank - len(shape)) + shape for shape in own)
    y = np.broadcast_shapes(a, b)
    if not math.prod(y):
        return None
    kernels = _of_shapes(OPERATION[step.function], a, b)
    return None if kernels is None else OfWholeArrays(step, kernels, (a, b, y))


def _of_shapes(operation: str, a: Shape, b: Shape) -> BoundStep | None:
    """Kernels of two arrays of as many dimensions."""
    y = np.broadcast_shapes(a, b)
    if a == y != b and (spread := spread_shape(b, y)):
        return _spread(_of_shapes(operation, a, spread), 1, b, spread)
    if b == y != a and (spread := spread_shape(a, y)):
        return _spread(_of_shapes(operation, spread, b), 0, a, spread)
    for make in (lambda: ElementwisePlan(operation, (a, b), "channels_first"),
                 lambda: CrossingPlan(operation, (a, b))):  # fmt: skip
        try:
            return make()
        except Unsupported:
            continue
    return None


def _spread(plan: BoundStep | None, which: int, shape: Shape, spread: Shape) -> BoundStep | None:
    return None if plan is None else SpreadOperandPlan(plan, which, shape, spread)
