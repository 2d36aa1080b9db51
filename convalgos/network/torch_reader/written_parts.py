"""Operators of torch that give a tensor with a part of it anew, as which writes into slices are exported."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import fx

from convalgos.network.torch_reader.moves import END, expanded, part_of
from convalgos.network.torch_reader.shapes import are_same_sizes, known_sizes, shape_of_tensor
from convalgos.network.torch_reader.translation import Arguments, Left, Translate, Translation, Value


def copied_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    """An array of the shape and the type of another one."""
    own = t.result()
    x = t.cast(t.value(a["src"] if "src" in a else a["value"], own.dtype), own.dtype)
    return expanded(t, x, own.shape)


def slice_written_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    """Slices along a dimension, one after the other."""
    shape = shape_of_tensor(node)
    axis, (step,) = a["dim"] % len(shape), known_sizes([a["step"]])
    if step != 1:
        raise Left("writes every other element")
    ends = (0 if a["start"] is None else a["start"], END if a["end"] is None else a["end"])
    start, end = (_place(n, shape[axis]) for n in ends)
    return _joined(t, t.value(a["self"]), t.value(a["src"]), axis, start, end)


def one_written_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    """One index of a dimension."""
    shape, src = shape_of_tensor(node), t.value(a["src"])
    axis, (index,) = a["dim"] % len(shape), known_sizes([a["index"]])
    start = _place(index, shape[axis])
    end = _place(start + 1, shape[axis])
    wide = (*shape[:axis], 1, *shape[axis + 1 :])
    src = t.between("Unsqueeze", [src, t.constant(np.array([axis], np.int64))], wide, t.dtype(src))
    return _joined(t, t.value(a["self"]), src, axis, start, end)


def scattered_nodes(reduction: bytes) -> Translate:
    """Elements at places that an array of as many tells, along one dimension."""

    def translate(t: Translation, node: fx.Node, a: Arguments) -> Value:
        if not isinstance(a["src"], fx.Node) or not are_same_sizes(
            *map(shape_of_tensor, (a["index"], a["src"]))
        ):
            raise Left("writes a part of what it is given")
        src = t.cast(t.value(a["src"]), t.result().dtype)
        axis = a["dim"] % len(shape_of_tensor(node))
        given = [t.value(a["self"]), t.value(a["index"]), src]
        return t.emit("ScatterElements", given, axis=axis, reduction=reduction)

    return translate


def _place(n: Any, size: Any) -> int:
    """Where a slice begins or ends, as it is counted from the begin, END where that is the end."""
    n = n.meta["val"] if isinstance(n, fx.Node) else n
    if str(n) == str(size):
        return END
    (place,) = known_sizes([n])
    if type(size) is not int:
        if place < 0:
            raise Left("has sizes that are computed")
        return place
    place = max(0, place + size) if place < 0 else place
    return END if place >= size else place


def _joined(t: Translation, x: Value, src: Value, axis: int, start: int, end: int) -> Value:
    """What stands before a slice, what stands in its place, and what stands behind it."""
    src = t.cast(src, t.result().dtype)
    size = t.shape(x)[axis]
    before = [part_of(t, x, axis, 0, start)] if start else []
    behind = [] if end == END else [part_of(t, x, axis, end, size)]
    if start == END or end <= start:
        raise Left("writes nothing")
    if not before and not behind:
        return src
    return t.emit("Concat", [*before, src, *behind], axis=axis)
