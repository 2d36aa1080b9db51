"""A graph of torch as the reader of ONNX sees a model: nodes of its operators, constants, types of values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from convalgos.core.cached_attribute import cached_attribute
from convalgos.network.onnx_reader.dequantized import DequantizedConstants
from convalgos.network.onnx_reader.messages import KINDS
from convalgos.network.onnx_reader.model import OnnxModel, OnnxNode
from convalgos.network.onnx_reader.types import TensorType
from convalgos.network.onnx_reader.value_types import ValueType

OPSET = 20  # of ONNX, whose operators the nodes are
APART = 64  # by how many times its number a size that is tried is larger than the one that it was read for


def sizes_in(tensor: Any) -> tuple[Any, ...]:
    """The shape of a tensor: numbers, and torch's names of sizes that are open."""
    return tuple(
        n if type(n) is int else int(n.node.expr) if n.node.expr.is_number else n for n in tensor.shape
    )


class TensorValue(NamedTuple):
    """The type of a value; sizes are numbers, or torch's names of such."""

    dtype: str
    shape: tuple[Any, ...]


class TorchModel(OnnxModel):
    """Nodes of ONNX that compute what a graph of torch does; of each, `protos` are the nodes of that graph.

    Args:
        values: of the inputs, and of all that nodes write, by name.
    """

    def __init__(
        self, nodes: list[OnnxNode], inputs: Sequence[str], outputs: Sequence[str],
        constants: Mapping[str, np.ndarray], values: Mapping[str, TensorValue],
    ):  # fmt: skip
        self._tensors: dict[str, Any] = {}
        self._arrays = {**constants}
        self._values = values
        self.dequantized = DequantizedConstants()
        self.nodes = nodes
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.opset = OPSET

    @cached_attribute
    def types(self) -> dict[str, ValueType]:
        return {name: _type(name, v, str) for name, v in self._values.items()}

    @cached_attribute
    def _types_tried(self) -> dict[str, ValueType]:
        """For some sizes: those that the graph was made of, and no two that it leaves open are equal."""
        return {name: _type(name, v, size_tried) for name, v in self._values.items()}

    @cached_attribute
    def _of_any_batch(self) -> dict[str, tuple[int | None, ...]]:
        return {}

    def node_before(self, node: OnnxNode, op: str, inputs: list[str], output: str) -> OnnxNode:
        return OnnxNode(op, node.name, inputs, [output], {}, node.protos)

    def captured(self) -> set[str]:
        return set()

    def constant_node(self, name: str) -> OnnxNode:
        known, array = f"{name}/known", self._arrays[name]
        self._arrays[known] = array
        self._values = {**self._values, name: TensorValue(array.dtype.name, array.shape)}
        return OnnxNode("Identity", name, [known], [name], {}, ())


def size_tried(size: Any) -> int:
    """A size, where it is open for one value of each of the symbols in it."""
    if type(size) is int:
        return size
    expression, known = size.node.expr, size.node.shape_env
    hint = getattr(known, "optimization_hint", None) or known.size_hint  # the name before torch 2.13
    symbols = sorted(expression.free_symbols, key=str)
    numbers = {s: int(hint(s)) + APART * _number(s) for s in symbols}
    return int(expression.xreplace(numbers))


def _number(symbol: Any) -> int:
    """Of a symbol, which torch names s and a number."""
    return int("".join(filter(str.isdigit, str(symbol))) or 0)


def _type(name: str, value: TensorValue, of_open: Any) -> ValueType:
    sizes = tuple(n if type(n) is int else of_open(n) for n in value.shape)
    found = ValueType(name, TensorType(KINDS.get(value.dtype, 0), sizes))
    found.dtype = value.dtype  # also of those that ONNX has not
    return found
