"""Products of matrices, computed or of many constant ones, which are no part of attention, as steps."""

from __future__ import annotations

import numpy as np

from convalgos.core.moves import Move, moved
from convalgos.network.attention import Product
from convalgos.network.onnx_reader.attention import operand_of
from convalgos.network.onnx_reader.channels import Steps
from convalgos.network.onnx_reader.model import OnnxModel, OnnxNode


def computed_product(node: OnnxNode, model: OnnxModel) -> Steps:
    """A MatMul of arrays of two dimensions or more, of which transposes and factors are part of the step.

    One of them may be constant: then it is the second one of the step.
    """
    ranks = [len(model.shape(name) or ()) for name in node.inputs]
    if min(ranks) < 2 or any(model.dtype(name) != "float32" for name in node.inputs):
        return None
    (by_a, a, a_moves), (by_b, b, b_moves) = (operand_of(model, name) for name in node.inputs)
    known, y, scale = [model.is_constant(name) for name in (a, b)], node.outputs[0], by_a * by_b
    if not any(known):
        return [Product(node.name, (a, b), y, (a_moves, b_moves, ()), scale)]
    array = model.constant(b if known[1] else a)
    if all(known) or array is None:
        return None
    if known[1]:
        matrices = np.ascontiguousarray(moved(array, b_moves))  # once, for the plans of all sizes
        return [Product(node.name, (a,), y, (a_moves, (), ()), scale, matrices)]
    turned, back = _turned(ranks[1]), _turned(max(ranks))
    matrices = np.ascontiguousarray(moved(array, a_moves).swapaxes(-1, -2))
    return [Product(node.name, (b,), y, ((*b_moves, turned), (), (back,)), scale, matrices)]


def _turned(rank: int) -> Move:
    """The move that transposes matrices in the last two dimensions."""
    return "transpose", (*range(rank - 2), rank - 1, rank - 2)
