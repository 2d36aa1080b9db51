"""Windows along any axes of an array, by as few passes over it as can be: two neighbouring axes at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.core.axis_windows import AxisWindow
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.array_steps import ArrayStep, X, Y, array_steps_of
from convalgos.cpu.sliding.plan import SlidingPlan

NARROW = 64  # bytes of neighbours along the later axes, below which windows slide along the row; Zen 5


class _Pass(NamedTuple):
    planes: int
    rows: AxisWindow
    columns: AxisWindow
    step: int


class Slides:
    """Reductions of windows along some axes, one axis after the other in the order given.

    A call as f(x, y) fills y. Both are C-contiguous and apart from each other. Many threads may call it at
    once.

    Args:
        shape, dtype: of both arrays.
        windows: (axis, those along it, of any size).
        fill: what lies beyond constant borders, which the dtype can hold.
    """

    def __init__(
        self, shape: tuple[int, ...], dtype: np.dtype, reduction: int,
        windows: Sequence[tuple[int, AxisWindow]], fill: float = 0.0,
    ):  # fmt: skip
        passes = _passes(shape, windows, dtype.itemsize) if math.prod(shape) else []
        in_place = [i > 0 and each.planes >= 2 * jit.thread_count() for i, each in enumerate(passes)]
        self._passes = [
            (SlidingPlan(dtype, reduction, *each, fill, same).launch, same)
            for each, same in zip(passes, in_place, strict=True)
        ]

    @property
    def shortest(self) -> Callable[[np.ndarray, np.ndarray], None]:
        """What does the same as a call, and is called faster."""
        return self._passes[0][0] if len(self._passes) == 1 else self

    @property
    def array_steps(self) -> list[ArrayStep] | None:
        """What a call does, for `array_steps.array_steps_of`."""
        found: list[ArrayStep] = []
        source, moves = X, sum(not in_place for _, in_place in self._passes)
        for run, in_place in self._passes:
            moves -= not in_place
            target = source if in_place else 0 if moves % 2 else Y
            if (steps := array_steps_of(run)) is None:
                return None
            found += [step._replace(source=source, target=target) for step in steps]
            source = target
        return found or None

    def __call__(self, x: np.ndarray, y: np.ndarray) -> None:
        if not self._passes:
            y[...] = x
            return
        if len(self._passes) == 1:
            self._passes[0][0](x, y)
            return
        moves = sum(not in_place for _, in_place in self._passes)  # from one array to another
        held = aligned_empty(y.size, y.dtype, idles=True).reshape(y.shape) if moves > 1 else y
        source = x
        for run, in_place in self._passes:
            moves -= not in_place
            target = source if in_place else held if moves % 2 else y  # so that the last one ends in y
            run(source, target)
            source = target


def _passes(shape: tuple[int, ...], windows: Sequence[tuple[int, AxisWindow]], itemsize: int) -> list[_Pass]:
    passes, left = [], list(windows)
    while left:
        axis, window = left.pop(0)
        window = AxisWindow(shape[axis], *window[1:])
        before, behind = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
        further, along = left[0] if left else (axis, window)
        along = AxisWindow(shape[further], *along[1:])
        between = shape[axis + 1 : further] if further > axis else (2,)
        after = math.prod(shape[further + 1 :])
        if math.prod(between) == 1 and after * itemsize < NARROW <= behind * max(itemsize, 2):
            del left[0]
            passes.append(_Pass(before, window, along, after))
        elif behind * itemsize < NARROW:
            passes.append(_Pass(1, AxisWindow(before), window, behind))
        else:
            passes.append(_Pass(before, window, AxisWindow(behind), 1))
    return passes
