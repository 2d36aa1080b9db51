"""Buffers in one piece of memory, those of different times over each other.

Source: Pisarchyk and Lee 2020, arXiv:2001.03288 (greedy by size, best fit).
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

TURNS = 8  # of each order, in which the highest of the turn before goes first


class TimedBytes(NamedTuple):
    """Bytes from `begin` to `end`, in use from the run of one step to that of another, both included."""

    begin: int
    end: int
    first: int
    last: int


class Buffer(NamedTuple):
    """Memory that is in use from the run of one step to that of another, both included.

    Its parts may have times of their own: between two such parts lies what others may use at those times.
    """

    nbytes: int
    first: int
    last: int
    times: tuple[TimedBytes, ...] = ()  # which cover all bytes, in their order; none where all have one time

    @property
    def parts(self) -> tuple[TimedBytes, ...]:
        return self.times or (TimedBytes(0, self.nbytes, self.first, self.last),)


def most_alive(buffers: Sequence[Buffer]) -> int:
    """The bytes in use at the worst step: no packing takes less."""
    changes: dict[int, int] = {}
    for buffer in buffers:
        whole = ((0, buffer.nbytes, buffer.first, buffer.last),)
        for begin, end, first, last in buffer.times or whole:
            changes[first] = changes.get(first, 0) + end - begin
            changes[last + 1] = changes.get(last + 1, 0) - (end - begin)
    most = alive = 0
    for step in sorted(changes):
        alive += changes[step]
        most = max(most, alive)
    return most


def most_alive_above(spans: Sequence[tuple[int, int]], sizes: Sequence[int], below: Sequence[int]) -> int:
    """The bytes in use at the worst step of buffers in use between these steps, and of others at each step.

    Example:
        >>> most_alive_above([(0, 1), (1, 3)], [64, 32], [0, 0, 70])
        102
    """
    changes = [0] * (len(below) + 2)  # an output is in use behind the last step, too
    for (first, last), size in zip(spans, sizes, strict=True):
        changes[first] += size
        changes[last + 1] -= size
    most = alive = 0
    for change, more in zip(changes, (*below, 0), strict=False):
        alive += change
        if alive + more > most:
            most = alive + more
    return most


ORDERS: tuple[Callable[[Buffer], tuple[int, int]], ...] = (  # in which buffers take their places
    lambda b: (-b.nbytes, b.first),
    lambda b: (b.first, -b.nbytes),
    lambda b: (-b.nbytes * (b.last - b.first + 1), b.first),
)


def place_buffers(
    buffers: Sequence[Buffer], first: Sequence[Buffer] = (), order: int = 0, waste: float = 1.0
) -> tuple[list[int], int, int]:
    """(where each buffer begins, bytes of all, the order): what is in use at the same time lies apart.

    Each takes the tightest gap that it fits in, in the best of several orders; what lies highest goes first
    in the next one. 26 plans of 13 networks, of 1 and 8 images, take 1.008 times what is in use at once, and
    1.022 without such turns.

    Args:
        first: those that lie at the begin, at times of their own.
        order: number of the one that is tried first.
        waste: times what is in use at once, which is enough.

    Example:
        >>> place_buffers([Buffer(64, 0, 1), Buffer(64, 1, 2), Buffer(128, 2, 3)])
        ([0, 128, 0], 192, 0)
    """
    enough = waste * most_alive([*buffers, *first])
    best, total, found = [0] * len(buffers), math.inf, order
    for number in sorted(range(len(ORDERS)), key=lambda n: n != order):
        taken = sorted(range(len(buffers)), key=lambda i: ORDERS[number](buffers[i]))
        for _ in range(TURNS):
            places, end = place_in_order(buffers, taken, first)
            if end < total:
                best, total, found = places, end, number
            if end <= enough:
                return best, end, found
            taken.sort(key=lambda i: places[i] + buffers[i].nbytes < end)  # the highest first
    return best, int(total), found


def place_in_order(
    buffers: Sequence[Buffer], order: Sequence[int], at_begin: Sequence[Buffer]
) -> tuple[list[int], int]:
    """(where each buffer begins, bytes of all) where they take the tightest gaps in a given order.

    In that of the places that buffers of the same times have in other sizes, they come to lie as there.

    Args:
        at_begin: the `first` of `place_buffers`.
    """
    places, total = [0] * len(buffers), max((buffer.nbytes for buffer in at_begin), default=0)
    placed = sorted(part for buffer in at_begin for part in buffer.parts)
    for i in order:
        best, tightest, free = -1, math.inf, 0
        for begin, end in _forbidden(buffers[i].parts, placed):
            if 0 <= begin - free < tightest:
                best, tightest = free, begin - free
            if end > free:
                free = end
        at = places[i] = free if best < 0 else best
        total = max(total, at + buffers[i].nbytes)
        for begin, end, *times in buffers[i].parts:
            insort(placed, TimedBytes(at + begin, at + end, *times))
    return places, total


def _forbidden(parts: Sequence[TimedBytes], placed: Sequence[TimedBytes]) -> list[tuple[int, int]]:
    """Places between which, both excluded, a buffer of these parts cannot begin, in their order."""
    found = [
        (begin - part_end, end - part_begin)
        for part_begin, part_end, first, last in parts
        for begin, end, other_first, other_last in placed
        if first <= other_last and other_first <= last
    ]
    if len(parts) > 1:
        found.sort()
    return found


class Stack(NamedTuple):
    """How buffers lie upon each other in a packing, whatever their sizes."""

    order: tuple[tuple[int, tuple[int, ...]], ...]  # (buffer, those below it that are in use when it is)
    together: tuple[tuple[int, ...], ...]  # those in use at one time, of all times

    def most_alive(self, sizes: Sequence[int]) -> int:
        """`most_alive` of buffers of so many bytes."""
        return max((sum(map(sizes.__getitem__, some)) for some in self.together), default=0)

    def placed(self, sizes: Sequence[int], begins: Sequence[int]) -> tuple[list[int], int]:
        """(where each buffer of so many bytes begins, bytes of all), each from a place of its own on."""
        places, ends = [*begins], [*begins]
        for i, below in self.order:
            at = begins[i]
            for j in below:
                if ends[j] > at:
                    at = ends[j]
            places[i], ends[i] = at, at + sizes[i]
        return places, max(ends, default=0)


def stack_of(spans: Sequence[tuple[int, int]], places: Sequence[int]) -> Stack:
    """How buffers lie upon each other that are in use between these steps, and begin at these places.

    Example:
        >>> stack_of([(0, 1), (1, 2), (2, 3)], [0, 128, 0]).placed([50, 20, 60], [8, 8, 4])
        ([8, 64, 4], 84)
    """
    order: list[tuple[int, tuple[int, ...]]] = []
    for i in sorted(range(len(places)), key=places.__getitem__):
        first, last = spans[i]
        below = [j for j, _ in order if first <= spans[j][1] and spans[j][0] <= last]
        order.append((i, tuple(below)))
    times = sorted({first for first, _ in spans})  # most are in use when one more is
    together = {tuple(i for i, (first, last) in enumerate(spans) if first <= t <= last) for t in times}
    return Stack(tuple(order), tuple(together))


class PartStack(NamedTuple):
    """How buffers lie upon each other whose parts have times of their own, whatever their sizes."""

    times: tuple[tuple[tuple[int, int], ...], ...]  # `times_of_parts`
    # (buffer, its parts above parts of others, its parts below such), in the order of their places; parts are
    # told by (own part, other buffer, part of that)
    order: tuple[tuple[int, tuple[tuple[int, int, int], ...], tuple[tuple[int, int, int], ...]], ...]

    def placed(self, buffers: Sequence[Buffer], begins: Sequence[int]) -> tuple[list[int], int] | None:
        """(where each buffer begins, bytes of all), each from a place of its own on; None where they do not
        fit so."""
        parts: list[Any] = [buffer.times or ((0, buffer.nbytes),) for buffer in buffers]  # begins and ends
        places, total = [*begins], 0
        for i, above, below in self.order:
            at, own = begins[i], parts[i]
            for part, j, other in above:
                least = places[j] + parts[j][other][1] - own[part][0]
                if least > at:
                    at = least
            for part, j, other in below:
                if at + own[part][1] > places[j] + parts[j][other][0]:
                    return None
            places[i] = at
            total = max(total, at + buffers[i].nbytes)
        return places, total


def times_of_parts(buffers: Sequence[Buffer]) -> tuple[tuple[tuple[int, int], ...], ...]:
    """First and last step of the parts of each buffer, where these have times of their own."""
    return tuple([tuple([(part.first, part.last) for part in buffer.times]) for buffer in buffers])


def part_stack_of(buffers: Sequence[Buffer], places: Sequence[int]) -> PartStack:
    """How buffers lie upon each other that begin at these places.

    Example:
        >>> whole = Buffer(96, 0, 3, (TimedBytes(0, 64, 2, 3), TimedBytes(64, 96, 0, 3)))
        >>> stack = part_stack_of([whole, Buffer(64, 0, 1)], [0, 0])
        >>> stack.placed([whole, Buffer(60, 0, 1)], [8, 8])
        ([8, 8], 104)
    """
    order: list[Any] = []
    for i in sorted(range(len(places)), key=places.__getitem__):
        above: list[tuple[int, int, int]] = []
        below: list[tuple[int, int, int]] = []
        for k, own in enumerate(buffers[i].parts):
            for j, *_ in order:
                for n, other in enumerate(buffers[j].parts):
                    if own.first <= other.last and other.first <= own.last:
                        lies_above = places[i] + own.begin >= places[j] + other.end
                        (above if lies_above else below).append((k, j, n))
        order.append((i, tuple(above), tuple(below)))
    return PartStack(times_of_parts(buffers), tuple(order))
