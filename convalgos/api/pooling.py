"""Pooling: the maximum or the mean of windows of x, and the gradients of both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, overload

import numpy as np

from convalgos.api import pooling_gpu
from convalgos.api.gradients import conv_backward_data
from convalgos.api.pool_kind import PlannedPool, PoolKind
from convalgos.api.recent_pools import filled, recent_pools, tell_made
from convalgos.api.types import Array, ArrayLike, Layout, Padding, Sizes
from convalgos.core import allocator, arguments
from convalgos.core.arrays import as_numpy, device_of, like, same_dtype, writable_view
from convalgos.core.errors import missing, read_only
from convalgos.core.laid_arrays import as_laid, is_laid
from convalgos.cpu.elementwise.plan import UpsamplingPlan


@overload
def max_pool(
    x: ArrayLike, kernel: Sizes | None = ..., *, stride: Sizes | None = ..., padding: Padding = ...,
    dilation: Sizes = ..., ceil_mode: bool = ..., layout: Layout = ..., return_indices: Literal[False] = ...,
    out: Array = ...,
) -> Array: ...  # fmt: skip
@overload
def max_pool(
    x: ArrayLike, kernel: Sizes | None = ..., *, stride: Sizes | None = ..., padding: Padding = ...,
    dilation: Sizes = ..., ceil_mode: bool = ..., layout: Layout = ..., return_indices: Literal[True],
    out: Array = ...,
) -> tuple[Array, Array]: ...  # fmt: skip
@recent_pools
def max_pool(
    x: ArrayLike,
    kernel: Sizes | None = None,
    *,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    layout: Layout = "channels_first",
    return_indices: bool = False,
    out: Array = None,
) -> Any:
    """The maximum of each window of x, in 1, 2 or 3 dimensions by x.ndim.

    Args:
        x: (N, C, *spatial) of float32, float64, float16, bfloat16, int8 or uint8; with
            layout="channels_last" (N, *spatial, C). Channels that lie side by side in memory are read so in
            either layout.
        kernel: size of a window, one for all dimensions or one for each; None for all of x (global pooling).
        stride: from one window to the next; None for windows side by side.
        padding, dilation: see `ConvProblem`. Padding is less than a window, and no part of a maximum.
        ceil_mode: whether a last window may reach beyond the padding.
        return_indices: whether to tell where in its map (of `spatial`, in order) each maximum lies, as int64;
            -1 of a dilated window that meets no element of x, whose maximum is -inf.
        out: array for y.

    Returns:
        y (N, C, *spatial_out) of x's kind of array, or (y, indices). A window with a NaN gives NaN.

    Raises:
        ValueError, TypeError: an argument is invalid; the message names it.

    Example:
        >>> import numpy as np, convalgos as ca
        >>> x = np.arange(16, dtype="f4").reshape(1, 1, 4, 4)
        >>> ca.max_pool(x, 2).ravel()
        array([ 5.,  7., 13., 15.], dtype=float32)
    """
    kind = PoolKind(kernel, stride, padding, dilation, ceil_mode, "max")
    if device_of(x) != "cpu":
        return pooling_gpu.pool(x, kind, layout, out, return_indices)
    view = _view("x", x, layout)
    planned = view.planned(kind)
    if not return_indices:
        return _pooled(view, planned, x, out)
    places = allocator.new_array(planned.y_laid, np.dtype(np.int64))
    y = _pooled(view, planned, x, out, places)
    return y, like(view.as_given(places), x)


@recent_pools
def avg_pool(
    x: ArrayLike,
    kernel: Sizes | None = None,
    *,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    count_padding: bool = True,
    layout: Layout = "channels_first",
    out: Array = None,
) -> Array:
    """The mean of each window of x, of floating-point numbers; see `max_pool` for the arguments.

    Args:
        count_padding: whether a window that reaches into the padding counts zeros there, as
            `count_include_pad` of torch and ONNX does.

    Raises:
        ValueError, TypeError: an argument is invalid; the message names it.

    Example:
        >>> import numpy as np, convalgos as ca
        >>> ca.avg_pool(np.arange(8, dtype="f4").reshape(1, 2, 4))  # of each channel
        array([[[1.5],
                [5.5]]], dtype=float32)
    """
    kind = PoolKind(kernel, stride, padding, dilation, ceil_mode, "mean", count_padding)
    if device_of(x) != "cpu":
        return pooling_gpu.pool(x, kind, layout, out, False)
    view = _view("x", x, layout)
    return _pooled(view, view.planned(kind), x, out)


@recent_pools
def max_pool_backward(
    dy: ArrayLike,
    x: ArrayLike,
    kernel: Sizes | None = None,
    *,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    layout: Layout = "channels_first",
    indices: ArrayLike | None = None,
    out: Array = None,
) -> Array:
    """The gradient of `max_pool`'s input: each dy goes to the first maximum of its window, if it has any.

    Args:
        dy: of the shape of y.
        x, kernel, stride, padding, dilation, ceil_mode, layout: those of the forward pass.
        indices: of `max_pool(..., return_indices=True)`, int64. They are not needed: without them, and on a
            GPU in any case, maxima are found again, which takes longer than to read where they lie.
        out: array for dx.

    Returns:
        dx, of the shape of x.

    Raises:
        ValueError, TypeError: an argument is invalid; the message names it.

    Example:
        >>> import numpy as np, convalgos as ca
        >>> x = np.float32([[[1, 5, 2, 0]]])
        >>> ca.max_pool_backward(np.float32([[[10, 20]]]), x, 2)
        array([[[ 0., 10., 20.,  0.]]], dtype=float32)
    """
    kind = PoolKind(kernel, stride, padding, dilation, ceil_mode, "max")
    if device_of(x) != "cpu":
        return pooling_gpu.max_gradient(dy, x, kind, layout, out)
    view = _view("x", x, layout)
    planned = view.planned(kind)
    if view.array.dtype.kind in "iu":
        raise TypeError(f"x has dtype {view.array.dtype}, which has no gradient; give floating-point numbers")
    given = view.in_its_order(_checked("dy", dy, view.as_given_shape(planned.y_shape), view.array.dtype))
    places = None
    if indices is not None:
        known = _checked("indices", indices, view.as_given_shape(planned.y_shape), np.dtype(np.int64))
        places = as_laid(view.in_its_order(known))
    given = as_laid(given)
    run: Any = planned.of_places if places is not None and given.size else None
    read: tuple[Any, ...] = (given, view.array) if run is None else (given, view.array, places)
    dx = _result_array(view, view.array.shape, out, *read)
    if dx.size and given.size:
        (run := run or planned.of_maxima)(given, dx, *read[1:])
        if out is None and given is dy and view.array is x and places is indices:
            tell_made(filled(run, dx.shape, dx.dtype), *read)
    else:
        dx.fill(0)
    return _delivered(view.as_given(dx), dy, out)


@recent_pools
def avg_pool_backward(
    dy: ArrayLike,
    x_shape: Sequence[int],
    kernel: Sizes | None = None,
    *,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    count_padding: bool = True,
    layout: Layout = "channels_first",
    out: Array = None,
) -> Array:
    """The gradient of `avg_pool`'s input: dy over the elements of its window, in equal shares.

    Args:
        dy: of the shape of y.
        x_shape: of x, as it was given in this layout.
        out: array for dx.

    Example:
        >>> import numpy as np, convalgos as ca
        >>> ca.avg_pool_backward(np.float32([[[10, 20]]]), (1, 1, 4), 2)
        array([[[ 5.,  5., 10., 10.]]], dtype=float32)
    """
    kind = PoolKind(kernel, stride, padding, dilation, ceil_mode, "mean", count_padding)
    if device_of(dy) != "cpu":
        return pooling_gpu.mean_gradient(dy, x_shape, kind, layout, out)
    arguments.one_of("layout", layout, arguments.LAYOUTS)
    given = as_numpy("dy", dy)
    last = layout == "channels_last"
    shape = arguments.shape("x_shape", x_shape)
    planned = kind.planned(shape, layout, given.dtype)
    problem = planned.problem
    given = _checked("dy", dy, planned.y_laid, given.dtype)
    if given.size and math.prod(shape) and missing("llvmlite") is None and planned.gradient is not None:
        laid = as_laid(given)
        dx = _result_array(_View(laid, layout, layout), shape, out, laid)
        planned.gradient.run(laid, dx)
        if out is None and laid is dy:
            tell_made(filled(planned.gradient.run, dx.shape, dx.dtype), dy)
        return _delivered(dx, dy, out)
    wide = np.float64 if given.itemsize == 8 else np.float32
    shares: Any = given.astype(wide, "C")  # strides tell the layout
    for dim, windows in enumerate(problem.windows):
        axis = dim + (1 if last else 2)
        counts = np.maximum(windows.divisor, 1)  # a window that meets no element gives its share to none
        shares /= counts.astype(shares.dtype).reshape(-1, *(1,) * (shares.ndim - 1 - axis))
    if shares.size and problem.tiles and shares.dtype == np.float32 and missing("llvmlite") is None:
        laid, dx = as_laid(shares), allocator.new_array(shape, shares.dtype)
        UpsamplingPlan(problem.y_shape, problem.kernel, layout).bind(laid, dx).run()
        return _delivered(dx.astype(given.dtype, copy=False), dy, out)
    # each element of x gets the shares of all windows over it: a transposed convolution with ones
    pads = [
        (w.before, max(0, (len(w.first) - 1) * w.stride + extent - w.size - w.before))
        for w, extent in zip(problem.windows, problem.extent, strict=True)
    ]
    channels = problem.x_shape[1]
    if not (shares.size and channels):
        return _delivered(np.zeros(shape, given.dtype), dy, out)
    ones = np.ones((channels, 1, *problem.kernel), shares.dtype)
    dx = conv_backward_data(
        shares, ones, shape, stride=problem.stride, padding=pads, dilation=problem.dilation, groups=channels,
        layout=layout,
    )  # fmt: skip
    return _delivered(dx.astype(given.dtype, copy=False), dy, out)


# --- inside ----------------------------------------------------------------------------------


class _View(NamedTuple):
    """An array as kernels read it, and how its axes lay in the call."""

    array: np.ndarray  # `as_laid`, in the order of `memory`
    memory: str  # layout
    layout: str  # of the call

    def as_given(self, array: np.ndarray) -> np.ndarray:
        """A result in the order of `memory`, as a view in that of the call."""
        if self.memory == self.layout:
            return array
        return np.moveaxis(array, -1, 1) if self.memory == "channels_last" else np.moveaxis(array, 1, -1)

    def in_its_order(self, array: np.ndarray) -> np.ndarray:
        """`as_given` turned round."""
        if self.memory == self.layout:
            return array
        return np.moveaxis(array, 1, -1) if self.memory == "channels_last" else np.moveaxis(array, -1, 1)

    def shape_as_given(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """`as_given` of a shape."""
        if self.memory == self.layout:
            return shape
        if self.memory == "channels_last":
            return (shape[0], shape[-1], *shape[1:-1])
        return (shape[0], *shape[2:], shape[1])

    def as_given_shape(self, logical: tuple[int, ...]) -> tuple[int, ...]:
        """A shape (N, C, *spatial) in the layout of the call."""
        return logical if self.layout == "channels_first" else (logical[0], *logical[2:], logical[1])

    def planned(self, kind: PoolKind) -> PlannedPool:
        """Windows over it."""
        return kind.planned(self.array.shape, self.memory, self.array.dtype)


def _view(name: str, array: Any, layout: str) -> _View:
    """An argument in the order of its memory."""
    arguments.one_of("layout", layout, arguments.LAYOUTS)
    given = as_numpy(name, array)
    if not 3 <= given.ndim <= 5:
        raise ValueError(
            f"{name} has shape {given.shape}: it must have 3, 4 or 5 dimensions, (N, C, *spatial)"
        )
    laid = is_laid(given.flags)
    if laid and given.dtype.isnative:
        return _View(given, layout, layout)
    if not laid:
        other = "channels_last" if layout == "channels_first" else "channels_first"
        turned = np.moveaxis(given, 1, -1) if other == "channels_last" else np.moveaxis(given, -1, 1)
        if is_laid(turned.flags):
            return _View(as_laid(turned), other, layout)
    return _View(as_laid(given), layout, layout)


def _pooled(view: _View, planned: PlannedPool, given: Any, out: Any, places: np.ndarray | None = None) -> Any:
    """y, and where maxima lie into `places`."""
    y = _result_array(view, planned.y_laid, out, view.array)
    if y.size and places is not None:
        planned.find(view.array, y, places)
    elif y.size:
        planned.pool.run(view.array, y)
        if out is None and view.array is given:
            tell_made(filled(planned.pool.run, y.shape, y.dtype), given)
    return _delivered(view.as_given(y), given, out)


def _result_array(view: _View, shape: tuple[int, ...], out: Any, *read: np.ndarray) -> np.ndarray:
    """A result of a shape in the order of a view's memory, not written yet: `out` where that lies so."""
    if out is not None:
        target = view.in_its_order(_checked("out", out, view.shape_as_given(shape), view.array.dtype))
        apart = not any(np.may_share_memory(target, array) for array in read)
        if is_laid(target.flags) and target.dtype.isnative and apart:
            return target
    return allocator.new_array(shape, view.array.dtype)


def _delivered(result: np.ndarray, given: Any, out: Any) -> Any:
    """A result as an array of the caller's kind, or in `out`, where it may be already."""
    if out is None:
        return like(result, given)
    target = out if isinstance(out, np.ndarray) else writable_view("out", out)
    if not np.shares_memory(target, result):
        _checked("out", out, result.shape, result.dtype)[...] = result
    return out


def _checked(name: str, array: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    view = writable_view(name, array) if name == "out" else as_numpy(name, array)
    if view.shape != shape:
        raise ValueError(f"{name} has shape {view.shape}; it must be {shape}")
    if not same_dtype(view.dtype, dtype):
        raise TypeError(f"{name} has dtype {view.dtype}; it must be {dtype}, as the other arrays")
    if name == "out" and not view.flags.writeable:
        raise read_only("out")
    return view
