"""Lines along rows by sums of rows: a panel of lines is turned over, summed in the cache, and turned back.

What is done to rows of an array takes little for each of them, if they are long. Lines along rows are no such
rows, but some of them are, turned over; and to turn them takes less than a dot product for each output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from convalgos.core.allocator import ALIGNMENT, whole_lines
from convalgos.core.machine import cache_sizes
from convalgos.cpu.filtering.line_elements import KINDS, load_line, store_within
from convalgos.cpu.filtering.recursive_kernels import turn_panel
from convalgos.cpu.filtering.row_sums import ROW_SUM_FIELDS, RowSums, row_record
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.runtime.record_launch import RecordLaunch
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.simd import call, carray, copy_bytes, pointer

WIDEST = 8  # vectors of lines in a panel, at most
LONG = 1 << 11  # bytes of a line that is converted apart from the next: else they share sets of a cache
SHARE = 1 << 12  # elements that are worth a thread; Zen 5
FEWEST = 6  # vectors of lines from which on panels take less time than lines by themselves, of so many
NARROW = 4000  # elements times those of a step, and less; Zen 5
WORDS = len(ROW_SUM_FIELDS.names or ())
# x and y are (lines, size), of elements of x_bytes and y_bytes; a panel has `width` vectors of lines. `steps`
# records, and the kernels of these, make one panel of the other, from the first one on and back to it. `turn`
# and `turn_back` bring lines to panels and back. `load` and `store` convert elements, or are 0, to and from
# lines `pitch` elements apart. The others are bytes from `scratch`, behind the records, on.
PANEL_FIELDS = fields(
    "x y scratch scratch_bytes tasks lines size width steps records kernels turn turn_back load store "
    "x_bytes y_bytes pitch elements_at panel_at other_at table_at"
)


@jit.specialise
def filter_panels(SIZE: int, LANES: int) -> jit.Kernel:
    """The panels of a task."""

    def filter_panels(args: int, task: int) -> None:
        a = carray(pointer(args), 1, PANEL_FIELDS)[0]
        scratch = a.scratch + task * a.scratch_bytes
        panel, other = scratch + a.panel_at, scratch + a.other_at
        copy_bytes(scratch, a.records, a.steps * WORDS * 8)
        for step in range(a.steps):
            one = carray(pointer(scratch + step * WORDS * 8), 1, ROW_SUM_FIELDS)[0]
            one.x, one.y = (panel, other) if step % 2 == 0 else (other, panel)
            one.scratch = scratch + a.table_at
        kernels = carray(pointer(a.kernels), a.steps, np.int64)
        wide = a.width * LANES
        units = -(-a.lines // wide)
        for unit in range(units * task // a.tasks, units * (task + 1) // a.tasks):
            first, lines = unit * wide, min(wide, a.lines - unit * wide)
            move_lines(a, SIZE, LANES, first, lines, panel, scratch + a.elements_at, False)
            for step in range(a.steps):
                call(kernels[step], (scratch + step * WORDS * 8, 0))
            last = panel if a.steps % 2 == 0 else other
            move_lines(a, SIZE, LANES, first, lines, last, scratch + a.elements_at, True)

    return filter_panels


@jit.helper
def move_lines(
    a: Any, SIZE: int, LANES: int, first: int, lines: int, panel: int, elements: int, back: bool
) -> None:
    """Some lines of x, from the first on, into a panel, or those of y back from there."""
    convert, turn = (a.store, a.turn_back) if back else (a.load, a.turn)
    start, each = (a.y, a.y_bytes) if back else (a.x, a.x_bytes)
    if convert == 0:
        call(turn, (a.width, start + first * a.size * SIZE, a.size, a.size, lines, panel))
    else:
        for j in range(0, lines, LANES):
            rows, at = min(LANES, lines - j), start + (first + j) * a.size * each
            count, parts = (rows * a.size, 1) if a.pitch == a.size else (a.size, rows)
            if back:
                call(turn, (a.width, elements, a.pitch, a.size, rows, panel + j * SIZE))
            for i in range(parts):
                element, place = elements + i * a.pitch * SIZE, at + i * a.size * each
                if back:
                    call(convert, (element, place, count))
                else:
                    call(convert, (place, element, count))
            if not back:
                call(turn, (a.width, elements, a.pitch, a.size, rows, panel + j * SIZE))


class PanelPass:
    """y (lines, size) = x (lines, size) by sums along lines, one after the other; C-contiguous, and apart.

    Args:
        dtype: of sums, a float one.
        sums: of which the last one has `size` rows.
        fill: what stands for elements that are none.
        of, into: short integers that x or y holds, where they are not of dtype.
    """

    def __init__(
        self, lines: int, size: int, dtype: np.dtype, sums: Sequence[RowSums], fill: float, threads: int,
        of: np.dtype | None = None, into: np.dtype | None = None,
    ):  # fmt: skip
        self.count, each, lanes = lines * size, dtype.itemsize, simd.lanes(dtype.itemsize)
        threads = max(1, min(threads, self.count // SHARE, -(-lines // lanes)))
        width = panel_width(-(-lines // lanes), size, each * lanes, threads)
        wide = width * lanes
        made, rows = [], size
        for by in sums:
            made.append(row_record(1, rows, wide, dtype, by, fill, 1))
            rows = by.rows
        apart = (whole_lines(size * each) // ALIGNMENT | 1) * ALIGNMENT // each  # an odd number of lines
        pitch = size if size * each < LONG else apart
        records = np.concatenate([one.record for one in made])
        kernels = np.array([one.kernel for one in made])
        tall = [max(size, *(by.rows for by in sums)) + lanes] * 2
        counts = (lanes * pitch if of or into else 0, *(rows * wide for rows in tall))
        begins = (records.nbytes, *(count * each for count in counts), max(one.scratch_bytes for one in made))
        places = np.cumsum([whole_lines(nbytes) for nbytes in begins])
        tasks = min(threads, -(-lines // wide))
        values = (
            0, 0, 0, places[-1], tasks, lines, size, width, len(made), records.ctypes.data,
            kernels.ctypes.data, *(turn_panel(each, lanes, back) for back in (0, 1)),
            load_line(KINDS.index(of.name), each, lanes) if of else 0,
            store_within(KINDS.index(into.name), each, lanes) if into else 0,
            (of or dtype).itemsize, (into or dtype).itemsize, pitch, *places[:4],
        )  # fmt: skip
        record, names = np.array(values, np.int64), PANEL_FIELDS.names
        kept = records, kernels, made
        self.run = RecordLaunch(
            filter_panels(each, lanes), record, names, tasks * int(places[-1]), tasks, kept
        )


def takes_panels(lines: int, size: int, step: float, itemsize: int) -> bool:
    """Whether lines that are made coarse by a step are better filtered side by side than by themselves."""
    return lines >= FEWEST * simd.lanes(itemsize) and size * step < NARROW


def panel_width(vectors: int, size: int, nbytes: int, threads: int) -> int:
    """Vectors of lines in a panel, which lies in L2, as many for all threads; nbytes: of a vector."""
    most = max(1, min(WIDEST, cache_sizes()[1] // (size * nbytes)))
    each = -(-vectors // threads)
    return -(-each // -(-each // most))
