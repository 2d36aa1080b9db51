"""What a session tells of a model: its inputs and outputs, and what the model says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from convalgos.network.onnx_reader.messages import dims_of, dtype_of
from convalgos.network.onnx_reader.model import OnnxModel

KINDS = {  # types whose names in ONNX Runtime are not NumPy's
    "float32": "float", "float64": "double", "float8_e4m3fn": "float8e4m3fn",
    "float8_e4m3fnuz": "float8e4m3fnuz", "float8_e5m2": "float8e5m2", "float8_e5m2fnuz": "float8e5m2fnuz",
    "float8_e8m0fnu": "float8e8m0",
}  # fmt: skip

DTYPES = {told: dtype for dtype, told in KINDS.items()}


class SessionValue(NamedTuple):
    """An input or an output of a model, as `NodeArg` of ONNX Runtime tells of it."""

    name: str
    type: str  # "tensor(float)"
    shape: list[int | str | None]  # a word is the name of a size that is open, None one without a name


@dataclass(frozen=True)
class ModelMetadata:
    """What a model says of itself, as `ModelMetadata` of ONNX Runtime has it."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str]


def told_value(value: Any, model: OnnxModel) -> SessionValue:
    """What is told of a value of a model, which is a ValueInfoProto."""
    tensor = value.type.tensor_type
    dtype = dtype_of(tensor.elem_type).name if tensor.elem_type else model.dtype(value.name)
    dims = dims_of(tensor)
    if dims is None:  # as it follows from those of the inputs, with the names that these have
        named = {d.dim_param for v in model.proto.graph.input for d in v.type.tensor_type.shape.dim}
        dims = [n if isinstance(n, int) or n in named else None for n in model.shape(value.name) or ()]
    elif not all(isinstance(n, int) for n in dims):  # exporters leave open what follows
        found = model.types[value.name].shape if value.name in model.types else None
        if found is not None and len(found) == len(dims):
            dims = [m if isinstance(m, int) else n for n, m in zip(dims, found, strict=True)]
    return SessionValue(value.name, f"tensor({KINDS.get(dtype, dtype)})", dims)


def dtype_of_told(kind: str) -> np.dtype | None:
    """The dtype of arrays of a told type; None of what is no array."""
    if not kind.startswith("tensor("):
        return None
    own = kind.removeprefix("tensor(").removesuffix(")")
    return np.dtype("object" if own == "string" else DTYPES.get(own, own))


def told_model(proto: Any) -> ModelMetadata:
    """What a ModelProto says of itself."""
    return ModelMetadata(
        proto.producer_name, proto.graph.name, proto.domain, proto.doc_string, proto.graph.doc_string,
        proto.model_version, {entry.key: entry.value for entry in proto.metadata_props},
    )  # fmt: skip
