"""Models of float16 computed in float32, as ONNX Runtime does on a CPU for most of their operators.

Constants are widened, what is cast to float16 is cast to float32, and inputs and outputs keep their type.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from convalgos.network.mapped_weights import MAPPED, put_in_file
from convalgos.network.onnx_reader.messages import array_of, constant_tensor, node_of, tensor_of
from convalgos.network.onnx_reader.sizes import ONNX_NAMES
from convalgos.network.onnx_reader.types import FLOAT

HALF = 10  # TensorProto.FLOAT16
# Numbers of activations, which are known by them: float16 holds them to three digits
MEANT = (math.sqrt(2), math.sqrt(0.5), math.sqrt(2 / math.pi), 0.044715, 1 / 6)


def with_halves_widened(
    proto: Any, weights: Mapping[str, np.ndarray]
) -> tuple[Any, Mapping[str, np.ndarray]]:
    """(a ModelProto of float32 but for its inputs and outputs, weights that its tensors lack).

    The very ones where no constant is of float16, or where operators are not ONNX's own or have bodies.
    """
    nodes = proto.graph.node
    if not any(tensor.data_type == HALF for tensor in _constants(proto.graph)):
        return proto, weights
    if any(n.domain not in ONNX_NAMES or any(a.HasField("g") for a in n.attribute) for n in nodes):
        return proto, weights
    found, wide = type(proto)(), dict(weights)
    found.CopyFrom(proto)
    graph = found.graph
    del graph.value_info[:]
    for tensor in _constants(graph):
        _widen(tensor, wide)
    for node in graph.node:
        if node.op_type == "Constant" and node.output[0] in wide:
            wide[node.output[0]] = _wide(wide[node.output[0]])
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype") and attribute.i == HALF:
                attribute.i = FLOAT
    _keep_types_outside(graph)
    return found, wide


def _constants(graph: Any) -> Iterator[Any]:
    """The TensorProtos of a graph, and of what its nodes have as values."""
    yield from graph.initializer
    for node in graph.node:
        tensor = constant_tensor(node) if node.op_type == "Constant" else None
        values = (a.t for a in node.attribute if a.name == "value" and a.HasField("t"))
        yield from () if tensor is None and node.op_type == "Constant" else values


def _widen(tensor: Any, weights: dict[str, np.ndarray]) -> None:
    """Let a TensorProto be of float32, if it is of float16."""
    if tensor.data_type != HALF:
        return
    if tensor.name in weights:
        weights[tensor.name] = _wide(weights[tensor.name])
        tensor.data_type = FLOAT
    elif tensor.HasField("raw_data") or len(tensor.int32_data):
        tensor.CopyFrom(tensor_of(_meant(array_of(tensor)), tensor.name))
    else:  # of which the data lie in a Constant of the file
        tensor.data_type = FLOAT


def _meant(array: np.ndarray) -> np.ndarray:
    """In float32; a single number that is one of an activation in all its digits."""
    found = [n for n in MEANT if array.size == 1 and np.float16(n) == array.reshape(-1)[0]]
    return np.full(array.shape, found[0], np.float32) if found else array.astype(np.float32)


def _wide(array: np.ndarray) -> np.ndarray:
    if array.dtype != np.float16:
        return array
    wide = np.asarray(array).astype(np.float32)
    return put_in_file(wide) if wide.nbytes >= MAPPED else wide


def _keep_types_outside(graph: Any) -> None:
    """Casts behind inputs and in front of outputs of float16."""
    constant = {tensor.name for tensor in graph.initializer}
    halves = [
        [v.name for v in values if v.type.tensor_type.elem_type == HALF and v.name not in constant]
        for values in (graph.input, graph.output)
    ]
    names = {name: f"{name}//wide" for part in halves for name in part}
    nodes = list(graph.node)
    for node in nodes:
        for field in (node.input, node.output):
            renamed = [names.get(name, name) for name in field]
            del field[:]
            field.extend(renamed)
    before = [node_of("Cast", [name], [names[name]], to=FLOAT) for name in halves[0]]
    made = [name for name in halves[1] if name not in halves[0]]  # an input may be an output, too
    behind = [node_of("Cast", [names[name]], [name], to=HALF) for name in made]
    del graph.node[:]
    graph.node.extend([*before, *nodes, *behind])
