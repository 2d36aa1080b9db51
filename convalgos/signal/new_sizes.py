"""Sizes of arrays that come seldom: what is made for a size pays for sizes only that come often.

To plan for a size takes as long as to transform some ten thousand elements. So the first calls of a size go
ways for which nothing is made, and it is counted how much they do.
"""

from __future__ import annotations

from typing import Any

from convalgos.signal.size_cache import UNKNOWN, SizeCache

# Elements that are transformed until a plan saves what planning takes, and of a single call that takes longer
# than planning; Zen 4
PLANNED, PLANNED_AT_ONCE = 1 << 15, 1 << 17
ASKED = 3  # calls of a size from which on it comes often, however small it is
ALIKE = 4  # times as long as a filter, up to which lines are of about its length
KEPT = 1 << 22  # bytes of sizes

_asked = SizeCache(KEPT)  # elements of all calls of a size


def is_new(key: Any, elements: int, most: int = PLANNED) -> bool:
    """Whether a size came less than ASKED times, and for less than so many elements in all calls, this one
    included."""
    elements = max(elements, -(-most // ASKED))
    if elements >= most:
        return False
    before = _asked[key]
    if before is UNKNOWN:
        _asked.keep(key, elements)
        return True
    if before + elements >= most:
        return False
    _asked[key] = before + elements
    return True


def forget_size(key: Any) -> None:
    """Let a size be new again."""
    _asked.pop(key, None)


def is_nearly_as_long(taps: int, n: int) -> bool:
    """Whether a filter is nearly as long as lines of n samples."""
    return ALIKE * taps > n


def is_new_with_such_taps(n: int, taps: int, char: str) -> bool:
    """`is_new` of lines of n samples with a filter that is nearly as long, however long they are: each has
    another one, so that nothing is known of the plans of others."""
    return is_new((n, taps, char), 1, ASKED)
