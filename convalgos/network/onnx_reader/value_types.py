"""What is known of the values of an ONNX model before a network is planned."""

from __future__ import annotations

from typing import Any

from convalgos.network.onnx_reader.inference import inferred_types, type_of
from convalgos.network.onnx_reader.messages import dtype_of
from convalgos.network.onnx_reader.types import TensorType

DynamicShape = tuple[int | str, ...]


class ValueType:
    """The type of a value, and its shape with words for sizes that are open."""

    def __init__(self, name: str, known: TensorType):
        self.dtype = dtype_of(known.kind).name if known.kind else ""  # no tensor, or not known
        self.shape: DynamicShape | None = None  # None: not even the rank is known
        if known.dims is not None:
            self.shape = tuple(f"{name}.{i}" if n is None else n for i, n in enumerate(known.dims))

    @classmethod
    def told(cls, value: Any) -> ValueType:
        """What a ValueInfoProto tells."""
        return cls(value.name, type_of(value.type))


def types_of(model: Any, alone: bool = False) -> dict[str, ValueType]:
    """The types of the values of a ModelProto, as far as they can be inferred.

    Args:
        alone: without ONNX, which takes 8 MB, and none where that cannot be.
    """
    own = inferred_types(model)
    if own is None:
        return {} if alone else _by_onnx(model)
    return {name: ValueType(name, of) for name, of in own.items()}


def _by_onnx(model: Any) -> dict[str, ValueType]:
    import onnx

    found = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    types: dict[str, ValueType] = {}
    for value in (*found.input, *found.value_info, *found.output):
        told = ValueType.told(value)
        if told.dtype or value.name not in types:  # an output that is an input may lack its type
            types[value.name] = told
    return types
