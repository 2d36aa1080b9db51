"""Operators on integers spelled out: QLinearConv as DequantizeLinear, Conv and QuantizeLinear, and so on.

Both forms in which ONNX Runtime quantises models are then one, whose values' shapes ONNX can infer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from convalgos.network.onnx_reader.inference import opset_of
from convalgos.network.onnx_reader.messages import array_of, node_of, tensor_of

MICROSOFT = "com.microsoft"
CHANNELS_LAST = "channels_last"  # an attribute of pooling


def spelled_out(proto: Any) -> Any:
    """A ModelProto without operators on integers that there are on float32; itself where it has none."""
    if not any(node.op_type in SPELLINGS and _is_known(node) for node in proto.graph.node):
        return proto
    found = type(proto)()
    found.CopyFrom(proto)
    speller = _Speller(found)
    nodes = [made for node in proto.graph.node for made in speller.of(node)]
    del found.graph.node[:]
    found.graph.node.extend(nodes)
    return found


class _Speller:
    def __init__(self, proto: Any):
        self._graph = proto.graph
        self._tensors = {t.name: t for t in proto.graph.initializer}
        self._has_axes = opset_of(proto) >= 13  # of DequantizeLinear

    def of(self, node: Any) -> Iterator[Any]:
        """The nodes in the place of one."""
        if node.op_type not in SPELLINGS or not _is_known(node) or not self._may_be_spelled(node):
            yield node
            return
        yield from SPELLINGS[node.op_type](self, node)

    def _may_be_spelled(self, node: Any) -> bool:
        """Whether DequantizeLinear can have the scales of its filter, or this library reads them."""
        return self._has_axes or node.op_type not in OF_CHANNELS or node.input[4] in self._tensors

    def op(self, node: Any, op: str, inputs: list[str], drops: tuple[str, ...] = ()) -> tuple[Any, str]:
        """(an operator on float32 with a node's attributes, its output)."""
        kept = [a for a in node.attribute if a.name not in drops]
        made = node_of(op, inputs, [f"{node.output[0]}/float"], node.name or node.output[0])
        made.attribute.extend(kept)
        return made, made.output[0]

    def dequantize(self, node: Any, number: int, inputs: tuple[str, ...], axis: int | None = None) -> Any:
        """DequantizeLinear of (integers, scale, zero point)."""
        name = f"{node.output[0]}/float{number}"
        scale = self._tensors.get(inputs[1])
        of_all = axis is None or (scale is not None and math.prod(scale.dims) == 1)
        of_axis = {} if axis is None or of_all else {"axis": axis}
        return node_of("DequantizeLinear", [n for n in inputs if n], [name], name, **of_axis)

    def quantize(self, node: Any, x: str, scale: str, zero: str) -> Any:
        inputs = [x, scale, *([zero] if zero else [])]
        return node_of("QuantizeLinear", inputs, [node.output[0]], f"{node.output[0]}/quantized")

    def product(self, name: str, a: str, b: str) -> str | None:
        """A constant: the product of two scales."""
        if a not in self._tensors or b not in self._tensors:
            return None
        by = array_of(self._tensors[a]).reshape(-1)[:1]
        value = (by * array_of(self._tensors[b])).astype(np.float32)
        self._graph.initializer.append(tensor_of(value, name))
        return name


def _conv(s: _Speller, node: Any) -> Iterator[Any]:
    x, w, y = node.input[0:3], node.input[3:6], node.input[6:8]
    made = [s.dequantize(node, 0, tuple(x)), s.dequantize(node, 1, tuple(w), axis=0)]
    if len(node.input) > 8 and node.input[8]:
        scale = s.product(f"{node.output[0]}/scale", x[1], w[1])
        if scale is None:
            yield node
            return
        made.append(s.dequantize(node, 2, (node.input[8], scale), axis=0))
    op, value = s.op(node, "Conv", [n.output[0] for n in made])
    yield from (*made, op, s.quantize(node, value, *y))


def _gemm(s: _Speller, node: Any) -> Iterator[Any]:
    given = [*node.input, "", "", ""][:9]
    a, b, bias, y = given[0:3], given[3:6], given[6], given[7:9]
    turned = next((attribute.i for attribute in node.attribute if attribute.name == "transB"), 0)
    made = [s.dequantize(node, 0, tuple(a)), s.dequantize(node, 1, tuple(b), axis=0 if turned else 1)]
    scale = s.product(f"{node.output[0]}/scale", a[1], b[1]) if bias else ""
    alpha = next((attribute.f for attribute in node.attribute if attribute.name == "alpha"), 1.0)
    if scale is None or alpha != 1:
        yield node
        return
    if bias:
        made.append(s.dequantize(node, 2, (bias, scale), axis=0))
    op, value = s.op(node, "Gemm", [n.output[0] for n in made])
    if not y[0]:  # float32, as nothing quantises it
        op.output[0] = node.output[0]
        yield from (*made, op)
        return
    yield from (*made, op, s.quantize(node, value, *y))


def _matmul(s: _Speller, node: Any) -> Iterator[Any]:
    made = [
        s.dequantize(node, 0, tuple(node.input[0:3])),
        s.dequantize(node, 1, tuple(node.input[3:6]), axis=1),
    ]
    op, value = s.op(node, "MatMul", [n.output[0] for n in made])
    yield from (*made, op, s.quantize(node, value, *node.input[6:8]))


def _binary(op_type: str) -> Callable[[_Speller, Any], Iterator[Any]]:
    def spell(s: _Speller, node: Any) -> Iterator[Any]:
        made = [s.dequantize(node, i, tuple(node.input[3 * i : 3 * i + 3])) for i in range(2)]
        op, value = s.op(node, op_type, [n.output[0] for n in made])
        yield from (*made, op, s.quantize(node, value, *[*node.input, ""][6:8]))

    return spell


def _unary(op_type: str, drops: tuple[str, ...] = ()) -> Callable[[_Speller, Any], Iterator[Any]]:
    def spell(s: _Speller, node: Any) -> Iterator[Any]:
        if any(a.name == CHANNELS_LAST and a.i for a in node.attribute):
            yield node
            return
        made = s.dequantize(node, 0, tuple(node.input[0:3]))
        op, value = s.op(node, op_type, [made.output[0]], drops)
        yield from (made, op, s.quantize(node, value, *[*node.input, ""][3:5]))

    return spell


def _concat(s: _Speller, node: Any) -> Iterator[Any]:
    parts = [tuple(node.input[i : i + 3]) for i in range(2, len(node.input), 3)]
    made = [s.dequantize(node, i, part) for i, part in enumerate(parts)]
    op, value = s.op(node, "Concat", [n.output[0] for n in made])
    yield from (*made, op, s.quantize(node, value, *node.input[0:2]))


SPELLINGS: dict[str, Callable[[_Speller, Any], Iterator[Any]]] = {
    "QLinearConv": _conv,
    "QLinearMatMul": _matmul,
    "QGemm": _gemm,
    "QLinearAdd": _binary("Add"),
    "QLinearMul": _binary("Mul"),
    "QLinearConcat": _concat,
    "QLinearSigmoid": _unary("Sigmoid"),
    "QLinearLeakyRelu": _unary("LeakyRelu"),
    "QLinearGlobalAveragePool": _unary("GlobalAveragePool", (CHANNELS_LAST,)),
    "QLinearAveragePool": _unary("AveragePool", (CHANNELS_LAST,)),
}
OF_CHANNELS = ("QLinearConv", "QLinearMatMul", "QGemm")  # whose filters may have a scale for each channel
OF_ONNX = ("QLinearConv", "QLinearMatMul")


def _is_known(node: Any) -> bool:
    """Whether it is the operator of its name that is spelled out."""
    return node.domain == MICROSOFT or (node.op_type in OF_ONNX and node.domain in ("", "ai.onnx"))
