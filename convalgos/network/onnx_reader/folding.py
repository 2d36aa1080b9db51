"""Nodes of an ONNX model that compute what is constant, folded: their outputs are constants then.

What follows from known sizes is constant, too. Large weights are read where they lie in their file, and what
is made of them goes to another, so that none is in memory longer than its node is computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from convalgos.network.mapped_weights import MAPPED
from convalgos.network.onnx_reader.messages import kind_of_dtype, tensor_of
from convalgos.network.onnx_reader.order import read_by
from convalgos.network.onnx_reader.sizes import KnownValues


def fold_constants(proto: Any, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Compute what is constant in a ModelProto, which is written to, and drop what nobody reads then.

    Returns:
        The weights that its tensors lack.
    """
    known = KnownValues(proto, weights)
    nodes, made = [], []
    for node in proto.graph.node:
        if known.follow(node):
            continue
        nodes.append(own := type(node).FromString(node.SerializeToString()))
        if node.op_type == "Reshape" and (target := known.target(node)) is not None:
            made.append(target)
            own.input[1] = target.name
    read = {value.name for value in proto.graph.output}
    kept = []
    for node in reversed(nodes):
        if not read.isdisjoint(node.output):
            kept.append(node)
            read |= {*read_by(node)}
    del proto.graph.node[:]
    proto.graph.node.extend(reversed(kept))
    proto.graph.initializer.extend(made)
    found = {name: array for name, array in weights.items() if name in read}
    for name, array in known.computed.items():
        if name not in read:
            continue
        if array.nbytes < MAPPED:
            proto.graph.initializer.append(tensor_of(array, name))
            continue
        proto.graph.initializer.add(name=name, data_type=kind_of_dtype(array.dtype), dims=array.shape)
        found[name] = array
    return found
