"""`conv`: raw arguments are read, views of channels-last memory are turned, and a kept plan is run."""

from __future__ import annotations

from typing import Any

import numpy as np

from convalgos.api import call_plans
from convalgos.api.types import Activation, Array, ArrayLike, Boundary, Layout, Mode, Padding, Sizes
from convalgos.core import arguments
from convalgos.core.arrays import (
    Facts,
    as_cupy,
    as_operand,
    device_of,
    facts,
    like,
    moveaxis,
    same_dtype,
    writable_view,
)
from convalgos.core.boundaries import ZERO
from convalgos.core.element_types import FLOAT8_DTYPES, INTEGERS
from convalgos.core.plan import Plan, numpy_dtype
from convalgos.core.prepared_filter import PreparedFilter


def conv(
    x: ArrayLike,
    w: ArrayLike | PreparedFilter,
    bias: ArrayLike | None = None,
    *,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    mode: Mode = "cross_correlation",
    layout: Layout = "channels_first",
    algorithm: str = "auto",
    activation: Activation = None,
    residual: ArrayLike | None = None,
    out: Array = None,
    strict_nan: bool = False,
    max_rel_error: float | None = None,
    selector: str | None = None,
    boundary: Boundary = ZERO,
    fill_value: float = 0.0,
) -> Array:
    """Convolve x with w, in 1, 2 or 3 dimensions by x.ndim.

    Args:
        x: (N, C, *spatial), of float32, float64, float16 or bfloat16; of int8 or uint8 y is int32, exactly
            (ONNX's ConvInteger), and w is either of these. With layout="channels_last":
            (N, *spatial, C), or an (N, C, *spatial) view of such memory (as torch's channels_last tensors
            are); y then comes back the same way.
        w: (K, C/groups, *kernel), or what `plan.prepare` returned for the same problem.
        bias: (K,), added to every output, or None.
        stride, padding, dilation, groups, mode, layout: see `ConvProblem`.
        algorithm: "auto", or an id from `algorithms()`, which is then used or refused, never replaced.
            "auto" counts the time of preparing the filter, which a call with a bare w pays.
        activation: applied last: None, "relu", "relu6", "leaky_relu", "sigmoid", "silu", "hard_swish",
            "gelu", "gelu_tanh", "tanh", "elu", "selu", "softplus", "mish", or one with its numbers:
            ("leaky_relu", slope), ("clip", low, high), ("elu", alpha, scale). All keep NaN.
        residual: an array like y that is added before the activation, as at the end of a residual block.
        out: array for y; it may be of any strides, and may overlap x and residual.
        strict_nan, max_rel_error, selector: those of `plan`. With `max_rel_error` depthwise filters are
            looked at: what is nearly a sum of few outer products is computed as one where that is faster.
        boundary, fill_value: what lies beyond the edges of x where padding makes outputs see it: "zero",
            "constant" (`fill_value`), "edge", "reflect", "symmetric" or "wrap", as in `numpy.pad`; one name,
            or one per dimension.

    Returns:
        y (N, K, *spatial_out), of x's dtype (of integers int32) and kind of array: NumPy, CuPy, torch, or one
        of the array API standard, such as JAX. Of what NumPy only reads, such as lists, a NumPy array.

    Raises:
        ValueError, TypeError: an argument is invalid, or holds what would be lost, such as a mask or what
            torch needs for gradients (`convalgos.torch` has them); the message names it.
        Unsupported: the forced algorithm cannot serve this problem; the message says why.

    Example:
        >>> import numpy as np, convalgos as ca
        >>> x, w = np.ones((1, 3, 8, 8), "f4"), np.ones((4, 3, 3, 3), "f4")
        >>> ca.conv(x, w, padding=1).shape
        (1, 4, 8, 8)
    """
    if type(x) is np.ndarray and type(layout) is str and layout == "channels_first":
        made = _plan_of_arrays(
            x, w, stride, padding, dilation, groups, mode, algorithm,
            strict_nan, max_rel_error, selector, boundary, fill_value,
        )  # fmt: skip
        if made is not None:
            return made(x, w, bias=bias, out=out, activation=activation, residual=residual)
    device = device_of(x)
    target = writable_view if device == "cpu" else as_cupy
    given = x
    x = as_operand("x", x, device)
    of_x = facts("x", x)
    w, w_shape, dtypes, algorithm = _filter(w, of_x.dtype, device, algorithm)
    if len(of_x.shape) != len(w_shape) or not 3 <= len(w_shape) <= 5:
        raise ValueError(
            f"x has shape {of_x.shape} and w {w_shape}: both must have 3, 4 or 5 dimensions, "
            f"(N, C, *spatial) and (K, C/groups, *kernel){call_plans.instead('x', of_x.shape, w_shape)}"
        )
    if not isinstance(layout, str):
        arguments.one_of("layout", layout, arguments.LAYOUTS)
    shape, operand, into = of_x.shape, x, out
    turned = layout == "channels_last" and is_logical_view(of_x, w_shape[1] * groups)
    if turned:  # (N, C, *spatial) over channels-last memory: run on the (N, *spatial, C) view of it
        x = moveaxis(x, 1, -1)
        residual = None if residual is None else moveaxis(as_operand("residual", residual, device), 1, -1)
        into = None if out is None else moveaxis(target("out", out), 1, -1)
    elif layout == "channels_last":
        shape = (shape[0], shape[-1], *shape[1:-1])
    y = call_plans.plan_for(
        shape, w_shape, stride, padding, dilation, groups, mode, layout, dtypes, algorithm, device,
        "forward", *call_plans.limits(strict_nan, max_rel_error, selector, boundary, fill_value, w),
    )(x, w, bias=bias, out=into, activation=activation, residual=residual)  # fmt: skip
    if out is not None:
        return out
    y = moveaxis(y, -1, 1) if turned else y
    return y if operand is given else like(y, given)


