"""Tiles of neighbouring outputs: whole rows of a map or parts of one, and the tables of those of a block."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from convalgos.cpu.gemm.blocking import short_blocks
from convalgos.cpu.runtime.plan import fields

ROW_TILE = fields("x y outputs kernel")  # a kernel that is none ends a row of the table
ROW_TILE_BYTES, NONE = 32, -1
MOST_RUNS = 4  # rows of a map in a tile, each of which takes a register of addresses


class RowTile(NamedTuple):
    """Rows of neighbouring outputs."""

    runs: int  # whole rows of a map, or 1
    length: int  # outputs of each

    def code(self, most: int) -> int:
        """A number for a tile of at most so many outputs."""
        return self.runs * (most + 1) + self.length


Counts = tuple[int, ...]  # slices, rows and columns of an image of a block


@lru_cache(512)  # layers of one map size share them
def tile_table(
    block: Counts, totals: Counts, most: int, x_steps: Counts, y_steps: Counts, short_images: bool,
    ends: Counts = (),
) -> tuple[np.ndarray, list[RowTile]]:  # fmt: skip
    """(ways, most tiles and an end) of ROW_TILE, and the tiles that kernels are for.

    A way for each of those of a block to be cut short, as `blocking.table_number` numbers them, up to the
    last that there is.

    Args:
        block: of which outputs, `totals` in all, are taken.
        most: outputs of a tile.
        x_steps, y_steps: elements of x and of y from one output to the next, along each dimension.
        short_images: whether blocks may be short in images, too, which all take the same tiles.
        ends: where tiles of whole rows begin, and the last ends; none are even, and may have several rows.
    """
    short = short_images, *(total % size > 0 for size, total in zip(block, totals, strict=True))
    last = sum(weight for weight, is_short in zip((8, 4, 2, 1), short, strict=True) if is_short)
    ways = (2 * short_blocks(block, totals))[: last + 1]  # most of them the same
    differ = {counts: i for i, counts in enumerate(dict.fromkeys(ways))}
    tiles = [tiles_of(counts, most, x_steps, y_steps, ends) for counts in differ]  # (tiles, 4) each
    own = {RowTile(1, end - begin) for begin, end in pairwise(ends)}
    kinds = sorted(own or set().union(*[_kinds(counts, most) for counts in differ]))
    number = np.zeros(kinds[-1].code(most) + 1, np.int64)  # of a kind, by its code
    number[[kind.code(most) for kind in kinds]] = range(len(kinds))
    table = np.full((len(differ), max(map(len, tiles)) + 1, 4), NONE, np.int64)
    for line, found in zip(table, tiles, strict=True):
        line[: len(found)] = found
        line[: len(found), 3] = number[found[:, 3]]
    return table[[differ[counts] for counts in ways]].view(ROW_TILE)[..., 0], kinds


def tiles_of(counts: Counts, most: int, x_steps: Counts, y_steps: Counts, own: Counts = ()) -> np.ndarray:
    """(tiles, 4) first input, first output, outputs and `RowTile.code` of each, of an image of a block."""
    slices, rows, columns = counts
    high = 1 if own else runs_of(columns, rows, most)
    ends = np.array(own) if own else along_row(columns, most)
    first, length = ends[:-1], ends[1:] - ends[:-1]  # (tiles of a row,)
    k = np.arange(0, rows, high)[:, None]  # (tiles of a column, 1)
    runs = np.minimum(high, rows - k)
    found = np.empty((slices, len(k), len(first), 4), np.int64)
    for i, (_, of_row, of_column) in enumerate((x_steps, y_steps)):
        found[..., i] = k * of_row + first * of_column
    found[..., 2] = runs * length
    found[..., 3] = runs * (most + 1) + length
    if slices > 1:
        found[..., :2] += np.arange(slices)[:, None, None, None] * (x_steps[0], y_steps[0])
    return found.reshape(-1, 4)


def _kinds(counts: Counts, most: int) -> set[RowTile]:
    """The tiles of a block."""
    _, rows, columns = counts
    high = runs_of(columns, rows, most)
    length, longer = divmod(columns, -(-columns // most))
    return {
        RowTile(runs, outputs)
        for runs in {high, rows % high or high}
        for outputs in {length, length + (longer > 0)}
    }


def along_row(columns: int, most: int) -> np.ndarray:
    """(tiles + 1,) where even tiles of a row begin, each of at most so many outputs, and the last ends."""
    count = -(-columns // most)
    ends: np.ndarray = np.arange(count + 1) * columns // count
    return ends


def runs_of(columns: int, rows: int, most: int) -> int:
    """Rows of a map that a tile takes."""
    return max(1, min(rows, most // columns, MOST_RUNS))
