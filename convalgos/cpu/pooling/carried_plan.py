"""Gradients of maxima found axis by axis, fixed to kernels of the CPU."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from convalgos.core.allocator import whole_lines
from convalgos.core.layouts import PLAIN
from convalgos.core.machine import cache_sizes
from convalgos.core.pool_problem import PoolProblem, PoolWindows
from convalgos.core.profiles import units_are_narrow
from convalgos.cpu.layout.channel_vectors import gather
from convalgos.cpu.pooling.carried_gradients import CARRIED_FIELDS, SLICE_WINDOW, carried_gradient
from convalgos.cpu.pooling.maxima import INDEX
from convalgos.cpu.pooling.maxima_plan import MOST_ELEMENTS
from convalgos.cpu.pooling.phase_maxima import TAP
from convalgos.cpu.pooling.reductions import UNROLLED
from convalgos.cpu.pooling.runs import Computed, KernelRuns, in_full_precision, leaves_cache, widened
from convalgos.cpu.pooling.tables import GRADIENT_BAND, POINT, columns_from, in_three, inside_of
from convalgos.cpu.runtime import half
from convalgos.cpu.runtime.threads import THREAD_UNITS
from convalgos.cpu.vectors import simd

BLOCK_VECTORS = 4  # of channels that a unit of work takes
SCRATCH = 1 / 8  # of L2, that these take at most

# Vectors of channels that lie side by side, up to which this is faster than window by window: of three
# dimensions, or dilated; and of windows of so many taps at least, and so many elements apart
FEW_VECTORS, FEWER_VECTORS = 3, 2
LARGE_TAPS, SPARSE_STRIDE = 16, 4


def has_carried_plan(problem: PoolProblem) -> bool:
    """Whether maxima are found axis by axis for a gradient, and fastest so, as on random maps."""
    depth, height, width = in_three(problem)
    channels = problem.x_shape[1]
    each = channels if problem.layout == "channels_last" else 1
    if problem.layout not in PLAIN or math.prod(problem.x_shape[2:]) * each > MOST_ELEMENTS:
        return False
    if problem.itemsize == 1 or len(problem.kernel) < 2:
        return False
    lanes, slices = simd.lanes(max(4, problem.itemsize)), depth.size * depth.kernel != 1
    if problem.layout == "channels_first":
        many = 2 * problem.x_shape[0] * channels >= lanes
        return many and (slices or (units_are_narrow() and _wins_by_axes(problem, lanes)))
    if slices or any(d != 1 for d in problem.dilation):
        return channels <= FEW_VECTORS * lanes
    sparse = height.stride * width.stride >= SPARSE_STRIDE and height.kernel * width.kernel >= LARGE_TAPS
    return sparse and lanes <= 2 * channels <= 2 * FEWER_VECTORS * lanes


def _wins_by_axes(problem: PoolProblem, lanes: int) -> bool:
    """Whether windows are so large that vectors of planes win by axes: where rows fill vectors badly.

    Or where windows are sparse, in maps that leave the cache.
    """
    _, height, width = in_three(problem)
    if problem.itemsize < 4 or any(d != 1 for d in problem.dilation):
        return False
    overlap = height.kernel > height.stride and width.kernel > width.stride
    if not overlap or height.kernel * width.kernel <= LARGE_TAPS:
        return False
    sparse = height.stride * width.stride >= SPARSE_STRIDE
    return width.size <= lanes + width.kernel or (sparse and leaves_cache(problem))


class CarriedPlan:
    """dx of dy and x, of floats in plain layouts."""

    def __init__(self, problem: PoolProblem):
        self._compute = np.dtype(np.float64 if problem.dtype == "float64" else np.float32)
        problem = in_full_precision(problem)
        self._runs = _runs(problem, Computed(problem, gradient=True))

    def gradient(self, x: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
        """Write dx; all `as_laid`."""
        if dx.dtype == self._compute:
            self._runs.launch(dy, dx, x)
            return
        wide = np.empty(dx.shape, self._compute)
        self._runs.launch(widened(dy), wide, widened(x))
        half.convert(wide, dx)


def _runs(problem: PoolProblem, of: Computed) -> KernelRuns:
    size, lanes, _ = of.kinds
    n, channels = problem.x_shape[:2]
    planar = problem.layout == "channels_first"
    slices, rows, width = _axes(problem)
    outputs, rows_out = len(width.first), len(rows.first)
    vectors = n * channels if planar else channels
    pixel_bytes = _pixels(slices, rows, width) * (size + INDEX)
    most = max(1, min(BLOCK_VECTORS, int(SCRATCH * cache_sizes()[1]) // (pixel_bytes * lanes)))
    block = lanes if planar else min(channels, most * lanes)
    planes, blocks, pixel = (1 if planar else n), -(-vectors // block), (1 if planar else channels)
    bands = _bands(slices, blocks if planar else n, of.threads)
    inner, inner_end = inside_of(width)
    whole = inner_end - inner
    reach = (slices.kernel - 1) * slices.dilation + 1
    line, slack = outputs * block, UNROLLED * lanes
    slot = -(-(rows_out * line + slack) // slack) * slack
    flat = rows.size == rows.kernel == 1
    pixels = (rows.size * width.size + lanes) * lanes if planar else 0
    places, at = {}, whole_lines(pixels * size)
    lines = 0 if flat else rows.size * line + slack
    for name, count, each in (
        ("lines", lines, size), ("line_places", lines, INDEX), ("ring", reach * slot, size),
        ("ring_places", reach * slot, INDEX), ("best", slot, size), ("found", slot, INDEX),
    ):  # fmt: skip
        places[name] = at
        at += whole_lines(count * each)
    elements = math.prod(problem.x_shape[2:]) * pixel
    values: dict[str, Any] = {
        "planes": planes, "blocks": blocks, "channels": vectors, "block_channels": block,
        "bands": len(bands), "band_table": bands,
        "slices": slices.size, "slice_windows": _slice_windows(slices), "slices_out": len(slices.first),
        "reach": reach, "ring_dilation": slices.dilation, "ring_table": _ring_taps(slices, reach, slot),
        "ring_taps": slices.kernel,
        "rows": rows.size, "row_windows": columns_from(rows), "rows_out": rows_out,
        "columns": width.size, "windows": columns_from(width), "outputs": outputs, "inner": inner,
        "inner_end": inner + whole // UNROLLED * UNROLLED, "stride": width.stride, "dilation": width.dilation,
        "x_plane": elements, "pixel": pixel, "y_plane": math.prod(problem.y_shape[2:]) * pixel,
        "gather": gather(size, lanes), "slot": slot, "scratch_bytes": at, **places,
    }  # fmt: skip
    if not flat:
        values["row_taps"] = _row_taps(rows, line)
    tasks = of.tasks(planes * blocks * len(bands))
    return KernelRuns(
        CARRIED_FIELDS, values | of.sizes, carried_gradient(size, lanes, planar), tasks, ("y", "dx", "x")
    )


def _pixels(slices: PoolWindows, rows: PoolWindows, width: PoolWindows) -> int:
    """Maxima that a channel has in scratch."""
    kept = (slices.kernel - 1) * slices.dilation + 2
    return len(width.first) * (kept * len(rows.first) + rows.size)


def _axes(problem: PoolProblem) -> tuple[PoolWindows, PoolWindows, PoolWindows]:
    """Slices, rows and columns: of two dimensions, rows are slices of one row."""
    depth, height, width = in_three(problem)
    return (height, POINT, width) if len(problem.kernel) < 3 else (depth, height, width)


def _slice_windows(slices: PoolWindows) -> np.ndarray:
    """`SLICE_WINDOW`: where windows are dilated, the first slices of those at a border do not ascend."""
    table = np.zeros(len(slices.first), SLICE_WINDOW)
    table["first"], table["taps"] = slices.first, slices.taps
    table["begin"] = np.minimum.accumulate(slices.first[::-1])[::-1]
    return table


def _row_taps(rows: PoolWindows, line: int) -> np.ndarray:
    """`TAP` of the rows of windows, whose places are whole ones."""
    table = np.zeros(rows.kernel, TAP)
    table["offset"] = np.arange(rows.kernel) * rows.dilation * line
    return table


def _ring_taps(slices: PoolWindows, reach: int, slot: int) -> np.ndarray:
    """`TAP` of the slices of windows, for each place of the first one in the ring."""
    table = np.zeros((reach, slices.kernel), TAP)
    at = np.arange(reach)[:, None] + np.arange(slices.kernel) * slices.dilation
    table["offset"] = at % reach * slot
    return table


def _bands(slices: PoolWindows, units: int, threads: int) -> np.ndarray:
    """`GRADIENT_BAND`: more than one where there are too few units for all threads."""
    reach = (slices.kernel - 1) * slices.dilation + 1
    wanted = threads // math.gcd(threads, units) if units < THREAD_UNITS * threads else 1
    count = max(1, min(wanted, slices.size // reach))
    ends = [slices.size * i // count for i in range(count + 1)]
    table = np.zeros(count, GRADIENT_BAND)
    table["first"], table["end"] = ends[:-1], ends[1:]
    last = slices.first + (slices.taps - 1) * slices.dilation
    for band in table:
        met = np.flatnonzero((slices.first < band["end"]) & (last >= band["first"]))
        band["outputs"], band["outputs_end"] = (met[0], met[-1] + 1) if len(met) else (0, 0)
    return table
