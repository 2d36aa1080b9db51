"""What a node of an ONNX model computes, as steps of a network; nodes that are none of ours are foreign.

Each function below takes a node and gives its steps, or None where this library does not compute what it
says: other types than float32, filters that are not constant, attributes out of the ordinary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from convalgos.core.epilogue import Activation
from convalgos.network.graph import (
    Concatenation,
    Convolution,
    Elementwise,
    Foreign,
    Pooling,
    Step,
    View,
)
from convalgos.network.onnx_model import OnnxModel, OnnxNode

Steps = list[Step] | None
LARGEST = float(np.finfo(np.float32).max)
PADDED = {"NOTSET", "VALID", "SAME_UPPER"}  # of auto_pad


def steps_of_node(node: OnnxNode, model: OnnxModel) -> list[Step]:
    """The steps of a node; its own name is that of the last one's output."""
    make = MAKERS.get(node.op)
    if make is not None and all(model.dtype(name) == "float32" for name in node.inputs[:1]):
        made = make(node, model)
        if made is not None:
            return made
    return [
        Foreign(node.name, tuple(n for n in node.inputs if n), node.outputs[0], None, tuple(node.outputs[1:]))
    ]


def _rank(node: OnnxNode, model: OnnxModel) -> int:
    """Dimensions of the first input; 0 where they are not known."""
    return len(model.shape(node.inputs[0]) or ())


def _conv(node: OnnxNode, model: OnnxModel) -> Steps:
    w, bias = model.constant(node.inputs[1]), None
    if len(node.inputs) > 2 and node.inputs[2]:
        bias = model.constant(node.inputs[2])
        if bias is None:
            return None
    padding = _padding(node, 0 if w is None else w.ndim - 2)
    if w is None or padding is None or not 3 <= w.ndim <= 5:
        return None
    given, ones = node.attributes.get, (1,) * (w.ndim - 2)
    return [
        Convolution(
            node.name, (node.inputs[0],), node.outputs[0], w, bias, tuple(given("strides", ones)), padding,
            tuple(given("dilations", ones)), given("group", 1),
        )
    ]  # fmt: skip


def _padding(node: OnnxNode, ndim: int) -> Any:
    """The padding of a window; None where it is of a kind that steps do not know."""
    kind = node.attributes.get("auto_pad", b"NOTSET").decode()
    if kind not in PADDED:
        return None
    if kind != "NOTSET":
        return "valid" if kind == "VALID" else "same"
    pads = node.attributes.get("pads", (0,) * (2 * ndim))
    return tuple(zip(pads[:ndim], pads[ndim:], strict=True)) if min(pads, default=0) >= 0 else None


def _activation(activation: Activation) -> Callable[[OnnxNode, OnnxModel], Steps]:
    def make(node: OnnxNode, model: OnnxModel) -> Steps:
        return [Elementwise(node.name, (node.inputs[0],), node.outputs[0], "identity", activation)]

    return make


def _clip(node: OnnxNode, model: OnnxModel) -> Steps:
    ends = [float(node.attributes.get("min", -LARGEST)), float(node.attributes.get("max", LARGEST))]
    for i, name in enumerate(node.inputs[1:3]):
        if name:
            value = model.constant(name)
            if value is None or value.size != 1:
                return None
            ends[i] = float(value.reshape(-1)[0])
    low, high = max(ends[0], -LARGEST), min(ends[1], LARGEST)
    if low > high:
        return None
    return _activation(Activation("clip", low, high))(node, model)


def _leaky_relu(node: OnnxNode, model: OnnxModel) -> Steps:
    return _activation(Activation("leaky_relu", float(node.attributes.get("alpha", 0.01))))(node, model)


def _gelu(node: OnnxNode, model: OnnxModel) -> Steps:
    tanh = node.attributes.get("approximate", b"none") == b"tanh"
    return _activation(Activation("gelu_tanh" if tanh else "gelu"))(node, model)


def _add(node: OnnxNode, model: OnnxModel) -> Steps:
    if len(node.inputs) != 2 or any(model.is_constant(n) for n in node.inputs):
        return None
    shapes = [model.shape(name) for name in node.inputs]
    if None in shapes or shapes[0] != shapes[1]:
        return None
    return [Elementwise(node.name, tuple(node.inputs), node.outputs[0], "add")]


