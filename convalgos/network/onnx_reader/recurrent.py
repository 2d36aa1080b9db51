"""LSTM, GRU and RNN of ONNX, as a product with all inputs and the step of what follows from it in time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from convalgos.network.attention import Rearrangement
from convalgos.network.graph import (
    Concatenation,
    Convolution,
    Step,
    Transpose,
    View,
    channels_from_last,
    channels_to_last,
)
from convalgos.network.onnx_reader.channels import Steps
from convalgos.network.onnx_reader.messages import array_of
from convalgos.network.onnx_reader.model import OnnxModel, OnnxNode
from convalgos.network.recurrence import Recurrence

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
ACTIVATIONS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}
DIRECTIONS = {b"forward": 1, b"reverse": 1, b"bidirectional": 2}
PLAIN = {"clip": None, "layout": 0, "input_forget": 0}  # attributes of layers that have a step
MOVING = ("Slice", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Expand")  # zeros stay zeros


def recurrent(node: OnnxNode, model: OnnxModel) -> Steps:
    """With weights that are constant."""
    x, w, r, b, lengths, h, c, peepholes = (*node.inputs, *[""] * 8)[:8]
    directions, shape = DIRECTIONS.get(node.attributes.get("direction", b"forward")), model.shape(x)
    if directions is None or shape is None or peepholes or _is_special(node, directions):
        return None
    arrays = [model.constant(name) if name else None for name in (w, r, b)]
    if arrays[0] is None or arrays[1] is None or (b and arrays[2] is None):
        return None
    if lengths and not _are_whole(model.constant(lengths), shape):
        return None
    states = ["" if not name or _is_zero(name, model) else name for name in (h, c)]
    if len(shape) != 3 or any(model.is_constant(name) for name in states if name):
        return None
    weights = np.asarray(arrays[0], np.float32), np.asarray(arrays[1], np.float32)
    bias = np.zeros((directions, 2 * weights[0].shape[1]), np.float32) if arrays[2] is None else arrays[2]
    cells = next((name for name in node.outputs[2:] if name and _is_read(name, model)), "")
    return [*_states_of(node, x, weights, bias, states, cells), *_last_states(node, model, directions)]


def _are_whole(lengths: np.ndarray | None, shape: Sequence[Any]) -> bool:
    """Whether all sequences are known to be as long as the longest may be."""
    return lengths is not None and type(shape[0]) is int and bool((lengths == shape[0]).all())


def _is_rectified(node: OnnxNode) -> bool:
    """Whether it is a plain layer whose activations are max(x, 0)."""
    named = [name.decode().lower() for name in node.attributes.get("activations", ())]
    return node.op == "RNN" and bool(named) and set(named) == {"relu"}


def _is_special(node: OnnxNode, directions: int) -> bool:
    """Whether it has gates of another kind than most layers."""
    given = node.attributes.get
    named = [name.decode().lower() for name in given("activations", ())]
    usual = [name.lower() for name in ACTIVATIONS[node.op] * directions]
    if (
        (named not in ([], usual) and not _is_rectified(node))
        or given("activation_alpha")
        or given("activation_beta")
    ):
        return True
    return any(given(name, plain) != plain for name, plain in PLAIN.items())


def _states_of(
    node: OnnxNode, x: str, weights: tuple[np.ndarray, np.ndarray], bias: np.ndarray, states: list[str],
    cells: str,
) -> list[Step]:  # fmt: skip
    """The steps up to all states, which are the first output, and the last cells where they have a name."""
    gates, (w, r) = GATES[node.op], weights  # (directions, gates * hidden, channels), (..., hidden)
    _, rows, channels = w.shape
    hidden = rows // gates
    of_inputs, of_states = np.split(bias, 2, 1)  # (directions, gates * hidden) each
    share = None
    reset_first = node.op == "GRU" and not node.attributes.get("linear_before_reset", 0)
    if node.op == "GRU" and not reset_first:  # the last gate takes a share of the sum, with its bias
        share = of_states[:, -hidden:]
        of_states = np.concatenate([of_states[:, :-hidden], np.zeros_like(share)], 1)
    y = node.outputs[0] or f"{node.name}/states"
    names = [f"{y}/{part}" for part in ("x", "maps", "gates")]
    filters, shift = w.reshape(-1, channels, 1), (of_inputs + of_states).reshape(-1)
    given = bool(states[0]), bool(states[1])
    both = f"{y}/cells" if cells else y
    parts = [(y, (("slice", 0, 0, -1, 1),)), (cells, (("index", 0, -1),))] if cells else []
    return [
        Transpose(node.name, (x,), names[0], channels_from_last(3)),
        Convolution(node.name, (names[0],), names[1], filters, shift, (1,), ((0, 0),), (1,)),
        Transpose(node.name, (names[1],), names[2], channels_to_last(3)),
        Recurrence(
            node.name, (names[2], *filter(None, states)), both, r, gates, share,
            node.attributes.get("direction") == b"reverse", given, bool(cells), _is_rectified(node),
            reset_first,
        ),
        *(Rearrangement(node.name, (both,), name, moves) for name, moves in parts),
    ]  # fmt: skip


def _last_states(node: OnnxNode, model: OnnxModel, directions: int) -> list[Step]:
    """The state of each direction at its last time, where it is asked for."""
    y, last = (*node.outputs, "")[:2]
    if not last or not _is_read(last, model):
        return []
    y = y or f"{node.name}/states"
    turned = node.attributes.get("direction") == b"reverse"
    if directions == 1:
        return [Rearrangement(node.name, (y,), last, (("index", 0, 0 if turned else -1),))]
    hidden = node.attributes["hidden_size"]
    parts = [f"{last}/{d}" for d in range(2)]
    picks = [(("index", 0, -1), ("slice", 0, 0, 1, 1)), (("index", 0, 0), ("slice", 0, 1, 2, 1))]
    return [
        *(
            Rearrangement(node.name, (y,), f"{part}/rows", pick)
            for part, pick in zip(parts, picks, strict=True)
        ),
        *(View(node.name, (f"{part}/rows",), part, (1, 1, -1, hidden)) for part in parts),
        Concatenation(node.name, tuple(parts), f"{last}/both"),
        View(node.name, (f"{last}/both",), last, (2, -1, hidden)),
    ]


def _is_read(name: str, model: OnnxModel) -> bool:
    """Whether a node, or the body of one, reads a value, or it is an output of the model."""
    if name in model.outputs or any(name in node.inputs for node in model.nodes):
        return True
    return name in model.captured()


def _is_zero(name: str, model: OnnxModel) -> bool:
    """Whether a value is nothing but zeros, of whatever shape."""
    while (node := model.maker(name)) is not None and node.op in MOVING:
        name = node.inputs[0]
    if node is not None:
        value = node.attributes.get("value")
        return node.op == "ConstantOfShape" and (value is None or not any(_numbers(value)))
    array = model.constant(name) if model.is_constant(name) else None
    return array is not None and not array.any()


def _numbers(tensor: object) -> list[float]:
    array = array_of(tensor)
    return array.reshape(-1).tolist() if math.prod(array.shape) else []
