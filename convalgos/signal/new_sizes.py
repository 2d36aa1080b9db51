"""Sizes of arrays that come seldom: what is made for a size pays for sizes only that come often.

To plan for a size takes as long as to transform some ten thousand elements. So the first calls of a size go
ways for which nothing is made, and they are counted. While `capture` counts runs of plans, no size is new.
"""

from __future__ import annotations

from typing import Any

from convalgos.core.plan import watchers
from convalgos.core.plan_cache import also_forget
from convalgos.signal.size_cache import UNKNOWN, SizeCache

ASKED = 3  # calls of a size, from the last of which on it comes often, however small it is
ALIKE = 4  # times as long as a filter, up to which lines are of about its length
KEPT = 1 << 22  # bytes of sizes

MARKS, MOST_MARKS = 1 << 18, 1 << 14  # places for sizes that came once, and so many are taken at most

_asked = SizeCache(KEPT)  # calls of a size
_came = bytearray(MARKS)  # 1 at the place of a size that came


def is_new(key: Any, calls: int = ASKED) -> bool:
    """Whether a size came less than so many times, this one included."""
    if calls <= 1 or watchers:
        return False
    before = _asked[key]
    if before is UNKNOWN:
        _asked.keep(key, 1)
        return True
    if before + 1 >= calls:
        return False
    _asked[key] = before + 1
    return True


def is_first(key: Any) -> bool:
    """Whether a size has not come before, found in a fraction of the time of `is_new`.

    Sizes are told apart by their hashes alone: one in some that come first passes for known.
    """
    global _marks
    at = hash(key) % MARKS
    if _came[at] or watchers:
        return False
    if _marks >= MOST_MARKS:
        _forget_marks()
    _came[at] = 1
    _marks += 1
    return True


def calls_by_size(elements: int, at_once: int, at_second: int) -> int:
    """The call of a size in which a plan is made: the first or the second from so many elements on."""
    return 1 if elements >= at_once else 2 if elements >= at_second else ASKED


def _forget_marks() -> None:
    global _marks
    _came[:], _marks = bytes(MARKS), 0


_marks = 0  # places that are taken, about: threads may count at once
also_forget(_forget_marks)


def forget_size(key: Any) -> None:
    """Let a size be new again."""
    _asked.pop(key, None)


def is_nearly_as_long(taps: int, n: int) -> bool:
    """Whether a filter is nearly as long as lines of n samples."""
    return ALIKE * taps > n


def is_new_with_such_taps(n: int, taps: int, char: str) -> bool:
    """`is_new` of lines of n samples with a filter that is nearly as long, however long they are: each has
    another one, so that nothing is known of the plans of others."""
    return is_new((n, taps, char))
