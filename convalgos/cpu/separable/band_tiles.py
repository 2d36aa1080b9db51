"""Tables of the tiles of pixels of a band: they are made for every width of a map."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.cpu.gemm.row_tiles import (
    ROW_TILE_BYTES,
    along_row,
    even_lengths,
    fill_tiles,
    kind_numbers,
    tile_code,
)
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.records import WORD


class BandTiles(NamedTuple):
    """Tables of `ROW_TILE`."""

    addresses: dict[int, int]  # by the pixels of a row, or the rows of a map
    lengths: tuple[int, ...]  # pixels of the tiles that kernels are for
    table: np.ndarray  # all of them


@lru_cache(512)  # layers of one map size share them
def tiles_of_rows(counts: tuple[int, ...], most: int, lanes: int) -> BandTiles:
    """Those of rows of so many pixels, of which one has some, cut into even tiles of at most so many."""
    lengths = sorted({n for count in counts if count for n in even_lengths(count, most)})
    rows = [((count > 0, 1, count or 1), -(-count // most) + 1) for count in counts]
    return _filled(counts, rows, lengths, most, (0, 0, lanes), (0, 0, lanes), np.empty(0, np.int64))


def tiles_of_maps(
    counts: tuple[int, ...], columns: int, most: int, x_steps: tuple[int, int], y_steps: tuple[int, int]
) -> BandTiles:
    """Those of so many rows of a map, by these numbers; each tile lies in a row.

    Args:
        x_steps, y_steps: elements of x and of y from one row, and from one column, to the next.
    """
    ends, lengths = along_row(columns, most), even_lengths(columns, most)
    rows = [((count > 0, count or 1, columns), count * (len(ends) - 1) + 1) for count in counts]
    return _filled(counts, rows, lengths, most, (0, *x_steps), (0, *y_steps), ends)


def _filled(
    counts: Sequence[int], blocks: Sequence[tuple[tuple[int, int, int], int]], lengths: Sequence[int],
    most: int, x_steps: tuple[int, int, int], y_steps: tuple[int, int, int], ends: np.ndarray,
) -> BandTiles:  # fmt: skip
    """The tables of blocks of so many slices, rows and columns, and tiles with an end.

    Args:
        ends: of `row_tiles.tile_table`; none of a single row.
    """
    table = aligned_empty(sum(length for _, length in blocks) * ROW_TILE_BYTES, np.uint8)
    address = jit.data_address()
    begin, addresses, records = address(table), {}, []
    numbers = kind_numbers([tile_code(1, n, most) for n in lengths])
    own = len(ends), address(ends), numbers.buffer_info()[0]
    for count, (block, length) in zip(counts, blocks, strict=True):
        records.append((*block, *block, most, *x_steps, *y_steps, 1, length, *own, begin))
        addresses[count] = begin
        begin += length * ROW_TILE_BYTES
    words = np.array(records, WORD)
    jit.launch(fill_tiles(), address(words), len(words), False)
    return BandTiles(addresses, tuple(lengths), table)
