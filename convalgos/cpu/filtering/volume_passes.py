"""A pass that correlates a volume along three neighbouring axes, so that nothing between lies in memory.

Rows of some planes at a time are summed across the planes around them, which are still in the third cache,
into rings of rows in the second, whose rows are summed across each other and then along themselves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from convalgos.core.allocator import whole_lines
from convalgos.core.arguments import Shape
from convalgos.core.machine import cache_sizes
from convalgos.cpu.filtering import line_drivers
from convalgos.cpu.filtering.line_endings import PLAIN
from convalgos.cpu.filtering.line_passes import LinePass
from convalgos.cpu.filtering.line_steps import LineStep
from convalgos.cpu.filtering.line_sums import ROWS

RINGS = 512 << 10  # bytes of the rings of a task, in the second cache; Zen 4
LARGE = 4 << 20  # bytes of a volume from which on it pays
SHORTEST = 512  # bytes of a row, for which tables are made
MOST_TAPS = 17  # across planes; of more, each of which is a row elsewhere, sums take longer. Zen 4
UNITS = 2  # of work for each thread


def why_not_volume(shape: Shape, x: np.dtype, y: np.dtype, steps: Sequence[LineStep]) -> str | None:
    """Why these steps are no `VolumePass`, or would be slow in one; None where they are one."""
    axes = [step.axis for step in steps]
    if len(axes) != 3 or axes != [*range(axes[0], axes[0] + 3)]:
        return "it takes three neighbouring axes, in order"
    if x != y or x.kind != "f":
        return "it takes floats, which are rounded to themselves"
    deep, rows, _ = (len(step.weights) for step in steps)
    line = math.prod(shape[axes[1] + 1 :]) * x.itemsize
    if ROWS * (rows + ROWS) * line > RINGS or line < SHORTEST or math.prod(shape) * x.itemsize < LARGE:
        return "its rows are too long for the second cache, or short"
    if (deep + ROWS) * shape[axes[1]] * line > cache_sizes()[2]:
        return "planes that are summed would not lie in the third cache"
    if deep > MOST_TAPS:
        return "it sums too many planes"
    return None


class VolumePass(LinePass):
    """Three steps for which `why_not_volume` has no objection."""

    def __init__(self, x: np.dtype, y: np.dtype, steps: Sequence[LineStep], ending: int = PLAIN):
        self._deep, across, along = steps
        super().__init__(x, y, across, along, ending)

    def _all_steps(self) -> Sequence[LineStep | None]:
        return self._deep, self.across, self.along

    def _arrange(self) -> None:
        super()._arrange()
        f, deep = self.values, self._deep
        f["deep_taps"], f["deep_low"] = len(deep.weights), deep.window.low
        f["deep_weights"], f["deep_sums"] = self._table(self._weights(deep)), self._sums(deep)
        f["ring"] = f["taps"] + ROWS - 1
        self.kernel = line_drivers.volume_share(self.size)

    def _fit(self, f: dict[str, int], shape: Shape, threads: int) -> list[np.ndarray]:
        deep, across, along = self.steps
        tables: list[np.ndarray] = []
        self._fit_along(f, shape, along, tables)
        f["outer"], f["planes"] = math.prod(shape[: deep.axis]), shape[deep.axis]
        f["rows"] = shape[across.axis]
        f["sources"] = self._borders(across, shape, tables)
        f["deep_sources"] = self._borders(deep, shape, tables)
        f["filling"] = self._filled(along.fill, f["line"], tables)
        units = UNITS * threads
        bands = units if f["rows"] > ROWS * f["taps"] * units else threads
        f["bands"] = min(f["rows"], bands) if threads > 1 else 1
        f["tasks"] = min(f["outer"] * f["bands"], units)
        self._scratch(f, ROWS * (f["rows"] + f["taps"]), f["line"])
        f["deep_at"] = f["ring_at"] + ROWS * f["ring"] * f["line_bytes"]
        f["scratch_bytes"] = f["deep_at"] + whole_lines(16 * (f["deep_taps"] + ROWS - 1))
        return tables
