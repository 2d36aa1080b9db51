"""The driver of attention: softmax(scale q k + biases) v of heads, a block of rows of q at a time.

The keys and the values of a head are packed into panels that micro-kernels read, once for all of its rows;
the scores of a block never leave the first caches. Numbers of heads, batches and what is broadcast over them
are the content of a table of offsets.

Source: Dao, Fu, Ermon, Rudra and Re 2022, arXiv:2205.14135, of which this has the fusion, but whole rows.
"""

from __future__ import annotations

import numpy as np

from convalgos.cpu.elementwise.matrix_rows import (
    VECTORS,
    each_vector_of_row,
    operand_tile,
    pack_operand,
    scale_rows,
    write_rows,
)
from convalgos.cpu.elementwise.pixel_vectors import TOGETHER
from convalgos.cpu.elementwise.row_exponentials import exponentials_of_rows
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.simd import Value, Vec, carray, pointer

OPERANDS = ("q", "k", "v", "y", "first", "second")  # columns of the table of offsets

# A unit is a head of a batch: q (rows, depth), k (depth, keys), v (keys, width), y (rows, width), first and
# second (rows, keys), which are added to the scores where they are not at 0. Steps in elements, from one row
# to the next; of k, where `k_turned`, from one column to the next. Parts of the scratch of a task in bytes.
ATTEND_FIELDS = fields(
    "q k v y first second offsets numbers units blocks rows keys depth width q_row k_row k_turned v_row"
    " y_row first_row second_row scratch task_bytes key_bytes value_bytes query_bytes score_bytes out_bytes"
    " tasks"
)


@jit.specialise
def attend_share(SIZE: int, LANES: int, ROWS: int) -> jit.Kernel:
    """The blocks of rows of a task."""

    def attend_share(args: int, task: int) -> None:
        a = carray(pointer(args), 1, ATTEND_FIELDS)[0]
        total, panel = a.units * a.blocks, VECTORS * LANES
        key_panels, value_panels = (a.keys + panel - 1) // panel, (a.width + panel - 1) // panel
        deep = (a.depth + LANES - 1) // LANES * LANES
        keys = a.scratch + task * a.task_bytes  # (key_panels, deep, panel)
        values = keys + a.key_bytes  # (value_panels, keys, panel)
        queries = values + a.value_bytes  # (ROWS, depth)
        scores = queries + a.query_bytes  # (ROWS, key_panels * panel)
        out = scores + a.score_bytes  # (ROWS, value_panels * panel)
        shares = out + a.out_bytes  # (ROWS, LANES)
        packed = -1
        for block in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            unit, first = block // a.blocks, block % a.blocks * ROWS
            rows = min(ROWS, a.rows - first)
            offsets = carray(pointer(a.offsets + unit * 6 * 8), 6, np.int64)
            if unit != packed:
                k, v = a.k + offsets[1] * SIZE, a.v + offsets[2] * SIZE
                pack_operand(k, a.k_row, a.k_turned, keys, deep, a.depth, a.keys, SIZE, LANES)
                pack_operand(v, a.v_row, 0, values, a.keys, a.keys, a.width, SIZE, LANES)
                packed = unit
            q = a.q + (offsets[0] + first * a.q_row) * SIZE
            scale_rows(SIZE, LANES, ROWS, q, a.q_row, queries, a.depth, rows, a.numbers)
            wide, across = key_panels * panel, value_panels * panel
            for p in range(key_panels):
                to = scores + p * panel * SIZE
                some = keys + p * deep * panel * SIZE
                operand_tile(queries, a.depth, some, a.depth, to, wide, a.keys - p * panel, SIZE, LANES, ROWS)
            if a.first:
                more = a.first + (offsets[4] + first * a.first_row) * SIZE
                add_rows(SIZE, LANES, scores, wide, more, a.first_row, rows, a.keys)
            if a.second:
                more = a.second + (offsets[5] + first * a.second_row) * SIZE
                add_rows(SIZE, LANES, scores, wide, more, a.second_row, rows, a.keys)
            exponentiate_rows(SIZE, LANES, scores, wide, shares, rows, a.keys)
            for p in range(value_panels):
                to = out + p * panel * SIZE
                some = values + p * a.keys * panel * SIZE
                operand_tile(scores, wide, some, a.keys, to, across, a.width - p * panel, SIZE, LANES, ROWS)
            y = a.y + (offsets[3] + first * a.y_row) * SIZE
            write_rows(SIZE, LANES, out, across, shares, y, a.y_row, rows, a.width)

    return attend_share


@simd.emitter
def add_rows(
    v: Vec, x: Value, x_row: Value, more: Value, more_row: Value, rows: Value, columns: Value
) -> None:
    """x += more."""
    to, other = v.pointer(x), v.pointer(more)
    with v.loop(rows) as i:
        row, added = v.at(to, v.imul(i, x_row)), v.at(other, v.imul(i, more_row))
        each_vector_of_row(v, columns, lambda load, store: store(row, v.fadd(load(row), load(added))))


@simd.emitter
def exponentiate_rows(v: Vec, x: Value, x_row: Value, shares: Value, rows: Value, columns: Value) -> None:
    """x = exp(x - the maximum of its row); shares (rows, lanes) is 1 / the sum of the row.

    Rows go a few at a time, the last one for those beyond.
    """
    to, out = v.pointer(x), v.pointer(shares)
    with v.loop(v.idiv(v.iadd(rows, TOGETHER - 1), TOGETHER)) as some:
        numbers = [v.imin(v.iadd(v.imul(some, TOGETHER), i), v.isub(rows, 1)) for i in range(TOGETHER)]
        places = [v.at(to, v.imul(i, x_row)) for i in numbers]
        _, wholes = exponentials_of_rows(v, places, places, columns)
        for i, whole in zip(numbers, wholes, strict=True):
            share = v.b.fdiv(v.const(1), whole)
            v.store(share, out, v.imul(i, v.lanes))
