"""Filters of NumPy as arrays of one chunk; a large one is the same array again while it has the same bytes.

Dask calls an array by a hash of its bytes, which takes longer than many a convolution: 8 ms for 9 MB. And
what was prepared of a filter is kept as long as its chunk is (`tasks.prepared`), here for the next call.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from convalgos.core.forks import guarded
from convalgos.dask.engine import DaskArray, da
from convalgos.dask.maps import as_dask

HASHED = 1 << 16  # bytes up to which a filter is called by its hash
MOST = 1 << 26  # bytes that are kept in all
SAMPLE = 1 << 10  # elements that are compared first


def as_filter(w: Any) -> DaskArray:
    """A Dask array of a filter; one of NumPy is a single chunk."""
    if isinstance(w, da.Array):
        return as_dask("w", w)
    w = np.asarray(w)
    if w.nbytes <= HASHED or not w.flags.c_contiguous:
        return as_dask("w", w, whole=True)
    with _lock:
        for i, (chunk, array) in enumerate(_recent):
            if _same(chunk, w):
                _recent.append(_recent.pop(i))
                return array
        array = da.from_array(w, chunks=-1, name=False)  # Dask copies w
        _recent.append((array.dask[array.name, *(0,) * w.ndim], array))
        while sum(chunk.nbytes for chunk, _ in _recent) > MOST:
            _recent.pop(0)
    return array


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether they have the same bytes."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    a, b = (array.reshape(-1).view(np.uint8) for array in (one, other))
    return np.array_equal(a[:SAMPLE], b[:SAMPLE]) and np.array_equal(a, b)


_lock = guarded(threading.Lock())
_recent: list[tuple[np.ndarray, DaskArray]] = []  # (chunk, array), the one that was asked for last at the end
