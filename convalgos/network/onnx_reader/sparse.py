"""Constants that an ONNX model has as sparse tensors, written out: ONNX Runtime does the same."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from convalgos.network.onnx_reader.messages import array_of, tensor_of


def with_dense_constants(proto: Any) -> Any:
    """A ModelProto without sparse initializers; the very one where it has none.

    Raises:
        ValueError: places of one lie outside it, or are none.
    """
    if not proto.graph.sparse_initializer:
        return proto
    found = type(proto)()
    found.CopyFrom(proto)
    del found.graph.sparse_initializer[:]
    found.graph.initializer.extend(map(_dense, proto.graph.sparse_initializer))
    return found


def _dense(sparse: Any) -> Any:
    """The TensorProto of a SparseTensorProto."""
    values, places, name = array_of(sparse.values), array_of(sparse.indices), sparse.values.name
    shape, count = tuple(sparse.dims), len(values)
    if places.shape not in ((count,), (count, len(shape))):
        raise ValueError(f"the sparse constant {name!r} has {count} values at places of shape {places.shape}")
    if places.ndim == 2:
        inside = ((places >= 0) & (places < shape)).all()
        flat = places @ np.array([math.prod(shape[i + 1 :]) for i in range(len(shape))], np.int64)
    else:
        inside, flat = ((places >= 0) & (places < math.prod(shape))).all(), places
    if not inside:
        raise ValueError(f"the sparse constant {name!r} has values outside its shape {shape}")
    dense = np.zeros(shape, values.dtype)
    dense.reshape(-1)[flat] = values
    return tensor_of(dense, name)
