"""Places of maxima, and the gradient of a maximum, fixed to kernels of the CPU."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from convalgos.core.allocator import whole_lines
from convalgos.core.errors import Unsupported
from convalgos.core.layouts import PLAIN
from convalgos.core.pool_problem import PoolProblem
from convalgos.cpu.pooling.maxima import (
    INDEX,
    MAXIMA_FIELDS,
    MAXIMA_ROW,
    maxima_channels_first,
    maxima_channels_last,
)
from convalgos.cpu.pooling.reductions import UNROLLED, split_stride
from convalgos.cpu.pooling.runs import Computed, KernelRuns, MaximaRuns, widened
from convalgos.cpu.pooling.tables import column_blocks, columns_table, in_three, rows_table, table_of
from convalgos.cpu.runtime import half

MOST_ELEMENTS = 2**31 - 1  # of a map, whose places are integers of 32 bits
BLOCK_VECTORS = 4  # of channels that a unit of work of a gradient takes


class MaximaPlan(MaximaRuns):
    """Maxima of a problem's windows with their places, and dx of dy.

    Raises:
        Unsupported: a map has more elements than places of 32 bits reach, or lies in blocks of channels.
    """

    def __init__(self, problem: PoolProblem):
        if math.prod(problem.x_shape[2:]) > MOST_ELEMENTS:
            raise Unsupported(
                f"places of maxima are integers of 32 bits, and {problem.x_shape[2:]} has more elements"
            )
        if problem.layout not in PLAIN:
            raise Unsupported(f"places of maxima are found in {' and '.join(PLAIN)} only")
        self._problem, self._elements = problem, Computed(problem)
        self._compute = np.dtype(np.float64 if self._elements.kinds[0] == 8 else np.float32)

    def find(self, x: np.ndarray, y: np.ndarray, places: np.ndarray) -> None:
        """Write y and the place of each maximum, int64, of the shape of y; all `as_laid`."""
        if not places.size:
            return
        if not self._elements.widens:
            self._finding.launch(x, y, places)
            return
        wide = np.empty(y.shape, np.float32)
        self._finding.launch(widened(x), wide, places)
        half.convert(wide, y)

    def gradient(self, x: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
        """Write dx, of the shape of x; all `as_laid`. Floating-point problems have one."""
        if not dx.size or not dy.size:
            dx.fill(0)
            return
        x = widened(x) if self._elements.widens else x
        if dx.dtype == self._compute:
            self._gradient.launch(x, dy, dx)
            return
        wide = np.empty(dx.shape, np.float32)
        self._gradient.launch(x, widened(dy), wide)
        half.convert(wide, dx)

    def _runs(self, gradient: bool) -> KernelRuns:
        of = self._elements
        values, kernel = _values(self._problem, of.kinds, gradient)
        tasks = of.tasks(values["planes"] * values["blocks"] * values["parts"])
        return KernelRuns(MAXIMA_FIELDS, values | of.sizes, kernel, tasks, self.given(gradient))


def _values(problem: PoolProblem, kinds: tuple[int, int, int], gradient: bool) -> tuple[dict[str, Any], int]:
    """(values of the driver's record, the driver)."""
    size, lanes, _ = kinds
    n, channels = problem.x_shape[:2]
    depth, height, width = in_three(problem)
    last = problem.layout == "channels_last"
    pixel = channels if last else 1
    outputs = len(width.first)
    whole = -(-outputs // lanes) * lanes
    reach = (outputs - 1) * width.stride + (width.kernel - 1) * width.dilation + 1
    after = max(0, reach - width.before - width.size)
    # what a gradient adds to belongs to one unit of work; places are found row by row
    block = min(channels, BLOCK_VECTORS * lanes) if gradient else channels
    line = width.before + width.size + after + (width.stride + UNROLLED) * lanes
    scratch = (block + lanes) * INDEX if last else whole * (size + INDEX) + line * size
    rows = rows_table(depth, height, width.size * pixel)
    table = table_of(MAXIMA_ROW, len(rows), *(rows[n] for n in rows.dtype.names or ()), rows["x"] // pixel)
    first = np.zeros(whole, np.int32)
    first[:outputs] = width.first
    slice_elements, rows_out = height.size * width.size, rows.size
    values = {
        "planes": n if last else n * channels, "blocks": -(-channels // block) if last else 1,
        "parts": rows_out if last and not gradient else 1, "channels": channels, "block_channels": block,
        "rows": rows_out, "row_table": table,
        "columns": width.size, 
        "windows": columns_table(width, column_blocks(width, width.size + reach, last)),
        "first_columns": first, "before": width.before, "after": after, "outputs": outputs,
        "slice_step": depth.dilation * slice_elements * pixel,
        "row_step": height.dilation * width.size * pixel, "x_plane": depth.size * slice_elements * pixel,
        "x_pixel": pixel, "y_plane": rows_out * outputs * pixel, "y_row": outputs * pixel, "y_pixel": pixel,
        "slice_index": depth.dilation * slice_elements, "row_index": height.dilation * width.size,
        "taps": width.kernel, "stride": width.stride, "dilation": width.dilation,
        "scratch_bytes": whole_lines(scratch),
    }  # fmt: skip
    if last:
        return values, maxima_channels_last(*kinds)
    return values, maxima_channels_first(*kinds, split_stride(width.stride, lanes))
