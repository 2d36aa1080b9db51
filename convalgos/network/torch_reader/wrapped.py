"""Parts of a graph that contexts of torch wrap, such as `torch.no_grad()`, put into the graph itself."""

from __future__ import annotations

import operator
from typing import Any

from torch import fx


def unwrap(graph: fx.GraphModule) -> None:
    """Put what contexts wrap that change nothing here in their place."""
    while found := [node for node in graph.graph.nodes if _changes_nothing(node)]:
        for node in found:
            _put_in_place(graph, node)
    graph.graph.eliminate_dead_code(lambda node: node.op != "get_attr")
    graph.recompile()


def _changes_nothing(node: fx.Node) -> bool:
    """Whether it is a context of gradients, or of lower precision that is off or on another device."""
    name = getattr(node.target, "__name__", "")  # not every version of torch has both
    if name == "wrap_with_autocast":
        return node.args[0] != "cpu" or not node.args[2]
    return bool(name == "wrap_with_set_grad_enabled")


def _put_in_place(graph: fx.GraphModule, node: fx.Node) -> None:
    args: list[Any] = list(node.args)
    i = next(i for i, value in enumerate(args) if _is_module(graph, value))
    body = getattr(graph, args[i].target)
    known: dict[fx.Node, Any] = dict(zip(body.graph.find_nodes(op="placeholder"), args[i + 1 :], strict=True))
    for inner in body.graph.find_nodes(op="get_attr"):
        name = f"{args[i].target}_{inner.target}".replace(".", "_")
        setattr(graph, name, operator.attrgetter(inner.target)(body))
        with graph.graph.inserting_before(node):
            known[inner] = graph.graph.get_attr(name)
        known[inner].meta = inner.meta
    with graph.graph.inserting_before(node):
        outputs: Any = graph.graph.graph_copy(body.graph, known)
    for user in list(node.users):
        part: Any = user.args[1]
        user.replace_all_uses_with(outputs[part])
        graph.graph.erase_node(user)
    graph.graph.erase_node(node)


def _is_module(graph: fx.GraphModule, value: Any) -> bool:
    """Whether an argument is the graph that is wrapped."""
    if not isinstance(value, fx.Node) or value.op != "get_attr":
        return False
    return isinstance(getattr(graph, str(value.target), None), fx.GraphModule)
