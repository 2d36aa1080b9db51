"""Lines of sums as integers: those next to whole numbers are summed again, in SciPy's order.

Windows that are products of lines are, too. Such a product differs from weights that were rounded to float32
by more than float64 rounds. So where one leaves a sum next to a whole number, its window is summed as float64
in any order, with vectors along its rows, and only if that is still too near in order, each product behind
the one before. Windows over elements that are all the same are summed in order once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from convalgos.cpu.filtering.line_elements import DOUBLE, FLOAT, KINDS, loaded, stored
from convalgos.cpu.filtering.line_sums import IN_ORDER, tap_sums
from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.instructions import ir
from convalgos.cpu.vectors.simd import Register, Value, Vec, function_of, vector_bytes

ROWS = 4  # of a window that are summed at a time
MANY = 4  # windows of a vector from which on they are summed together
WORD = ir.IntType(64)
BOUNDS = 8  # elements before the weights of a window, of which three are bounds


def window_table(w: np.ndarray, lanes: int, error: float, certain: float) -> np.ndarray:
    """What `settle_window` reads of a window (rows, columns), filled up by zeros to whole vectors.

    error: of sums in any order; certain: the magnitude up to which they have none.
    """
    rows, columns = w.shape
    table = np.zeros((-(-rows // ROWS) * ROWS, -(-columns // lanes) * lanes))
    table[:rows, :columns] = w
    return np.concatenate([[error, 1 - error, certain], np.zeros(BOUNDS - 3), table.ravel()])


@jit.specialise
def settle_line(KIND: int, ORDER: int, SIZE: int, LANES: int) -> jit.Kernel:
    """A line of sums as a kind of integers in memory; in order where they lie near whole numbers."""

    def settle_line(
        table: int, weights: int, taps: int, count: int, sums: int, y: int, bounds: int
    ) -> None:  # fmt: skip
        cut_off(SIZE, LANES, KIND, ORDER, table, weights, taps, count, sums, y, bounds)

    return settle_line


@simd.emitter
def cut_off(
    v: Vec, KIND: int, ORDER: int, table: Value, weights: Value, taps: Value, count: Value, sums: Value,
    y: Value, bounds: Value,
) -> None:  # fmt: skip
    """y[i] = sums[i], towards zero, or what float64 sums in order give; weights are float64.

    bounds: (error of the sums, 1 - that, magnitude up to which they have none).
    """
    settle_vectors(v, KIND, ORDER, lambda t: v.table64(table, t), weights, taps, count, sums, y, bounds)


def settle_vectors(
    v: Vec, KIND: int, ORDER: int, address: Callable[[Value], Value], weights: Value, taps: Value,
    count: Value, sums: Value, y: Value, bounds: Value,
    told_apart: Callable[[Vec, Value, Value, Value, Callable[[], Value]], Value] | None = None,
) -> None:  # fmt: skip
    """See `cut_off`.

    Args:
        address: emits where the line of a tap lies.
        told_apart: emits what settles lanes, the bits of a word, of the float64 vector at a place, of which
            there is what a mask tells, by sums in any order, and gives those that it did not; it may call
            for the sums in order.
    """
    source, out, w, near = (v.pointer(address) for address in (sums, y, weights, bounds))
    wide = Vec(v.b, vector_bytes() // 8, 8)
    low, high, exact = (v.broadcast(near, i) for i in range(3))

    def again(at: Value, rest: Value, close: Value) -> None:
        """The vector at `at`, of which `rest` elements are left, in order, if some are still close."""
        for part in range(0, v.lanes, wide.lanes):
            mask, place = wide.mask(wide.isub(rest, part)), wide.iadd(at, part)
            if told_apart is None:
                stored(wide, KIND, in_order(mask, place), out, place, mask)
                continue
            here = v.b.and_(v.b.lshr(close, v.integer(part)), v.integer((1 << wide.lanes) - 1))
            left = told_apart(wide, place, mask, here, partial(in_order, mask, place))
            with v.b.if_then(v.b.icmp_unsigned("!=", left, v.integer(0)), likely=False):
                stored(wide, KIND, in_order(mask, place), out, place, mask)

    def in_order(mask: Value, place: Value) -> Value:
        def line(t: Value) -> list[Value]:
            row = wide.pointer(address(t))
            return [loaded(wide, FLOAT if v.size == 4 else DOUBLE, row, place, mask)]

        (total,) = tap_sums(wide, ORDER, line, w, taps, 1)
        return total

    def settle(at: Value, rest: Value) -> None:
        mask = v.mask(rest)
        value = v.load_masked(source, at, mask)
        close = _are_close(v, value, low, high, exact)
        stored(v, KIND, value, out, at, mask)
        lanes = v.b.bitcast(v.b.and_(close, mask), ir.IntType(v.lanes))
        with v.b.if_then(v.b.icmp_unsigned("!=", lanes, ir.Constant(lanes.type, 0)), likely=False):
            again(at, rest, v.b.zext(lanes, ir.IntType(64)))

    with v.loop(v.idiv(v.iadd(count, v.lanes - 1), v.lanes)) as i:
        at = v.imul(i, v.lanes)
        settle(at, v.isub(count, at))


@jit.specialise
def settle_window(KIND: int, SIZE: int, LANES: int) -> jit.Kernel:
    """`settle_line` of windows: tap t begins in line places[0][t] of the table, places[1][t] bytes on.

    A window has `columns` taps in a row. window: the address of its `window_table`, or 0 where elements of
    a row do not lie behind each other.
    """

    def settle_window(
        table: int, places: int, weights: int, taps: int, columns: int, window: int, count: int, sums: int,
        y: int, bounds: int,
    ) -> None:  # fmt: skip
        cut_off_windows(
            SIZE, LANES, KIND, table, places, weights, taps, columns, window, count, sums, y, bounds
        )

    return settle_window


@simd.emitter
def cut_off_windows(
    v: Vec, KIND: int, table: Value, places: Value, weights: Value, taps: Value, columns: Value,
    window: Value, count: Value, sums: Value, y: Value, bounds: Value,
) -> None:  # fmt: skip
    """`cut_off` of the windows of `settle_window`."""

    def address(t: Value) -> Value:
        begin = v.table64(table, v.table64(places, t))
        return v.iadd(begin, v.table64(places, v.iadd(taps, t)))

    told_apart = _Windows(v, KIND, table, window, taps, columns, count, y).told_apart
    settle_vectors(v, KIND, IN_ORDER, address, weights, taps, count, sums, y, bounds, told_apart)


class _Windows:
    """Writes what settles windows of a line by sums in any order; arguments are those of `settle_window`."""

    def __init__(
        self, v: Vec, KIND: int, table: Value, window: Value, taps: Value, columns: Value, count: Value,
        y: Value,
    ):  # fmt: skip
        wide = Vec(v.b, vector_bytes() // 8, 8)
        self._v, self._kind, self._count, self._out = v, KIND, count, v.pointer(y)
        self._summed = FLOAT if v.size == 4 else DOUBLE, table, window, taps, columns
        self._held = Vec(v.b, wide.lanes, v.size)  # elements of a float64 vector in memory
        # of flat windows: what they were of, and their sum in order
        self._known = self._held.register(self._held.const(float("nan")))
        self._answer = wide.register(wide.zero())
        self._equal = _word(v, v.integer(0))  # up to where elements are those of the last flat windows

    def told_apart(
        self, wide: Vec, place: Value, mask: Value, lanes: Value, in_order: Callable[[], Value]
    ) -> Value:
        """See `settle_vectors`."""
        v, (_, table, window, taps, columns) = self._v, self._summed
        left = _word(v, lanes)
        with v.b.if_then(v.b.icmp_unsigned("!=", window, v.integer(0)), likely=True):
            many = v.isub(_bits(v, "ctpop", lanes), MANY)
            with v.choose(many) as (then, otherwise):
                with then:
                    end = v.iadd(v.imin(self._count, v.iadd(place, wide.lanes)), v.isub(columns, 1))
                    begin = v.imax(place, v.b.load(self._equal, typ=WORD))
                    unequal = _unequal(v, table, v.idiv(taps, columns), place, begin, end)
                    with v.b.if_else(v.b.icmp_unsigned("==", unequal, v.integer(0))) as (flat, uneven):
                        with flat:
                            v.b.store(end, self._equal)
                            self._as_before(wide, place, mask, left, in_order)
                        with uneven:
                            v.b.store(v.integer(0), self._equal)
                            self._together(wide, place, mask, lanes, left)
                with otherwise:
                    self._one_by_one(wide, place, lanes, left)
        return v.b.load(left, typ=WORD)

    def _as_before(
        self, wide: Vec, place: Value, mask: Value, left: Value, in_order: Callable[[], Value]
    ) -> None:
        """Flat windows, summed in order once for neighbours and lines of the same elements."""
        v, held, (_, table, *_) = self._v, self._held, self._summed
        value = held.broadcast(v.pointer(v.table64(table, 0)), place)
        differs = v.b.fcmp_unordered("!=", value, self._known.value)
        differs = v.b.bitcast(differs, ir.IntType(held.lanes))
        with v.b.if_then(v.b.icmp_unsigned("!=", differs, ir.Constant(differs.type, 0)), likely=False):
            total = in_order()
            self._answer.set(wide.shuffle(total, total, [0] * wide.lanes))
            self._known.set(value)
        stored(wide, self._kind, self._answer.value, self._out, place, mask)
        v.b.store(v.integer(0), left)

    def _together(self, wide: Vec, place: Value, mask: Value, lanes: Value, left: Value) -> None:
        """All windows of a vector, each in its lane."""
        total = _window_sums(wide, *self._summed, place, mask)
        stored(wide, self._kind, total, self._out, place, mask)
        _, _, window, *_ = self._summed
        self._v.b.store(self._v.b.and_(_close_lanes(wide, total, window), lanes), left)

    def _one_by_one(self, wide: Vec, place: Value, lanes: Value, left: Value) -> None:
        """The windows of some lanes, each by vectors along its rows."""
        v, (_, _, window, *_) = self._v, self._summed
        element = ir.IntType(8 * np.dtype(KINDS[self._kind]).itemsize)
        rest = _word(v, lanes)
        v.b.store(v.integer(0), left)
        with v.loop(_bits(v, "ctpop", lanes)):
            bits = v.b.load(rest, typ=WORD)
            lane = _bits(v, "cttz", bits, ir.Constant(ir.IntType(1), 0))
            v.b.store(v.b.and_(bits, v.isub(bits, 1)), rest)
            at = v.iadd(place, lane)
            total = _window_sum(wide, *self._summed, at)
            first = v.b.extract_element(total, ir.Constant(ir.IntType(32), 0))
            whole = v.b.fptosi(first, WORD)  # no sum is larger than 32 bits hold
            v.b.store(v.b.trunc(whole, element), v.b.gep(self._out, [at], source_etype=element))
            close = v.b.and_(v.b.shl(_close_lanes(wide, total, window), lane), v.b.shl(v.integer(1), lane))
            v.b.store(v.b.or_(v.b.load(left, typ=WORD), close), left)


def _word(v: Vec, value: Value) -> Value:
    """A variable of the kernel's own, an integer."""
    slot = simd.allocate(v.b, WORD)
    v.b.store(value, slot)
    return slot


