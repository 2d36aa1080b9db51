"""An ONNX model from a path, its bytes, or a ModelProto; what is wrong with a file is told with its path."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from convalgos.core.arguments import shown
from convalgos.core.errors import Unsupported, missing
from convalgos.network.onnx_reader.damage import check_whole
from convalgos.network.onnx_reader.einsum import with_products_spelled_out
from convalgos.network.onnx_reader.file import read_onnx_file, with_open_sizes
from convalgos.network.onnx_reader.folding import fold_constants
from convalgos.network.onnx_reader.half_floats import with_halves_widened
from convalgos.network.onnx_reader.lists import with_lists
from convalgos.network.onnx_reader.loops import with_loops_written_out
from convalgos.network.onnx_reader.messages import messages
from convalgos.network.onnx_reader.model import OnnxModel
from convalgos.network.onnx_reader.order import with_nodes_in_order
from convalgos.network.onnx_reader.qdq import spelled_out


def load_onnx(model: Any) -> OnnxModel:
    """A model from a path, its bytes, or a ModelProto; what is constant in it is folded.

    Raises:
        ValueError: it is no model, or its data lie elsewhere. Unsupported: onnx is not installed, or what
            is constant needs ONNX Runtime, which is not.
    """
    if reason := missing("onnx"):
        raise Unsupported(f"reading an ONNX model {reason}")
    from google.protobuf.message import DecodeError

    path: Path | None = None
    weights: Mapping[str, np.ndarray] = {}
    try:
        if isinstance(model, str | os.PathLike):
            path = Path(model)
            proto, weights = read_onnx_file(path)
        elif isinstance(model, bytes | bytearray | memoryview):
            proto = messages().ModelProto.FromString(bytes(model))
        elif isinstance(model, messages().ModelProto):
            proto = model
        else:
            raise ValueError(f"model={shown(model)} must be a path, the bytes of a model, or a ModelProto")
    except DecodeError as error:
        raise ValueError(f"model={shown(str(path or 'bytes'))} is no ONNX model: {error}") from None
    try:
        return _read(proto, weights, proto is model)
    except ValueError as error:
        if path is None:
            raise
        raise ValueError(f"model={shown(str(path))}: {error}") from None


def _read(proto: Any, weights: Mapping[str, np.ndarray], is_callers: bool) -> OnnxModel:
    """A ModelProto with its constants folded; a copy of it, where it is the caller's."""
    given = proto
    check_whole(proto)
    if any(t.data_location == t.EXTERNAL for t in proto.graph.initializer):
        raise ValueError("the data of the model lie in other files: give the path of the model")
    if not proto.graph.output:
        raise ValueError("the model has no outputs")
    proto, weights = with_halves_widened(with_nodes_in_order(proto), weights)
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
