"""Windows of lines times a matrix: both are read and written where they lie."""

from __future__ import annotations

import numpy as np

from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.runtime.record_launch import RecordLaunch
from convalgos.cpu.vectors import microkernel, simd
from convalgos.cpu.vectors.microkernel import REGISTER_TILES
from convalgos.cpu.vectors.simd import carray, pointer

MOST_VECTORS = 2  # of sums side by side: a register tile of them fits everywhere
SHARE = 1 << 18  # products that are worth a thread; Sapphire Rapids
# x is read in `rows` windows of `taps` elements, x_row apart and lines x_line apart; y likewise. `panels` of
# columns begin at `columns`, and are packed in `matrix`. Steps in elements.
WINDOW_PRODUCT_FIELDS = fields(
    "x y scratch matrix columns tasks lines rows taps panels x_first x_line x_row y_first y_line y_row"
)


@jit.specialise
def multiply_windows(SIZE: int, LANES: int, VECTORS: int, ROWS: int) -> jit.Kernel:
    """The tiles of rows of a task. The last one of a line begins where it ends with it."""

    def multiply_windows(args: int, task: int) -> None:
        a = carray(pointer(args), 1, WINDOW_PRODUCT_FIELDS)[0]
        columns = carray(pointer(a.columns), a.panels, np.int64)
        tiles = -(-a.rows // ROWS)
        for tile in range(a.lines * tiles * task // a.tasks, a.lines * tiles * (task + 1) // a.tasks):
            line, row = tile // tiles, min(tile % tiles * ROWS, a.rows - ROWS)
            x = a.x + (a.x_first + line * a.x_line + row * a.x_row) * SIZE
            y = a.y + (a.y_first + line * a.y_line + row * a.y_row) * SIZE
            for panel in range(a.panels):
                matrix = a.matrix + panel * a.taps * VECTORS * LANES * SIZE
                target = y + columns[panel] * SIZE
                microkernel.gemm_tile(
                    SIZE, LANES, ROWS, VECTORS, 0, x, a.x_row, matrix, a.taps, target, a.y_row
                )

    return multiply_windows


def product_tile(size: int, columns: int) -> tuple[int, int, int]:
    """(lanes, vectors, rows) of the tile for elements of some bytes and so many columns, a multiple of 8 or
    more than all lanes."""
    lanes = min(simd.lanes(size), columns)
    vectors = min(MOST_VECTORS, columns // lanes)
    return lanes, vectors, REGISTER_TILES[simd.lanes(size) * size][vectors]


class WindowProduct:
    """y (lines, rows, columns) = windows of x (lines, rows, taps) times a matrix (taps, columns).

    x_steps, y_steps: elements before the first, from line to line, and from row to row. There are as many
    rows as a tile has, at least, and as many columns as a vector. Rows of y lie apart.
    """

    def __init__(
        self, lines: int, rows: int, matrix: np.ndarray, x_steps: tuple[int, int, int],
        y_steps: tuple[int, int, int], threads: int,
    ):  # fmt: skip
        taps, wide = matrix.shape
        lanes, vectors, tile = product_tile(matrix.itemsize, wide)
        panel = lanes * vectors
        columns = np.minimum(np.arange(0, wide, panel), wide - panel)
        packed = np.stack([matrix[:, at : at + panel] for at in columns])  # (panels, taps, panel)
        if lines * rows * taps * wide < SHARE:
            threads = 1
        tasks = min(threads, lines * -(-rows // tile))
        values = 0, 0, 0, packed.ctypes.data, columns.ctypes.data, tasks, lines, rows, taps, len(columns)
        record, names = np.array([*values, *x_steps, *y_steps], np.int64), WINDOW_PRODUCT_FIELDS.names
        kernel = multiply_windows(matrix.itemsize, lanes, vectors, tile)
        self.run = RecordLaunch(kernel, record, names, 0, tasks, (packed, columns))
