"""An ONNX model from a path, its bytes, or a ModelProto; what is wrong with a file is told with its path."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from convalgos.core.arguments import shown
from convalgos.core.errors import Unsupported, missing
from convalgos.network.onnx_reader.damage import check_whole
from convalgos.network.onnx_reader.einsum import with_products_spelled_out
from convalgos.network.onnx_reader.file import read_onnx_file, with_open_sizes
from convalgos.network.onnx_reader.folding import fold_constants
from convalgos.network.onnx_reader.half_floats import with_halves_widened
from convalgos.network.onnx_reader.lists import with_lists
from convalgos.network.onnx_reader.local_functions import with_functions_inlined
from convalgos.network.onnx_reader.loops import with_loops_written_out
from convalgos.network.onnx_reader.messages import messages
from convalgos.network.onnx_reader.model import OnnxModel
from convalgos.network.onnx_reader.order import with_nodes_in_order
from convalgos.network.onnx_reader.qdq import spelled_out
from convalgos.network.onnx_reader.sparse import with_dense_constants


class GivenModel(NamedTuple):
    """A model as it was given, read from its file."""

    proto: Any  # a ModelProto
    weights: Mapping[str, np.ndarray]  # what its tensors lack
    path: Path | None  # None of bytes, and of a ModelProto
    is_callers: bool = False  # whether the caller has the proto


def given_model(model: Any) -> GivenModel:
    """A model from a path, its bytes, or a ModelProto, as it is there.

    Raises:
        ValueError: it is no model. Unsupported: onnx is not installed.
    """
    if reason := missing("onnx"):
        raise Unsupported(f"reading an ONNX model {reason}")
    from google.protobuf.message import DecodeError

    try:
        if isinstance(model, str | os.PathLike):
            return GivenModel(*read_onnx_file(Path(model)), Path(model))
        if isinstance(model, bytes | bytearray | memoryview):
            return GivenModel(messages().ModelProto.FromString(bytes(model)), {}, None)
        if isinstance(model, messages().ModelProto):
            return GivenModel(model, {}, None, is_callers=True)
    except DecodeError as error:
        told = str(model) if isinstance(model, str | os.PathLike) else "bytes"
        raise ValueError(f"model={shown(told)} is no ONNX model: {error}") from None
    raise ValueError(f"model={shown(model)} must be a path, the bytes of a model, or a ModelProto")


def folded_model(given: GivenModel) -> OnnxModel:
    """A model whose constants are folded.

    Raises:
        ValueError: it is no model, or its data lie elsewhere. Unsupported: what is constant needs ONNX
            Runtime, which is not installed.
    """
    with naming_file_of(given):
        return _read(given.proto, given.weights, given.is_callers)


@contextmanager
def naming_file_of(given: GivenModel) -> Iterator[None]:
    """Errors of what is wrong with a model tell the path of its file."""
    try:
        yield
    except ValueError as error:
        if given.path is None:
            raise
        raise ValueError(f"model={shown(str(given.path))}: {error}") from None


def _read(proto: Any, weights: Mapping[str, np.ndarray], is_callers: bool) -> OnnxModel:
    """A ModelProto with its constants folded; a copy of it, where it is the caller's."""
    given = proto
    check_whole(proto)
    if any(t.data_location == t.EXTERNAL for t in proto.graph.initializer):
        raise ValueError("the data of the model lie in other files: give the path of the model")
    if not proto.graph.output:
        raise ValueError("the model has no outputs")
    proto = with_functions_inlined(proto)
    proto, weights = with_halves_widened(with_nodes_in_order(with_dense_constants(proto)), weights)
    proto = with_lists(with_products_spelled_out(with_loops_written_out(with_open_sizes(proto))))
    read = OnnxModel(spelled_out(proto), weights=weights)
    if not read.needs_folding():
        return read
    if is_callers and proto is given:
        proto = type(proto)()
        proto.CopyFrom(given)
    left = fold_constants(proto, weights)
    while (more := with_loops_written_out(proto)) is not proto:  # of what is known only now
        proto = more
        left = fold_constants(proto, left)
    return OnnxModel(spelled_out(with_lists(proto)), read.inputs, left)
