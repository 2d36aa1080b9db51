"""Sums whose whole part is wanted: integers, which are cut off towards zero.

Sums of fused products have the whole part of those in order, but where they lie next to a whole number. Those
are summed again, in order.
"""

from __future__ import annotations

from collections.abc import Callable

from convalgos.cpu.filtering.flat_windows import WORD, flat_lines, variable_of
from convalgos.cpu.filtering.line_elements import DOUBLE, FLOAT, stored
from convalgos.cpu.filtering.line_sums import NARROW, ROWS, shared_sums
from convalgos.cpu.filtering.ordered_sums import AT_ONCE, OrderedSums, all_bits, any_of
from convalgos.cpu.filtering.settling import are_close
from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.blocks import loop_blocks
from convalgos.cpu.vectors.instructions import ir
from convalgos.cpu.vectors.integers import Integers
from convalgos.cpu.vectors.lanes import store_lanes
from convalgos.cpu.vectors.simd import Value, Vec, function_of

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
    low, high = (v.broadcast(near, i) for i in range(2))

    def look(total: Value) -> tuple[Value, Value]:
        return are_close(v, total, low, high), _whole_part(v, total)

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
    w = v.pointer(weights)
    outs = [v.iadd(y, v.imul(y_step, r)) for r in range(MANY)]
    flat = flat_lines(v, v.size, lambda t: v.table64(table, t), taps, MANY)
    line = variable_of(v, v.integer(0))  # that is summed in order

    def address(t: Value) -> Value:
        return v.table64(table, v.iadd(t, v.b.load(line, typ=WORD)))

    ordered = OrderedSums(v, FLOAT if v.size == 4 else DOUBLE, address, exact, taps)
    left = simd.allocate(v.b, WORD, MANY)  # of each line, lanes that are summed again

    def finish(totals: list[Value], place: Value, rest: Value) -> None:
        out = v.pointer(v.iadd(y, v.imul(y_step, v.b.load(line, typ=WORD))))
        ordered.store(KIND, [_whole_part(ordered.v, total) for total in totals], out, place, rest)

    def again(at: Value, rest: Value) -> None:
        """Some vectors of all lines."""
        step, width = AT_ONCE * ordered.v.lanes, v.imin(rest, NARROW * v.lanes)
        v.b.store(v.integer(0), line)
        is_flat, total = flat.sum_of(at, width, lambda: ordered.of(ORDER, at, rest, 1)[0])

        def close_in(first: Value, count: int) -> Value:
            lanes = v.b.load(v.b.gep(left, [v.b.load(line, typ=WORD)], source_etype=WORD), typ=WORD)
            return v.b.and_(v.b.lshr(lanes, first), v.integer((1 << count) - 1))

        def in_order(first: Value, vectors: int) -> None:
            place, over = v.iadd(at, first), v.isub(rest, first)
            finish(ordered.of(ORDER, place, over, vectors), place, over)

        with v.loop(MANY) as r, v.loop(NARROW * v.lanes // step) as part:
            v.b.store(r, line)
            begin = v.imul(part, step)
            with v.b.if_else(is_flat) as (then, otherwise):
                with then:
                    finish([total] * AT_ONCE, v.iadd(at, begin), v.isub(rest, begin))
                with otherwise:
                    ordered.where(begin, close_in, in_order)

    def block(at: Value, rest: Value = None) -> None:
        masks = [None if rest is None else v.mask(v.isub(rest, m * v.lanes)) for m in range(NARROW)]
        places = [v.iadd(at, m * v.lanes) for m in range(NARROW)]
        totals = shared_sums(v, table, w, taps, places, masks, MANY, begin)
        close: list[list[Value]] = [[] for _ in totals]  # masks of each line
        for r, row in enumerate(totals):
            for total, place, mask in zip(row, places, masks, strict=True):
                few, value = look(total.value)
                store(value, v.pointer(outs[r]), place, mask)
                close[r].append(few)
        with v.b.if_then(any_of(v, [few for few_of in close for few in few_of]), likely=False):
            for r, few_of in enumerate(close):
                v.b.store(all_bits(v, few_of), v.b.gep(left, [v.integer(r)], source_etype=WORD))
            again(at, v.integer(NARROW * v.lanes) if rest is None else rest)

    loop_blocks(v, count, NARROW * v.lanes, block)


def _whole_part(v: Vec, value: Value) -> Value:
    trunc = ir.FunctionType(v.type, [v.type])
    return v.b.call(function_of(v.b, trunc, f"llvm.trunc.{v.suffix}"), [value])
