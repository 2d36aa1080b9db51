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
from convalgos.dask.recent_filters import LARGE, RecentFilters

MOST = 1 << 26  # bytes that are kept in all


def as_filter(w: Any) -> DaskArray:
    """A Dask array of a filter; one of NumPy is a single chunk."""
    if isinstance(w, da.Array):
        return as_dask("w", w)
    w = np.asarray(w)
    if w.nbytes <= LARGE or not w.flags.c_contiguous:
        return as_dask("w", w, whole=True)
    with _lock:
        if (found := _recent.find(w)) is not None:
            return found
        array = da.from_array(w, chunks=-1, name=False)  # Dask copies w
        _recent.add(array.dask[array.name, *(0,) * w.ndim], array, MOST)
    return array


_lock = guarded(threading.Lock())
_recent: RecentFilters[DaskArray] = RecentFilters()
