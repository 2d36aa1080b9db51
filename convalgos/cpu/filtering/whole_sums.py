"""Sums whose whole part is wanted: integers, which are cut off towards zero.

Sums of fused products have the whole part of those in order, but where they lie next to a whole number. Those
are summed again, in order.
"""

from __future__ import annotations

from collections.abc import Callable

from convalgos.cpu.filtering.line_elements import DOUBLE, FLOAT, loaded, stored
from convalgos.cpu.filtering.line_sums import NARROW, ROWS, shared_sums, tap_sums
from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.blocks import loop_blocks
from convalgos.cpu.vectors.instructions import ir
from convalgos.cpu.vectors.integers import Integers
from convalgos.cpu.vectors.lanes import store_lanes
from convalgos.cpu.vectors.simd import Value, Vec, function_of, vector_bytes

FRACTION = 15  # digits behind the point of float32 from 256 to 511
WHOLE_ONE = 0x43808000  # the bits of 257


@jit.specialise
def whole_sums(KIND: int, ORDER: int, SIZE: int, LANES: int) -> jit.Kernel:
    """What `sum_lines` and `settle_line` make of lines whose sums lie from 0 to 255: bytes, or floats."""

    def whole_sums(
        table: int, weights: int, taps: int, count: int, y: int, y_step: int, many: int, exact: int,
        bounds: int,
    ) -> None:  # fmt: skip
        if many == ROWS:
            whole_rows(SIZE, LANES, KIND, ORDER, ROWS, table, weights, taps, count, y, y_step, exact, bounds)
        else:
            for r in range(many):
                at, to = table + 8 * r, y + r * y_step
                whole_rows(SIZE, LANES, KIND, ORDER, 1, at, weights, taps, count, to, 0, exact, bounds)

    return whole_sums


@jit.specialise
def settled_sums(KIND: int, ORDER: int, SIZE: int, LANES: int) -> jit.Kernel:
    """`whole_sums` of any sums, with the bounds of `cut_off`: integers of a kind, or such numbers."""

    def settled_sums(
        table: int, weights: int, taps: int, count: int, y: int, y_step: int, many: int, exact: int,
        bounds: int,
    ) -> None:  # fmt: skip
        if many == ROWS:
            settled_rows(
                SIZE, LANES, KIND, ORDER, ROWS, table, weights, taps, count, y, y_step, exact, bounds
            )
        else:
            for r in range(many):
                at, to = table + 8 * r, y + r * y_step
                settled_rows(SIZE, LANES, KIND, ORDER, 1, at, weights, taps, count, to, 0, exact, bounds)

    return settled_sums


@simd.emitter
def settled_rows(
    v: Vec, KIND: int, ORDER: int, MANY: int, table: Value, weights: Value, taps: Value, count: Value,
    y: Value, y_step: Value, exact: Value, bounds: Value,
) -> None:  # fmt: skip
    """y[r][i] = the whole part of sum_t w[t] * lines[r + t][i], as `cut_off` finds it."""
    near, places_of = v.pointer(bounds), (table, y, y_step)
    low, high, certain = (v.broadcast(near, i) for i in range(3))
    size_of = function_of(v.b, ir.FunctionType(v.type, [v.type]), f"llvm.fabs.{v.suffix}")

    def look(total: Value) -> tuple[Value, Value]:
        whole = _whole_part(v, total)
        left = v.b.call(size_of, [v.fsub(total, whole)])
        few = v.b.or_(v.b.fcmp_ordered("<", left, low), v.b.fcmp_ordered(">", left, high))
        return v.b.and_(few, v.b.fcmp_ordered(">", v.b.call(size_of, [total]), certain)), whole

    def store(value: Value, out: Value, place: Value, mask: Value) -> None:
        stored(v, KIND, value, out, place, mask)

    _settle_blocks(v, KIND, ORDER, MANY, places_of, weights, taps, count, exact, v.zero(), look, store)


