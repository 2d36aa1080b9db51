"""How many columns a block of `cpu.depthwise.channels` has."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

SUMS_UNDER_WAY = 8  # sums that must be under way for two products a cycle


@lru_cache(4096)  # layers of one map size share them
def block_pixels(most: int, columns: int, vectors: int, known: Sequence[int]) -> int:
    """Whole blocks of at most so many pixels, and few of them, as the last overlaps the one before.

    Args:
        known: those that there are kernels for.
    """
    least = SUMS_UNDER_WAY / vectors
    costs = [(-(-columns // n) * ((n if n > least else least) + 0.6), -n) for n in known if n <= most]
    return -min(costs)[1]
