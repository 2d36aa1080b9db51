"""Nodes of an ONNX model that compute what is constant, folded.

What follows from known sizes is found here. All else that only constants decide is left to ONNX Runtime's own
optimiser, which gets the model without its weights: it would hold them several times at once.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from convalgos.core.errors import Unsupported, missing
from convalgos.network.mapped_weights import MAPPED
from convalgos.network.onnx_file import Weights, read_onnx_file
from convalgos.network.onnx_order import read_by
from convalgos.network.onnx_sizes import make_known_sizes_constant

ONNX_NAMES = ("", "ai.onnx")  # of ONNX's own domain


def fold_sizes(proto: Any) -> None:
    """Make sizes that are known constants of a ModelProto, and drop what nobody reads then."""
    make_known_sizes_constant(proto)
    read = {value.name for value in proto.graph.output}
    kept = []
    for node in reversed(proto.graph.node):
        if not read.isdisjoint(node.output):
            kept.append(node)
            read |= {*read_by(node)}
    if len(kept) < len(proto.graph.node):
        nodes = [type(node).FromString(node.SerializeToString()) for node in reversed(kept)]
        del proto.graph.node[:]
        proto.graph.node.extend(nodes)


def fold_constants(proto: Any, weights: Weights) -> tuple[Any, Weights]:
    """A ModelProto and the weights that its tensors lack, with what is constant in it computed.

    Args:
        proto: it is written to.

    Raises:
        ValueError: ONNX Runtime cannot load the model. Unsupported: it is not installed.
    """
    if reason := missing("onnxruntime"):
        raise Unsupported(f"folding the constants of this model {reason}")
    outside = _without_weights(proto, weights)
    found, own = _optimised(proto)
    kept = {name for node in found.graph.node for name in read_by(node)} | {
        v.name for v in found.graph.output
    }
    inputs = [value for value in found.graph.input if value.name not in outside]
    del found.graph.input[:]
    found.graph.input.extend(inputs)
    found.graph.initializer.extend(tensor for name, tensor in outside.items() if name in kept)
    own |= {name: array for name, array in weights.items() if name in outside}
    fold_sizes(found)
    return found, own


def _read_as_constants(proto: Any) -> set[str]:
    """Values that nodes read from which what is constant is computed, or that may have to be constant."""
    known = {tensor.name for tensor in proto.graph.initializer} | {""}
    found = set()
    for node in proto.graph.node:
        read = read_by(node)
        if node.domain not in ONNX_NAMES:
            found |= {*read}
        elif node.op_type != "DequantizeLinear" and known.issuperset(read):
            known |= {*node.output}
            found |= {*read}
    return found


def _without_weights(proto: Any, weights: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Make large constants inputs of a model, but for those that the optimiser may need to know.

    Returns:
        Their tensors, by name. All that stay have their data.
    """
    import onnx

    needed = _read_as_constants(proto)
    needed |= {value.name for value in proto.graph.output}
    declared = {value.name for value in proto.graph.input}
    outside, inside = {}, []
    for tensor in proto.graph.initializer:
        name = tensor.name
        nbytes = math.prod(tensor.dims) * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
        if name in needed or nbytes < MAPPED:
            array = weights.get(name)
            inside.append(tensor if array is None else onnx.numpy_helper.from_array(array, name))
            continue
        outside[name] = type(tensor).FromString(tensor.SerializeToString())
        if name not in declared:
            proto.graph.input.append(
                onnx.helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims))
            )
    inside = [type(tensor).FromString(tensor.SerializeToString()) for tensor in inside]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(inside)
    return outside


def _optimised(proto: Any) -> tuple[Any, Weights]:
    """A model as ONNX Runtime writes it after its basic optimisation, as `read_onnx_file` gives it."""
    import onnxruntime

    with tempfile.TemporaryDirectory(prefix="convalgos-onnx-") as folder:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(Path(folder) / "model.onnx")
        options.log_severity_level = 3  # errors
        try:
            onnxruntime.InferenceSession(
                proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # its own types, which have no base but this
            raise ValueError(f"ONNX Runtime cannot load the model: {error}") from None
        return read_onnx_file(Path(options.optimized_model_filepath))
