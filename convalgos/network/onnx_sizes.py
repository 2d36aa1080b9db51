"""What is constant in an ONNX model: what follows from constants, and from sizes that its inputs fix.

A model exported for any batch computes the number of its channels, too: Shape, Gather, and sums, products and
quotients of these. ONNX's own inference follows them but for quotients, behind which nothing is known any
more. Here the nodes are gone through in their order, with each element of such a value a number, the name of
a size that is open, or not known. What follows from them alone is constant as well: masks, factors, and the
sizes of a reshape that keeps those that are open.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from convalgos.network.mapped_weights import let_go, put_in_file
from convalgos.network.onnx_constants import computed

INT64 = 7  # of TensorProto
MOST = 64  # elements of a value that holds sizes
MOST_FOLDED = 1 << 21  # elements of a constant that is computed,
GROWS = 4  # or so many times those of what it is computed from
ONNX_NAMES = ("", "ai.onnx")  # of ONNX's own domain
NOT_FOLDED = (  # begins of operators: of chance, and what makes of small weights large ones
    "Bernoulli", "Multinomial", "RandomNormal", "RandomUniform", "DequantizeLinear",
)  # fmt: skip
ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "Mod": operator.mod,
    "Div": lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),  # towards zero
}
Size = int | str | None  # None where it depends on what the inputs leave open, a str where it is just that
Sizes = np.ndarray  # of objects, each a Size


def _are_known(sizes: Sizes) -> bool:
    return all(isinstance(n, int) for n in sizes.reshape(-1))


class KnownValues:
    """What is known behind the nodes of a model so far.

    Args:
        weights: constants whose tensors have no data.
    """

    def __init__(self, proto: Any, weights: Mapping[str, np.ndarray]):

        self._opsets = {o.domain: o.version for o in proto.opset_import}
        self._imports, self._ir = list(proto.opset_import), proto.ir_version
        self.types: dict[str, Any] = {v.name: v.type for v in proto.graph.input}
        self.sizes: dict[str, Sizes] = {}
        self.computed: dict[str, np.ndarray] = {}
        self._weights = weights
        self._tensors: dict[str, Any] = {}
        self._small: dict[str, Any] = {}  # tensors that may hold sizes
        for tensor in proto.graph.initializer:
            self._note(tensor.name, tensor)

    def _note(self, name: str, tensor: Any) -> None:
        """Remember a constant."""
        import onnx

        self.types[name] = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
        self._tensors[name] = tensor
        if math.prod(tensor.dims) <= MOST and name not in self._weights:
            self._small[name] = tensor
            if tensor.data_type == INT64:
                self.sizes[name] = onnx.numpy_helper.to_array(tensor).astype(object)

    def _keep(self, name: str, array: np.ndarray) -> None:
        """Remember what was computed."""
        import onnx

        self.computed[name] = put_in_file(array)
        kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        self.types[name] = onnx.helper.make_tensor_type_proto(kind, array.shape)
        if array.size <= MOST:
            self._small[name] = onnx.numpy_helper.from_array(array, name)
            if kind == INT64:
                self.sizes[name] = array.astype(object)

    def _array(self, name: str) -> np.ndarray | None:
        """A value that is known, or None."""
        import onnx

        if name in self.computed or name in self._weights:
            return np.asarray(self.computed.get(name, self._weights.get(name)))
        return onnx.numpy_helper.to_array(self._tensors[name]) if name in self._tensors else None

    def follow(self, node: Any) -> bool:
        """Whether all that a node gives is known and computed; its types are noted."""
        import onnx

        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            self._note(node.output[0], node.attribute[0].t)
            return False
        sizes = self._sizes_of(node.op_type, node.input, attributes)
        if sizes is not None and sizes.size <= MOST:
            name = node.output[0]
            self.sizes[name] = sizes
            self.types[name] = onnx.helper.make_tensor_type_proto(INT64, sizes.shape)
            if _are_known(sizes):
                self._keep(name, np.array(sizes.tolist(), np.int64))
            return _are_known(sizes)
        if self._fold(node):
            return True
        self._infer(node)
        return False

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Of a value, where all of it is known."""
        dims = self._dims(name)
        sizes = [n for n in dims or () if isinstance(n, int)]
        return None if dims is None or len(sizes) < len(dims) else tuple(sizes)

    def target(self, node: Any) -> Any:
        """The sizes of a reshape to open ones as a tensor, 0 for what it keeps, -1 for one; else None."""
        from onnx import numpy_helper

        sizes, dims = self.sizes.get(node.input[1]), self._dims(node.input[0]) or []
        if sizes is None or _are_known(sizes) or any(a.name == "allowzero" and a.i for a in node.attribute):
            return None
        is_kept = [isinstance(n, str) and dims[i : i + 1] == [n] for i, n in enumerate(sizes)]
        filled = [0 if kept else n for kept, n in zip(is_kept, sizes, strict=True)]
        if sum(not isinstance(n, int) for n in sizes) == 1 and all(
            n > 0 for n in sizes if isinstance(n, int)
        ):
            filled = [n if isinstance(n, int) else -1 for n in filled]
        if not all(isinstance(n, int) for n in filled):
            return None
        return numpy_helper.from_array(np.array(filled, np.int64), f"{node.output[0]}/sizes")

    def _fold(self, node: Any) -> bool:
        """Whether a node of known inputs was computed."""
        import onnx

        given = [name for name in node.input if name]
        nested = any(a.type == onnx.AttributeProto.GRAPH for a in node.attribute)
        if node.domain not in ONNX_NAMES or node.op_type.startswith(NOT_FOLDED) or nested or not given:
            return False
        if any(name not in self.computed and name not in self._tensors for name in given):
            return False
        inputs = [self._array(name) if name else None for name in node.input]
        most = max(MOST_FOLDED, *(GROWS * x.size for x in inputs if x is not None))
        self._infer(node)
        for name in node.output:
            dims = self._dims(name) or []
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

    def _sizes_of(self, op: str, inputs: Sequence[str], attributes: dict[str, Any]) -> Sizes | None:
        if op == "Shape":
            dims = self._dims(inputs[0])
            whole = None if dims is None else _sizes(dims)
            return None if whole is None else whole[slice(attributes.get("start"), attributes.get("end"))]
        given = [self.sizes[name] for name in inputs if name in self.sizes]
        if not given or len(given) < len(inputs):
            return None
        x, *others = given
        if op in ARITHMETIC and not attributes.get("fmod", 0):
            return _elementwise(ARITHMETIC[op], x, others[0])
        if op == "Cast":
            return x if attributes["to"] == INT64 else None
        if op == "Slice" and x.ndim == 1 and all(map(_are_known, others)):
            begin, end, *more = (int(n) for (n,) in others)
            return x[begin : end : more[1] if len(more) > 1 else 1]
        if op == "Gather" and not attributes.get("axis", 0) and _are_known(others[0]):
            return np.asarray(x[others[0].astype(np.int64)], object)
        if op == "Unsqueeze" and x.ndim == 0:
            return x.reshape(1)
        if op == "Reshape" and x.size == 1 and others[0].size < 2:
            return x.reshape((1,) * others[0].size)
        if op == "Squeeze" and x.shape == (1,):
            return x.reshape(())
        if op == "Concat" and all(value.ndim == 1 for value in given):
            return np.concatenate(given)
        return None

    def _dims(self, name: str) -> list[Size] | None:
        tensor = self.types[name].tensor_type if name in self.types else None
        if tensor is None or not tensor.HasField("shape"):
            return None
        return [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim]

    def _infer(self, node: Any) -> None:
        """Note the types of the outputs of a node, as far as they follow from those of its inputs."""
        import onnx

        if node.op_type == "Reshape" and self._reshaped(node):
            return
        given = {name: self.types[name] for name in node.input if name in self.types}
        data = {name: self._small[name] for name in node.input if name in self._small}
        try:
            schema = onnx.defs.get_schema(node.op_type, self._opsets.get(node.domain, 1), node.domain)
            found = onnx.shape_inference.infer_node_outputs(
                schema, node, given, data, None, self._imports, self._ir
            )
        except (KeyError, onnx.defs.SchemaError, onnx.shape_inference.InferenceError):
            return
        self.types |= found

    def _reshaped(self, node: Any) -> bool:
        """Whether a reshape is to sizes of which some are known."""
        import onnx

        sizes, dims = self.sizes.get(node.input[1]), self._dims(node.input[0])
        if sizes is None or dims is None or _are_known(sizes):
            return False
        if any(n == 0 and i >= len(dims) for i, n in enumerate(sizes)):
            return False
        shape = [dims[i] if n == 0 else n for i, n in enumerate(sizes)]
        if -1 in shape:
            shape[shape.index(-1)] = _rest(dims, [n for n in shape if n != -1])
        element = self.types[node.input[0]].tensor_type.elem_type
        self.types[node.output[0]] = onnx.helper.make_tensor_type_proto(element, shape)
        return True


