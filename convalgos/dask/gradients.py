"""The backward passes of `conv` on arrays in chunks, and transposed convolution.

Gradients of the input are split by the chunks of dy, as the forward pass is by those of x. Gradients of the
filter are sums over images and space: each block gives its part, and the parts are added in a tree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from convalgos.api.types import Activation, Array, Boundary, Layout, Mode, Padding, Sizes
from convalgos.core import arguments, epilogue
from convalgos.core.boundaries import ZERO
from convalgos.core.plan import numpy_dtype
from convalgos.core.problem import ConvProblem
from convalgos.core.transposed_sizes import transposed_rows, transposed_spatial
from convalgos.dask import borders, pinning
from convalgos.dask.blocks import FilterGradientBlock, InputGradientBlock, SummedStep
from convalgos.dask.engine import DaskArray, da
from convalgos.dask.filters import as_filter
from convalgos.dask.forward import axes_of, checked, forward_splits, shared_by_blocks, sums_dtype
from convalgos.dask.maps import (
    CHANNELS,
    FILTERS,
    IMAGES,
    Order,
    as_dask,
    by_groups,
    lengthened,
    order_of,
    window_arguments,
)
from convalgos.dask.written import blockwise, uncut_in_memory


@uncut_in_memory
def conv_backward_data(
    dy: Array,
    w: Array,
    x_shape: Sequence[int],
    *,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    mode: Mode = "cross_correlation",
    layout: Layout = "channels_first",
    algorithm: str = "auto",
    strict_nan: bool = False,
    max_rel_error: float | None = None,
    selector: str | None = None,
    boundary: Boundary = ZERO,
    fill_value: float = 0.0,
) -> DaskArray:
    """The gradient of `conv`'s input, block by block; arguments are those of `convalgos.conv_backward_data`.

    Chunks of dy split the work over images and space, and chunks of w's second dimension over channels; where
    dy or w is chunked along its filters, their sums are added in a tree.

    Example:
        >>> import dask.array as da, numpy as np, convalgos.dask as cd
        >>> dy = da.ones((1, 4, 64, 64), dtype="f4", chunks=(1, 4, 32, 32))
        >>> cd.conv_backward_data(dy, np.ones((4, 3, 3, 3), "f4"), (1, 3, 64, 64), padding=1).chunks
        ((1,), (3,), (32, 32), (32, 32))
    """
    dy, w = as_dask("dy", dy), as_filter(w)
    order = order_of(layout, "dy", dy)
    problem = ConvProblem(
        order.logical(arguments.shape("x_shape", x_shape)), w.shape, stride, padding, dilation, groups,
        mode=mode, layout=layout, dtype=dy.dtype.name, w_dtype=w.dtype.name, direction="backward_data",
        boundary=boundary, fill_value=fill_value,
    )  # fmt: skip
    checked("dy", dy, order.laid(problem.y_shape))
    limits = pinning.set_limits(strict_nan, max_rel_error, selector, boundary, fill_value)
    alone = borders.extended_problem(problem)
    dx = _input_gradient(dy, w, alone, order, algorithm, limits, None, None)
    return dx if alone is problem else borders.border_added(dx, problem, order)


@uncut_in_memory
def conv_transpose(
    x: Array,
    w: Array,
    bias: Array | None = None,
    *,
    stride: Sizes = 1,
    padding: Padding = 0,
    output_padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    mode: Mode = "cross_correlation",
    layout: Layout = "channels_first",
    algorithm: str = "auto",
    activation: Activation = None,
    strict_nan: bool = False,
    max_rel_error: float | None = None,
    selector: str | None = None,
) -> DaskArray:
    """The transposed convolution, block by block; arguments are those of `convalgos.conv_transpose`.

    Example:
        >>> import dask.array as da, numpy as np, convalgos.dask as cd
        >>> x = da.ones((1, 4, 8, 8), dtype="f4", chunks=(1, 4, 4, 4))
        >>> cd.conv_transpose(x, np.ones((4, 3, 2, 2), "f4"), stride=2).chunks
        ((1,), (3,), (8, 8), (8, 8))
    """
    x, w = as_dask("x", x), as_filter(w)
    order = order_of(layout, "x", x)
    sizes = order.logical(x.shape)[2:]
    rows = transposed_rows(stride, output_padding, order.ndim)
    spatial = transposed_spatial(sizes, w.shape[2:], stride, padding, dilation, output_padding)
    if any(rows):
        x = da.pad(x, order.laid(((0, 0), (0, 0), *((0, n) for n in rows))))
    problem = ConvProblem(
        (x.shape[0], w.shape[1] * groups, *spatial), w.shape, stride, padding, dilation, groups, mode=mode,
        layout=layout, dtype=x.dtype.name, w_dtype=w.dtype.name, direction="backward_data",
    )  # fmt: skip
    checked("x", x, order.laid(problem.y_shape))
    bias = None if bias is None else checked("bias", bias, (problem.C,), x.dtype)
    limits = pinning.set_limits(strict_nan, max_rel_error, selector)
    activation = epilogue.activation_of(activation)
    return _input_gradient(x, w, problem, order, algorithm, limits, bias, activation)


def conv_backward_weights(
    x: Array,
    dy: Array,
    w_shape: Sequence[int],
    *,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    mode: Mode = "cross_correlation",
    layout: Layout = "channels_first",
    algorithm: str = "auto",
    return_bias: bool = False,
    strict_nan: bool = False,
    max_rel_error: float | None = None,
    selector: str | None = None,
    boundary: Boundary = ZERO,
    fill_value: float = 0.0,
) -> Any:
    """The gradient of `conv`'s filter; arguments are those of `convalgos.conv_backward_weights`.

    Every block of images and space gives a part of dw, and the parts are added in a tree. Chunks of dy along
    its filters, and of x along its channels, are chunks of dw.

    Returns:
        dw (K, C/groups, *kernel), or (dw, db) with return_bias.

    Example:
        >>> import dask.array as da, convalgos.dask as cd
        >>> x = da.ones((8, 3, 6, 6), dtype="f4", chunks=(2, 3, 6, 6))
        >>> dy = da.ones((8, 4, 6, 6), dtype="f4", chunks=(2, 4, 6, 6))
        >>> cd.conv_backward_weights(x, dy, (4, 3, 3, 3), padding=1).numblocks
        (1, 1, 1, 1)
    """
    x, dy = as_dask("x", x), as_dask("dy", dy)
    order = order_of(layout, "x", x)
    problem = ConvProblem(
        order.logical(x.shape), w_shape, stride, padding, dilation, groups, mode=mode, layout=layout,
        dtype=x.dtype.name, w_dtype=x.dtype.name, direction="backward_weights",
        boundary=boundary, fill_value=fill_value,
    )  # fmt: skip
    checked("dy", dy, order.laid(problem.y_shape))
    if dy.dtype != x.dtype:
        raise TypeError(f"dy has dtype {dy.dtype}, but x has {x.dtype}; they must be the same")
    limits = pinning.set_limits(strict_nan, max_rel_error, selector, boundary, fill_value)
    dw = _filter_gradient(x, dy, problem, order, algorithm, limits)
    if not return_bias:
        return dw
    axes = tuple(axis for axis, label in enumerate(order.labels(FILTERS)) if label != FILTERS)
    return dw, dy.sum(axis=axes, dtype=np.float64).astype(dy.dtype)


# --- inside ----------------------------------------------------------------------------------


def _input_gradient(
    dy: DaskArray, w: DaskArray, problem: ConvProblem, order: Order, algorithm: str, limits: pinning.Limits,
    bias: DaskArray | None, activation: Any,
) -> DaskArray:  # fmt: skip
    """dx, with the bias (C,) and the activation of a transposed convolution."""
    dtype = numpy_dtype(problem.dtype)
    shape = order.laid(problem.x_shape)
    if 0 in shape:
        return da.zeros(shape, dtype=dtype, chunks=-1)
    filters, channels = order.logical(dy.chunks)[1], w.chunks[1]
    grouped = problem.groups > 1
    if grouped:
        channels, filters = by_groups((problem.C,), filters, problem.groups)
        w = w.rechunk((filters, *(-1,) * (w.ndim - 1)))
    else:
        w = w.rechunk((filters, channels, *(-1,) * order.ndim))
    if not problem.K or not math.prod(problem.spatial_out):
        return _empty_sums(shape, dtype, order, bias, activation)
    partial = not grouped and len(filters) > 1
    spatial = order.logical(dy.chunks)[2:]
    splits = [axis.backward(sizes) for axis, sizes in zip(axes_of(problem), spatial, strict=True)]
    long = lengthened(dy, order, splits, filters)
    sums = sums_dtype(dtype, partial)
    blocks = math.prod(map(len, (long.chunks[0], filters, *(s.windows for s in splits))))
    how = shared_by_blocks(problem, algorithm, limits, blocks * (1 if grouped else len(channels)))
    of_dx = order.labels(FILTERS if grouped else CHANNELS)
    finish = (None, None) if bias is None else (bias.rechunk((channels,)), of_dx[_channel_axis(order) :][:1])
    sizes = {label: s.sizes for label, s in zip(order.spatial, splits, strict=True)}
    sizes |= {FILTERS: channels} if grouped else {CHANNELS: channels}
    dx = blockwise(
        InputGradientBlock(how, None if partial else activation, partial),
        (FILTERS, *of_dx) if partial else of_dx,
        long, order.labels(FILTERS), w, (FILTERS, -CHANNELS if grouped else CHANNELS, *order.kernel),
        *((None, None) if partial else finish), *window_arguments(splits),
        adjust_chunks=sizes | ({FILTERS: (1,) * len(filters)} if partial else {}),
        dtype=dtype, meta=np.empty((0,) * (dy.ndim + partial), dtype), token="conv-data",
    )  # fmt: skip
    if not partial:
        return dx
    dx = dx.sum(axis=0, dtype=sums)
    if bias is None and activation is None:
        return dx.astype(dtype)
    step, meta = SummedStep(dtype, problem.layout, activation), np.empty((0,) * dy.ndim, dtype)
    return da.blockwise(step, of_dx, dx, of_dx, *finish, None, None, dtype=dtype, meta=meta)


def _channel_axis(order: Order) -> int:
    return order.ndim + 1 if order.layout == "channels_last" else 1


def _empty_sums(
    shape: tuple[int, ...], dtype: np.dtype, order: Order, bias: DaskArray | None, activation: Any
) -> DaskArray:
    """What a transposed convolution of nothing is: the bias, activated."""
    axes = tuple(range(len(shape)))
    step = SummedStep(dtype, order.layout, activation)
    of_bias = (None, None) if bias is None else (bias.rechunk(-1), (_channel_axis(order),))
    zeros = da.zeros(shape, dtype=dtype, chunks=-1)
    return da.blockwise(
        step, axes, zeros, axes, *of_bias, None, None, dtype=dtype, meta=np.empty((0,) * len(shape), dtype)
    )


def _filter_gradient(
    x: DaskArray, dy: DaskArray, problem: ConvProblem, order: Order, algorithm: str, limits: pinning.Limits
) -> DaskArray:
    """dw as the sum of parts, one of each block of images and space."""
    dtype = numpy_dtype(problem.dtype)
    if 0 in problem.w_shape or 0 in x.shape or 0 in dy.shape:
        return da.zeros(problem.w_shape, dtype=dtype, chunks=-1)
    channels, filters = order.logical(x.chunks)[1], order.logical(dy.chunks)[1]
    grouped = problem.groups > 1
    if grouped:
        channels, filters = by_groups(channels, filters, problem.groups)
    splits = forward_splits(problem, order, x, (1,) * order.ndim)
    long = lengthened(x, order, splits, channels)
    dy = dy.rechunk(order.laid((long.chunks[0], filters, *(s.sizes for s in splits))))
    blocks = math.prod(map(len, (long.chunks[0], filters, *(s.windows for s in splits))))
    how = shared_by_blocks(problem, algorithm, limits, blocks * (1 if grouped else len(channels)))
    summed = (IMAGES, *order.spatial)
    of_x = order.labels(FILTERS if grouped else CHANNELS)
    parts_of = (len(long.chunks[0]), *(len(s.windows) for s in splits))
    sizes = {label: (1,) * count for label, count in zip(summed, parts_of, strict=True)} | {FILTERS: filters}
    new = dict(zip(order.kernel, problem.kernel, strict=True))
    new |= {CHANNELS: problem.w_shape[1]} if grouped else {}
    parts = da.blockwise(
        FilterGradientBlock(how, problem.kernel), (*summed, FILTERS, CHANNELS, *order.kernel),
        long, of_x, dy, order.labels(FILTERS), *window_arguments(splits),
        new_axes=new, adjust_chunks=sizes, align_arrays=False, dtype=dtype,
        meta=np.empty((0,) * (1 + order.ndim + len(problem.w_shape)), dtype), token="conv-weights",
    )  # fmt: skip
    return parts.sum(axis=tuple(range(len(summed))), dtype=sums_dtype(dtype, True)).astype(dtype)
