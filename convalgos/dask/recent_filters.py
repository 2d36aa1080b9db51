"""Filters that were used last, known again by their bytes: what was made of them serves the next call."""

from __future__ import annotations

from typing import Generic, TypeVar

import numpy as np

LARGE = 1 << 16  # bytes of a filter from which it is worth it
SAMPLE = 1 << 10  # bytes that are compared first

Value = TypeVar("Value")


class RecentFilters(Generic[Value]):
    """Something for each of some filters, whose bytes nobody changes; those that were asked for last.

    Example:
        >>> recent, w = RecentFilters[str](), np.ones((64, 64, 3, 3), "f4")
        >>> recent.add(w, "ones", most=1 << 20)
        >>> recent.find(w.copy()), recent.find(w + 1)
        ('ones', None)
    """

    def __init__(self) -> None:
        self._kept: list[tuple[np.ndarray, Value]] = []  # the one that was asked for last at the end

    def find(self, w: np.ndarray) -> Value | None:
        """What was added for a contiguous filter of the same bytes."""
        for i, (kept, value) in enumerate(self._kept):
            if kept is w or _same(kept, w):
                self._kept.append(self._kept.pop(i))
                return value
        return None

    def add(self, w: np.ndarray, value: Value, most: int) -> None:
        """Keep a value, and of all filters no more than `most` bytes."""
        self._kept.append((w, value))
        while sum(kept.nbytes for kept, _ in self._kept) > most:
            self._kept.pop(0)


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether they have the same bytes."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    a, b = (array.reshape(-1).view(np.uint8) for array in (one, other))
    return np.array_equal(a[:SAMPLE], b[:SAMPLE]) and np.array_equal(a, b)