def _rest(dims: Sequence[Size], others: Sequence[Size]) -> int | None:
    """The size that a reshape leaves to be what remains: known where both have the same open sizes."""
    opened = [sorted(n for n in sizes if isinstance(n, str)) for sizes in (dims, others)]
    if None in dims or None in others or opened[0] != opened[1]:
        return None
    whole, part = (math.prod(n for n in sizes if isinstance(n, int)) for sizes in (dims, others))
    return whole // part if part else None


def _sizes(values: Sequence[Size]) -> Sizes:
    made: Sizes = np.empty(len(values), object)
    made[:] = values
    return made


def _elementwise(of: Callable[[int, int], int], x: Sizes, y: Sizes) -> Sizes | None:
    """Unknown where a part is."""
    made: Sizes = np.empty(np.broadcast_shapes(x.shape, y.shape), object)
    a: list[Size] = np.broadcast_to(x, made.shape).reshape(-1).tolist()
    b: list[Size] = np.broadcast_to(y, made.shape).reshape(-1).tolist()
    if of in (ARITHMETIC["Div"], ARITHMETIC["Mod"]) and 0 in b:
        return None
    made.reshape(-1)[:] = [
        of(m, n) if isinstance(m, int) and isinstance(n, int) else None for m, n in zip(a, b, strict=True)
    ]
    return made
