"""Copies of arrays whose axes lie in another order, as maps of channels last where first are wanted.

Where neighbours of a row of the copy lie apart, and those along another axis side by side, an array is a
batch of matrices, which are turned over, on all threads: by `reorder` where they lie one behind the other.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from convalgos.cpu.layout.reorder import BYTES, SHARE, SIZES, Reorder
from convalgos.cpu.layout.reorder_kernels import TURN_FIELDS, turn_matrices
from convalgos.cpu.runtime import jit, threads
from convalgos.cpu.runtime.records import record_of_words
from convalgos.cpu.vectors import simd

# Of a block, rows and bytes of each, whose lines lie in the first cache; and tasks of a thread. Zen 4, of 64
# to 256 rows of 64 to 512 bytes: a volume of 222^3 turned round is copied at 17 to 21 GB/s (NumPy 1.4 to 4).
HIGH, WIDE = 256, 128
TASKS = 4
MOST_AXES = 4  # two of matrices, rows and columns


class _Axis(NamedTuple):
    """An axis of the copy: its size, and elements from one to the next in the source and in the copy."""

    size: int
    x: int
    y: int


def copy_turned(source: np.ndarray, target: np.ndarray) -> bool:
    """target[...] = source, of one shape and dtype; False where that is not done, as nothing is turned over.

    Args:
        target: C-contiguous.

    Example:
        >>> x = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
        >>> y = np.empty((2, 4, 3), np.int32)
        >>> copy_turned(x.swapaxes(1, 2), y), bool((y == x.swapaxes(1, 2)).all())
        (True, True)
    """
    size = source.itemsize
    if size not in SIZES or not source.flags.aligned or any(step % size for step in source.strides):
        return False
    axes = _axes(source.shape, tuple(step // size for step in source.strides))
    if not 2 <= len(axes) <= MOST_AXES or axes[-1].x == 1 or all(axis.x != 1 for axis in axes):
        return False
    if (shape := _matrices(axes)) is None:
        _turn(source, target, axes)
        return True
    words, (batch, rows, columns) = np.dtype(f"u{size}"), shape
    order = sorted(range(source.ndim), key=lambda axis: -source.strides[axis])
    inside = source.transpose(order).reshape(batch, columns, rows).view(words)
    Reorder(shape, size, "channels_last", "channels_first")(inside, target.view(words).reshape(shape))
    return True


@lru_cache(64)
def _axes(shape: tuple[int, ...], steps: tuple[int, ...]) -> list[_Axis]:
    """The axes of more than one element; those that are one in the source, too, are one here."""
    axes: list[_Axis] = []
    y = 1
    for size, x in zip(reversed(shape), reversed(steps), strict=True):
        if size > 1 and axes and x == axes[-1].x * axes[-1].size:
            axes[-1] = _Axis(size * axes[-1].size, axes[-1].x, axes[-1].y)
        elif size > 1:
            axes.append(_Axis(size, x, y))
        y *= size
    return axes[::-1]


def _matrices(axes: list[_Axis]) -> tuple[int, int, int] | None:
    """(batch, rows, columns) of matrices that lie one behind the other, and turned over; None of others."""
    *before, rows, columns = axes
    batch = math.prod(axis.size for axis in before)
    behind = not before or (len(before) == 1 and before[0].x == rows.size * columns.size)
    if behind and rows.x == 1 and columns.x == rows.size:
        return batch, rows.size, columns.size
    return None


def _turn(source: np.ndarray, target: np.ndarray, axes: list[_Axis]) -> None:
    size = source.itemsize
    columns = next(axis for axis in axes if axis.x == 1)
    matrices = [axis for axis in axes[:-1] if axis is not columns]
    outer, inner = [_Axis(1, 0, 0)] * (MOST_AXES - len(axes)) + matrices
    lanes = simd.lanes(size) if size > 1 else BYTES
    shares = max(1, min(threads.plan_threads(), target.nbytes // SHARE))
    tasks = TASKS * shares if shares > 1 else 1
    values = (
        jit.data_address()(source), jit.data_address()(target), *outer, *inner, axes[-1].size, axes[-1].x,
        columns.size, columns.y, HIGH, max(WIDE // size, lanes), tasks,
    )  # fmt: skip
    record = record_of_words(TURN_FIELDS, values)
    jit.launch(turn_matrices(size, lanes), record.ctypes.data, tasks)
