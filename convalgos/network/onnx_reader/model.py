"""An ONNX model as its reader sees it: nodes, constants, and what is known of the shapes of values.

Where a model has nodes that compute constants, these are folded first (`folding`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from types import MappingProxyType
from typing import Any

import numpy as np

from convalgos.core.cached_attribute import cached_attribute
from convalgos.network.onnx_reader.dequantized import DequantizedConstants
from convalgos.network.onnx_reader.messages import (
    array_of,
    constant_tensor,
    messages,
    model_with,
    node_attributes,
    node_of,
    tensor_of,
    value_info,
    without_shape,
)
from convalgos.network.onnx_reader.order import (
    captured_by,
    squeezed_as_are,
    without_identities,
)
from convalgos.network.onnx_reader.runtime_types import types_by_runtime
from convalgos.network.onnx_reader.sizes import ONNX_NAMES, KnownValues
from convalgos.network.onnx_reader.stand_ins import with_stand_ins
from convalgos.network.onnx_reader.value_types import DynamicShape, ValueType, types_of

OF_SHAPES = ("Shape", "Size")  # nodes whose values the optimiser may know, though their inputs vary
# Sizes of inputs that a model leaves open, to tell which of its values are of one shape: those of pictures,
# and of lines of text, where a model takes these only
TRIED = (320, 256), (48, 320), (32, 320)
BATCHES = (2, 7)  # of images, where a model leaves open how many
WITH_AXES = 13  # opset from which on DequantizeLinear takes a scale for each channel
LARGE = 1 << 10  # elements from which on the numbers of a constant are no sizes


@dataclass(eq=False)
class OnnxNode:
    """A node of a model; `protos` are those of the model that it stands for, more than one after patterns."""

    op: str  # with the domain in front where it is not ONNX's own
    name: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any] = field(default_factory=dict)
    protos: tuple[Any, ...] = ()


class OnnxModel:
    """The main graph of a model.

    Args:
        proto: an `onnx.ModelProto` with all its data.
        inputs: names of its inputs, where these are not all that have no value in it.
        weights: constants whose tensors have no data.
    """

    def __init__(
        self,
        proto: Any,
        inputs: tuple[str, ...] | None = None,
        weights: Mapping[str, np.ndarray] = MappingProxyType({}),
    ):
        self.proto = proto
        self._tensors = {t.name: t for t in proto.graph.initializer}
        self._arrays: dict[str, np.ndarray] = {**weights}
        self._weights = weights
        self.dequantized = DequantizedConstants()
        nodes: list[OnnxNode] = []
        for node in without_identities(proto.graph):
            attributes = node_attributes(node)
            op = node.op_type if node.domain in ONNX_NAMES else f"{node.domain}.{node.op_type}"
            if op == "Constant" and node.output[0] in weights:
                continue
            if op == "Constant" and (tensor := constant_tensor(node)) is not None:
                self._arrays[node.output[0]] = array_of(tensor)
                continue
            if self.dequantized.take(node, self.is_constant, self.constant):
                continue
            name = node.name or (node.output[0] if node.output else node.op_type)
            nodes.append(OnnxNode(op, name, list(node.input), list(node.output), attributes, (node,)))
        self.nodes = nodes
        free = tuple(v.name for v in proto.graph.input if v.name not in self._tensors)
        self.inputs = free if inputs is None else inputs
        self.outputs = tuple(v.name for v in proto.graph.output)
        self.opset = max((o.version for o in proto.opset_import if o.domain in ONNX_NAMES), default=1)

    def is_constant(self, name: str) -> bool:
        return name in self._tensors or name in self._arrays or name in self.dequantized.protos

    def constant(self, name: str) -> np.ndarray | None:
        """A constant value, or None."""
        if name not in self._arrays and name in self._tensors:
            self._arrays[name] = array_of(self._tensors[name])
        elif name not in self._arrays and name in self.dequantized.protos:
            self._arrays[name] = self.dequantized.array(name, self.constant)
        return self._arrays.get(name)

    def number(self, name: str) -> float | None:
        """A constant of one number."""
        array = self.constant(name) if self.is_constant(name) else None
        return float(array.reshape(-1)[0]) if array is not None and array.size == 1 else None

    def axes(self, node: OnnxNode) -> Sequence[int] | None:
        """Of a node that has them as an attribute, in later opsets as an input."""
        if len(node.inputs) > 1 and node.inputs[1]:
            array = self.constant(node.inputs[1])
            return None if array is None else [int(a) for a in array.reshape(-1)]
        return node.attributes.get("axes")

    def maker(self, name: str) -> OnnxNode | None:
        """The node that makes a value; None of inputs and constants."""
        return self._makers.get(name)

    @property
    def nodes(self) -> list[OnnxNode]:
        """In an order in which each reads what was written before it; patterns replace the list."""
        return self._nodes

    @nodes.setter
    def nodes(self, nodes: list[OnnxNode]) -> None:
        self._nodes = nodes
        self._makers = {name: node for node in nodes for name in node.outputs}
        self.followed: dict[str, bool] = {}  # whether a value follows from shapes, where it was asked

    def tensor(self, name: str) -> Any:
        """A constant value as a TensorProto of this name."""
        if name in self._arrays:
            return tensor_of(self._arrays[name], name)
        return self._tensors[name]

    def dequantizing(self, name: str) -> Any:
        """The NodeProto that dequantises a constant; None of other values, and in opsets in which it cannot
        have scales along an axis, where the constant is computed."""
        proto = self.dequantized.protos.get(name)
        if proto is not None and self.opset < WITH_AXES and any(a.name == "axis" for a in proto.attribute):
            self.constant(name)
            return None
        return proto

    def whole(self) -> Any:
        """A copy of the ModelProto, with the data of all its constants."""
        found = type(self.proto)()
        found.CopyFrom(self.proto)
        tensors = {tensor.name: tensor for tensor in found.graph.initializer}
        for node in found.graph.node:
            tensors |= zip(
                node.output, [a.t for a in node.attribute if node.op_type == "Constant"], strict=False
            )
        for name in tensors.keys() & self._weights.keys():
            tensors[name].CopyFrom(tensor_of(self._weights[name], name))
        return found

    def constant_node(self, name: str) -> OnnxNode:
        """A node that writes a constant which is an output of the model."""
        known = f"{name}/known"
        array = self.constant(name)
        assert array is not None
        self._arrays[known] = array
        proto = node_of("Identity", [known], [name])
        return OnnxNode("Identity", name, [known], [name], {}, (proto,))

    def node_before(self, node: OnnxNode, op: str, inputs: list[str], output: str) -> OnnxNode:
        """A node that makes an operand of a pattern."""
        return OnnxNode(op, node.name, inputs, [output], {}, (node_of(op, inputs, [output]),))

    def needs_folding(self) -> bool:
        """Whether a node computes what is constant, or what follows from shapes."""
        return any(
            node.op in OF_SHAPES or all(not name or self.is_constant(name) for name in node.inputs)
            for node in self.nodes
        )

    def captured(self) -> set[str]:
        """Values that the bodies of nodes read."""
        return {name for node in self.nodes for proto in node.protos for name in captured_by(proto)}

    @cached_attribute
    def types(self) -> dict[str, ValueType]:
        """Of each value for which they can be inferred, those of inputs included."""
        found = self._inferred({})
        made = [name for node in self.nodes for name in node.outputs if name]
        unknown = [name for name in made if name not in found or not found[name].dtype]
        if unknown:  # behind operators of others than ONNX, which let shapes be unknown further on
            unknown = [name for name in made if name in unknown or found[name].shape is None]
            more = types_by_runtime(self._skeleton({}), unknown)
            found |= {value.name: ValueType.told(value) for value in more}
        return found

    @cached_attribute
    def _types_tried(self) -> dict[str, ValueType]:
        """The same for inputs of fixed sizes: shapes that are equal then are held to be equal ever."""
        return self._tried_for(BATCHES[0])

    def _tried_for(self, images: int) -> dict[str, ValueType]:
        usual, *others = (self._filled(images, sizes) for sizes in TRIED)
        ways = [(given, True) for given in (usual, *others)] if others[0] != usual else []
        for given, alone in (*ways, (usual, False)):
            if found := self._inferred(given, alone):
                break
        if all(v.shape is not None and all(isinstance(n, int) for n in v.shape) for v in found.values()):
            return found
        known = KnownValues(skeleton := self._skeleton(given), {})  # which computes sizes of sizes
        for node in skeleton.graph.node:
            known.follow(node)
        for name, value in found.items():
            value.shape = known.shape(name) or value.shape
        return found

    def _filled(self, images: int, sizes: Sequence[int]) -> dict[str, tuple[int, ...]]:
        """The shapes of the inputs, with what they leave open filled in."""
        given, more = {}, cycle(sizes)
        for name in self.inputs:
            shape = self.types[name].shape or ()
            filled = [n if isinstance(n, int) else next(more) if i else images for i, n in enumerate(shape)]
            given[name] = tuple(filled)
        return given

    @cached_attribute
    def _of_any_batch(self) -> dict[str, tuple[int | None, ...]]:
        """Shapes where the inputs leave open how many images there are, and nothing else, by trying two
        batches: None for what differs between them. Empty where they leave more open."""
        shapes = [self.types[name].shape for name in self.inputs]
        if any(s is None or not s or not all(isinstance(n, int) for n in s[1:]) for s in shapes):
            return {}
        more, found = self._tried_for(BATCHES[1]), {}
        of_any_rank = squeezed_as_are(self.nodes)
        for name, value in self._types_tried.items():
            a, b = value.shape, more[name].shape if name in more else None
            if a is not None and b is not None and len(a) == len(b) and name not in of_any_rank:
                found[name] = tuple(
                    n if n == m and isinstance(n, int) else None for n, m in zip(a, b, strict=True)
                )
        return found

    def _inferred(self, given: dict[str, tuple[int, ...]], alone: bool = False) -> dict[str, ValueType]:
        """Of the values for inputs of some shapes.

        Args:
            alone: without ONNX, and empty where that cannot be.
        """
        skeleton = self._skeleton(given)
        nodes, same_type = with_stand_ins(skeleton.graph.node)
        del skeleton.graph.node[:]
        skeleton.graph.node.extend(nodes)
        types = types_of(skeleton, alone)
        for name, other in same_type.items():
            if name in types and other in types:
                types[name].dtype = types[other].dtype
        return types

    def _skeleton(self, given: dict[str, tuple[int, ...]]) -> Any:
        """The ModelProto whose large constants are inputs, with inputs of the shapes that are given."""
        graph = self.proto.graph
        skeleton = messages().GraphProto(name="skeleton")
        for node in graph.node:
            large = _large_constant(node)
            if large is None:
                skeleton.node.append(node)
            else:
                skeleton.input.append(value_info(node.output[0], large.data_type, large.dims))
        for value in graph.input:
            if given.get(value.name):
                kind = value.type.tensor_type.elem_type
                skeleton.input.append(value_info(value.name, kind, given[value.name]))
            else:
                skeleton.input.append(value)
        skeleton.output.extend(map(without_shape, graph.output))
        declared = {v.name for v in graph.input}
        for tensor in graph.initializer:
            if math.prod(tensor.dims) < LARGE:
                skeleton.initializer.append(tensor)
            elif tensor.name not in declared:
                skeleton.input.append(value_info(tensor.name, tensor.data_type, tensor.dims))
        return model_with(skeleton, self.proto, max(4, self.proto.ir_version))  # initializers are no inputs

    def shape(self, name: str) -> DynamicShape | None:
        """The shape of a value, with words for sizes that are not known; None where its rank is not."""
        if self.is_constant(name):
            array = self.constant(name)
            return None if array is None else array.shape
        found = self.types[name].shape if name in self.types else None
        if found is None or not all(isinstance(n, int) for n in found[1:]):
            known = self._of_any_batch.get(name)
            if known is not None and (found is None or len(found) == len(known)):
                words = found or tuple(f"{name}.{i}" for i in range(len(known)))
                return tuple(word if n is None else n for word, n in zip(words, known, strict=True))
        return found

    def tried_shape(self, name: str) -> DynamicShape | None:
        """The shape of a value where the inputs have some sizes: words are only for what data decide."""
        found = self._types_tried.get(name)
        return self.shape(name) if found is None or self.is_constant(name) else found.shape

    def dtype(self, name: str) -> str:
        """The element type of a value, or "" where it is not known."""
        if self.is_constant(name):
            array = self.constant(name)
            return "" if array is None else array.dtype.name
        return self.types[name].dtype if name in self.types else ""


def _large_constant(node: Any) -> Any:
    """The tensor of a Constant whose numbers are no sizes; None of other nodes."""
    tensor = constant_tensor(node) if node.op_type == "Constant" else None
    return tensor if tensor is not None and math.prod(tensor.dims) >= LARGE else None
