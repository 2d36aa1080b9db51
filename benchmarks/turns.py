"""Medians of calls by turns, so that all of them meet the same machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any


def medians(
    calls: Sequence[Callable[[], Any]], seconds: float, least: int = 5, turn: float = 0.0
) -> list[float]:
    """Seconds of each call, timed for so long and so often at least; the first round does not count.

    Args:
        turn: seconds for which one is called in a row, before it is another's turn; at least once.
    """
    times: list[list[list[float]]] = [[] for _ in calls]  # of each call, by turns
    end = time.perf_counter() + seconds
    while len(times[-1]) <= least or time.perf_counter() < end:
        for call, turns in zip(calls, times, strict=True):
            row: list[float] = []
            begin = time.perf_counter()
            while not row or time.perf_counter() - begin < turn:
                start = time.perf_counter()
                call()
                row.append(time.perf_counter() - start)
            turns.append(row)
    return [statistics.median(chain.from_iterable(turns[1:])) for turns in times]
