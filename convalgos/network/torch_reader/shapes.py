"""Shapes and sizes in a graph of torch, as far as they are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx

from convalgos.network.torch_reader.model import sizes_in
from convalgos.network.torch_reader.translation import Left


def shape_of_tensor(node: fx.Node) -> tuple[Any, ...]:
    return sizes_in(node.meta["val"])


def rank_of_tensor(node: fx.Node) -> int:
    return len(shape_of_tensor(node))


def sizes_of(value: Any, ndim: int) -> list[int]:
    """One number a dimension, of a list that may have one for all."""
    numbers = known_sizes(value if isinstance(value, list | tuple) else [value])
    return numbers * ndim if len(numbers) == 1 else numbers


def spatial_dimensions(node: fx.Node) -> int:
    """Of maps in a batch."""
    ndim = rank_of_tensor(node) - 2
    if not 1 <= ndim <= 3:
        raise Left(f"is of {ndim + 2} dimensions")
    return ndim


def are_same_sizes(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether sizes are equal, those that are open too."""
    return [*map(str, one)] == [*map(str, other)]


def target_shape(before: Sequence[Any], after: Sequence[Any]) -> list[int]:
    """Of a reshape: 0 for a size that stays, -1 for one that follows from the others.

    Of sizes that are known, 0 for a first one that stays: a network may run for some images at a time.
    """
    if 0 in (n for n in (*before, *after) if type(n) is int):
        raise Left("is of no elements")
    if all(type(n) is int for n in after):
        known = [int(n) for n in after]
        return [0, *known[1:]] if known and before[:1] == after[:1] else known
    found = []
    for i, n in enumerate(after):
        stays = i < len(before) and str(before[i]) == str(n)
        found.append(n if type(n) is int else 0 if stays else -1)
    if found.count(-1) > 1:
        raise Left("has sizes that are computed")
    return found


def known_sizes(sizes: Sequence[Any]) -> list[int]:
    """Those of which none is open."""
    if not all(type(n) is int for n in sizes):
        raise Left("has sizes that are computed")
    return [int(n) for n in sizes]


def only_first_read(node: fx.Node) -> None:
    """Of an operator that gives several tensors, only the first may be read."""
    if isinstance(node.meta["val"], tuple | list) and any(u.args[1:] != (0,) for u in node.users):
        raise Left("gives more than one tensor that is read")
