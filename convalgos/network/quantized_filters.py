"""Filters and biases of integers, found again behind the float32 arrays that a model makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from convalgos.core.boundaries import ZERO
from convalgos.core.byte_scale import ByteScale
from convalgos.core.quantization import Quantization
from convalgos.network.graph import Convolution
from convalgos.network.quantized_graph import QuantizedConvolution

SAME_SCALE = 1e-5  # by which the scale of a bias may differ from that of the sums, relative
INT32 = np.iinfo(np.int32)


class QuantizedConstant(NamedTuple):
    """What a float32 array was made of: (integers - zero point) * scale."""

    integers: np.ndarray
    scale: np.ndarray  # float32, of one number or of one for each index along an axis


QuantizedConstants = Mapping[int, QuantizedConstant]  # by the ids of arrays, of which w may be a view


def quantized_convolution(
    step: Convolution,
    x: str,
    y: str,
    x_scale: ByteScale,
    y_scale: ByteScale | None,
    constants: QuantizedConstants,
) -> QuantizedConvolution | None:
    """A convolution on integers; None where its filter is not of integers, or its border not of zeros.

    Args:
        x, y: names of the values of integers; of y that of float32, where y_scale is None.
    """
    if step.boundary != ZERO:
        return None
    found = _filter(step.w, constants)
    if found is None:
        return None
    w, w_scale, zero_point = found
    bias = None if step.bias is None else _bias(step.bias, x_scale, w_scale, constants)
    to = y_scale or ByteScale(1.0, 0)
    quantization = Quantization(x_scale.scale, x_scale.zero_point, w_scale, zero_point, *to)
    return QuantizedConvolution(
        step.name, (x,), y, w, bias, step.stride, step.padding, step.dilation, step.groups, quantization,
        step.activation, "float32" if y_scale is None else "uint8",
    )  # fmt: skip


def _filter(w: np.ndarray, constants: QuantizedConstants) -> tuple[np.ndarray, np.ndarray, int] | None:
    """(integers (K, C/groups, *kernel), scale (1,) or (K,), zero point) of a filter."""
    known = constants.get(id(root_of(w)))
    if known is None or known.integers.dtype.itemsize > 1:
        return None
    scale = known.scale.reshape(-1)
    if scale.size not in (1, len(w)) or not w.size:
        return None
    of_filters = scale.reshape(-1, *(1,) * (w.ndim - 1))
    with np.errstate(invalid="ignore", divide="ignore"):
        whole = np.rint(w / of_filters)  # (K, C/groups, *kernel), less the zero point
    if not np.array_equal(whole.astype(np.float32) * of_filters, w):
        return None  # changed since, or of scales along another axis
    low, high = whole.min(), whole.max()
    if low >= -128 and high <= 127:
        return whole.astype(np.int8), scale, 0
    if high - low > 255 or low > 0 or high < 0:
        return None
    return (whole - low).astype(np.uint8), scale, int(-low)


def _bias(
    bias: np.ndarray, x_scale: ByteScale, w_scale: np.ndarray, constants: QuantizedConstants
) -> np.ndarray:
    """int32 (K,), in steps of the sums."""
    steps = np.broadcast_to(np.float64(x_scale.scale) * np.float64(w_scale), bias.shape)
    known = constants.get(id(root_of(bias)))
    if known is not None and known.integers.size == bias.size:
        own = np.broadcast_to(known.scale.reshape(-1).astype(np.float64), bias.shape)
        if known.integers.dtype == np.int32 and np.allclose(own, steps, SAME_SCALE, 0):
            return known.integers.reshape(-1).copy()
    return np.clip(np.rint(bias / steps), INT32.min, INT32.max).astype(np.int32)


def root_of(array: np.ndarray) -> np.ndarray:
    """The array whose memory a view shows."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
