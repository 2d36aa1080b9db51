"""What two halves of the same samples say of each other: how much of a difference of times is measurement."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from convalgos.select.measured import Measured

Halves = tuple[dict[str, float], dict[str, float]]  # id -> median seconds, in each half of the samples


def halves_of(times: Mapping[str, Measured], ids: Iterable[str]) -> Halves:
    """Median seconds of candidates on the even samples, and on the odd ones; a sample alone is in both."""
    samples = {name: times[name].samples_s for name in ids}
    even = {name: float(np.median(s[0::2])) for name, s in samples.items()}
    return even, {name: float(np.median(s[1::2] or s)) for name, s in samples.items()}


def timed_regret(halves: Halves, algorithm: str) -> float:
    """Time of a candidate / the least time in the same half, which may be that of one that had luck."""
    return math.sqrt(math.prod(half[algorithm] / min(half.values()) for half in halves))


def noise_floor(halves: Halves) -> float:
    """`timed_regret` of what the other half of the samples finds to be the fastest."""
    ratios = [
        scored[min(chosen, key=chosen.__getitem__)] / min(scored.values())
        for chosen, scored in (halves, halves[::-1])
    ]
    return math.sqrt(math.prod(ratios))
