"""A pooling problem fixed to kernels of the CPU: tables of its windows, made once and run many times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Self

import numpy as np

from convalgos.core.allocator import whole_lines
from convalgos.core.bound_run import BoundRun, check_bound, checked_scratch, image_step
from convalgos.core.errors import Unsupported
from convalgos.core.layouts import BLOCKS
from convalgos.core.plan import numpy_dtype
from convalgos.core.pool_problem import PoolProblem, PoolWindows
from convalgos.cpu.layout.channel_vectors import gather, place
from convalgos.cpu.pooling.blocks import SHARED, WINDOWS, pool_blocks
from convalgos.cpu.pooling.drivers import (
    POOL_FIELDS,
    pool_channels_first,
    pool_channels_last,
    pool_in_pixels,
    pool_planes,
    pool_slices,
)
from convalgos.cpu.pooling.elements import FLOAT, MAX, MEAN
from convalgos.cpu.pooling.planar_forms import PLANES, ROWS, SLICES, planar_form
from convalgos.cpu.pooling.reductions import UNROLLED, split_stride
from convalgos.cpu.pooling.runs import Computed, KernelRuns, widened
from convalgos.cpu.pooling.tables import (
    POINT,
    column_blocks,
    columns_from,
    columns_table,
    in_three,
    inside_of,
    rows_table,
    window_counts,
)
from convalgos.cpu.runtime import half, jit
from convalgos.cpu.runtime.threads import THREAD_UNITS
from convalgos.cpu.vectors import simd

SCRATCH = 1 << 14  # bytes of a row that is reduced along: a part of L1
MANY_TAPS = 4  # of a row, from which on the rows of a window in a block of channels are reduced first
OVERLAP = 3  # windows over each row, from which on these are to stay in L1


class PoolPlan:
    """Windows of a problem reduced to their maximum or mean.

    Raises:
        Unsupported: blocks of channels would be written that have lanes beyond the last, of several images.

    Example:
        >>> plan = PoolPlan(PoolProblem.of((1, 1, 4, 4), 2))
        >>> plan.run(np.arange(16, dtype="f4").reshape(1, 1, 4, 4), y := np.empty((1, 1, 2, 2), "f4"))
        >>> y.ravel()
        array([ 5.,  7., 13., 15.], dtype=float32)
    """

    def __init__(self, problem: PoolProblem):
        self._elements = of = Computed(problem)
        values, kernel = _values(problem, (*of.kinds, MEAN if problem.reduction == "mean" else MAX))
        rows = 1 if "gather" in values else values.get("slices", values["rows"])
        units = values["planes"] * values["blocks"] * rows
        self._runs = KernelRuns(POOL_FIELDS, values | of.sizes, kernel, of.tasks(units))
        self.scratch_bytes = self._runs.scratch_bytes
        self._problem, self._is_run = problem, problem.layout in BLOCKS and values["pixels"] > 0
        self._shapes, self._dtype = problem.array_shapes, numpy_dtype(problem.dtype)
        self.by_address = not self._elements.widens and math.prod(problem.y_shape) > 0
        # whether a bound run takes images that lie apart
        self.strided_batch = problem.layout != "channels_first" and not of.widens

    def on_map(self, problem: PoolProblem) -> Self | None:
        """The plan of the same problem of another map in this plan's layout, where blocks of both are reduced
        as one run of pixels; else None."""
        own = self._problem
        if not self._is_run or problem.x_shape[1] != own.x_shape[1] or problem.dtype != own.dtype:
            return None
        if problem.kernel != problem.x_shape[2:] or problem.y_layout != own.y_layout:
            return None
        made: Self = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__)
        made._problem, made._shapes, made._elements = problem, problem.array_shapes, Computed(problem)
        of, pixels, (images, *shape) = made._elements, math.prod(problem.kernel), made._shapes[0]
        counts = np.ones(1 + of.kinds[1], numpy_dtype("float64" if of.kinds[0] == 8 else "float32"))
        counts[0] = pixels  # what a mean divides by, times the next number
        x_plane, blocks = math.prod(shape), shape[0]
        values = {
            "planes": images, "pixels": pixels, "x_plane": x_plane, "x_block": x_plane // blocks,
            "counts": jit.data_address()(counts), "row_counts": jit.data_address()(counts[1:]),
        }  # fmt: skip
        made._runs = self._runs.like(values, of.tasks(images * blocks), counts)
        return made

    def run(self, x: np.ndarray, y: np.ndarray) -> None:
        """Write y; both `as_laid`, in the problem's layouts and of its dtype."""
        if not y.size:
            return
        if not self._elements.widens:
            self._runs.launch(x, y)
            return
        wide = np.empty(y.shape, np.float32)
        self._runs.launch(widened(x), wide)
        half.convert(wide, y)

    def bind(self, x: np.ndarray, y: np.ndarray, scratch: np.ndarray | None = None) -> BoundRun:
        """A run on these very arrays, of the problem's shapes in memory; see `Plan.bind`.

        Raises:
            ValueError, TypeError, Unsupported: an array is not as the run takes it.
        """
        for name, array, shape in (("x", x, self._shapes[0]), ("y", y, self._shapes[1])):
            check_bound(name, array, shape, self._dtype, self.strided_batch, written=name == "y")
        if self._elements.widens or not y.size:
            return BoundRun(partial(self.run, x, y), None, (self, x, y))
        scratch = checked_scratch(scratch, self.scratch_bytes)
        apart = {"x_plane": image_step(x), "y_plane": image_step(y)} if self.strided_batch else {}
        return self._runs.bound(scratch, (x, y), x=x.ctypes.data, y=y.ctypes.data, **apart)

    def bound_at(self, x: Sequence[int], y: int) -> BoundRun:
        """A run on contiguous arrays; see `BoundStep.bound_at`."""
        apart: dict[str, int] = {}
        if self.strided_batch:
            of_x, of_y = (math.prod(shape[1:]) for shape in self._shapes)
            apart = {"x_plane": of_x, "y_plane": of_y}
        return self._runs.bound(None, (), x=x[0], y=y, **apart)


