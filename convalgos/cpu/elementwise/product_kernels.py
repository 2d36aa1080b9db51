"""The driver of products of matrices that are both computed: many of them, each of little work.

A panel of b is packed once for the blocks of rows of a that a task has of it; rows are read where they lie.
"""

from __future__ import annotations

import numpy as np

from convalgos.cpu.elementwise.matrix_rows import (
    VECTORS,
    operand_tile,
    pack_operand_panel,
    scale_rows,
    write_rows,
)
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors.simd import carray, pointer

# A unit is a product: a (rows, depth), b (depth, width), y (rows, width), whose offsets stand in a table of
# three columns. Steps in elements, from one row to the next; of b, where `b_turned`, from one column to the
# next. `scales` (ROWS, LANES): the factor of the product; `one`: 1. Parts of the scratch of a task in bytes.
PRODUCT_FIELDS = fields(
    "a b y offsets scales one units blocks panels rows depth width a_row b_row b_turned y_row"
    " scratch task_bytes panel_bytes row_bytes tasks"
)


@jit.specialise
def multiply_share(SIZE: int, LANES: int, ROWS: int) -> jit.Kernel:
    """The blocks of rows of a task, those of one panel behind each other."""

    def multiply_share(args: int, task: int) -> None:
        p = carray(pointer(args), 1, PRODUCT_FIELDS)[0]
        total, panel = p.units * p.panels * p.blocks, VECTORS * LANES
        packed = p.scratch + task * p.task_bytes  # (depth in whole squares, panel)
        last = packed + p.panel_bytes  # (ROWS, depth), of a block that is cut short
        out = last + p.row_bytes  # (ROWS, panel)
        now = -1
        for block in range(total * task // p.tasks, total * (task + 1) // p.tasks):
            first, of = block % p.blocks * ROWS, block // p.blocks
            column, unit = of % p.panels * panel, of // p.panels
            rows, there = min(ROWS, p.rows - first), min(panel, p.width - column)
            offsets = carray(pointer(p.offsets + unit * 3 * 8), 3, np.int64)
            if of != now:
                b = p.b + offsets[1] * SIZE
                pack_operand_panel(b, column, p.b_row, p.b_turned, packed, p.depth, there, SIZE, LANES)
                now = of
            a, step = p.a + (offsets[0] + first * p.a_row) * SIZE, p.a_row
            if rows < ROWS:
                scale_rows(SIZE, LANES, ROWS, a, p.a_row, last, p.depth, rows, p.one)
                a, step = last, p.depth
            operand_tile(a, step, packed, p.depth, out, panel, there, SIZE, LANES, ROWS)
            y = p.y + (offsets[2] + first * p.y_row + column) * SIZE
            write_rows(SIZE, LANES, out, panel, p.scales, y, p.y_row, rows, there)

    return multiply_share
