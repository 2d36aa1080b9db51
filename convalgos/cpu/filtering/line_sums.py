"""Weighted sums of lines, by fused products or in SciPy's order.

y[i] = sum_t w[t] * line_t[i], the lines given by a table of addresses: the taps of a filter across lines are
lines of the array, those of a filter along a line are the line itself, shifted.

Sums in order are those of SciPy, to the last bit: float64 products and sums, each rounded, the middle tap
first and then the others by pairs where the filter is symmetric, else the last tap first.

Source of that order: `NI_Correlate1D` in scipy/ndimage/src/ni_filters.c.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from convalgos.cpu.filtering.line_elements import DOUBLE, FLOAT, loaded
from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.blocks import loop_blocks
from convalgos.cpu.vectors.lanes import load_lanes, store_lanes
from convalgos.cpu.vectors.simd import Value, Vec, carray, pointer

FUSED, IN_ORDER, SYMMETRIC, ANTISYMMETRIC = range(4)  # sums: of fused products, or in SciPy's order
ROWS = 4  # sums at a time of neighbouring lines, which share most of their taps
SHIFTED = 0  # in the place of their number: of one line with itself, shifted by each tap
WIDE, NARROW = 8, 4  # vectors at a time, in the middle and at the end of a line
HELD = 2  # vectors at a time of lines that stay in registers
SHORT = 32  # bytes of vectors that have too few registers for that; Zen 5
MOVED = 2  # vectors that a line is shifted by, from which on vectors that are loaded meet several taps; Zen 5


@jit.specialise
def sum_lines(ORDER: int, SIZE: int, LANES: int) -> jit.Kernel:
    """The sums of `many` neighbouring lines, 1, `ROWS` or `SHIFTED`: y[r][i] = sum_t w[t] * lines[r + t][i].

    Those of `SHIFTED` are one, and in any order.
    """

    def sum_lines(table: int, weights: int, taps: int, count: int, y: int, y_step: int, many: int) -> None:
        lines = carray(pointer(table), taps, np.int64)
        apart = max(1, lines[min(1, taps - 1)] - lines[0])  # bytes
        period = SIZE * LANES // apart  # taps that a line is shifted by for a whole vector
        shared = many == SHIFTED and count >= WIDE * LANES and taps >= MOVED * period
        if ORDER == FUSED and many == ROWS:
            weighted_rows(SIZE, LANES, table, weights, taps, count, y, y_step)
        elif ORDER == FUSED and SIZE * LANES > SHORT and shared and period * apart == SIZE * LANES:
            weighted_shifts(SIZE, LANES, lines[0], apart // SIZE, period, weights, taps, count, y)
        elif ORDER != FUSED and many == ROWS and SIZE * LANES > SHORT:
            ordered_rows(SIZE, LANES, ORDER, table, weights, taps, count, y, y_step)
        else:
            for r in range(max(1, many)):
                weighted_line(
                    SIZE, LANES, ORDER, FLOAT if SIZE == 4 else DOUBLE, table + 8 * r, weights, taps, count,
                    y + r * y_step,
                )  # fmt: skip

    return sum_lines


@jit.specialise
def sum_lines_of(KIND: int, SIZE: int, LANES: int) -> jit.Kernel:
    """The fused sums of lines of a kind in memory, `many` of which is 1, as `sum_lines` is called."""

    def sum_lines_of(table: int, weights: int, taps: int, count: int, y: int, y_step: int, many: int) -> None:
        weighted_line(SIZE, LANES, FUSED, KIND, table, weights, taps, count, y)

    return sum_lines_of


@simd.emitter
def weighted_line(
    v: Vec, ORDER: int, KIND: int, table: Value, weights: Value, taps: Value, count: Value, y: Value
) -> None:  # fmt: skip
    """y[i] = sum_t w[t] * lines[t][i], of lines of a kind in memory."""
    w, out = v.pointer(weights), v.pointer(y)

    def block(at: Value, vectors: int, rest: Value = None) -> None:
        masks = [None if rest is None else v.mask(v.isub(rest, m * v.lanes)) for m in range(vectors)]
        places = [v.iadd(at, m * v.lanes) for m in range(vectors)]

        def line(t: Value) -> list[Value]:
            source = v.pointer(v.table64(table, t))
            return [loaded(v, KIND, source, place, mask) for place, mask in zip(places, masks, strict=True)]

        sums = tap_sums(v, ORDER, line, w, taps, vectors)
        for total, place, mask in zip(sums, places, masks, strict=True):
            store_lanes(v, total, out, place, mask)

    _in_blocks(v, count, block)


def tap_sums(
    v: Vec, ORDER: int, line: Callable[[Value], list[Value]], w: Value, taps: Value, vectors: int
) -> list[Value]:
    """The sums over all taps of some vectors; `line` loads those of a tap."""
    if ORDER == FUSED:
        totals = [v.register(v.zero()) for _ in range(vectors)]
        with v.loop(taps) as t:
            scale = v.broadcast(w, t)
            for total, x in zip(totals, line(t), strict=True):
                total.set(v.fma(x, scale, total.value))
        return [total.value for total in totals]
    last = v.isub(taps, 1)
    first = last if ORDER == IN_ORDER else v.idiv(taps, 2)
    scale = v.broadcast(w, first)
    totals = [v.register(v.fmul(x, scale)) for x in line(first)]
    with v.loop(last if ORDER == IN_ORDER else first) as t:
        scale, values = v.broadcast(w, t), line(t)
        if ORDER != IN_ORDER:
            meet = v.fadd if ORDER == SYMMETRIC else v.fsub
            values = [meet(a, b) for a, b in zip(values, line(v.isub(last, t)), strict=True)]
        for total, x in zip(totals, values, strict=True):
            total.set(v.fadd(total.value, v.fmul(x, scale)))
    return [total.value for total in totals]


def _in_blocks(v: Vec, count: Value, block: Callable[..., None]) -> None:
    """block(first element, vectors), and behind the whole ones block(first, vectors, elements left).

    The last vector, or a line that is no longer, goes alone.
    """
    step, small = WIDE * v.lanes, NARROW * v.lanes
    whole = v.idiv(count, step)
    with v.loop(whole) as i:
        block(v.imul(i, step), WIDE)
    done = v.imul(whole, step)
    rest = v.isub(count, done)
    several = v.idiv(v.iadd(v.imax(v.isub(rest, v.lanes), 0), small - 1), small)
    with v.loop(several) as i:
        at = v.imul(i, small)
        block(v.iadd(done, at), NARROW, v.isub(rest, at))
    at = v.imul(several, small)
    with v.within(at, rest):
        block(v.iadd(done, at), 1, v.isub(rest, at))


@simd.emitter
def weighted_rows(
    v: Vec, table: Value, weights: Value, taps: Value, count: Value, y: Value, y_step: Value
) -> None:  # fmt: skip
    """y[r][i] = sum_t w[t] * lines[r + t][i] of `ROWS` lines; there are at least `ROWS` - 1 taps.

    Each line that is loaded meets the taps of all sums that it is part of.
    """
    w = v.pointer(weights)
    outs = [v.pointer(v.iadd(y, v.imul(y_step, r))) for r in range(ROWS)]

    def block(at: Value, rest: Value = None) -> None:
        masks = [None if rest is None else v.mask(v.isub(rest, m * v.lanes)) for m in range(NARROW)]
        places = [v.iadd(at, m * v.lanes) for m in range(NARROW)]
        totals = shared_sums(v, table, w, taps, places, masks, ROWS, v.zero())
        for out, row in zip(outs, totals, strict=True):
            for total, place, mask in zip(row, places, masks, strict=True):
                store_lanes(v, total.value, out, place, mask)

    loop_blocks(v, count, NARROW * v.lanes, block)


def shared_sums(
    v: Vec, table: Value, w: Value, taps: Value, places: list[Value], masks: list[Value], many: int,
    begin: Value,
) -> list[list[Value]]:  # fmt: skip
    """(many, places) registers: the sums of neighbouring lines at some places, by fused products."""
    totals = [[v.register(begin) for _ in places] for _ in range(many)]

    def meet(j: Value, rows: range) -> None:
        source = v.pointer(v.table64(table, j))
        values = [load_lanes(v, source, place, mask) for place, mask in zip(places, masks, strict=True)]
        for r in rows:
            scale = v.broadcast(w, v.isub(j, r))
            for total, x in zip(totals[r], values, strict=True):
                total.set(v.fma(x, scale, total.value))

    for j in range(many - 1):
        meet(j, range(j + 1))
    with v.loop(v.isub(taps, many - 1)) as i:
        meet(v.iadd(i, many - 1), range(many))
    for j in range(many - 1):
        meet(v.iadd(taps, j), range(j + 1, many))
    return totals


@simd.emitter
def weighted_shifts(
    v: Vec, line: Value, apart: Value, period: Value, weights: Value, taps: Value, count: Value, y: Value
) -> None:  # fmt: skip
    """y[i] = sum_t w[t] * line[i + t * apart], for at least `WIDE` vectors.

    `period` taps further, a sum needs the vector that its neighbour has needed: vectors that lie across
    lines of the cache are loaded once for all those taps.
    """
    w, out, begin = v.pointer(weights), v.pointer(y), v.pointer(line)
    step = WIDE * v.lanes
    with v.loop(v.idiv(v.iadd(count, step - 1), step)) as i:
        at = v.imin(v.imul(i, step), v.isub(count, step))  # the last ones meet those before
        totals = [v.register(v.zero()) for _ in range(WIDE)]
        with v.loop(period) as first:
            place = v.iadd(at, v.imul(first, apart))
            held = [v.register(v.load(begin, v.iadd(place, m * v.lanes))) for m in range(WIDE - 1)]
            last = v.iadd(place, (WIDE - 1) * v.lanes)
            turns = v.idiv(v.iadd(v.isub(taps, first), v.isub(period, 1)), period)
            with v.loop(turns) as turn:
                scale = v.broadcast(w, v.iadd(first, v.imul(turn, period)))
                values = [x.value for x in held] + [v.load(begin, v.iadd(last, v.imul(turn, v.lanes)))]
                for total, x in zip(totals, values, strict=True):
                    total.set(v.fma(x, scale, total.value))
                for register, x in zip(held, values[1:], strict=True):
                    register.set(x)
        for m, total in enumerate(totals):
            v.store(total.value, out, v.iadd(at, m * v.lanes))


@simd.emitter
def ordered_rows(
    v: Vec, ORDER: int, table: Value, weights: Value, taps: Value, count: Value, y: Value, y_step: Value
) -> None:  # fmt: skip
    """`weighted_rows` in SciPy's order: lines that the next taps meet again stay in registers."""
    w, last = v.pointer(weights), v.isub(taps, 1)
    outs = [v.pointer(v.iadd(y, v.imul(y_step, r))) for r in range(ROWS)]
    first = last if ORDER == IN_ORDER else v.idiv(taps, 2)

    def block(at: Value, rest: Value = None) -> None:
        masks = [None if rest is None else v.mask(v.isub(rest, m * v.lanes)) for m in range(HELD)]
        places = [v.iadd(at, m * v.lanes) for m in range(HELD)]

        def line(t: Value) -> list[Value]:
            source = v.pointer(v.table64(table, t))
            return [load_lanes(v, source, place, mask) for place, mask in zip(places, masks, strict=True)]

        def held(begin: Value) -> list[list[Value]]:
            """(ROWS - 1, vectors) registers of lines."""
            return [[v.register(x) for x in line(v.iadd(begin, r))] for r in range(ROWS - 1)]

        scale = v.broadcast(w, first)
        totals = [[v.register(v.fmul(x, scale)) for x in line(v.iadd(first, r))] for r in range(ROWS)]
        before = held(v.integer(0))
        behind = [] if ORDER == IN_ORDER else held(taps)
        with v.loop(first) as t:
            scale = v.broadcast(w, t)
            values = [*([x.value for x in each] for each in before), line(v.iadd(t, ROWS - 1))]
            _keep(before, values[1:])
            if ORDER != IN_ORDER:
                others = [line(v.isub(last, t)), *([x.value for x in each] for each in behind)]
                _keep(behind, others[:-1])
                meet = v.fadd if ORDER == SYMMETRIC else v.fsub
                values = [list(map(meet, *each)) for each in zip(values, others, strict=True)]
            for row, terms in zip(totals, values, strict=True):
                for total, x in zip(row, terms, strict=True):
                    total.set(v.fadd(total.value, v.fmul(x, scale)))
        for out, row in zip(outs, totals, strict=True):
            for total, place, mask in zip(row, places, masks, strict=True):
                store_lanes(v, total.value, out, place, mask)

    loop_blocks(v, count, HELD * v.lanes, block)


def _keep(registers: list[list[Value]], values: list[list[Value]]) -> None:
    """Set each register of each line."""
    for row, lines in zip(registers, values, strict=True):
        for register, x in zip(row, lines, strict=True):
            register.set(x)
