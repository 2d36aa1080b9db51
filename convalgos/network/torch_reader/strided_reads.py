"""Operators of torch that read memory by strides of their own, and so by how a tensor lies there."""

from __future__ import annotations

import torch
from torch import Tensor, fx

ATEN = torch.ops.aten
BY_STRIDES = (ATEN.as_strided.default, ATEN.as_strided_copy.default, ATEN.as_strided_scatter.default)


def reads_by_strides(graph: fx.GraphModule) -> bool:
    """Whether a graph has such operators, of tensors whose elements lie one after the other.

    Raises:
        ValueError: it has one of a tensor that lies otherwise, or from a place that it gives itself.
    """
    nodes = [node for node in graph.graph.nodes if node.target in BY_STRIDES]
    for node in nodes:
        tensor = node.args[0].meta["val"]
        assert isinstance(tensor, Tensor), "all operators among these read a tensor first"
        of_scatter = node.target is ATEN.as_strided_scatter.default
        given = node.args[4 if of_scatter else 3 :] or node.kwargs.get("storage_offset") is not None
        if given or not tensor.is_contiguous():
            raise ValueError(f"{node.target} reads memory in an order of its own")
    return bool(nodes)
