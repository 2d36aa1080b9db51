"""Rows of small matrices, as products of them read and write them: packed, turned over, scaled.

What kernels of attention and of products share.
"""

from __future__ import annotations

from collections.abc import Callable

from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import microkernel, simd
from convalgos.cpu.vectors.simd import Value, Vec
from convalgos.cpu.vectors.transpose import transpose

VECTORS = 2  # of a panel

Load = Callable[[Value], Value]  # a row -> its vector
Store = Callable[[Value, Value], None]  # (a row, what becomes its vector)


@jit.helper
def pack_operand(
    x: int, x_row: int, turned: int, y: int, y_rows: int, rows: int, columns: int, SIZE: int, LANES: int
) -> None:
    """Panels y (panels, y_rows, VECTORS * LANES) of all columns of x, of so many rows."""
    panel = VECTORS * LANES
    for first in range(0, columns, panel):
        to = y + first * y_rows * SIZE
        pack_operand_panel(x, first, x_row, turned, to, rows, min(panel, columns - first), SIZE, LANES)


@jit.helper
def pack_operand_panel(
    x: int, first: int, x_row: int, turned: int, y: int, rows: int, columns: int, SIZE: int, LANES: int
) -> None:
    """One of the columns from the first one on, as wide as `operand_tile` reads it; its columns are rows of x
    where that is turned."""
    at = x + first * (x_row if turned else 1) * SIZE
    if turned:
        if columns <= LANES:
            turn_head_panel(SIZE, LANES, 1, at, x_row, y, rows, columns)
        else:
            turn_head_panel(SIZE, LANES, VECTORS, at, x_row, y, rows, columns)
    elif columns <= LANES:
        pack_head_panel(SIZE, LANES, 1, at, x_row, y, rows, columns)
    else:
        pack_head_panel(SIZE, LANES, VECTORS, at, x_row, y, rows, columns)


@jit.helper
def operand_tile(
    a: int,
    a_row: int,
    panel: int,
    depth: int,
    y: int,
    y_row: int,
    columns: int,
    SIZE: int,
    LANES: int,
    ROWS: int,
) -> None:
    """y (ROWS, VECTORS * LANES) = a times a packed panel of so many columns."""
    if columns <= LANES:
        microkernel.gemm_tile(SIZE, LANES, ROWS, 1, 0, a, a_row, panel, depth, y, y_row)
    else:
        microkernel.gemm_tile(SIZE, LANES, ROWS, VECTORS, 0, a, a_row, panel, depth, y, y_row)


@simd.emitter
def pack_head_panel(v: Vec, WIDE: int, x: Value, x_row: Value, y: Value, rows: Value, columns: Value) -> None:
    """y (rows, WIDE * lanes) = x (rows, columns), and zeros beyond."""
    source, to = v.pointer(x), v.pointer(y)
    masks = [v.mask(v.isub(columns, j * v.lanes)) for j in range(WIDE)]
    with v.loop(rows) as i:
        row, out = v.at(source, v.imul(i, x_row)), v.at(to, v.imul(i, WIDE * v.lanes))
        for j, mask in enumerate(masks):
            v.store(v.load_masked(row, j * v.lanes, mask), out, j * v.lanes)


@simd.emitter
def turn_head_panel(v: Vec, WIDE: int, x: Value, x_row: Value, y: Value, rows: Value, columns: Value) -> None:
    """y (rows, WIDE * lanes) = x (columns, rows) turned over; the last column stands for those beyond.

    y has whole squares of lanes x lanes.
    """
    source, to = v.pointer(x), v.pointer(y)
    with v.loop(v.idiv(v.iadd(rows, v.lanes - 1), v.lanes)) as square:
        first = v.imul(square, v.lanes)
        mask = v.mask(v.isub(rows, first))
        for j in range(WIDE):
            places = [v.imin(j * v.lanes + i, v.isub(columns, 1)) for i in range(v.lanes)]
            read = [v.load_masked(v.at(source, v.imul(at, x_row)), first, mask) for at in places]
            for i, column in enumerate(transpose(v, read)):
                at = v.imul(v.iadd(first, i), WIDE * v.lanes)
                v.store(column, to, v.iadd(at, j * v.lanes))


@simd.emitter
def scale_rows(
    v: Vec, ROWS: int, x: Value, x_row: Value, y: Value, columns: Value, rows: Value, scale: Value
) -> None:
    """y (ROWS, columns) = scale * x; the last row stands for those beyond."""
    source, to, by = v.pointer(x), v.pointer(y), v.broadcast(v.pointer(scale))
    with v.loop(ROWS) as i:
        row = v.at(source, v.imul(v.imin(i, v.isub(rows, 1)), x_row))
        out = v.at(to, v.imul(i, columns))
        each_vector_of_row(v, columns, lambda load, store: store(out, v.fmul(load(row), by)))


@simd.emitter
def write_rows(
    v: Vec, x: Value, x_row: Value, shares: Value, y: Value, y_row: Value, rows: Value, columns: Value
) -> None:
    """y = x times the share of each row."""
    source, to, by = v.pointer(x), v.pointer(y), v.pointer(shares)
    with v.loop(rows) as i:
        share = v.load(by, v.imul(i, v.lanes))
        row, out = v.at(source, v.imul(i, x_row)), v.at(to, v.imul(i, y_row))
        each_vector_of_row(v, columns, lambda load, store: store(out, v.fmul(load(row), share)))


def each_vector_of_row(
    v: Vec, count: Value, emit: Callable[[Load, Store], None], beyond: float = 0, step: Value | None = None
) -> None:
    """Emit `emit(load, store)` for the vectors of rows; lanes beyond the end are read as a number.

    Args:
        step: elements from one vector to the next, where they do not lie side by side.
    """
    whole, step = v.idiv(count, v.lanes), v.lanes if step is None else step
    with v.loop(whole) as i:
        at = v.imul(i, step)
        emit(lambda row: v.load(row, at), lambda row, value: v.store(value, row, at))
    left, last = v.isub(count, v.imul(whole, v.lanes)), v.imul(whole, step)
    with v.unless_negative(v.isub(left, 1)):
        mask = v.mask(left)

        def load(row: Value) -> Value:
            value = v.load_masked(row, last, mask)
            return v.b.select(mask, value, v.const(beyond)) if beyond else value

        emit(load, lambda row, value: v.store_masked(value, row, last, mask))
