"""Operators of torch that go along dimensions: means, sums, extremes, softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from torch import fx

from convalgos.network.torch_reader.model import sizes_in
from convalgos.network.torch_reader.shapes import known_sizes, rank_of_tensor
from convalgos.network.torch_reader.translation import Arguments, Left, Translate, Translation, Value


def _axes(a: Arguments) -> list[int]:
    """The dimensions, from the first on; all where none are told."""
    rank, given = rank_of_tensor(a["self"]), a.get("dim")
    given = [given] if isinstance(given, int) else given
    return sorted(d % rank for d in given) if given else list(range(rank))


def reduced_nodes(op: str) -> Translate:
    def translate(t: Translation, node: fx.Node, a: Arguments) -> Value:
        if a.get("ord", 2) != 2:
            raise Left("is a norm of another order than 2")
        x = t.cast(t.value(a["self"]), t.result().dtype)
        return t.emit(op, [x], axes=_axes(a), keepdims=int(a.get("keepdim", False)))

    return translate


def extreme_nodes(which: str) -> Translate:
    """The largest or least values, and their places."""

    def translate(t: Translation, node: fx.Node, a: Arguments) -> Sequence[Value]:
        x, axis, keep = t.value(a["self"]), a["dim"], int(a["keepdim"])
        read = {user.args[1] for user in node.users}
        shape = sizes_in(node.meta["val"][0])
        names = ["", ""]
        if 0 in read:
            names[0] = t.between(f"Reduce{which}", [x], shape, t.dtype(x), axes=_axes(a), keepdims=keep)
        if 1 in read:
            names[1] = t.between(f"Arg{which}", [x], shape, "int64", axis=axis, keepdims=keep)
        return names

    return translate


def place_of_extreme_nodes(which: str) -> Translate:
    def translate(t: Translation, node: fx.Node, a: Arguments) -> Value:
        if a["dim"] is None:
            raise Left("is over all dimensions")
        return t.emit(f"Arg{which}", [t.value(a["self"])], axis=a["dim"], keepdims=int(a["keepdim"]))

    return translate


def top_nodes(t: Translation, node: fx.Node, a: Arguments) -> Sequence[Value]:
    k = t.constant(np.array(known_sizes([a["k"]]), np.int64))
    return t.emit_parts("TopK", [t.value(a["self"]), k], axis=a["dim"], largest=int(a["largest"]))


def running_sum_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    x = t.cast(t.value(a["self"]), t.result().dtype)
    return t.emit("CumSum", [x, t.constant(np.array(a["dim"], np.int64))])


def softmax_nodes(op: str) -> Translate:
    def translate(t: Translation, node: fx.Node, a: Arguments) -> Value:
        x = t.cast(t.value(a["self"]), t.result().dtype)
        return t.emit(op, [x], axis=a["dim"] % rank_of_tensor(a["self"]))

    return translate


# --- spread ------------------------------------------------------------------------


def spread_nodes(rooted: bool) -> Translate:
    """The variance along dimensions, or its root: squares of what differs from the mean."""

    def translate(t: Translation, node: fx.Node, a: Arguments) -> Value:
        x, axes, keep = t.value(a["self"]), _axes(a), int(a.get("keepdim", False))
        shape, result = t.shape(x), t.result().shape
        less = a.get("correction", 1 if a.get("unbiased", True) else 0)
        less = 1 if less is None else less
        count = math.prod(known_sizes([shape[axis] for axis in axes]))
        if not isinstance(less, int | float) or count <= less:
            raise Left("is of too few elements")
        ones = [1 if i in axes else n for i, n in enumerate(shape)]
        mean = t.between("ReduceMean", [x], ones, axes=axes, keepdims=1)
        apart = t.between("Sub", [x, mean], shape)
        square = t.between("Mul", [apart, apart], shape)
        spread = t.between("ReduceMean", [square], result, axes=axes, keepdims=keep)
        factor = t.constant(np.array(count / (count - less), np.float32))
        if not rooted:
            return t.emit("Mul", [spread, factor])
        return t.emit("Sqrt", [t.between("Mul", [spread, factor], result)])

    return translate
