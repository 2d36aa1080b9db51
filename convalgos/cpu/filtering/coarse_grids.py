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
RANKED = 1 << 12  # places times elements of which a rank is found in less than a millisecond; Zen 5
LOST = 2.0**-17  # of the sum of weights, at most, by the rank
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
    if places * size <= down.rows * down.weights.shape[1] + places * len(middle):
        return _at_once(down, along, size), None, up
    return down, along, up


def sums_of_rows(
    boundary: str, size: int, step: float, middle: np.ndarray, most: float = 1.0
) -> tuple[RowSums, tuple[RowSums, ...]]:
    """(to fewer rows, from these on back) along an axis of rows, by as few products as there can be.

    most: times the products of the grid, up to which sums are of all rows.

    Rows of few elements are sums of all of them, in a number of ways that is the rank of the whole matrix: 1
    where the filter is much wider than the axis. It may differ by `LOST`.
    """
    down, along, up = sums_on_grid(boundary, size, step, middle)
    after = (up,) if along is None else (along, up)
    products = sum(by.rows * by.weights.shape[1] for by in (down, *after))
    places = (along or down).rows
    if places * size > RANKED:
        return down, after
    once = down if along is None else _at_once(down, along, size)
    chosen, by_chosen = _fewest_rows(once.weights)
    rank, taken = len(chosen), up.firsts[:, None] + np.arange(up.weights.shape[1])
    back = np.einsum("it,itr->ir", up.weights, by_chosen[taken])  # (size, rank)
    firsts = np.zeros(size, np.int64)
    if size < 2 * rank:  # one product for all, and exactly
        return RowSums(firsts, once.sources, np.einsum("it,itr->ir", up.weights, once.weights[taken])), ()
    if 2 * rank * size > most * products:
        return down, after
    ranked = RowSums(firsts[:rank], once.sources, once.weights[chosen])
    return ranked, (RowSums(firsts, np.arange(rank), back),)


def _fewest_rows(matrix: np.ndarray) -> tuple[list[int], np.ndarray]:
    """Rows of a matrix (rows, n) of which all are sums, and by what (rows, chosen).

    Rows that each sum up to 1, such as means, are sums by weights that do so, too.
    """
    left, chosen = matrix.copy(), list[int]()  # what the chosen ones leave of each row
    while np.abs(left).sum(1).max() > LOST / 2:  # the other half is for sums that stay
        norms = np.einsum("ij,ij->i", left, left)
        chosen.append(int(norms.argmax()))
        direction = left[chosen[-1]] / math.sqrt(norms.max())
        left -= np.outer(left @ direction, direction)
    by, sums = np.linalg.lstsq(matrix[chosen].T, matrix.T, rcond=None)[0].T, matrix.sum(1)
    return chosen, by + ((sums - by @ sums[chosen]) / sums[chosen].sum())[:, None]


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
