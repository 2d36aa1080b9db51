"""Gaussian filters whose cost does not depend on their width, and how far they are from what they are for."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from convalgos.core.allocator import aligned_empty
from convalgos.core.boundaries import OUTSIDE, source_indices
from convalgos.cpu.filtering.recursive_kernels import RECURSION_FIELDS, WIDTH, filter_recursively
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.threads import plan_threads
from convalgos.cpu.vectors import simd

# (decay, frequency) of pairs of exponentials, of a standard deviation of 1: least squares on 0 <= t <= 6
POLES = {
    2: ((1.779716357855698, 0.6326090994340974), (1.7201435165269745, 1.9991194377517152)),
    3: (
        (2.1113594099225517, 0.5352505692886449),
        (2.087509680734638, 1.640448444426219),
        (2.028652988655264, 2.8920370643514186),
    ),
}
TAIL = 12  # standard deviations after which nothing is left of the exponentials
LONGEST = 16  # times the reach of a filter: parts of lines, of which caches hold a panel; Sapphire Rapids
ROUNDED = 1  # roundings of a type, times a standard deviation, that states gather; 0.2 measured


class Recursion(NamedTuple):
    """A recursion in the place of a Gaussian filter of 2 * reach + 1 weights.

    numbers: (pairs, 4), see `RECURSION_FIELDS`. error: the sum of absolute differences of the weights, over
    that of the weights: of a line, by how much results differ at most, over its largest element.
    """

    pairs: int
    reach: int
    numbers: np.ndarray
    error: float


@lru_cache(256)
def gaussian_recursion(sigma: float, reach: int, pairs: int) -> Recursion:
    """The amplitudes are those of the least squares on the weights, which end at `reach`."""
    t = np.arange(max(reach, int(TAIL * sigma)) + 1)
    weights = np.where(t <= reach, np.exp(-0.5 * (t / sigma) ** 2), 0.0)  # (taps,)
    found, turn, apart = fitted_exponentials(weights, sigma, pairs)
    total = 2 * weights.sum() - weights[0]
    numbers = np.stack([*(found / total).reshape(2, pairs), turn.real, turn.imag], 1)
    return Recursion(pairs, reach, numbers, float((2 * apart.sum() - apart[0]) / total))


def fitted_exponentials(
    weights: np.ndarray, sigma: float, pairs: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Exponentials of a standard deviation whose sum is nearest to weights (taps,), by least squares.

    Returns:
        (amplitudes of all cosines, then of all sines (2 * pairs,), factors from a tap to the next, complex
        (pairs,), how far each tap is off (taps,)).
    """
    t = np.arange(len(weights))[:, None]
    decay, frequency = np.array(POLES[pairs]).T / sigma  # (pairs,)
    shrunk = np.exp(-decay * t)  # (taps, pairs)
    terms = np.concatenate([shrunk * np.cos(frequency * t), shrunk * np.sin(frequency * t)], 1)
    found, *_ = np.linalg.lstsq(terms, weights, rcond=None)
    return found, np.exp(-decay + 1j * frequency), np.abs(terms @ found - weights)


def recursions_within(
    filters: list[tuple[float, int]], dtype: np.dtype, max_rel_error: float
) -> list[Recursion] | None:
    """Recursions of the fewest terms for (sigma, reach) of some axes that stay within an error together."""
    for pairs in POLES:
        found = [gaussian_recursion(sigma, reach, pairs) for sigma, reach in filters]
        rounded = sum(ROUNDED * float(np.finfo(dtype).eps) * sigma for sigma, _ in filters)
        if np.prod([1 + each.error for each in found]) - 1 + rounded <= max_rel_error:
            return found
    return None


def parts_of_lines(count: int, size: int, reach: int, itemsize: int) -> tuple[int, int]:
    """(parts of each of some lines along rows that are filtered by themselves, elements that this takes).

    A recursion takes as long for one line as for a panel of them. A part begins and ends `reach` elements
    beyond its own, and a recursion as many beyond these.
    """
    panel = WIDTH * simd.lanes(itemsize)
    whole = -(-count // panel) * panel * size  # beyond the ends of whole lines nothing is stored
    length = max(min(-(-size * count // (plan_threads() * panel)), LONGEST * reach), reach, 1)
    parts = -(-size // length)
    split = -(-count * parts // panel) * panel * (length + 4 * reach)
    return (parts, split) if split < whole else (1, whole)


def _recurse_by_parts(
    x: np.ndarray, y: np.ndarray, by: Recursion, boundary: str, fill: float, parts: int
) -> None:
    """y (lines, size) = lines of x filtered, in parts beside each other."""
    (lines, size), reach = x.shape, by.reach
    length = -(-size // parts)
    width, full = length + 2 * reach, size // length
    held = np.empty((lines, parts, width), x.dtype)
    first, last = -(-reach // length), (size - reach) // length  # parts from here on up to here lie inside
    if first < last:
        inside = sliding_window_view(x, width, 1)[:, first * length - reach :: length]
        held[:, first:last] = inside[:, : last - first]
    sources = np.array(source_indices(boundary, size, reach, parts * length - size + reach))
    for part in range(parts):
        if not first <= part < last:
            at = sources[part * length : part * length + width]
            held[:, part] = np.where(at == OUTSIDE, x.dtype.type(fill), x[:, at])
    recurse_along(held, held, 2, by, "edge", 0.0)
    own = held[:, :, reach : reach + length]
    y[:, : full * length].reshape(lines, full, length)[...] = own[:, :full]
    if full < parts:
        y[:, full * length :] = own[:, full, : size - full * length]


def recurse_along(x: np.ndarray, y: np.ndarray, axis: int, by: Recursion, boundary: str, fill: float) -> None:
    """y = x filtered along an axis, both C-contiguous, of one shape and float dtype; both may be one."""
    size, after = x.shape[axis], int(np.prod(x.shape[axis + 1 :]))
    lanes = simd.lanes(x.itemsize)
    if 1 < after < lanes:  # lines that lie neither along rows nor side by side
        turned = np.moveaxis(x, axis, -1).copy()  # C-contiguous, and not x where no axis is moved
        recurse_along(turned, turned, x.ndim - 1, by, boundary, fill)
        y[...] = np.moveaxis(turned, -1, axis)
        return
    before = x.size // (size * after)
    parts, _ = parts_of_lines(before, size, by.reach, x.itemsize)
    if after == 1 and parts > 1:
        _recurse_by_parts(x.reshape(before, size), y.reshape(before, size), by, boundary, fill, parts)
        return
    sources = np.array(source_indices(boundary, size, by.reach, by.reach))
    numbers, filled = by.numbers.astype(x.dtype), np.full(1, fill, x.dtype)
    wide = WIDTH * lanes * x.itemsize
    panel = wide * (size + lanes + 1)
    tasks = max(1, min(plan_threads(), before * after // (WIDTH * lanes)))
    scratch = aligned_empty(tasks * 2 * panel, np.uint8)
    values = (
        x.ctypes.data, y.ctypes.data, scratch.ctypes.data, 2 * panel, tasks, before, size, after,
        sources.ctypes.data, by.reach, numbers.ctypes.data, filled.ctypes.data, panel,
    )  # fmt: skip
    record = np.array([values], RECURSION_FIELDS)
    jit.launch(filter_recursively(x.itemsize, lanes, by.pairs), record.ctypes.data, tasks, tasks > 1)
