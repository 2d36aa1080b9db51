"""Some elements of many arrays, read at once: whether somebody wrote to one of them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

SAMPLES = 8  # elements of an array, at least, or all
WORD = 4  # bytes that are read at once where all arrays are of such words


class SampledMemory:
    """Elements spread over arrays, and what they were.

    They lie in memory that no cache holds when they are looked at. Copies of the arrays one by one would wait
    for each; one `take`, from what begins with the first of them in memory, waits for many together.

    Args:
        arrays: not empty; they are kept, so that their memory stays theirs.
    """

    def __init__(self, arrays: Sequence[np.ndarray]):
        self._arrays = arrays
        samples = [flat[:: max(1, flat.size // SAMPLES)] for flat in map(_elements, arrays)]
        of_words = all(s.itemsize % WORD == s.ctypes.data % WORD == 0 for s in samples)
        unit: np.dtype[Any] = np.dtype(np.uint32 if of_words else np.uint8)
        addresses = np.concatenate([_addresses(s, unit.itemsize) for s in samples] or [np.zeros(0, int)])
        first = int(addresses.min(initial=np.iinfo(addresses.dtype).max))
        self._places = (addresses - first) // unit.itemsize
        count = int(self._places.max(initial=-1)) + 1
        span = (ctypes.c_uint8 * (count * unit.itemsize)).from_address(first if count else 0)
        self._memory = np.ctypeslib.as_array(span).view(unit)
        self._told = self._now()

    def is_as_it_was(self) -> bool:
        """Whether the elements are those of the beginning."""
        return self._now() == self._told

    def _now(self) -> bytes:
        now: np.ndarray = self._memory.take(self._places)
        return now.tobytes()


def _elements(values: np.ndarray) -> np.ndarray:
    """A flat view of an array: of all its elements where they lie side by side, else of some."""
    values = values.transpose(np.argsort(values.strides)[::-1])
    while not np.may_share_memory(flat := values.reshape(-1), values):
        values = values[..., 0]
    return flat


def _addresses(sample: np.ndarray, unit: int) -> np.ndarray:
    """Of all units of a flat array."""
    elements = sample.ctypes.data + np.arange(sample.size) * sample.strides[0]
    return (elements[:, None] + np.arange(0, sample.itemsize, unit)).reshape(-1)
