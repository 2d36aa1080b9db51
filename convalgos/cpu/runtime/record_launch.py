"""A kernel launched on a copy of its record, with the addresses of two arrays and of a fresh scratch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from convalgos.core.allocator import ALIGNMENT, LARGE, aligned_empty
from convalgos.cpu.runtime import jit


class RecordLaunch:
    """Many threads may call it at once.

    Args:
        kernel: takes (address of its record, task).
        record: (fields,) int64.
        names: of these; "x", "y" and "scratch" are set by each call.
        kept: what the record points to, which lives as long as this.
    """

    def __init__(
        self, kernel: int, record: np.ndarray, names: tuple[str, ...] | None, scratch_bytes: int, tasks: int,
        kept: Sequence[np.ndarray],
    ):  # fmt: skip
        self._kernel, self._record, self._tasks = kernel, record, tasks
        self._x, self._y, self._scratch = map((names or ()).index, ("x", "y", "scratch"))
        self._room = scratch_bytes + ALIGNMENT
        self._address, self._kept = jit.data_address(), kept

    def __call__(self, x: np.ndarray, y: np.ndarray) -> None:
        words, address = self._record.copy(), self._address
        scratch = (np.empty if self._room < LARGE else aligned_empty)(self._room, np.uint8)
        begin = address(scratch)
        words[self._x], words[self._y] = address(x), address(y)
        words[self._scratch] = begin + -begin % ALIGNMENT
        jit.launch(self._kernel, address(words), self._tasks, self._tasks > 1)
