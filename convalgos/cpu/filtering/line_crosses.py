"""Sums of correlations along several axes, as Laplace operators are, in one pass over memory.

The taps of all axes but the last lie on other lines, those of the last one on the line itself: one sum of
lines has them all, once the middle taps of all filters are one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.cpu.filtering import line_drivers, line_sums
from convalgos.cpu.filtering.line_passes import SINGLE, UNITS, LinePass
from convalgos.cpu.filtering.line_steps import EXACT, LineStep, way_of_sums
from convalgos.cpu.runtime import jit

SHORTEST = 32  # pixels of a line that is worth a table of its own; Zen 4


def why_not_sum(x: np.dtype, y: np.dtype, steps: Sequence[LineStep]) -> str | None:
    """Why `CrossPass` does not serve arrays of two types, in a sentence, or None.

    Integers of up to 16 bits wrap around alike whether each term of an exact sum does, or the sum.
    """
    if len(steps) < 2:
        return "there are no lines across"
    if y.kind == "f":
        return None
    weights = tuple(weight for step in steps for weight in step.weights)
    together = steps[0]._replace(weights=weights)
    small = x in SINGLE and y in SINGLE
    if not small or way_of_sums(together, x, 4) != EXACT:
        return "float32 does not hold the sums of these integers"
    return None


class CrossPass(LinePass):
    """A pass whose lines are summed along themselves, and across along several axes: y = the sum of x
    correlated by each of the steps, which are in the order of their axes.

    `why_not_sum` has no objection; lines are of `SHORTEST` pixels or more.
    """

    def __init__(self, x: np.dtype, y: np.dtype, steps: Sequence[LineStep]):
        *self._across, along = steps
        super().__init__(x, y, None, along)

    def _all_steps(self) -> Sequence[LineStep | None]:
        return *self._across, self.along

    def _arrange(self) -> None:
        *across, along = self.steps
        f = self.values
        self._set_along(along)
        f["rows"], f["taps"] = len(across), sum(len(step.weights) - 1 for step in across)
        f["ring"] = f["taps"] if f["load"] else 0
        f["load"] = f["load"] or self._load(self.dtype)
        middle, others = list(along.weights), []
        for step in across:
            middle[along.window.low] += step.weights[step.window.low]
            others += [w for t, w in enumerate(step.weights) if t != step.window.low]
        f["row_weights"] = self._table(np.array(middle + others, self.dtype))
        f["row_sums"] = line_sums.sum_lines(line_sums.FUSED, self.size, self.lanes)
        self.kernel = line_drivers.cross_share(self.size)

    def _fit(self, f: dict[str, int], shape: Shape, threads: int) -> list[np.ndarray]:
        *across, along = self.steps
        tables: list[np.ndarray] = []
        self._fit_along(f, shape, along, tables)
        line = f["line"]
        f["outer"], f["filling"] = math.prod(shape) // line, self._filled(along.fill, line, tables)
        axes: list[int] = []  # fields of `AXIS`
        for step in across:
            inside, window = math.prod(shape[step.axis + 1 :]), step.window
            sources = self._borders(step, shape, tables)
            axes += [shape[step.axis], inside // line, window.taps, window.low, sources]
        tables.append(np.array(axes))
        f["sources"] = jit.data_address()(tables[-1])
        f["tasks"] = min(threads * UNITS, f["outer"]) if threads > 1 else 1
        self._scratch(f, 0, line)
        return tables