def _global_pool(reduction: str) -> Callable[[OnnxNode, OnnxModel], Steps]:
    def make(node: OnnxNode, model: OnnxModel) -> Steps:
        if not 3 <= _rank(node, model) <= 5:
            return None
        return [Pooling(node.name, (node.inputs[0],), node.outputs[0], reduction)]

    return make


def _pool(reduction: str) -> Callable[[OnnxNode, OnnxModel], Steps]:
    def make(node: OnnxNode, model: OnnxModel) -> Steps:
        given = node.attributes.get
        kernel = tuple(given("kernel_shape", ()))
        ones, padding = (1,) * len(kernel), _padding(node, len(kernel))
        if not 1 <= len(kernel) <= 3 or padding is None or len(node.outputs) > 1:
            return None
        return [
            Pooling(
                node.name, (node.inputs[0],), node.outputs[0], reduction, kernel,
                tuple(given("strides", ones)), padding, tuple(given("dilations", ones)),
                bool(given("ceil_mode", 0)), bool(given("count_include_pad", 0)),
            )
        ]  # fmt: skip

    return make


def _flatten(node: OnnxNode, model: OnnxModel) -> Steps:
    if node.attributes.get("axis", 1) != 1:
        return None
    return [View(node.name, (node.inputs[0],), node.outputs[0], (0, -1))]


def _gemm(node: OnnxNode, model: OnnxModel) -> Steps:
    """A product of (N, C) with a constant matrix is a convolution of maps of one pixel."""
    given = node.attributes.get
    w = model.constant(node.inputs[1])
    if w is None or w.ndim != 2 or w.dtype != np.float32 or given("transA", 0) or _rank(node, model) != 2:
        return None
    w = w if given("transB", 0) else w.T  # (K, C)
    w = w * np.float32(given("alpha", 1.0)) if given("alpha", 1.0) != 1 else w
    bias = None
    if len(node.inputs) > 2 and node.inputs[2]:
        bias = model.constant(node.inputs[2])
        if bias is None or math.prod(bias.shape[:-1]) != 1:
            return None
        bias = np.broadcast_to(bias.reshape(-1), len(w)) * np.float32(given("beta", 1.0))
    return _linear(node, w, bias)


def _matmul(node: OnnxNode, model: OnnxModel) -> Steps:
    w = model.constant(node.inputs[1])
    if w is None or w.ndim != 2 or w.dtype != np.float32 or _rank(node, model) != 2:
        return None
    return _linear(node, w.T, None)


def _linear(node: OnnxNode, w: np.ndarray, bias: np.ndarray | None) -> Steps:
    """w (K, C) times each row of (N, C), as steps."""
    x, y = node.inputs[0], node.outputs[0]
    before, after = f"{y}/maps", f"{y}/pixels"
    filters = np.ascontiguousarray(w)[:, :, None, None]  # (K, C, 1, 1)
    return [
        View(node.name, (x,), before, (0, -1, 1, 1)),
        Convolution(node.name, (before,), after, filters, bias, (1, 1), ((0, 0), (0, 0)), (1, 1)),
        View(node.name, (after,), y, (0, -1)),
    ]


def _concat(node: OnnxNode, model: OnnxModel) -> Steps:
    rank = _rank(node, model)
    if rank < 2 or node.attributes["axis"] not in (1, 1 - rank) or any(map(model.is_constant, node.inputs)):
        return None
    if any(model.dtype(name) != "float32" for name in node.inputs):
        return None
    return [Concatenation(node.name, tuple(node.inputs), node.outputs[0])]


MAKERS: dict[str, Callable[[OnnxNode, OnnxModel], Steps]] = {
    "Conv": _conv,
    "Relu": _activation(Activation("relu")),
    "Sigmoid": _activation(Activation("sigmoid")),
    "HardSwish": _activation(Activation("hard_swish")),
    "Clip": _clip,
    "LeakyRelu": _leaky_relu,
    "Gelu": _gelu,
    "Add": _add,
    "Sum": _add,
    "GlobalAveragePool": _global_pool("mean"),
    "GlobalMaxPool": _global_pool("max"),
    "MaxPool": _pool("max"),
    "AveragePool": _pool("mean"),
    "Flatten": _flatten,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Concat": _concat,
}
