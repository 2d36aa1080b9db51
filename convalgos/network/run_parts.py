"""Parts of a run of a network: tables of launches, which one call runs, and what Python runs between them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from convalgos.core.bound_run import Launch
from convalgos.cpu.runtime import jit

Arrays = dict[str, np.ndarray]
Part = Callable[[Arrays], None]  # of a run, on the arrays that move


class MovingPlaces(NamedTuple):
    """What kernels read as addresses of an array that moves, or of parts that begin so many bytes on."""

    name: str
    cells: Sequence[tuple[ctypes.c_int64, int]]


class TablePart:
    """These launches, behind which stand these words; checks raise what their kernels have noted."""

    def __init__(
        self, launches: Sequence[Launch], words: Sequence[MovingPlaces], checks: Sequence[Callable[[], None]]
    ):
        self._table, self._address_of = jit.launch_table(launches), jit.data_address()
        self._told = [(moved.name, cell, offset) for moved in words for cell, offset in moved.cells]
        self.address, self.count, self.checks = int(self._table.ctypes.data), len(self._table), tuple(checks)
        self.is_shared = any(launch.tasks not in (0, 1) for launch in launches)  # whether threads have part

    @property
    def words(self) -> list[tuple[str, int, int]]:
        """(what moves, the address of a word that is told where it lies, bytes from its begin)."""
        return [(name, ctypes.addressof(cell), offset) for name, cell, offset in self._told]

    def __call__(self, arrays: Arrays) -> None:
        address_of = self._address_of
        for name, cell, offset in self._told:
            cell.value = address_of(arrays[name]) + offset
        jit.launch_all(self.address, self.count)
        if self.checks:
            self.raise_noted()

    def raise_noted(self) -> None:
        """What the checks raise, of which none finds in the next run what was noted in this one."""
        try:
            for check in self.checks:
                check()
        except IndexError:
            for check in self.checks:
                with suppress(IndexError):
                    check()
            raise


def nothing() -> None:
    pass


def ignoring(run: Callable[[], None]) -> Part:
    def part(arrays: Arrays) -> None:
        run()

    return part