def _bits(v: Vec, name: str, *given: Value) -> Value:
    """LLVM's functions of the bits of a word."""
    kind = ir.FunctionType(WORD, [each.type for each in given])
    return v.b.call(function_of(v.b, kind, f"llvm.{name}.i64"), given)


def _window_sum(
    v: Vec, KIND: int, table: Value, window: Value, taps: Value, columns: Value, at: Value
) -> Value:  # fmt: skip
    """In the first lane, the sum of a window that begins at a place of the first line of the table."""
    rows, pitch, lines_of, w = _rows_of(v, table, window, taps, columns)
    sums = [v.register(v.zero()) for _ in range(ROWS)]
    with v.loop(rows) as block:
        first, lines = lines_of(block)
        with v.loop(v.idiv(pitch, v.lanes)) as vector:
            t = v.imul(vector, v.lanes)
            mask, place = v.mask(v.isub(columns, t)), v.iadd(at, t)
            for r, (line, total) in enumerate(zip(lines, sums, strict=True)):
                behind = v.iadd(v.imul(v.iadd(first, r), pitch), v.iadd(t, BOUNDS))
                total.set(v.fma(loaded(v, KIND, line, place, mask), v.load(w, behind), total.value))
    whole = _added(v, sums)
    for half in (v.lanes >> n for n in range(1, int(math.log2(v.lanes)) + 1)):
        whole = v.fadd(whole, v.shuffle(whole, whole, [(i + half) % v.lanes for i in range(v.lanes)]))
    return whole


