"""Tiles of neighbouring outputs: whole rows of a map or parts of one, and the tables of those of a block."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from convalgos.cpu.gemm.offset_tables import short_counts, ways_to_be_short
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.runtime.records import record_of_words
from convalgos.cpu.vectors.simd import carray, pointer

ROW_TILE = fields("x y outputs kernel")  # a kernel that is none ends a row of the table
ROW_TILE_BYTES, NONE = 32, -1
TILE_WORDS = ROW_TILE.names or ()
TABLE_OF_TILES = fields(
    "slices rows columns last_slices last_rows last_columns most x_slice x_row x_column "
    "y_slice y_row y_column ways length ends own numbers table"
)
MOST_RUNS = 4  # rows of a map in a tile, each of which takes a register of addresses


class RowTile(NamedTuple):
    """Rows of neighbouring outputs."""

    runs: int  # whole rows of a map, or 1
    length: int  # outputs of each


Counts = tuple[int, ...]  # slices, rows and columns of an image of a block


@lru_cache(512)  # layers of one map size share them
def tile_table(
    block: Counts, totals: Counts, most: int, x_steps: Counts, y_steps: Counts, short_images: bool,
    ends: Counts = (),
) -> tuple[np.ndarray, tuple[RowTile, ...]]:  # fmt: skip
    """(ways, most tiles and an end) of ROW_TILE, and the tiles that kernels are for.

    A way for each of those of a block to be cut short, as `blocking.table_number` numbers them, up to the
    last that there is. A kernel fills them: they are made for every size of a map.

    Args:
        block: of which outputs, `totals` in all, are taken.
        most: outputs of a tile.
        x_steps, y_steps: elements of x and of y from one output to the next, along each dimension.
        short_images: whether blocks may be short in images, too, which all take the same tiles.
        ends: where tiles of whole rows begin, and the last ends; none are even, and may have several rows.
    """
    (slices, rows, columns), (_, last_rows, last_columns) = block, (lasts := short_counts(block, totals))
    ways = ways_to_be_short((1, *block), (not short_images, *lasts))
    if ends:
        kinds = tuple(sorted({RowTile(1, end - begin) for begin, end in pairwise(ends)}))
        across, down = len(ends) - 1, rows
    else:
        counts = {(r, q) for r in (rows, last_rows) for q in (columns, last_columns)}
        kinds = tuple(sorted({kind for r, q in counts for kind in _kinds(r, q, most)}))
        across, down = -(-columns // most), -(-rows // runs_of(columns, rows, most))
    numbers, own = kind_numbers([tile_code(*kind, most) for kind in kinds]), array("q", ends)
    length = slices * down * across + 1  # blocks that are cut short have no more tiles
    table = np.empty(ways * length * len(TILE_WORDS), np.int64)
    values = (
        *block, *lasts, most, *x_steps, *y_steps, ways, length, len(ends), own.buffer_info()[0],
        numbers.buffer_info()[0], jit.data_address()(table),
    )  # fmt: skip
    record = record_of_words(TABLE_OF_TILES, values)
    jit.launch(fill_tiles(), jit.data_address()(record), 1)
    return np.ndarray((ways, length), ROW_TILE, table), kinds


@jit.specialise
def fill_tiles() -> Callable[..., None]:
    """`tile_table`; each task has a record, and a table, of its own."""

    def fill_tiles(args: int, task: int) -> None:
        a = carray(pointer(args), task + 1, TABLE_OF_TILES)[task]
        own, numbers = carray(pointer(a.own), 1, np.int64), carray(pointer(a.numbers), 1, np.int64)
        for way in range(a.ways):
            tile = carray(pointer(a.table + way * a.length * ROW_TILE_BYTES), a.length, ROW_TILE)
            slices = a.last_slices if way // 4 % 2 else a.slices
            rows = a.last_rows if way // 2 % 2 else a.rows
            columns = a.last_columns if way % 2 else a.columns
            high = max(1, min(rows, min(a.most // columns, MOST_RUNS)))
            across = (columns + a.most - 1) // a.most
            if a.ends:
                high, across = 1, a.ends - 1
            down, at = (rows + high - 1) // high, 0
            for i in range(slices):
                for j in range(down):
                    runs = min(high, rows - j * high)
                    x = i * a.x_slice + j * high * a.x_row
                    y = i * a.y_slice + j * high * a.y_row
                    end = 0
                    for k in range(across):
                        first = end
                        end = own[k + 1] if a.ends else (k + 1) * columns // across
                        tile[at].x = x + first * a.x_column
                        tile[at].y = y + first * a.y_column
                        tile[at].outputs = runs * (end - first)
                        tile[at].kernel = numbers[runs * (a.most + 1) + end - first]
                        at += 1
            for spare in range(at, a.length):
                tile[spare].x, tile[spare].y, tile[spare].outputs, tile[spare].kernel = 0, 0, 0, NONE

    return fill_tiles


def _kinds(rows: int, columns: int, most: int) -> Iterator[RowTile]:
    """The tiles of a block."""
    high = runs_of(columns, rows, most)
    for runs in {high, rows % high or high}:
        for length in even_lengths(columns, most):
            yield RowTile(runs, length)


def even_lengths(columns: int, most: int) -> tuple[int, ...]:
    """Of the tiles of a row: one, or two that differ by one output."""
    length, longer = divmod(columns, -(-columns // most))
    return (length, length + 1) if longer else (length,)


def tile_code(runs: int, length: int, most: int) -> int:
    """A number for a tile of at most so many outputs."""
    return runs * (most + 1) + length


def kind_numbers(codes: Sequence[int]) -> array[int]:
    """The place of each of some tiles among them, by its code; they ascend."""
    numbers = array("q", bytes(8 * (codes[-1] + 1)))
    for number, code in enumerate(codes):
        numbers[code] = number
    return numbers


def along_row(columns: int, most: int) -> np.ndarray:
    """(tiles + 1,) where even tiles of a row begin, each of at most so many outputs, and the last ends."""
    count = -(-columns // most)
    ends: np.ndarray = np.arange(count + 1) * columns // count
    return ends


def runs_of(columns: int, rows: int, most: int) -> int:
    """Rows of a map that a tile takes."""
    return max(1, min(rows, most // columns, MOST_RUNS))
