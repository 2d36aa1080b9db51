"""Recurrent layers of torch, as layers of ONNX one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import fx

from convalgos.network.torch_reader.moves import full_nodes
from convalgos.network.torch_reader.translation import Arguments, Left, Translate, Translation, Value

# which gate of torch is each of ONNX: (i, f, g, o) -> (i, o, f, g), (r, z, n) -> (z, r, n)
GATES = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}
KINDS = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN", "rnn_relu": "RNN"}
LAYERS = {getattr(torch.ops.aten, name).input: op for name, op in KINDS.items()}
DIRECTIONS = {1: b"forward", 2: b"bidirectional"}


def recurrent_nodes(op: str) -> Translate:
    def translate(t: Translation, node: fx.Node, a: Arguments) -> Sequence[Value]:
        states = a["hx"] if isinstance(a["hx"], list | tuple) else [a["hx"]]
        if a["train"] or any(_is_computed(t, state) for state in states):
            raise Left("is in training" if a["train"] else "begins with a state that is computed")
        x, directions = t.value(a["input"]), 1 + bool(a["bidirectional"])
        shape = list(t.shape(x))
        if len(shape) != 3:
            raise Left("takes one sequence without a batch")
        if a["batch_first"]:
            shape = [shape[1], shape[0], shape[2]]
            x = t.between("Transpose", [x], shape, perm=[1, 0, 2])
        arrays = iter([t.number_or_array(w) for w in a["params"]])
        last: list[list[Value]] = [[] for _ in states]
        for _ in range(a["num_layers"]):
            weights = [_of_layer(op, arrays, a["has_biases"]) for _ in range(directions)]
            x, ends = _layer(t, op, x, weights, len(states), node.target is torch.ops.aten.rnn_relu.input)
            for all_layers, end in zip(last, ends, strict=True):
                all_layers.append(end)
        y = x
        if a["batch_first"]:
            batch = t.shape(x)
            y = t.between("Transpose", [x], (batch[1], batch[0], batch[2]), perm=[1, 0, 2])
        tensors = node.meta["val"]
        return [y, *(_side_by_side(t, e, v.shape) for e, v in zip(last, tensors[1:], strict=True))]

    return translate


def zeros_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value | Sequence[Value]:
    """Of open sizes; a number where only layers begin with them."""
    if all(user.target in LAYERS for user in node.users):
        return t.value(0.0)
    return full_nodes(0)(t, node, a)


def _is_computed(t: Translation, state: Any) -> bool:
    """Whether a first state is something else than zeros."""
    array = t.number_or_array(state)
    return array is None or bool(array.any())


def _of_layer(op: str, arrays: Any, has_biases: bool) -> list[np.ndarray]:
    """(w, r, both biases) of one direction of a layer, its gates as ONNX has them."""
    given = [next(arrays) for _ in range(4 if has_biases else 2)]
    if any(array is None for array in given):
        raise Left("has weights that are computed")
    if len(given) == 4 and given[1].shape[1] * len(GATES[op]) != given[1].shape[0]:
        raise Left("projects its states")
    w, r, *biases = (
        np.concatenate([np.split(array, len(GATES[op]))[gate] for gate in GATES[op]]) for array in given
    )
    return [w, r, np.concatenate(biases) if biases else np.zeros(2 * len(w), np.float32)]


def _layer(
    t: Translation, op: str, x: Value, weights: list[list[np.ndarray]], states: int, relu: bool
) -> tuple[Value, list[Value]]:
    """(all states, the last one of each kind) of one layer."""
    times, images, _ = t.shape(x)
    directions, hidden = len(weights), weights[0][1].shape[1]
    constants = [t.constant(np.stack(parts)) for parts in zip(*weights, strict=True)]
    attributes: dict[str, Any] = {"hidden_size": hidden, "direction": DIRECTIONS[directions]}
    if relu:
        attributes["activations"] = [b"Relu"] * directions
    if op == "GRU":
        attributes["linear_before_reset"] = 1
    shapes = [(times, directions, images, hidden), *[(directions, images, hidden)] * states]
    y, *ends = t.several(op, [x, *constants], shapes, **attributes)
    if directions == 1:  # (T, 1, N, H)
        target = t.constant(np.array([0, -1, hidden], np.int64))
        return t.between("Reshape", [y, target], (times, images, hidden)), ends
    turned = t.between("Transpose", [y], (times, images, directions, hidden), perm=[0, 2, 1, 3])
    target = t.constant(np.array([0, 0, -1], np.int64))
    return t.between("Reshape", [turned, target], (times, images, directions * hidden)), ends


def _side_by_side(t: Translation, ends: list[Value], shape: Any) -> Value:
    return ends[0] if len(ends) == 1 else t.between("Concat", ends, tuple(shape), axis=0)
