"""What is constant in an ONNX model: what follows from constants, and from sizes that its inputs fix.

A model exported for any batch computes the number of its channels, too: Shape, Gather, and sums, products and
quotients of these. ONNX's own inference follows them but for quotients, behind which nothing is known any
more. Here the nodes are gone through in their order, with each element of such a value a number, the name of
a size that is open, or not known. What follows from them alone is constant as well: masks, factors, and the
sizes of a reshape that keeps those that are open.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from convalgos.network.mapped_weights import let_go, put_in_file
from convalgos.network.onnx_reader.constants import computed
from convalgos.network.onnx_reader.inference import inferred_outputs, opset_of, type_of
from convalgos.network.onnx_reader.messages import (
    Dim,
    array_of,
    constant_tensor,
    kind_of_dtype,
    messages,
    node_attributes,
    tensor_of,
    tensor_type,
)
from convalgos.network.onnx_reader.size_values import MOST, Sizes, are_known, held_sizes
from convalgos.network.onnx_reader.types import INT32, INT64, TensorType

# Of values that hold sizes.
KINDS: dict[int, type[np.signedinteger[Any]]] = {INT64: np.int64, INT32: np.int32}
MOST_FOLDED = 1 << 21  # elements of a constant that is computed,
GROWS = 4  # or so many times those of what it is computed from,
MOST_REPEATED = 1 << 28  # or of one that is a number again and again
ONNX_NAMES = ("", "ai.onnx")  # of ONNX's own domain
NOT_FOLDED = (  # begins of operators: of chance, and what makes of small weights large ones
    "Bernoulli", "Multinomial", "RandomNormal", "RandomUniform", "DequantizeLinear",
)  # fmt: skip


class KnownValues:
    """What is known behind the nodes of a model so far.

    Args:
        weights: constants whose tensors have no data.
    """

    def __init__(self, proto: Any, weights: Mapping[str, np.ndarray]):
        self._opsets, self._opset = {o.domain: o.version for o in proto.opset_import}, opset_of(proto)
        self._imports, self._ir = list(proto.opset_import), proto.ir_version
        self.types: dict[str, TensorType] = {}
        self._others: dict[str, Any] = {}  # TypeProtos of what is no tensor
        self.sizes: dict[str, Sizes] = {}
        self.computed: dict[str, np.ndarray] = {}
        self._weights = weights
        self._tensors: dict[str, Any] = {}
        self._small: dict[str, Any] = {}  # tensors that may hold sizes
        for value in proto.graph.input:
            self._note_type(value.name, value.type)
        for tensor in proto.graph.initializer:
            self._note(tensor.name, tensor)

    def _note_type(self, name: str, proto: Any) -> None:
        """Remember the TypeProto of a value."""
        if proto.HasField("tensor_type"):
            self.types[name] = type_of(proto)
        else:
            self._others[name] = proto

    def _note(self, name: str, tensor: Any) -> None:
        """Remember a constant."""
        self.types[name] = TensorType(tensor.data_type, tuple(tensor.dims))
        self._tensors[name] = tensor
        if math.prod(tensor.dims) <= MOST and name not in self._weights:
            self._small[name] = tensor
            if tensor.data_type in KINDS:
                self.sizes[name] = array_of(tensor).astype(object)

    def _keep(self, name: str, array: np.ndarray) -> None:
        """Remember what was computed."""
        self.computed[name] = put_in_file(array)
        kind = kind_of_dtype(array.dtype)
        self.types[name] = TensorType(kind, array.shape)
        if array.size <= MOST:
            self._small[name] = tensor_of(array, name)
            if kind in KINDS:
                self.sizes[name] = array.astype(object)

    def _array(self, name: str) -> np.ndarray | None:
        """A value that is known, or None."""
        if name in self.computed or name in self._weights:
            return np.asarray(self.computed.get(name, self._weights.get(name)))
        return array_of(self._tensors[name]) if name in self._tensors else None

    def follow(self, node: Any) -> bool:
        """Whether all that a node gives is known and computed; its types are noted."""
        attributes = node_attributes(node)
        if node.op_type == "Constant" and (tensor := constant_tensor(node)) is not None:
            self._note(node.output[0], tensor)
            return False
        sizes = held_sizes(node.op_type, node.input, attributes, self.sizes, self._dims, tuple(KINDS))
        if sizes is not None and sizes.size <= MOST:
            name, kind = node.output[0], self._kind_of_sizes(node, attributes)
            sizes = self.sizes[name] = _held_in(sizes, KINDS[kind])
            self.types[name] = TensorType(kind, sizes.shape)
            if are_known(sizes):
                self._keep(name, sizes.astype(KINDS[kind]))
            return are_known(sizes)
        if self._fold(node):
            return True
        self._infer(node)
        return False

    def _kind_of_sizes(self, node: Any, attributes: Mapping[str, Any]) -> int:
        """The type of the sizes that a node gives."""
        if node.op_type in ("Shape", "Cast"):
            return int(attributes.get("to", INT64))
        return self.types[node.input[0]].kind

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Of a value, where all of it is known."""
        dims = self._dims(name)
        sizes = [n for n in dims or () if isinstance(n, int)]
        return None if dims is None or len(sizes) < len(dims) else tuple(sizes)

    def target(self, node: Any) -> Any:
        """The sizes of a reshape to open ones as a tensor, 0 for what it keeps, -1 for one; else None."""
        sizes, dims = self.sizes.get(node.input[1]), self._dims(node.input[0]) or ()
        if sizes is None or are_known(sizes) or any(a.name == "allowzero" and a.i for a in node.attribute):
            return None
        is_kept = [isinstance(n, str) and dims[i : i + 1] == (n,) for i, n in enumerate(sizes)]
        filled = [0 if kept else n for kept, n in zip(is_kept, sizes, strict=True)]
        if sum(not isinstance(n, int) for n in sizes) == 1 and all(
            n >= 0 for n in sizes if isinstance(n, int)
        ):
            filled = [n if isinstance(n, int) else -1 for n in filled]
        if not all(isinstance(n, int) for n in filled):
            return None
        return tensor_of(np.array(filled, np.int64), f"{node.output[0]}/sizes")

    def _fold(self, node: Any) -> bool:
        """Whether a node of known inputs was computed."""
        given = [name for name in node.input if name]
        nested = any(a.type == messages().AttributeProto.GRAPH for a in node.attribute)
        if node.domain not in ONNX_NAMES or node.op_type.startswith(NOT_FOLDED) or nested or not given:
            return False
        if any(name not in self.computed and name not in self._tensors for name in given):
            return False
        inputs = [self._array(name) if name else None for name in node.input]
        most = max(MOST_FOLDED, *(GROWS * x.size for x in inputs if x is not None))
        if node.op_type == "ConstantOfShape":
            most = MOST_REPEATED
        self._infer(node)
        for name in node.output:
            dims = self._dims(name) or ()
            if math.prod(n if isinstance(n, int) else 0 for n in dims) > most:
                return False
        found = computed(node, inputs, self._imports)
        for x in inputs:
            if x is not None:
                let_go(x)
        if found is None or any(y.size > most for y in found):
            return False
        for name, y in zip(node.output, found, strict=True):
            self._keep(name, y)
        return True

    def _dims(self, name: str) -> Sequence[Dim] | None:
        return self.types[name].dims if name in self.types else None

    def _infer(self, node: Any) -> None:
        """Note the types of the outputs of a node, as far as they follow from those of its inputs."""
        if node.op_type == "Reshape" and self._reshaped(node):
            return
        found = inferred_outputs(node, self._opset, self.types, self._small, self.sizes)
        if found is not None:
            self.types |= found
            return
        import onnx

        given = {name: self._others[name] for name in node.input if name in self._others}
        given |= {name: tensor_type(*self.types[name]) for name in node.input if name in self.types}
        data = {name: self._small[name] for name in node.input if name in self._small}
        try:
            schema = onnx.defs.get_schema(node.op_type, self._opsets.get(node.domain, 1), node.domain)
            of_onnx = onnx.shape_inference.infer_node_outputs(
                schema, node, given, data, None, self._imports, self._ir
            )
        except (KeyError, onnx.defs.SchemaError, onnx.shape_inference.InferenceError):
            return
        for name, proto in of_onnx.items():
            self._note_type(name, proto)

    def _reshaped(self, node: Any) -> bool:
        """Whether a reshape is to sizes of which some are known."""
        sizes, dims = self.sizes.get(node.input[1]), self._dims(node.input[0])
        if sizes is None or dims is None or are_known(sizes):
            return False
        if any(n == 0 and i >= len(dims) for i, n in enumerate(sizes)):
            return False
        shape = [dims[i] if n == 0 else n for i, n in enumerate(sizes)]
        if -1 in shape:
            shape[shape.index(-1)] = _rest(dims, [n for n in shape if n != -1])
        self.types[node.output[0]] = TensorType(self.types[node.input[0]].kind, tuple(shape))
        return True


def _rest(dims: Sequence[Dim], others: Sequence[Dim]) -> int | None:
    """The size that a reshape leaves to be what remains: known where both have the same open sizes."""
    opened = [sorted(n for n in sizes if isinstance(n, str)) for sizes in (dims, others)]
    if None in dims or None in others or opened[0] != opened[1]:
        return None
    whole, part = (math.prod(n for n in sizes if isinstance(n, int)) for sizes in (dims, others))
    return whole // part if part else None


def _held_in(sizes: Sizes, dtype: type[np.signedinteger[Any]]) -> Sizes:
    """Numbers as an integer type has them, which goes on from its least one behind the largest."""
    half = int(np.iinfo(dtype).max) + 1
    if all(-half <= n < half for n in sizes.flat if isinstance(n, int)):
        return sizes
    held = [(n + half) % (2 * half) - half if isinstance(n, int) else n for n in sizes.flat]
    found: Sizes = np.array(held, object).reshape(sizes.shape)
    return found
