"""Instructions on vectors of integers, and on those of 16-bit floating point that travel as integers.

`Integers` is `Vec` over integers of 1, 2, 4 or 8 bytes: loads, stores, masks, shuffles and registers are the
same. Products of short integers are summed in words of 32 bits: four of 8 bits, or two of 16 bits, beside
each other in memory. Which instructions a processor has, `code_generation.has` tells.
"""

from __future__ import annotations

from typing import Any

from convalgos.core.machine import vector_bytes
from convalgos.cpu.vectors.instructions import Vec, function_of, ir

__all__ = ["Integers", "bytes_of", "rounded_halves", "shorts_of", "widened_halves", "words_of"]

ROUNDING, ROUNDING_BITS = 12582912.0, 0x4B400000  # 1.5 * 2**23: float32 of this size are whole numbers
QUIET = 0x40  # the bit of a bfloat16 that makes a NaN a quiet one
# Of `llvm.x86`, by bytes of a vector
VNNI = {64: "avx512.{}.512", 32: "avx512.{}.256", 16: "avx512.{}.128"}
PAIRS = {64: "avx512.pmaddw.d.512", 32: "avx2.pmadd.wd", 16: "sse2.pmadd.wd"}
HIGH = {64: "avx512.pmul.hr.sw.512", 32: "avx2.pmul.hr.sw"}
BRAIN = {64: "avx512bf16.{}.512", 32: "avx512bf16.{}.256"}


