"""Elementwise operators of torch: arithmetic, comparisons, activations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx

from convalgos.core.epilogue import NAMED, Activation
from convalgos.network.onnx_reader.patterns import ACTIVATION
from convalgos.network.torch_reader.shapes import known_sizes
from convalgos.network.torch_reader.translation import Arguments, Left, Translate, Translation, Value


def _operands(t: Translation, a: Arguments, dtype: str) -> list[Value]:
    """Both operands of an operator, as arrays of a type."""
    return [t.cast(t.value(a[key], dtype), dtype) for key in ("self", "other")]


def arithmetic_nodes(op: str) -> Translate:
    """Of two operands, of which the second may be multiplied with alpha first."""

    def translate(t: Translation, node: fx.Node, a: Arguments) -> Value:
        own = t.result().dtype
        x, other = _operands(t, a, own)
        alpha = a.get("alpha", 1)
        if alpha != 1:
            other = _times(t, other, alpha, own)
        return t.emit(op, [x, other])

    return translate


def _times(t: Translation, x: Value, number: Any, dtype: str) -> Value:
    if x in t.constants:
        return t.constant(t.constants[x] * np.array(t.constants[t.value(number, dtype)]))
    return t.between("Mul", [x, t.value(number, dtype)], t.shape(x), dtype)


def subtracted_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    """The other less alpha times an array."""
    own = t.result().dtype
    x, other = _operands(t, a, own)
    return t.emit("Sub", [other, _times(t, x, a["alpha"], own) if a["alpha"] != 1 else x])


def product_added_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    """An array and a number times the product of two others."""
    own = t.result().dtype
    factors = [t.cast(t.value(a[key]), own) for key in ("tensor1", "tensor2")]
    shape = (a["tensor1"].meta["val"] * a["tensor2"].meta["val"]).shape
    product = t.between("Mul", factors, shape, own)
    if a["value"] != 1:
        product = _times(t, product, a["value"], own)
    return t.emit("Add", [t.cast(t.value(a["self"]), own), product])


def compared_nodes(op: str, negated: bool = False) -> Translate:
    """Two operands as numbers of one type."""

    def translate(t: Translation, node: fx.Node, a: Arguments) -> Value:
        given = [v.meta["val"] if isinstance(v, fx.Node) else v for v in (a["self"], a["other"])]
        dtype = str(torch.result_type(*given)).removeprefix("torch.")
        operands = _operands(t, a, dtype)
        if not negated:
            return t.emit(op, operands)
        return t.emit("Not", [t.between(op, operands, t.result().shape, "bool")])

    return translate


def of_booleans_nodes(op: str) -> Translate:
    def translate(t: Translation, node: fx.Node, a: Arguments) -> Value:
        operands = [t.value(a[key]) for key in ("self", "other") if key in a]
        if any(t.dtype(name) != "bool" for name in operands):
            raise Left("is of other numbers than truth values")
        return t.emit(op, operands)

    return translate


def function_nodes(op: str) -> Translate:
    """Of each element by itself."""

    def translate(t: Translation, node: fx.Node, a: Arguments) -> Value:
        own = t.result().dtype
        if own == "bool":
            raise Left("is of truth values")
        return t.emit(op, [t.cast(t.value(a["self"]), own)])

    return translate


def inverse_root_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    x = t.value(a["self"])
    return t.emit("Reciprocal", [t.between("Sqrt", [x], t.shape(x))])


def square_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    return t.emit("Mul", [t.value(a["self"])] * 2)


def power_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    if isinstance(a["exponent"], fx.Node) or not isinstance(a["self"], fx.Node):
        raise Left("has a power that is computed")
    own = t.result().dtype
    return t.emit("Pow", [t.cast(t.value(a["self"]), own), t.value(a["exponent"], own)])


def chosen_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    own = t.result().dtype
    x, other = _operands(t, a, own)
    return t.emit("Where", [t.value(a["condition"]), x, other])


def filled_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    """A number where a mask is."""
    own = t.result().dtype
    x = t.value(a["self"])
    return t.emit("Where", [t.value(a["mask"]), t.cast(t.value(a["value"], own), own), x])


def cast_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    x = t.value(a.get("self", a.get("input")))
    return x if t.dtype(x) == t.result().dtype else t.emit("Cast", [x])


# --- activations -----------------------------------------------------------------------------


def activated_nodes(of: Callable[[Arguments], Activation]) -> Translate:
    def translate(t: Translation, node: fx.Node, a: Arguments) -> Value:
        x = t.value(a["self"])
        if t.dtype(x) != "float32":
            raise Left("is of whole numbers")
        return t.emit(ACTIVATION, [x], activation=of(a))

    return translate


def activation_named_nodes(name: str) -> Translate:
    return activated_nodes(lambda a: Activation(name))


def clip_nodes(low: str, high: str) -> Translate:
    def of(a: Arguments) -> Activation:
        ends = a.get(low), a.get(high)
        if any(isinstance(end, fx.Node) for end in ends):
            raise Left("clips to ends that are computed")
        if ends == (0, None):
            return Activation("relu")
        least = -math.inf if ends[0] is None else float(ends[0])
        most = math.inf if ends[1] is None else float(ends[1])
        if not least <= most:
            raise Left(f"clips to {least} and {most}")
        return Activation("clip", least, most)

    return activated_nodes(of)


def clamped_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value | Sequence[Value]:
    """Between tensors that are numbers, and known."""
    ends = {key: t.number_or_array(a[key]) for key in ("min", "max") if a.get(key) is not None}
    for key, end in ends.items():
        if end is None or end.size != 1 or end.ndim > len(t.shape(t.value(a["self"]))):
            raise Left("clips to ends that are computed")
        a = {**a, key: end.item()}
    return clip_nodes("min", "max")(t, node, a)


def prelu_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    slopes = t.number_or_array(a["weight"])
    if slopes is None:
        raise Left("has weights that are computed")
    rank = len(t.result().shape)
    by_channel = slopes.reshape(-1, *(1,) * (rank - 2)) if rank > 2 else slopes
    return t.emit("PRelu", [t.value(a["self"]), t.constant(by_channel)])


def hard_sigmoid_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    return t.emit("HardSigmoid", [t.value(a["self"])], alpha=1 / 6, beta=0.5)


def glu_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    """Half of the channels, times the sigmoid of the others."""
    x, own = t.value(a["self"]), t.result()
    axis = a["dim"] % len(own.shape)
    halves = t.constant(np.array(known_sizes([own.shape[axis]]) * 2, np.int64))
    half, gates = t.several("Split", [x, halves], [own.shape] * 2, axis=axis)
    gate = t.between(ACTIVATION, [gates], own.shape, activation=Activation("sigmoid"))
    return t.emit("Mul", [half, gate])


def _softplus(a: Arguments) -> Activation:
    """Beyond its threshold, of 20 as a rule, torch has v itself, from which floats do not differ there."""
    if a["beta"] != 1 or a["threshold"] < 18:
        raise Left("is a softplus with numbers of its own")
    return Activation("softplus")


def _elu(a: Arguments) -> Activation:
    if a["input_scale"] != 1:
        raise Left("scales what it takes the exponential of")
    return Activation("elu", float(a["alpha"]), float(a["scale"]))


softplus_nodes, elu_nodes = activated_nodes(_softplus), activated_nodes(_elu)
selu_nodes = activated_nodes(lambda a: NAMED["selu"])
leaky_relu_nodes = activated_nodes(lambda a: Activation("leaky_relu", float(a["negative_slope"])))
gelu_nodes = activated_nodes(lambda a: Activation("gelu_tanh" if a["approximate"] == "tanh" else "gelu"))
relu6_nodes = activated_nodes(lambda a: Activation("clip", 0.0, 6.0))
