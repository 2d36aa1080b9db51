"""Operators of quantised ONNX models: QLinearConv, ConvInteger, QuantizeLinear and DequantizeLinear.

All of them give the bits that ONNX Runtime gives on a CPU: see `convalgos.quantized`. The evaluator's own
QuantizeLinear wraps where numbers are far beyond the integers; DequantizeLinear it has from opset 19 on only.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from convalgos.api.types import Mode
from convalgos.core.element_types import INTEGERS
from convalgos.core.errors import Unsupported
from convalgos.onnx.attributes import CONV, checked_attributes, conv_problem
from convalgos.onnx.nodes import NodeOp, check_dimensions, inputs_of
from convalgos.quantized.convolution import conv
from convalgos.quantized.linear import checked_scale, checked_zero_point, to_integers, to_numbers


class _IntegerConv(NodeOp):
    def _conv(
        self, x: np.ndarray, w: np.ndarray, y_dtype: str, attributes: dict[str, Any], **scales: Any
    ) -> np.ndarray:
        check_dimensions(x, w)
        of_filters = max(np.size(scales.get(name, 1)) for name in ("w_scale", "w_zero_point")) > 1
        p = conv_problem(
            x.shape, w.shape, x.dtype.name, w_dtype=w.dtype.name, y_dtype=y_dtype,
            scales="per_channel" if of_filters else "per_tensor",
            **checked_attributes(attributes, CONV),
        )  # fmt: skip
        y: np.ndarray = conv(
            x, w, y_dtype=y_dtype, stride=p.stride, padding=p.padding, dilation=p.dilation, groups=p.groups,
            mode=cast(Mode, p.mode), algorithm=type(self).choose(p), **scales,
        )  # fmt: skip
        return y


class QLinearConv(_IntegerConv):
    """https://onnx.ai/onnx/operators/onnx__QLinearConv.html, rounded as ONNX Runtime does."""

    def _serve(self, inputs: tuple[Any, ...], attributes: dict[str, Any]) -> np.ndarray:
        told = "x, w and y, each with scale and zero point but y without its array, and perhaps a bias"
        x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = inputs_of(inputs, 8, 9, told)
        return self._conv(
            x, w, y_zero.dtype.name, attributes,
            x_scale=_one("x_scale", x_scale), x_zero_point=_one("x_zero_point", x_zero),
            w_scale=_few(w_scale), w_zero_point=_few(w_zero),
            y_scale=_one("y_scale", y_scale), y_zero_point=_one("y_zero_point", y_zero), bias=bias,
        )  # fmt: skip


class ConvInteger(_IntegerConv):
    """https://onnx.ai/onnx/operators/onnx__ConvInteger.html"""

    def _serve(self, inputs: tuple[Any, ...], attributes: dict[str, Any]) -> np.ndarray:
        x, w, x_zero, w_zero = inputs_of(inputs, 2, 4, "an input, a filter and perhaps their zero points")
        x_zero = x.dtype.type(0) if x_zero is None else _one("x_zero_point", x_zero)
        w_zero = w.dtype.type(0) if w_zero is None else _few(w_zero)
        return self._conv(x, w, "int32", attributes, x_zero_point=x_zero, w_zero_point=w_zero)


class _Linear(NodeOp):
    def _scales(
        self, shape: tuple[int, ...], dtype: np.dtype, scale: Any, zero_point: Any, attributes: dict[str, Any]
    ) -> tuple[Any, Any, int | None]:
        """(scale, zero point, axis) of a tensor of integers, with the axis None where there is one of all."""
        if attributes.get("block_size"):
            raise Unsupported(f"{self.onnx_node.op_type} in blocks is not computed; give scales of one axis")
        scale, zero_point = _few(scale), dtype.type(0) if zero_point is None else _few(zero_point)
        axis, count = None, None
        if np.ndim(scale):
            axis = attributes.get("axis")
            axis = 1 if axis is None else axis
            if not -len(shape) <= axis < len(shape):
                raise ValueError(f"axis={axis} must be one of those of its input {shape}")
            axis %= len(shape)
            count = shape[axis]
        scale = checked_scale("scale", scale, count)
        return scale, checked_zero_point("zero_point", zero_point, dtype, count), axis


class QuantizeLinear(_Linear):
    """https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html to 8 bits, rounded as ONNX Runtime does."""

    def _serve(self, inputs: tuple[Any, ...], attributes: dict[str, Any]) -> np.ndarray:
        x, scale, zero_point = inputs_of(inputs, 2, 3, "an input, a scale and perhaps a zero point")
        dtype = np.dtype(np.uint8)
        if zero_point is not None:
            dtype = zero_point.dtype
        elif kind := attributes.get("output_dtype"):
            dtype = np.dtype({2: "uint8", 3: "int8"}.get(kind, "O"))  # onnx.TensorProto.DataType
        if dtype.name not in INTEGERS:
            raise Unsupported(f"QuantizeLinear to {dtype} is not computed; it is to int8 and uint8")
        return to_integers(x, *self._scales(x.shape, dtype, scale, zero_point, attributes))


class DequantizeLinear(_Linear):
    """https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html of 8 bits, and of the int32 of a bias."""

    def _serve(self, inputs: tuple[Any, ...], attributes: dict[str, Any]) -> np.ndarray:
        q, scale, zero_point = inputs_of(inputs, 2, 3, "an input, a scale and perhaps a zero point")
        if q.dtype.name not in (*INTEGERS, "int32"):
            raise Unsupported(
                f"DequantizeLinear of {q.dtype} is not computed; it is of int8, uint8 and int32"
            )
        return to_numbers(q, *self._scales(q.shape, q.dtype, scale, zero_point, attributes))


def _few(value: np.ndarray) -> Any:
    """One number of an array of one, else the array."""
    return value.reshape(-1)[0] if value.size == 1 else value


def _one(name: str, value: np.ndarray) -> Any:
    if value.size != 1:
        raise ValueError(f"{name} has shape {value.shape}, but it must be one number")
    return value.reshape(-1)[0]


OPERATORS = (QLinearConv, ConvInteger, QuantizeLinear, DequantizeLinear)
