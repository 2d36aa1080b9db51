"""Tables of the tiles of pixels of a band, filled by a kernel: they are made for every width of a map."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.cpu.gemm.row_tiles import NONE, ROW_TILE_BYTES
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.runtime.records import WORD
from convalgos.cpu.vectors.simd import carray, pointer

# Of a row of `count` pixels, cut into `tiles`, of which one of n pixels has the kernel `first_kernel` + n.
BAND_TILE_FIELDS = fields("count tiles first_kernel lanes table")


class BandTiles(NamedTuple):
    """Tables of `ROW_TILE`."""

    addresses: dict[int, int]  # by the pixels of a row
    lengths: tuple[int, ...]  # pixels of the tiles that kernels are for
    table: np.ndarray  # all of them


@lru_cache(512)  # layers of one map size share them
def tiles_of_rows(counts: tuple[int, ...], most: int, lanes: int) -> BandTiles:
    """Those of rows of so many pixels, cut into tiles of at most so many.

    The lengths of the tiles of a row differ by one at most.
    """
    cut, found = [], set()
    for count in counts:
        tiles = -(-count // most)
        length, longer = divmod(count, tiles) if tiles else (0, 0)
        cut.append((count, tiles, length))
        if tiles:
            found.add(length)
        if longer:
            found.add(length + 1)
    lengths = sorted(found)
    table = aligned_empty(sum([tiles + 1 for _, tiles, _ in cut]) * ROW_TILE_BYTES, np.uint8)
    begin, addresses, records = jit.data_address()(table), {}, []
    for count, tiles, length in cut:
        first = lengths.index(length) - length if tiles else 0
        records.append((count, tiles, first, lanes, begin))
        addresses[count] = begin
        begin += (tiles + 1) * ROW_TILE_BYTES
    words = np.array(records, WORD).reshape(len(records), -1)
    jit.launch(fill_band_tiles(), jit.data_address()(words), len(words), False)
    return BandTiles(addresses, tuple(lengths), table)


@jit.specialise
def fill_band_tiles() -> jit.Kernel:
    """The table of each task, which has a record of its own; even tiles, as `row_tiles.along_row` cuts."""

    def fill_band_tiles(args: int, task: int) -> None:
        a = carray(pointer(args), task + 1, BAND_TILE_FIELDS)[task]
        table = carray(pointer(a.table), (a.tiles + 1) * 4, np.int64)
        begin = 0
        for i in range(a.tiles):
            end = (i + 1) * a.count // a.tiles
            table[4 * i], table[4 * i + 1] = begin * a.lanes, begin * a.lanes
            table[4 * i + 2], table[4 * i + 3] = end - begin, a.first_kernel + end - begin
            begin = end
        for i in range(4 * a.tiles, 4 * a.tiles + 4):
            table[i] = NONE

    return fill_band_tiles
