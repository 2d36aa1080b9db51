"""Products of two computed matrices, which are no part of attention, as steps."""

from __future__ import annotations

from convalgos.network.attention import Product
from convalgos.network.onnx_reader.attention import operand_of
from convalgos.network.onnx_reader.channels import Steps
from convalgos.network.onnx_reader.model import OnnxModel, OnnxNode


def computed_product(node: OnnxNode, model: OnnxModel) -> Steps:
    """A MatMul of arrays of two dimensions or more, of which transposes and factors are part of the step."""
    if any(map(model.is_constant, node.inputs)):
        return None
    if any(len(model.shape(name) or ()) < 2 or model.dtype(name) != "float32" for name in node.inputs):
        return None
    (by_a, a, a_moves), (by_b, b, b_moves) = (operand_of(model, name) for name in node.inputs)
    return [Product(node.name, (a, b), node.outputs[0], (a_moves, b_moves, ()), by_a * by_b)]
