"""Copies of records of kernels with some other fields: what is the same is copied as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from convalgos.cpu.runtime.records import WORD, field_offset, record_words


def changed_record(record: np.ndarray, names: tuple[str, ...], values: Sequence[Any]) -> np.ndarray:
    """A copy of a record (1,) of int64 fields, in which those of these names have other values.

    Args:
        values: of a record within it a tuple.
    """
    places = _places(record.dtype, names)
    if len(places) != len(values):
        values = [word for value in values for word in (value if type(value) is tuple else (value,))]
    words = record_words(record).copy()
    words[places] = values
    return np.ndarray(1, record.dtype, words)


@lru_cache(1024)  # plans of a kind change the same fields
def _places(record: np.dtype, names: tuple[str, ...]) -> np.ndarray:
    """Where the words of these fields are, one after the other."""
    begins = [field_offset(record, name) // WORD.itemsize for name in names]
    counts = [record[name].itemsize // WORD.itemsize for name in names]
    places = [begin + i for begin, count in zip(begins, counts, strict=True) for i in range(count)]
    return np.array(places, np.intp)