def _values(problem: PoolProblem, kinds: tuple[int, int, int, int]) -> tuple[dict[str, Any], int]:
    """(values of the driver's record, the driver)."""
    n, channels = problem.x_shape[:2]
    depth, height, width = in_three(problem)
    size, lanes, _, _ = kinds
    last = problem.layout == "channels_last"
    if problem.layout in BLOCKS:
        return _in_blocks(problem, kinds)
    values: dict[str, Any] = {
        "planes": n if last else n * channels,
        "blocks": 1,
        "rows": 1,
        "column_blocks": 1,
    }
    if not last:
        if problem.y_layout in BLOCKS and n > 1 and channels % BLOCKS[problem.y_layout]:
            raise Unsupported(f"writes whole blocks of channels only in {problem.y_layout}, not {channels}")
        order, depth, height, width = planar_form(problem, kinds[:3])
        pixels = depth.size * height.size * width.size
        if order == PLANES:
            values |= {"taps": pixels, "x_plane": pixels, "scratch_bytes": 0}
            return values | _counts(depth, height, width, kinds), pool_planes(*kinds)
        if order == SLICES:
            more = _slices_of(depth, height, width, kinds)
            return values | more, pool_slices(*kinds, split_stride(width.stride, lanes))
        if order == ROWS:
            more = _in_rows(depth, height, width, 1, 1, kinds)
            return values | more, pool_channels_first(*kinds, split_stride(width.stride, lanes))
        values |= _in_rows(depth, height, width, lanes, lanes, kinds)
        pixels_out = len(depth.first) * len(height.first) * len(width.first)
        more = values["scratch_bytes"] + (pixels + pixels_out + 2 * lanes) * lanes * size
        values |= {
            "planes": n, "blocks": -(-channels // lanes), "channels": channels, "pixels": pixels,
            "pixels_out": pixels_out, "scratch_bytes": more, "row_elements": width.size * lanes,
            "columns_out": len(width.first), "gather": gather(size, lanes), "place": place(size, lanes),
        }  # fmt: skip
        return values, pool_in_pixels(*kinds)
    merged = height.over_rows_of(width)  # a window over whole rows is one of as many rows of a pixel
    height, width = (height, width) if merged is None else (merged, POINT)
    block = _block_channels(channels, n * len(depth.first) * len(height.first), height, width, size)
    rows = depth.kernel * height.kernel
    fewer = rows * width.kernel <= width.stride * (rows + 1) + width.kernel
    whole = fewer and channels >= UNROLLED * lanes  # rows of few channels are longer vectors
    values |= _in_rows(depth, height, width, channels, block, kinds, whole)
    values |= {
        "channels": channels, "blocks": -(-channels // block), "block_channels": block, "whole": whole,
        "y_plane": math.prod(problem.array_shapes[1][1:]),
    }  # fmt: skip
    return values, pool_channels_last(*kinds)


def _slices_of(
    depth: PoolWindows, height: PoolWindows, width: PoolWindows, kinds: tuple[int, int, int, int]
) -> dict[str, Any]:
    """What `pool_slices` knows."""
    size, lanes, _, _ = kinds
    values = _in_rows(depth, height, width, 1, 1, kinds)
    rows, elements = len(height.first), height.size * width.size
    _, columns, before, after, *_ = values["block_table"][0].tolist()
    slack = (width.stride + UNROLLED) * lanes  # vectors end behind it
    pitch = before + columns + after + slack
    return values | {
        "slices": len(depth.first), "slice_table": rows_table(depth, POINT, elements),
        "rows": rows, "row_table": rows_table(POINT, height, width.size), "slice_elements": elements,
        "pitch": pitch, "scratch_bytes": whole_lines((elements + (rows + 2) * pitch) * size),
    }  # fmt: skip


def _in_blocks(problem: PoolProblem, kinds: tuple[int, int, int, int]) -> tuple[dict[str, Any], int]:
    """The same of a blocked layout."""
    size, lanes, form, reduction = kinds
    n, channels = problem.x_shape[:2]
    depth, height, width = in_three(problem)
    pixel = BLOCKS[problem.layout]
    pixels, pixels_out = (math.prod(shape[2:]) for shape in (problem.x_shape, problem.y_shape))
    (inner, inner_end), columns = inside_of(width), columns_from(width)
    slice_elements, row_elements = height.size * width.size * pixel, width.size * pixel
    counts = window_counts(depth, height, width, kinds)
    windows = np.array(
        [(
            len(width.first), inner, inner_end, width.kernel, width.dilation * pixel, width.stride * pixel,
            pixel, pixel, depth.dilation * slice_elements, height.dilation * row_elements,
            columns.ctypes.data, counts["counts"].ctypes.data,
        )],
        WINDOWS,
    )  # fmt: skip
    blocks = -(-channels // pixel)
    # rows of these are reduced to one, so that a window takes as many steps as it has rows and columns
    apart = form == FLOAT and pixel <= lanes and width.kernel >= MANY_TAPS > width.stride
    scratch = (row_elements + UNROLLED * lanes) * size if apart else 0  # vectors end behind it
    values = {
        "planes": n, "blocks": blocks, "block_channels": pixel, "x_pixel": pixel,
        "scratch_bytes": whole_lines(scratch), "row_elements": row_elements if apart else 0,
        "slice_step": depth.dilation * slice_elements, "row_step": height.dilation * row_elements,
        # what lies beyond the last channel is reduced, too, where there is room for it
        "channels": blocks * pixel if problem.y_layout in BLOCKS else channels,
        "x_plane": blocks * pixels * pixel, "x_block": pixels * pixel,
        "y_plane": math.prod(problem.array_shapes[1][1:]), "y_block": pixels_out * pixel,
        "pixels": pixels if all(w.is_whole for w in (depth, height, width)) else 0,
        "rows": len(depth.first) * len(height.first), "row_table": rows_table(depth, height, row_elements),
        "y_row": len(width.first) * pixel, "windows": windows, "columns": columns, **counts,
    }  # fmt: skip
    shares = reduction == MAX and (width.kernel, width.stride, width.dilation) == (SHARED, 1, 1)
    return values, pool_blocks(size, min(lanes, pixel), form, reduction, shares)


def _in_rows(
    depth: PoolWindows,
    height: PoolWindows,
    width: PoolWindows,
    pixel: int,
    block: int,
    kinds: tuple[int, int, int, int],
    whole: bool = False,
) -> dict[str, Any]:
    """What drivers know of rows and columns.

    Args:
        pixel: elements of x from one to the next.
        block: of these, those that a unit of work takes.
        whole: whether windows are reduced as a whole, not row by row.
    """
    size, lanes, _, _ = kinds
    each = width.before + 2 * width.size + width.kernel * width.dilation
    blocks = column_blocks(width, each if whole else max(1, SCRATCH // size // block), pixel > 1)
    rows_out, columns_out = len(depth.first) * len(height.first), len(width.first)
    slice_elements, row_elements = height.size * width.size * pixel, width.size * pixel
    scratch = (blocks.longest * block + (width.stride + UNROLLED) * lanes) * size  # vectors end behind it
    scratch = 0 if whole else scratch
    return {
        "x_plane": depth.size * slice_elements, "x_pixel": pixel, "scratch_bytes": whole_lines(scratch),
        "rows": rows_out, "row_table": rows_table(depth, height, row_elements),
        "column_blocks": len(blocks.table), "block_table": blocks.table,
        "windows": columns_table(width, blocks), "slice_step": depth.dilation * slice_elements,
        "row_step": height.dilation * row_elements,
        "y_plane": rows_out * columns_out * pixel, "y_row": columns_out * pixel, "y_pixel": pixel,
        "taps": width.kernel, "stride": width.stride, "dilation": width.dilation,
        **_counts(depth, height, width, kinds),
    }  # fmt: skip


def _counts(
    depth: PoolWindows, height: PoolWindows, width: PoolWindows, kinds: tuple[int, int, int, int]
) -> dict[str, np.ndarray]:
    """What means divide by; maxima do not look at it."""
    return window_counts(depth, height, width, kinds) if kinds[3] == MEAN else {}


def _block_channels(channels: int, rows: int, height: PoolWindows, width: PoolWindows, size: int) -> int:
    """Of a unit of work: all, unless a row of these leaves L1, or there are too few rows for the threads.

    PoolWindows that overlap by many rows read each from the cache again, which is then to be L1.
    """
    lanes = simd.lanes(size)
    again = height.kernel if height.kernel > OVERLAP * height.stride else 1
    fit = SCRATCH // size // (again * (width.size if again > 1 else width.kernel * width.dilation))
    share = channels
    if rows < 2 * THREAD_UNITS * jit.thread_count():
        share = -(-channels * rows // (THREAD_UNITS * jit.thread_count()))
    wanted = max(lanes * UNROLLED, min(fit, share))
    return min(channels, -(-wanted // lanes) * lanes)
