"""The output step of integer sums: from int32 to the integers of 8 bits, or the float32, of an output.

v = float32(s) * multiplier; v = v + before; v = min(max(v, low), high); y = rint(v) + after, ties to even.
The product and the sum are rounded each: what ONNX Runtime and ONNX say differs only in `before`, `after`
and the limits, of which an activation is one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from convalgos.cpu.vectors.instructions import Vec
from convalgos.cpu.vectors.integers import bytes_of, words_of

STEP_FIELDS = np.dtype([("before", "f4"), ("low", "f4"), ("high", "f4"), ("after", "i4")])


class Scaling(NamedTuple):
    """What is done to sums: vectors of float32, but for `after`, one of int32."""

    multiplier: Any
    before: Any
    low: Any
    high: Any
    after: Any


def scaling(v: Vec, multiplier: Any, step: Any) -> Scaling:
    """From a vector of multipliers and the address of a record of `STEP_FIELDS`. v: of float32."""
    at = v.pointer(step)
    before, low, high = (v.broadcast(at, i) for i in range(3))
    return Scaling(multiplier, before, low, high, words_of(v).broadcast(at, 3))


def scaled(v: Vec, sums: Any, multiplier: Any) -> Any:
    """float32 of int32 sums, times the multiplier. v: of float32."""
    return v.fmul(words_of(v).floats(sums), multiplier)


def requantised(v: Vec, sums: Any, by: Scaling) -> Any:
    """int32 sums as what is left of them in 8 bits, still in words. v: of float32."""
    value = v.fadd(scaled(v, sums, by.multiplier), by.before)
    words = words_of(v)
    return words.add(words.rounded(limited(v, value, by.low, by.high)), by.after)


def limited(v: Vec, value: Any, low: Any, high: Any) -> Any:
    """min(max(value, low), high) of float32; NaN stays."""
    value = v.fmax(value, low)
    return v.b.select(v.b.fcmp_ordered("<", high, value), high, value)


def store_bytes(v: Vec, words: Any, pointer: Any, mask: Any = None) -> None:
    """The low bytes of words, beside each other; those of a mask. v: of float32."""
    narrow = bytes_of(v)
    value = words_of(v).resized(words, 1)
    if mask is None:
        narrow.store(value, pointer)
    else:
        narrow.store_masked(value, pointer, 0, mask)
