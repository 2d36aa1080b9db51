"""Convolution of quantised arrays: integers q that stand for the numbers (q - zero_point) * scale.

Each output of `conv` is the exact sum of products of integers, brought to a scale of its own: ONNX's
QLinearConv, bit for bit as ONNX Runtime computes it. `quantize` and `dequantize` go between float32 and
integers, and `calibrate` finds scale and zero point of a tensor from samples of it.

Source: Jacob et al. 2018, arXiv:1712.05877 (integer arithmetic); Krishnamoorthi 2018, arXiv:1806.08342
(scales per tensor and per channel).
"""

from convalgos.core.quantization import Quantization
from convalgos.quantized.calibration import calibrate
from convalgos.quantized.convolution import conv
from convalgos.quantized.linear import dequantize, quantize

__all__ = ["Quantization", "calibrate", "conv", "dequantize", "quantize"]
