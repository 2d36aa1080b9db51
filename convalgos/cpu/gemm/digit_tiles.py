"""Micro-kernels of float32 as three digits of eight bits, which matrix tiles multiply.

A float32 over a power of two is d1 / 2^7 + d2 / 2^15 + d3 / 2^23, with digits from -128 to 127. Of the nine
products of two such sums all but the smallest are summed, those of equal weight in the same 32-bit integers,
which do not round.

Source: Ootomo, Ozaki and Yokota 2024, "DGEMM on integer matrix multiplication unit" (arXiv:2306.11975).
"""

from __future__ import annotations

from convalgos.cpu.gemm.split_terms import TERMS, TILE_BYTES
from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import matrix_tiles
from convalgos.cpu.vectors.matrix_tiles import bytes_behind
from convalgos.cpu.vectors.simd import Value, Vec, emitter

# Digits of x and of w, by the weight of their products: 2^-14, 2^-22, 2^-30, 2^-38.
GROUPS = (((0, 0),), ((0, 1), (1, 0)), ((0, 2), (1, 1), (2, 0)), ((1, 2), (2, 1)))
PRODUCTS = sum(map(len, GROUPS[:-1]))  # that are summed in any case


@emitter
def digit_sums(
    v: Vec, PIXEL_TILES: int, FILTER_TILES: int, x: Value, x_tile: Value, pixel: Value, term: Value,
    offsets: Value, entries: Value, w: Value, further: Value, sums: Value, sums_tile: Value, group: Value,
    ahead: Value, second: Value, step: Value, fetched: Value, least: Value,
) -> None:  # fmt: skip
    """sums[group][tile][pixel][filter] (+)= sum over entries of the products of digits of a group, int32.

    x: digits `term` bytes apart, tiles x_tile, and their rows of CHANNELS bytes `pixel`; offsets: an int64
    table, in bytes; w: (entries, TERMS, FILTER_TILES, 16, 64) bytes; `further`: whether sums go on; sums:
    groups `group` bytes apart. With each product of an entry so many lines are fetched into L2 from `ahead`
    on, and as many `second` bytes behind it; those of the next entry lie `step` bytes further. Products of
    the last group are summed where `least` is 1, and left out where it is 0.
    """
    starts = [v.pointer(v.iadd(x, v.imul(x_tile, i))) for i in range(PIXEL_TILES)]
    filters, row = v.pointer(w), 64 * FILTER_TILES
    tiles = [[2 * i + j for j in range(FILTER_TILES)] for i in range(PIXEL_TILES)]
    fetching = {products: turn for turn, products in enumerate(p for g in GROUPS[:-1] for p in g)}

    def add(number: int) -> None:
        """The products of a group."""
        target = v.pointer(v.iadd(sums, v.imul(group, number)))
        places = {
            tiles[i][j]: bytes_behind(v, target, v.iadd(v.imul(sums_tile, i), 64 * j))
            for i in range(PIXEL_TILES)
            for j in range(FILTER_TILES)
        }
        with v.choose(v.isub(further, 1)) as (on, fresh):
            with on:
                for total, place in places.items():
                    matrix_tiles.load_tile(v, total, place, row)
            with fresh:
                for total in places:
                    matrix_tiles.zero_tile(v, total)
        with v.loop(entries) as e:
            at = bytes_behind(v, filters, v.imul(e, TERMS * FILTER_TILES * TILE_BYTES))
            offset = v.table64(offsets, e)
            later = bytes_behind(v, v.pointer(ahead), v.imul(e, step))
            for of_x, of_w in GROUPS[number]:
                if (of_x, of_w) in fetching:
                    with v.loop(fetched) as line:
                        at_line = v.iadd(v.imul(fetched, fetching[of_x, of_w]), line)
                        v.prefetch(later, v.imul(at_line, v.lanes))
                        v.prefetch(bytes_behind(v, later, second), v.imul(at_line, v.lanes))
                for j in range(FILTER_TILES):
                    place = bytes_behind(v, at, (of_w * FILTER_TILES + j) * TILE_BYTES)
                    matrix_tiles.load_tile(v, 6 + j, place, 64)
                for i, start in enumerate(starts):
                    place = bytes_behind(v, start, v.iadd(offset, v.imul(term, of_x)))
                    matrix_tiles.load_tile(v, 4 + i, place, pixel)
                for i in range(PIXEL_TILES):
                    for j in range(FILTER_TILES):
                        matrix_tiles.tile_dot(v, "ssd", tiles[i][j], 4 + i, 6 + j)
        for total, place in places.items():
            matrix_tiles.store_tile(v, total, place, row)

    for number in range(len(GROUPS) - 1):
        add(number)
    with v.unless_negative(v.isub(least, 1)):
        add(len(GROUPS) - 1)


@jit.specialise
def sum_digit_tiles(LANES: int, PIXEL_TILES: int, FILTER_TILES: int) -> jit.Kernel:
    """`digit_sums`."""

    def sum_digit_tiles(
        x: int, x_tile: int, pixel: int, term: int, offsets: int, entries: int, w: int, further: int,
        sums: int, sums_tile: int, group: int, ahead: int, second: int, step: int, fetched: int, least: int,
    ) -> None:  # fmt: skip
        digit_sums(
            4, LANES, PIXEL_TILES, FILTER_TILES,
            x, x_tile, pixel, term, offsets, entries, w, further, sums, sums_tile, group, ahead, second,
            step, fetched, least,
        )  # fmt: skip

    return sum_digit_tiles
