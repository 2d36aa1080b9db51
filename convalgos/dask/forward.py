"""`conv` of arrays in chunks: over images, space, filters and channels."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from convalgos.api.types import Activation, Array, Boundary, Layout, Mode, Padding, Sizes
from convalgos.core import epilogue
from convalgos.core.arrays import same_dtype
from convalgos.core.boundaries import ZERO
from convalgos.core.plan import numpy_dtype
from convalgos.core.problem import ConvProblem
from convalgos.core.quantization import Quantization
from convalgos.dask import pinning
from convalgos.dask.axes import Axis, AxisSplit
from convalgos.dask.blocks import ForwardBlock, How, SummedStep
from convalgos.dask.engine import DaskArray, da
from convalgos.dask.filters import as_filter
from convalgos.dask.maps import (
    CHANNELS,
    FILTERS,
    Order,
    as_dask,
    by_groups,
    lengthened,
    order_of,
    window_arguments,
)
from convalgos.dask.written import blockwise, uncut_in_memory


@uncut_in_memory
def conv(
    x: Array,
    w: Array,
    bias: Array | None = None,
    *,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    mode: Mode = "cross_correlation",
    layout: Layout = "channels_first",
    algorithm: str = "auto",
    activation: Activation = None,
    residual: Array | None = None,
    strict_nan: bool = False,
    max_rel_error: float | None = None,
    selector: str | None = None,
    boundary: Boundary = ZERO,
    fill_value: float = 0.0,
) -> DaskArray:
    """Convolve x with w as `convalgos.conv` does, block by block, when Dask computes it.

    Chunks of x split the work over images and over space, where neighbours exchange the halo; chunks of w's
    first dimension split it over filters. Where x is chunked along its channels, their sums are added in a
    tree. Every border is exact.

    Args:
        x: (N, C, *spatial), or with layout="channels_last" (N, *spatial, C), of Dask or NumPy.
        w: (K, C/groups, *kernel), of Dask or NumPy; one of NumPy is one block.
        bias, stride, padding, dilation, groups, mode, layout, activation, residual, boundary, fill_value:
            those of `convalgos.conv`.
        algorithm: "auto" picks for the whole, and all blocks are computed by that; an id is used or refused.
        strict_nan, max_rel_error, selector: those of `convalgos.plan`.

    Returns:
        y (N, K, *spatial_out), not computed yet. Its chunks follow those of x and w; chunks that are smaller
        than the halo are joined.

    Raises:
        ValueError, TypeError: an argument is invalid; the message names it.

    Example:
        >>> import dask.array as da, numpy as np, convalgos.dask as cd
        >>> x = da.ones((1, 3, 64, 64), dtype="f4", chunks=(1, 3, 32, 32))
        >>> cd.conv(x, np.ones((4, 3, 3, 3), "f4"), padding=1).chunks
        ((1,), (4,), (32, 32), (32, 32))
    """
    x, w = as_dask("x", x), as_filter(w)
    order = order_of(layout, "x", x)
    problem = ConvProblem(
        order.logical(x.shape), w.shape, stride, padding, dilation, groups, mode=mode, layout=layout,
        dtype=x.dtype.name, w_dtype=w.dtype.name, boundary=boundary, fill_value=fill_value,
    )  # fmt: skip
    activation = epilogue.activation_of(activation)
    limits = pinning.set_limits(strict_nan, max_rel_error, selector, boundary, fill_value)
    y_shape, y_dtype = order.laid(problem.y_shape), numpy_dtype(problem.y_dtype)
    bias = None if bias is None else checked("bias", bias, (problem.K,), y_dtype)
    residual = None if residual is None else checked("residual", residual, y_shape, y_dtype)
    if problem.sums_integers:
        if residual is not None:
            raise ValueError(f"residual of shape {residual.shape} must be None in a problem of integers")
        Quantization().output(problem, activation)  # which refuses all but ReLU
    if 0 in y_shape:
        return da.zeros(y_shape, dtype=y_dtype, chunks=-1)  # Dask cannot cut what is empty
    how = shared_by_blocks(problem, algorithm, limits, 1)
    return _blocks(problem, order, how, x, w, bias, residual, activation)


def _blocks(
    problem: ConvProblem, order: Order, how: How, x: DaskArray, w: DaskArray, bias: Any, residual: Any,
    activation: Any,
) -> DaskArray:  # fmt: skip
    """y by the blocks of x and w."""
    dtype = numpy_dtype(problem.y_dtype)
    splits = forward_splits(problem, order, x, pinning.block_starts(how.algorithm, problem))
    channels, filters = order.logical(x.chunks)[1], w.chunks[0]
    grouped = problem.groups > 1
    if grouped:
        channels, filters = by_groups(channels, filters, problem.groups)
    partial = not grouped and len(channels) > 1
    sums = sums_dtype(dtype, partial)
    w = w.rechunk((filters, w.shape[1] if grouped else channels, *(-1,) * order.ndim))
    long = lengthened(x, order, splits, channels)
    y_chunks = order.laid((long.chunks[0], filters, *(s.sizes for s in splits)))
    blocks = math.prod(map(len, y_chunks)) * (len(channels) if partial else 1)
    how = replace(how, blocks=blocks, dtypes=(*how.dtypes[:2], sums.name))
    of_y, of_x = order.labels(FILTERS), order.labels(FILTERS if grouped else CHANNELS)
    of_w = (FILTERS, -CHANNELS if grouped else CHANNELS, *order.kernel)
    finish: tuple[Any, ...] = (None, None) if bias is None else (bias.rechunk((filters,)), (FILTERS,))
    finish += (None, None) if residual is None else (residual.rechunk(y_chunks), of_y)
    sizes = dict(zip(of_y, y_chunks, strict=True)) | ({CHANNELS: (1,) * len(channels)} if partial else {})
    y = blockwise(
        ForwardBlock(how, None if partial else activation, partial), (CHANNELS, *of_y) if partial else of_y,
        long, of_x, w, of_w, *((None,) * 4 if partial else finish), *window_arguments(splits),
        adjust_chunks=sizes, dtype=sums, token="conv",
        meta=np.empty((0,) * (x.ndim + partial), sums),
    )  # fmt: skip
    if not partial:
        return y
    y = y.sum(axis=0, dtype=sums)
    if bias is None and residual is None and activation is None and dtype == sums:
        return y
    step = SummedStep(dtype, problem.layout, activation)
    return da.blockwise(step, of_y, y, of_y, *finish, dtype=dtype, meta=np.empty((0,) * x.ndim, dtype))


def forward_splits(
    problem: ConvProblem, order: Order, x: DaskArray, starts: tuple[int, ...]
) -> list[AxisSplit]:
    """Those of the spatial dimensions, by the chunks of x."""
    chunks = order.logical(x.chunks)[2:]
    return [
        axis.forward(sizes, pinning.worth(step, axis.stride, sizes))
        for axis, sizes, step in zip(axes_of(problem), chunks, starts, strict=True)
    ]


def shared_by_blocks(problem: ConvProblem, algorithm: str, limits: pinning.Limits, blocks: int) -> How:
    """What so many blocks of a problem share, the algorithm of the whole among it."""
    pinned = pinning.pinned_algorithm(problem, algorithm, limits)
    return How(
        problem.direction, pinned, algorithm != "auto",
        problem.stride, problem.dilation, problem.gemm_n if problem.groups > 1 else 0, problem.mode,
        problem.layout, problem.boundary, problem.fill_value,
        (problem.dtype, problem.w_dtype, problem.y_dtype), blocks, limits,
        pinning.in_tiles_of(pinned, problem),
    )  # fmt: skip


def axes_of(problem: ConvProblem) -> list[Axis]:
    """The spatial dimensions of a problem."""
    p = problem
    return [
        Axis(size, outputs, stride, low, extent, boundary)
        for size, outputs, stride, (low, _), extent, boundary in zip(
            p.spatial, p.spatial_out, p.stride, p.padding, p.kernel_extent, p.boundary, strict=True
        )
    ]


def sums_dtype(dtype: np.dtype, partial: bool) -> np.dtype:
    """What sums of several blocks are added in: of 16-bit floats float32."""
    return np.dtype(np.float32) if partial and dtype.itemsize == 2 else dtype


def checked(name: str, array: Any, shape: tuple[int, ...], dtype: np.dtype | None = None) -> DaskArray:
    """An argument of a known shape, and of a type where it is given."""
    array = as_dask(name, array)
    if array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape}; it must be {shape}")
    if dtype is not None and not same_dtype(array.dtype, dtype):
        raise TypeError(f"{name} has dtype {array.dtype}; it must be {dtype}")
    return array
