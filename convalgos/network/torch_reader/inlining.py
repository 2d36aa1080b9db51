"""Parts of a model under `torch.autocast`, which are graphs of their own in what `torch.export` makes."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx


def inline_parts(graph: fx.GraphModule) -> None:
    """Put the nodes of such parts in their place, where they compute the same there."""
    for node in list(graph.graph.nodes):
        if node.target is torch.ops.higher_order.wrap_with_autocast:
            device, _, casts, _, held, *given = node.args
            part: Any = getattr(graph, held.target)
            inline_parts(part)
            if not (casts and device == "cpu") and _is_read_apart(node, part):
                _inline(graph, node, part, given)
                if not held.users:
                    graph.graph.erase_node(held)


def _is_read_apart(node: fx.Node, part: fx.GraphModule) -> bool:
    """Whether each output of a part is read by itself, and nothing that only the part knows is read in it."""
    apart = all(user.target is operator.getitem for user in node.users)
    return apart and all(inner.op != "get_attr" for inner in part.graph.nodes)


def _inline(graph: fx.GraphModule, node: fx.Node, part: fx.GraphModule, given: list[Any]) -> None:
    inputs = [inner for inner in part.graph.nodes if inner.op == "placeholder"]
    with graph.graph.inserting_before(node):
        made: Any = graph.graph.graph_copy(part.graph, dict(zip(inputs, given, strict=True)))
    for user in list(node.users):
        user.replace_all_uses_with(made[user.args[1]])
        graph.graph.erase_node(user)
    graph.graph.erase_node(node)
