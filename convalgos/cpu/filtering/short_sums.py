"""Weighted sums of lines of 16-bit integers, in integers.

Sums with whole weights wrap around, as SciPy's casts do. All others are summed in fixed point: a weight is
high / 2**15 + low / 2**(15 + bits), both of 16 bits, and two products of neighbouring taps go into a word by
one instruction. What is cut off is known, so that sums near whole numbers are told apart; these are summed
again, as float64 and in SciPy's order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from convalgos.cpu.filtering.flat_windows import WORD, flat_lines, variable_of
from convalgos.cpu.filtering.line_elements import KINDS
from convalgos.cpu.filtering.line_sums import (
    ANTISYMMETRIC,
    IN_ORDER,
    ROWS,
    SYMMETRIC,
    shared_sums,
)
from convalgos.cpu.filtering.ordered_sums import MANY, OrderedSums, all_bits, any_of, bits_of
from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.instructions import ir
from convalgos.cpu.vectors.integers import Integers
from convalgos.cpu.vectors.lanes import load_lanes, store_lanes
from convalgos.cpu.vectors.packing import shorts_of_words
from convalgos.cpu.vectors.simd import Value, Vec, copy_bytes, function_of

FRACTION = 15  # binary digits behind the point of a sum
PAIRS = 8  # elements of a line whose sums lie in four lanes of a vector of each half
SIGN = -(1 << 15)  # turns numbers of 16 bits without a sign into such with one, by `bit_xor`
SHORTS = KINDS.index("uint16"), KINDS.index("int16")  # by whether they have a sign
NAMES = "high", "low", "bits", "digits", "order"
BOUNDS = np.dtype([(name, np.int32) for name in NAMES])


@jit.specialise
def copy_line(SIZE: int) -> jit.Kernel:
    """A line of integers of so many bytes, as it is."""

    def copy_line(source: int, target: int, count: int) -> None:
        copy_bytes(target, source, SIZE * count)

    return copy_line


@jit.specialise
def wrapped_sums(LANES: int) -> jit.Kernel:
    """y[r][i] = sum_t w[t] * lines[r + t][i] of `many` neighbouring lines, modulo 2**16."""

    def wrapped_sums(
        table: int, weights: int, taps: int, count: int, y: int, y_step: int, many: int, exact: int,
        bounds: int,
    ) -> None:  # fmt: skip
        if many == ROWS:
            wrapped_rows(4, LANES, ROWS, table, weights, taps, count, y, y_step)
        else:
            for r in range(many):
                wrapped_rows(4, LANES, 1, table + 8 * r, weights, taps, count, y + r * y_step, 0)

    return wrapped_sums


@jit.specialise
def fixed_sums(SIGNED: int, LANES: int, VNNI: int) -> jit.Kernel:
    """y[r][i] = sum_t w[t] * lines[r + t][i] of `many` neighbouring lines, cut off towards zero.

    weights: (pairs of taps, 2) words, of the high and of the low parts. exact: (taps,) float64. bounds: see
    `BOUNDS`: what sums of high and of low parts begin with, how many bits the low ones are below the high
    ones, those digits of a sum that are all 0 near a whole number, and SciPy's order of sums.
    """

    def fixed_sums(
        table: int, weights: int, taps: int, count: int, y: int, y_step: int, many: int, exact: int,
        bounds: int,
    ) -> None:  # fmt: skip
        if many == ROWS:
            for r in range(2):
                at, to = table + 8 * r, y + r * y_step
                fixed_rows(
                    4, LANES, SIGNED, VNNI, 2, at, weights, taps, taps + 2, count, to, 2 * y_step, exact,
                    bounds,
                )  # fmt: skip
        else:
            for r in range(many):
                at, to = table + 8 * r, y + r * y_step
                fixed_rows(
                    4, LANES, SIGNED, VNNI, 1, at, weights, taps, taps, count, to, 0, exact, bounds
                )  # fmt: skip

    return fixed_sums


class _Wrapped(Integers):
    """Whose products and sums are integers."""

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        return self.add(self.mul(a, b), c)


@simd.emitter
def wrapped_rows(
    v: Vec, MANY: int, table: Value, weights: Value, taps: Value, count: Value, y: Value, y_step: Value
) -> None:  # fmt: skip
    """See `wrapped_sums`."""
    s = _Wrapped(v.b, 2 * v.lanes, 2)
    w = s.pointer(weights)

    def block(at: Value, vectors: int, mask: Value = None) -> None:
        places = [s.iadd(at, m * s.lanes) for m in range(vectors)]
        masks = [mask] * vectors
        totals = shared_sums(s, table, w, taps, places, masks, MANY, s.zero())
        for r, row in enumerate(totals):
            out = s.pointer(s.iadd(y, s.imul(y_step, r)))
            for total, place in zip(row, places, strict=True):
                store_lanes(s, total.value, out, place, mask)

    loop_vectors(s, count, 4 if MANY == 1 or v.lanes >= 16 else 2, block)


@simd.emitter
def fixed_rows(
    v: Vec, SIGNED: int, VNNI: int, MANY: int, table: Value, weights: Value, taps: Value, lines: Value,
    count: Value, y: Value, y_step: Value, exact: Value, bounds: Value,
) -> None:  # fmt: skip
    """See `fixed_sums`; MANY is 1, or 2 for every second line. lines: of the table."""
    n, s = Integers(v.b, v.lanes, 4), Integers(v.b, 2 * v.lanes, 2)
    high, low, bits, digits = (n.broadcast(n.pointer(bounds), i) for i in range(4))
    w, pairs, last = n.pointer(weights), n.idiv(n.iadd(taps, 1), 2), n.isub(lines, 1)
    again = _SettledShorts(v, SIGNED, table, exact, taps, y, y_step, bounds)

    def block(at: Value, vectors: int, mask: Value = None) -> None:
        places = [s.iadd(at, m * s.lanes) for m in range(vectors)]
        totals = [
            [[[n.register(begin) for begin in (high, low)] for _ in range(2)] for _ in places]
            for _ in range(MANY)
        ]  # (rows, places, halves of a vector, parts of a weight)

        def meet(line: Value, users: Sequence[tuple[int, Value]]) -> None:
            """A line and the next one, with pairs of taps of some rows."""
            sources = [s.pointer(n.table64(table, each)) for each in (line, n.imin(n.iadd(line, 1), last))]
            for m, place in enumerate(places):
                values = [load_lanes(s, source, place, mask) for source in sources]
                values = values if SIGNED else [s.bit_xor(x, s.const(SIGN)) for x in values]
                for half in range(2):
                    both = n.b.bitcast(s.shuffle(values[0], values[1], _halves(s.lanes, half)), n.type)
                    for r, pair in users:
                        for part, total in enumerate(totals[r][m][half]):
                            scale = n.broadcast(w, n.iadd(n.imul(pair, 2), part))
                            total.set(n.dot2(total.value, both, scale, bool(VNNI)))

        meet(n.integer(0), [(0, n.integer(0))])
        with n.loop(n.isub(pairs, 1)) as i:
            pair = n.iadd(i, 1)
            users = [(0, pair), (1, i)][:MANY]
            meet(n.imul(pair, 2), users)
        if MANY > 1:
            meet(n.imul(pairs, 2), [(1, n.isub(pairs, 1))])
        for r, row in enumerate(totals):
            out, masks = s.pointer(n.iadd(y, n.imul(y_step, r))), []
            for halves, place in zip(row, places, strict=True):
                words = [n.add(h.value, n.b.ashr(low.value, bits)) for h, low in halves]
                few, value = _whole_parts(n, SIGNED, words, digits)
                store_lanes(s, value, out, place, mask)
                masks.append(few)
            with n.b.if_then(any_of(n, masks), likely=False):
                left = n.imin(n.isub(count, at), vectors * s.lanes)
                again.settle(n.integer(r), at, left, all_bits(n, masks))

    wide = 2 if MANY > 1 else 4
    loop_vectors(s, count, wide if v.lanes >= 16 else wide // 2, block)


def _halves(lanes: int, half: int) -> list[int]:
    """Shorts of two vectors in turn, from the lower or upper half of each 16 bytes."""
    return [g + 4 * half + i + by for g in range(0, lanes, 8) for i in range(4) for by in (0, lanes)]


def _whole_parts(n: Integers, SIGNED: int, words: list[Value], digits: Value) -> tuple[Value, Value]:
    """(which words may have another whole part, those of all of them) of both halves of a vector.

    What is near zero is 0 whichever side it lies on.
    """
    few, wholes = ir.Constant(n.bits, None), []
    for word in words:
        near = n.b.icmp_signed("==", n.bit_and(word, digits), n.zero())
        if SIGNED:
            some = n.b.icmp_signed("!=", n.bit_and(word, n.const(-(1 << FRACTION))), n.zero())
            wholes.append(n.add(n.right(word, FRACTION), n.right(word, 31, signed=False)))
        else:
            some = n.b.icmp_signed(">=", word, n.const((SIGN + 1) << FRACTION))
            wholes.append(n.right(word, FRACTION))
        few = n.b.or_(few, n.b.and_(near, some))
    s = Integers(n.b, 2 * n.lanes, 2)
    packed = n.b.bitcast(shorts_of_words(n, *wholes), s.type)
    return few, packed if SIGNED else s.bit_xor(packed, s.const(SIGN))


class _SettledShorts:
    """Writes sums as float64, in SciPy's order, of every second line; arguments are those of `fixed_rows`."""

    def __init__(
        self, v: Vec, SIGNED: int, table: Value, exact: Value, taps: Value, y: Value, y_step: Value,
        bounds: Value,
    ):  # fmt: skip
        order, self._row = Integers(v.b, 1, 4), variable_of(v, v.integer(0))
        self._order = v.b.load(order.at(order.pointer(bounds), NAMES.index("order")), typ=order.element)
        self._v, self._kind, self._table, self._y = v, SHORTS[SIGNED], table, (y, y_step)
        self._sums = OrderedSums(v, self._kind, self._line, exact, taps)
        self._flat = flat_lines(v, 2, self._line, taps)
        self._answer = variable_of(v, v.integer(0))  # of flat windows

    def settle(self, r: Value, at: Value, count: Value, close: Value) -> None:
        """Some elements of a line, of which pairs are in the bits of a word, or flat windows."""
        v = self._v
        v.b.store(r, self._row)
        many = v.b.icmp_unsigned(">=", bits_of(v, "ctpop", close), v.integer(MANY))
        before = v.b.block
        with v.b.if_then(many, likely=False):
            is_flat = self._settle_flat(at, count)
            looked = v.b.block
        flat = v.b.phi(is_flat.type)
        flat.add_incoming(ir.Constant(is_flat.type, 0), before)
        flat.add_incoming(is_flat, looked)
        with v.b.if_then(v.b.not_(flat), likely=True):
            self._one_by_one(at, count, close)

    def _settle_flat(self, at: Value, count: Value) -> Value:
        """Whether windows are flat, and settled."""
        v = self._v
        self._flat.forget_place()  # which is that of another line
        flat, other = self._flat.find(at, count)
        with v.b.if_then(flat):
            with v.b.if_then(other, likely=False):
                self._in_order(at, count)
            self._fill(at, count, other)
        return flat

    def _one_by_one(self, at: Value, count: Value, close: Value) -> None:
        """The elements of each `PAIRS` of which some are close: most have none."""
        v, lanes, bits_each = self._v, self._sums.v.lanes, PAIRS // 2
        some = close
        for bit in range(1, bits_each):
            some = v.b.or_(some, v.b.lshr(close, v.integer(bit)))
        firsts = v.b.and_(some, ir.Constant(WORD, sum(1 << bit for bit in range(0, 64, bits_each))))
        rest = variable_of(v, firsts)
        with v.loop(bits_of(v, "ctpop", firsts)):
            bits = v.b.load(rest, typ=WORD)
            v.b.store(v.b.and_(bits, v.isub(bits, 1)), rest)
            first = v.imul(bits_of(v, "cttz", bits, ir.Constant(ir.IntType(1), 0)), 2)
            with v.loop(PAIRS // lanes) as part:
                place = v.iadd(first, v.imul(part, lanes))
                with v.unless_negative(v.isub(v.isub(count, place), 1)):
                    self._in_order(v.iadd(at, place), v.isub(count, place))

    def _line(self, t: Value) -> Value:
        v = self._v
        return v.table64(self._table, v.iadd(t, v.imul(v.b.load(self._row, typ=WORD), 2)))

    @property
    def _out(self) -> Value:
        v, (y, step) = self._v, self._y
        return v.pointer(v.iadd(y, v.imul(step, v.b.load(self._row, typ=WORD))))

    def _in_order(self, at: Value, count: Value) -> None:
        v, wide = self._v.b, self._sums.v
        trunc = function_of(v, ir.FunctionType(wide.type, [wide.type]), f"llvm.trunc.{wide.suffix}")
        for each in (IN_ORDER, SYMMETRIC, ANTISYMMETRIC):
            with v.if_then(v.icmp_signed("==", self._order, ir.Constant(self._order.type, each))):
                totals = [v.call(trunc, [total]) for total in self._sums.of(each, at, count, 1)]
                self._sums.store(self._kind, totals, self._out, at, count)

    def _fill(self, at: Value, count: Value, other: Value) -> None:
        """Elements of a line by the first of them, if it is `other` than the last such one."""
        v, s, out = self._v, Integers(self._v.b, 2 * self._v.lanes, 2), self._out
        with v.b.if_then(other):
            v.b.store(v.b.zext(v.b.load(s.at(out, at), typ=s.element), WORD), self._answer)
        value = s.spread(v.b.load(self._answer, typ=WORD))
        with v.loop(v.idiv(v.iadd(count, s.lanes - 1), s.lanes)) as i:
            first = v.imul(i, s.lanes)
            s.store_masked(value, out, v.iadd(at, first), s.mask(v.isub(count, first)))


def loop_vectors(s: Integers, count: Value, most: int, block: Callable[..., None]) -> None:
    """block(first element, vectors, mask or None) of all elements of a line.

    The last vector begins so early that it is whole, and writes some elements again; only shorter lines than
    a vector have a mask.
    """
    many = s.idiv(count, most * s.lanes)
    with s.loop(many) as i:
        block(s.imul(i, most * s.lanes), most)
    done = s.imul(many, most * s.lanes)
    with s.loop(s.idiv(s.isub(count, done), s.lanes)) as i:
        block(s.iadd(done, s.imul(i, s.lanes)), 1)
    rest = s.b.srem(count, s.integer(s.lanes))
    with s.unless_negative(s.isub(rest, 1)), s.choose(s.isub(count, s.lanes)) as (then, otherwise):
        with then:
            block(s.isub(count, s.lanes), 1)
        with otherwise:
            block(s.integer(0), 1, s.mask(count))
