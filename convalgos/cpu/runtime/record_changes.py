"""Copies of records of kernels with some other fields: what is the same is copied as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from convalgos.cpu.runtime.records import WORD, field_offset


def changed_record(record: np.ndarray, names: tuple[str, ...], values: Sequence[int]) -> np.ndarray:
    """A copy of a record (1,) of int64 fields, in which those of these names have other values."""
    words = record.view(WORD).copy()
    words[_places(record.dtype, names)] = values
    return np.ndarray(1, record.dtype, words)


@lru_cache(1024)  # plans of a kind change the same fields
def _places(record: np.dtype, names: tuple[str, ...]) -> np.ndarray:
    """(names,) where the words of these fields are."""
    return np.array([field_offset(record, name) // WORD.itemsize for name in names], np.intp)
