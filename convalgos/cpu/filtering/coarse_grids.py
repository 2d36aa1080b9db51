"""Coarse grids along an axis, and the sums of rows that lead to them, along them and back.

Where what lies beyond a border is a mirror image, or the other end, so are the sums around the places of a
grid that has this symmetry, too: only those inside are computed.
"""

from __future__ import annotations

import math

import numpy as np

from convalgos.core.boundaries import source_indices
from convalgos.cpu.filtering.row_sums import RowSums

# Places beyond each end that have sums of their own; of all others these are those of places within
BEYOND = {"edge": 2, "constant": 1, "zero": 1, "reflect": 0, "symmetric": 0, "wrap": 0}

WHOLE = "whole"  # in the place of a boundary: of lines in blocks of some steps, wherever they end
NUDGED = 1 + 2.0**-19  # times as much are sums that are cut off to integers, so that roundings do not count


def cubic(t: np.ndarray) -> np.ndarray:
    """The cubic B-spline."""
    t = np.abs(t)
    return np.where(t < 1, 2 / 3 - t**2 + t**3 / 2, np.maximum(2 - t, 0) ** 3 / 6)


def fitting_step(boundary: str, size: int, most: float) -> float:
    """The largest step, up to one, of a grid that ends as an axis of some elements does."""
    if boundary == WHOLE:
        return math.floor(most)
    if boundary in ("symmetric", "wrap"):
        return size / math.ceil(size / most)
    return (size - 1) / math.ceil((size - 1) / most) if size > 1 else most


def sums_on_grid(
    boundary: str, size: int, step: float, middle: np.ndarray
) -> tuple[RowSums, RowSums | None, RowSums]:
    """To the grid, along it by a short filter, and back; None where the first does both.

    step: of `fitting_step`.
    """
    within = max(1, round(size / step if boundary in ("symmetric", "wrap") else (size - 1) / step))
    start = (step - 1) / 2 if boundary == "symmetric" else 0.0  # of the first place, in elements
    ends = boundary not in ("symmetric", "wrap")  # whether the last place is the last element
    beyond, count = BEYOND[boundary], within + ends
    down = _to_grid(boundary, size, step, start + np.arange(-beyond, count + beyond) * step)
    at = (np.arange(size) - start) / step
    before = np.floor(at).astype(np.int64)  # (size,) the place before each element
    before = np.minimum(before, within - 1) if ends else before
    first, places = int(before[0]) - 1, int(before[-1] - before[0]) + 4  # that are interpolated between
    begin = first - len(middle) // 2 + beyond  # of what the first of them is a sum of
    low, high = max(0, -begin), max(0, begin + places + len(middle) - 1 - down.rows)
    sources = source_indices(boundary, down.rows, low, high)
    along = RowSums(np.arange(places) + begin + low, sources, middle[None])
    fine = cubic(np.arange(-1, 3) - (at - before)[:, None])  # (size, 4)
    up = RowSums(before - 1 - first, np.arange(places), fine)
    if places * size <= down.rows * down.weights.shape[1]:
        return _at_once(down, along, size), None, up
    return down, along, up


def grid_matrices(
    boundary: str, size: int, step: float, middle: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """(size, places) to the grid and along it, (places, size) back, by which rows of elements are multiplied,
    and (size,) what a fill value of 1 adds to them then, or None where it has no part."""
    down, along, up = sums_on_grid(boundary, size, step, middle)
    once = down if along is None else _at_once(down, along, size)
    back = np.zeros((once.rows, size))
    back[up.firsts + np.arange(4)[:, None], np.arange(size)] = up.weights.T
    filled = once.weights[:, size] @ back if once.weights.shape[1] > size else None
    return np.ascontiguousarray(once.weights[:, :size].T), back, filled


def _to_grid(boundary: str, size: int, step: float, places: np.ndarray) -> RowSums:
    """Sums around places of an axis, which are numbers of elements."""
    firsts = np.floor(places - 2 * step).astype(np.int64) + 1
    taps = np.arange(math.ceil(4 * step))
    weights = cubic((firsts[:, None] + taps - places[:, None]) / step)  # (places, taps)
    low, high = max(0, -int(firsts[0])), max(0, int(firsts[-1]) + len(taps) - size)
    return RowSums(firsts + low, source_indices(boundary, size, low, high), weights / weights.sum(1)[:, None])


def _at_once(down: RowSums, middle: RowSums, size: int) -> RowSums:
    """Two of the steps of a short axis as one: every place of the grid is a sum of all elements."""
    taps = down.weights.shape[1]
    sums = np.zeros((down.rows + 1, size + 1))  # by element, and of the fill value, which is the last row
    sums[-1, -1] = 1
    sources = down.sources[down.firsts[:, None] + np.arange(taps)]  # (rows, taps), -1 where it is that
    np.add.at(sums, (np.arange(down.rows)[:, None], sources), down.weights)
    around = middle.sources[middle.firsts[:, None] + np.arange(middle.weights.shape[1])]  # (places, taps)
    weights = np.einsum("t,ptn->pn", middle.weights[0], sums[around])  # (places, size + 1)
    elements = size + bool(weights[:, -1].any())
    sources = np.append(np.arange(size), -1)[:elements]
    return RowSums(np.zeros(middle.rows, np.int64), sources, weights[:, :elements])
