"""A float32 as three digits of eight bits, in words of four channels as matrix tiles take them.

x = (d1 2^16 + d2 2^8 + d3) unit, rounded, with digits from -128 to 127; the unit is a power of two, one for
all channels of a pixel or all weights of a filter, so large that the largest of them has just three digits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from convalgos.cpu.gemm.split_terms import TERMS, pack_entry
from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors.integers import words_of
from convalgos.cpu.vectors.simd import Value, Vec, carray, emitter, function_of, ir, pointer

SUMS = 4  # of an output, by the weight of products (see `digit_tiles.GROUPS`)
CHANNELS = 64  # of an entry: what a matrix tile has in a row
VECTORS = 4  # of an entry; a word has a channel of each
NAN, INFINITE = 0x7FC00000, 0x7F800000  # bits of a float32
MOST = float(np.finfo(np.float32).max)
LEAST = 23  # exponents, as a float32 has them, of the largest number for which units are told apart
SPREAD = 2100  # of x times that of filters, from which on the products of the last group are summed
HEAD = 128  # bytes before the units of a block: sums of squares, and the spread
MOST_SPREAD = 1e6  # of either that is told apart
LEAST_SQUARES = 1e-30  # a sum of those that float32 holds without losing many
LIFTED = 0x10102  # bits that numbers with more than three digits in their unit lack to the next exponent
BALANCE = 0x8080  # makes digits from -128 to 127 of those from 0 to 255


@emitter
def find_units(v: Vec, largest: Value, count: Value) -> None:
    """The units of so many pixels, where the bits of their largest sizes lie, int32."""
    word, place = words_of(v), v.pointer(largest)
    with v.loop(v.idiv(v.iadd(count, v.lanes - 1), v.lanes)) as i:
        at = v.imul(i, v.lanes)
        mask = word.mask(v.isub(count, at))
        word.store_masked(_unit_bits(word, word.load_masked(place, at, mask)), place, at, mask)


def _unit_bits(word: Any, largest: Any) -> Any:
    """The bits of the units of numbers, from those of the largest of their sizes: NaN, if one is not finite.

    Three digits hold 127 (2^16 + 2^8 + 1) units: larger numbers have that of the next exponent.
    """
    exponent = word.right(word.add(largest, word.const(LIFTED)), 23, False)
    bits = word.left(word.sub(word.larger(exponent, word.const(LEAST)), word.const(22)), 23)
    infinite = word.b.icmp_signed(">=", largest, word.const(INFINITE))
    return word.b.select(infinite, word.const(NAN), bits)


@jit.helper
def scales_at(place: int) -> Any:
    """Where scales of channels lie (`channel_scales`), or 0, as the line before them tells."""
    return place + 64 if carray(pointer(place), 1, np.int64)[0] else 0


@emitter
def largest_of_pixels(
    v: Vec, x: Value, pixel: Value, count: Value, vectors: Value, next_vector: Value, last: Value,
    scales: Value, to: Value, further: Value, squares: Value,
) -> None:  # fmt: skip
    """The largest size of the channels of each of `count` pixels, `pixel` elements apart, as bits, int32.

    vectors: of channels, next_vector elements apart, of which the last one has `last`; scales: of channels,
    by which they are multiplied, or 0; further: whether to begin with those of other channels, which lie
    there; squares: a vector to which those of all numbers are added.
    """
    total = v.register(v.load(v.pointer(squares)))
    word = words_of(v)
    source, target, sizes = v.pointer(x), v.pointer(to), word.const(0x7FFFFFFF)
    mask, before, factors = v.mask(last), v.isub(vectors, 1), v.pointer(scales)

    def find(scaled: Callable[[Any, Value], Any]) -> None:
        with v.loop(count) as i:
            at = v.imul(i, pixel)
            part = v.load_masked(source, v.iadd(at, v.imul(before, next_vector)), mask)
            part = scaled(part, before)
            total.set(v.fma(part, part, total.value))
            largest = word.register(word.bit_and(v.b.bitcast(part, word.type), sizes))
            with v.loop(before) as j:
                given = scaled(v.load(source, v.iadd(at, v.imul(j, next_vector))), j)
                total.set(v.fma(given, given, total.value))
                bits = v.b.bitcast(given, word.type)
                largest.set(word.larger(largest.value, word.bit_and(bits, sizes)))
            with v.unless_negative(v.isub(further, 1)):
                largest.set(word.larger(largest.value, word.broadcast(target, i)))
            found = v.b.trunc(word.largest(largest.value), word.element)
            v.b.store(found, v.at(target, i))

    with v.choose(v.isub(scales, 1)) as (unlike, alike):
        with unlike:
            find(lambda given, j: v.fmul(given, v.load(factors, v.imul(j, v.lanes))))
        with alike:
            find(lambda given, _: given)
    v.store(total.value, v.pointer(squares))


@emitter
def find_spread(v: Vec, units: Value, count: Value, squares: Value, channels: Value, to: Value) -> None:
    """(2^23 unit)^2 over the mean square of numbers, as a whole number: how much finer these should be split.

    The most that is told apart, where float32 does not hold squares of numbers that are there.

    units: float32 of `count` pixels; squares: a vector of sums of squares; to: an int64.
    """
    total, word = v.register(v.zero()), words_of(v)
    largest = word.register(word.const(0))
    with v.loop(v.idiv(v.iadd(count, v.lanes - 1), v.lanes)) as i:
        at = v.imul(i, v.lanes)
        unit = v.load_masked(v.pointer(units), at, v.mask(v.isub(count, at)))
        largest.set(word.larger(largest.value, v.b.bitcast(unit, word.type)))
        part = v.fmul(unit, v.const(2.0**23))
        total.set(v.fma(part, part, total.value))
    above, below = _lane_sum(v, total.value), _lane_sum(v, v.load(v.pointer(squares)))
    number = v.b.sitofp(channels, v.element)
    most, none = ir.Constant(v.element, MOST_SPREAD), ir.Constant(v.element, 0.0)
    found = v.b.fdiv(v.b.fmul(above, number), below)
    found = v.b.select(v.b.fcmp_ordered(">", found, most), most, found)
    known = v.b.fcmp_ordered(">", below, ir.Constant(v.element, LEAST_SQUARES))
    known = v.b.and_(known, v.b.fcmp_ordered("<=", above, ir.Constant(v.element, MOST)))
    known = v.b.and_(known, v.b.fcmp_ordered("<=", below, ir.Constant(v.element, MOST)))
    bits = word.largest(largest.value)  # of units: more than the least one, and not NaN
    there = v.b.icmp_signed(">", bits, v.integer(1 << 23))
    there = v.b.and_(there, v.b.icmp_signed("<", bits, v.integer(NAN)))
    found = v.b.select(known, found, v.b.select(there, most, none))
    v.b.store(v.b.fptosi(found, ir.IntType(64)), v.pointer(to))


@emitter
def scale_filters(
    v: Vec, w: Value, step: Value, phases: Value, channels: Value, numbers: Value, of_channels: Value,
    times: Value, unit: Value, spread: Value,
) -> None:  # fmt: skip
    """The units of a vector of filters, float32, whose weights (phase, channel, number) lie `step` elements
    apart; and, as a whole number, so many times the mean of their spreads, which are those of `find_spread`.

    of_channels: (channels, lanes) bits of sizes, int32, which become those of the largest finite weights
    where these are larger.
    """
    word, source, target = words_of(v), v.pointer(w), v.pointer(of_channels)
    sizes, infinite = word.const(0x7FFFFFFF), word.const(INFINITE)
    largest, squares = word.register(word.const(0)), v.register(v.zero())
    with v.loop(phases) as phase, v.loop(channels) as c:
        first = v.imul(v.iadd(v.imul(phase, channels), c), numbers)
        own = word.register(word.load(target, v.imul(c, v.lanes)))
        with v.loop(numbers) as i:
            given = v.load(source, v.imul(v.iadd(first, i), step))
            squares.set(v.fma(given, given, squares.value))
            bits = word.bit_and(v.b.bitcast(given, word.type), sizes)
            largest.set(word.larger(largest.value, bits))
            finite = v.b.icmp_signed("<", bits, infinite)
            own.set(word.larger(own.value, v.b.select(finite, bits, word.const(0))))
        word.store(own.value, target, v.imul(c, v.lanes))
    bits = _unit_bits(word, largest.value)
    word.store(bits, v.pointer(unit))

    zero, one, most = v.zero(), v.const(1.0), v.const(MOST_SPREAD)
    room = v.fmul(v.b.bitcast(bits, v.type), v.const(2.0**23))
    count = word.floats(word.spread(v.imul(v.imul(phases, channels), numbers)))
    found = v.fmul(v.b.fdiv(v.fmul(room, count), squares.value), room)
    found = v.b.select(v.b.fcmp_ordered("<", found, most), found, most)
    known = v.b.fcmp_ordered(">", squares.value, v.const(LEAST_SQUARES))
    known = v.b.and_(known, v.b.fcmp_ordered("<=", squares.value, v.const(MOST)))
    there = v.b.icmp_signed(">", bits, word.const(1 << 23))  # the least unit
    there = v.b.and_(there, v.b.icmp_signed("<", bits, word.const(NAN)))
    found = v.b.select(known, found, v.b.select(there, most, zero))
    counted = v.b.select(v.b.fcmp_ordered(">", found, zero), one, zero)
    total, there = _lane_sum(v, found), _lane_sum(v, counted)
    least = ir.Constant(v.element, 1.0)
    there = v.b.select(v.b.fcmp_ordered(">", there, least), there, least)
    mean = v.b.fptosi(v.b.fdiv(total, there), ir.IntType(64))
    v.b.store(v.imul(mean, times), v.pointer(spread))


def _lane_sum(v: Vec, values: Any) -> Any:
    """The sum of the lanes of a vector."""
    kind = ir.FunctionType(v.element, [v.element, values.type])
    add = function_of(v.b, kind, f"llvm.vector.reduce.fadd.{v.suffix}")
    return v.b.call(add, [ir.Constant(v.element, 0.0), values])


def digit_words(v: Vec, vectors: list[Any], scales: list[Any]) -> list[Any]:
    """The digits of four vectors times their scales, the first ones first: each four bytes to a word."""
    word = words_of(v)
    balance, low = word.const(BALANCE), (0xFF, 0xFF00, 0xFF0000)
    bytes_ = []  # of a word: the third digit, the second, the first
    for value, scale in zip(vectors, scales, strict=True):
        whole = word.nearest(v.fmul(value, scale))
        bytes_.append(word.bit_xor(word.add(whole, balance), balance))
    found = []
    for digit in range(TERMS):
        taken = TERMS - 1 - digit  # the byte of a word that is the digit
        total = word.left(bytes_[3], 24 - 8 * taken)
        for place in range(3):
            shift = 8 * (place - taken)
            own = word.left(bytes_[place], shift) if shift > 0 else word.right(bytes_[place], -shift, False)
            mask = word.const(low[place])
            above = word.bit_and(total, word.const(~low[place]))
            total = word.bit_or(above, word.bit_and(own, mask))
        found.append(total)
    return found


@emitter
def write_digits(
    v: Vec, x: Value, pixel: Value, count: Value, next_vector: Value, channels: Value, scales: Value,
    next_scales: Value, units: Value, next_unit: Value, to: Value, term: Value, to_pixel: Value,
) -> None:  # fmt: skip
    """The digits of four vectors of channels of `count` pixels, `pixel` elements apart.

    channels: that there are of the vectors, which lie next_vector elements apart; scales: of the channels of
    whole vectors, or 0; units: float32; next_scales, next_unit: elements from those of a pixel to the next;
    term, to_pixel: bytes between digits, and words of pixels.
    """
    word, source = words_of(v), v.pointer(x)
    masks = [v.mask(v.isub(channels, i * v.lanes)) for i in range(VECTORS)]
    inverse = word.const(254 << 23)

    def write(load: Callable[[Value, int], Any], scaled: bool) -> None:
        with v.loop(count) as i:
            unit = v.b.bitcast(v.broadcast(v.pointer(units), v.imul(i, next_unit)), word.type)
            scale = v.b.bitcast(word.sub(inverse, unit), v.type)  # 1 / unit
            at = v.imul(i, pixel)
            loaded = [load(v.iadd(at, v.imul(next_vector, j)), j) for j in range(VECTORS)]
            own = [scale] * VECTORS
            if scaled:
                factors = [v.iadd(v.imul(i, next_scales), j * v.lanes) for j in range(VECTORS)]
                own = [v.fmul(scale, v.load(v.pointer(scales), factor)) for factor in factors]
            for t, digits in enumerate(digit_words(v, loaded, own)):
                word.store(digits, v.pointer(v.iadd(v.iadd(to, v.imul(i, to_pixel)), v.imul(term, t))))

    with v.choose(v.isub(scales, 1)) as choices:
        for choice, scaled in zip(choices, (True, False), strict=True):
            with choice, v.choose(v.isub(channels, CHANNELS)) as (whole, part):
                with whole:
                    write(lambda place, _: v.load(source, place), scaled)
                with part:
                    write(lambda place, j: v.load_masked(source, place, masks[j]), scaled)


@emitter
def pack_digits(v: Vec, w: Value, step: Value, channels: Value, units: Value, to: Value, term: Value) -> None:
    """The digits of CHANNELS channels, `step` elements apart, of a vector of filters; so many are there.

    units: float32 of each filter.
    """
    word, source = words_of(v), v.pointer(w)
    unit = v.b.bitcast(v.load(v.pointer(units)), word.type)
    scale = v.b.bitcast(word.sub(word.const(254 << 23), unit), v.type)
    with v.loop(CHANNELS // VECTORS) as i:
        loaded = []
        for first in range(0, CHANNELS, CHANNELS // VECTORS):
            at = v.iadd(i, first)
            there = v.mask(v.imul(v.isub(channels, at), v.lanes))
            loaded.append(v.load_masked(source, v.imul(at, step), there))
        for t, digits in enumerate(digit_words(v, loaded, [scale] * VECTORS)):
            word.store(digits, v.pointer(v.iadd(v.iadd(to, v.imul(i, 64)), v.imul(term, t))))


@jit.helper
def pack_filter_terms(DIGITS: int, w: int, step: int, channels: int, units: int, to: int, term: int) -> None:
    """The terms of a vector of filters, for an entry: with DIGITS `pack_digits`, else `pack_entry`."""
    if DIGITS:
        pack_digits(4, 16, w, step, channels, units, to, term)
    else:
        pack_entry(4, 16, w, step, channels, to, term)


@emitter
def combine_digits(
    v: Vec, VECTORS: int, sums: Value, group: Value, count: Value, units: Value, filter_units: Value,
    to: Value, to_row: Value, least: Value,
) -> None:  # fmt: skip
    """to[i][j] = (s1 2^32 + s2 2^24 + s3 2^16 + s4 2^8) unit[i] filter_unit[j] in float32.

    s: whole numbers, `group` bytes apart; rows i of `to` lie to_row elements apart, and may be those of s1.

    i: pixels; j: vectors of filters. Both units are multiplied first, each with a half of the weight: that
    lies between the largest numbers and the least, and no sum is larger than the result over it. s4 is left
    out where `least` is 0.
    """
    word, target = words_of(v), v.pointer(to)
    groups = [v.pointer(v.iadd(sums, v.imul(group, g))) for g in range(SUMS)]
    half, most = v.const(2.0**16), v.const(MOST)
    next_weight = v.const(2.0**-8)
    across = [v.fmul(v.load(v.pointer(filter_units), j * v.lanes), half) for j in range(VECTORS)]

    def combine(kept: int) -> None:
        with v.loop(count) as i:
            unit = v.fmul(v.broadcast(v.pointer(units), i), half)
            for j, filter_unit in enumerate(across):
                at = v.iadd(v.imul(i, VECTORS * v.lanes), j * v.lanes)
                found = [word.floats(word.load(place, at)) for place in groups[:kept]]
                total = found.pop()
                while found:
                    total = v.fma(total, next_weight, found.pop())
                both = v.fmul(unit, filter_unit)
                scale = v.b.select(v.b.fcmp_ordered(">", both, most), most, both)  # sums of 0 stay 0, NaN so
                v.store(v.fmul(total, scale), target, v.iadd(v.imul(i, to_row), j * v.lanes))

    with v.choose(v.isub(least, 1)) as (all_, few):
        with all_:
            combine(SUMS)
        with few:
            combine(SUMS - 1)


@jit.helper
def bring_together(
    width: int, sums: int, group: int, count: int, units: int, filter_units: int, to: int, to_row: int,
    least: int,
) -> None:  # fmt: skip
    """`combine_digits` of one or two vectors of filters."""
    if width == 2:
        combine_digits(4, 16, 2, sums, group, count, units, filter_units, to, to_row, least)
    else:
        combine_digits(4, 16, 1, sums, group, count, units, filter_units, to, to_row, least)
