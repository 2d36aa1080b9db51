"""The nodes of an ONNX graph in an order in which each reads what was written before it.

ONNX asks for it, but ONNX Runtime runs models in any order, and some converters write such.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from convalgos.network.onnx_reader.sizes import ONNX_NAMES


def with_nodes_in_order(proto: Any) -> Any:
    """A ModelProto with its nodes in order; the very one where they are.

    Raises:
        ValueError: there is no order; names what is read before it is written, or never is.
    """
    nodes = list(proto.graph.node)
    read = [{*read_by(node)} for node in nodes]
    waiting = {name for node in nodes for name in node.output if name}  # not written yet
    given = {v.name for v in (*proto.graph.input, *proto.graph.initializer)}
    given |= {v.values.name for v in proto.graph.sparse_initializer}
    if lacking := set().union(*read) - waiting - given - {""}:
        raise ValueError(f"the model reads {min(lacking)!r}, which nothing writes")
    written = waiting | given
    if lacking := {v.name for v in proto.graph.output} - written:
        raise ValueError(f"the model has the output {min(lacking)!r}, which nothing writes")
    order: list[int] = []
    left = list(range(len(nodes)))
    while left:
        later = []
        for i in left:
            if waiting.isdisjoint(read[i]):
                order.append(i)
                waiting -= {*nodes[i].output}
            else:
                later.append(i)
        if len(later) == len(left):
            name = min(waiting & read[left[0]])
            raise ValueError(f"the model reads {name!r} before anything can write it: its nodes are a circle")
        left = later
    if order == sorted(order):
        return proto
    found = type(proto)()
    found.CopyFrom(proto)
    del found.graph.node[:]
    found.graph.node.extend(nodes[i] for i in order)
    return found


def read_by(node: Any) -> list[str]:
    """Values that a node and the bodies in it read."""
    return [*node.input, *captured_by(node)]


def captured_by(node: Any) -> list[str]:
    """Values of the graph around it that the bodies of an If, a Loop or a Scan read."""
    found = []
    for body in bodies_of(node):
        own = {v.name for v in (*body.input, *body.initializer)}
        for inner in body.node:
            found += [n for n in (*inner.input, *captured_by(inner)) if n not in own]
            own |= {*inner.output}
        found += [v.name for v in body.output if v.name not in own]
    return found


def bodies_of(node: Any) -> list[Any]:
    """The graphs in a node, as the branches of an If."""
    found = []
    for attribute in node.attribute:
        found += [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]
    return found


def without_identities(graph: Any) -> list[Any]:
    """The nodes, where readers of an Identity or a Dropout read its input, but for bodies of other nodes."""
    captured = {name for node in graph.node for name in captured_by(node)}
    kept = captured | {output.name for output in graph.output}
    read = {name for node in graph.node for name in node.input}
    same: dict[str, str] = {}
    nodes = []
    for node in graph.node:
        if any(name in same for name in node.input):
            renamed = type(node)()
            renamed.CopyFrom(node)
            del renamed.input[:]
            renamed.input.extend(same.get(name, name) for name in node.input)
            node = renamed
        drops = node.op_type == "Dropout" and len(node.input) < 3 and not read & {*node.output[1:]}
        if node.domain in ONNX_NAMES and (drops or node.op_type == "Identity") and node.output[0] not in kept:
            same[node.output[0]] = node.input[0]
        else:
            nodes.append(node)
    return nodes


def squeezed_as_are(nodes: Iterable[Any]) -> set[str]:
    """Values that have fewer dimensions where sizes are 1: of a Squeeze without axes, and what is made of
    them."""
    found: set[str] = set()
    for node in nodes:
        bare = node.op == "Squeeze" and not any(node.inputs[1:]) and "axes" not in node.attributes
        if bare or not found.isdisjoint(node.inputs):
            found |= {*node.outputs}
    return found
