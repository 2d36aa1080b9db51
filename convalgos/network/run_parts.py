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


def table_part(
    launches: Sequence[Launch], words: Sequence[MovingPlaces], checks: Sequence[Callable[[], None]]
) -> Part:
    """These launches, behind which stand these words; checks raise what their kernels have noted."""
    table, address_of = jit.launch_table(launches), jit.data_address()
    told = [(name, cell, offset) for name, cells in words for cell, offset in cells]
    address, count, checks = table.ctypes.data, len(table), tuple(checks)

    def run(arrays: Arrays, kept: np.ndarray = table) -> None:
        for name, cell, offset in told:
            cell.value = address_of(arrays[name]) + offset
        jit.launch_all(address, count)
        try:
            for check in checks:
                check()
        except IndexError:
            for check in checks:  # so that none finds in the next run what was noted in this one
                with suppress(IndexError):
                    check()
            raise

    return run


def nothing() -> None:
    pass


def ignoring(run: Callable[[], None]) -> Part:
    def part(arrays: Arrays) -> None:
        run()

    return part
