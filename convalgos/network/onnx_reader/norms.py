"""Layer normalisation that a model spells out in several nodes, found and made one node.

(x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon), where both means are over one dimension; what scales
and shifts it stays beside it.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from convalgos.network.onnx_reader.model import OnnxModel, OnnxNode
from convalgos.network.onnx_reader.named import Named, with_patterns_named

CHANNEL_NORM = "convalgos.LayerNormalization"  # the operator of what is found; its axis may be any


class _Norm(NamedTuple):
    x: str
    axis: int
    epsilon: float
    inside: tuple[OnnxNode, ...]  # all nodes but the last


def with_norms_named(model: OnnxModel) -> list[OnnxNode]:
    """The nodes of a model, where those that spell out a norm are one."""
    return with_patterns_named(model, _named)


def _named(last: OnnxNode, model: OnnxModel, readers: Counter[str]) -> Named | None:
    norm = _norm_ending_in(last, model)
    if norm is None:
        return None
    names = {n.outputs[0] for n in norm.inside}
    read_here = Counter(name for n in (*norm.inside, last) for name in n.inputs)
    if any(read_here[name] != readers[name] for name in names):
        return None
    protos = tuple(p for n in model.nodes if n.outputs[0] in names for p in n.protos)
    attributes = {"axis": norm.axis, "epsilon": norm.epsilon}
    made = OnnxNode(CHANNEL_NORM, last.name, [norm.x], last.outputs, attributes, (*protos, *last.protos))
    return made, names


def _norm_ending_in(last: OnnxNode, model: OnnxModel) -> _Norm | None:
    """The norm whose division is this node."""
    left, root = (model.maker(name) for name in last.inputs[:2]) if last.op == "Div" else (None, None)
    if left is None or root is None or (left.op, root.op) != ("Sub", "Sqrt"):
        return None
    plus = model.maker(root.inputs[0])
    if plus is None or plus.op != "Add":
        return None
    epsilons = [model.number(name) for name in plus.inputs]
    epsilon = next((e for e in epsilons if e is not None), None)
    variance = model.maker(plus.inputs[epsilons[0] is not None])
    mean = model.maker(left.inputs[1])
    if epsilon is None or variance is None or mean is None or mean.inputs[0] != left.inputs[0]:
        return None
    square = model.maker(variance.inputs[0])
    axes = [axis_of_mean(node, model) for node in (mean, variance)]
    if square is None or axes[0] is None or axes[0] != axes[1] or not is_square(square, left, model):
        return None
    return _Norm(left.inputs[0], axes[0], epsilon, (mean, left, square, variance, plus, root))


def axis_of_mean(node: OnnxNode, model: OnnxModel) -> int | None:
    """The one dimension, from the first on, over which a node takes the mean and keeps it."""
    axes, shape = model.axes(node), model.shape(node.inputs[0])
    if node.op != "ReduceMean" or not node.attributes.get("keepdims", 1):
        return None
    return None if axes is None or len(axes) != 1 or not shape else int(axes[0]) % len(shape)


def is_square(node: OnnxNode, of: OnnxNode, model: OnnxModel) -> bool:
    if node.op == "Pow":
        return node.inputs[0] == of.outputs[0] and model.number(node.inputs[1]) == 2
    return node.op == "Mul" and node.inputs == [of.outputs[0]] * 2
