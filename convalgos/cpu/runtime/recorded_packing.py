"""Packing a filter again and again, whose values change where they lie: as one launch, without Python.

Between kernels on all threads, the Python of a packing takes 40 to 100 us, and its kernel 5.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from convalgos.core.bound_run import Launch
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
    found: list[tuple[np.ndarray, RecordedPacking]] = []
    _this.found = found
    try:
        packed = pack(w)
    finally:
        _this.found = None
    if len(found) != 1 or found[0][1].packed is not packed:
        return None
    read, recorded = found[0]
    same = jit.data_address()(read) == jit.data_address()(w) and read.size == w.size
    return recorded if same and recorded.packed.flags.c_contiguous else None