def _window_sums(
    v: Vec, KIND: int, table: Value, window: Value, taps: Value, columns: Value, at: Value, mask: Value
) -> Value:  # fmt: skip
    """The sums of windows that begin at neighbouring places, a lane for each."""
    rows, pitch, lines_of, w = _rows_of(v, table, window, taps, columns)
    sums = [v.register(v.zero()) for _ in range(ROWS)]
    with v.loop(rows) as block:
        first, lines = lines_of(block)
        with v.loop(columns) as t:
            for r, (line, total) in enumerate(zip(lines, sums, strict=True)):
                behind = v.iadd(v.imul(v.iadd(first, r), pitch), v.iadd(t, BOUNDS))
                x = loaded(v, KIND, line, v.iadd(at, t), mask)
                total.set(v.fma(x, v.broadcast(w, behind), total.value))
    return _added(v, sums)


def _unequal(v: Vec, table: Value, rows: Value, at: Value, begin: Value, end: Value) -> Value:
    """0 where the elements of some rows from one place to another are all the same as the one at `at`."""
    first = v.broadcast(v.pointer(v.table64(table, 0)), at)
    found, width = _word(v, v.integer(0)), v.isub(end, begin)
    with v.loop(rows) as row:
        line = v.pointer(v.table64(table, row))
        none = v.b.icmp_unsigned("==", v.b.load(found, typ=WORD), v.integer(0))
        vectors = v.b.select(none, v.idiv(v.iadd(width, v.lanes - 1), v.lanes), v.integer(0))
        with v.loop(vectors) as vector:
            t = v.imul(vector, v.lanes)
            mask = v.mask(v.isub(width, t))
            differs = v.b.fcmp_unordered("!=", v.load_masked(line, v.iadd(begin, t), mask), first)
            bits = v.b.bitcast(v.b.and_(differs, mask), ir.IntType(v.lanes))
            v.b.store(v.b.or_(v.b.load(found, typ=WORD), v.b.zext(bits, WORD)), found)
    return v.b.load(found, typ=WORD)