# --- inside ----------------------------------------------------------------------------------


def _plan_of_arrays(
    x: np.ndarray, w: Any, stride: Sizes, padding: Padding, dilation: Sizes, groups: int, mode: Mode,
    algorithm: str, *limited: Any,
) -> Plan | None:  # fmt: skip
    """The plan of NumPy arrays (N, C, *spatial) in a microsecond; None where `conv` has more to look at."""
    if type(w) is PreparedFilter:
        w_shape = w.key.form.w_shape
        algorithm = w.key.algorithm if algorithm == "auto" else algorithm
    elif type(w) is np.ndarray and w.dtype is x.dtype:
        w_shape = w.shape
    else:
        return None
    if len(w_shape) != x.ndim or not 3 <= x.ndim <= 5:
        return None
    strict_nan, max_rel_error, selector, boundary, fill_value = limited
    limits: tuple[Any, ...] = ()
    if (
        strict_nan is not False or max_rel_error is not None or selector is not None or boundary is not ZERO
        or fill_value != 0.0
    ):  # fmt: skip
        limits = call_plans.limits(strict_nan, max_rel_error, selector, boundary, fill_value, w)
    return call_plans.plan_for(
        x.shape, w_shape, stride, padding, dilation, groups, mode, "channels_first", x.dtype, algorithm,
        "cpu", "forward", *limits,
    )  # fmt: skip


def is_logical_view(x: Facts | np.ndarray[Any, Any], channels: int) -> bool:
    """Whether x is (N, C, *spatial) rather than (N, *spatial, C); strides decide where both would fit."""
    if x.shape[1] != channels:
        return False
    if x.shape[-1] != channels:
        return True
    return channels > 1 and x.strides[1] == x.dtype.itemsize != x.strides[-1]


def _filter(w: Any, dtype: np.dtype, device: str, algorithm: str) -> tuple[Any, tuple[int, ...], Any, str]:
    """(w, its shape, dtype or those of x and w, algorithm, which a prepared filter was chosen for)."""
    if isinstance(w, PreparedFilter):
        p = w.key.form
        dtypes = dtype if p.w_dtype == p.dtype else (dtype, numpy_dtype(p.w_dtype))
        return w, p.w_shape, dtypes, w.key.algorithm if algorithm == "auto" else algorithm
    w = as_operand("w", w, device)
    w_shape, _, w_dtype = facts("w", w)
    if same_dtype(w_dtype, dtype):
        return w, w_shape, dtype, algorithm
    if any({w_dtype.name, dtype.name} <= {*mixed} for mixed in (INTEGERS, FLOAT8_DTYPES)):
        return w, w_shape, (dtype, w_dtype), algorithm
    call_plans.check_dtype("x", dtype)
    raise TypeError(
        f"w has dtype {w_dtype}, but x has {dtype}; they must be the same, or integers or floats of 8 bits"
    )
