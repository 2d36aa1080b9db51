"""How the windows of a row are made of shorter ones, by the fewest loads."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from convalgos.cpu.sliding.kernels import LINE, MORE, STEP, SUMS, WORK, Y_MORE, Y

MOST_RADIX = 8  # windows that one step joins
STORE = 2  # loads that take as long as a store; Zen 4


@lru_cache(256)
def sliding_steps(taps: int, step: int, sums: bool) -> np.ndarray:
    """`STEP` of windows of `taps` elements that lie `step` elements apart."""
    elements = np.array((1, 1, step, step, 1, step, step))  # of fields
    table = np.ndarray(len(_steps(taps, sums)), STEP, _steps(taps, sums) * elements)
    table.setflags(write=False)
    return table


@lru_cache(256)
def _steps(taps: int, sums: bool) -> np.ndarray:
    """(steps, fields of `STEP`) of neighbouring elements.

    Minima and maxima are of windows that may overlap; sums are of those that lie side by side: what a step
    leaves over is kept in SUMS.
    """
    radices = _sum_radices(taps)[1] if sums else _radices(taps, 1)[1]
    made: list[list[int]] = []  # fields of STEP
    source, joined, left, done = LINE, 1, taps, 0
    for radix in radices:
        if sums and left % radix:
            made.append(_step(source, MORE if done else SUMS, done, left % radix, joined))
            done += left % radix * joined
        made.append(_step(source, WORK, 0, radix, joined))
        source, joined, left = WORK, joined * radix, left // radix
    windows = left if sums else -(-taps // joined)
    final = _step(source, Y_MORE if done else Y, done, windows, joined)
    final[-1] = taps - joined - done
    reach = 0
    for each in (made := [*made, final])[::-1]:
        first, last = each[2], each[6]
        if each[1] == WORK:
            each[3] = reach
            reach += last
        else:
            reach = max(reach, first + last)
    return np.array(made)


def _step(source: int, target: int, first: int, taps: int, joined: int) -> list[int]:
    return [source, target, first, 0, taps, joined, (taps - 1) * joined]


@lru_cache(4096)
def _radices(taps: int, joined: int) -> tuple[int, tuple[int, ...]]:
    """(loads, windows joined in each step but the last) of windows that may overlap."""
    best: tuple[int, tuple[int, ...]] = -(-taps // joined), ()
    for radix in range(2, MOST_RADIX + 1):
        if joined * radix < taps:
            loads, others = _radices(taps, joined * radix)
            best = min(best, (loads + radix + STORE, (radix, *others)))
    return best


@lru_cache(4096)
def _sum_radices(taps: int) -> tuple[int, tuple[int, ...]]:
    """The same of windows that must not overlap."""
    best: tuple[int, tuple[int, ...]] = taps, ()
    for radix in range(2, MOST_RADIX + 1):
        if radix < taps:
            loads, others = _sum_radices(taps // radix)
            rest = taps % radix + STORE + 1 if taps % radix else 0
            best = min(best, (loads + radix + STORE + rest, (radix, *others)))
    return best