class Integers(Vec):
    """Writes instructions on vectors of `lanes` integers of `size` bytes."""

    def __init__(self, builder: Any, lanes: int, size: int):
        super().__init__(builder, lanes, size)
        self.element = ir.IntType(8 * size)
        self.type = ir.VectorType(self.element, lanes)
        self.suffix = f"v{lanes}i{8 * size}"

    def const(self, value: float) -> Any:
        return ir.Constant(self.type, [int(value)] * self.lanes)

    def spread(self, integer: Any) -> Any:
        """The low bits of an integer of 64 bits in all lanes."""
        return self._spread(self.b.trunc(integer, self.element) if self.size < 8 else integer, self.type)

    def mask(self, count: Any) -> Any:
        """Lanes below count."""
        if self.lanes < 16:
            return super().mask(count)
        inside = self.imax(self.imin(count, self.lanes), 0)
        below = self.isub(self.b.shl(self.integer(1), self.b.and_(inside, self.integer(63))), 1)
        whole = self.b.icmp_signed(">=", inside, self.integer(64))
        return self.lanes_of(self.b.select(whole, self.integer(-1), below))

    def lanes_of(self, bits: Any) -> Any:
        bits = self.b.trunc(bits, ir.IntType(self.lanes)) if self.lanes < 64 else bits
        return self.b.bitcast(bits, self.bits)

    # arithmetic, which wraps around

    def add(self, a: Any, b: Any) -> Any:
        return self.b.add(a, b)

    def sub(self, a: Any, b: Any) -> Any:
        return self.b.sub(a, b)

    def mul(self, a: Any, b: Any) -> Any:
        return self.b.mul(a, b)

    def smaller(self, a: Any, b: Any) -> Any:
        """The smaller of two signed integers."""
        return self.b.select(self.b.icmp_signed("<", a, b), a, b)

    def larger(self, a: Any, b: Any) -> Any:
        """The larger of two signed integers."""
        return self.b.select(self.b.icmp_signed(">", a, b), a, b)

    def largest(self, x: Any) -> Any:
        """The largest of all lanes, which are at least 0, as an integer of 64 bits."""
        return self._reduced("umax", x)

    def total(self, x: Any) -> Any:
        """The sum of all lanes, whose bits are the low ones of an integer of 64 bits."""
        return self._reduced("add", x)

    def _reduced(self, name: str, x: Any) -> Any:
        kind = ir.FunctionType(self.element, [self.type])
        reduce = function_of(self.b, kind, f"llvm.vector.reduce.{name}.{self.suffix}")
        return self.b.zext(self.b.call(reduce, [x]), ir.IntType(64))

    def rounded_product(self, a: Any, b: Any) -> Any:
        """a * b / 2^15, rounded to the nearest, ties up, of signed 16-bit integers."""
        name = HIGH.get(self.lanes * self.size)
        if vector_bytes() >= 32 and name:
            kind = ir.FunctionType(self.type, [self.type] * 2)
            return self.b.call(function_of(self.b, kind, f"llvm.x86.{name}"), [a, b])
        product = self.b.mul(self.resized(a, 4), self.resized(b, 4))
        high = self.b.ashr(self.b.add(product, _words(self.lanes, 1 << 14)), _words(self.lanes, 15))
        return self.b.trunc(high, self.type)

    def bit_and(self, a: Any, b: Any) -> Any:
        return self.b.and_(a, b)

    def bit_or(self, a: Any, b: Any) -> Any:
        return self.b.or_(a, b)

    def bit_xor(self, a: Any, b: Any) -> Any:
        return self.b.xor(a, b)

    def left(self, x: Any, bits: int) -> Any:
        return self.b.shl(x, self.const(bits))

    def right(self, x: Any, bits: int, signed: bool = True) -> Any:
        return (self.b.ashr if signed else self.b.lshr)(x, self.const(bits))

    # of other sizes and kinds

    def resized(self, x: Any, size: int, signed: bool = True) -> Any:
        """The same numbers in `size` bytes each: widened, or their low bits."""
        to = ir.VectorType(ir.IntType(8 * size), self.lanes)
        if size == self.size:
            return x
        if size < self.size:
            return self.b.trunc(x, to)
        return (self.b.sext if signed else self.b.zext)(x, to)

    def viewed(self, x: Any, of: Vec) -> Any:
        """The same bits as vectors of another kind."""
        return self.b.bitcast(x, of.type)

    def floats(self, words: Any) -> Any:
        """float32 of integers of 32 bits, rounded to the nearest."""
        return self.b.sitofp(words, ir.VectorType(ir.FloatType(), self.lanes))

    def rounded(self, floats: Any) -> Any:
        """Integers of 32 bits nearest to float32 of at most 2**22 in size, ties to even."""
        spread = ir.Constant(floats.type, [ROUNDING] * self.lanes)
        return self.sub(self.b.bitcast(self.b.fadd(floats, spread), self.type), self.const(ROUNDING_BITS))

    def nearest(self, floats: Any) -> Any:
        """Integers of 32 bits nearest to float32 that they can hold, ties to even."""
        kind = ir.FunctionType(self.type, [floats.type])
        name = f"llvm.lrint.{self.suffix}.v{self.lanes}f32"
        return self.b.call(function_of(self.b, kind, name), [floats])

    # sums of products in words of 32 bits

    def dot4(self, total: Any, unsigned: Any, signed: Any) -> Any:
        """total + the four products of bytes in each word, those of `unsigned` with those of `signed`.

        All are vectors of words. The processor has "avx512vnni", or "avxvnni" for vectors of 32 bytes.
        """
        return self._dot("vpdpbusd", total, unsigned, signed)

    def dot2(self, total: Any, a: Any, b: Any, vnni: bool) -> Any:
        """total + the two products of signed 16-bit numbers in each word. All are vectors of words.

        With `vnni` in one instruction, which the processor has as for `dot4`.
        """
        if vnni:
            return self._dot("vpdpwssd", total, a, b)
        return self.add(total, self.pair_products(a, b))

    def pair_products(self, a: Any, b: Any) -> Any:
        """The sum of the two products of signed 16-bit numbers in each word."""
        bytes_ = self.lanes * self.size
        if vector_bytes() < 32 or bytes_ not in PAIRS:  # any processor
            low = [self.right(self.left(x, 16), 16) for x in (a, b)]
            return self.add(self.mul(*low), self.mul(self.right(a, 16), self.right(b, 16)))
        shorts = ir.VectorType(ir.IntType(16), 2 * self.lanes)
        kind = ir.FunctionType(self.type, [shorts, shorts])
        halves = [self.b.bitcast(x, shorts) for x in (a, b)]
        return self.b.call(function_of(self.b, kind, f"llvm.x86.{PAIRS[bytes_]}"), halves)

    def brain_dot2(self, total: Any, a: Any, b: Any) -> Any:
        """total (float32) + the two products of bfloat16 in each word of a and b.

        The processor has "avx512bf16". It rounds after each product, to even; denormal numbers are zero.
        """
        kind = ir.FunctionType(total.type, [total.type, self.type, self.type])
        name = BRAIN[self.lanes * self.size].format("dpbf16ps")
        return self.b.call(function_of(self.b, kind, f"llvm.x86.{name}"), [total, a, b])

    def _dot(self, name: str, total: Any, a: Any, b: Any) -> Any:
        kind = ir.FunctionType(self.type, [self.type] * 3)
        name = VNNI[self.lanes * self.size].format(name)
        return self.b.call(function_of(self.b, kind, f"llvm.x86.{name}"), [total, a, b])

    # bfloat16, as integers of 16 bits

    def brain_floats(self, shorts: Any) -> Any:
        """float32 of bfloat16. self: of the 16-bit integers."""
        words = self.b.shl(self.resized(shorts, 4, False), _words(self.lanes, 16))
        return self.b.bitcast(words, ir.VectorType(ir.FloatType(), self.lanes))

    def brain_of(self, floats: Any) -> Any:
        """bfloat16 nearest to float32, ties to even; a NaN stays one. self: of the 16-bit integers."""
        n = self.lanes
        words = ir.VectorType(ir.IntType(32), n)
        bits = self.b.bitcast(floats, words)
        high = self.b.lshr(bits, _words(n, 16))
        odd = self.b.and_(high, _words(n, 1))
        nearest = self.b.lshr(self.b.add(self.b.add(bits, _words(n, 0x7FFF)), odd), _words(n, 16))
        nan = self.b.fcmp_unordered("uno", floats, floats)
        return self.b.trunc(self.b.select(nan, self.b.or_(high, _words(n, QUIET)), nearest), self.type)

    def native_brain_of(self, floats: Any) -> Any:
        """`brain_of` in one instruction, which the processor has with "avx512bf16"; denormals become 0.

        That of two vectors: a Xeon (Granite Rapids) takes seven cycles for the one of a single vector.
        """
        both = self._native_brains(floats, floats)
        return self.shuffle(both, both, range(self.lanes))

    def native_brain_pairs(self, low: Any, high: Any) -> Any:
        """Words of two bfloat16: `native_brain_of` of `low` in the low bits, of `high` in the high ones.

        self: of the words.
        """
        both = self._native_brains(low, high)
        order = [i + source for i in range(self.lanes) for source in (0, self.lanes)]
        return self.b.bitcast(self.shuffle(both, both, order), self.type)

    def _native_brains(self, low: Any, high: Any) -> Any:
        """bfloat16 of two vectors, one behind the other."""
        kind = ir.FunctionType(ir.VectorType(ir.IntType(16), 2 * self.lanes), [low.type, low.type])
        name = BRAIN[4 * self.lanes].format("cvtne2ps2bf16")
        return self.b.call(function_of(self.b, kind, f"llvm.x86.{name}"), [high, low])


