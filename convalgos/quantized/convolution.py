"""`conv` of quantised arrays: the problem of their types, its plan, and the filter with its scales."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from convalgos.api import planning
from convalgos.api.types import Activation, Array, ArrayLike, Boundary, Layout, Mode, Padding, Sizes
from convalgos.core import arguments
from convalgos.core.arrays import as_operand, device_of, facts, like
from convalgos.core.boundaries import ZERO
from convalgos.core.element_types import INTEGERS, dtype_name
from convalgos.core.plan import Plan
from convalgos.core.plan_cache import PlanCache
from convalgos.core.problem import ConvProblem
from convalgos.core.quantization import Quantization

Rounding = Literal["onnxruntime", "onnx"]


def conv(
    x: ArrayLike,
    w: ArrayLike,
    *,
    x_scale: float = 1.0,
    x_zero_point: int = 0,
    w_scale: Any = 1.0,
    w_zero_point: Any = 0,
    y_scale: float | None = None,
    y_zero_point: int = 0,
    y_dtype: Any = None,
    bias: ArrayLike | None = None,
    activation: Activation = None,
    rounding: Rounding = "onnxruntime",
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    mode: Mode = "cross_correlation",
    layout: Layout = "channels_first",
    algorithm: str = "auto",
    out: Array = None,
    boundary: Boundary = ZERO,
    fill_value: float = 0.0,
) -> Array:
    """Convolve quantised x with quantised w, and quantise the result: ONNX's QLinearConv.

    Products of integers are summed exactly, in int32, which wraps. Padding stands for 0: it holds x's zero
    point, where `boundary` does not say otherwise. Each sum is then multiplied by
    float32(x_scale * w_scale / y_scale), clipped and rounded, ties to even.

    Args:
        x: (N, C, *spatial), or (N, *spatial, C) in layout="channels_last", of int8 or uint8.
        w: (K, C/groups, *kernel), of int8 or uint8.
        x_scale, w_scale, y_scale: what a step of the integers is worth; of w a number, or (K,), one for each
            filter. y_scale=None leaves y in real numbers.
        x_zero_point, w_zero_point, y_zero_point: the integers that stand for 0; of w a number, or (K,).
        y_dtype: "int8" or "uint8"; by default the type of y_zero_point where that has one, else x's. Without
            y_scale: "float32", the default, or "int32", the sums themselves (ONNX's ConvInteger).
        bias: (K,) of int32, in steps of x_scale * w_scale, or None.
        activation: None, "relu", "relu6" or ("clip", low, high), of the real numbers; where y is float32 any
            of `ca.conv`.
        rounding: "onnxruntime" rounds before y's zero point is added, "onnx", as ONNX's reference,
            after: they differ at ties where the zero point is odd.
        stride, padding, dilation, groups, mode, layout, algorithm, out, boundary: see `ca.conv`.
        fill_value: what lies beyond "constant" edges, in the integers of x; 0 stands for the zero point.

    Returns:
        y (N, K, *spatial_out), of y_dtype and x's kind of array.

    Raises:
        ValueError, TypeError: an argument is invalid; the message names it. Unsupported: the forced algorithm
            cannot serve.

    Example:
        >>> import numpy as np, convalgos as ca
        >>> x, x_scale, x_zero_point = ca.quantized.quantize(np.ones((1, 3, 8, 8), "f4"), dtype="uint8")
        >>> w, w_scale, _ = ca.quantized.quantize(np.full((4, 3, 3, 3), 0.5, "f4"), axis=0, symmetric=True)
        >>> scales = {"x_scale": x_scale, "x_zero_point": x_zero_point, "w_scale": w_scale, "y_scale": 0.1}
        >>> y = ca.quantized.conv(x, w, **scales)
        >>> y.dtype, int(y[0, 0, 0, 0])  # 27 * 0.5 / 0.1
        (dtype('uint8'), 135)
    """
    device = device_of(x)
    given, x, w = x, as_operand("x", x, device), as_operand("w", w, device)
    of_x, of_w = facts("x", x), facts("w", w)
    for name, dtype in (("x", of_x.dtype), ("w", of_w.dtype)):
        if dtype.name not in INTEGERS:
            raise TypeError(f"{name} has dtype {dtype}, which must be int8 or uint8: ca.quantized.quantize")
    if len(of_x.shape) != len(of_w.shape) or not 3 <= len(of_w.shape) <= 5:
        raise ValueError(
            f"x has shape {of_x.shape} and w {of_w.shape}: both must have 3, 4 or 5 dimensions, "
            "(N, C, *spatial) and (K, C/groups, *kernel)"
        )
    of_each = any(np.size(numbers) != 1 for numbers in (w_scale, w_zero_point))
    last = layout == "channels_last"
    problem = ConvProblem(
        (of_x.shape[0], of_x.shape[-1], *of_x.shape[1:-1]) if last else of_x.shape,
        of_w.shape, stride, padding, dilation, groups, mode=mode, layout=layout,
        dtype=of_x.dtype.name, w_dtype=of_w.dtype.name,
        y_dtype=_y_dtype(y_dtype, y_scale, y_zero_point, of_x.dtype),
        scales="per_channel" if of_each else "per_tensor", boundary=boundary, fill_value=fill_value,
    )  # fmt: skip
    plan = cached_plan(problem, device, algorithm)
    of_y = (1.0 if y_scale is None else y_scale), y_zero_point
    quantization = Quantization(x_scale, x_zero_point, w_scale, w_zero_point, *of_y, rounding)
    y = plan(x, plan.prepare(w, quantization), bias=bias, activation=activation, out=out)
    return y if x is given or out is not None else like(y, given)


def cached_plan(problem: ConvProblem, device: str, algorithm: str) -> Plan:
    """The plan for filters that are prepared in each call, kept in the bounds of `PlanCache`."""
    key = problem, device, algorithm
    made = _plans.find(key)
    if made is None:
        made = planning.plan(problem, device, algorithm, weights_constant=False)
        _plans.add(key, made)
    return made


_plans = PlanCache()


def _y_dtype(given: Any, y_scale: Any, y_zero_point: Any, x_dtype: np.dtype) -> str:
    name = dtype_name(given)
    if y_scale is None:
        return str(arguments.one_of("y_dtype", name or "float32", ("float32", "int32")))
    implied = getattr(y_zero_point, "dtype", None)
    if name is None and implied is not None and implied.name in INTEGERS:
        name = implied.name
    return str(arguments.one_of("y_dtype", name or x_dtype.name, INTEGERS))
