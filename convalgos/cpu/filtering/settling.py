"""Lines of sums as integers: those next to whole numbers are summed again, in SciPy's order.

Windows that are products of lines are, too. Such a product differs from weights that were rounded to float32
by more than float64 rounds. So where one leaves a sum next to a whole number, its window is summed as float64
in any order, with vectors along its rows, and only if that is still too near in order, each product behind
the one before. Windows over elements that are all the same are summed in order once.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from convalgos.cpu.filtering.flat_windows import ALWAYS, WORD, FlatWindows, flat_lines, variable_of
from convalgos.cpu.filtering.line_elements import DOUBLE, FLOAT, KINDS, loaded, stored
from convalgos.cpu.filtering.line_sums import IN_ORDER
from convalgos.cpu.filtering.ordered_sums import AT_ONCE, MANY, OrderedSums, bits_of
from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.instructions import ir
from convalgos.cpu.vectors.simd import Register, Value, Vec, function_of

ROWS = 4  # of a window that are summed at a time
BOUNDS = 8  # elements before the weights of a window, of which two are bounds
CERTAIN = 0.5  # magnitude up to which the whole part is 0, on whichever side of 0 a sum lies


def window_table(w: np.ndarray, lanes: int, error: float) -> np.ndarray:
    """What `settle_window` reads of a window (rows, columns), filled up by zeros to whole vectors.

    error: of sums in any order.
    """
    rows, columns = w.shape
    table = np.zeros((-(-rows // ROWS) * ROWS, -(-columns // lanes) * lanes))
    table[:rows, :columns] = w
    return np.concatenate([[error, 1 - error], np.zeros(BOUNDS - 2), table.ravel()])


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

    bounds: (error of the sums, 1 - that).
    """

    def address(t: Value) -> Value:
        return v.table64(table, t)

    flat = flat_lines(v, v.size, address, taps)
    settle_vectors(v, KIND, ORDER, address, flat, weights, taps, count, sums, y, bounds)


