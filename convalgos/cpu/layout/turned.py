"""Copies of arrays whose axes lie in another order, as maps of channels last where first are wanted.

Where a group of neighbouring axes goes behind another one, an array is a batch of matrices, which are turned
over: by `reorder`, on all threads.
"""

from __future__ import annotations

import math

import numpy as np

from convalgos.cpu.layout.reorder import SIZES, Reorder


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
    if source.itemsize not in SIZES or not source.flags.aligned:
        return False
    order = sorted(range(source.ndim), key=lambda axis: -source.strides[axis] * (source.shape[axis] > 1))
    inside = source.transpose(order)
    matrices = _matrices(source.shape, order)
    if matrices is None or not inside.flags.c_contiguous:
        return False
    batch, rows, columns = matrices
    words = np.dtype(f"u{source.itemsize}")
    turn = Reorder(matrices, source.itemsize, "channels_last", "channels_first")
    turn(inside.view(words).reshape(batch, columns, rows), target.view(words).reshape(matrices))
    return True


def _matrices(shape: tuple[int, ...], order: list[int]) -> tuple[int, int, int] | None:
    """(batch, rows, columns) of an array whose matrices lie turned over, its axes being in this order in
    memory; None where they are not, or lie otherwise."""
    axes = [axis for axis in order if shape[axis] > 1]
    wanted = sorted(axes)
    kept = next((i for i, (axis, other) in enumerate(zip(axes, wanted, strict=True)) if axis != other), None)
    if kept is None:
        return None
    split = wanted.index(axes[kept])
    if axes[kept:] != wanted[split:] + wanted[kept:split]:
        return None
    parts = wanted[:kept], wanted[kept:split], wanted[split:]
    batch, rows, columns = (math.prod(shape[axis] for axis in part) for part in parts)
    return batch, rows, columns
