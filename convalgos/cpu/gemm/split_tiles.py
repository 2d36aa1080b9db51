"""Micro-kernels of float32 as sums of three bfloat16, which matrix tiles multiply.

A float32 has 24 bits, a bfloat16 eight: x = x1 + x2 + x3, each of them the leading bits of what is left. Of
the nine products of two such sums the six largest are summed in float32; the others are below its rounding.

Source: Henry, Tang and Heinecke 2019, "Leveraging the bfloat16 artificial intelligence datatype for
higher-precision computations" (arXiv:1904.06376).
"""

from __future__ import annotations

from typing import Any

from convalgos.cpu.gemm.split_terms import TERMS, TILE_BYTES, store_terms
from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import matrix_tiles
from convalgos.cpu.vectors.matrix_tiles import bytes_behind
from convalgos.cpu.vectors.simd import Value, Vec, emitter

# Terms of x and of w in turn, such that a step loads one operand anew, but for the last but one.
PRODUCTS = ((0, 2), (0, 1), (1, 1), (1, 0), (0, 0), (2, 0))
SPLIT_AFTER = (0, 2, 4)  # so many of them parts of the next input are split: instructions wait for products


@emitter
def split_sums(
    v: Vec, PIXEL_TILES: int, FILTER_TILES: int, x: Value, x_tile: Value, pixel: Value, term: Value,
    offsets: Value, entries: Value, w: Value, further: Value, sums: Value, sums_tile: Value, ahead: Value,
    second: Value, step: Value, fetched: Value, soon: Value, soon_pixel: Value, soon_second: Value,
    soon_step: Value, soon_count: Value, to: Value, to_step: Value,
) -> None:  # fmt: skip
    """sums[tile][pixel][filter] (+)= sum over entries of the six products of terms.

    x: terms `term` bytes apart, tiles x_tile, and their rows of CHANNELS bfloat16 `pixel`; offsets: an int64
    table, in bytes; w: (entries, TERMS, FILTER_TILES, 16, 32) bfloat16; `further`: whether sums go on. With
    each of the PRODUCTS of an entry so many lines are fetched into L2 from `ahead` on, and as many `second`
    bytes behind it; those of the next entry lie `step` bytes further. And two vectors of channels,
    `soon_second` bytes apart, of pixels from `soon` on, `soon_pixel` apart, are split to `to`, soon_count at
    each of SPLIT_AFTER; those of the next entry lie `soon_step` bytes further and go `to_step` further.
    All at once would hold up the loads of tiles; so it hides behind the products.
    """
    starts = [v.pointer(v.iadd(x, v.imul(x_tile, i))) for i in range(PIXEL_TILES)]
    filters, target = v.pointer(w), v.pointer(sums)
    row = 64 * FILTER_TILES
    tiles = [[2 * i + j for j in range(FILTER_TILES)] for i in range(PIXEL_TILES)]
    places = [
        [bytes_behind(v, target, v.iadd(v.imul(sums_tile, i), 64 * j)) for j in range(FILTER_TILES)]
        for i in range(PIXEL_TILES)
    ]

    def split_pixel(number: Value, entry: Value) -> None:
        at = v.iadd(v.imul(entry, soon_step), v.imul(number, soon_pixel))
        parts = [bytes_behind(v, v.pointer(v.iadd(soon, half)), at) for half in (0, soon_second)]
        for part in parts:
            v.prefetch(bytes_behind(v, part, v.imul(soon_pixel, v.imul(soon_count, len(SPLIT_AFTER)))))
        low, high = (v.load(part) for part in parts)
        store_terms(v, low, high, v.iadd(to, v.iadd(v.imul(entry, to_step), v.imul(number, 64))), term)

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
        at = bytes_behind(v, filters, v.imul(e, TERMS * FILTER_TILES * TILE_BYTES))
        offset = v.table64(offsets, e)
        later = bytes_behind(v, v.pointer(ahead), v.imul(e, step))
        loaded: tuple[Any, Any] = None, None
        for turn, (of_x, of_w) in enumerate(PRODUCTS):
            with v.loop(fetched) as line:
                at_line = v.imul(v.iadd(v.imul(fetched, turn), line), v.lanes)
                v.prefetch(later, at_line)
                v.prefetch(bytes_behind(v, later, second), at_line)
            if turn in SPLIT_AFTER:
                with v.loop(soon_count) as i:
                    split_pixel(v.iadd(v.imul(soon_count, SPLIT_AFTER.index(turn)), i), e)
            if of_w != loaded[1]:
                for j in range(FILTER_TILES):
                    place = bytes_behind(v, at, (of_w * FILTER_TILES + j) * TILE_BYTES)
                    matrix_tiles.load_tile(v, 6 + j, place, 64)
            if of_x != loaded[0]:
                for i, start in enumerate(starts):
                    place = bytes_behind(v, start, v.iadd(offset, v.imul(term, of_x)))
                    matrix_tiles.load_tile(v, 4 + i, place, pixel)
            loaded = of_x, of_w
            for i in range(PIXEL_TILES):
                for j in range(FILTER_TILES):
                    matrix_tiles.tile_dot(v, "bf16ps", tiles[i][j], 4 + i, 6 + j)
    for row_of_tiles, at in zip(tiles, places, strict=True):
        for total, place in zip(row_of_tiles, at, strict=True):
            matrix_tiles.store_tile(v, total, place, row)


@jit.specialise
def sum_split_tiles(LANES: int, PIXEL_TILES: int, FILTER_TILES: int) -> jit.Kernel:
    """`split_sums`."""

    def sum_split_tiles(
        x: int, x_tile: int, pixel: int, term: int, offsets: int, entries: int, w: int, further: int,
        sums: int, sums_tile: int, ahead: int, second: int, step: int, fetched: int, soon: int,
        soon_pixel: int, soon_second: int, soon_step: int, soon_count: int, to: int, to_step: int,
    ) -> None:  # fmt: skip
        split_sums(
            4, LANES, PIXEL_TILES, FILTER_TILES,
            x, x_tile, pixel, term, offsets, entries, w, further, sums, sums_tile, ahead, second,
            step, fetched, soon, soon_pixel, soon_second, soon_step, soon_count, to, to_step,
        )  # fmt: skip

    return sum_split_tiles
