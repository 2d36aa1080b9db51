"""Models in QDQ form: DequantizeLinear, Conv and QuantizeLinear as one QLinearConv.

Such a model says of each tensor how it is rounded, and computes in float32 between the roundings. ONNX
Runtime fuses each convolution with the nodes around it when it loads the model (`graph_optimization_level`
from ORT_ENABLE_EXTENDED on), so that what it computes, to the bit, is the integer convolution.

Source: onnxruntime.ai/docs/performance/model-optimizations/quantization.html (QDQ form).
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import numpy_helper

from convalgos.core.element_types import INTEGERS
from convalgos.network.onnx_reader.order import read_by

ONNX_DOMAINS = ("", "ai.onnx")
BIAS_SCALES = 1e-2  # by which the scale of a bias may be off that of the sums


class LinearTensor(NamedTuple):
    """A tensor of integers."""

    names: tuple[str, str, str]  # its own, and those of scale and zero point
    scale: np.ndarray
    zero_point: np.ndarray
    axis: int


def fuse_quantized(model: Any) -> Any:
    """A copy of a model whose convolutions of dequantised tensors, quantised again, are QLinearConv.

    A convolution is fused where x, w and y are int8 or uint8 with constant scales and zero points, of x and
    y one number each, of w one or one for each filter; where a bias is int32 with the scale
    x_scale * w_scale, or constant float32, which is then rounded to that; and where nothing else reads the
    result of Conv. A Relu between Conv and QuantizeLinear goes where the zero point of y is the least
    integer, which clips as well.
    All other nodes stay as they are, those that nothing reads any more go.

    ONNX Runtime fuses on the CPUs of PCs where x and y are uint8, and where all are int8 with the session's
    option session.qdqisint8allowed; other combinations it computes in float32.

    Args:
        model: an `onnx.ModelProto`; the nodes of its main graph are looked at.

    Example:
        >>> model = fuse_quantized(onnx.load("model_qdq.onnx"))  # doctest: +SKIP
        >>> evaluator = ReferenceEvaluator(model, new_ops=ops())  # doctest: +SKIP
    """
    fused = onnx.ModelProto()
    fused.CopyFrom(model)
    _Fusion(fused.graph).run()
    return fused


class _Fusion:
    """A graph that is changed in place."""

    def __init__(self, graph: Any):
        self.graph = graph
        self.made = {name: node for node in graph.node for name in node.output if name}
        self.tensors = {tensor.name: tensor for tensor in graph.initializer}
        for name, node in self.made.items():
            if _is(node, "Constant") and node.attribute and node.attribute[0].name == "value":
                self.tensors[name] = node.attribute[0].t
        self.arrays: dict[str, np.ndarray | None] = {}  # of tensors that were looked at
        self.readers = Counter(_read(graph.node))
        self.readers.update(output.name for output in graph.output)
        self.next_node = {name: node for node in graph.node for name in node.input if name}  # of one reader

    def run(self) -> None:
        last = {}  # name of the last node of a fused group -> QLinearConv
        gone = set()
        for node in self.graph.node:
            if _is(node, "Conv") and node.output and (found := self._fused(node)):
                made, quantize, between = found
                last[quantize.output[0]] = made
                gone |= {node.output[0], *between}
        first = [node.output[0] if node.output else "" for node in self.graph.node]
        nodes = [last.get(n, node) for n, node in zip(first, self.graph.node, strict=True) if n not in gone]
        del self.graph.node[:]
        self.graph.node.extend(_needed(nodes, {output.name for output in self.graph.output}))

    def _fused(self, conv: Any) -> tuple[Any, Any, list[str]] | None:
        """(QLinearConv, the QuantizeLinear whose place it takes, outputs that go), or None."""
        x, w = (self._dequantized(name) for name in conv.input[:2])
        quantize, between = self._quantizes(conv)
        if x is None or w is None or quantize is None:
            return None
        y = self._tensor_of(quantize)
        if y is None or x.scale.size != 1 or y.scale.size != 1:
            return None
        if w.scale.size > 1 and w.axis != 0:
            return None
        if between and y.zero_point != np.iinfo(y.zero_point.dtype).min:
            return None
        bias = []
        if len(conv.input) > 2 and conv.input[2]:
            bias = self._bias(conv, x.scale * w.scale)
            if not bias:
                return None
        names = [*x.names, *w.names, *y.names[1:], *bias]
        made = onnx.helper.make_node("QLinearConv", names, list(quantize.output), conv.name or quantize.name)
        made.attribute.extend(conv.attribute)
        return made, quantize, between

    def _quantizes(self, conv: Any) -> tuple[Any, list[str]]:
        """The QuantizeLinear that alone reads a convolution, perhaps after a Relu, and what goes with it."""
        between: list[str] = []
        name = conv.output[0]
        while self.readers[name] == 1 and name in self.next_node:
            node = self.next_node[name]
            if _is(node, "QuantizeLinear"):
                return node, between
            if between or not _is(node, "Relu"):
                break
            name = node.output[0]
            between.append(name)
        return None, []

    def _dequantized(self, name: str) -> LinearTensor | None:
        """What a tensor is dequantised from, where that is of 8 bits."""
        node = self.made.get(name)
        return self._tensor_of(node) if node is not None and _is(node, "DequantizeLinear") else None

    def _tensor_of(self, node: Any) -> LinearTensor | None:
        """That of a QuantizeLinear or DequantizeLinear with constant numbers of 8 bits."""
        if len(node.input) < 3:
            return None
        scale, zero_point = (self._constant(name) for name in node.input[1:3])
        if scale is None or zero_point is None:
            return None
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        if zero_point.dtype.name not in INTEGERS or scale.dtype != np.float32:
            return None
        if scale.shape != zero_point.shape or scale.ndim > 1 or attributes.get("block_size"):
            return None
        tensor, of_scale, of_zero_point = node.input[:3]
        return LinearTensor((tensor, of_scale, of_zero_point), scale, zero_point, attributes.get("axis", 1))

    def _constant(self, name: str) -> np.ndarray | None:
        """A constant tensor that lies in the model."""
        if name not in self.arrays:
            tensor = self.tensors.get(name)
            if tensor is None or tensor.data_location == onnx.TensorProto.EXTERNAL or not tensor.data_type:
                self.arrays[name] = None
            else:
                self.arrays[name] = numpy_helper.to_array(tensor)
        return self.arrays[name]

    def _bias(self, conv: Any, scale: np.ndarray) -> list[str]:
        """The name of the int32 bias, whose scale is that of the sums; none where it has not this form."""
        name = conv.input[2]
        node = self.made.get(name)
        if node is not None and _is(node, "DequantizeLinear"):
            given = self._constant(node.input[1])
            zero_point: Any = self._constant(node.input[2]) if len(node.input) > 2 and node.input[2] else 0
            if given is None or zero_point is None or np.any(zero_point):
                return []
            if given.size not in (1, scale.size) and scale.size > 1:
                return []
            return [node.input[0]] if np.allclose(given, scale, rtol=BIAS_SCALES, atol=0) else []
        bias = self._constant(name)
        if bias is None or bias.dtype != np.float32:
            return []
        rounded = np.clip(np.rint(bias.astype(np.float32) / scale), -(2.0**31), 2.0**31 - 1).astype(np.int32)
        self.graph.initializer.append(numpy_helper.from_array(rounded, f"{conv.output[0]}_bias_quantized"))
        return [self.graph.initializer[-1].name]


def _is(node: Any, operator: str) -> bool:
    return node.op_type == operator and node.domain in ONNX_DOMAINS


def _read(nodes: Any) -> list[str]:
    """Names of all that nodes read, those of the bodies of If, Loop and Scan too."""
    return [name for node in nodes for name in read_by(node)]


def _needed(nodes: list[Any], wanted: set[str]) -> list[Any]:
    """The nodes, in their order, without DequantizeLinear that nothing reads."""
    wanted = wanted | set(_read(nodes))
    return [n for n in nodes if not _is(n, "DequantizeLinear") or wanted & set(n.output)]
