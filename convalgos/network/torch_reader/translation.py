"""A graph of torch in the operators of ONNX, which `network.onnx_reader` makes steps of."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor, fx

from convalgos.network.onnx_reader.constants import NUMBERS
from convalgos.network.onnx_reader.messages import KINDS
from convalgos.network.onnx_reader.model import OnnxNode
from convalgos.network.torch_reader.export import constant_of
from convalgos.network.torch_reader.model import TensorValue, TorchModel, sizes_in

TORCH = "torch."  # begins the operators that torch runs
TYPES = ("float32", "int64", "int32", "int16", "int8", "uint8", "bool")  # of tensors in nodes of ONNX
Arguments = dict[str, Any]  # of an operator, by name


class Left(Exception):
    """Why an operator is left to torch."""


Value = str  # the name of what a node of ONNX reads or writes
Translate = Callable[["Translation", fx.Node, Arguments], Value | Sequence[Value]]


class Translation:
    """Makes nodes of ONNX of the nodes of a graph, in order.

    Args:
        left: nodes that torch is to run, and why; those are added for which there are none of ONNX.
    """

    def __init__(self, module: fx.GraphModule, left: dict[fx.Node, str]):
        self.module = module
        self.left = left
        self.nodes: list[OnnxNode] = []
        self.constants: dict[str, np.ndarray] = {}
        self.values: dict[str, TensorValue] = {}
        self.names: dict[fx.Node, Value | Sequence[Value]] = {}  # of what each node gives
        self._node: Any = None  # whose nodes are made

    def model(self, operators: Mapping[Any, Translate]) -> TorchModel:
        """The whole graph."""
        nodes = list(self.module.graph.nodes)
        inputs = [node for node in nodes if node.op == "placeholder"]
        for node in inputs:
            self._declare(node.name, node)
            self.names[node] = node.name
        for node in nodes:
            if node.op == "call_function" and is_tensors(node):
                self._translate(node, operators)
        outputs = [self._output(node) for node in nodes[-1].args[0]]
        return TorchModel(self.nodes, [n.name for n in inputs], outputs, self.constants, self.values)

    # --- for the operators -------------------------------------------------------------------

    def value(self, x: Any, dtype: str = "") -> Value:
        """The value that has a tensor, or a number as one of this type."""
        if not isinstance(x, fx.Node):
            if not isinstance(x, int | float | bool):
                raise Left("takes a number that is computed")
            return self.constant(np.array(x, dtype or "float32"))
        if x.op == "get_attr":
            return self._parameter(x)
        found = self.names.get(x)
        if not isinstance(found, str):
            raise Left("takes several tensors as one")
        return found

    def number_or_array(self, x: Any) -> np.ndarray | None:
        """What is constant; None of what is computed."""
        name = self.value(x)
        return self.constants.get(name)

    def constant(self, array: Any) -> Value:
        """A value that is constant."""
        name = f"{self._node.name}.constant{len(self.constants)}"
        self.constants[name] = np.asarray(array)
        return name

    def emit(self, op: str, inputs: Sequence[Value], **attributes: Any) -> Value:
        """A node that writes what the node of torch gives."""
        name = self._node.name
        self._add(op, inputs, [name], attributes)
        self._declare(name, self._node)
        return str(name)

    def emit_parts(self, op: str, inputs: Sequence[Value], **attributes: Any) -> list[Value]:
        """A node that writes all tensors that the node of torch gives."""
        tensors = self._node.meta["val"]
        names = self.several(op, inputs, [tuple(tensor.shape) for tensor in tensors], **attributes)
        self.values |= {name: _value_of(tensor) for name, tensor in zip(names, tensors, strict=True)}
        return names

    def between(
        self, op: str, inputs: Sequence[Value], shape: Sequence[Any], dtype: str = "float32",
        **attributes: Any,
    ) -> Value:  # fmt: skip
        """A node that writes what only others of the same node of torch read."""
        name = f"{self._node.name}.{len(self.nodes)}"
        self.values[name] = TensorValue(dtype, tuple(shape))
        self._add(op, inputs, [name], attributes)
        return name

    def several(
        self, op: str, inputs: Sequence[Value], shapes: Sequence[Sequence[Any]], **attributes: Any
    ) -> list[Value]:
        """A node that writes several values of float32, which only others of the same node of torch read."""
        names = [f"{self._node.name}.{len(self.nodes)}.{i}" for i in range(len(shapes))]
        for name, shape in zip(names, shapes, strict=True):
            self.values[name] = TensorValue("float32", tuple(shape))
        self._add(op, inputs, names, attributes)
        return names

    def shape(self, value: Value) -> tuple[Any, ...]:
        return self.constants[value].shape if value in self.constants else self.values[value].shape

    def dtype(self, value: Value) -> str:
        return self.constants[value].dtype.name if value in self.constants else self.values[value].dtype

    def cast(self, value: Value, dtype: str) -> Value:
        """A value as one of another type."""
        if self.dtype(value) == dtype:
            return value
        if value in self.constants:
            return self.constant(self.constants[value].astype(dtype))
        return self.between("Cast", [value], self.shape(value), dtype)

    def result(self) -> TensorValue:
        """The type of what the node of torch gives."""
        return _value_of(self._node.meta["val"])

    # --- inside ------------------------------------------------------------------------------

    def _add(
        self, op: str, inputs: Sequence[Value], outputs: list[Value], attributes: dict[str, Any]
    ) -> None:
        self.nodes.append(
            OnnxNode(op, module_name(self._node), list(inputs), outputs, attributes, (self._node,))
        )

    def _translate(self, node: fx.Node, operators: Mapping[Any, Translate]) -> None:
        if node.target is operator.getitem:
            self._take(node)
            return
        before = len(self.nodes)
        self._node = node
        if node not in self.left:
            try:
                translate = operators.get(node.target) or operators.get(_schema_name(node))
                if translate is None:
                    raise Left("has no step here")
                if types := {t for v in tensors_of(node) if (t := _dtype_of(v)) not in TYPES}:
                    raise Left(f"computes in {', '.join(f'torch.{t}' for t in sorted(types))}")
                given = arguments_of(node)
                if _goes_along_a_number(given):
                    raise Left("is of one number")
                self.names[node] = translate(self, node, given)
                return
            except Left as reason:
                del self.nodes[before:]
                self.left[node] = f"{operator_name(node)} {reason}"
        self._leave(node)

    def _leave(self, node: fx.Node) -> None:
        read = dict.fromkeys(name for n in tensors_read(node) for name in self._all_names(n))
        name, tensor = node.name, node.meta["val"]
        if not isinstance(tensor, Tensor) and not all(isinstance(part, Tensor) for part in tensor):
            raise ValueError(f"{operator_name(node)} gives what is no tensor, which no network takes")
        if isinstance(tensor, Tensor):
            self.emit(f"{TORCH}{operator_name(node)}", [*read])
            self.names[node] = name
        else:
            self.names[node] = self.emit_parts(f"{TORCH}{operator_name(node)}", [*read])

    def _all_names(self, node: fx.Node) -> Sequence[Value]:
        found = self.names[node]
        names = [found] if isinstance(found, str) else found
        return [name for name in names if name not in self.constants]

    def _take(self, node: fx.Node) -> None:
        """One tensor of several."""
        several, i = node.args
        found = self.names[several]  # type: ignore[index]
        if isinstance(found, str):
            raise ValueError(f"{node} is a part of what is one tensor")
        self.names[node] = found[i]  # type: ignore[index]

    def _parameter(self, node: fx.Node) -> Value:
        name = str(node.target)
        if name not in self.constants:
            tensor = constant_of(self.module, name)
            if _dtype_of(tensor) not in TYPES:
                raise Left(f"has weights of {tensor.dtype}")
            self.constants[name] = tensor.detach().numpy()
        return name

    def _returned(self, name: str) -> Value:
        """A constant that is an output, of any type of numbers that NumPy has."""
        if name not in self.constants:
            tensor = constant_of(self.module, name)
            dtype = _dtype_of(tensor)
            if dtype not in KINDS or np.dtype(dtype).kind not in NUMBERS:
                raise ValueError(f"module returns {name}, which is of {tensor.dtype}")
            self.constants[name] = tensor.detach().numpy()
        return name

    def _declare(self, name: str, node: fx.Node) -> None:
        self.values[name] = _value_of(node.meta["val"])

    def _output(self, node: Any) -> Value:
        """The value of an output of the network."""
        if not isinstance(node, fx.Node):
            raise ValueError(f"module returns {node!r}, which is no tensor")
        if node.op == "get_attr":
            return self._returned(str(node.target))
        name = self.names[node]
        assert isinstance(name, str)
        return name


def of_floats(translate: Translate) -> Translate:
    """An operator that has steps for float32 alone: products of integers are exact, and wrap around."""

    def checked(t: Translation, node: fx.Node, a: Arguments) -> Value | Sequence[Value]:
        if (dtype := t.result().dtype) != "float32":
            raise Left(f"computes in torch.{dtype}")
        return translate(t, node, a)

    return checked


def _goes_along_a_number(a: Arguments) -> bool:
    """Whether an operator goes along a dimension of a tensor that has none, which torch takes for 1 long."""
    of, dim = a.get("self"), a.get("dim")
    return isinstance(of, fx.Node) and dim not in (None, []) and not sizes_in(of.meta["val"])


def _schema_name(node: fx.Node) -> str | None:
    """aten::layer_norm, of what is an operator of torch."""
    schema = getattr(node.target, "_schema", None)
    return None if schema is None else str(schema.name)


def _dtype_of(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _value_of(tensor: Any) -> TensorValue:
    return TensorValue(_dtype_of(tensor), sizes_in(tensor))


def is_tensors(node: fx.Node) -> bool:
    """Whether a node gives tensors, and not a size."""
    value = node.meta.get("val")
    return isinstance(value, Tensor | tuple | list)


def tensors_of(node: fx.Node) -> Iterator[Any]:
    """What is known of the tensors that a node reads and of the first that it gives."""
    for n in (node, *node.all_input_nodes):
        value = n.meta.get("val")
        value = value[0] if isinstance(value, tuple | list) and value else value
        if isinstance(value, Tensor):
            yield value


def tensors_read(node: fx.Node) -> Iterator[fx.Node]:
    """The nodes whose tensors a node reads, also by their sizes alone; not constants."""
    for n in node.all_input_nodes:
        if n.op == "get_attr":
            continue
        if n.op == "placeholder" or is_tensors(n):
            yield n
        else:
            yield from tensors_read(n)


def arguments_of(node: fx.Node) -> Arguments:
    """The arguments of an operator by name, with its defaults."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return dict(enumerate(node.args))  # type: ignore[arg-type]
    found = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    names = [a.name for a in schema.arguments]
    return found | dict(zip(names, node.args, strict=False)) | node.kwargs


def module_name(node: fx.Node) -> str:
    """The name of the module that a node comes from, or its own."""
    stack = node.meta.get("nn_module_stack") or {}
    names = [name for name, _ in stack.values()]
    return (names[-1].removeprefix("module").removeprefix(".") if names else "") or node.name


def operator_name(node: fx.Node) -> str:
    """torch.ops.aten.layer_norm.default -> layer_norm."""
    name = getattr(node.target, "__name__", None) or str(node.target)
    return str(name).partition(".")[0]
