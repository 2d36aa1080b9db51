"""Nodes of ONNX that change elements one by one, as steps: activations, sums, products, scales and shifts.

A product with a constant, one number or one for each channel, and a sum with one, is a convolution that takes
each channel by itself; passes make it part of the convolution before it where they can.
"""

from __future__ import annotations

import math

import numpy as np

from convalgos.core.epilogue import NAMED, Activation
from convalgos.network.channel_scaling import channel_scaling
from convalgos.network.functions import ElementFunction
from convalgos.network.graph import Elementwise, Step, View
from convalgos.network.mapped_weights import in_memory
from convalgos.network.onnx_reader.channels import Maker, Steps, by_rows
from convalgos.network.onnx_reader.model import OnnxModel, OnnxNode
from convalgos.network.onnx_reader.value_types import DynamicShape

OPERATIONS = {"Add": "add", "Sum": "add", "Sub": "subtract", "Mul": "multiply", "Div": "divide"}
FUNCTIONS = {
    "Exp": "exp", "Log": "log", "Sqrt": "sqrt", "Reciprocal": "reciprocal", "Abs": "abs", "Neg": "negative",
    "Floor": "floor", "Ceil": "ceil", "Round": "rint",
}  # fmt: skip
INVERSE = {"subtract": "negative", "divide": "reciprocal"}
LARGEST = float(np.finfo(np.float32).max)  # the limits of a Clip without them


def activated_by(activation: Activation) -> Maker:
    """Nodes that are an activation without numbers."""

    def make(node: OnnxNode, model: OnnxModel) -> Steps:
        return [Elementwise(node.name, (node.inputs[0],), node.outputs[0], "identity", activation)]

    return make


def named_activation(node: OnnxNode, model: OnnxModel) -> Steps:
    """What patterns found."""
    return activated_by(node.attributes["activation"])(node, model)


def clip(node: OnnxNode, model: OnnxModel) -> Steps:
    ends = [float(node.attributes.get("min", -LARGEST)), float(node.attributes.get("max", LARGEST))]
    for i, name in enumerate(node.inputs[1:3]):
        if name:
            value = model.constant(name)
            if value is None or value.size != 1:
                return None
            ends[i] = float(value.reshape(-1)[0])
    return activated_by(Activation("clip", *ends))(node, model) if ends[0] <= ends[1] else None


def limited_by_number(is_low: bool) -> Maker:
    """The larger of x and one number, which is its low limit, or the smaller of both."""

    def make(node: OnnxNode, model: OnnxModel) -> Steps:
        numbers = {name: model.constant(name) for name in node.inputs if model.is_constant(name)}
        arrays = [name for name in node.inputs if name not in numbers]
        if len(node.inputs) != 2 or len(arrays) != 1:
            return None
        (number,), shape = numbers.values(), model.shape(arrays[0])
        if number is None or number.size != 1 or shape is None or number.ndim > len(shape):
            return None
        limit = float(number.reshape(-1)[0])
        if math.isnan(limit):
            return None
        ends = (limit, math.inf) if is_low else (-math.inf, limit)
        return [Elementwise(node.name, (arrays[0],), node.outputs[0], "identity", Activation("clip", *ends))]

    return make


def leaky_relu(node: OnnxNode, model: OnnxModel) -> Steps:
    return activated_by(Activation("leaky_relu", float(node.attributes.get("alpha", 0.01))))(node, model)


def prelu(node: OnnxNode, model: OnnxModel) -> Steps:
    """Of one slope for all channels, or of one for each."""
    slopes, x = model.constant(node.inputs[1]), model.shape(node.inputs[0])
    if slopes is None or not slopes.size or x is None or slopes.ndim > len(x):
        return None
    if (slopes != slopes.reshape(-1)[0]).any():
        return _with_array(node, node.inputs[0], slopes, x, "slope")
    return activated_by(Activation("leaky_relu", float(slopes.reshape(-1)[0])))(node, model)


def gelu(node: OnnxNode, model: OnnxModel) -> Steps:
    tanh = node.attributes.get("approximate", b"none") == b"tanh"
    return activated_by(Activation("gelu_tanh" if tanh else "gelu"))(node, model)


def function(node: OnnxNode, model: OnnxModel) -> Steps:
    """Of each element by itself; the powers that need no logarithm are among them."""
    x, name = node.inputs[0], FUNCTIONS.get(node.op)
    if node.op == "Pow":
        exponent = model.number(node.inputs[1])
        name = {0.5: "sqrt", -1.0: "reciprocal"}.get(exponent or 0.0)
        if exponent in (2, 3, 4):
            return _whole_power(node, int(exponent))
    return None if name is None else [ElementFunction(node.name, (x,), node.outputs[0], name)]


