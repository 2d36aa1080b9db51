"""A float32 as the sum of three bfloat16, in words of two channels as matrix tiles take them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from convalgos.cpu.vectors.integers import words_of
from convalgos.cpu.vectors.simd import Value, Vec, emitter

TERMS = 3
CHANNELS = 32  # of an entry: what a matrix tile has in a row
TILE_BYTES = 1024  # of 16 rows of 64 bytes
ENTRY_BYTES = TERMS * TILE_BYTES  # of an entry and a vector of filters,
ENTRY_LINES = ENTRY_BYTES // 64  # and cache lines


def store_terms(v: Vec, low: Any, high: Any, place: Value, term: Value) -> None:
    """The three terms of two vectors, `term` bytes apart; a word has one of `low` in its low half.

    Terms are cut, not rounded, so that they have all bits.
    """
    word = words_of(v)
    rest, mask = [low, high], word.const(-65536)
    for t in range(TERMS):
        bits = [v.b.bitcast(value, word.type) for value in rest]
        upper = word.bit_and(bits[1], mask)
        pair = word.bit_or(word.right(bits[0], 16, False), upper)
        word.store(pair, v.pointer(v.iadd(place, v.imul(term, t))))
        if t < TERMS - 1:
            cut = [v.b.bitcast(value, v.type) for value in (word.bit_and(bits[0], mask), upper)]
            rest = [v.fsub(value, less) for value, less in zip(rest, cut, strict=True)]


@emitter
def write_terms(
    v: Vec, x: Value, next_block: Value, pixel: Value, count: Value, first: Value, second: Value, to: Value,
    to_pixel: Value, term: Value,
) -> None:  # fmt: skip
    """The three terms of two vectors of channels of `count` pixels, `pixel` elements apart.

    first, second: channels that there are of each of the two, which lie `next_block` elements apart.
    """
    source = v.pointer(x)

    def split(load: Callable[[Any, int], Any]) -> None:
        with v.loop(count) as i:
            at = v.imul(i, pixel)
            low, high = load(at, 0), load(v.iadd(at, next_block), 1)
            store_terms(v, low, high, v.iadd(to, v.imul(i, to_pixel)), term)

    with v.choose(v.isub(second, v.lanes)) as (whole, part):
        with whole:
            split(lambda at, _: v.load(source, at))
        with part:
            masks = v.mask(first), v.mask(second)
            split(lambda at, which: v.load_masked(source, at, masks[which]))


@emitter
def pack_entry(v: Vec, w: Value, step: Value, channels: Value, to: Value, term: Value) -> None:
    """The terms of CHANNELS channels, `step` elements apart, of a vector of filters; so many are there.

    Terms are rounded, so that those left out are small, but for numbers that this would make infinite.
    """
    word = words_of(v)
    source, half = v.pointer(w), CHANNELS // 2
    high, exponent = word.const(-65536), word.const(0x7F800000)
    with v.loop(half) as i:
        rest = []
        for first in (0, half):
            at = v.iadd(i, first)
            there = v.mask(v.imul(v.isub(channels, at), v.lanes))
            rest.append(v.load_masked(source, v.imul(at, step), there))
        for t in range(TERMS):
            cut = []
            for value in rest:
                bits = v.b.bitcast(value, word.type)
                odd = word.bit_and(word.right(bits, 16, False), word.const(1))
                near = word.bit_and(word.add(word.add(bits, word.const(0x7FFF)), odd), high)
                infinite = v.b.icmp_unsigned("==", word.bit_and(near, exponent), exponent)
                cut.append(v.b.select(infinite, word.bit_and(bits, high), near))
            pair = word.bit_or(word.right(cut[0], 16, False), cut[1])
            word.store(pair, v.pointer(v.iadd(v.iadd(to, v.imul(term, t)), v.imul(i, 64))))
            floats = [v.b.bitcast(value, v.type) for value in cut]
            rest = [v.fsub(value, less) for value, less in zip(rest, floats, strict=True)]
