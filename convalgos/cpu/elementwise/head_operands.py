"""Matrices of float32 in arrays after moves: seen where they lie, if their rows do so evenly, or copied."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.core.arguments import Shape
from convalgos.core.bound_run import BoundRun
from convalgos.core.move_views import view_of
from convalgos.core.moves import Move, moved_shape
from convalgos.cpu.elementwise.bound_steps import FLOAT
from convalgos.cpu.elementwise.rearranging import RearrangementPlan


def unit_offsets(array: np.ndarray, lead: Shape) -> np.ndarray:
    """Of each matrix of leading dimensions that an array (..., rows, columns) is broadcast to, in elements.

    An array of more dimensions than these may see them otherwise.
    """
    lead = lead if array.ndim - 2 <= len(lead) else array.shape[:-2]
    steps = [step if size > 1 else 0 for step, size in zip(array.strides[:-2], array.shape, strict=False)]
    return _offsets(lead, (*(0,) * (len(lead) - len(steps)), *steps))


@lru_cache(64)  # heads lie alike in maps of all sizes
def _offsets(lead: Shape, steps: Shape) -> np.ndarray:
    """Likewise, of matrices so many bytes apart along each dimension."""
    found = np.zeros(lead, np.int64)
    for axis, step in enumerate(steps):
        found += (np.arange(lead[axis]) * step).reshape(-1, *(1,) * (len(lead) - axis - 1))
    found = found.reshape(-1) // FLOAT.itemsize
    found.flags.writeable = False
    return found


def rows_in_order(x: np.ndarray) -> bool:
    """Whether the elements of its rows lie together."""
    return x.shape[-1] <= 1 or x.strides[-1] == FLOAT.itemsize


def is_even(x: np.ndarray) -> bool:
    return rows_in_order(x) and x.strides[-2] >= 0


def row_step(x: np.ndarray, axis: int) -> int:
    """Elements from one row to the next."""
    return x.strides[axis] // FLOAT.itemsize if x.shape[axis] > 1 else 0


def evenly(x: np.ndarray, moves: Sequence[Move], runs: list[BoundRun], turned: bool = False) -> np.ndarray:
    """x after moves, where it is a view whose rows, or columns where they may be turned, lie together.

    Else it is an array that one of the runs writes.
    """
    seen = view_of(x, moves)
    if seen is not None:
        ways = (seen, np.swapaxes(seen, -1, -2)) if turned else (seen,)
        if any(map(is_even, ways)):
            return seen
    made = RearrangementPlan(x.shape, moves)
    out = aligned_empty(math.prod(shape := moved_shape(x.shape, moves)), FLOAT).reshape(shape)
    runs.append(made.bind(x, out))
    return out
