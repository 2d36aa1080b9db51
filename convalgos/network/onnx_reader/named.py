"""The loop of all searches for patterns: what a model spells out in several nodes becomes one node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from convalgos.network.onnx_reader.model import OnnxModel, OnnxNode

Named = tuple[OnnxNode, Iterable[str]]  # the one node, and the outputs of the nodes before that it stands for


def with_patterns_named(
    model: OnnxModel, ending_in: Callable[[OnnxNode, OnnxModel, Counter[str]], Named | None]
) -> list[OnnxNode]:
    """The nodes of a model, where those that make up a pattern are one.

    Args:
        ending_in: (last node, model, how often each value is read) -> the pattern that ends there, or None.
    """
    readers = Counter(name for node in model.nodes for name in node.inputs)
    readers.update(model.outputs)
    found: dict[str, OnnxNode] = {}
    gone: set[str] = set()
    for node in model.nodes:
        if (named := ending_in(node, model, readers)) is not None:
            found[node.outputs[0]], inside = named
            gone.update(inside)
    return [
        found.get(n.outputs[0], n) if n.outputs else n
        for n in model.nodes
        if not n.outputs or n.outputs[0] not in gone
    ]
