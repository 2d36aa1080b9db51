"""Correlations of arrays along their axes, one after the other, in as few passes over memory as can be.

Neighbouring axes share a pass where the lines that the first one sums lie in the second cache, and all three
of a volume where its planes lie in the third.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache, partial

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.core.arguments import Shape
from convalgos.cpu.filtering.byte_passes import BytePass, why_not_bytes
from convalgos.cpu.filtering.line_endings import PLAIN, SQUARE
from convalgos.cpu.filtering.line_passes import SINGLE, LinePass
from convalgos.cpu.filtering.line_steps import EXACT, LineStep, way_of_sums
from convalgos.cpu.filtering.line_sums import ROWS
from convalgos.cpu.filtering.short_passes import ShortPass, why_not_short
from convalgos.cpu.filtering.volume_passes import VolumePass, why_not_volume
from convalgos.cpu.layout.turned_rows import Pass, TurnedRows, order_turned
from convalgos.cpu.runtime.threads import cached_by_threads

SHORT = 8  # elements of rows that are short,
MANY = 512  # and such rows from which on an array is turned over. Zen 5
CACHED = 640 << 10  # bytes of lines that one pass sums across and along: what the second cache holds; Zen 4


def filter_lines(x: np.ndarray, steps: Sequence[LineStep], y: np.ndarray) -> None:
    """y = x correlated by each step in turn, rounded to the type of y after each.

    Args:
        x, y: of one shape and at least one element, C-contiguous, apart in memory, of real types that
            `line_elements.KINDS` names.
        steps: at least one.

    Source: of what is summed, and in which order, scipy.ndimage; of band by band, Halide's local Laplacian
    and blur schedules (Ragan-Kelley et al. 2013, doi:10.1145/2491956.2462176).
    """
    run_passes(passes_of(x.shape, x.dtype, y.dtype, tuple(steps)), x, y)


def run_passes(passes: Sequence[Pass], x: np.ndarray, y: np.ndarray) -> None:
    """One after the other, from x to y."""
    for each in passes[:-1]:
        target = aligned_empty(y.size, y.dtype, idles=True).reshape(y.shape)
        each(x, target)
        x = target
    passes[-1](x, y)


@cached_by_threads(128)
def passes_of(
    shape: Shape, x: np.dtype, y: np.dtype, steps: tuple[LineStep, ...], ending: int = PLAIN
) -> list[Pass]:
    """What filters arrays of a shape, as `LineFilter` has it."""
    return line_filter(x, y, tuple(step.of_any_size for step in steps), ending).passes(shape)


class LineFilter:
    """Correlations along axes, one after the other, as `filter_lines` has them, of arrays of any sizes.

    Args:
        x, y: types.
        ending: how the last sums meet y, which are floats, as `line_endings` has it.
    """

    def __init__(self, x: np.dtype, y: np.dtype, steps: tuple[LineStep, ...], ending: int = PLAIN):
        self.y, self._types, self._steps, self._ending = y, (x, y), steps, ending
        ordered = tuple(sorted(steps, key=lambda step: step.axis)) if _commute(steps, x, y) else steps
        self._ordered, self._along = ordered, [step.axis for step in steps]
        self.kind, self._size = LinePass, 4 if y in SINGLE else 8
        if why_not_short(x, y, ordered) is None:
            self.kind, self._size = ShortPass, 2
        elif why_not_bytes(x, y, ordered) is None:
            self.kind, self._size = BytePass, 1
        self._made: dict[tuple[int, int, bool], LinePass] = {}
        self._moved: dict[tuple[int, ...], LineFilter] = {}

    def passes(self, shape: Shape) -> list[Pass]:
        """What filters arrays of a shape: calls as (x, y), one after the other."""
        if 1 not in shape:
            return self._turned(shape) or self._passes(shape)
        # filtered axes of one element before all others: lines along them would be of one, too
        singles = {axis for axis in self._along if shape[axis] == 1}
        order = tuple(sorted(range(len(shape)), key=lambda axis: axis not in singles))
        moved = self._with_axes(order)
        shape = tuple(shape[axis] for axis in order)
        return moved._turned(shape) or moved._passes(shape)

    def _with_axes(self, order: tuple[int, ...]) -> LineFilter:
        """The same of arrays whose axes lie in an order."""
        if order not in self._moved:
            steps = tuple(step._replace(axis=order.index(step.axis)) for step in self._steps)
            self._moved[order] = LineFilter(*self._types, steps, self._ending)
        return self._moved[order]

    def _turned(self, shape: Shape) -> list[Pass]:
        """Those of the array turned over, where lines are parts of short rows."""
        order = order_turned(shape, self._along, SHORT, MANY)
        if not order:
            return []
        passes = self._with_axes(order)._passes(tuple(shape[axis] for axis in order))
        reads_y = self._ending not in (PLAIN, SQUARE)
        return [TurnedRows(partial(run_passes, passes), shape, order, reads_y)]

    def _passes(self, shape: Shape) -> list[Pass]:
        steps = self._ordered
        if len(steps) == 3 and why_not_volume(shape, *self._types, steps) is None:
            return [self._pass(0, 3, True).of(shape)]
        return [self._one_of(*part, shape).of(shape) for part in self.parts(shape)]

    def parts(self, shape: Shape) -> list[tuple[int, int]]:
        """(first step, steps) of each pass."""
        found, first, steps = list[tuple[int, int]](), 0, self._ordered
        while first < len(steps):
            count = 1 + (first + 1 < len(steps) and self._are_one(shape, *steps[first : first + 2]))
            found.append((first, count))
            first += count
        return found

    def _one_of(self, first: int, count: int, shape: Shape) -> LinePass:
        """That of some steps."""
        made = self._pass(first, count, True)
        if count == 1 and math.prod(shape[self._ordered[first].axis + 1 :]) < made.lanes:
            made = self._pass(first, count, False)  # too short to be summed across
        return made

    def _pass(self, first: int, count: int, across: bool) -> LinePass:
        """That of some steps, which is made once; of one step, whether it is one across lines."""
        key = first, count, across
        if key not in self._made:
            steps, (x, y) = self._ordered[first : first + count], self._types
            types, last = (y if first else x, y), first + count == len(self._ordered)
            ending = self._ending if last else PLAIN
            if count == 3:
                self._made[key] = VolumePass(*types, steps, ending)
            else:
                pair = (steps[0] if across else None, steps[-1] if count > 1 or not across else None)
                self._made[key] = self.kind(*types, *pair, ending)
        return self._made[key]

    def _are_one(self, shape: Shape, across: LineStep, along: LineStep) -> bool:
        """Whether one pass makes both steps."""
        line = math.prod(shape[along.axis :]) * self._size
        return across.axis < along.axis and (len(across.weights) + 2 * ROWS) * line <= CACHED


line_filter = lru_cache(128)(LineFilter)


def _commute(steps: Sequence[LineStep], x: np.dtype, y: np.dtype) -> bool:
    """Whether steps may be made in any order: if all that is rounded is floats."""
    if any(step.window.boundary == "constant" and step.fill != 0 for step in steps):
        return False
    small = x in SINGLE and y in SINGLE  # which wrap around alike in any order
    exact = small and all(way_of_sums(step, each, 4) == EXACT for step in steps for each in (x, y))
    return exact or y.kind == "f"
