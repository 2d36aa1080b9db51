"""Rows of tiles of a box as matrix tiles take them: what the products of both forms of terms share."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from convalgos.cpu.gemm import digit_tiles, split_tiles
from convalgos.cpu.gemm.digit_terms import SPREAD
from convalgos.cpu.gemm.split_terms import ENTRY_LINES
from convalgos.cpu.runtime import jit
from convalgos.cpu.tiled.driver import Box, image_tiles
from convalgos.cpu.tiled.split_schedule import SplitBoxSchedule
from convalgos.cpu.vectors import matrix_tiles
from convalgos.cpu.vectors.simd import carray, pointer

ROWS = matrix_tiles.ROWS
CONFIGURED = 64  # bytes of a configuration: behind two kernels, one for tiles of each number of rows
KERNELS = 64  # bytes of their addresses, and of the spread from which on digits have all products


class SplitRows(NamedTuple):
    """Rows of a box at a point, in matrix tiles, and scratch of a thread where they lie split."""

    rows: int
    tiles: int
    tile: int  # rows of each
    blocks: int  # entries of a phase
    most: int  # entries of a point
    term: int  # bytes from a term of an entry to the next
    x: int  # the first entry; before it is a table of where each lies
    lines: int  # of a filter that are fetched with each of the products of two tiles, twice,
    fetched: int  # and bytes with an entry, which follow those with the entry before


@jit.helper
def rows_in_tiles(a: Any, box: Box, own: int, CHANNELS: int, STEPS: int) -> SplitRows:
    rows = (box.n1 - box.n0) * (box.o1 - box.o0) * image_tiles(a, box)
    tiles = (rows + 15) // 16
    tile = (rows + tiles - 1) // tiles
    blocks = (a.channels + CHANNELS - 1) // CHANNELS
    most = a.rows.phases * a.columns.phases * blocks
    term = tiles * tile * 64
    table = carray(pointer(own), most, np.int64)
    for entry in range(most):
        table[entry] = entry * 3 * term
    turns = 2 * STEPS * ((tiles + 1) // 2)
    lines = (a.vectors * ENTRY_LINES + turns - 1) // turns
    x = own + (most * 8 + 63) // 64 * 64
    return SplitRows(rows, tiles, tile, blocks, most, term, x, lines, 2 * STEPS * lines * 64)


def product_table(cut: SplitBoxSchedule) -> np.ndarray:
    """What is read at `a.offsets`: kernels, and configurations of matrix tiles of each height."""
    table = np.zeros(KERNELS + (ROWS + 1) * CONFIGURED, np.uint8)
    tile_sums = digit_tiles.sum_digit_tiles if cut.form.scaled else split_tiles.sum_split_tiles
    kernels = [tile_sums(cut.lanes, count, cut.vectors) for count in (1, 2)]
    limit = 0 if cut.products > cut.form.products else SPREAD
    table[:24] = np.array([*kernels, limit], np.int64).view(np.uint8)
    for rows in range(1, ROWS + 1):
        shapes = [(rows, 16)] * 6 + [(16, 16)] * 2
        table[KERNELS + rows * CONFIGURED :][:CONFIGURED] = matrix_tiles.configuration(shapes)
    return table
