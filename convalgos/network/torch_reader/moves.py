"""Operators of torch that move elements, or only see them in another shape: views, slices, joins."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import fx

from convalgos.network.torch_reader.model import sizes_in
from convalgos.network.torch_reader.shapes import (
    are_same_sizes,
    known_sizes,
    rank_of_tensor,
    shape_of_tensor,
    target_shape,
)
from convalgos.network.torch_reader.translation import Arguments, Left, Translate, Translation, Value

END = np.iinfo(np.int64).max  # of a slice that goes to the end


def unchanged_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    """What changes nothing in eval."""
    if a.get("train"):
        raise Left("is in training")
    return t.value(a.get("self", a.get("input")))


def reshaped_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    x = t.value(a["self"])
    before, after = t.shape(x), shape_of_tensor(node)
    if are_same_sizes(before, after):
        return x
    return t.emit("Reshape", [x, t.constant(np.array(target_shape(before, after), np.int64))])


def seen_as(t: Translation, x: Value, after: Sequence[Any]) -> Value:
    """The elements in another shape, for what comes after."""
    target = t.constant(np.array(target_shape(t.shape(x), after), np.int64))
    return t.between("Reshape", [x, target], after, t.dtype(x))


def permuted_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    x, rank = t.value(a["self"]), rank_of_tensor(a["self"])
    order = list(range(rank))
    if "dims" in a:
        order = [d % rank for d in a["dims"]]
    elif rank > 1:
        given = [a[key] % rank for key in ("dim0", "axis0", "dim1", "axis1") if key in a]
        i, j = given or (0, 1)
        order[i], order[j] = order[j], order[i]
    return x if order == sorted(order) else t.emit("Transpose", [x], perm=order)


def turned_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    """Matrices, transposed."""
    return turned_matrices(t, t.value(a["self"]))


def turned_matrices(t: Translation, x: Value) -> Value:
    """The last two dimensions exchanged."""
    *lead, rows, columns = t.shape(x)
    rank = len(lead) + 2
    order = [*range(rank - 2), rank - 1, rank - 2]
    return t.between("Transpose", [x], (*lead, columns, rows), t.dtype(x), perm=order)


def permuted(t: Translation, x: Value, order: Sequence[int]) -> Value:
    """The dimensions in an order."""
    if list(order) == sorted(order):
        return x
    return t.between("Transpose", [x], [t.shape(x)[i] for i in order], t.dtype(x), perm=list(order))


def expanded_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    return expanded(t, t.value(a["self"]), shape_of_tensor(node))


def expanded(t: Translation, x: Value, after: Sequence[Any]) -> Value:
    """What the node gives: an array repeated to sizes."""
    before = (*(1,) * (len(after) - len(t.shape(x))), *t.shape(x))
    if x not in t.constants and are_same_sizes(t.shape(x), after):
        return x  # a constant may be a token, which the reader knows by its expansion
    sizes = [1 if str(n) == str(m) else n for n, m in zip(after, before, strict=True)]
    return t.emit("Expand", [x, value_of_sizes(t, sizes)])


def value_of_sizes(t: Translation, sizes: Sequence[Any]) -> Value:
    """A value that holds sizes; those that are open are read off a value that has them."""
    if all(type(n) is int for n in sizes):
        return t.constant(np.array(sizes, np.int64))
    parts = []
    for n in sizes:
        n = n.meta["val"] if isinstance(n, fx.Node) else n
        if type(n) is int:
            parts.append(t.constant(np.array([n], np.int64)))
            continue
        named = ((name, [*map(str, value.shape)]) for name, value in t.values.items())
        place = next(((name, shape.index(str(n))) for name, shape in named if str(n) in shape), None)
        if place is None:
            raise Left("has sizes that are computed")
        parts.append(t.between("Shape", place[:1], (1,), "int64", start=place[1], end=place[1] + 1))
    return t.between("Concat", parts, (len(parts),), "int64", axis=0)


def full_nodes(number: float) -> Translate:
    """An array of one number, whose sizes are open."""

    def translate(t: Translation, node: fx.Node, a: Arguments) -> Value:
        own, given = t.result(), a.get("fill_value", a.get("value", number))
        if not isinstance(given, int | float | bool):
            raise Left("takes a number that is computed")
        one = t.constant(np.full((1,) * len(own.shape), given, own.dtype))
        return t.emit("Expand", [one, value_of_sizes(t, own.shape)])

    return translate


def repeated_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    times = [n.meta["val"] if isinstance(n, fx.Node) else n for n in a["repeats"]]
    x, shape = t.value(a["self"]), shape_of_tensor(a["self"])
    if len(times) > len(shape):
        x = seen_as(t, x, (*(1,) * (len(times) - len(shape)), *shape))
    return t.emit("Tile", [x, value_of_sizes(t, times)])


# --- parts of an array -----------------------------------------------------------------------


def _axis(a: Arguments) -> int:
    return int(a["dim"] % rank_of_tensor(a["self"]))


def selected_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    (index,) = known_sizes([a["index"]])
    return t.emit("Gather", [t.value(a["self"]), t.constant(np.array(index, np.int64))], axis=_axis(a))


def _bounds(t: Translation, *numbers: int) -> list[Value]:
    """Those of a slice: start, end, axis, step."""
    return [t.constant(np.array([n], np.int64)) for n in numbers]


def sliced_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    x, axis = t.value(a["self"]), _axis(a)
    size, end = shape_of_tensor(a["self"])[axis], a["end"]
    end = END if end is None or str(end) == str(size) else end
    start, end, step = known_sizes([a["start"] or 0, end, a["step"]])
    if (start, step) == (0, 1) and (end == END or (type(size) is int and end >= size)):
        return x
    return t.emit("Slice", [x, *_bounds(t, start, end, axis, step)])


def narrowed_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    """So many from one on."""
    x, axis = t.value(a["self"]), _axis(a)
    start, length = known_sizes([a["start"], a["length"]])
    if start < 0:
        start += known_sizes([t.shape(x)[axis]])[0]
    return part_of(t, x, axis, start, start + length)


def split_nodes(t: Translation, node: fx.Node, a: Arguments) -> Sequence[Value]:
    """In several parts along a dimension."""
    axis = _axis(a)
    if any(user.target is not operator.getitem for user in node.users):
        raise Left("gives tensors that are read as a list")
    sizes = known_sizes([sizes_in(part)[axis] for part in node.meta["val"]])
    return t.emit_parts("Split", [t.value(a["self"]), t.constant(np.array(sizes, np.int64))], axis=axis)


def unbound_nodes(t: Translation, node: fx.Node, a: Arguments) -> Sequence[Value]:
    x, axis, parts = t.value(a["self"]), _axis(a), node.meta["val"]
    return [
        t.between("Gather", [x, t.constant(np.array(i, np.int64))], sizes_in(part), t.dtype(x), axis=axis)
        for i, part in enumerate(parts)
    ]


def gathered_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    """Rows by their numbers."""
    return t.emit("Gather", [t.value(a["self"]), t.value(a["index"])], axis=_axis(a))


def indexed_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    """By one array of numbers."""
    given = [(axis, index) for axis, index in enumerate(a["indices"]) if index is not None]
    if len(given) != 1:
        raise Left("takes numbers of several dimensions")
    (axis, index) = given[0]
    name = t.value(index)
    if t.dtype(name) not in ("int64", "int32"):
        raise Left("takes what a mask tells")
    return t.emit("Gather", [t.value(a["self"]), name], axis=axis)


def gathered_elements_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    if rank_of_tensor(a["self"]) != rank_of_tensor(a["index"]):
        raise Left("takes places of no elements, in another number of dimensions")
    return t.emit("GatherElements", [t.value(a["self"]), t.value(a["index"])], axis=_axis(a))


# --- arrays side by side ---------------------------------------------------------------------


def concatenated_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    own = t.result()
    given = [x for x in a["tensors"] if shape_of_tensor(x) != (0,)] or a["tensors"]  # torch leaves them out
    names = [t.cast(t.value(x), own.dtype) for x in given]
    if any(len(t.shape(name)) != len(own.shape) for name in names):
        raise Left("takes arrays of no dimensions")
    return t.emit("Concat", names, axis=a["dim"] % len(own.shape))


def stacked_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    own, names = t.result(), []
    axis = a["dim"] % len(own.shape)
    for x in a["tensors"]:
        name = t.cast(t.value(x), own.dtype)
        shape = (*t.shape(name)[:axis], 1, *t.shape(name)[axis:])
        names.append(seen_as(t, name, shape))
    return t.emit("Concat", names, axis=axis)


def rolled_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    """The end of each dimension in front of its begin."""
    x, shape, rank = t.value(a["self"]), shape_of_tensor(a["self"]), rank_of_tensor(a["self"])
    if not a["dims"]:
        raise Left("moves elements across dimensions")
    moves = [(d % rank, n) for d, n in zip(a["dims"], known_sizes(a["shifts"]), strict=True)]
    moves = [(d, shift % n) for d, shift in moves if (n := known_sizes([shape[d]])[0]) and shift % n]
    for i, (axis, shift) in enumerate(moves):
        cut = shape[axis] - shift
        parts = [part_of(t, x, axis, *ends) for ends in ((cut, shape[axis]), (0, cut))]
        last = i == len(moves) - 1
        x = (
            t.emit("Concat", parts, axis=axis)
            if last
            else t.between("Concat", parts, shape, t.dtype(x), axis=axis)
        )
    return x


def part_of(t: Translation, x: Value, axis: int, start: int, end: Any) -> Value:
    """A slice along a dimension; where it ends is perhaps an open size, that of the dimension."""
    if x in t.constants:
        return t.constant(t.constants[x][(slice(None),) * axis + (slice(start, end),)])
    shape: list[Any] = list(t.shape(x))
    shape[axis] = end - start
    bounds = _bounds(t, start, end if type(end) is int else END, axis, 1)
    return t.between("Slice", [x, *bounds], shape, t.dtype(x))


def flipped_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    """From the last element to the first along dimensions: as a slice, and whole rows by their numbers."""
    x, shape = t.value(a["self"]), shape_of_tensor(a["self"])
    axes = sorted(d % len(shape) for d in a["dims"])
    for i, axis in enumerate(axes):
        op, more = "Slice", [x, *_bounds(t, -1, -END, axis, -1)]
        how: dict[str, Any] = {}
        if axis < len(shape) - 1:
            (n,) = known_sizes([shape[axis]])
            op, more, how = "Gather", [x, t.constant(np.arange(n)[::-1].copy())], {"axis": axis}
        last = i == len(axes) - 1
        x = t.emit(op, more, **how) if last else t.between(op, more, shape, t.dtype(x), **how)
    return x


def repeated_elements_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    """Each slice along a dimension as often, one after the other."""
    x, shape, (times,) = t.value(a["self"]), shape_of_tensor(a["self"]), known_sizes([a["repeats"]])
    if a["dim"] is None:
        raise Left("repeats all elements of an array")
    axis = _axis(a)
    apart, after = (*shape[: axis + 1], 1, *shape[axis + 1 :]), shape_of_tensor(node)
    wide = (*shape[: axis + 1], times, *shape[axis + 1 :])
    split = seen_as(t, x, apart)
    sizes = t.constant(np.array([1] * (axis + 1) + [times] + [1] * (len(shape) - axis - 1), np.int64))
    return seen_as(t, t.between("Expand", [split, sizes], wide, t.dtype(x)), after)