def _whole_power(node: OnnxNode, exponent: int) -> list[Step]:
    """The power 2, 3 or 4, by products."""
    x, y = node.inputs[0], node.outputs[0]
    square = y if exponent == 2 else f"{y}/square"
    steps: list[Step] = [Elementwise(node.name, (x, x), square, "multiply")]
    if exponent > 2:
        steps.append(Elementwise(node.name, (square, x if exponent == 3 else square), y, "multiply"))
    return steps


def elu(node: OnnxNode, model: OnnxModel) -> Steps:
    """Elu, and Selu with its scale."""
    named = NAMED["elu" if node.op == "Elu" else "selu"]
    alpha, scale = (
        float(node.attributes.get(k, d)) for k, d in zip(("alpha", "gamma"), named[1:], strict=True)
    )
    return activated_by(Activation("elu", alpha, scale))(node, model)


def hard_sigmoid(node: OnnxNode, model: OnnxModel) -> Steps:
    """A scale and a shift, and all between 0 and 1."""
    alpha, beta = node.attributes.get("alpha", 0.2), node.attributes.get("beta", 0.5)
    y = f"{node.outputs[0]}/scaled"
    scaled = _scaled(node, model, node.inputs[0], y, np.array([alpha]), np.array([beta]))
    if scaled is None:
        return None
    return [*scaled, Elementwise(node.name, (y,), node.outputs[0], "identity", Activation("clip", 0.0, 1.0))]


def batch_norm(node: OnnxNode, model: OnnxModel) -> Steps:
    """Its running mean and variance: a scale and a shift of each channel."""
    arrays = [model.constant(name) for name in node.inputs[1:5]]
    if len(arrays) < 4 or len(node.outputs) > 1 or node.attributes.get("training_mode", 0):
        return None
    if any(array is None for array in arrays):
        return None
    gamma, beta, mean, variance = (np.asarray(array, np.float64) for array in arrays)
    scale = gamma / np.sqrt(variance + node.attributes.get("epsilon", 1e-5))
    return _scaled(node, model, node.inputs[0], node.outputs[0], scale, beta - mean * scale)


def arithmetic(node: OnnxNode, model: OnnxModel) -> Steps:
    """Add, Sub, Mul, Div of two values, or of one and a constant."""
    if len(node.inputs) != 2:
        return None
    a, b = node.inputs
    known = [model.constant(name) if model.is_constant(name) else None for name in node.inputs]
    if known[0] is not None or known[1] is not None:
        return _with_constant(node, model, known)
    first, second = model.shape(a), model.shape(b)
    if first is None or second is None or len(first) != len(second):
        return None
    operation = OPERATIONS[node.op]
    if first == second or _same(model, a, b):
        return [Elementwise(node.name, (a, b), node.outputs[0], operation)]
    for one, other in ((a, b), (b, a)) if operation in ("add", "multiply") else ((a, b),):
        if _is_of_each_map(model, one, other):
            by_map = "shift" if operation == "add" else operation
            return [Elementwise(node.name, (one, other), node.outputs[0], by_map)]
    return _broadcast(node, model)


def _broadcast(node: OnnxNode, model: OnnxModel) -> Steps:
    """Of two arrays of which one has the shape of the result."""
    (a, b), operation = node.inputs, OPERATIONS[node.op]
    first, second = model.tried_shape(a) or (), model.tried_shape(b) or ()
    if len(first) < 2 or not all(isinstance(n, int) for n in (*first, *second)):
        return None
    steps: list[Step] = []
    if _spans(second, first) and second != first:
        if operation in ("subtract", "divide"):  # -b + a, or 1 / b times a
            inverse = f"{node.outputs[0]}/inverse"
            steps.append(ElementFunction(node.name, (b,), inverse, INVERSE[operation]))
            b, operation = inverse, {"subtract": "add", "divide": "multiply"}[operation]
        a, b = b, a
    elif not _spans(first, second):
        return None
    operation = "shift" if operation == "add" else operation
    return [*steps, Elementwise(node.name, (a, b), node.outputs[0], operation, broadcasts=True)]


def _spans(full: DynamicShape, part: DynamicShape) -> bool:
    """Whether an array of one shape can be broadcast to the other."""
    return len(full) == len(part) and all(own in (1, n) for n, own in zip(full, part, strict=True))


def _same(model: OnnxModel, a: str, b: str) -> bool:
    tried = model.tried_shape(a)
    return tried is not None and all(isinstance(n, int) for n in tried) and tried == model.tried_shape(b)


def _is_of_each_map(model: OnnxModel, x: str, numbers: str) -> bool:
    """Whether there is one number (N, C, 1, 1) for each map of x."""
    maps, shape = model.tried_shape(x), model.tried_shape(numbers)
    if maps is None or shape is None or len(shape) < 3 or {*shape[2:]} != {1}:
        return False
    return maps[:2] == shape[:2] and all(isinstance(n, int) for n in shape)


