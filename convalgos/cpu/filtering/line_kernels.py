"""Kernels on lines: conversions between the types of memory and of sums, and weighted sums of lines.

y[i] = sum_t w[t] * line_t[i], the lines given by a table of addresses: the taps of a filter across lines are
lines of the array, those of a filter along a line are the line itself, shifted.

Integers are cut off, towards zero, so that only the whole part of a sum matters: sums of fused products have
it, but where they lie next to a whole number. Those `settle_line` sums again, in order.

Sums in order are those of SciPy, to the last bit: float64 products and sums, each rounded, the middle tap
first and then the others by pairs where the filter is symmetric, else the last tap first.

Source of that order: `NI_Correlate1D` in scipy/ndimage/src/ni_filters.c.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.blocks import loop_blocks
from convalgos.cpu.vectors.instructions import ir
from convalgos.cpu.vectors.integers import Integers
from convalgos.cpu.vectors.simd import Value, Vec, function_of, vector_bytes

KINDS = (  # of elements in memory, by the names of their dtypes
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64",
)  # fmt: skip
FLOAT, DOUBLE = KINDS.index("float32"), KINDS.index("float64")
FUSED, IN_ORDER, SYMMETRIC, ANTISYMMETRIC = range(4)  # sums: of fused products, or in SciPy's order
ROWS = 4  # sums at a time of neighbouring lines, which share most of their taps
WIDE, NARROW = 8, 4  # vectors at a time, in the middle and at the end of a line
FRACTION = 15  # digits behind the point of float32 from 256 to 511
WHOLE_ONE = 0x43808000  # the bits of 257
HIGHEST = 2.0**63  # of what is converted to integers of 64 bits


def _integers(v: Vec, KIND: int) -> tuple[Integers, bool]:
    """(vectors of a kind of integers, whether they are signed)."""
    dtype = np.dtype(KINDS[KIND])
    return Integers(v.b, v.lanes, dtype.itemsize), dtype.kind == "i"


def loaded(v: Vec, KIND: int, source: Value, at: Value, mask: Value = None) -> Value:
    """Numbers of a kind in memory as v computes with them."""

    def read(held: Vec) -> Value:
        return held.load(source, at) if mask is None else held.load_masked(source, at, mask)

    if KIND in (FLOAT, DOUBLE):
        held = Vec(v.b, v.lanes, 4 if KIND == FLOAT else 8)
        value = read(held)
        return value if held.size == v.size else v.b.fpext(value, v.type)
    integers, signed = _integers(v, KIND)
    value = read(integers)
    if integers.size < 4:
        value, signed = integers.resized(value, 4, signed), True
    return (v.b.sitofp if signed else v.b.uitofp)(value, v.type)


def stored(v: Vec, KIND: int, value: Value, target: Value, at: Value, mask: Value = None) -> None:
    """Numbers of v as a kind in memory; integers are what SciPy's casts make of float64 on this processor.

    Towards zero, and then the low bits of 32 or 64.
    """
    if KIND in (FLOAT, DOUBLE):
        held = Vec(v.b, v.lanes, 4 if KIND == FLOAT else 8)
        value = v.b.fptrunc(value, held.type) if held.size < v.size else value
    else:
        held, signed = _integers(v, KIND)
        narrow = held.size < 4 or (held.size == 4 and signed)
        word = ir.VectorType(ir.IntType(32 if narrow else 64), v.lanes)
        if held.size == 8 and not signed:
            high = v.b.fcmp_ordered(">=", value, v.const(HIGHEST))
            value = v.b.select(high, v.fsub(value, v.const(HIGHEST)), value)
            value = v.b.fptosi(value, word)
            upper = v.b.xor(value, ir.Constant(word, [-(2**63)] * v.lanes))
            value = v.b.select(high, upper, value)
        else:
            value = v.b.fptosi(value, word)
            value = value if held.type == word else v.b.trunc(value, held.type)
    if mask is None:
        held.store(value, target, at)
    else:
        held.store_masked(value, target, at, mask)


@jit.specialise
def load_line(KIND: int, SIZE: int, LANES: int) -> jit.Kernel:
    """A line of a kind in memory, as float32 or float64."""

    def load_line(source: int, target: int, count: int) -> None:
        convert_line(SIZE, LANES, KIND, 1, source, target, count)

    return load_line


@jit.specialise
def store_line(KIND: int, SIZE: int, LANES: int) -> jit.Kernel:
    """A line of float32 or float64, as a kind in memory."""

    def store_line(source: int, target: int, count: int) -> None:
        convert_line(SIZE, LANES, KIND, 0, source, target, count)

    return store_line


@simd.emitter
def convert_line(v: Vec, KIND: int, LOAD: int, source: Value, target: Value, count: Value) -> None:
    """target[i] = source[i], which LOAD takes from a kind in memory, and else brings to it."""
    one, other = v.pointer(source), v.pointer(target)

    def move(at: Value, rest: Value = None) -> None:
        mask = None if rest is None else v.mask(rest)
        if LOAD:
            value = loaded(v, KIND, one, at, mask)
            if mask is None:
                v.store(value, other, at)
            else:
                v.store_masked(value, other, at, mask)
        else:
            value = v.load(one, at) if mask is None else v.load_masked(one, at, mask)
            stored(v, KIND, value, other, at, mask)

    loop_blocks(v, count, v.lanes, move)


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
    source, out, w, near = (v.pointer(address) for address in (sums, y, weights, bounds))
    whole_of = function_of(v.b, ir.FunctionType(v.type, [v.type]), f"llvm.trunc.{v.suffix}")
    size_of = function_of(v.b, ir.FunctionType(v.type, [v.type]), f"llvm.fabs.{v.suffix}")
    wide = Vec(v.b, vector_bytes() // 8, 8)
    low, high, exact = (v.broadcast(near, i) for i in range(3))

    def again(at: Value, rest: Value) -> None:
        """The vector at `at`, of which `rest` elements are left, in order."""
        for part in range(0, v.lanes, wide.lanes):
            mask, place = wide.mask(wide.isub(rest, part)), wide.iadd(at, part)

            def line(t: Value, mask: Value = mask, place: Value = place) -> list[Value]:
                row = wide.pointer(wide.table64(table, t))
                return [loaded(wide, FLOAT if v.size == 4 else DOUBLE, row, place, mask)]

            (total,) = _sums(wide, ORDER, line, w, taps, 1)
            stored(wide, KIND, total, out, place, mask)

    def settle(at: Value, rest: Value) -> None:
        mask = v.mask(rest)
        value = v.load_masked(source, at, mask)
        left = v.b.call(size_of, [v.fsub(value, v.b.call(whole_of, [value]))])
        close = v.b.or_(v.b.fcmp_ordered("<", left, low), v.b.fcmp_ordered(">", left, high))
        close = v.b.and_(close, v.b.fcmp_ordered(">", v.b.call(size_of, [value]), exact))
        stored(v, KIND, value, out, at, mask)
        lanes = v.b.bitcast(v.b.and_(close, mask), ir.IntType(v.lanes))
        with v.b.if_then(v.b.icmp_unsigned("!=", lanes, ir.Constant(lanes.type, 0)), likely=False):
            again(at, rest)

    with v.loop(v.idiv(v.iadd(count, v.lanes - 1), v.lanes)) as i:
        at = v.imul(i, v.lanes)
        settle(at, v.isub(count, at))


@jit.specialise
def sum_lines(ORDER: int, SIZE: int, LANES: int) -> jit.Kernel:
    """The sums of `many` neighbouring lines, 1 or `ROWS`: y[r][i] = sum_t w[t] * lines[r + t][i]."""

    def sum_lines(table: int, weights: int, taps: int, count: int, y: int, y_step: int, many: int) -> None:
        if ORDER == FUSED and many == ROWS:
            weighted_rows(SIZE, LANES, table, weights, taps, count, y, y_step)
        else:
            for r in range(many):
                weighted_line(SIZE, LANES, ORDER, table + 8 * r, weights, taps, count, y + r * y_step)

    return sum_lines


@simd.emitter
def weighted_line(
    v: Vec, ORDER: int, table: Value, weights: Value, taps: Value, count: Value, y: Value
) -> None:  # fmt: skip
    """y[i] = sum_t w[t] * lines[t][i]."""
    w, out = v.pointer(weights), v.pointer(y)

    def block(at: Value, vectors: int, rest: Value = None) -> None:
        masks = [None if rest is None else v.mask(v.isub(rest, m * v.lanes)) for m in range(vectors)]
        places = [v.iadd(at, m * v.lanes) for m in range(vectors)]

        def line(t: Value) -> list[Value]:
            source = v.pointer(v.table64(table, t))
            return [
                v.load(source, place) if mask is None else v.load_masked(source, place, mask)
                for place, mask in zip(places, masks, strict=True)
            ]

        sums = _sums(v, ORDER, line, w, taps, vectors)
        for total, place, mask in zip(sums, places, masks, strict=True):
            if mask is None:
                v.store(total, out, place)
            else:
                v.store_masked(total, out, place, mask)

    _in_blocks(v, count, block)


def _sums(
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
    """block(first element, vectors), and behind the whole ones block(first, vectors, elements left)."""
    step, small = WIDE * v.lanes, NARROW * v.lanes
    whole = v.idiv(count, step)
    with v.loop(whole) as i:
        block(v.imul(i, step), WIDE)
    done = v.imul(whole, step)
    rest = v.isub(count, done)
    with v.loop(v.idiv(v.iadd(rest, small - 1), small)) as i:
        at = v.imul(i, small)
        block(v.iadd(done, at), NARROW, v.isub(rest, at))


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
        totals = _shared_sums(v, table, w, taps, places, masks, ROWS, v.zero())
        for out, row in zip(outs, totals, strict=True):
            for total, place, mask in zip(row, places, masks, strict=True):
                if mask is None:
                    v.store(total.value, out, place)
                else:
                    v.store_masked(total.value, out, place, mask)

    loop_blocks(v, count, NARROW * v.lanes, block)


def _shared_sums(
    v: Vec, table: Value, w: Value, taps: Value, places: list[Value], masks: list[Value], many: int,
    begin: Value,
) -> list[list[Value]]:  # fmt: skip
    """(many, places) registers: the sums of neighbouring lines at some places, by fused products."""
    totals = [[v.register(begin) for _ in places] for _ in range(many)]

    def meet(j: Value, rows: range) -> None:
        source = v.pointer(v.table64(table, j))
        values = [
            v.load(source, place) if mask is None else v.load_masked(source, place, mask)
            for place, mask in zip(places, masks, strict=True)
        ]
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


@simd.emitter
def whole_rows(
    v: Vec, KIND: int, ORDER: int, MANY: int, table: Value, weights: Value, taps: Value, count: Value,
    y: Value, y_step: Value, exact: Value, bounds: Value,
) -> None:  # fmt: skip
    """y[r][i] = the whole part of sum_t w[t] * lines[r + t][i], as bytes or as numbers of v.

    Sums begin at 256 and their error, so that all have their whole part in the same digits, and those whose
    digits of the fraction are 0 may be less than whole. bounds: (256 + error, these digits as int32).
    """
    n, wide = Integers(v.b, v.lanes, 4), Vec(v.b, vector_bytes() // 8, 8)
    w, w_exact, near = v.pointer(weights), wide.pointer(exact), v.pointer(bounds)
    begin, digits = v.broadcast(near), n.broadcast(n.pointer(bounds), 1)
    least, whole = n.const(WHOLE_ONE), n.const(-(1 << FRACTION))
    outs = [v.iadd(y, v.imul(y_step, r)) for r in range(MANY)]

    def again(r: int, at: Value, rest: Value) -> None:
        """Some vectors of a line, in order."""
        out = v.pointer(outs[r])
        with v.loop(NARROW * (v.lanes // wide.lanes)) as part:
            place = v.imul(part, wide.lanes)
            mask, place = wide.mask(wide.isub(rest, place)), wide.iadd(at, place)

            def line(t: Value) -> list[Value]:
                row = wide.pointer(wide.table64(table, wide.iadd(t, r)))
                return [loaded(wide, FLOAT, row, place, mask)]

            (total,) = _sums(wide, ORDER, line, w_exact, taps, 1)
            if KIND == FLOAT:
                trunc = ir.FunctionType(wide.type, [wide.type])
                total = v.b.call(function_of(v.b, trunc, f"llvm.trunc.{wide.suffix}"), [total])
            stored(wide, KIND, total, out, place, mask)

    def block(at: Value, rest: Value = None) -> None:
        masks = [None if rest is None else v.mask(v.isub(rest, m * v.lanes)) for m in range(NARROW)]
        places = [v.iadd(at, m * v.lanes) for m in range(NARROW)]
        totals = _shared_sums(v, table, w, taps, places, masks, MANY, begin)
        for r, row in enumerate(totals):
            close = None
            for total, place, mask in zip(row, places, masks, strict=True):
                words = v.b.bitcast(total.value, n.type)
                few = v.b.icmp_signed("==", v.b.and_(words, digits), n.zero())
                few = v.b.and_(few, v.b.icmp_signed(">=", words, least))
                close = few if close is None else v.b.or_(close, few)
                if KIND == FLOAT:
                    held: Vec | Integers = v
                    value = v.fsub(v.b.bitcast(v.b.and_(words, whole), v.type), v.const(256.0))
                else:
                    held = Integers(v.b, v.lanes, 1)
                    value = v.b.trunc(n.right(words, FRACTION, signed=False), held.type)
                if mask is None:
                    held.store(value, v.pointer(outs[r]), place)
                else:
                    held.store_masked(value, v.pointer(outs[r]), place, mask)
            lanes = v.b.bitcast(close, ir.IntType(v.lanes))
            with v.b.if_then(v.b.icmp_unsigned("!=", lanes, ir.Constant(lanes.type, 0)), likely=False):
                again(r, at, v.integer(NARROW * v.lanes) if rest is None else rest)

    loop_blocks(v, count, NARROW * v.lanes, block)
