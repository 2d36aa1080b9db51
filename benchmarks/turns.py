"""Medians of calls by turns, so that all of them meet the same machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any


def medians(calls: Sequence[Callable[[], Any]], seconds: float, least: int = 5) -> list[float]:
    """Seconds of each call, timed for so long and so often at least; the first round does not count."""
    times: list[list[float]] = [[] for _ in calls]
    end = time.perf_counter() + seconds
    while len(times[-1]) <= least or time.perf_counter() < end:
        for call, row in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            row.append(time.perf_counter() - start)
    return [statistics.median(row[1:]) for row in times]
