"""Nodes in the place of those of which ONNX does not infer the shape, though it is that of another value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

SHAPED_LIKE_THE_FIRST = ("GroupNormalization",)  # of which ONNX infers no more than the rank


def with_stand_ins(nodes: Iterable[Any]) -> tuple[list[Any], dict[str, str]]:
    """(nodes whose outputs have the shapes of those given, value -> one whose element type it has instead).

    A Reshape to the Shape of another value is one that opsets before 14 do not follow.
    """
    shaped: dict[str, str] = {}  # value that is a shape -> of what
    made: list[Any] = []
    types: dict[str, str] = {}
    for node in nodes:
        if node.op_type == "Shape" and not node.attribute:
            shaped[node.output[0]] = node.input[0]
        like = node.input[0] if node.op_type in SHAPED_LIKE_THE_FIRST else None
        if node.op_type == "Reshape" and not node.attribute and len(node.input) > 1:
            like = shaped.get(node.input[1])
            if like is not None:
                types[node.output[0]] = node.input[0]
        if like is not None and not node.domain:
            node = _identity(node, like)
        made.append(node)
    return made, types


def _identity(node: Any, of: str) -> Any:
    found = type(node)(op_type="Identity", name=node.name)
    found.input.append(of)
    found.output.append(node.output[0])
    return found
