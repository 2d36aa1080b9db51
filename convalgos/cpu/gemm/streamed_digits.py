"""Micro-kernels of digits for one tile of pixels, or one pixel, which meet each digit of the filters once.

With few outputs a layer takes the time in which its filter comes from memory. So the sums of all weights are
kept in registers beside each other, and the filter is read from its first byte to its last one, with lines
asked for at a distance: of one pixel by vectors, whose loads wait less than those of matrix tiles. Sums are
those of `digit_tiles`: whole numbers, which do not round.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from convalgos.cpu.gemm.digit_tiles import GROUPS
from convalgos.cpu.gemm.split_terms import TERMS, TILE_BYTES
from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import matrix_tiles
from convalgos.cpu.vectors.integers import words_of
from convalgos.cpu.vectors.matrix_tiles import bytes_behind
from convalgos.cpu.vectors.simd import Value, Vec, carray, emitter, pointer

ONE, FEW = 1, 2  # of `streamed`: pixels of a block
PASS = 8  # entries whose digits are met again, and stay in the first cache until then
AHEAD = 8192  # bytes of a filter that are asked for before they are read; Xeon (Sapphire Rapids)
OF_X, OF_W = 6, 7  # matrix tiles of a digit each; those before hold sums, in the shape of that of x
GROUP_OF = {products: number for number, group in enumerate(GROUPS) for products in group}
FIRST = [products for group in GROUPS[:-1] for products in group]  # that are summed in any case
LIFT = -0x7F7F7F80  # four bytes of 128


@jit.helper
def lift_digits(first: int, count: int) -> None:
    """Digits from -128 to 127 made those from 0 to 255, in so many words of four."""
    words = carray(pointer(first), count, np.int32)
    for i in range(count):
        words[i] = words[i] ^ LIFT


@emitter
def streamed_pixel(
    v: Vec, FILTER_TILES: int, x: Value, term: Value, offsets: Value, entries: Value, w: Value, sums: Value,
    group: Value,
) -> None:  # fmt: skip
    """`streamed_sums` of one pixel in one pass, by vectors: all groups are summed.

    Instructions multiply unsigned bytes by signed ones: digits of x have 128 more (`lift_digits`), and so
    many times the sum of the digits of filters is taken off at last; sums of 32 bits may wrap around before.
    """
    word, start, filters = words_of(v), v.pointer(x), v.pointer(w)
    across, digits, lift = range(FILTER_TILES), range(TERMS), word.const(LIFT)
    totals = [[word.register(word.const(0)) for _ in across] for _ in GROUPS]
    lifted = [[word.register(word.const(0)) for _ in across] for _ in digits]  # 128 times digits of filters
    with v.loop(entries) as e:
        at = bytes_behind(v, filters, v.imul(e, TERMS * FILTER_TILES * TILE_BYTES))
        offset = v.table64(offsets, e)
        with v.loop(TILE_BYTES // 64) as line:
            given = []
            for of_x in digits:
                place = bytes_behind(v, start, v.iadd(offset, v.imul(term, of_x)))
                given.append(word.broadcast(place, line))
            for j in across:
                for of_w in digits:
                    tile = bytes_behind(v, at, (of_w * FILTER_TILES + j) * TILE_BYTES)
                    own = v.imul(line, v.lanes)
                    v.prefetch(bytes_behind(v, tile, AHEAD), own)
                    weights = word.load(tile, own)
                    for of_x in digits:
                        if (of_x, of_w) in GROUP_OF:
                            total = totals[GROUP_OF[of_x, of_w]][j]
                            total.set(word.dot4(total.value, given[of_x], weights))
                    lifted[of_w][j].set(word.dot4(lifted[of_w][j].value, lift, weights))
    for number, met in enumerate(GROUPS):
        target = v.pointer(v.iadd(sums, v.imul(group, number)))
        for j in across:
            total = totals[number][j].value
            for _, of_w in met:
                total = word.sub(total, lifted[of_w][j].value)
            word.store(total, target, j * v.lanes)


@emitter
def streamed_sums(
    v: Vec, FILTER_TILES: int, x: Value, pixel: Value, term: Value, offsets: Value, entries: Value, w: Value,
    further: Value, sums: Value, group: Value, least: Value,
) -> None:  # fmt: skip
    """sums[group][pixel][filter] (+)= sum over entries of the products of digits of a group, int32.

    x: digits `term` bytes apart, their rows of CHANNELS bytes `pixel`; offsets: an int64 table, in bytes;
    w: (entries, TERMS, FILTER_TILES, 16, 64) bytes; `further`: whether sums go on; sums: groups `group` bytes
    apart. Products of the last group are summed where `least` is 1, which meets digits again.
    """
    start, filters, row, last = v.pointer(x), v.pointer(w), 64 * FILTER_TILES, len(GROUPS) - 1

    def filter_tile(at: Any, of_w: int, j: int) -> None:
        place = bytes_behind(v, at, (of_w * FILTER_TILES + j) * TILE_BYTES)
        matrix_tiles.load_tile(v, OF_W, place, 64)

    def x_tile(offset: Any, of_x: int) -> None:
        place = bytes_behind(v, start, v.iadd(offset, v.imul(term, of_x)))
        matrix_tiles.load_tile(v, OF_X, place, pixel)

    def places(number: int, tiles: list[int]) -> list[tuple[int, Any]]:
        target = v.pointer(v.iadd(sums, v.imul(group, number)))
        return [(tile, bytes_behind(v, target, 64 * j)) for j, tile in enumerate(tiles)]

    def begin(number: int, tiles: list[int]) -> None:
        with v.choose(v.isub(further, 1)) as (on, fresh):
            with on:
                for tile, place in places(number, tiles):
                    matrix_tiles.load_tile(v, tile, place, row)
            with fresh:
                for tile in tiles:
                    matrix_tiles.zero_tile(v, tile)

    def end(number: int, tiles: list[int]) -> None:
        for tile, place in places(number, tiles):
            matrix_tiles.store_tile(v, tile, place, row)

    totals = [[number * FILTER_TILES + j for j in range(FILTER_TILES)] for number in range(last)]
    for number, tiles in enumerate(totals):
        begin(number, tiles)
    with v.loop(entries) as e:
        at = bytes_behind(v, filters, v.imul(e, TERMS * FILTER_TILES * TILE_BYTES))
        offset, held = v.table64(offsets, e), None
        for of_w in range(TERMS):
            for j in range(FILTER_TILES):
                ahead = bytes_behind(v, at, AHEAD + (of_w * FILTER_TILES + j) * TILE_BYTES)
                for line in range(TILE_BYTES // 64):
                    v.prefetch(ahead, line * v.lanes)
                filter_tile(at, of_w, j)
                met = (of_x for of_x in range(TERMS) if (of_x, of_w) in FIRST)
                for of_x in sorted(met, key=lambda digit: digit != held):  # the one that is there first
                    if of_x != held:
                        x_tile(offset, held := of_x)
                    matrix_tiles.tile_dot(v, "ssd", totals[GROUP_OF[of_x, of_w]][j], OF_X, OF_W)
    for number, tiles in enumerate(totals):
        end(number, tiles)
    with v.unless_negative(v.isub(least, 1)):
        begin(last, totals[0])
        with v.loop(entries) as e:
            at = bytes_behind(v, filters, v.imul(e, TERMS * FILTER_TILES * TILE_BYTES))
            for of_x, of_w in GROUPS[last]:
                x_tile(v.table64(offsets, e), of_x)
                for j in range(FILTER_TILES):
                    filter_tile(at, of_w, j)
                    matrix_tiles.tile_dot(v, "ssd", totals[0][j], OF_X, OF_W)
        end(last, totals[0])


@jit.specialise
def stream_digits(LANES: int, PIXELS: int, FILTER_TILES: int) -> jit.Kernel:
    """`streamed_pixel` for PIXELS = 1, else `streamed_sums`."""

    def stream_digits(
        x: int, pixel: int, term: int, offsets: int, entries: int, w: int, further: int, sums: int,
        group: int, least: int,
    ) -> None:  # fmt: skip
        if PIXELS == 1:
            streamed_pixel(4, LANES, FILTER_TILES, x, term, offsets, entries, w, sums, group)
        else:
            streamed_sums(
                4, LANES, FILTER_TILES, x, pixel, term, offsets, entries, w, further, sums, group, least
            )

    return stream_digits
