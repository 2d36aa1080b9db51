"""How the tensors lie that a graph takes and gives.

The last axis of a network's arrays is that of neighbours in memory, so it gets and gives views of tensors
that lie otherwise, as those with the channels last do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, fx

from convalgos.network.torch_reader.model import size_tried

Of = TypeVar("Of")
Order = tuple[int, ...]  # the dimensions of a tensor, that of neighbours in memory last
PERMUTE = torch.ops.aten.permute.default


def order_in_memory(shape: Sequence[int], strides: Sequence[int]) -> Order | None:
    """In which order a tensor lies; None where that is the order of its dimensions, or it lies in none."""
    if 0 in shape or any(n > 1 and not step for n, step in zip(shape, strides, strict=True)):
        return None
    plain = tuple(range(len(shape)))
    for order in (plain, (*plain[:1], *plain[2:], *plain[1:2])):
        steps = by_order(strides, order)
        if sorted(steps, reverse=True) == [*steps]:
            return None if order == plain else order
    return tuple(sorted(plain, key=lambda i: -strides[i]))


def by_order(of_dimensions: Sequence[Of], order: Order | None) -> tuple[Of, ...]:
    """What is given for each dimension, as it lies."""
    return tuple(of_dimensions) if order is None else tuple(of_dimensions[i] for i in order)


def as_seen(order: Order) -> Order:
    """By which dimensions what lies in an order is permuted to be the tensor."""
    return tuple(order.index(i) for i in range(len(order)))


def doubled(tensor: Tensor) -> Tensor:
    """A batch of two of a batch of one, which lies in the same order."""
    order = order_in_memory(tensor.shape, tensor.stride())
    if order is None:
        return torch.cat((tensor, tensor))
    laid = tensor.permute(order)
    return torch.cat((laid, laid), order.index(0)).permute(as_seen(order))


def take_laid(graph: fx.GraphModule, orders: Sequence[Order | None]) -> None:
    """Let a graph take views of its inputs that lie in order."""
    for node, order in zip(graph.graph.find_nodes(op="placeholder"), orders, strict=True):
        if order is None:
            continue
        tensor = node.meta["val"]
        with graph.graph.inserting_after(node):
            seen = _permuted(graph, node, as_seen(order), tensor)
        node.replace_all_uses_with(seen, lambda user, seen=seen: user is not seen)
        node.meta = {**node.meta, "val": tensor.permute(order)}
    graph.recompile()


def give_laid(graph: fx.GraphModule) -> tuple[Order | None, ...]:
    """Let a graph give views that lie in order of what lies otherwise in torch; the orders of the results."""
    output = graph.graph.output_node()
    given: Any = output.args[0]
    orders = tuple(map(_order_given, given))
    with graph.graph.inserting_before(output):
        views = [
            node if order is None else _permuted(graph, node, order, node.meta["val"].permute(order))
            for node, order in zip(given, orders, strict=True)
        ]
    output.args = (tuple(views),)
    graph.recompile()
    return orders


def _permuted(graph: fx.GraphModule, node: fx.Node, dimensions: Order, tensor: Tensor) -> fx.Node:
    made = graph.graph.call_function(PERMUTE, (node, list(dimensions)))
    made.meta["val"] = tensor
    return made


def _order_given(node: Any) -> Order | None:
    """The order of a result without gaps."""
    tensor = node.meta.get("val") if isinstance(node, fx.Node) and node.op != "placeholder" else None
    if not isinstance(tensor, Tensor) or tensor.layout != torch.strided:
        return None
    shape, strides = (tuple(map(size_tried, of)) for of in (tensor.shape, tensor.stride()))
    order = order_in_memory(shape, strides)
    if order is None:
        return None
    step = 1
    for n, stride in zip(reversed(by_order(shape, order)), reversed(by_order(strides, order)), strict=True):
        if n > 1 and stride != step:
            return None
        step *= n
    return order
