"""Products on transformed tiles whose inputs are rounded to 8 bits, with a scale for each tile and point.

V holds 16-bit integers. At each point a thread rounds the rows of V that it needs, a row is all channels of
a tile, each by what its largest element asks for, and multiplies them by panels of 8-bit filters. Sums of 32
bits become float32 by both scales, of the row and of the filter, before they leave the registers: M is
float32. A scale for each tile follows what an image holds there, and does not depend on how tiles are cut
into boxes or shared among threads: neither does y.

U is (group, point, panel), each of (depth tap, (word, filter, 4 channels) of int8, then an int32 for each
filter that its sums begin with), and behind the taps a float32 scale for each filter.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from convalgos.cpu.runtime import jit
from convalgos.cpu.tiled.driver import BOX_ARGUMENTS, box_of, depth_taps, image_tiles
from convalgos.cpu.tiled.row_products import dealt_rows
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.integers import Integers, bytes_of, shorts_of, words_of
from convalgos.cpu.vectors.simd import Value, Vec, call, carray, pointer, zero_bytes

GROUP = 8  # rows that are rounded at a time: as many 16-bit integers as 128 bits hold
FIRST = (0, 4, 2, 6, 1, 5, 3, 7)  # the order in which `_row_maxima` merges them
LEVELS = 127  # of a rounded element, on either side of 0
MIDDLE = 128  # what is added to it, as products take unsigned elements
ONE = 1 << 15  # of a factor: the unit of `Integers.rounded_product`


# --- rounding ----------------------------------------------------------------------------------------


@simd.emitter
def quantise_rows(
    v: Vec, source: Value, row_step: Value, rows: Value, phases: Value, blocks: Value, channels: Value,
    level: Value, target: Value, scales: Value,
) -> None:  # fmt: skip
    """target[row][:] = MIDDLE + rint((source[row][:] - level) / scales[row]), of vectors of channels.

    source: rows of 16-bit integers, `row_step` elements apart; target: of bytes, as far apart. A row is
    `phases` times `blocks` vectors, of which the last has channels that count for its scale only below
    `channels`.
    """
    s, b = shorts_of(v), bytes_of(v)
    read, write, zeros = s.pointer(source), b.pointer(target), s.spread(level)
    factors = s.pointer(v.b.ptrtoint(s.buffer(1), simd.ir.IntType(64)))
    last = v.isub(rows, 1)
    with v.loop(v.idiv(v.iadd(rows, GROUP - 1), GROUP)) as group:
        first = v.imul(group, GROUP)
        starts = [v.imul(v.imin(v.iadd(first, i), last), row_step) for i in range(GROUP)]
        tops = [s.register(s.zero()) for _ in range(GROUP)]
        with v.loop(phases) as phase, v.loop(blocks) as block:
            inside = s.mask(v.isub(channels, v.imul(block, v.lanes)))
            at = v.imul(v.iadd(v.imul(phase, blocks), block), v.lanes)
            for top, start in zip(tops, starts, strict=True):
                value = s.sub(s.load(read, v.iadd(start, at)), zeros)
                size = s.larger(value, s.sub(s.zero(), value))
                top.set(s.larger(top.value, v.b.select(inside, size, s.zero())))
        _store_factors(v, _row_maxima(s, [top.value for top in tops]), factors, scales, first)
        some = [s.broadcast(factors, i) for i in range(GROUP)]
        with v.loop(v.imul(phases, blocks)) as vector:
            at = v.imul(vector, v.lanes)
            for factor, start in zip(some, starts, strict=True):
                place = v.iadd(start, at)
                value = s.rounded_product(s.sub(s.load(read, place), zeros), factor)
                b.store(s.resized(s.add(value, s.const(MIDDLE)), 1), write, place)


def _row_maxima(s: Integers, rows: list[Any]) -> tuple[Any, Any]:
    """The largest elements of GROUP vectors, none below 0: (a vector of GROUP of them, its instructions)."""
    wide, part = s.lanes, range(0, s.lanes, GROUP)
    low = [n for i in part for j in range(GROUP // 2) for n in (i + j, wide + i + j)]
    high = [n + GROUP // 2 for n in low]
    rows = [rows[i] for i in FIRST]
    while len(rows) > 1:  # pairs side by side, until every 128 bits have one element of each row
        pairs = zip(rows[::2], rows[1::2], strict=True)
        rows = [s.larger(s.shuffle(a, b, low), s.shuffle(a, b, high)) for a, b in pairs]
    found, narrow = rows[0], s
    while narrow.lanes > GROUP:
        half = narrow.lanes // 2
        parts = [narrow.shuffle(found, found, range(i, i + half)) for i in (0, half)]
        narrow = Integers(s.b, half, 2)
        found = narrow.larger(*parts)
    return found, narrow


def _store_factors(v: Vec, maxima: tuple[Any, Any], factors: Any, scales: Any, first: Any) -> None:
    """What rows are multiplied by, in units of 1 / ONE, and what makes up for it, of GROUP rows."""
    found, narrow = maxima
    floats, words = Vec(v.b, GROUP, 4), Integers(v.b, GROUP, 4)
    largest = words.larger(narrow.resized(found, 4), words.const(LEVELS + 1))
    wanted = v.b.fdiv(floats.const(LEVELS * ONE), words.floats(largest))
    factor = v.b.fptosi(wanted, words.type)  # rounded down: none gets beyond LEVELS
    narrow.store(words.resized(factor, 2), factors)
    scale = v.b.fdiv(floats.const(ONE), words.floats(factor))
    floats.store(scale, floats.pointer(scales), first)


# --- products ----------------------------------------------------------------------------------------


@simd.emitter
def byte_tile(
    v: Vec, ROWS: int, VECTORS: int, ACCUMULATE: int, x: Value, x_step: Value, row_scales: Value, w: Value,
    words: Value, filter_scales: Value, y: Value, ahead: Value,
) -> None:  # fmt: skip
    """y[i][:] (+)= (begin[:] + sum_t x[i][t] * w[t][:]) * row_scales[i] * filter_scales[:], for i < ROWS.

    x: rows of bytes, `x_step` apart; w: (words, VECTORS * lanes) words of 8-bit integers, and `begin` behind
    them; y: rows of VECTORS * lanes of float32. For each word of x a vector from `ahead` on, which may be
    any address, is asked for.
    """
    a, wide = words_of(v), range(VECTORS)
    later, filters, target = v.pointer(ahead), v.pointer(w), v.pointer(y)
    inputs = [v.pointer(v.iadd(x, v.imul(x_step, i))) for i in range(ROWS)]
    row = v.imul(words, VECTORS * v.lanes)  # words of a panel
    begins = [a.load(filters, v.iadd(row, j * v.lanes)) for j in wide]
    sums = [[a.register(begin) for begin in begins] for _ in range(ROWS)]
    with v.loop(words) as t:
        v.prefetch(a.at(later, v.imul(t, v.lanes)))
        weights = [a.load(filters, v.iadd(v.imul(t, VECTORS * v.lanes), j * v.lanes)) for j in wide]
        for totals, input_ in zip(sums, inputs, strict=True):
            value = a.broadcast(input_, t)
            for total, weight in zip(totals, weights, strict=True):
                total.set(a.dot4(total.value, value, weight))
    scales = [v.load(v.pointer(filter_scales), j * v.lanes) for j in wide]
    for i, totals in enumerate(sums):
        of_row = v.broadcast(v.pointer(row_scales), i)
        for j, (total, scale) in enumerate(zip(totals, scales, strict=True)):
            place = (i * VECTORS + j) * v.lanes
            value, factor = a.floats(total.value), v.fmul(scale, of_row)
            known = v.load(target, place) if ACCUMULATE else None
            v.store(v.fmul(value, factor) if known is None else v.fma(value, factor, known), target, place)


@jit.specialise
def sum_bytes(LANES: int, ROWS: int, VECTORS: int) -> jit.Kernel:
    """sums[row][:] (+)= scaled sums of products over words, for one panel of filters, by `dealt_rows`."""
    FEWER = max(ROWS - 1, 1)

    def sum_bytes(
        x: int, x_step: int, row_scales: int, rows: int, words: int, w: int, filter_scales: int, sums: int,
        accumulate: int,
    ) -> None:  # fmt: skip
        tiles = (rows + ROWS - 1) // ROWS
        ahead = filter_scales + VECTORS * LANES * 4  # the next panel, fetched a part with each tile
        for tile in range(tiles):
            first, full = dealt_rows(rows, ROWS, tile)
            source, scales = x + first * x_step, row_scales + first * 4
            target = sums + first * VECTORS * LANES * 4
            if accumulate and full:
                byte_tile(
                    4, LANES, ROWS, VECTORS, 1, source, x_step, scales, w, words, filter_scales, target, ahead
                )
            elif accumulate:
                byte_tile(
                    4, LANES, FEWER, VECTORS, 1, source, x_step, scales, w, words, filter_scales, target,
                    ahead,
                )  # fmt: skip
            elif full:
                byte_tile(
                    4, LANES, ROWS, VECTORS, 0, source, x_step, scales, w, words, filter_scales, target, ahead
                )
            else:
                byte_tile(
                    4, LANES, FEWER, VECTORS, 0, source, x_step, scales, w, words, filter_scales, target,
                    ahead,
                )  # fmt: skip
            if tile < VECTORS - 1:
                ahead += words * LANES * 4

    return sum_bytes


@jit.specialise
def multiply_rounded(LANES: int) -> jit.Kernel:
    """V and U -> M, for some (point, panel) items of a box: `driver.multiply_box` with V rounded here.

    `a.offsets` has for each point what the zero point of x is transformed to. LANES: of 16-bit integers.
    """

    def multiply_rounded(args: int, index: int, first: int, last: int, shared: int, own: int) -> None:
        a = carray(pointer(args), 1, BOX_ARGUMENTS)[0]
        box = box_of(a, index)
        rows = (box.n1 - box.n0) * image_tiles(a, box)  # of a slice
        slots = (
            (box.o1 - box.o0 - 1) * a.depth.stride + (a.depth.taps - 1) * a.depth.dilation
        ) // a.slot_step + 1
        all_rows = (slots - 1) * a.slot_tiles + rows
        bytes_ = own + (all_rows + 2 * GROUP) * 4  # behind the scales of rows
        bytes_ += -bytes_ % 64
        products = shared + a.points * a.v_point * a.v_size
        words = a.slice_taps // 4
        u_tap = (words + 1) * a.panel * 4
        u_panel = a.depth.taps * u_tap + a.panel * 4
        levels = carray(pointer(a.offsets), a.points, np.int64)
        rounded = -1  # the point whose rows `bytes_` has
        for item in range(first, last):
            point, panel = item // a.panels, item % a.panels
            if point != rounded:
                v = shared + point * a.v_point * a.v_size
                quantise_rows(
                    2, LANES, v, a.v_row, all_rows, a.rows.phases * a.columns.phases, a.channel_blocks,
                    a.channels, levels[point], bytes_, own,
                )  # fmt: skip
                rounded = point
            m = products + (point * a.m_point + panel * a.m_panel) * a.sum_size
            u = a.w + ((box.group * a.points + point) * a.panels + panel) * u_panel
            for o in range(box.o1 - box.o0):
                target = m + o * rows * a.panel * a.sum_size
                tap0, tap1 = depth_taps(a, box.o0 + o)
                if tap0 == tap1:
                    zero_bytes(target, rows * a.panel * a.sum_size)
                for tap in range(tap0, tap1):
                    slot = (o * a.depth.stride + tap * a.depth.dilation) // a.slot_step
                    row = slot * a.slot_tiles
                    call(
                        a.sum_panel,
                        (
                            bytes_ + row * a.v_row, a.v_row, own + row * 4, rows, words, u + tap * u_tap,
                            u + a.depth.taps * u_tap, target, tap - tap0,
                        ),
                    )  # fmt: skip

    return multiply_rounded
