"""The public calls of the backward passes, and transposed convolution, which is one of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

import numpy as np

from convalgos.api import call_plans
from convalgos.api.forward import is_logical_view
from convalgos.api.types import Activation, Array, ArrayLike, Boundary, Layout, Mode, Padding, Sizes
from convalgos.core import arguments
from convalgos.core.arrays import as_cupy, as_numpy, device_of, is_tensor, like, same_dtype, writable_view
from convalgos.core.boundaries import ZERO
from convalgos.core.prepared_filter import PreparedFilter
from convalgos.core.problem import LAYOUTS, Shape
from convalgos.core.transposed_sizes import transposed_rows, transposed_spatial

Call = TypeVar("Call", bound=Callable[..., Any])


def _on_its_stream(call: Call) -> Call:
    """Let a call work on the stream of its first argument, where that is a tensor on a GPU."""
    first = next(iter(inspect.signature(call).parameters))

    @wraps(call)
    def on_its_stream(*arguments: Any, **named: Any) -> Any:
        array: Any = arguments[0] if arguments else named.get(first)
        if not is_tensor(array) or not array.is_cuda:
            return call(*arguments, **named)
        from convalgos.gpu import device as gpu

        device = gpu.named(device_of(array))
        with device.active(), device.stream_of(array):
            return call(*arguments, **named)

    return on_its_stream  # type: ignore[return-value]


@_on_its_stream
def conv_backward_data(
    dy: ArrayLike,
    w: ArrayLike | PreparedFilter,
    x_shape: Sequence[int],
    *,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    mode: Mode = "cross_correlation",
    layout: Layout = "channels_first",
    algorithm: str = "auto",
    out: Array = None,
    strict_nan: bool = False,
    max_rel_error: float | None = None,
    selector: str | None = None,
    boundary: Boundary = ZERO,
    fill_value: float = 0.0,
) -> Array:
    """The gradient of `conv`'s input: dx of a loss of which dy is the gradient by y.

    Args:
        dy: (N, K, *spatial_out), or with layout="channels_last" as `conv` takes x and gives y.
        w: (K, C/groups, *kernel), or what `plan.prepare` returned for the same problem.
        x_shape: the shape of x, as the array is given to `conv` in this layout. Inputs that no output reads,
            as at the end of a strided map, have the gradient 0.
        stride, padding, dilation, groups, mode, layout: those of the forward pass.
        algorithm: "auto", or an id from `algorithms()`, which is then used or refused, never replaced.
        out: array for dx; it may be of any strides, and overlap dy and w.
        strict_nan, max_rel_error, selector: those of `plan`.
        boundary, fill_value: those of the forward pass.

    Returns:
        dx, of the shape of x, of dy's kind of array and dtype.

    Raises:
        ValueError, TypeError: an argument is invalid; the message names it.
        Unsupported: the forced algorithm cannot serve this problem; the message says why.

    Example:
        >>> import numpy as np, convalgos as ca
        >>> dy, w = np.ones((1, 4, 6, 6), "f4"), np.ones((4, 3, 3, 3), "f4")
        >>> ca.conv_backward_data(dy, w, (1, 3, 8, 8)).shape
        (1, 3, 8, 8)
    """
    groups = _checked_groups(groups, layout)
    view, _ = _views(dy)
    dy_view = view("dy", dy)
    w, w_shape, algorithm = _filter(view, w, "dy", dy_view, algorithm)
    given = x_shape = _sizes("x_shape", x_shape, len(w_shape))
    turned = layout == "channels_last" and is_logical_view(dy_view, w_shape[0])
    if layout == "channels_last" and not turned:
        x_shape = _first(x_shape)
    if x_shape[1] != w_shape[1] * groups:
        raise ValueError(
            f"x_shape={given} has {x_shape[1]} channels in layout={layout!r}, but w {w_shape} with "
            f"groups={groups} reads {w_shape[1] * groups}"
        )
    how = (stride, padding, dilation, groups, mode, layout)
    limits = call_plans.limits(strict_nan, max_rel_error, selector, boundary, fill_value)
    return _input_gradient(dy, dy_view, turned, w, x_shape, w_shape, how, algorithm, limits, out)


@_on_its_stream
def conv_backward_weights(
    x: ArrayLike,
    dy: ArrayLike,
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
    out: Array = None,
    strict_nan: bool = False,
    max_rel_error: float | None = None,
    selector: str | None = None,
    boundary: Boundary = ZERO,
    fill_value: float = 0.0,
) -> Array:
    """The gradient of `conv`'s filter: dw of a loss of which dy is the gradient by y.

    Args:
        x, dy: input and gradient of the output, in the layout in which `conv` takes and gives them.
        w_shape: (K, C/groups, *kernel).
        stride, padding, dilation, groups, mode, layout: those of the forward pass.
        algorithm: "auto", or an id from `algorithms()`, which is then used or refused, never replaced.
        return_bias: return the gradient of the bias too, the sum of dy over images and places.
        out: array for dw; it may be of any strides, and overlap x and dy.
        strict_nan, max_rel_error, selector: those of `plan`.
        boundary, fill_value: those of the forward pass.

    Returns:
        dw (K, C/groups, *kernel), of x's kind of array and dtype; with `return_bias` (dw, db (K,)), alike.

    Raises:
        ValueError, TypeError: an argument is invalid; the message names it.
        Unsupported: the forced algorithm cannot serve this problem; the message says why.

    Example:
        >>> import numpy as np, convalgos as ca
        >>> x, dy = np.ones((1, 3, 8, 8), "f4"), np.ones((1, 4, 6, 6), "f4")
        >>> dw, db = ca.conv_backward_weights(x, dy, (4, 3, 3, 3), return_bias=True)
        >>> dw.shape, float(db[0])
        ((4, 3, 3, 3), 36.0)
    """
    groups = _checked_groups(groups, layout)
    view, target = _views(x)
    x_view, dy_view = view("x", x), view("dy", dy)
    _check_dtypes("x", x_view, "dy", dy_view)
    if not 3 <= x_view.ndim <= 5:
        raise ValueError(f"x has shape {x_view.shape}: it must have 3, 4 or 5 dimensions")
    if x_view.ndim == dy_view.ndim == len(arguments.shape("w_shape", w_shape)) - 1:
        raise ValueError(
            f"x has shape {x_view.shape} and w_shape is {w_shape}: x and dy have no batch dimension; "
            "give x[None] and dy[None]"
        )
    w_shape = _sizes("w_shape", w_shape, x_view.ndim)
    if dy_view.ndim != x_view.ndim:
        raise ValueError(f"dy has shape {dy_view.shape}: it must have as many dimensions as x {x_view.shape}")
    last = layout == "channels_last"
    if last and is_logical_view(x_view, w_shape[1] * groups):
        x_view, dy_view = np.moveaxis(x_view, 1, -1), np.moveaxis(dy_view, 1, -1)
    plan = call_plans.plan_for(
        _first(x_view.shape) if last else x_view.shape, w_shape, stride, padding, dilation, groups, mode,
        layout, x_view.dtype, algorithm, device_of(x), "backward_weights",
        *call_plans.limits(strict_nan, max_rel_error, selector, boundary, fill_value),
    )  # fmt: skip
    db = _bias_gradient(dy_view, last) if return_bias else None  # before out, which may overlap dy
    dw = plan(x_view, dy_view, out=None if out is None else target("out", out))
    dw = like(dw, x) if out is None else out
    return (dw, like(db, dw)) if return_bias else dw


@_on_its_stream
def conv_transpose(
    x: ArrayLike,
    w: ArrayLike | PreparedFilter,
    bias: ArrayLike | None = None,
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
    out: Array = None,
    strict_nan: bool = False,
    max_rel_error: float | None = None,
    selector: str | None = None,
) -> Array:
    """The transposed convolution: `conv_backward_data` with the roles of a forward pass, bias and activation.

    Its sizes are explained by Dumoulin and Visin 2016, arXiv:1603.07285, section 4.

    Args:
        x: (N, K, *spatial), or with layout="channels_last" as `conv` takes x.
        w: (K, C/groups, *kernel): its first dimension is that of x, as in torch.
        bias: (C,), added to every output, or None.
        stride, padding, dilation, groups, mode, layout: those of the convolution whose transpose this is.
            padding="same" gives size * stride outputs.
        output_padding: outputs more on the high side, an int or one per dimension, fewer than the stride or
            the dilation: a strided convolution gives maps of one size for inputs of several.
        algorithm: "auto", or an id from `algorithms()`, which is then used or refused, never replaced.
        activation: as `conv` takes it, applied after the bias.
        out: array for y; it may be of any strides.
        strict_nan, max_rel_error, selector: those of `plan`.

    Returns:
        y (N, C, *sizes), size = (in - 1) * stride + dilation * (r - 1) + 1 - low - high + output_padding,
        of x's kind of array and dtype.

    Raises:
        ValueError, TypeError: an argument is invalid; the message names it.
        Unsupported: the forced algorithm cannot serve this problem; the message says why.

    Example:
        >>> import numpy as np, convalgos as ca
        >>> x, w = np.ones((1, 4, 5, 5), "f4"), np.ones((4, 3, 3, 3), "f4")
        >>> ca.conv_transpose(x, w, stride=2, padding=1, output_padding=1).shape
        (1, 3, 10, 10)
    """
    groups = _checked_groups(groups, layout)
    view, _ = _views(x)
    x_view = view("x", x)
    w, w_shape, algorithm = _filter(view, w, "x", x_view, algorithm)
    turned = layout == "channels_last" and is_logical_view(x_view, w_shape[0])
    in_memory = layout == "channels_last" and not turned
    shape = _first(x_view.shape) if in_memory else x_view.shape
    if shape[1] != w_shape[0]:
        raise ValueError(
            f"x has {shape[1]} channels, but w {w_shape} has {w_shape[0]} in its first dimension"
        )
    sizes = transposed_spatial(shape[2:], w_shape[2:], stride, padding, dilation, output_padding)
    rows = transposed_rows(stride, output_padding, len(sizes))
    if any(rows):
        x_view = _with_zeros(x_view, rows, in_memory)
        x = like(x_view, x)
    y_shape = (shape[0], w_shape[1] * groups, *sizes)
    how = (stride, padding, dilation, groups, mode, layout)
    limits = call_plans.limits(strict_nan, max_rel_error, selector)
    return _input_gradient(
        x, x_view, turned, w, y_shape, w_shape, how, algorithm, limits, out, bias, activation
    )


# --- inside ----------------------------------------------------------------------------------


def _input_gradient(
    dy: Any,
    dy_view: Any,
    turned: bool,
    w: Any,
    x_shape: Shape,
    w_shape: Shape,
    how: tuple[Any, ...],
    algorithm: str,
    limits: tuple[Any, ...],
    out: Any,
    bias: Any = None,
    activation: Any = None,
) -> Any:
    """dx of the logical shape x_shape, in the order of memory, or as the logical view, that dy has.

    turned: whether dy is (N, K, *spatial) although channels lie last; its strides need not tell any more.
    how: (stride, padding, dilation, groups, mode, layout). limits: of `api.limits`.
    """
    device = device_of(dy)
    plan = call_plans.plan_for(
        x_shape, w_shape, *how, dy_view.dtype, algorithm, device, "backward_data", *limits
    )
    if not turned:
        return plan(dy, w, bias=bias, out=out, activation=activation)
    _, target = _views(dy)
    given = None if out is None else np.moveaxis(target("out", out), 1, -1)
    dx = plan(np.moveaxis(dy_view, 1, -1), w, bias=bias, out=given, activation=activation)
    return out if out is not None else like(np.moveaxis(dx, -1, 1), dy)


def _bias_gradient(dy: Any, last: bool) -> Any:
    """The sum of dy over images and places."""
    outputs = tuple(i for i in range(dy.ndim) if i != (dy.ndim - 1 if last else 1))
    with np.errstate(over="ignore"):  # beyond the type lies infinity
        return dy.sum(axis=outputs, dtype=np.float64).astype(dy.dtype)


def _views(array: Any) -> tuple[Any, Any]:
    """How arrays of this kind are looked at, and how they are written through."""
    return (as_numpy, writable_view) if device_of(array) == "cpu" else (as_cupy, as_cupy)


def _filter(view: Any, w: Any, name: str, data: Any, algorithm: str) -> tuple[Any, Shape, str]:
    """(filter, its shape, algorithm): the one that it was prepared for, where it was."""
    if isinstance(w, PreparedFilter):
        shape = w.key.form.w_shape
        algorithm = w.key.algorithm if algorithm == "auto" else algorithm
    else:
        w = view("w", w)
        shape = w.shape
        _check_dtypes(name, data, "w", w)
    if data.ndim != len(shape) or not 3 <= data.ndim <= 5:
        raise ValueError(
            f"{name} has shape {data.shape} and w {shape}: both must have 3, 4 or 5 dimensions, of which "
            f"all but two are spatial{call_plans.instead(name, data.shape, shape)}"
        )
    return w, shape, algorithm


def _checked_groups(groups: Any, layout: Any) -> int:
    """The groups, once they and the layout are known to be valid: what shapes mean depends on both."""
    arguments.one_of("layout", layout, LAYOUTS)
    return arguments.integer("groups", groups, 1)


def _check_dtypes(name: str, array: Any, other_name: str, other: Any) -> None:
    call_plans.check_dtype(name, array.dtype)
    if not same_dtype(other.dtype, array.dtype):
        raise TypeError(
            f"{other_name} has dtype {other.dtype}, but {name} has {array.dtype}; they must be the same"
        )


def _sizes(name: str, value: Any, ndim: int) -> Shape:
    sizes = tuple(value) if arguments.is_sequence(value) and getattr(value, "ndim", 1) == 1 else ()
    if len(sizes) != ndim:
        raise ValueError(f"{name}={arguments.shown(value)} must be a sequence of {ndim} sizes")
    return arguments.shape(name, sizes)


def _with_zeros(x: Any, rows: Shape, in_memory: bool) -> Any:
    """A copy of x, (N, *spatial, K) where it is in the order of memory, longer by rows of zeros."""
    more = [(0, n) for n in rows]
    none = [(0, 0)]
    return np.pad(x, none + more + none if in_memory else none + none + more)


def _first(shape: Shape) -> Shape:
    """(N, C, *spatial) of an array (N, *spatial, C)."""
    return (shape[0], shape[-1], *shape[1:-1])
