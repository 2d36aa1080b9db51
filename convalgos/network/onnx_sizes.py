"""Sizes that a model computes from shapes and that do not depend on what its inputs leave open, as constants.

A model exported for any batch computes the number of its channels, too: Shape, Gather, and sums, products and
quotients of these. ONNX's own inference follows them but for quotients, behind which nothing is known any
more. Here the nodes are gone through in their order, with each element of such a value a number, the name of
a size that is open, or not known. What follows from them alone is constant as well: masks, factors, and the
sizes of a reshape that keeps those that are open.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

INT64 = 7  # of TensorProto
MOST = 64  # elements of a value that holds sizes
MOST_FOLDED = 1 << 19  # elements of a constant that follows from sizes
RANDOM = ("Bernoulli", "Multinomial", "RandomNormal", "RandomUniform")  # begins of operators
ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "Mod": operator.mod,
    "Div": lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),  # towards zero
}
Size = int | str | None  # None where it depends on what the inputs leave open, a str where it is just that
Sizes = np.ndarray  # of objects, each a Size
UNKNOWN_TO_THE_REFERENCE = (  # what the reference implementation of ONNX raises where it cannot run a node
    RuntimeError,
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    AttributeError,
)


def make_known_sizes_constant(proto: Any) -> None:
    """Replace the nodes of a model that compute sizes which are known by constants."""
    if not any(node.op_type == "Shape" for node in proto.graph.node):
        return
    search = _Search(proto)
    kept = []
    for node in proto.graph.node:
        if search.follow(node):
            proto.graph.initializer.append(search.known(node.output[0]))
            continue
        kept.append(own := type(node).FromString(node.SerializeToString()))
        if node.op_type == "Reshape" and (target := search.target(node)) is not None:
            proto.graph.initializer.append(target)
            own.input[1] = target.name
    del proto.graph.node[:]
    proto.graph.node.extend(kept)


def _are_known(sizes: Sizes) -> bool:
    return all(isinstance(n, int) for n in sizes.reshape(-1))


class _Search:
    """What is known behind the nodes so far."""

    def __init__(self, proto: Any):
        import onnx

        self._opsets = {o.domain: o.version for o in proto.opset_import}
        self._imports, self._ir = list(proto.opset_import), proto.ir_version
        self.types: dict[str, Any] = {v.name: v.type for v in proto.graph.input}
        self.sizes: dict[str, Sizes] = {}
        self._data: dict[str, Any] = {}  # small constants as tensors
        for tensor in proto.graph.initializer:
            self.types[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
            self._keep(tensor.name, tensor)

    def _keep(self, name: str, tensor: Any) -> None:
        from onnx import numpy_helper

        if np.prod(tensor.dims, dtype=np.int64) <= MOST:
            self._data[name] = tensor
            if tensor.data_type == INT64:
                self.sizes[name] = numpy_helper.to_array(tensor).astype(object)

    def follow(self, node: Any) -> bool:
        """Whether all that a node gives is known; its types are noted."""
        import onnx

        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            tensor = node.attribute[0].t
            self.types[node.output[0]] = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
            self._keep(node.output[0], tensor)
            return False
        sizes = self._computed(node.op_type, node.input, attributes)
        if sizes is not None and sizes.size <= MOST:
            name = node.output[0]
            self.sizes[name] = sizes
            self.types[name] = onnx.helper.make_tensor_type_proto(INT64, sizes.shape)
            if _are_known(sizes):
                self._data[name] = onnx.numpy_helper.from_array(np.array(sizes.tolist(), np.int64), name)
            return _are_known(sizes)
        if self._fold(node):
            return True
        self._infer(node)
        return False

    def known(self, name: str) -> Any:
        """A value that is known, as a tensor."""
        return self._data[name]

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
        import onnx.reference

        given = [name for name in node.input if name]
        of_onnx = node.domain in ("", "ai.onnx") and not node.op_type.startswith(RANDOM)
        nested = any(a.type == onnx.AttributeProto.GRAPH for a in node.attribute)
        if (
            not of_onnx
            or nested
            or not given
            or len(node.output) != 1
            or any(n not in self._data for n in given)
        ):
            return False
        inputs = [onnx.ValueInfoProto(name=name, type=self.types[name]) for name in dict.fromkeys(given)]
        graph = onnx.helper.make_graph([node], "folded", inputs, [onnx.ValueInfoProto(name=node.output[0])])
        self._infer(node)
        if math.prod(n if isinstance(n, int) else 0 for n in self._dims(node.output[0]) or ()) > MOST_FOLDED:
            return False
        feeds = {name: onnx.numpy_helper.to_array(self._data[name]) for name in given}
        try:
            model = onnx.helper.make_model(graph, opset_imports=self._imports)
            (found,) = onnx.reference.ReferenceEvaluator(model).run(None, feeds)
        except UNKNOWN_TO_THE_REFERENCE:  # it is left to be run
            return False
        found = np.asarray(found)
        if found.size > MOST_FOLDED:
            return False
        tensor = onnx.numpy_helper.from_array(found, node.output[0])
        self.types[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
        self._data[tensor.name] = tensor
        if tensor.data_type == INT64 and found.size <= MOST:
            self.sizes[tensor.name] = found.astype(object)
        return True

    def _computed(self, op: str, inputs: Sequence[str], attributes: dict[str, Any]) -> Sizes | None:
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
        data = {name: self._data[name] for name in node.input if name in self._data}
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
