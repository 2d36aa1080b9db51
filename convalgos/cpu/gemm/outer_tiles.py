"""Tiles of channels by channels: outer products of the pixels of channels_last, summed in registers.

sums[k][c] += dy[m][k] * x[m][c] over pixels m, where the channels of a pixel lie side by side in both: a
vector of x for each value of dy. x comes in panels of as many columns as a tile has lanes.
"""

from __future__ import annotations

from typing import Any

from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.simd import LINE, Value, Vec

RATE = 1 << 16  # of pixels that are fetched for each that is summed: a fraction of this


@simd.emitter
def outer_product_tile(
    v: Vec, ROWS: int, VECTORS: int, dy: Value, dy_step: Value, x: Value, x_step: Value, pixels: Value,
    sums: Value, soon: Value, soon_step: Value, rate: Value,
) -> None:  # fmt: skip
    """sums[i][:] += sum over m of dy[m*dy_step + i] * x[m*x_step:][:VECTORS*lanes], for i < ROWS.

    Meanwhile `rate` of `RATE` as many lines, `soon_step` apart from `soon` on, are fetched into L2.
    """
    rows, columns, wide = v.pointer(dy), v.pointer(x), range(VECTORS)
    target, later = v.pointer(sums), v.pointer(soon)
    totals = [[v.register(v.load(target, (i * VECTORS + j) * v.lanes)) for j in wide] for i in range(ROWS)]
    with v.loop(pixels) as m:
        v.prefetch(later, v.imul(v.idiv(v.imul(m, rate), RATE), soon_step))
        row, column = v.at(rows, v.imul(m, dy_step)), v.at(columns, v.imul(m, x_step))
        values = [v.load(column, j * v.lanes) for j in wide]
        for i in range(ROWS):
            scale = v.broadcast(row, i)
            for total, value in zip(totals[i], values, strict=True):
                total.set(v.fma(scale, value, total.value))
    for i in range(ROWS):
        for j in wide:
            v.store(totals[i][j].value, target, (i * VECTORS + j) * v.lanes)


@jit.helper
def soon_at(
    dy: int, dy_lines: int, dy_step: int, x: int, x_lines: int, x_step: int, tile: int, spread: int,
    pixels: int, size: int,
) -> tuple[int, int]:  # fmt: skip
    """(address, step) of what a tile of a block fetches of the next one: so many tiles share a line of all
    pixels of dy, then of x, and the last tiles fetch nothing."""
    column = tile // spread
    first = tile % spread * pixels // spread
    if column < dy_lines:
        return dy + column * LINE + first * dy_step * size, dy_step
    column -= dy_lines
    if column < x_lines:
        return x + column * LINE + first * x_step * size, x_step
    return dy, 0


@jit.specialise
def sum_outer_tiles(SIZE: int, LANES: int, ROWS: int, VECTORS: int) -> jit.Kernel:
    """The products of a panel of x by all rows of dy, which are dealt to tiles of ROWS, of 1 and of 2 less.

    dy_soon, dy_lines, x_soon, x_lines, x_soon_step, spread: see `soon_at`. number: of the first tile.
    """
    FEWER, FEWEST = ROWS - 1, max(ROWS - 2, 1)

    def sum_outer_tiles(
        dy: int, dy_step: int, rows: int, x: int, x_step: int, pixels: int, sums: int, dy_soon: int,
        dy_lines: int, x_soon: int, x_lines: int, x_soon_step: int, number: int, spread: int,
    ) -> None:  # fmt: skip
        tiles = (rows + ROWS - 1) // ROWS
        for tile in range(tiles):
            first = rows * tile // tiles
            from_, to = dy + first * SIZE, sums + first * VECTORS * LANES * SIZE
            soon, soon_step = soon_at(
                dy_soon, dy_lines, dy_step, x_soon, x_lines, x_soon_step, number + tile, spread, pixels, SIZE
            )
            count = rows * (tile + 1) // tiles - first
            if count == ROWS:
                outer_product_tile(
                    SIZE, LANES, ROWS, VECTORS,
                    from_, dy_step, x, x_step, pixels, to, soon, soon_step, RATE // spread,
                )  # fmt: skip
            elif count == FEWER:
                outer_product_tile(
                    SIZE, LANES, FEWER, VECTORS,
                    from_, dy_step, x, x_step, pixels, to, soon, soon_step, RATE // spread,
                )  # fmt: skip
            else:
                outer_product_tile(
                    SIZE, LANES, FEWEST, VECTORS,
                    from_, dy_step, x, x_step, pixels, to, soon, soon_step, RATE // spread,
                )  # fmt: skip

    return sum_outer_tiles


@simd.emitter
def copy_panel(
    v: Vec, VECTORS: int, source: Value, step: Value, pixels: Value, columns: Value, target: Value
) -> None:
    """target[m][:] = source[m*step:][:columns], zeros behind them; a panel has VECTORS*lanes."""
    from_, to, wide = v.pointer(source), v.pointer(target), range(VECTORS)
    width = VECTORS * v.lanes
    masks = [v.mask(v.isub(columns, j * v.lanes)) for j in wide]

    def copy(m: Any, load: Any) -> None:
        at, place = v.at(from_, v.imul(m, step)), v.at(to, v.imul(m, width))
        values = [load(at, j) for j in wide]
        for j, value in enumerate(values):
            v.store(value, place, j * v.lanes)

    with v.choose(v.isub(columns, width)) as (whole, part):
        with whole, v.loop(pixels) as m:
            copy(m, lambda at, j: v.load(at, j * v.lanes))
        with part, v.loop(pixels) as m:
            copy(m, lambda at, j: v.load_masked(at, j * v.lanes, masks[j]))


@jit.specialise
def pack_channels(SIZE: int, LANES: int, VECTORS: int) -> jit.Kernel:
    """A panel of x: so many columns of each pixel of a run."""

    def pack_channels(source: int, step: int, pixels: int, columns: int, target: int) -> None:
        copy_panel(SIZE, LANES, VECTORS, source, step, pixels, columns, target)

    return pack_channels
