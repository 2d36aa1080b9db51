"""Inputs and outputs of ONNX models that are no arrays of numbers: strings, lists, what may be absent."""

from __future__ import annotations

from typing import Any

from convalgos.network.onnx_reader.messages import dtype_of, messages

WORDS = {  # of TypeProto: what a value is
    "sequence_type": "lists", "optional_type": "what may be absent", "map_type": "maps",
    "sparse_tensor_type": "sparse arrays", "opaque_type": "opaque values",
}  # fmt: skip

# Types of which others than NumPy's arrays keep several in a byte, and values that are no arrays
NO_NUMBERS = ("object", "", "int4", "uint4", "int2", "uint2", "float4_e2m1fn")


def no_array_of_numbers(proto: Any) -> str | None:
    """What a ModelProto takes or gives that is no array of numbers, in words; None of other models."""
    for value in (*proto.graph.input, *proto.graph.output):
        kind = value.type.WhichOneof("value")
        element = value.type.tensor_type.elem_type
        exists = element in messages().TensorProto.DataType.values() and element  # else it is inferred
        dtype = dtype_of(element).name if exists else ""
        if dtype and dtype in NO_NUMBERS:
            return f"moves {'strings' if dtype == 'object' else f'numbers of {dtype}'}, {value.name!r}"
        if kind in WORDS:
            return f"moves {WORDS[kind]}, {value.name!r}"
    return None
