"""Lengths of real FFTs: which are fast, and how planes of some lengths lie in memory."""

from __future__ import annotations

import functools
import math
from bisect import bisect_left
from itertools import product

# Speed of a length by how often 2 divides it, relative to a power of two. Measured over the lengths up to
# 4096 and in squares and cubes, on both engines (Zen 5): odd lengths have no fast real transform at all.
LENGTH_BITS = 48  # bits of a length, more than memory has room for
SPEED_BY_TWOS = (0.3, 0.6, 0.75, 0.85, 0.95)
ODD_PARTS = [m for m in (3**a * 5**b * 7**c for a, b, c in product(range(6), range(5), range(4))) if m < 700]


def longer_lengths(lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Without dimensions of length 1, which would only make the others slower."""
    return tuple(n for n in lengths if n > 1) or (1,)


def spectrum_size(lengths: tuple[int, ...]) -> int:
    """Complex elements of the spectrum."""
    *others, last = longer_lengths(lengths)
    return math.prod(others) * (last // 2 + 1)


def strides(lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Elements between neighbours in each dimension of a plane; rows have room for one frequency more."""
    last = max((i for i, n in enumerate(lengths) if n > 1), default=len(lengths) - 1)
    room = [2 * (n // 2 + 1) if i == last else n for i, n in enumerate(lengths)]
    return tuple(math.prod(room[i + 1 :]) for i in range(len(lengths)))


def speed(length: int) -> float:
    """How fast a length is transformed, relative to a power of two of its size."""
    if length & (length - 1) == 0:
        return 1.0
    twos = (length & -length).bit_length() - 1
    return SPEED_BY_TWOS[min(twos, len(SPEED_BY_TWOS) - 1)]


def fast_length(least: int) -> int:
    """The length of at least `least` that is transformed in the least time."""
    lengths = _good_lengths()
    return lengths[bisect_left(lengths, max(1, least))]


@functools.cache
def _good_lengths() -> list[int]:
    """Those that no longer one outruns, in order."""
    found, best = [], math.inf
    for n in sorted(
        {m << e for m in ODD_PARTS for e in range(LENGTH_BITS - m.bit_length() + 1)}, reverse=True
    ):
        seconds = _relative_seconds(n)
        if seconds <= best:
            found.append(n)
            best = seconds
    return found[::-1]


def _relative_seconds(length: int) -> float:
    return length * math.log2(length) / speed(length) if length > 3 else 0.0


def is_no_slower(length: int, than: int) -> bool:
    """Whether a length has small factors only, and is transformed as fast as another."""
    return 210**LENGTH_BITS % length == 0 and _relative_seconds(length) <= _relative_seconds(than)
