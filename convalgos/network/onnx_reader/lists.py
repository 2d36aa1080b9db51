"""Inputs by which nodes are told axes and sizes: lists, also where a model gives a number or a table.

The specification asks for one dimension. Exporters write numbers nevertheless: ONNX Runtime takes them for
some operators, as Resize, and refuses them for others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from convalgos.network.onnx_reader.messages import constant_tensor

REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
LISTS = {  # which inputs of an operator are lists
    "ConstantOfShape": (0,), "Expand": (1,), "Pad": (1, 3), "Reshape": (1,), "Resize": (1, 2, 3),
    "Slice": (1, 2, 3, 4), "Split": (1,), "Squeeze": (1,), "Tile": (1,), "TopK": (1,), "Unsqueeze": (1,),
    "Upsample": (1,), **{f"Reduce{of}": (1,) for of in REDUCTIONS},
}  # fmt: skip


def as_lists(op: str, inputs: Sequence[np.ndarray | None]) -> list[np.ndarray | None]:
    """The inputs of a node, where those that are lists have one dimension."""
    places = LISTS.get(op, ())
    return [x.reshape(-1) if i in places and x is not None else x for i, x in enumerate(inputs)]


def with_lists(proto: Any) -> Any:
    """A ModelProto whose constant lists have one dimension; the very one where they have."""
    tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
    for node in proto.graph.node:
        if node.op_type == "Constant" and (tensor := constant_tensor(node)) is not None:
            tensors[node.output[0]] = tensor
    others = {
        name
        for node in proto.graph.node
        for _, name in _lists_of(node)
        if name in tensors and len(tensors[name].dims) != 1
    }
    if not others:
        return proto
    taken = {*tensors, *(name for node in proto.graph.node for name in (*node.input, *node.output))}
    lists = {name: _free_name(f"{name}/list", taken) for name in sorted(others)}
    found = type(proto)()
    found.CopyFrom(proto)
    for name, as_list in lists.items():
        made = found.graph.initializer.add()
        made.CopyFrom(tensors[name])
        made.name, made.dims[:] = as_list, [math.prod(made.dims)]
    for node in found.graph.node:
        for i, name in _lists_of(node):
            if name in others:
                node.input[i] = lists[name]
    return found


def _free_name(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "/list"
    taken.add(name)
    return name


def _lists_of(node: Any) -> list[tuple[int, str]]:
    """Which inputs of a node are lists, and their names."""
    return [(i, node.input[i]) for i in LISTS.get(node.op_type, ()) if i < len(node.input)]
