"""Steps of a network on maps of integers: uint8 with a scale and a zero point for each map.

Every such map is of uint8: those of int8 are read with 128 added to integers and zero point, which stand for
the same numbers.

Source: Jacob et al. 2018, arXiv:1712.05877; ONNX's QuantizeLinear, DequantizeLinear and QLinearConv.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from convalgos.core.arguments import Pads, Shape
from convalgos.core.byte_scale import ByteScale
from convalgos.core.epilogue import Activation
from convalgos.core.problem import ConvProblem
from convalgos.core.quantization import Quantization
from convalgos.network.graph import Shapes, Step

ONE = ByteScale(1.0, 0)


@lru_cache(4096)
def quantized_problem(
    x_shape: Shape, w_shape: Shape, stride: Shape, padding: Pads | str, dilation: Shape, groups: int,
    w_dtype: str, y_dtype: str, per_channel: bool,
) -> ConvProblem:  # fmt: skip
    """The problem of a convolution of uint8."""
    return ConvProblem(
        x_shape, w_shape, stride or 1, padding or 0, dilation or 1, groups, dtype="uint8", w_dtype=w_dtype,
        y_dtype=y_dtype, scales="per_channel" if per_channel else "per_tensor",
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Quantize(Step):
    """float32 to uint8: rint(x / scale) + zero point."""

    y_scale: ByteScale = ONE

    def output_shape(self, shapes: Shapes) -> Shape:
        return shapes[self.inputs[0]]


@dataclass(frozen=True, eq=False)
class Dequantize(Step):
    """uint8 to float32: (x - zero point) * scale."""

    x_scale: ByteScale = ONE

    def output_shape(self, shapes: Shapes) -> Shape:
        return shapes[self.inputs[0]]


@dataclass(frozen=True, eq=False)
class Lookup(Step):
    """Each byte x as table[x]: an activation, another scale, another type of 8 bits."""

    table: np.ndarray = field(default_factory=lambda: np.arange(256, dtype=np.uint8))

    def output_shape(self, shapes: Shapes) -> Shape:
        return shapes[self.inputs[0]]


@dataclass(frozen=True, eq=False)
class QuantizedArithmetic(Step):
    """activation(a + b) or activation(a * b) of uint8; b of a product may be (N, C, 1, 1)."""

    operation: str = "add"
    scales: tuple[ByteScale, ByteScale, ByteScale] = (ONE, ONE, ONE)  # of a, b and y
    activation: Activation | None = None  # None, relu or clip

    def output_shape(self, shapes: Shapes) -> Shape:
        return np.broadcast_shapes(*(shapes[name] for name in self.inputs))


@dataclass(frozen=True, eq=False)
class QuantizedMean(Step):
    """The mean of each whole map of uint8."""

    x_scale: ByteScale = ONE
    y_scale: ByteScale = ONE

    def output_shape(self, shapes: Shapes) -> Shape:
        x = shapes[self.inputs[0]]
        return (*x[:2], *(1,) * (len(x) - 2))


@dataclass(frozen=True, eq=False)
class QuantizedConvolution(Step):
    """activation(conv(x, w) + bias) of uint8, requantised, or in float32."""

    w: np.ndarray  # (K, C/groups, *kernel) of int8 or uint8
    bias: np.ndarray | None = None  # int32 (K,), in steps of x_scale * w_scale
    stride: Shape = ()
    padding: Pads | str = ()
    dilation: Shape = ()
    groups: int = 1
    quantization: Quantization = field(default_factory=Quantization)
    activation: Activation | None = None  # None, relu or clip; of float32 any
    y_dtype: str = "uint8"

    def problem(self, x_shape: Shape) -> ConvProblem:
        """What is convolved of an x of this shape."""
        given = self.quantization
        per_channel = max(np.size(given.w_scale), np.size(given.w_zero_point)) > 1
        return quantized_problem(
            x_shape, self.w.shape, self.stride, self.padding, self.dilation, self.groups, self.w.dtype.name,
            self.y_dtype, per_channel,
        )  # fmt: skip

    def output_shape(self, shapes: Shapes) -> Shape:
        return self.problem(shapes[self.inputs[0]]).y_shape


BYTEWISE = Quantize | Dequantize | Lookup | QuantizedArithmetic
