"""Buffers packed into one piece of memory, those of different times over each other.

Source: Pisarchyk and Lee 2020, arXiv:2001.03288 (greedy by size, best fit).
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Sequence
from typing import NamedTuple


class Buffer(NamedTuple):
    """Memory that is in use from the run of one step to that of another, both included."""

    nbytes: int
    first: int
    last: int


def most_alive(buffers: Sequence[Buffer]) -> int:
    """The bytes in use at the worst step: no packing takes less."""
    changes: dict[int, int] = {}
    for nbytes, first, last in buffers:
        changes[first] = changes.get(first, 0) + nbytes
        changes[last + 1] = changes.get(last + 1, 0) - nbytes
    most = alive = 0
    for step in sorted(changes):
        alive += changes[step]
        most = max(most, alive)
    return most


ORDERS: tuple[Callable[[Buffer], tuple[int, int]], ...] = (  # in which buffers take their places
    lambda b: (-b.nbytes, b.first),
    lambda b: (b.first, -b.nbytes),
    lambda b: (-b.nbytes * (b.last - b.first + 1), b.first),
)


def place_buffers(
    buffers: Sequence[Buffer], first: Sequence[Buffer] = (), orders: Sequence[int] = range(len(ORDERS))
) -> tuple[list[int], int, int]:
    """(where each buffer begins, bytes of all, number of the order): buffers whose times overlap lie apart.

    The best of several orders in which each takes the tightest gap that it fits in.

    Args:
        first: those that lie at the begin, at times of their own.
        orders: numbers of those that are tried.

    Example:
        >>> place_buffers([Buffer(64, 0, 1), Buffer(64, 1, 2), Buffer(128, 2, 3)])
        ([0, 128, 0], 192, 0)
    """
    least = most_alive([*buffers, *first]) if len(orders) > 1 else 0
    best: tuple[list[int], int, int] | None = None
    for number in orders:
        order = sorted(range(len(buffers)), key=lambda i: ORDERS[number](buffers[i]))
        places, total = _packed(buffers, order, first)
        if best is None or total < best[1]:
            best = places, total, number
        if best[1] == least:
            break
    assert best is not None
    return best


def _packed(
    buffers: Sequence[Buffer], order: Sequence[int], at_begin: Sequence[Buffer]
) -> tuple[list[int], int]:
    places, total = [0] * len(buffers), max((nbytes for nbytes, *_ in at_begin), default=0)
    placed = sorted((0, *buffer) for buffer in at_begin)  # (begin, end, first, last)
    for i in order:
        nbytes, first, last = buffers[i]
        best, tightest, free = -1, math.inf, 0
        for begin, end, other_first, other_last in placed:  # by where they begin
            if first <= other_last and other_first <= last:
                if nbytes <= begin - free < tightest:
                    best, tightest = free, begin - free
                if end > free:
                    free = end
        place = places[i] = free if best < 0 else best
        total = max(total, place + nbytes)
        insort(placed, (place, place + nbytes, first, last))
    return places, total
