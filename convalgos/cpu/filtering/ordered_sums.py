"""Sums of lines as float64, in SciPy's order: of those next to whole numbers.

Each product waits for the sum before it, so that some vectors are summed at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from convalgos.cpu.filtering.line_elements import loaded, stored
from convalgos.cpu.filtering.line_sums import tap_sums
from convalgos.cpu.vectors.instructions import ir
from convalgos.cpu.vectors.lanes import lane_masks
from convalgos.cpu.vectors.simd import Value, Vec, function_of, vector_bytes

AT_ONCE = 4  # vectors
MANY = 4  # sums from which on this is faster than one vector of those that have some; Zen 5


class OrderedSums:
    """Writes the sums in an order of lines of a kind in memory.

    Args:
        line: emits the address of the line of a tap.
        weights: the address of as many float64.
    """

    def __init__(self, v: Vec, KIND: int, line: Callable[[Value], Value], weights: Value, taps: Value):
        self.v = Vec(v.b, vector_bytes() // 8, 8)
        self._kind, self._line = KIND, line
        self._weights, self._taps = self.v.pointer(weights), taps

    def of(self, ORDER: int, place: Value, rest: Value, vectors: int) -> list[Value]:
        """Some vectors from a place on, of which so many elements are left."""
        masks, places = lane_masks(self.v, rest, vectors), self._places(place, vectors)

        def line(t: Value) -> list[Value]:
            source = self.v.pointer(self._line(t))
            return [
                loaded(self.v, self._kind, source, at, mask) for at, mask in zip(places, masks, strict=True)
            ]

        return tap_sums(self.v, ORDER, line, self._weights, self._taps, vectors)

    def store(self, KIND: int, totals: Sequence[Value], out: Value, place: Value, rest: Value) -> None:
        """Write the sums of `of` as a kind."""
        masks, places = lane_masks(self.v, rest, len(totals)), self._places(place, len(totals))
        for total, at, mask in zip(totals, places, masks, strict=True):
            stored(self.v, KIND, total, out, at, mask)

    def where(
        self, block: Value, close_in: Callable[[Value, int], Value],
        settle: Callable[[Value, int], None],
    ) -> None:  # fmt: skip
        """Some vectors of a block of `AT_ONCE`, or all of them where many sums are asked for.

        Args:
            block: its place.
            close_in: emits the bits of sums that are asked for from a place on, of so many elements.
            settle: called as settle(place, vectors).
        """
        v, lanes = self.v, self.v.lanes
        here = close_in(block, AT_ONCE * lanes)
        with v.choose(v.isub(bits_of(v, "ctpop", here), MANY)) as (then, otherwise):
            with then:
                settle(block, AT_ONCE)
            with otherwise, v.b.if_then(v.b.icmp_unsigned("!=", here, v.integer(0))), v.loop(AT_ONCE) as part:
                place = v.iadd(block, v.imul(part, lanes))
                with v.b.if_then(v.b.icmp_unsigned("!=", close_in(place, lanes), v.integer(0))):
                    settle(place, 1)

    def _places(self, place: Value, vectors: int) -> list[Value]:
        return [self.v.iadd(place, m * self.v.lanes) for m in range(vectors)]


def bits_of(v: Vec, name: str, *given: Value) -> Value:
    """LLVM's functions of the bits of a word."""
    kind = ir.FunctionType(ir.IntType(64), [each.type for each in given])
    return v.b.call(function_of(v.b, kind, f"llvm.{name}.i64"), given)


def any_of(v: Vec, masks: Sequence[Value]) -> Value:
    """Whether any lane is in one of some masks."""
    first, *others = masks
    for mask in others:
        first = v.b.or_(first, mask)
    bits = v.b.bitcast(first, ir.IntType(v.lanes))
    return v.b.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))


def all_bits(v: Vec, masks: Sequence[Value]) -> Value:
    """The lanes of masks behind each other, as the bits of a word."""
    word = v.integer(0)
    for m, mask in enumerate(masks):
        bits = v.b.zext(v.b.bitcast(mask, ir.IntType(v.lanes)), word.type)
        word = v.b.or_(word, v.b.shl(bits, v.integer(m * v.lanes)))
    return word
