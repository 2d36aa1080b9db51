"""Layer normalisation whose factors a model has multiplied out, as TensorFlow does, found and made one node.

x r - mean r + shift, where r is scale / sqrt(variance + epsilon), in whatever order sums and products come:
what a node computes is written as a sum of products of x, its mean, the inverse of the root and constants,
and compared with that.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from convalgos.network.onnx_reader.model import OnnxModel, OnnxNode
from convalgos.network.onnx_reader.named import Named, with_patterns_named
from convalgos.network.onnx_reader.norms import CHANNEL_NORM, axis_of_mean, is_square

ENDS = ("Add", "Sub", "Mul", "Div")
BETWEEN = (*ENDS, "Neg", "Reciprocal")
STEPS = 6  # from the last node to the root
PLAIN, X, MEAN = (0, 0), (1, 0), (2, 0)  # which of 1, x and its mean a product has, and how many inverses
Sum = dict[tuple[int, int], np.ndarray]  # products of a sum, with the constants before them


class _Root(NamedTuple):
    """The root of a variance, or its inverse."""

    node: OnnxNode
    x: str
    axis: int
    epsilon: float
    mean: OnnxNode
    inside: tuple[OnnxNode, ...]  # with x - mean, or mean - x


def with_distributed_norms_named(model: OnnxModel) -> list[OnnxNode]:
    """The nodes of a model, where those that spell out a norm are one."""
    return with_patterns_named(model, _norm_ending_in)


def _norm_ending_in(last: OnnxNode, model: OnnxModel, readers: Counter[str]) -> Named | None:
    if last.op not in ENDS or model.dtype(last.outputs[0]) != "float32":
        return None
    for root in _roots(last, model):
        search = _Terms(model, root)
        found = search.terms(last.outputs[0])
        names = search.inside - {last.outputs[0]}
        numbers = None if found is None else _scale_and_shift(found, root, model)
        nodes = [node for name in names if (node := model.maker(name)) is not None]
        read_here = Counter(name for node in (*nodes, last) for name in node.inputs)
        if numbers is None or any(read_here[name] != readers[name] for name in names):
            continue
        protos = tuple(p for n in model.nodes if n.outputs and n.outputs[0] in names for p in n.protos)
        attributes = {"axis": root.axis, "epsilon": root.epsilon, "numbers": numbers}
        made = OnnxNode(CHANNEL_NORM, last.name, [root.x], last.outputs, attributes, (*protos, *last.protos))
        return made, names
    return None


def _roots(last: OnnxNode, model: OnnxModel) -> list[_Root]:
    """Those of variances from which a node may be computed, the nearest first."""
    found: dict[str, _Root] = {}
    nodes = [last]
    for _ in range(STEPS):
        makers = [model.maker(name) for node in nodes for name in node.inputs if name]
        known = {node.outputs[0]: node for node in makers if node is not None}
        for name, node in known.items():
            if node.op in ("Sqrt", "Pow") and (root := _root_of(node, model)) is not None:
                found[name] = root
        nodes = [node for node in known.values() if node.op in BETWEEN]
    return list(found.values())


def _root_of(node: OnnxNode, model: OnnxModel) -> _Root | None:
    plus = model.maker(node.inputs[0])
    if plus is None or plus.op != "Add" or (node.op == "Pow" and model.number(node.inputs[1]) != -0.5):
        return None
    epsilons = [model.number(name) for name in plus.inputs]
    epsilon = next((e for e in epsilons if e is not None), None)
    variance = model.maker(plus.inputs[epsilons[0] is not None])
    square = None if variance is None else model.maker(variance.inputs[0])
    centred = None if square is None else model.maker(square.inputs[0])
    if epsilon is None or variance is None or square is None or centred is None or centred.op != "Sub":
        return None
    for x, name in (centred.inputs, centred.inputs[::-1]):
        mean = model.maker(name)
        if mean is None or mean.inputs[0] != x or not is_square(square, centred, model):
            continue
        axes = [axis_of_mean(n, model) for n in (mean, variance)]
        if axes[0] is not None and axes[0] == axes[1]:
            inside = (node, plus, variance, square, centred, mean)
            return _Root(node, x, axes[0], epsilon, mean, inside)
    return None


class _Terms:
    """Values as sums of products; the nodes that they are made of are noted in `inside`."""

    def __init__(self, model: OnnxModel, root: _Root):
        self.model, self.root = model, root
        self.inside = {node.outputs[0] for node in root.inside}
        self._known: dict[str, Sum | None] = {}

    def terms(self, name: str) -> Sum | None:
        """None of what is no such sum."""
        if name not in self._known:  # values that are read many times are looked at once
            self._known[name] = self._terms(name)
        return self._known[name]

    def _terms(self, name: str) -> Sum | None:
        one, root = np.ones(()), self.root
        if name == root.x:
            return {X: one}
        if name == root.mean.outputs[0]:
            return {MEAN: one}
        if self.model.is_constant(name):
            array = self.model.constant(name)
            return None if array is None else {PLAIN: array.astype(np.float64)}
        node = self.model.maker(name)
        if node is None:
            return None
        self.inside.add(name)
        if node is root.node:
            return {(0, -1 if node.op == "Sqrt" else 1): one}
        if node.op not in BETWEEN:
            return None
        known: list[Sum] = []
        for part in node.inputs:
            if (found := self.terms(part)) is None:
                return None
            known.append(found)
        if node.op in ("Neg", "Reciprocal"):
            return _times(known[0], {PLAIN: -one}) if node.op == "Neg" else _inverse(known[0])
        if node.op in ("Mul", "Div"):
            by = known[1] if node.op == "Mul" else _inverse(known[1])
            return None if by is None else _times(known[0], by)
        return _plus(known[0], known[1] if node.op == "Add" else _times(known[1], {PLAIN: -one}))


def _times(a: Sum, b: Sum) -> Sum | None:
    found: Sum = {}
    for (of_a, roots), by in a.items():
        for (of_b, more), number in b.items():
            if of_a and of_b:  # squares
                return None
            key = (of_a + of_b, roots + more)
            found[key] = found.get(key, np.zeros(())) + by * number
    return found


def _plus(a: Sum | None, b: Sum | None) -> Sum | None:
    if a is None or b is None:
        return None
    return a | {key: a.get(key, np.zeros(())) + number for key, number in b.items()}


def _inverse(a: Sum) -> Sum | None:
    """Of a constant, or of a root times one."""
    ((of, roots), number), *more = a.items()
    return None if of or more or not number.all() else {(0, -roots): 1 / number}


def _scale_and_shift(found: Sum, root: _Root, model: OnnxModel) -> tuple[np.ndarray, np.ndarray] | None:
    """(scale, shift) of a norm, one for each channel, if the products are those of one."""
    shape = model.shape(root.x) or ()
    channels = shape[root.axis] if shape else 0
    if {*found} - {PLAIN} != {(1, 1), (2, 1)} or not isinstance(channels, int):
        return None
    if not 2 <= len(shape) <= 5 or root.axis not in (1, len(shape) - 1):
        return None
    scale, shift = found[1, 1], found.get(PLAIN, np.zeros(()))
    if not np.all(np.equal(*np.broadcast_arrays(scale, -found[2, 1]))):
        return None
    behind = len(shape) - 1 - root.axis
    for array in (scale, shift):
        sizes = (*(1,) * (1 + behind - array.ndim), *array.shape)
        if len(sizes) > len(shape) or any(n != 1 for i, n in enumerate(sizes[::-1]) if i != behind):
            return None
        if sizes[len(sizes) - 1 - behind] not in (1, channels):
            return None
    own = [np.broadcast_to(a.reshape(-1), channels).astype(np.float32) for a in (scale, shift)]
    return own[0], own[1]
