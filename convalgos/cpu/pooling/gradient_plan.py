"""Gradients of windows, fixed to kernels of the CPU: in vectors of channels or of planes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from convalgos.core.allocator import whole_lines
from convalgos.core.layouts import PLAIN
from convalgos.core.pool_problem import PoolProblem
from convalgos.cpu.layout.channel_vectors import gather, place
from convalgos.cpu.pooling.carried_plan import has_carried_plan
from convalgos.cpu.pooling.elements import MAX, MEAN
from convalgos.cpu.pooling.gradient_cost import scattered_seconds, separated_seconds
from convalgos.cpu.pooling.maxima_plan import MOST_ELEMENTS
from convalgos.cpu.pooling.phase_plan import phases_scatter
from convalgos.cpu.pooling.runs import Computed, KernelRuns, widened
from convalgos.cpu.pooling.scattered_gradients import PLACED, SCATTER_FIELDS, scatter_gradient
from convalgos.cpu.pooling.separable_plan import separable_runs
from convalgos.cpu.pooling.tables import (
    POINT,
    columns_from,
    gradient_bands,
    in_three,
    inside_of,
    meeting,
    window_counts,
    window_rows,
)
from convalgos.cpu.pooling.tile_plan import TilePlan, has_tiles
from convalgos.cpu.runtime import half

MOST_TAPS = 25  # of windows that overlap, of planes: each tap writes dx again
MOST_WRITTEN = 9  # taps of a window up to which it is code without loops
# Of channels that a unit of work takes, which lie side by side; and where rows are too few for all threads
BLOCK_VECTORS, SHARED_VECTORS = 64, 4
SURE = 0.8  # of the time window by window, up to which gradients are separated, as predictions err
COPIED = 4  # times the rows of x and dx in a band where these are not copied into scratch


def has_gradient_plan(problem: PoolProblem) -> bool:
    """Whether these kernels take the windows of a problem, and fastest: not dilated, of maxima of a plane."""
    _, height, width = in_three(problem)
    if problem.layout not in PLAIN or any(d != 1 for d in problem.dilation):
        return False
    if problem.reduction == "max" and (_has_slices(problem) or has_carried_plan(problem)):
        return False
    if math.prod(problem.x_shape[2:]) > MOST_ELEMENTS:
        return False
    if problem.reduction == "max" and not has_tiles(problem) and phases_scatter(problem):
        return False
    apart = height.kernel <= height.stride and width.kernel <= width.stride
    return problem.layout == "channels_last" or apart or height.kernel * width.kernel <= MOST_TAPS


class GradientPlan:
    """dx of dy, fixed to kernels of the CPU, where `has_gradient_plan`."""

    def __init__(self, problem: PoolProblem):
        self._problem = problem
        self._compute = np.dtype(np.float64 if problem.dtype == "float64" else np.float32)
        self._of_tiles = TilePlan(problem) if has_tiles(problem) else None
        if self._of_tiles is not None:
            return
        last, seconds, separated = problem.layout == "channels_last", None, False
        if last:
            seconds = scattered_seconds(problem)
            if not _has_slices(problem):
                apart = separated_seconds(problem)
                separated = apart < SURE * seconds
                seconds = apart if separated else seconds
        # what brings planes into vectors does not convert
        of = Computed(problem, gradient=True, converts=last, seconds=seconds)
        self._widens = of.widens
        reduction = MEAN if problem.reduction == "mean" else MAX
        self._runs = (separable_runs if separated else scatter_runs)(problem, of, reduction)

    def run(self, dy: np.ndarray, dx: np.ndarray, x: np.ndarray | None = None) -> None:
        """Write dx; all `as_laid`. x: of a maximum."""
        wide = dx if dx.dtype == self._compute else np.empty(dx.shape, np.float32)
        given = dy if dx.dtype == self._compute else widened(dy)
        if self._of_tiles is not None and x is not None:
            self._of_tiles.gradient(x, given, wide)
        elif x is None:
            self._runs.launch(given, wide)
        else:
            self._runs.launch(given, wide, widened(x) if self._widens else x)
        if wide is not dx:
            half.convert(wide, dx)


def scatter_runs(problem: PoolProblem, of: Computed, reduction: int) -> KernelRuns:
    """Runs of the kernel for a reduction of `has_gradient_plan`'s windows: MAX, MEAN, or PLACED."""
    values, kernel = _values(problem, of.kinds, reduction, of.threads)
    tasks = of.tasks(values["planes"] * values["blocks"] * values["bands"])
    third = {MAX: ("x",), PLACED: ("given",)}.get(reduction, ())
    return KernelRuns(SCATTER_FIELDS, values | of.sizes, kernel, tasks, ("y", "dx", *third))


