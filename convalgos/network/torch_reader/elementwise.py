"""Elementwise operators of torch: sums and products of maps, factors of channels, activations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import fx

from convalgos.core.epilogue import NAMED, Activation
from convalgos.network.graph import Elementwise
from convalgos.network.torch_reader.conversion import Arguments, Conversion, Convert, Left, module_name
from convalgos.network.torch_reader.convolutions import scaling_step, vector_of
from convalgos.network.torch_reader.region import TensorPlace
from convalgos.network.torch_reader.shapes import map_shape

LARGEST = float(np.finfo(np.float32).max)


def _elementwise(c: Conversion, node: fx.Node, operation: str, tensors: Sequence[Any]) -> TensorPlace:
    form = c.form_of(*tensors)
    a, b = tensors
    shapes = [tuple(map(str, map_shape(t, form))) for t in (a, b)]
    if shapes[0] != shapes[1]:
        alike = shapes[0][:2] == shapes[1][:2]
        if alike and set(shapes[0][2:]) == {"1"}:
            a, b = b, a
        elif not alike or set(shapes[1][2:]) != {"1"}:
            raise Left("is of tensors of different shapes")
        operation = "shift" if operation == "add" else operation
    inputs = (c.value(a, form), c.value(b, form))
    c.steps.append(Elementwise(module_name(node), inputs, node.name, operation))
    return TensorPlace(node.name, form)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, fx.Node) and value.op != "get_attr"


def add_step(sign: int) -> Convert:
    def convert(c: Conversion, node: fx.Node, a: Arguments) -> TensorPlace:
        x, other, alpha = a["self"], a["other"], sign * a.get("alpha", 1)
        if _is_tensor(x) and _is_tensor(other):
            if alpha != 1:
                raise Left("is a difference of two tensors")
            return _elementwise(c, node, "add", (x, other))
        if _is_tensor(x):
            return scaling_step(c, node, x, 1.0, alpha * vector_of(c, x, other))
        return scaling_step(c, node, other, alpha, vector_of(c, other, x))

    return convert


def subtracted_step(c: Conversion, node: fx.Node, a: Arguments) -> TensorPlace:
    """A number less a tensor."""
    if isinstance(a["other"], fx.Node) or not _is_tensor(a["self"]):
        raise Left("takes a number that is computed")
    return scaling_step(c, node, a["self"], -a["alpha"], a["other"])


def multiply_step(c: Conversion, node: fx.Node, a: Arguments) -> TensorPlace:
    x, other = a["self"], a["other"]
    if _is_tensor(x) and _is_tensor(other):
        return _elementwise(c, node, "multiply", (x, other))
    x, other = (x, other) if _is_tensor(x) else (other, x)
    return scaling_step(c, node, x, vector_of(c, x, other), 0.0)


def divide_step(c: Conversion, node: fx.Node, a: Arguments) -> TensorPlace:
    if not _is_tensor(a["self"]) or _is_tensor(a["other"]):
        raise Left("divides by a tensor")
    return scaling_step(c, node, a["self"], 1 / vector_of(c, a["self"], a["other"]), 0.0)


def activation_step(of: Callable[[Arguments], Activation]) -> Convert:
    def convert(c: Conversion, node: fx.Node, a: Arguments) -> TensorPlace:
        x = a["self"]
        form, activation = c.form_of(x), of(a)
        c.steps.append(Elementwise(module_name(node), (c.value(x, form),), node.name, "identity", activation))
        return TensorPlace(node.name, form)

    return convert


def activation_named(name: str) -> Convert:
    return activation_step(lambda a: Activation(name))


def clip_step(low: str, high: str) -> Convert:
    def of(a: Arguments) -> Activation:
        ends = a.get(low), a.get(high)
        if any(isinstance(end, fx.Node) for end in ends):
            raise Left("clips to ends that are computed")
        if ends == (0, None):
            return Activation("relu")
        least = -LARGEST if ends[0] is None else float(ends[0])
        most = LARGEST if ends[1] is None else float(ends[1])
        if not -LARGEST <= least <= most <= LARGEST:
            raise Left(f"clips to {least} and {most}")
        return Activation("clip", least, most)

    return activation_step(of)


relu6_step = activation_step(lambda a: Activation("clip", 0.0, 6.0))
leaky_relu_step = activation_step(lambda a: Activation("leaky_relu", float(a["negative_slope"])))
selu_step = activation_step(lambda a: NAMED["selu"])
gelu_step = activation_step(lambda a: Activation("gelu_tanh" if a["approximate"] == "tanh" else "gelu"))


def elu_step(c: Conversion, node: fx.Node, a: Arguments) -> TensorPlace:
    if a["input_scale"] != 1:
        raise Left("scales what it takes the exponential of")
    made = Activation("elu", float(a["alpha"]), float(a["scale"]))
    return activation_step(lambda _: made)(c, node, a)


def softplus_step(c: Conversion, node: fx.Node, a: Arguments) -> TensorPlace:
    """Beyond its threshold, of 20 as a rule, torch has v itself, from which floats do not differ there."""
    if a["beta"] != 1 or a["threshold"] < 18:
        raise Left("is a softplus with numbers of its own")
    return activation_named("softplus")(c, node, a)


def prelu_step(c: Conversion, node: fx.Node, a: Arguments) -> TensorPlace:
    slopes = c.constant(a["weight"])
    if slopes is None or not slopes.size or (slopes != slopes.reshape(-1)[0]).any():
        raise Left("has slopes that differ among channels")
    return activation_step(lambda a: Activation("leaky_relu", float(slopes.reshape(-1)[0])))(c, node, a)


def hard_sigmoid_steps(c: Conversion, node: fx.Node, a: Arguments) -> TensorPlace:
    """min(max(x / 6 + 1/2, 0), 1): a scaling, which a convolution takes up, and a clip."""
    place = scaling_step(c, node, a["self"], 1 / 6, 0.5, output=f"{node.name}/scaled")
    clip = Activation("clip", 0.0, 1.0)
    c.steps.append(Elementwise(module_name(node), (place.value,), node.name, "identity", clip))
    return TensorPlace(node.name, place.form)
