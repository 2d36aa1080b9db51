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
from convalgos.cpu.filtering.line_steps import EXACT, LineStep, border_sources, way_of_sums
from convalgos.cpu.runtime.threads import cached_by_threads

SHORTEST = 32  # pixels of a line that is worth a table of its own; Zen 4


def why_not_sum(x: np.ndarray, steps: Sequence[LineStep], y_dtype: np.dtype) -> str | None:
    """Why `summing_pass` does not serve, in a sentence, or None.

    Integers of up to 16 bits wrap around alike whether each term of an exact sum does, or the sum.
    """
    if len(steps) < 2 or x.shape[steps[-1].axis] < SHORTEST:
        return "lines along the last of several axes are too short"
    if y_dtype.kind == "f":
        return None
    weights = tuple(weight for step in steps for weight in step.weights)
    together = steps[0]._replace(weights=weights)
    small = x.dtype.name in SINGLE and y_dtype.name in SINGLE
    if not small or way_of_sums(together, x.dtype, 4) != EXACT:
        return "float32 does not hold the sums of these integers"
    return None


@cached_by_threads(32)
def summing_pass(shape: Shape, x: np.dtype, y: np.dtype, steps: tuple[LineStep, ...]) -> LinePass:
    """y = the sum of x correlated by each of the steps, which are in the order of their axes.

    `why_not_sum` has no objection.
    """
    return _CrossPass(shape, x, y, steps)


class _CrossPass(LinePass):
    """A pass whose lines are summed along themselves, and across along several axes."""

    def _arrange(self, steps: Sequence[LineStep]) -> None:
        *across, along = steps
        f = self.values
        self._along(along)
        self._filled(along.fill, f["line"])
        f["outer"], f["rows"] = math.prod(self.shape) // f["line"], len(across)
        f["taps"] = sum(len(step.weights) - 1 for step in across)
        f["ring"] = f["taps"] if f["load"] else 0
        f["load"] = f["load"] or self._load(self.dtype)
        middle, others = list(along.weights), []
        for step in across:
            middle[along.window.low] += step.weights[step.window.low]
            others += [w for t, w in enumerate(step.weights) if t != step.window.low]
        f["row_weights"] = self._table(np.array(middle + others, self.dtype))
        f["row_sums"] = line_sums.sum_lines(line_sums.FUSED, self.size, self.lanes)
        f["sources"] = self._table(np.array([self._axis(s) for s in across], line_drivers.AXIS))
        f["tasks"] = min(self.threads * UNITS, f["outer"]) if self.threads > 1 else 1
        self._scratch(0, f["line"])
        self.kernel = line_drivers.cross_share(self.size)

    def _axis(self, step: LineStep) -> tuple[int, ...]:
        inside, window = math.prod(self.shape[step.axis + 1 :]), step.window
        sources = self._table(border_sources(window))
        return window.size, inside // self.values["line"], window.taps, window.low, sources