def _rows_of(
    v: Vec, table: Value, window: Value, taps: Value, columns: Value
) -> tuple[Value, Value, Callable[[Value], tuple[Value, list[Value]]], Value]:  # fmt: skip
    """(blocks of rows, weights from one row to the next, (first row, lines) of a block, weights)"""
    rows = v.idiv(taps, columns)
    pitch = v.imul(v.idiv(v.iadd(columns, v.lanes - 1), v.lanes), v.lanes)

    def lines_of(block: Value) -> tuple[Value, list[Value]]:
        first = v.imul(block, ROWS)  # lines behind the last one have weights of 0
        places = [v.imin(v.iadd(first, r), v.isub(rows, 1)) for r in range(ROWS)]
        return first, [v.pointer(v.table64(table, place)) for place in places]

    return v.idiv(v.iadd(rows, ROWS - 1), ROWS), pitch, lines_of, v.pointer(window)


def _added(v: Vec, sums: list[Register]) -> Value:
    one, two, three, four = (total.value for total in sums)
    return v.fadd(v.fadd(one, two), v.fadd(three, four))


def _close_lanes(v: Vec, total: Value, window: Value) -> Value:
    """The bits of lanes that are next to whole numbers, by the bounds of a `window_table`."""
    near = v.pointer(window)
    close = _are_close(v, total, *(v.broadcast(near, i) for i in range(3)))
    return v.b.zext(v.b.bitcast(close, ir.IntType(v.lanes)), WORD)


def _are_close(v: Vec, value: Value, low: Value, high: Value, certain: Value) -> Value:
    """Lanes whose rest lies below `low` or above `high`, of magnitudes beyond `certain`."""
    unary = ir.FunctionType(v.type, [v.type])
    whole_of, size_of = (function_of(v.b, unary, f"llvm.{name}.{v.suffix}") for name in ("trunc", "fabs"))
    left = v.b.call(size_of, [v.fsub(value, v.b.call(whole_of, [value]))])
    close = v.b.or_(v.b.fcmp_ordered("<", left, low), v.b.fcmp_ordered(">", left, high))
    return v.b.and_(close, v.b.fcmp_ordered(">", v.b.call(size_of, [value]), certain))