def settle_vectors(
    v: Vec, KIND: int, ORDER: int, address: Callable[[Value], Value], flat: FlatWindows, weights: Value,
    taps: Value, count: Value, sums: Value, y: Value, bounds: Value,
    told_apart: Callable[[Vec, Value, Value, Value], Value] | None = None,
) -> None:  # fmt: skip
    """See `cut_off`.

    Args:
        address: emits where the line of a tap lies.
        flat: of windows of these lines.
        told_apart: emits what settles lanes, the bits of a word, of the float64 vector at a place, of which
            there is what a mask tells, by sums in any order, and gives those that it did not.
    """
    source, out, near = (v.pointer(address) for address in (sums, y, bounds))
    ordered = OrderedSums(v, FLOAT if v.size == 4 else DOUBLE, address, weights, taps)
    step = AT_ONCE * ordered.v.lanes if told_apart else v.lanes  # lines may be short
    again = _SettledVectors(v, KIND, ORDER, ordered, flat, out, step // ordered.v.lanes, told_apart)
    low, high = (v.broadcast(near, i) for i in range(2))

    def close_in(place: Value, rest: Value) -> Value:
        """The lanes of a vector, which is stored, that are next to whole numbers."""
        mask = v.mask(rest)
        value = v.load_masked(source, place, mask)
        lanes = v.b.and_(are_close(v, value, low, high), mask)
        stored(v, KIND, value, out, place, mask)
        return v.b.zext(v.b.bitcast(lanes, ir.IntType(v.lanes)), WORD)

    with v.loop(v.idiv(v.iadd(count, step - 1), step)) as block:
        at = v.imul(block, step)
        rest, close = v.isub(count, at), v.integer(0)
        for first in range(0, step, v.lanes):
            bits = close_in(v.iadd(at, first), v.isub(rest, first))
            close = v.b.or_(close, v.b.shl(bits, v.integer(first)))
        with v.b.if_then(v.b.icmp_unsigned("!=", close, v.integer(0)), likely=False):
            again.settle(at, rest, close)


class _SettledVectors:
    """Writes what settles vectors of which some lanes are close; arguments are those of `settle_vectors`."""

    def __init__(
        self, v: Vec, KIND: int, ORDER: int, ordered: OrderedSums, flat: FlatWindows, out: Value,
        vectors: int, told_apart: Callable[[Vec, Value, Value, Value], Value] | None,
    ):  # fmt: skip
        self._v, self._kind, self._order, self._out, self._vectors = v, KIND, ORDER, out, vectors
        self._ordered, self._flat, self._told_apart = ordered, flat, told_apart

    def settle(self, at: Value, rest: Value, close: Value) -> None:
        """Those at a place, of which so many elements are left; close: the bits of lanes."""
        with self._v.b.if_then(self._v.b.not_(self._as_one(at, rest, close, self._vectors))):
            self._one_by_one(at, rest, close)

    def _as_one(self, at: Value, rest: Value, close: Value, vectors: int) -> Value:
        """Whether all windows are flat, and settled."""
        v, ordered = self._v, self._ordered
        done = variable_of(v, v.integer(0))
        with v.unless_negative(v.isub(bits_of(v, "ctpop", close), MANY)):
            width = v.imin(rest, vectors * ordered.v.lanes)
            is_flat, total = self._flat.sum_of(at, width, lambda: ordered.of(self._order, at, rest, 1)[0])
            with v.b.if_then(is_flat):
                ordered.store(self._kind, [total] * vectors, self._out, at, rest)
                v.b.store(v.integer(1), done)
        return v.b.icmp_unsigned("!=", v.b.load(done, typ=WORD), v.integer(0))

    def _one_by_one(self, at: Value, rest: Value, close: Value) -> None:
        v, wide = self._v, self._ordered.v
        with v.loop(self._vectors) as part:
            first = v.imul(part, wide.lanes)
            here = v.b.and_(v.b.lshr(close, first), v.integer((1 << wide.lanes) - 1))
            with v.b.if_then(v.b.icmp_unsigned("!=", here, v.integer(0))):
                place, over = v.iadd(at, first), v.isub(rest, first)
                if self._told_apart is None:
                    self._in_order(place, over)
                else:
                    with v.b.if_then(v.b.not_(self._as_one(place, over, here, 1))):
                        left = self._told_apart(wide, place, wide.mask(over), here)
                        with v.b.if_then(v.b.icmp_unsigned("!=", left, v.integer(0)), likely=False):
                            self._in_order(place, over)

    def _in_order(self, at: Value, rest: Value) -> None:
        self._ordered.store(self._kind, self._ordered.of(self._order, at, rest, 1), self._out, at, rest)


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

    def window_of() -> tuple[Value, Value, Value]:
        # the last tap but the first, which stands behind all others, lies at the end of a row
        extent = v.iadd(v.idiv(v.table64(places, v.isub(v.imul(taps, 2), 2)), v.size), 1)
        return v.idiv(taps, columns), extent, ALWAYS

    flat = FlatWindows(v, v.size, lambda row: v.table64(table, row), window_of)
    told_apart = _Windows(v, KIND, table, window, taps, columns, y).told_apart
    settle_vectors(v, KIND, IN_ORDER, address, flat, weights, taps, count, sums, y, bounds, told_apart)


class _Windows:
    """Writes what settles windows of a line by sums in any order; arguments are those of `settle_window`."""

    def __init__(self, v: Vec, KIND: int, table: Value, window: Value, taps: Value, columns: Value, y: Value):
        self._v, self._kind, self._out = v, KIND, v.pointer(y)
        self._summed = FLOAT if v.size == 4 else DOUBLE, table, window, taps, columns

    def told_apart(self, wide: Vec, place: Value, mask: Value, lanes: Value) -> Value:
        """See `settle_vectors`."""
        v, (_, _, window, *_) = self._v, self._summed
        left = variable_of(v, lanes)
        with v.b.if_then(v.b.icmp_unsigned("!=", window, v.integer(0)), likely=True):
            many = v.isub(bits_of(v, "ctpop", lanes), MANY)
            with v.choose(many) as (then, otherwise):
                with then:
                    self._together(wide, place, mask, lanes, left)
                with otherwise:
                    self._one_by_one(wide, place, lanes, left)
        return v.b.load(left, typ=WORD)

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
        rest = variable_of(v, lanes)
        v.b.store(v.integer(0), left)
        with v.loop(bits_of(v, "ctpop", lanes)):
            bits = v.b.load(rest, typ=WORD)
            lane = bits_of(v, "cttz", bits, ir.Constant(ir.IntType(1), 0))
            v.b.store(v.b.and_(bits, v.isub(bits, 1)), rest)
            at = v.iadd(place, lane)
            total = _window_sum(wide, *self._summed, at)
            first = v.b.extract_element(total, ir.Constant(ir.IntType(32), 0))
            whole = v.b.fptosi(first, WORD)  # no sum is larger than 32 bits hold
            v.b.store(v.b.trunc(whole, element), v.b.gep(self._out, [at], source_etype=element))
            close = v.b.and_(v.b.shl(_close_lanes(wide, total, window), lane), v.b.shl(v.integer(1), lane))
            v.b.store(v.b.or_(v.b.load(left, typ=WORD), close), left)


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
    close = are_close(v, total, *(v.broadcast(near, i) for i in range(2)))
    return v.b.zext(v.b.bitcast(close, ir.IntType(v.lanes)), WORD)


def are_close(v: Vec, value: Value, low: Value, high: Value) -> Value:
    """Lanes whose rest lies below `low` or above `high`, of magnitudes beyond `CERTAIN`."""
    unary = ir.FunctionType(v.type, [v.type])
    whole_of, size_of = (function_of(v.b, unary, f"llvm.{name}.{v.suffix}") for name in ("trunc", "fabs"))
    left = v.b.call(size_of, [v.fsub(value, v.b.call(whole_of, [value]))])
    close = v.b.or_(v.b.fcmp_ordered("<", left, low), v.b.fcmp_ordered(">", left, high))
    return v.b.and_(close, v.b.fcmp_ordered(">", v.b.call(size_of, [value]), v.const(CERTAIN)))
