"""Shapes and sizes in a graph of torch, as far as they are known."""

from __future__ import annotations

from typing import Any

from torch import fx

from convalgos.network.torch_reader.conversion import Left


def shape_of_tensor(node: fx.Node) -> tuple[Any, ...]:
    return tuple(node.meta["val"].shape)


def sizes_of(value: Any, ndim: int) -> tuple[int, ...]:
    """One number a dimension, of a list that may have one for all."""
    numbers = list(value) if isinstance(value, list | tuple) else [value]
    if not all(type(n) is int for n in numbers):
        raise Left("has sizes that are computed")
    return tuple(numbers * ndim if len(numbers) == 1 else numbers)


def map_shape(node: fx.Node, form: str) -> tuple[Any, ...]:
    """The shape of the map of a tensor."""
    shape = shape_of_tensor(node)
    if form == "last":
        return (shape[0], shape[-1], *shape[1:-1])
    return (*shape, 1, 1) if form == "pixel" else shape


def spatial_dimensions(node: fx.Node, form: str = "same") -> int:
    """Spatial dimensions of the map of a tensor."""
    ndim = len(map_shape(node, form)) - 2
    if not 1 <= ndim <= 3:
        raise Left(f"is of {len(shape_of_tensor(node))} dimensions")
    return ndim
