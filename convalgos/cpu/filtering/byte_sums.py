"""Symmetric filters of three taps whose sum is 1, of bytes: b + floor(w d), with d = a - 2 b + c.

In SciPy's order of sums, of float64, these are the integers wherever d is not 0: the product of |d| and w in
fixed point has the same whole part (`byte_passes.smoothing` tries all). Where d is 0 the sum is b, or what
float64 makes of it, which is less for some b: these are bits of a table.
"""

from __future__ import annotations

import numpy as np

from convalgos.cpu.filtering.line_sums import ROWS
from convalgos.cpu.filtering.short_sums import loop_vectors
from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.instructions import ir
from convalgos.cpu.vectors.integers import Integers
from convalgos.cpu.vectors.lanes import load_lanes, store_lanes
from convalgos.cpu.vectors.simd import Value, Vec, function_of

SHIFT, FRACTION = 7, 24  # (|d| << SHIFT) * weight has so many digits behind the point
CHOOSE = {64: "avx512.pshuf.b.512", 32: "avx2.pshuf.b", 16: "ssse3.pshuf.b.128"}  # by bytes of a vector
HIGH_HALF = {64: "avx512.pmulhu.w.512", 32: "avx2.pmulhu.w", 16: "sse2.pmulhu.w"}  # of products
SMOOTHING = np.dtype([("weight", np.int32), ("falls", np.int32)])  # falls: whether any bit is set


@jit.specialise
def smooth_bytes(LANES: int) -> jit.Kernel:
    """y[r][i] of lines r, r + 1 and r + 2 of the table at i, of `many` lines.

    weights: `SMOOTHING`. exact: (32,) bytes, of which bit b tells that b, b, b gives b - 1.
    """

    def smooth_bytes(
        table: int, weights: int, taps: int, count: int, y: int, y_step: int, many: int, exact: int,
        bounds: int,
    ) -> None:  # fmt: skip
        if many == ROWS:
            smooth_rows(2, LANES, ROWS, table, weights, count, y, y_step, exact)
        else:
            for r in range(many):
                smooth_rows(2, LANES, 1, table + 8 * r, weights, count, y + r * y_step, 0, exact)

    return smooth_bytes


@simd.emitter
def smooth_rows(
    v: Vec, MANY: int, table: Value, weights: Value, count: Value, y: Value, y_step: Value, exact: Value
) -> None:  # fmt: skip
    """See `smooth_bytes`."""
    s, held = Integers(v.b, v.lanes, 2), Integers(v.b, v.lanes, 1)
    kind = ir.FunctionType(s.type, [s.type, s.type])
    high = function_of(v.b, kind, f"llvm.x86.{HIGH_HALF[2 * s.lanes]}")
    lines = [s.pointer(s.table64(table, t)) for t in range(MANY + 2)]
    outs = [s.pointer(s.iadd(y, s.imul(y_step, r))) for r in range(MANY)]
    one = Integers(v.b, 1, 4)
    weight, falls = (v.b.load(one.at(one.pointer(weights), i), typ=one.element) for i in range(2))
    scale = s.spread(v.b.zext(weight, v.integer(0).type))
    some = v.b.icmp_signed("!=", falls, ir.Constant(falls.type, 0))

    def product(size: Value) -> Value:
        """The whole part of |d| times the weight."""
        return s.right(v.b.call(high, [size, scale]), FRACTION - 16, signed=False)

    def smoothed(a: Value, b: Value, c: Value) -> Value:
        d = s.sub(s.add(a, c), s.add(b, b))
        sign = s.right(d, 15)
        size = v.b.shl(s.sub(s.bit_xor(d, sign), sign), s.const(SHIFT))
        found = s.register(s.add(b, s.bit_xor(product(size), sign)))
        level = v.b.icmp_signed("==", d, s.zero())
        bits = v.b.bitcast(level, ir.IntType(s.lanes))
        with v.b.if_then(v.b.and_(some, v.b.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0)))):
            falling = v.b.and_(level, _has_bit(s, b, exact))
            found.set(s.add(found.value, v.b.sext(falling, s.type)))
        return v.b.trunc(found.value, held.type)

    def block(at: Value, vectors: int, mask: Value = None) -> None:
        for place in [s.iadd(at, m * s.lanes) for m in range(vectors)]:
            rows = [v.b.zext(load_lanes(held, line, place, mask), s.type) for line in lines]
            for r, out in enumerate(outs):
                store_lanes(held, smoothed(*rows[r : r + 3]), out, place, mask)

    loop_vectors(s, count, 1 if MANY > 1 else 2, block)


def _has_bit(s: Integers, b: Value, table: Value) -> Value:
    """Whether bits b of a table of 32 bytes are set."""
    n = Integers(s.b, 2 * s.lanes, 1)
    kind = ir.FunctionType(n.type, [n.type, n.type])
    choose = function_of(s.b, kind, f"llvm.x86.{CHOOSE[n.lanes]}")
    quarter = Integers(s.b, 16, 1)
    places = [i % 16 for i in range(n.lanes)]

    def chosen(sixteen: Value, at: Value) -> Value:
        found = s.b.call(choose, [s.shuffle(sixteen, sixteen, places), s.b.bitcast(at, n.type)])
        return s.b.bitcast(found, s.type)

    low, high = (quarter.load(quarter.pointer(table), i) for i in (0, 16))
    at = s.right(b, 3, signed=False)
    is_high = s.b.icmp_unsigned(">=", b, s.const(128))
    byte = s.b.select(is_high, chosen(high, at), chosen(low, at))
    powers = ir.Constant(quarter.type, [1 << i % 8 for i in range(16)])
    bit = s.bit_and(chosen(powers, s.bit_and(b, s.const(7))), s.const(255))
    return s.b.icmp_unsigned("!=", s.bit_and(byte, bit), s.zero())
