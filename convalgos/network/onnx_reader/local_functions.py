"""Functions that an ONNX model has of its own: calls of them are replaced by their bodies.

Functions call functions: a file of 2 kB can stand for more nodes than any memory holds. They are counted
before anything is replaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from convalgos.network.onnx_reader.order import bodies_of

MOST_NODES = 100_000  # ten times what the largest models have
MOST_BYTES = 1 << 30
MOST_DEPTH = 100  # of functions that call each other

Key = tuple[str, str]  # domain and name


class Size(NamedTuple):
    """Of the nodes that something stands for."""

    nodes: int
    bytes: int


def with_functions_inlined(proto: Any) -> Any:
    """A ModelProto without calls of its functions, but for those of other opsets; the very one without any.

    Raises:
        ValueError: they call each other for ever, or stand for too much.
    """
    if not proto.functions:
        return proto
    _check_functions(proto)
    import onnx.inliner

    return onnx.inliner.inline_local_functions(proto)


def _check_functions(model: Any) -> None:
    """ValueError where the functions of a model call each other for ever, or stand for too much."""
    functions = {(f.domain, f.name): f for f in model.functions}
    known: dict[Key, Size] = {}

    def size_of(nodes: Iterable[Any], way: tuple[Key, ...]) -> Size:
        sizes = [of_node(node, way) for node in _with_bodies(nodes)]
        return Size(sum(s.nodes for s in sizes), sum(s.bytes for s in sizes))

    def of_node(node: Any, way: tuple[Key, ...]) -> Size:
        key = (node.domain, node.op_type)
        if key not in functions:
            return Size(1, node.ByteSize())
        if key in way:
            calls = " -> ".join(name for _, name in (*way[way.index(key) :], key))
            raise ValueError(f"its functions call each other for ever: {calls}")
        if len(way) >= MOST_DEPTH:
            raise ValueError(f"its functions call each other more than {MOST_DEPTH} deep")
        if key not in known:
            known[key] = size_of(functions[key].node, (*way, key))
        return known[key]

    whole = size_of(model.graph.node, ())
    if whole.nodes > MOST_NODES or whole.bytes > MOST_BYTES:
        raise ValueError(
            f"its functions stand for {whole.nodes:,} nodes of {whole.bytes:,} bytes; at most {MOST_NODES:,} "
            f"nodes and {MOST_BYTES:,} bytes are read"
        )


def _with_bodies(nodes: Iterable[Any]) -> Iterator[Any]:
    """Nodes, and those of the bodies of If, Loop and Scan."""
    for node in nodes:
        yield node
        for body in bodies_of(node):
            yield from _with_bodies(body.node)