@simd.emitter
def whole_rows(
    v: Vec, KIND: int, ORDER: int, MANY: int, table: Value, weights: Value, taps: Value, count: Value,
    y: Value, y_step: Value, exact: Value, bounds: Value,
) -> None:  # fmt: skip
    """y[r][i] = the whole part of sum_t w[t] * lines[r + t][i], as bytes or as numbers of v.

    Sums begin at 256 and their error, so that all have their whole part in the same digits, and those whose
    digits of the fraction are 0 may be less than whole. bounds: (256 + error, these digits as int32).
    """
    n, near, places_of = Integers(v.b, v.lanes, 4), v.pointer(bounds), (table, y, y_step)
    begin, digits = v.broadcast(near), n.broadcast(n.pointer(bounds), 1)
    least, whole = n.const(WHOLE_ONE), n.const(-(1 << FRACTION))
    held: Vec | Integers = v if KIND == FLOAT else Integers(v.b, v.lanes, 1)

    def look(total: Value) -> tuple[Value, Value]:
        words = v.b.bitcast(total, n.type)
        few = v.b.icmp_signed("==", v.b.and_(words, digits), n.zero())
        few = v.b.and_(few, v.b.icmp_signed(">=", words, least))
        if KIND == FLOAT:
            return few, v.fsub(v.b.bitcast(v.b.and_(words, whole), v.type), v.const(256.0))
        return few, v.b.trunc(n.right(words, FRACTION, signed=False), held.type)

    def store(value: Value, out: Value, place: Value, mask: Value) -> None:
        store_lanes(held, value, out, place, mask)

    _settle_blocks(v, KIND, ORDER, MANY, places_of, weights, taps, count, exact, begin, look, store)


def _settle_blocks(
    v: Vec, KIND: int, ORDER: int, MANY: int, places_of: tuple[Value, Value, Value], weights: Value,
    taps: Value, count: Value, exact: Value, begin: Value,
    look: Callable[[Value], tuple[Value, Value]], store: Callable[[Value, Value, Value, Value], None],
) -> None:  # fmt: skip
    """Some vectors of MANY lines at a time: sums, and those in order of which `look` tells (few, whole part).

    places_of: table, y and its step; store: called with (value, line, place, mask or None).
    """
    table, y, y_step = places_of
    wide = Vec(v.b, vector_bytes() // 8, 8)
    w, w_exact = v.pointer(weights), wide.pointer(exact)
    outs = [v.iadd(y, v.imul(y_step, r)) for r in range(MANY)]

    def again(r: int, at: Value, rest: Value) -> None:
        """Some vectors of a line, in order."""
        out = v.pointer(outs[r])
        with v.loop(NARROW * (v.lanes // wide.lanes)) as part:
            place = v.imul(part, wide.lanes)
            mask, place = wide.mask(wide.isub(rest, place)), wide.iadd(at, place)

            def line(t: Value) -> list[Value]:
                row = wide.pointer(wide.table64(table, wide.iadd(t, r)))
                return [loaded(wide, FLOAT if v.size == 4 else DOUBLE, row, place, mask)]

            (total,) = tap_sums(wide, ORDER, line, w_exact, taps, 1)
            stored(wide, KIND, _whole_part(wide, total), out, place, mask)

    def block(at: Value, rest: Value = None) -> None:
        masks = [None if rest is None else v.mask(v.isub(rest, m * v.lanes)) for m in range(NARROW)]
        places = [v.iadd(at, m * v.lanes) for m in range(NARROW)]
        totals = shared_sums(v, table, w, taps, places, masks, MANY, begin)
        for r, row in enumerate(totals):
            close = None
            for total, place, mask in zip(row, places, masks, strict=True):
                few, value = look(total.value)
                close = few if close is None else v.b.or_(close, few)
                store(value, v.pointer(outs[r]), place, mask)
            lanes = v.b.bitcast(close, ir.IntType(v.lanes))
            with v.b.if_then(v.b.icmp_unsigned("!=", lanes, ir.Constant(lanes.type, 0)), likely=False):
                again(r, at, v.integer(NARROW * v.lanes) if rest is None else rest)

    loop_blocks(v, count, NARROW * v.lanes, block)


def _whole_part(v: Vec, value: Value) -> Value:
    trunc = ir.FunctionType(v.type, [v.type])
    return v.b.call(function_of(v.b, trunc, f"llvm.trunc.{v.suffix}"), [value])
