"""What functions of whole arrays are made of: how each computes, and the shape that it gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from convalgos.core.arguments import Shape


class Operand(NamedTuple):
    """What is known of an array before it is computed."""

    shape: Shape
    value: np.ndarray | None = None  # of constants, and of sizes

    def numbers(self) -> list[int]:
        """Its elements, which are whole numbers that are known.

        Raises:
            ValueError: only a run knows them.
        """
        if self.value is None:
            raise ValueError("sizes depend on what is computed: only a run knows them")
        return [int(n) for n in self.value.reshape(-1)]


class WholeArrays(NamedTuple):
    """A function of whole arrays, of any element types."""

    compute: Callable[..., None]  # (y, *arrays, **options), which writes y
    shape: Callable[..., Shape]  # (*operands, **options)
    of_shapes: bool = False  # it reads no elements
    planned: tuple[int, ...] = ()  # operands whose elements tell the shape, and are read for nothing else


def broadcast_shape(*operands: Operand, **options: Any) -> Shape:
    """The shape of what goes over the elements of arrays that are broadcast together."""
    return np.broadcast_shapes(*(operand.shape for operand in operands))


def like_first(first: Operand, *others: Operand, **options: Any) -> Shape:
    """The shape of what changes elements alone."""
    return first.shape


def without_axes(shape: Shape, axes: Sequence[int] | None, keepdims: bool) -> Shape:
    """A shape whose dimensions, all where axes are None, are reduced."""
    gone = {*range(len(shape))} if axes is None else {counted_axis(a, len(shape)) for a in axes}
    kept = [1 if i in gone else n for i, n in enumerate(shape) if keepdims or i not in gone]
    return tuple(kept)


def counted_axis(axis: int, rank: int) -> int:
    """An axis counted from the first.

    Raises:
        ValueError: there is none.
    """
    if not -rank <= axis < rank:
        raise ValueError(f"axis={axis} is none of {rank}")
    return axis % rank
