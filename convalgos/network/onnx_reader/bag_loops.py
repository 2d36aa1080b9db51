"""Bags of embeddings as torch writes them: a loop over the rows of a matrix of places.

Its body takes a slice of all places, from an offset to the next one, gathers the rows of a table there, and
reduces them. Offsets are those of rows of one length, so that no loop is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from convalgos.network.onnx_reader.messages import node_attributes
from convalgos.network.onnx_reader.types import INT32, INT64

REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax")
Numbers = Callable[[str], int | None]  # a constant of one number, by the name of the value


class BagLoop(NamedTuple):
    """What such a loop computes: a reduction over the last dimension of places, of the rows of a table."""

    op: str
    table: str
    places: str


def bag_of_loop(loop: Any, body: Any, makers: Mapping[str, Any], number: Numbers) -> BagLoop | None:
    """The bag that a loop computes, if it is one.

    Args:
        makers: nodes before the loop, by what they make.
        number: of constants of the graph and of the body.
    """
    if len(loop.input) != 2 or len(loop.output) != 1 or len(body.output) != 2:
        return None
    inner = _Values({name: node for node in body.node for name in node.output}, number)
    outer = _Values(makers, number)
    reduce = inner.maker(body.output[1].name)
    if reduce is None or reduce.op_type not in REDUCTIONS or not inner.reduces_first(reduce):
        return None
    gather = inner.maker(reduce.input[0], "Gather")
    part = None if gather is None else inner.maker(gather.input[1], "Slice")
    if gather is None or part is None or not (inner.is_first(gather) and inner.slices_first(part)):
        return None
    if gather.input[0] in inner.makers:
        return None
    turn = body.input[0].name
    begin, end = (inner.element(name, turn) for name in part.input[1:3])
    if begin is None or end is None or outer.length(loop.input[0]) != end:
        return None
    places = outer.rows_of(part.input[0], begin, end)
    return None if places is None else BagLoop(reduce.op_type, gather.input[0], places)


def _changes_integers(node: Any) -> bool:
    return node.op_type == "Cast" and node_attributes(node)["to"] in (INT32, INT64)


class _Values:
    """Values of a graph by what makes them."""

    def __init__(self, makers: Mapping[str, Any], number: Numbers):
        self.makers, self._number = makers, number

    def maker(self, name: str, op: str = "") -> Any:
        """The node that makes a value, behind changes to other integers; None of another operator."""
        node = self.makers.get(name)
        while node is not None and (node.op_type == "Identity" or _changes_integers(node)):
            node = self.makers.get(node.input[0])
        return node if node is not None and op in ("", node.op_type) else None

    def is_first(self, node: Any) -> bool:
        """Whether a node is about the first dimension."""
        return bool(node_attributes(node).get("axis", 0) == 0)

    def slices_first(self, node: Any) -> bool:
        """Whether a slice takes all elements of a list from one on up to another, which are inputs."""
        wanted = zip(node.input[3:], (0, 1), strict=False)  # axes, steps
        return len(node.input) > 2 and all(self._number(name) == n for name, n in wanted if name)

    def reduces_first(self, node: Any) -> bool:
        """Whether a reduction takes the first dimension away, and no other."""
        attributes = node_attributes(node)
        axes = attributes.get("axes") or [self._number(name) for name in node.input[1:2]]
        return list(axes) == [0] and attributes.get("keepdims", 1) == 0

    def element(self, name: str, turn: str) -> str | None:
        """The list whose element of this turn a value is, as a list of one."""
        list_of_one = self.maker(name, "Unsqueeze")
        found = None if list_of_one is None else self.maker(list_of_one.input[0], "Gather")
        return found.input[0] if found is not None and found.input[1] == turn else None

    def length(self, name: str, axis: int = 0) -> str | None:
        """The array whose size along an axis a value is."""
        size = self.maker(name, "Gather")
        shape = None if size is None else self.maker(size.input[0], "Shape")
        return shape.input[0] if shape is not None and self._number(size.input[1]) == axis else None

    def rows_of(self, flat: str, begins: str, ends: str) -> str | None:
        """The matrix (rows, n) of which `flat` has all elements, and offsets are where rows begin and end."""
        matrix, joined, behind = (
            self.maker(name, op) for name, op in ((flat, "Reshape"), (begins, "Concat"), (ends, "Slice"))
        )
        if matrix is None or joined is None or behind is None or not self.slices_first(behind):
            return None
        if len(matrix.input) < 2 or self._number(matrix.input[1]) != -1:
            return None
        x = str(matrix.input[0])
        offsets = self.maker(joined.input[0], "Range")
        last = self.maker(joined.input[1], "Unsqueeze")
        if len(joined.input) != 2 or offsets is None or last is None or self.length(last.input[0]) != flat:
            return None
        is_behind = behind.input[0] == begins and self._number(behind.input[1]) == 1
        total = self.maker(offsets.input[1], "ReduceProd")
        sizes = None if total is None else self.maker(total.input[0], "Shape")
        whole = sizes is not None and sizes.input[0] == x and self._number(offsets.input[0]) == 0
        ends_last = (self._number(behind.input[2]) or 0) >= 1 << 31
        same = whole and is_behind and ends_last and self.length(offsets.input[2], 1) == x
        return x if same else None
