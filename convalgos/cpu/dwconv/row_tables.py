"""The tables of `cpu.depthwise.rows`: bands of a plane, strips of columns, tiles of rows, passes of taps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product

import numpy as np

from convalgos.core.taps import taps_meeting
from convalgos.cpu.dwconv.row_ends import end_table
from convalgos.cpu.dwconv.row_kernels import filter_folded_row
from convalgos.cpu.dwconv.row_strips import pass_table
from convalgos.cpu.dwconv.row_tiling import RowTiling, folded_rows
from convalgos.cpu.runtime.half import computed_bytes, map_form

# Of columns: the first output, one behind the last, strips as in `ROW_BAND`, outputs that are folded.
_ColumnBand = tuple[int, int, tuple[int, ...], tuple[int, int]]


def folded_passes(c: RowTiling) -> np.ndarray:
    """Rows of `period` taps; the last is cut short."""
    if not c.folds:
        return np.zeros(0, np.int64)
    columns = c.problem.kernel[2]
    full, rest = divmod(columns, c.period)
    if c.in_pairs and rest % 2:  # the last tap has no neighbour, but those above it have
        parts = [(0, full + 1, 0, rest - 1), (0, full, rest - 1, c.period - rest + 1), (full, 1, rest - 1, 1)]
    else:
        parts = [(0, full + 1, 0, rest), (0, full, rest, c.period - rest)]
    return pass_table(parts, 1, c.in_pairs)


class RowTables:
    """The bands of a plane, the strips of all bands, and the tiles: `ROW_BAND`, `ROW_STRIP`, `ROW_TILE`."""

    def __init__(self, c: RowTiling):
        self.c = c
        self.bands: list[tuple[int, ...]] = []
        self.strips: list[tuple[int, ...]] = []
        self.tiles: list[tuple[int, ...]] = []
        self.masks: list[np.ndarray] = []  # of the strips
        p = c.problem
        of_columns = [(a, b, *self._strips(a, b)) for a, b in pairwise([*c.column_starts, p.spatial_out[2]])]
        for band, o in product(range(c.row_bands), range(p.spatial_out[0])):
            p0 = band * c.band_rows
            self._add(o, p0, p0 + c.band_rows if band < c.row_bands - 1 else p.spatial_out[1], of_columns)

    def _strips(self, first: int, end: int) -> tuple[tuple[int, ...], tuple[int, int]]:
        """The strips of a band of columns, as in `ROW_BAND`, and the outputs between them that are folded."""
        columns = self.c.columns
        a, b = columns.inner if self.c.folds else (end, end)
        a, b = max(first, min(a, end)), max(first, min(b, end))
        before, behind = columns.strips(first, a), columns.strips(b, end)
        plain = before.plain or behind.plain
        again = [(q, self.c.lanes) for q in behind.plain if before.plain]
        lefts, rights = before.left + behind.left, before.right + behind.right
        doubles, singles = before.double + behind.double, before.single + behind.single
        found: list[int] = []  # how many of each kind, and the first of them
        for strips in (
            [(q, self.c.lanes) for q in lefts],
            [(q, self.c.lanes) for q in rights],
            doubles + again,
        ):
            found += [len(strips), len(self.strips)]
            self.strips += [
                (q, second, self._masks(q, second), min(self.c.lanes, end - q - second))
                for q, second in strips
            ]
        found += [len(singles), len(self.strips)]
        self.strips += [(q, 0, self._masks(q, None), count) for q, count in singles]
        return (len(plain), plain.start, *found), (a, b)

    def _masks(self, q: int, second: int | None) -> int:
        columns = self.c.columns
        if self.c.has_border:
            return self._ends(q, second)
        found = columns.part_masks(q, second) if columns.shifted else columns.masks(q, second, self.c.offsets)
        self.masks.append(found)
        return self.masks[-1].ctypes.data

    def _ends(self, q: int, second: int | None) -> int:
        """The address of a table of addresses, of entries of `end_table`."""
        c, columns = self.c, self.c.columns
        found = columns.part_places(q, second) if columns.shifted else columns.places(q, second, c.offsets)
        entries = end_table(c.row, found.ravel(), c.lanes, c.problem.itemsize)
        step = entries.shape[1]
        self.masks += [entries, entries.ctypes.data + np.arange(len(entries), dtype=np.int64) * step]
        return self.masks[-1].ctypes.data

    def _add(self, o: int, p0: int, p1: int, of_columns: Sequence[_ColumnBand]) -> None:
        """The bands of some rows of a slice of outputs."""
        c, p = self.c, self.c.problem
        d, t0, t1 = taps_meeting(p, 0, o)
        tiles = self._add_tiles(self._row_tiles(d, t0, t1 - t0, p0, p1))
        for first, end, strips, (a, b) in of_columns:
            if a == b:
                of_folded = 0, 0, 0
            else:
                rows = max(r for r in folded_rows(p.stride[2]) if r <= (b - a) // c.lanes)
                folded_tiles = self._add_tiles(self._folded_tiles(d, t1 - t0, p0, p1, a, b, rows))
                kernel = filter_folded_row(computed_bytes(p), c.lanes, map_form(p.dtype), rows, p.stride[2])
                of_folded = kernel, *folded_tiles
            self.bands.append((o, p0, first, p1 - p0, end - first, *tiles, *strips, *of_folded))

    def _add_tiles(self, tiles: list[tuple[int, ...]]) -> tuple[int, int]:
        """(the first of them, their number)."""
        self.tiles += tiles
        return len(self.tiles) - len(tiles), len(tiles)

    def _row_tiles(self, d: int, t0: int, slices: int, p0: int, p1: int) -> list[tuple[int, ...]]:
        c, p = self.c, self.c.problem
        found: list[tuple[int, ...]] = []
        for first in range(c.row_sets):
            rows = range(p0 + first, p1, c.row_sets)
            for i in range(0, len(rows), c.rows):
                row = rows[min(i, len(rows) - c.rows)]  # the last tile of a set overlaps the one before
                h = row * p.stride[1] - p.padding[1][0]
                found.append((d, h, 0, t0, slices, row - p0, 0))
        return found

    def _folded_tiles(
        self, d: int, slices: int, p0: int, p1: int, first: int, end: int, rows: int
    ) -> list[tuple[int, ...]]:
        """Of `rows` vectors each, for every row of outputs; the last of a row overlaps the one before."""
        c, p = self.c, self.c.problem
        step = rows * c.lanes
        found: list[tuple[int, ...]] = []
        for row in range(p0, p1):
            h = row * p.stride[1] - p.padding[1][0]
            meets = slices if 0 <= h < p.spatial[1] else 0
            for q in range(first, end, step):
                at = min(q, end - step)
                found.append((d, h, at * p.stride[2], 0, meets, row - p0, at))
        return found
