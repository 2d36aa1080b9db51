"""Gradients of windows that are gathered: bands of rows, and which windows meet what of x."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from convalgos.core.allocator import whole_lines
from convalgos.core.layouts import PLAIN
from convalgos.core.pool_problem import PoolProblem, PoolWindows
from convalgos.cpu.pooling.elements import MAX, MEAN
from convalgos.cpu.pooling.gathered_gradients import (
    GATHER_FIELDS,
    GRADIENT_BAND,
    MEETING,
    WINDOW_ROW,
    gradient_channels_first,
    gradient_channels_last,
)
from convalgos.cpu.pooling.maxima import INDEX
from convalgos.cpu.pooling.maxima_plan import MOST_ELEMENTS
from convalgos.cpu.pooling.reductions import COLUMN, SPLIT_STRIDE, UNROLLED
from convalgos.cpu.pooling.runs import Computed, KernelRuns, widened
from convalgos.cpu.pooling.tables import in_three, window_counts
from convalgos.cpu.runtime import half, jit
from convalgos.cpu.runtime.threads import THREAD_UNITS

MOST_TAPS = 5  # of a row, up to which kernels of channels first are written out
BLOCK_VECTORS = 4  # of channels that a unit of work takes
SCRATCH = 1 << 16  # bytes of a band: a part of L2, and little more than L1
FEWEST = 4  # times the rows of a window: of dx in a band, as windows over its ends are looked at twice


def gathers(problem: PoolProblem) -> bool:
    """Whether these kernels take the windows of a problem: of planes, without dilation."""
    depth, _, width = in_three(problem)
    if problem.layout not in PLAIN or depth.size != 1 or any(d != 1 for d in problem.dilation):
        return False
    if math.prod(problem.x_shape[2:]) > MOST_ELEMENTS:
        return False
    return problem.layout == "channels_last" or (width.stride <= SPLIT_STRIDE and width.kernel <= MOST_TAPS)


class GradientPlan:
    """dx of dy, fixed to kernels of the CPU, where `gathers`."""

    def __init__(self, problem: PoolProblem):
        self._elements = of = Computed(problem)
        values, kernel = _values(problem, of.kinds)
        tasks = of.tasks(values["planes"] * values["blocks"] * values["bands"])
        self._runs = KernelRuns(GATHER_FIELDS, values | of.sizes, kernel, tasks)
        self._compute = np.dtype(np.float64 if of.kinds[0] == 8 else np.float32)

    def run(
        self, dy: np.ndarray, dx: np.ndarray, x: np.ndarray | None = None, places: np.ndarray | None = None
    ) -> None:
        """Write dx; all `as_laid`.

        Args:
            x: of a maximum.
            places: int64, of its maxima, where they are known.
        """
        given: dict[str, np.ndarray | int] = {"given": 0 if places is None else places}
        if x is not None:
            given["x"] = widened(x) if self._elements.widens else x
        if dx.dtype == self._compute:
            self._runs.launch(y=dy, dx=dx, **given)
            return
        wide = np.empty(dx.shape, np.float32)
        self._runs.launch(y=widened(dy), dx=wide, **given)
        half.convert(wide, dx)


def _values(problem: PoolProblem, kinds: tuple[int, int, int]) -> tuple[dict[str, Any], int]:
    """(values of the driver's record, the driver)."""
    size, lanes, _ = kinds
    n, channels = problem.x_shape[:2]
    depth, height, width = in_three(problem)
    last = problem.layout == "channels_last"
    pixel = channels if last else 1
    outputs, rows_out = len(width.first), len(height.first)
    block = min(channels, BLOCK_VECTORS * lanes) if last else 1
    planes, blocks = (n, -(-channels // block)) if last else (n * channels, 1)
    groups = -(-(width.size + width.before) // width.stride)
    whole = -(-max(outputs, groups) // lanes) * lanes
    # an over-long line: vectors are read and written behind its end
    reach = width.stride * (whole + lanes) + width.kernel + UNROLLED * lanes
    line = -(-max(reach, width.before + width.size + UNROLLED * lanes) // lanes) * lanes
    output_line = whole + 2 * lanes
    if last:
        row_bytes = outputs * block * max(size, INDEX) / height.stride
    else:
        row_bytes = line * size + output_line * (INDEX + size) / height.stride
    bands = _bands(height, row_bytes, planes * blocks)
    most_out = int((bands["outputs_end"] - bands["outputs"]).max())
    most_in = int((bands["end"] - bands["first"]).max()) + 2 * height.kernel
    scratch = most_out * outputs * block * max(size, INDEX)
    if not last:
        scratch = most_out * output_line * (INDEX + size) + (most_in + 2) * line * size
    windows = np.zeros(rows_out + 1, WINDOW_ROW)  # bands that no window meets ask for the last
    windows["x"][:-1], windows["rows"][:-1] = height.first, height.taps
    columns = np.zeros(outputs, COLUMN)
    columns["first"], columns["taps"] = width.first, width.taps
    first = np.zeros(whole, np.int32)
    first[:outputs] = width.first
    end = (outputs - 1) * width.stride + width.kernel - width.before
    values = {
        "planes": planes, "blocks": blocks, "channels": channels, "block_channels": block,
        "bands": len(bands), "band_table": bands, "row_table": windows, "windows": columns,
        "columns": width.size, "first_columns": first, "before": width.before,
        "after": max(0, end - width.size), "outputs": outputs, "line": line, "output_line": output_line,
        "lead": lanes, "groups": groups, "inputs": np.concatenate([_meeting(height), _meeting(width)]),
        "x_plane": height.size * width.size * pixel, "x_pixel": pixel,
        "y_plane": rows_out * outputs * pixel, "y_row": outputs * pixel, "y_pixel": pixel,
        "scratch_bytes": whole_lines(scratch), **window_counts(depth, height, width, kinds),
    }  # fmt: skip
    reduction = MEAN if problem.reduction == "mean" else MAX
    if last:
        return values, gradient_channels_last(*kinds, reduction)
    return values, gradient_channels_first(*kinds, reduction, width.stride, width.kernel)


def _meeting(windows: PoolWindows) -> np.ndarray:
    """`MEETING` of each element of x."""
    at = np.arange(windows.size) + windows.before
    first = np.maximum(0, -((windows.kernel - 1 - at) // windows.stride))
    end = np.minimum(len(windows.first), at // windows.stride + 1)
    found = np.zeros(windows.size, MEETING)
    found["first"], found["count"] = np.minimum(first, end), np.maximum(0, end - first)
    return found


def _bands(height: PoolWindows, row_bytes: float, units: int) -> np.ndarray:
    """`GRADIENT_BAND`: as few as scratch allows, and some for each thread.

    Args:
        row_bytes: of scratch, for a row of dx.
        units: of work that there are in each band.
    """
    wanted = -(-THREAD_UNITS * jit.thread_count() // units)
    rows = min(int(SCRATCH // row_bytes), -(-height.size // wanted))
    count = -(-height.size // min(height.size, max(rows, FEWEST * height.kernel)))
    ends = [height.size * i // count for i in range(count + 1)]
    met = _meeting(height)
    table = np.zeros(count, GRADIENT_BAND)
    table["first"], table["end"] = ends[:-1], ends[1:]
    for band in table:
        inside = met[band["first"] : band["end"]]
        band["outputs"] = inside["first"].min()
        band["outputs_end"] = (inside["first"] + inside["count"]).max()
    return table
