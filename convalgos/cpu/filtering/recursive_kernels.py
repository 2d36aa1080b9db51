"""Gaussians by recursion: two or three pairs of complex exponentials, forth and back along a line.

Half a Gaussian is nearly a sum of r^k (A cos(k w) + B sin(k w)). Each term is a complex state that is turned,
shrunk and added to at each element, whatever the width of the Gaussian. Lines lie in the lanes of vectors:
panels of them are brought into scratch, turned where they are rows, and filtered there. Beyond its ends a
line goes on as its border says, by a table, for as long as the filter that it stands for reaches.

Windows of a filter are sums of as many elements, and no more: what leaves a half of a window is taken from
its state, turned and shrunk as it has been since it came.

Source: Deriche 1993, "Recursively implementing the Gaussian and its derivatives", INRIA RR-1893.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.simd import Value, Vec, carray, copy_bytes, pointer, zero_bytes
from convalgos.cpu.vectors.transpose import (
    load_square,
    load_whole_square,
    place_square,
    place_whole_square,
)

WIDTH = 4  # vectors of lines in a panel: longer pieces of rows are read faster
TOGETHER = 2  # of which so many are filtered at a time, whose states fill the registers
# x and y are (before, size, after); `sources`: the element at each place from `reach` before the first one to
# `reach` behind the last, -1 for the fill value; `numbers`: for each term A, B, r cos w, r sin w.
RECURSION_FIELDS = fields(
    "x y scratch scratch_bytes tasks before size after sources reach numbers fill panel_bytes"
)


class _Terms:
    """The states of all terms of the lines of a panel, in registers."""

    def __init__(self, v: Vec, pairs: int, numbers: Value, back: bool):
        self.v, at = v, v.pointer(numbers)
        self.numbers = [[v.broadcast(at, 4 * i + j) for j in range(4)] for i in range(pairs)]
        if back:  # from the state of the element behind
            self.numbers = [
                [v.fma(a, c, v.fmul(b, s)), v.fsub(v.fmul(b, c), v.fmul(a, s)), c, s]
                for a, b, c, s in self.numbers
            ]
        self.states = [
            [(v.register(v.zero()), v.register(v.zero())) for _ in range(pairs)] for _ in range(TOGETHER)
        ]

    def turn(self, column: int, x: Value) -> None:
        """state = state * turn + x."""
        v = self.v
        for (_, _, c, s), (real, imag) in zip(self.numbers, self.states[column], strict=True):
            u, w = real.value, imag.value
            real.set(v.fma(v.b.fneg(s), w, v.fma(c, u, x)))
            imag.set(v.fma(s, u, v.fmul(c, w)))

    def total(self, column: int, value: Value = None) -> Value:
        v = self.v
        for (a, b, _, _), (real, imag) in zip(self.numbers, self.states[column], strict=True):
            value = v.fmul(a, real.value) if value is None else v.fma(a, real.value, value)
            value = v.fma(b, imag.value, value)
        return value


@simd.emitter
def recurse_panel(
    v: Vec, PAIRS: int, x: Value, y: Value, size: Value, sources: Value, reach: Value, numbers: Value
) -> None:
    """y = TOGETHER columns of a panel x (size, WIDTH, lanes) filtered; what is beyond is x[-1]."""
    source, to = v.pointer(x), v.pointer(y)
    row = WIDTH * v.lanes

    def at(i: Value, column: int) -> Value:
        return v.iadd(v.imul(i, row), column * v.lanes)

    forth, back = (_Terms(v, PAIRS, numbers, backwards) for backwards in (False, True))
    with v.loop(reach) as e:
        for column in range(TOGETHER):
            forth.turn(column, v.load(source, at(v.table64(sources, e), column)))
    with v.loop(size) as i:
        for column in range(TOGETHER):
            forth.turn(column, v.load(source, at(i, column)))
            v.store(forth.total(column), to, at(i, column))
    last = v.isub(v.iadd(size, v.imul(reach, 2)), 1)
    with v.loop(reach) as e:
        for column in range(TOGETHER):
            beyond = v.table64(sources, v.isub(last, e))
            back.turn(column, v.load(source, at(beyond, column)))
    with v.loop(size) as n:
        i = v.isub(v.isub(size, 1), n)
        for column in range(TOGETHER):
            v.store(back.total(column, v.load(to, at(i, column))), to, at(i, column))
            back.turn(column, v.load(source, at(i, column)))


@simd.emitter
def copy_columns(v: Vec, x: Value, x_row: Value, y: Value, y_row: Value, rows: Value, columns: Value) -> None:
    """y[i][:columns] = x[i][:columns] for i < rows, at most WIDTH vectors."""
    source, to = v.pointer(x), v.pointer(y)
    masks = [v.mask(v.isub(columns, j * v.lanes)) for j in range(WIDTH)]

    def copy(masked: bool) -> None:
        with v.loop(rows) as i:
            for j, mask in enumerate(masks):
                begin, end = (v.iadd(v.imul(i, row), j * v.lanes) for row in (x_row, y_row))
                if masked:
                    v.store_masked(v.load_masked(source, begin, mask), to, end, mask)
                else:
                    v.store(v.load(source, begin), to, end)

    with v.choose(v.isub(columns, WIDTH * v.lanes)) as (whole, part):
        with whole:
            copy(False)
        with part:
            copy(True)


@simd.emitter
def fill_panel_row(v: Vec, target: Value, value: Value) -> None:
    """target[:WIDTH vectors] = the element at an address."""
    for j in range(WIDTH):
        v.store(v.broadcast(v.pointer(value)), v.pointer(target), j * v.lanes)


@jit.helper
def turn_lines(
    size: int, lanes: int, width: int, first: int, pitch: int, length: int, lines: int, panel: int, back: bool
) -> None:  # fmt: skip
    """Some rows, `pitch` elements apart, into a panel of `width` vectors, or back from there."""
    for j in range(width):
        rows = min(lanes, lines - j * lanes)
        if rows > 0:
            for i in range(0, length, lanes):
                columns, place = min(lanes, length - i), panel + (i * width + j) * lanes * size
                at = first + (j * lanes * pitch + i) * size
                whole = rows == lanes and columns == lanes
                if back and whole:
                    place_whole_square(size, lanes, place, width * lanes, at, pitch)
                elif back:
                    place_square(size, lanes, place, width * lanes, rows, columns, at, pitch)
                elif whole:
                    load_whole_square(size, lanes, at, pitch, place, width * lanes)
                else:
                    load_square(size, lanes, at, pitch, rows, columns, place, width * lanes)


@jit.specialise
def turn_panel(SIZE: int, LANES: int, BACK: int) -> jit.Kernel:
    """`turn_lines` for other kernels, which call it by its address."""

    def turn_panel(width: int, first: int, pitch: int, length: int, lines: int, panel: int) -> None:
        turn_lines(SIZE, LANES, width, first, pitch, length, lines, panel, BACK != 0)

    return turn_panel


@jit.specialise
def filter_recursively(SIZE: int, LANES: int, PAIRS: int) -> jit.Kernel:
    """Lines along the middle one of three axes; along rows where `after` is 1."""

    def filter_recursively(args: int, task: int) -> None:
        a = carray(pointer(args), 1, RECURSION_FIELDS)[0]
        wide = WIDTH * LANES
        x = a.scratch + task * a.scratch_bytes + wide * SIZE
        y = x + a.panel_bytes
        fill_panel_row(SIZE, LANES, x - wide * SIZE, a.fill)
        across = -(-a.after // wide)
        units = -(-a.before // wide) if a.after == 1 else a.before * across
        for unit in range(units * task // a.tasks, units * (task + 1) // a.tasks):
            first = unit % across * wide
            place = (unit // across * a.size * a.after + first) * SIZE
            line, lines = unit * wide * a.size * SIZE, a.before - unit * wide
            if a.after == 1:
                turn_lines(SIZE, LANES, WIDTH, a.x + line, a.size, a.size, lines, x, False)
            else:
                copy_columns(SIZE, LANES, a.x + place, a.after, x, wide, a.size, a.after - first)
            for column in range(0, wide * SIZE, TOGETHER * LANES * SIZE):
                recurse_panel(
                    SIZE, LANES, PAIRS, x + column, y + column, a.size, a.sources, a.reach, a.numbers
                )
            if a.after == 1:
                turn_lines(SIZE, LANES, WIDTH, a.y + line, a.size, a.size, lines, y, True)
            else:
                copy_columns(SIZE, LANES, y, wide, a.y + place, a.after, a.size, a.after - first)

    return filter_recursively


# --- windows ---------------------------------------------------------------------------------

# Lines of x (planes, size, after) and y (planes, outputs, after). Windows of `taps` elements, whose halves
# are recursions over `half` of them; places of a line with its border, `low` before the first element.
# `sources` has the element at each place, or -1. `numbers` (filters, pairs * NUMBERS + 1): for each term A,
# B, the turn of an element, and that of a half; then the weight that the middle element has twice. `line`
# planes behind each other have one filter.
WINDOW_RECURSION_FIELDS = fields(
    "x y scratch scratch_bytes tasks planes size after outputs taps half places low sources numbers filters "
    "line panel_at result_at"
)
NUMBERS = 6


@simd.emitter
def recurse_windows(
    v: Vec, PAIRS: int, x: Value, y: Value, outputs: Value, taps: Value, half: Value, numbers: Value
) -> None:
    """y = a column of a panel x (places, WIDTH, lanes) filtered, around which are `half` rows of zeros.

    State = state * turn + what comes into a half of a window - what leaves it * the turn of a half.
    """
    source, to, given = v.pointer(x), v.pointer(y), v.pointer(numbers)
    row = WIDTH * v.lanes
    terms = [[v.load(given, (NUMBERS * i + j) * row) for j in range(NUMBERS)] for i in range(PAIRS)]

    middle = v.load(given, NUMBERS * PAIRS * row)

    def pass_over(first: Value, step: int, finish: Any) -> None:
        """From a place of x on, forth or back: finish(n, total, x) of the n-th window and what came last."""
        states = [(v.register(v.zero()), v.register(v.zero())) for _ in terms]

        def meet(n: Value) -> tuple[Value, Value]:
            at = v.iadd(first, v.imul(n, step))
            behind = v.isub(at, v.imul(half, step))
            came, left = (v.load(source, v.imul(i, row)) for i in (at, behind))
            total = None
            for (a, b, c, s, end_c, end_s), (real, imag) in zip(terms, states, strict=True):
                u, w = real.value, imag.value
                real.set(v.fma(v.b.fneg(s), w, v.fma(c, u, v.fma(v.b.fneg(end_c), left, came))))
                imag.set(v.fma(s, u, v.fma(c, w, v.fmul(v.b.fneg(end_s), left))))
                total = v.fmul(a, real.value) if total is None else v.fma(a, real.value, total)
                total = v.fma(b, imag.value, total)
            return total, came

        before = v.isub(half, 1)
        with v.loop(before) as n:
            meet(n)
        with v.loop(outputs) as n:
            finish(n, *meet(v.iadd(before, n)))

    def at(window: Value) -> Value:
        return v.imul(window, row)

    last = v.isub(outputs, 1)

    def put(n: Value, total: Value, _: Value) -> None:
        v.store(total, to, at(n))

    def add(n: Value, total: Value, came: Value) -> None:
        place = at(v.isub(last, n))
        v.store(v.fadd(v.load(to, place), v.fma(v.b.fneg(middle), came, total)), to, place)

    pass_over(0, 1, put)
    pass_over(v.iadd(last, v.isub(taps, 1)), -1, add)


@jit.helper
def fill_numbers(size: int, a: Any, table: int, plane: int, step: int, count: int, wide: int) -> None:
    """The numbers of the filter of each line of a panel: (numbers, lines), of planes `step` apart."""
    for j in range(wide):
        of = min(plane + j * step, a.planes - 1) // a.line % a.filters * count
        for n in range(count):
            copy_bytes(table + (n * wide + j) * size, a.numbers + (of + n) * size, size)


@jit.specialise
def filter_windows(SIZE: int, LANES: int, PAIRS: int) -> jit.Kernel:
    """Lines along the middle one of three axes; along rows where `after` is 1."""

    def filter_windows(args: int, task: int) -> None:
        a = carray(pointer(args), 1, WINDOW_RECURSION_FIELDS)[0]
        wide = WIDTH * LANES
        row = wide * SIZE
        scratch = a.scratch + task * a.scratch_bytes
        x, y = scratch + a.panel_at, scratch + a.result_at
        sources = carray(pointer(a.sources), a.places, np.int64)
        across = -(-a.after // wide)
        units = -(-a.planes // wide) if a.after == 1 else a.planes * across
        for unit in range(units * task // a.tasks, units * (task + 1) // a.tasks):
            first, plane = unit % across * wide, unit // across
            if a.after == 1:
                plane = unit * wide
                fill_numbers(SIZE, a, scratch, plane, 1, NUMBERS * PAIRS + 1, wide)
                begin, lines = a.x + plane * a.size * SIZE, a.planes - plane
                turn_lines(SIZE, LANES, WIDTH, begin, a.size, a.size, lines, x + a.low * row, False)
            else:
                fill_numbers(SIZE, a, scratch, plane, 0, NUMBERS * PAIRS + 1, wide)
                at = a.x + (plane * a.size * a.after + first) * SIZE
                copy_columns(SIZE, LANES, at, a.after, x + a.low * row, wide, a.size, a.after - first)
            for place in range(a.places):
                if place < a.low or place >= a.low + a.size:
                    source = sources[place]
                    if source < 0:
                        zero_bytes(x + place * row, row)
                    else:
                        copy_bytes(x + place * row, x + (source + a.low) * row, row)
            zero_bytes(x - a.half * row, a.half * row)
            zero_bytes(x + a.places * row, a.half * row)
            for column in range(0, row, LANES * SIZE):
                recurse_windows(
                    SIZE, LANES, PAIRS, x + column, y + column, a.outputs, a.taps, a.half, scratch + column
                )
            if a.after == 1:
                begin, lines = a.y + plane * a.outputs * SIZE, a.planes - plane
                turn_lines(SIZE, LANES, WIDTH, begin, a.outputs, a.outputs, lines, y, True)
            else:
                at = a.y + (plane * a.outputs * a.after + first) * SIZE
                copy_columns(SIZE, LANES, y, wide, at, a.after, a.outputs, a.after - first)

    return filter_windows
