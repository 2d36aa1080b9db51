"""Arrays as kernels read and write them: C-contiguous, of whole elements; and copies that bring others so."""

from __future__ import annotations

from itertools import product
from typing import Protocol

import numpy as np

from convalgos.core.allocator import aligned_empty

TURNED = 1 << 16  # elements from which an array in another order is copied by what turns matrices over,
LARGE = 1 << 22  # and where nothing does, from so many bytes on block by block,
BLOCK = 1 << 16  # and elements of such a block: of a cache, and not of pages that each row touches
KEPT = 1 << 24  # bytes from which copies of rows lie in memory that others before them have left; Zen 4


class Flags(Protocol):
    """What is asked of the `flags` of a NumPy array."""

    @property
    def c_contiguous(self) -> bool: ...

    @property
    def aligned(self) -> bool: ...


def is_laid(flags: Flags) -> bool:
    """Whether kernels may read and write an array of these `flags` where it lies, if its dtype is theirs.

    They go by whole elements from the first to the last, so none may begin amid the bytes of another: stores
    around the caches end the process there.
    """
    return flags.c_contiguous and flags.aligned


def as_laid(array: np.ndarray) -> np.ndarray:
    """C-contiguous, elements at multiples of their size and in native byte order; a copy if need be."""
    if is_laid(array.flags) and array.dtype.isnative:
        return array
    native = array.dtype if array.dtype.isnative else array.dtype.newbyteorder("=")
    crosses = array.size >= TURNED and _crosses_rows(array)
    if not crosses and array.nbytes < KEPT:
        return array.astype(native, "C")
    copied = aligned_empty(array.size, native, idles=True).reshape(array.shape)
    if crosses:
        _copy_across(copied, array)
    else:
        copied[...] = array
    return copied


def lies_whole(array: np.ndarray) -> bool:
    """Whether an array is `as_laid` but for the order of its axes."""
    return array.dtype.isnative and is_laid(in_memory_order(array).flags)


def in_memory_order(array: np.ndarray) -> np.ndarray:
    """A view of an array with its axes in the order of memory, that of neighbours last."""
    return array.transpose(_as_it_lies(array))


def _as_it_lies(array: np.ndarray) -> list[int]:
    """The axes of an array, that of neighbours in memory last."""
    return sorted(range(array.ndim), key=lambda axis: -array.strides[axis])


def copy_into(target: np.ndarray, source: np.ndarray) -> np.ndarray:
    """target[...] = source, which is `as_laid`; a target with axes in another order is filled as it lies."""
    order = _as_it_lies(target)
    turned = target.transpose(order)
    if target.size < TURNED or target.flags.c_contiguous or not is_laid(turned.flags):
        target[...] = source
    else:
        _copy_across(turned, source.transpose(order))
    return target


class Turning(Protocol):
    def __call__(self, source: np.ndarray, target: np.ndarray) -> bool:
        """target[...] = source, of one shape and dtype, the target C-contiguous; False where it does not."""


_turning: list[Turning] = []


def turn_by(turning: Turning) -> None:
    """Give what copies arrays whose axes lie in another order, faster than NumPy does."""
    _turning[:] = [turning]


def _copy_across(target: np.ndarray, source: np.ndarray) -> None:
    """target[...] = source, the target C-contiguous and the source not."""
    if source.dtype == target.dtype and any(turn(source, target) for turn in _turning):
        return
    if source.nbytes < LARGE:
        target[...] = source
        return
    side = round(BLOCK ** (1 / source.ndim))
    for first in product(*(range(0, size, side) for size in source.shape)):
        part = tuple(slice(i, i + side) for i in first)
        target[part] = source[part]


def _crosses_rows(array: np.ndarray) -> bool:
    """Whether neighbours of a row lie farther apart than those along another axis."""
    steps = [abs(step) for size, step in zip(array.shape, array.strides, strict=True) if size > 1]
    return bool(steps) and abs(array.strides[-1]) > min(steps)
