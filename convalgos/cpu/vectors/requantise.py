"""The output step of integer sums: from int32 to the integers of 8 bits, or the float32, of an output.

v = float32(s) * multiplier; v = v + before; v = min(max(v, low), high); y = rint(v) + after, ties to even.
The product and the sum are rounded each: what ONNX Runtime and ONNX say differs only in `before`, `after`
and the limits, of which an activation is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from convalgos.cpu.vectors.instructions import Vec
from convalgos.cpu.vectors.integers import ROUNDING, ROUNDING_BITS, bytes_of, words_of
from convalgos.cpu.vectors.lanes import store_lanes
from convalgos.cpu.vectors.packing import (
    added_shorts,
    bytes_of_shorts,
    limited_bytes,
    packed_in_order,
    shorts_of_words,
    to_nearest,
)

PLAIN = 0.99  # times 2**31 is less than 2**31 in float32, too
MOST = 2.0**30  # beyond all limits
STEP_FIELDS = np.dtype([("before", "f4"), ("low", "f4"), ("high", "f4"), ("after", "i4")])


class Scaling(NamedTuple):
    """What is done to sums: vectors of float32, but for `after`, one of int32."""

    multiplier: Any
    before: Any  # None for 0
    low: Any  # both whole numbers, and ROUNDING more
    high: Any
    after: Any  # ROUNDING_BITS less


def scaling(v: Vec, multiplier: Any, step: Any, before: bool = True) -> Scaling:
    """From a vector of multipliers and the address of a record of `STEP_FIELDS`. v: of float32.

    before: whether the record's is looked at; without, it must be 0.
    """
    at, word = v.pointer(step), words_of(v)
    rounding = v.const(ROUNDING)
    low, high = (v.fadd(v.broadcast(at, i), rounding) for i in (1, 2))
    after = word.sub(word.broadcast(at, 3), word.const(ROUNDING_BITS))
    return Scaling(multiplier, v.broadcast(at, 0) if before else None, low, high, after)


def scaled(v: Vec, sums: Any, multiplier: Any) -> Any:
    """float32 of int32 sums, times the multiplier. v: of float32."""
    return v.fmul(words_of(v).floats(sums), multiplier)


def scaled_words(v: Vec, sums: Any, multiplier: Any, low: Any) -> Any:
    """`scaled`, at least `low`, as the words to be stored."""
    return v.b.bitcast(v.fmax(scaled(v, sums, multiplier), low), words_of(v).type)


def requantised(v: Vec, sums: Any, by: Scaling) -> Any:
    """int32 sums as what is left of them in 8 bits, still in words. v: of float32.

    Beside ROUNDING, numbers of float32 are whole: what is added to it is rounded, to even, and its bits count
    up. Limits are taken afterwards, as rounding keeps the order.
    """
    value = scaled(v, sums, by.multiplier)
    if by.before is not None:
        value = v.fadd(value, by.before)
    value = limited(v, v.fadd(value, v.const(ROUNDING)), by.low, by.high)
    word = words_of(v)
    return word.add(v.b.bitcast(value, word.type), by.after)


class Narrowing(NamedTuple):
    """What is done to four vectors of sums that become one of bytes."""

    signed: bool
    before: Any  # vector of float32, or None for 0
    after: Any  # of 16 bits
    low: Any  # of bytes, both
    high: Any


def narrowing(v: Vec, step: Any, signed: bool, plain: bool) -> Narrowing:
    """From the address of a record of `STEP_FIELDS`. v: of float32.

    plain: whether the record's `before` is 0 and no scaled sum exceeds 32 bits, as `stays_in_words` tells.
    """
    at, words = v.pointer(step), words_of(v)
    after = words.broadcast(at, 3)
    low, high = (words.add(words.rounded(v.broadcast(at, i)), after) for i in (1, 2))
    low, high = (packed_in_order(v, [limit] * 4, signed) for limit in (low, high))
    return Narrowing(
        signed, None if plain else v.broadcast(at, 0), shorts_of_words(v, after, after), low, high
    )


def stays_in_words(multiplier: np.ndarray, before: float) -> bool:
    """Whether sums of 32 bits stay below 2**31 when they are scaled, and nothing is added to them then."""
    return before == 0 and bool(multiplier.max(initial=0) < PLAIN)


def narrowed_shorts(v: Vec, sums: Sequence[Any], multipliers: Sequence[Any], by: Narrowing) -> Any:
    """Two vectors of int32 sums in 16 bits, finished but for the limits. v: of float32.

    What is beyond 16 bits ends at the last number, and is limited further to that of 8 bits.
    """
    found = []
    for total, multiplier in zip(sums, multipliers, strict=True):
        value = scaled(v, total, multiplier)
        if by.before is not None:
            value, most = v.fadd(value, by.before), v.const(MOST)
            value = v.b.select(v.b.fcmp_ordered("<", value, most), value, most)
        found.append(to_nearest(v, value))
    return added_shorts(v, shorts_of_words(v, *found), by.after)


def narrowed(v: Vec, low: Any, high: Any, by: Narrowing) -> Any:
    """Bytes of four vectors, each two of which are in 16 bits, in the order of `packed_in_order`."""
    return limited_bytes(v, bytes_of_shorts(v, low, high, by.signed), by.low, by.high, by.signed)


def limited(v: Vec, value: Any, low: Any, high: Any) -> Any:
    """min(max(value, low), high) of float32; NaN stays."""
    value = v.fmax(value, low)
    return v.b.select(v.b.fcmp_ordered("<", high, value), high, value)


def store_bytes(v: Vec, words: Any, pointer: Any, mask: Any = None) -> None:
    """The low bytes of words, beside each other; those of a mask. v: of float32."""
    narrow = bytes_of(v)
    value = words_of(v).resized(words, 1)
    store_lanes(narrow, value, pointer, 0, mask)
