"""What a damaged ONNX model has that no model has, which is told before others stumble over it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from convalgos.network.onnx_reader.file import tensors_within
from convalgos.network.onnx_reader.messages import messages
from convalgos.network.onnx_reader.sizes import ONNX_NAMES


def check_whole(proto: Any) -> None:
    """ValueError where a ModelProto has types that do not exist, or no opset of the operators it has."""
    known = {*messages().TensorProto.DataType.values()}
    for name, kind in _element_types(proto.graph):
        if kind not in known:
            raise ValueError(f"the model has {name!r} of element type {kind}, which ONNX does not know")
    if any(node.domain in ONNX_NAMES for node in proto.graph.node) and not any(
        opset.domain in ONNX_NAMES for opset in proto.opset_import
    ):
        raise ValueError("the model has operators of ONNX, but does not tell of which opset")


def _element_types(graph: Any) -> Iterator[tuple[str, int]]:
    """(name, type of its elements) of all tensors of a GraphProto, and of the values it describes."""
    for tensor in tensors_within(graph):
        yield tensor.name, tensor.data_type
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield value.name, value.type.tensor_type.elem_type
