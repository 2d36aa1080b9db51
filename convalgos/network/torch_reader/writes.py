"""Operators of ATen that write into tensors, and others that give new ones in their place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

ATEN = torch.ops.aten
IN_TRAINING = ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")  # else x itself


class Memories:
    """Which tensors of a graph lie in the same memory, as the nodes tell that `torch.export` made."""

    def __init__(self, graph: fx.GraphModule):
        self.place = {node: i for i, node in enumerate(graph.graph.nodes)}
        self._of: dict[fx.Node, int] = {}
        self._nodes: defaultdict[int, list[fx.Node]] = defaultdict(list)
        same: dict[int, int] = {}  # what torch takes for memory of its own
        for node in self.place:
            memory = memory_of(node.meta.get("val"))
            if memory is None:
                continue
            if _name(node) in (*IN_TRAINING, "alias") and node.args[0] in self._of:
                same[memory] = self._of[node.args[0]]
            self._of[node] = same.get(memory, memory)
            self._nodes[self._of[node]].append(node)

    def beside(self, node: fx.Node) -> Sequence[fx.Node]:
        """The nodes whose tensors lie in the same memory as that of one, which is among them."""
        return self._nodes[self._of[node]] if node in self._of else [node]

    def share(self, node: fx.Node, other: fx.Node) -> bool:
        return node in self._of and self._of[node] == self._of.get(other)

    def is_stale(self, node: fx.Node, write: fx.Node) -> bool:
        """Whether a tensor is of before a write, and is read after it."""
        at = self.place[write]
        return self.place[node] < at and any(self.place[user] > at for user in node.users)


def is_write(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return node.op == "call_function" and schema is not None and schema.is_mutable


def replace_detachments(graph: fx.GraphModule) -> None:
    """Put `detach` in the place of what counts as a write and writes no numbers."""
    for node in graph.graph.find_nodes(op="call_function", target=ATEN.detach_.default):
        node.target = ATEN.detach.default


def replace_dropout(graph: fx.GraphModule) -> None:
    """Put `alias` in the place of dropout in eval, which does not tell that it gives what it reads."""
    for node in graph.graph.nodes:
        if _name(node) in IN_TRAINING and node.args[2:] == (False,):
            node.target, node.args = ATEN.alias.default, node.args[:1]
    graph.recompile()


def check_arguments(graph: fx.GraphModule) -> None:
    """Raises ValueError for writes into arguments, which whoever calls sees."""
    memories = Memories(graph)
    for write in filter(is_write, memories.place):
        for node in memories.beside(write):
            if node.op == "placeholder":
                raise ValueError(f"{_name(write)} writes into an argument")


def check_writes(graph: fx.GraphModule) -> None:
    """Raises ValueError for writes that torch cannot put away: into parameters, which later calls would read,
    and into what operators give as the memory of another tensor and do not tell."""
    memories = Memories(graph)
    for write in filter(is_write, memories.place):
        for node in memories.beside(write):
            if node.op == "get_attr":
                name = str(node.target).removeprefix("module.")
                raise ValueError(f"it writes into {name}, which the next call would read")
            if not _tellsmemory_of(node, memories):
                raise ValueError(f"it writes into what {_name(node)} gives, which is the memory of its input")


def _tellsmemory_of(node: fx.Node, memories: Memories) -> bool:
    """Whether an operator tells that what it gives lies in the memory of what it reads, where it does."""
    schema = getattr(node.target, "_schema", None)
    told = schema is None or any(r.alias_info for r in schema.returns)
    return told or not any(memories.share(node, read) for read in node.all_input_nodes)


def written_apart(graph: fx.GraphModule, can_compute: Callable[[fx.Node], bool]) -> set[fx.Node]:
    """Nodes in memory that is written to, and that cannot be computed once with all that writes to it.

    Args:
        can_compute: whether a node can be computed once, if what it reads can.
    """
    memories = Memories(graph)
    written = [memories.beside(node) for node in memories.place if is_write(node)]
    varying = {node for node in memories.place if written and node.op != "get_attr" and not can_compute(node)}
    before = -1
    while before < len(varying):
        before = len(varying)
        for node in memories.place:
            if node not in varying and not varying.isdisjoint(node.all_input_nodes):
                varying.add(node)
        for nodes in written:
            if not varying.isdisjoint(nodes) or _is_read_between(nodes, varying, memories):
                varying |= {*nodes}
    return {node for nodes in written for node in nodes if node in varying}


def _is_read_between(nodes: Sequence[fx.Node], varying: set[fx.Node], memories: Memories) -> bool:
    """Whether a parameter is written, or what is written is read before the last write by what varies."""
    last = max(memories.place[node] for node in nodes if is_write(node))
    users = (user for node in nodes for user in node.users if not _name(user).startswith("_assert"))
    return any(node.op == "get_attr" for node in nodes) or any(
        user in varying and memories.place[user] < last for user in users
    )


def replace_writes(graph: fx.GraphModule) -> bool:
    """Put operators that give a new tensor in the place of those that write; False where others read what
    these have written."""
    memories = Memories(graph)
    for node in list(memories.place):
        if not is_write(node):
            continue
        written, plain = node.args[0] if node.args else None, _without_write(node)
        if plain is None or not isinstance(written, fx.Node):
            return False
        for other in memories.beside(written):
            if other.op == "get_attr" or (other is not written and memories.is_stale(other, node)):
                return False
        later = {user for user in written.users if memories.place[user] > memories.place[node]}
        written.replace_all_uses_with(node, delete_user_cb=later.__contains__)
        node.target = plain
    return True


def _without_write(node: fx.Node) -> Any:
    """The operator that gives what another one writes; None where there is none."""
    name, overload = _name(node), node.target._overloadname  # type: ignore[union-attr]
    plain = getattr(ATEN, name.removesuffix("_"), None) if name.endswith("_") else None
    return getattr(plain, overload, None)


def _name(node: fx.Node) -> str:
    """Of an operator of ATen; "" of others."""
    name: str = getattr(getattr(node.target, "_schema", None), "name", "")
    return name.removeprefix("aten::") if name.startswith("aten::") else ""


def memory_of(value: Any) -> int | None:
    """What tells the memory of a tensor from others; of several, as of a split, that of the first."""
    if isinstance(value, tuple | list):
        value = next(iter(value), None)
    return value.untyped_storage()._cdata if isinstance(value, Tensor) else None
