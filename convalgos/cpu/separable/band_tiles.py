"""Tables of the tiles of pixels of a band: they are made for every width of a map."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.cpu.gemm.row_tiles import ROW_TILE_BYTES, even_lengths, fill_tiles, kind_numbers, tile_code
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.records import WORD


class BandTiles(NamedTuple):
    """Tables of `ROW_TILE`."""

    addresses: dict[int, int]  # by the pixels of a row
    lengths: tuple[int, ...]  # pixels of the tiles that kernels are for
    table: np.ndarray  # all of them


@lru_cache(512)  # layers of one map size share them
def tiles_of_rows(counts: tuple[int, ...], most: int, lanes: int) -> BandTiles:
    """Those of rows of so many pixels, of which one has some, cut into even tiles of at most so many."""
    lengths = sorted({n for count in counts if count for n in even_lengths(count, most)})
    tiles = [-(-count // most) + 1 for count in counts]  # and an end
    table = aligned_empty(sum(tiles) * ROW_TILE_BYTES, np.uint8)
    begin, addresses, records = jit.data_address()(table), {}, []
    numbers = kind_numbers([tile_code(1, n, most) for n in lengths])
    of_numbers, _ = numbers.buffer_info()
    for count, length in zip(counts, tiles, strict=True):
        row = count > 0, 1, count or 1  # slices, rows and columns
        records.append((*row, *row, most, 0, 0, lanes, 0, 0, lanes, 1, length, 0, 0, of_numbers, begin))
        addresses[count] = begin
        begin += length * ROW_TILE_BYTES
    words = np.array(records, WORD)
    jit.launch(fill_tiles(), jit.data_address()(words), len(words), False)
    return BandTiles(addresses, tuple(lengths), table)
