"""Packing a filter again and again, whose values change where they lie: as one launch, without Python.

Between kernels on all threads, the Python of a packing takes 40 to 100 us, and its kernel 5.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from convalgos.core.bound_run import AddressWord, Launch
from convalgos.cpu.runtime import jit

_this = threading.local()


class RecordedPacking(NamedTuple):
    """What writes `packed` when it is launched again; the launches read w and `record` where they lie."""

    packed: np.ndarray
    launches: tuple[Launch, ...]
    record: np.ndarray | None = None
    more: tuple[np.ndarray, ...] = ()  # scratch, and tables


def launch_packing(
    kernel: int, record: np.ndarray, tasks: int, w: np.ndarray, packed: np.ndarray, *more: np.ndarray
) -> None:
    """Launch a kernel that brings w into another form, to be recorded where somebody wants that.

    Args:
        record: the kernel's arguments. more: other arrays that it uses.
    """
    begin = jit.data_address()(record)
    jit.launch(kernel, begin, tasks)
    if (found := getattr(_this, "found", None)) is not None:
        found.append((w, RecordedPacking(packed, (Launch(kernel, begin, tasks, tasks == 1),), record, more)))


def recorded_packing(pack: Callable[[np.ndarray], np.ndarray], w: np.ndarray) -> RecordedPacking | None:
    """`pack(w)`, which is launched again whenever w has other values; None where there is more to it.

    A kernel that reads a copy of w, or whose result is brought into yet another form, is not all of it.
    """
    packed, found = _recorded(lambda: pack(w))
    if len(found) != 1 or found[0][1].packed is not packed:
        return None
    read, recorded = found[0]
    same = jit.data_address()(read) == jit.data_address()(w) and read.size == w.size
    return recorded if same and recorded.packed.flags.c_contiguous else None


class FilterPacking(NamedTuple):
    """What brings a filter into the form of a plan when its launches run again."""

    filters: Any  # what was prepared
    launches: tuple[Launch, ...]
    w_places: tuple[AddressWord, ...]  # where the launches read the address of the filter
    kept: tuple[RecordedPacking, ...]


def filter_packing(
    prepare: Callable[[], Any], arrays_of: Callable[[Any], list[np.ndarray]], begin: int, nbytes: int
) -> FilterPacking | None:
    """How `prepare()` packs a filter that lies in these bytes; None where there is more to it than launches.

    Args:
        arrays_of: all arrays of what is prepared; none where there is something else.
    """
    filters, found = _recorded(prepare)
    made: list[np.ndarray] = []
    places = []
    for read, packing in found:
        words = np.empty(0, np.int64) if packing.record is None else packing.record.view(np.int64).reshape(-1)
        inside = np.flatnonzero((words >= begin) & (words < begin + nbytes))
        if len(inside) == 1 and packing.record is not None:
            at = jit.data_address()(packing.record) + 8 * int(inside[0])
            places.append(AddressWord(at, int(words[inside[0]]) - begin))
        elif len(inside) or not any(np.may_share_memory(read, array) for array in made):
            return None  # it reads a copy that no launch has made
        made.append(packing.packed)
    arrays = arrays_of(filters)
    if not arrays or not {id(array) for array in arrays} <= {id(array) for array in made}:
        return None
    launches = tuple(launch for _, packing in found for launch in packing.launches)
    return FilterPacking(filters, launches, tuple(places), tuple(packing for _, packing in found))


# --- inside ----------------------------------------------------------------------------------


def _recorded(pack: Callable[[], Any]) -> tuple[Any, list[tuple[np.ndarray, RecordedPacking]]]:
    """What a function makes, and the launches in it: what each reads, and what it is."""
    found: list[tuple[np.ndarray, RecordedPacking]] = []
    _this.found = found
    try:
        return pack(), found
    finally:
        _this.found = None
