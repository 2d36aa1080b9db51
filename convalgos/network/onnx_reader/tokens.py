"""A constant part in front of, or behind, what is computed of each image: class tokens of transformers."""

from __future__ import annotations

import numpy as np

from convalgos.network.graph import Elementwise
from convalgos.network.onnx_reader.channels import Steps, by_last_dimension
from convalgos.network.onnx_reader.model import OnnxModel, OnnxNode
from convalgos.network.pads import Pad


def with_tokens(node: OnnxNode, model: OnnxModel) -> Steps:
    """Of a Concat of (N, T, C) and a constant that is repeated for each image: zeros in its place are a pad,
    to which it is added, as other constants are behind it."""
    if len(node.inputs) != 2 or node.attributes["axis"] not in (1, -2):
        return None
    first = model.maker(node.inputs[0]) is not None and _repeated(node.inputs[0], model) is not None
    x, name = node.inputs[::-1] if first else node.inputs
    tokens, shape = _repeated(name, model), model.shape(x)
    if tokens is None or shape is None or model.is_constant(x) or len(shape) != 3:
        return None
    (_, count, channels), (_, times, width) = tokens.shape, shape
    if not isinstance(times, int) or width != channels:
        return None
    added = np.zeros((1, times + count, channels), np.float32)
    padding = (count, 0) if first else (0, count)
    added[:, : count if first else None][:, 0 if first else times :] = tokens
    y = node.outputs[0]
    one = OnnxNode(node.op, node.name, [x], [f"{y}/padded"])
    pad = Pad((padding,), "constant")
    made = by_last_dimension(one, model, lambda of, to: [pad.step(node.name, of, to, channels)])
    return made and [*made, Elementwise(node.name, (f"{y}/padded",), y, "shift", constant=added)]


def _repeated(name: str, model: OnnxModel) -> np.ndarray | None:
    """The constant (1, T, C) of which a value has as many as there are images."""
    node = model.maker(name)
    if node is None or node.op not in ("Expand", "Tile"):
        return None
    array, shape = model.constant(node.inputs[0]), model.tried_shape(name)
    if array is None or array.ndim != 3 or len(array) != 1 or array.dtype != np.float32 or shape is None:
        return None
    return array if shape[1:] == array.shape[1:] else None
