"""Memory that shows what an algorithm does to it: filled with NaN where nobody has written, and guarded.

Workspaces, scratch, prepared filters and results are allocated without being set, by `np.empty` and
`allocator.aligned_empty`, which may also give what an earlier array left. Within `poisoned()` every byte of
such memory is 0xFF, which is NaN in every floating-point type and -1 in tables. What a plan sets once and
relies on later (zeros of a border, tables, records) is made by other calls, and is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import numpy as np

from convalgos.core import allocator
from convalgos.core.plan import Plan

Array = np.ndarray[Any, Any]


def spoil(array: Array) -> Array:
    """Set every byte of a fresh array of numbers."""
    if array.size and not array.dtype.hasobject:
        array.reshape(-1, order="A").view(np.uint8).fill(0xFF)
    return array


@contextmanager
def poisoned() -> Iterator[None]:
    """Within it, fresh memory is full of NaN, and so is what is used again."""
    allocators: tuple[tuple[Any, str], ...] = ((np, "empty"), (np, "empty_like"), (allocator, "_found"))
    with ExitStack() as restored:
        for module, name in allocators:
            restored.enter_context(mock.patch.object(module, name, _spoiled(getattr(module, name))))
        yield


def _spoiled(allocate: Callable[..., Array]) -> Callable[..., Array]:
    return lambda *args, **kwargs: spoil(allocate(*args, **kwargs))


def forget_workspaces(plan: Plan) -> None:
    """The next run makes one, of fresh memory."""
    plan._free.clear()


class Guarded:
    """An array amid a larger buffer of NaN, of integers of GUARD, off every alignment but its element's."""

    BAND = 1031  # elements on either side, and odd
    GUARD = 0xA5  # in every byte

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]):
        count = int(np.prod(shape))
        self._guard = self.GUARD if np.dtype(dtype).kind in "iu" else 0xFF
        self._buffer = np.empty(count + 2 * self.BAND, dtype)
        self._buffer.view(np.uint8).fill(self._guard)
        self.array = self._buffer[self.BAND : self.BAND + count].reshape(shape)

    @classmethod
    def copy_of(cls, values: Array) -> Guarded:
        guarded = cls(values.shape, values.dtype)
        guarded.array[...] = values
        return guarded

    def intact(self) -> bool:
        """Whether nothing was written outside the array."""
        bands = self._buffer[: self.BAND], self._buffer[-self.BAND :]
        return all(bool((band.view(np.uint8) == self._guard).all()) for band in bands)