def _has_slices(problem: PoolProblem) -> bool:
    """Whether windows are of three dimensions."""
    depth, _, _ = in_three(problem)
    return depth.size * depth.kernel != 1


def _values(
    problem: PoolProblem, kinds: tuple[int, int, int], reduction: int, threads: int
) -> tuple[dict[str, Any], int]:
    """(values of the driver's record, the driver)."""
    size, lanes, _ = kinds
    channels = problem.x_shape[1]
    depth, height, width = in_three(problem)
    summed = _has_slices(problem)
    n = problem.x_shape[0] * depth.size  # of images, or of slices
    planar = problem.layout == "channels_first"
    vectors = n * channels if planar else channels  # elements that lie in the lanes
    shared = n * (height.size // height.kernel) < threads
    together = SHARED_VECTORS if shared else BLOCK_VECTORS
    block = lanes if planar else min(channels, together * lanes)
    planes, blocks, pixel = (1 if planar else n), -(-vectors // block), (lanes if planar else channels)
    outputs, rows_out = len(width.first), len(height.first)
    apart = (2 * width.size + outputs / height.stride) * block * size / (1 if planar else COPIED)
    row_bytes = apart + (outputs / height.stride * block * size if summed else 0)
    bands = gradient_bands(height, row_bytes, planes, blocks, threads)
    windows, columns, (inner, inner_end) = window_rows(height), columns_from(width), inside_of(width)
    each = 1 if planar else channels
    values: dict[str, Any] = {
        "planes": planes, "blocks": blocks, "channels": vectors, "block_channels": block,
        "bands": len(bands), "band_table": bands, "row_table": windows, "windows": columns,
        "columns": width.size, "outputs": outputs, "inner": inner, "inner_end": inner_end,
        "rows_out": rows_out, "x_pixel": pixel, "y_pixel": block if summed else pixel,
        "x_plane": height.size * width.size * each, "y_plane": rows_out * outputs * each,
        **window_counts(POINT if summed else depth, height, width, kinds),
    }  # fmt: skip
    most_out = int((bands["outputs_end"] - bands["outputs"]).max()) * outputs
    pixels = 0  # of x, dx and dy in scratch
    if planar:
        last = windows[np.maximum(bands["outputs"], bands["outputs_end"] - 1)]
        rows_under = last["x"] + last["rows"] - windows["x"][bands["outputs"]]
        rows_in = int(max(rows_under.max(), (bands["end"] - bands["first"]).max()))
        pixels = 2 * (rows_in * width.size + lanes) + most_out + lanes
        values |= {"rows_in": rows_in, "gather": gather(size, lanes), "place": place(size, lanes)}
    scratch = whole_lines(pixels * lanes * size)
    if summed:
        line = -(-most_out // lanes) * lanes
        values |= {
            "slices": depth.size, "slices_out": len(depth.first), "slice_table": meeting(depth),
            "slice_counts": depth.divisor.astype(np.float64 if size == 8 else np.float32),
            "summed": scratch, "summed_line": line,
        }  # fmt: skip
        scratch += whole_lines(line * block * size)
    values["scratch_bytes"] = scratch
    rows, taps = (height.kernel, width.kernel) if height.kernel * width.kernel <= MOST_WRITTEN else (0, 0)
    tiles = problem.of_slices().tiles if summed else problem.tiles
    return values, scatter_gradient(*kinds, reduction, planar, tiles, rows, taps)
