"""Norms without a mean that a model spells out in several nodes, found and made one node.

x / max(the root of the sum of its squares, epsilon), along one dimension, is what cosine attention takes; and
x / sqrt(mean(x^2) + epsilon), or x times 1 / that, is the RMS norm.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import NamedTuple

import numpy as np

from convalgos.network.graph import LayerNormalization, Step
from convalgos.network.onnx_reader.channels import Steps, by_last_dimension, of_one_pixel
from convalgos.network.onnx_reader.model import OnnxModel, OnnxNode
from convalgos.network.onnx_reader.named import Named, with_patterns_named

ROOT_NORM = "convalgos.RootNormalization"  # the operator of what is found; attributes: axis, epsilon, least


class _Norm(NamedTuple):
    x: str
    axis: int
    epsilon: float  # beside the mean of the squares; 0 where it is the root of their sum
    least: float | None  # that the root of the sum is taken for; None where it is of the mean
    inside: tuple[OnnxNode, ...]  # all nodes but the last


def with_root_norms_named(model: OnnxModel) -> list[OnnxNode]:
    """The nodes of a model, where those that spell out a norm are one."""
    return with_patterns_named(model, _named)


def _named(last: OnnxNode, model: OnnxModel, readers: Counter[str]) -> Named | None:
    norm = _norm_ending_in(last, model)
    if norm is None or any(readers[n.outputs[0]] != 1 for n in norm.inside):
        return None
    names = {n.outputs[0] for n in norm.inside}
    more = {name for n in norm.inside for name in n.inputs if name and not model.is_constant(name)}
    inputs = [norm.x, *sorted(more - names - {norm.x})]
    protos = tuple(p for n in model.nodes if n.outputs and n.outputs[0] in names for p in n.protos)
    attributes = {"axis": norm.axis, "epsilon": norm.epsilon, "least": norm.least}
    return OnnxNode(ROOT_NORM, last.name, inputs, last.outputs, attributes, (*protos, *last.protos)), names


def root_norm(node: OnnxNode, model: OnnxModel) -> Steps:
    """What the pattern found."""
    shape, given = model.shape(node.inputs[0]) or (), node.attributes
    channels = shape[given["axis"]]
    assert isinstance(channels, int)
    scale, largest = None, math.inf
    if given["least"] is not None:  # of the sum of squares, which is the mean times channels
        root = math.sqrt(channels)
        scale, largest = np.full(channels, 1 / root, np.float32), root / given["least"]

    def norm(x: str, y: str) -> list[Step]:
        step = LayerNormalization(
            node.name, (x,), y, scale, epsilon=given["epsilon"], centred=False, largest=largest
        )
        return [step]

    if given["axis"] == len(shape) - 1:
        if len(shape) == 2:
            return of_one_pixel(node, norm)
        return by_last_dimension(node, model, norm)
    return norm(node.inputs[0], node.outputs[0])


def _norm_ending_in(last: OnnxNode, model: OnnxModel) -> _Norm | None:
    """The norm whose last node this is, where `root_norm` takes it."""
    if last.op not in ("Mul", "Div") or model.dtype(last.outputs[0]) != "float32":
        return None
    for x, root in (last.inputs, last.inputs[::-1]) if last.op == "Mul" else (last.inputs,):
        found = _lengths(x, root, model) if last.op == "Div" else None
        found = found or _means(x, root, last.op == "Mul", model)
        shape = model.shape(x) or ()
        channels = shape[found.axis] if found is not None else 0
        if found is not None and 2 <= len(shape) <= 5 and isinstance(channels, int) and channels:
            return found if found.axis in (1, len(shape) - 1) else None
    return None


def _lengths(x: str, root: str, model: OnnxModel) -> _Norm | None:
    """x / expand(max(length, least)), of which all but the length may be missing."""
    inside: list[OnnxNode] = []
    node, least = model.maker(root), 0.0
    if node is not None and node.op == "Expand" and model.tried_shape(root) == model.tried_shape(x):
        inside.append(node)
        node = model.maker(node.inputs[0])
    if node is not None and node.op in ("Clip", "Max") and len(node.inputs) >= 2:
        if any(node.inputs[2:]):
            return None
        number = model.number(node.inputs[1])
        if number is None or number <= 0:
            return None
        inside.append(node)
        node, least = model.maker(node.inputs[0]), number
    if node is None or node.op != "ReduceL2" or node.inputs[0] != x or not least:
        return None
    axis = _axis(node, model)
    return None if axis is None else _Norm(x, axis, 0.0, least, (*inside, node))


def _means(x: str, root: str, inverse: bool, model: OnnxModel) -> _Norm | None:
    """x / sqrt(mean(x^2) + epsilon), or x times the inverse of that."""
    inside: list[OnnxNode] = []
    node = model.maker(root)
    if inverse and node is not None:
        if node.op != "Reciprocal" and (node.op != "Div" or model.number(node.inputs[0]) != 1):
            return None
        inside.append(node)
        node = model.maker(node.inputs[-1])
    plus = model.maker(node.inputs[0]) if node is not None and node.op == "Sqrt" else None
    if node is None or plus is None:
        return None
    mean: OnnxNode | None = plus
    epsilon: float | None = 0.0  # exporters leave out what is too small beside 1
    if plus.op == "Add":
        epsilons = [model.number(name) for name in plus.inputs]
        epsilon = next((e for e in epsilons if e is not None), None)
        mean = model.maker(plus.inputs[epsilons[0] is not None])
    square = None if mean is None or mean.op != "ReduceMean" else model.maker(mean.inputs[0])
    axis = None if mean is None or square is None else _axis(mean, model)
    if epsilon is None or mean is None or square is None or axis is None:
        return None
    twice = square.op == "Mul" and square.inputs == [x, x]
    if not twice and (square.op != "Pow" or square.inputs[0] != x or model.number(square.inputs[1]) != 2):
        return None
    between = (plus,) if plus is not mean else ()
    return _Norm(x, axis, epsilon, None, (*inside, node, *between, mean, square))


def _axis(node: OnnxNode, model: OnnxModel) -> int | None:
    """The one dimension, from the first on, that a node reduces and keeps."""
    axes, shape = model.axes(node), model.shape(node.inputs[0])
    if not node.attributes.get("keepdims", 1) or axes is None or len(axes) != 1 or not shape:
        return None
    return int(axes[0]) % len(shape)
