"""How many columns a block of `cpu.depthwise.channels` has."""

from __future__ import annotations

from functools import lru_cache

from convalgos.cpu.dwconv.channel_kernels import BLOCK_PIXELS, GROUPED_PIXELS

SUMS_UNDER_WAY = 8  # sums that must be under way for two products a cycle


@lru_cache(4096)  # layers of one map size share them
def block_pixels(most: int, columns: int, vectors: int, depthwise: bool) -> int:
    """Whole blocks of at most so many pixels, and few of them, as the last overlaps the one before."""
    least = SUMS_UNDER_WAY / vectors
    costs = [
        (-(-columns // n) * ((n if n > least else least) + 0.6), -n)
        for n in (BLOCK_PIXELS[vectors] if depthwise else GROUPED_PIXELS)
        if n <= most
    ]
    return -min(costs)[1]
