"""Convolutions of ONNX whose filter is computed, as steps."""

from __future__ import annotations

from typing import Any

from convalgos.network.array_functions import ArrayFunction
from convalgos.network.dynamic_convolutions import DynamicConvolution
from convalgos.network.graph import Step
from convalgos.network.onnx_reader.channels import Steps
from convalgos.network.onnx_reader.model import OnnxModel, OnnxNode


def dynamic_convolution(node: OnnxNode, model: OnnxModel, padding: Any, transposed: bool = False) -> Steps:
    """A Conv or ConvTranspose of which any of x, the filter and the bias is computed; what is constant of the
    first two is a value of its own.

    Args:
        padding: of steps; None where they know no such.
    """
    read = [name for name in node.inputs if name]
    ranks = {len(model.shape(name) or ()) for name in read[:2]}
    if padding is None or len(ranks) > 1 or not 3 <= min(ranks) <= 5:
        return None
    if any(model.dtype(name) != "float32" for name in read):
        return None
    y, ones, bias = node.outputs[0], (1,) * (min(ranks) - 2), None
    if len(read) > 2 and model.is_constant(read[2]):
        bias = model.constant(read.pop())
    steps: list[Step] = []
    for i, name in enumerate(read):
        if model.is_constant(name):
            read[i] = f"{y}/{i}"
            steps.append(ArrayFunction(node.name, (), read[i], constants=(model.constant(name),)))
    given = node.attributes.get
    geometry = tuple(given("strides", ones)), padding, tuple(given("dilations", ones)), given("group", 1)
    more = tuple(given("output_padding", (0,) * len(ones))) if transposed else ()
    made = DynamicConvolution(
        node.name, tuple(read), y, *geometry, bias, transposed=transposed, output_padding=more
    )
    return [*steps, made]
