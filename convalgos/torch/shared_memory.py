"""Outputs of a graph that share the memory of an input, or of one another: views, made by torch.

A network gives arrays of its own. What is done after a compiled part of a function may write into one of its
outputs, and the others, or an input, then have to show that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

BY_ORDER = {  # functions and methods that give a view or a copy, by the order in which elements lie
    "view", "view_as", "reshape", "reshape_as", "ravel", "flatten", "contiguous", "to", "float",
}  # fmt: skip
VIEWS = BY_ORDER | {  # and all that may give a view, and write nothing
    "getitem", "getattr", "unflatten", "squeeze", "unsqueeze", "transpose", "swapaxes", "swapdims", "permute",
    "movedim", "moveaxis", "t", "adjoint", "expand", "expand_as", "broadcast_to", "broadcast_tensors",
    "select", "narrow", "chunk", "split", "split_with_sizes", "tensor_split", "hsplit", "vsplit", "dsplit",
    "unbind", "unfold", "diagonal", "meshgrid", "type_as", "detach", "alias", "dropout", "dropout1d",
    "dropout2d", "dropout3d", "alpha_dropout", "atleast_1d", "atleast_2d", "atleast_3d", "real",
    "view_as_real", "view_as_complex", "positive", "resolve_conj", "resolve_neg",
}  # fmt: skip


class PartedGraph(NamedTuple):
    """A graph in two parts, the second of which only makes views."""

    graph: fx.GraphModule  # from the inputs to what the views are of, but for the inputs
    views: fx.GraphModule  # from the inputs, and what the first part gives, to the outputs


def part_views(graph: fx.GraphModule) -> PartedGraph | None:
    """The parts of a graph of dynamo some of whose outputs share memory; None if they do not.

    Raises:
        ValueError: what shares memory is not made by views alone.
    """
    outputs: Sequence[Any] = graph.graph.output_node().args[0]  # type: ignore[assignment] # dynamo's tuple
    inputs = graph.graph.find_nodes(op="placeholder")
    count = Counter(filter(None, map(_memory, outputs)))
    shared = {memory for memory, n in count.items() if n > 1} | {*map(_memory, inputs)} & {*count}
    if not shared:
        return None
    first: dict[Any, fx.Node] = {}
    for node in graph.graph.nodes:
        first.setdefault(_memory(node), node)
    made: dict[fx.Node, fx.Node] = {}  # by the second part, of those of the graph
    given: list[fx.Node] = []  # by the first part to the second
    views = fx.Graph()
    for node in inputs:
        made[node] = views.placeholder(node.name)

    def of(node: fx.Node) -> fx.Node:
        if node not in made:
            memory = _memory(node)
            is_tensor = isinstance(node.meta.get("example_value"), Tensor)
            if node.op != "get_attr" and is_tensor and (memory not in shared or first[memory] is node):
                given.append(node)
                with views.inserting_before(begin):
                    made[node] = views.placeholder(f"given_{len(given)}")
            else:
                _check_view(node, first[memory])
                made[node] = views.node_copy(node, of)
        return made[node]

    begin = views.call_function(tuple, ())  # before which inputs are put
    views.output(tuple(map(of, outputs)))
    views.erase_node(begin)
    network = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}
    network.graph_copy(graph.graph, copied)
    network.output(tuple(copied[node] for node in given))
    return PartedGraph(fx.GraphModule(graph, network), fx.GraphModule(graph, views))


def _memory(node: fx.Node) -> int | None:
    """What tells the memory of a node's tensor from others; None of what has none."""
    while (passed_on := _passed_on(node)) is not None:
        node = passed_on
    value = node.meta.get("example_value")
    if not isinstance(value, Tensor) or value.layout != torch.strided:
        return None
    if any(isinstance(size, int) and size == 0 for size in value.shape):  # other sizes may be open
        return None
    return int(value.untyped_storage()._cdata)


def _passed_on(node: fx.Node) -> fx.Node | None:
    """The tensor that a dropout outside of training returns, of which dynamo takes it for a copy."""
    if _name(node) != "dropout":
        return None
    given = dict(zip(("input", "p", "training"), node.args, strict=False)) | node.kwargs
    tensor = given.get("input")
    return None if given.get("training", True) or not isinstance(tensor, fx.Node) else tensor


def _check_view(node: fx.Node, first: fx.Node) -> None:
    """Raise ValueError for a node that may do more than make views: only those may be run once more.

    Args:
        first: the node whose memory it shows; what the network gives for it lies in order.
    """
    if node.op == "get_attr" or not any(_tensors(node)):
        return
    name = _name(node)
    writes = node.kwargs.get("inplace") or any(given is True for given in node.args[3:])
    if node.op not in ("call_method", "call_function") or name not in VIEWS or writes:
        raise ValueError(f"{name} gives what shares the memory of another tensor")
    if name in BY_ORDER and first.op != "placeholder" and not first.meta["example_value"].is_contiguous():
        raise ValueError(f"{name} gives a view of what does not lie in order")


def _name(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _tensors(node: fx.Node) -> Iterator[bool]:
    """Whether each part of what a node gives is a tensor."""
    return (isinstance(part, Tensor) for part in pytree.tree_leaves(node.meta.get("example_value")))
