"""Quantised models of ONNX: QuantizeLinear and DequantizeLinear as steps, of one scale for a whole map."""

from __future__ import annotations

from typing import Any

import numpy as np

from convalgos.core.byte_scale import ByteScale
from convalgos.core.element_types import INTEGERS
from convalgos.network.onnx_reader.channels import Steps
from convalgos.network.onnx_reader.model import OnnxModel, OnnxNode
from convalgos.network.quantized_graph import Dequantize, Lookup, Quantize

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
MIDDLE = 128  # that is added to integers of int8
OTHER_SIGN = (np.arange(256) ^ MIDDLE).astype(np.uint8)  # from the bits of int8 to uint8, and back


def quantize_node(node: OnnxNode, model: OnnxModel) -> Steps:
    """float32 to integers of one scale; those of int8 by way of uint8."""
    found = _scale(node, model)
    if found is None:
        return None
    scale, dtype = found
    x, y = node.inputs[0], node.outputs[0]
    if dtype == "uint8":
        return [Quantize(node.name, (x,), y, scale)]
    of_bytes = f"{y}/uint8"
    return [
        Quantize(node.name, (x,), of_bytes, scale),
        Lookup(node.name, (of_bytes,), y, OTHER_SIGN),
    ]


def dequantize_node(node: OnnxNode, model: OnnxModel) -> Steps:
    """Integers of one scale to float32."""
    found = _scale(node, model)
    if found is None or model.dtype(node.inputs[0]) != found[1]:
        return None
    scale, dtype = found
    x, y = node.inputs[0], node.outputs[0]
    if dtype == "uint8":
        return [Dequantize(node.name, (x,), y, scale)]
    of_bytes = f"{y}/uint8"
    return [
        Lookup(node.name, (x,), of_bytes, OTHER_SIGN),
        Dequantize(node.name, (of_bytes,), y, scale),
    ]


def _scale(node: OnnxNode, model: OnnxModel) -> tuple[ByteScale, str] | None:
    """(what the integers stand for as uint8, their type) of a node whose scale is one constant number."""
    scale = model.constant(node.inputs[1])
    zero: np.ndarray | None = np.zeros(1, np.uint8)
    if len(node.inputs) > 2 and node.inputs[2]:
        zero = model.constant(node.inputs[2])
    elif node.op == DEQUANTIZE:
        zero = np.zeros(1, model.dtype(node.inputs[0]) or np.uint8)
    elif node.attributes.get("output_dtype"):
        return None
    if scale is None or zero is None or scale.size != 1 or zero.size != 1 or scale.dtype != np.float32:
        return None
    number = float(scale.reshape(-1)[0])
    if zero.dtype.name not in INTEGERS or not 0 < number < np.inf or node.attributes.get("block_size"):
        return None
    middle = MIDDLE if zero.dtype == np.int8 else 0
    return ByteScale(number, int(zero.reshape(-1)[0]) + middle), zero.dtype.name


QUANTIZED: dict[str, Any] = {QUANTIZE: quantize_node, DEQUANTIZE: dequantize_node}
