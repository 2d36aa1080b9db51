"""Micro-kernels of float32 as sums of three bfloat16, which matrix tiles multiply.

A float32 has 24 bits, a bfloat16 eight: x = x1 + x2 + x3, each of them the leading bits of what is left. Of
the nine products of two such sums the six largest are summed in float32; the others are below its rounding.

Source: Henry, Tang and Heinecke 2019, "Leveraging the bfloat16 artificial intelligence datatype for
higher-precision computations" (arXiv:1904.06376).
"""

from __future__ import annotations

from typing import Any

from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import matrix_tiles, simd
from convalgos.cpu.vectors.simd import Value, Vec, emitter

TERMS = 3
TILE_BYTES = 1024  # of 16 rows of 64 bytes
CHANNELS = 32  # of an entry: what a matrix tile has in a row
# Terms of x and of w in turn, such that a step loads one operand anew, but for the last but one.
PRODUCTS = ((0, 2), (0, 1), (1, 1), (1, 0), (0, 0), (2, 0))


@emitter
def split_sums(
    v: Vec, PIXEL_TILES: int, FILTER_TILES: int, x: Value, x_tile: Value, pixel: Value, term: Value,
    offsets: Value, entries: Value, w: Value, further: Value, sums: Value, sums_tile: Value, ahead: Value,
    second: Value, step: Value, fetched: Value,
) -> None:  # fmt: skip
    """sums[tile][pixel][filter] (+)= sum over entries of the six products of terms.

    x: terms `term` bytes apart, tiles x_tile, and their rows of CHANNELS bfloat16 `pixel`; offsets: an int64
    table, in bytes; w: (entries, TERMS, FILTER_TILES, 16, 32) bfloat16; `further`: whether sums go on. For
    each entry so many lines are fetched into L2 from `ahead` on, and as many `second` bytes behind it; those
    of the next entry lie `step` bytes further.
    """
    starts = [v.pointer(v.iadd(x, v.imul(x_tile, i))) for i in range(PIXEL_TILES)]
    filters, target = v.pointer(w), v.pointer(sums)
    row = 64 * FILTER_TILES
    tiles = [[2 * i + j for j in range(FILTER_TILES)] for i in range(PIXEL_TILES)]
    places = [
        [_bytes_behind(v, target, v.iadd(v.imul(sums_tile, i), 64 * j)) for j in range(FILTER_TILES)]
        for i in range(PIXEL_TILES)
    ]
    with v.choose(v.isub(further, 1)) as (on, fresh):
        for more, block in ((True, on), (False, fresh)):
            with block:
                for row_of_tiles, at in zip(tiles, places, strict=True):
                    for total, place in zip(row_of_tiles, at, strict=True):
                        if more:
                            matrix_tiles.load_tile(v, total, place, row)
                        else:
                            matrix_tiles.zero_tile(v, total)
    with v.loop(entries) as e:
        at = _bytes_behind(v, filters, v.imul(e, TERMS * FILTER_TILES * TILE_BYTES))
        offset = v.table64(offsets, e)
        soon = _bytes_behind(v, v.pointer(ahead), v.imul(e, step))
        with v.loop(fetched) as line:
            v.prefetch(soon, v.imul(line, v.lanes))
            v.prefetch(_bytes_behind(v, soon, second), v.imul(line, v.lanes))
        loaded: tuple[Any, Any] = None, None
        for of_x, of_w in PRODUCTS:
            if of_w != loaded[1]:
                for j in range(FILTER_TILES):
                    place = _bytes_behind(v, at, (of_w * FILTER_TILES + j) * TILE_BYTES)
                    matrix_tiles.load_tile(v, 6 + j, place, 64)
            if of_x != loaded[0]:
                for i, start in enumerate(starts):
                    place = _bytes_behind(v, start, v.iadd(offset, v.imul(term, of_x)))
                    matrix_tiles.load_tile(v, 4 + i, place, pixel)
            loaded = of_x, of_w
            for i in range(PIXEL_TILES):
                for j in range(FILTER_TILES):
                    matrix_tiles.tile_dot(v, "bf16ps", tiles[i][j], 4 + i, 6 + j)
    for row_of_tiles, at in zip(tiles, places, strict=True):
        for total, place in zip(row_of_tiles, at, strict=True):
            matrix_tiles.store_tile(v, total, place, row)


def _bytes_behind(v: Vec, pointer: Any, offset: Any) -> Any:
    return v.b.gep(pointer, [v.integer(offset)], source_etype=simd.ir.IntType(8))


@jit.specialise
def sum_split_tiles(LANES: int, PIXEL_TILES: int, FILTER_TILES: int) -> jit.Kernel:
    """`split_sums`."""

    def sum_split_tiles(
        x: int, x_tile: int, pixel: int, term: int, offsets: int, entries: int, w: int, further: int,
        sums: int, sums_tile: int, ahead: int, second: int, step: int, fetched: int,
    ) -> None:  # fmt: skip
        split_sums(
            4, LANES, PIXEL_TILES, FILTER_TILES,
            x, x_tile, pixel, term, offsets, entries, w, further, sums, sums_tile, ahead, second,
            step, fetched,
        )  # fmt: skip

    return sum_split_tiles
