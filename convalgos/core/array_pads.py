"""Functions of whole arrays that put borders around them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.core.array_operands import Operand, counted_axis

FEW = 1 << 14  # elements up to which each is moved by its place: `np.pad` takes 20 us, however few there are


def _ends(rank: int, pads: Sequence[int], axes: Sequence[int]) -> list[tuple[int, int]]:
    """What is put before and behind each dimension."""
    found, given = [(0, 0)] * rank, len(pads) // 2
    for i, axis in enumerate(axes or range(given)):
        found[counted_axis(axis, rank)] = pads[i], pads[given + i]
    return found


def write_padded(
    y: np.ndarray, x: np.ndarray, pads: np.ndarray, value: np.ndarray, mode: str, axes: Any
) -> None:
    """Write an array with a border.

    Args:
        pads: what is put before and behind each axis; taken away where it is negative.
    """
    ends = _ends(x.ndim, [int(n) for n in pads.reshape(-1)], axes)
    inner = x[
        tuple(slice(max(0, -low), n - max(0, -high)) for n, (low, high) in zip(x.shape, ends, strict=True))
    ]
    around = [(max(0, low), max(0, high)) for low, high in ends]
    if mode != "constant":
        if y.size > FEW:
            y[...] = np.pad(inner, around, mode=mode)  # type: ignore[call-overload]
            return
        for axis, (low, high) in enumerate(around):
            if low or high:
                inner = inner.take(_border_places(inner.shape[axis], low, high, mode), axis)
        y[...] = inner
        return
    y[...] = value.reshape(-1)[0]
    y[tuple(slice(low, low + n) for n, (low, _) in zip(inner.shape, around, strict=True))] = inner


@lru_cache(256)
def _border_places(size: int, low: int, high: int, mode: str) -> np.ndarray:
    """Where the elements of a padded line come from."""
    found: np.ndarray = np.pad(np.arange(size), (low, high), mode=mode)  # type: ignore[call-overload]
    return found


def padded_shape(x: Operand, pads: Operand, value: Operand, mode: str, axes: Any) -> Shape:
    """What `write_padded` writes."""
    return tuple(
        n + sum(ends) for n, ends in zip(x.shape, _ends(len(x.shape), pads.numbers(), axes), strict=True)
    )