def words_of(v: Vec) -> Integers:
    """Integers of 32 bits, as many as a vector has lanes."""
    return Integers(v.b, v.lanes, 4)


def shorts_of(v: Vec) -> Integers:
    """Integers of 16 bits, as many as a vector has lanes."""
    return Integers(v.b, v.lanes, 2)


def bytes_of(v: Vec) -> Integers:
    """Integers of 8 bits, as many as a vector has lanes."""
    return Integers(v.b, v.lanes, 1)


def _words(lanes: int, value: int) -> Any:
    return ir.Constant(ir.VectorType(ir.IntType(32), lanes), [value] * lanes)


def widened_halves(v: Vec, brain: int, halves: Any) -> Any:
    """float32 of bfloat16, or of float16, which come as 16-bit integers."""
    if brain:
        return shorts_of(v).brain_floats(halves)
    return v.b.fpext(v.b.bitcast(halves, ir.VectorType(ir.HalfType(), v.lanes)), v.type)


def rounded_halves(v: Vec, brain: int, floats: Any) -> Any:
    """The other way, to the nearest, ties to even."""
    if brain:
        return shorts_of(v).brain_of(floats)
    return v.b.bitcast(v.b.fptrunc(floats, ir.VectorType(ir.HalfType(), v.lanes)), shorts_of(v).type)