def _with_constant(node: OnnxNode, model: OnnxModel, known: list[np.ndarray | None]) -> Steps:
    right = known[1] is not None
    x, constant = node.inputs[not right], known[right]
    if constant is None or constant.dtype != np.float32 or model.dtype(x) != "float32":
        return None
    shape = model.shape(x)
    if shape is None or constant.ndim > len(shape):
        return None
    if node.op == "Div" and not right:  # constant / x
        inverse = f"{node.outputs[0]}/inverse"
        made = _with_array(node, inverse, constant, shape, "multiply")
        return made and [ElementFunction(node.name, (x,), inverse, INVERSE["divide"]), *made]
    return _scaled_by(node, model, x, constant, shape, right)


def _scaled_by(
    node: OnnxNode, model: OnnxModel, x: str, constant: np.ndarray, shape: DynamicShape, right: bool
) -> Steps:
    """x of a shape and a constant, to the right of it or to the left."""
    sizes = (1,) * (len(shape) - constant.ndim) + constant.shape
    spread = constant.size == 1 and (len(shape) < 2 or isinstance(shape[1], int))
    last = not spread and len(shape) > 2 and sizes[:-1] == (1,) * (len(shape) - 1)
    if constant.size != 1 and not last and (sizes[0] != 1 or any(n != 1 for n in sizes[2:])):
        if not right and node.op == "Sub":  # constant - x
            negative = f"{node.outputs[0]}/negative"
            made = _with_array(node, negative, constant, shape, "shift")
            return made and [ElementFunction(node.name, (x,), negative, INVERSE["subtract"]), *made]
        operation = "shift" if node.op in ("Add", "Sum") else OPERATIONS[node.op]
        return _with_array(node, x, constant, shape, operation)
    numbers = constant.reshape(-1).astype(np.float64)
    scale, shift = np.ones(1), np.zeros(1)
    if node.op in ("Add", "Sum"):
        shift = numbers
    elif node.op == "Sub":
        scale, shift = (scale, -numbers) if right else (-scale, numbers)
    elif node.op == "Mul":
        scale = numbers
    elif not numbers.all():
        return None
    else:
        scale = 1 / numbers
    if last:
        return by_rows(
            node, model, lambda of, y, ndim: _scaled_maps(node, of, y, scale, shift, shape[-1], ndim)
        )
    return _scaled(node, model, x, node.outputs[0], scale, shift)


def _with_array(node: OnnxNode, x: str, constant: np.ndarray, shape: DynamicShape, operation: str) -> Steps:
    """x of a shape and a constant that spans some of its dimensions."""
    own = constant.reshape((1,) * (len(shape) - constant.ndim) + constant.shape)
    if len(shape) < 2 or not _spans(shape, own.shape):
        return None
    return [Elementwise(node.name, (x,), node.outputs[0], operation, constant=in_memory(own))]


def _scaled(node: OnnxNode, model: OnnxModel, x: str, y: str, scale: np.ndarray, shift: np.ndarray) -> Steps:
    """y = scale * x + shift, with one number or one for each channel."""
    shape = model.shape(x)
    if shape is not None and len(shape) == 2:
        pixels = f"{y}/pixels"
        made = _scaled_maps(node, pixels, f"{y}/scaled", scale, shift, shape[1], 2)
        before = View(node.name, (x,), pixels, (0, -1, 1, 1))
        return made and [before, *made, View(node.name, (f"{y}/scaled",), y, (0, -1))]
    if shape is None or not 3 <= len(shape) <= 5:
        return None
    return _scaled_maps(node, x, y, scale, shift, shape[1], len(shape) - 2)


def _scaled_maps(
    node: OnnxNode, x: str, y: str, scale: np.ndarray, shift: np.ndarray, channels: int | str, ndim: int
) -> Steps:
    """The same, of maps of so many channels."""
    if not isinstance(channels, int) or not channels:
        return None
    try:
        by, plus = (np.broadcast_to(np.float32(v).reshape(-1), channels) for v in (scale, shift))
    except ValueError:  # a constant that makes more channels of one
        return None
    return [channel_scaling(node.name, x, y, by, plus, ndim)]


ELEMENTWISE: dict[str, Maker] = {
    "Relu": activated_by(Activation("relu")),
    "Sigmoid": activated_by(Activation("sigmoid")),
    "HardSwish": activated_by(Activation("hard_swish")),
    "HardSigmoid": hard_sigmoid,
    "Clip": clip,
    "Max": limited_by_number(is_low=True),
    "Min": limited_by_number(is_low=False),
    "LeakyRelu": leaky_relu,
    "PRelu": prelu,
    "Gelu": gelu,
    "Tanh": activated_by(Activation("tanh")),
    "Elu": elu,
    "Selu": elu,
    "Softplus": activated_by(Activation("softplus")),
    "Mish": activated_by(Activation("mish")),
    "Add": arithmetic,
    "Sum": arithmetic,
    "Sub": arithmetic,
    "Mul": arithmetic,
    "Div": arithmetic,
    "BatchNormalization": batch_norm,
    "Pow": function,
    **dict.fromkeys(FUNCTIONS, function),
}
