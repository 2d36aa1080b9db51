"""Gaussian filters on coarser grids: every element is read once and written once, however wide the filter.

What a wide Gaussian leaves of an array changes slowly, and need not be computed everywhere. Along each axis:

1. cubic B-splines sum up the elements around every `step`-th place: four products for each element;
2. a short filter, which makes the whole of the three steps the Gaussian, goes over the sums;
3. cubic B-splines interpolate between them: four products for each element.

All axes are made coarse before any is made fine again, so that most of the work is done on few numbers. The
error that is left is the sum of absolute differences of the weights, at the place where it is largest.

Source: Crochiere and Rabiner 1981, "Interpolation and decimation of digital signals", Proc. IEEE 69; with the
splines of Unser, Aldroubi and Eden 1993, "B-spline signal processing", IEEE Trans. Signal Processing 41.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.core.arguments import Shape
from convalgos.core.boundaries import source_indices
from convalgos.cpu.filtering.row_sums import RowPass, RowSums
from convalgos.cpu.layout.reorder import Reorder
from convalgos.cpu.runtime.threads import cached_by_threads, plan_threads

# Standard deviations in steps of the grid, from the coarsest grid to a fine one
RATIOS = (1.8, 2.0, 2.2, 2.6, 3.0, 4.0)
LEAST_STEP = 5  # with which it takes less time than a recursion; Zen 4
NARROW = 64  # bytes of neighbours along the later axes, below which rows are turned over
FEW_TURNED = 3 << 14  # elements that NumPy turns over before a run is bound; Sapphire Rapids
PHASES = 9  # places between two of the grid at which the error is found
PERIOD = 256  # of the transforms that find the short filter, in steps
ROUNDED = 4  # roundings of a type, times the root of the products of a sum


class CoarseGaussian(NamedTuple):
    """A Gaussian along an axis by way of a grid.

    spline: (4 * step - 1,) its sum is 1; middle: (odd,) the short filter; error: as a share of the weights.
    """

    spline: np.ndarray
    middle: np.ndarray
    error: float


@lru_cache(64)
def coarse_gaussian(sigma: float, reach: int, step: int) -> CoarseGaussian:
    """In the place of 2 * reach + 1 weights."""
    spline = _cubic(np.arange(1 - 2 * step, 2 * step) / step) / step
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    weights /= weights.sum()
    half = -(-reach // step)
    near = np.arange(-half, half + 1)
    samples = np.zeros(max(PERIOD, 4 * half))
    samples[near[np.abs(near * step) <= reach]] = weights[reach % step :: step]
    both = np.zeros(samples.size)  # a spline by a spline, at the places of the grid
    both[np.arange(-3, 4)] = np.convolve(spline, spline)[step - 2 :: step][:7] * step
    middle = np.fft.ifft(np.fft.fft(samples) / np.fft.fft(both)).real[near]
    middle /= middle.sum()
    return CoarseGaussian(spline, middle, _error(weights, step, spline, middle))


def _cubic(t: np.ndarray) -> np.ndarray:
    """The cubic B-spline."""
    t = np.abs(t)
    return np.where(t < 1, 2 / 3 - t**2 + t**3 / 2, np.maximum(2 - t, 0) ** 3 / 6)


def _error(weights: np.ndarray, step: int, spline: np.ndarray, middle: np.ndarray) -> float:
    """The sum of absolute differences from the weights, the largest of those of all places."""
    reach, half = len(weights) // 2, len(middle) // 2
    around = (half + 4) * step  # of the grid, which no sum goes beyond
    worst = 0.0
    for place in np.unique(np.linspace(0, step // 2, PHASES).astype(int)):
        fine = _cubic(np.arange(-1, 3) - place / step)  # (4,) of the grid's places -1 to 2
        coarse = np.convolve(middle, fine)  # (2 * half + 4,) of -1 - half to 2 + half
        found = np.zeros(2 * around + 1)
        at = around + (np.arange(len(coarse)) - 1 - half) * step - place
        for begin, weight in zip(at - 2 * step + 1, coarse, strict=True):
            found[begin : begin + len(spline)] += weight * spline
        room = max(0, reach - around)
        found = np.pad(found, room)
        found[len(found) // 2 - reach : len(found) // 2 + reach + 1] -= weights
        worst = max(worst, float(np.abs(found).sum()))
    return worst


def steps_within(
    filters: Sequence[tuple[float, int]], dtype: np.dtype, max_rel_error: float
) -> list[int] | None:
    """Steps of the coarsest grids for (sigma, reach) of some axes that stay within an error together, if any
    do."""
    for ratio in RATIOS:
        steps = [int(sigma / ratio) for sigma, _ in filters]
        if min(steps) < LEAST_STEP:
            return None
        found = [coarse_gaussian(*each, step) for each, step in zip(filters, steps, strict=True)]
        rounded = sum(ROUNDED * math.sqrt(4 * step) for step in steps) * float(np.finfo(dtype).eps)
        if math.prod(1 + each.error for each in found) - 1 + rounded <= max_rel_error:
            return steps
    return None


class CoarseAxis(NamedTuple):
    """An axis, what lies beyond its ends, and the Gaussian along it: see `coarse_gaussian`."""

    axis: int
    boundary: str
    sigma: float
    reach: int
    step: int


def why_not_coarse(shape: Sequence[int], axes: Sequence[CoarseAxis], itemsize: int) -> str | None:
    """Why `smooth_coarsely` takes longer than other ways, in a sentence, or None."""
    first = min(one.axis for one in axes)
    if math.prod(shape[first + 1 :]) * itemsize < NARROW:
        return "rows along the first of the axes would be turned over before there are fewer of them"
    return None


def smooth_coarsely(x: np.ndarray, y: np.ndarray, axes: Sequence[CoarseAxis], fill: float) -> None:
    """y = x filtered along some axes; both C-contiguous, of one float dtype, and apart from each other.

    axes: in their order in the array.
    """
    _chain(x.shape, x.dtype, tuple(axes), fill).run(x, y)


@cached_by_threads(64)
def _chain(shape: Shape, dtype: np.dtype, axes: tuple[CoarseAxis, ...], fill: float) -> _Chain:
    return _Chain(shape, dtype, axes, fill)


class _Chain:
    """Passes of which each reads what the one before has written."""

    def __init__(self, shape: Shape, dtype: np.dtype, axes: tuple[CoarseAxis, ...], fill: float):
        self._dtype, self._fill, self._threads = dtype, fill, plan_threads()
        self._passes: list[RowPass | _Turn] = []
        self._add(shape, axes)
        counts = [one.count for one in self._passes[:-1]]
        self._sizes = [max(counts[i::2], default=0) for i in range(2)]

    def _add(self, shape: Shape, axes: tuple[CoarseAxis, ...]) -> None:
        one, *others = axes
        size, outer = shape[one.axis], math.prod(shape[: one.axis])
        inner = math.prod(shape[one.axis + 1 :])
        if inner * self._dtype.itemsize < NARROW and outer > 1:
            self._passes.append(_Turn(outer, size * inner, self._dtype))
            later = tuple(each._replace(axis=each.axis - one.axis) for each in axes)
            self._add((*shape[one.axis :], outer), later)
            self._passes.append(_Turn(size * inner, outer, self._dtype))
            return
        down, middle, up = _steps(one, size)
        self._sum(outer, size, inner, down)
        if others:
            self._add((*shape[: one.axis], down.rows, *shape[one.axis + 1 :]), tuple(others))
        if middle:
            self._sum(outer, down.rows, inner, middle)
        self._sum(outer, (middle or down).rows, inner, up)

    def _sum(self, outer: int, rows: int, inner: int, by: RowSums) -> None:
        self._passes.append(RowPass(outer, rows, inner, self._dtype, by, self._fill, self._threads))

    def run(self, x: np.ndarray, y: np.ndarray) -> None:
        """Many threads may run it at once."""
        held = [aligned_empty(size, self._dtype) for size in self._sizes]
        *others, last = self._passes
        for i, one in enumerate(others):
            one.run(x, held[i % 2])
            x = held[i % 2]
        last.run(x, y)


class _Turn:
    """y (columns, rows) = x (rows, columns), turned over."""

    def __init__(self, rows: int, columns: int, dtype: np.dtype):
        self.count = rows * columns
        self._shapes = (1, rows, columns), (1, columns, rows)
        self._reorder = Reorder(self._shapes[0], dtype.itemsize, "channels_first", "channels_last")

    def run(self, x: np.ndarray, y: np.ndarray) -> None:
        one, other = (a[: self.count].reshape(s) for a, s in zip((x, y), self._shapes, strict=True))
        if self.count <= FEW_TURNED:
            np.copyto(other, one.swapaxes(1, 2))
        else:
            self._reorder.bind(one, other).run()


def _steps(one: CoarseAxis, size: int) -> tuple[RowSums, RowSums | None, RowSums]:
    """To the grid, along it, and back, of an axis of some elements; None where the first does both.

    The grid has a place at the first element. Outputs are between its places -1 and the second one behind the
    last element; the short filter reaches farther.
    """
    step, by = one.step, coarse_gaussian(one.sigma, one.reach, one.step)
    half = len(by.middle) // 2
    places = (size - 1) // step + 4  # that are interpolated between
    count = places + 2 * half
    low = (half + 1) * step + 2 * step - 1
    high = (count - 1) * step + 4 * step - 1 - low - size
    sources = source_indices(one.boundary, size, low, high)  # (low + size + high,)
    down = RowSums(np.arange(count) * step, sources, by.spline[None])
    middle = RowSums(np.arange(places), np.arange(count), by.middle[None])
    phases = np.arange(step)[:, None] / step
    fine = _cubic(np.arange(-1, 3) - phases)  # (step, 4)
    up = RowSums(np.arange(size) // step, np.arange(places), fine)
    if places * size <= count * len(by.spline):
        return _at_once(down, middle, size), None, up
    return down, middle, up


def _at_once(down: RowSums, middle: RowSums, size: int) -> RowSums:
    """Two of the steps of a short axis as one: every place of the grid is a sum of all elements."""
    taps = down.weights.shape[1]
    sums = np.zeros((down.rows, size + 1))  # by element, and of the fill value
    sources = down.sources[down.firsts[:, None] + np.arange(taps)]  # (rows, taps), -1 where it is that
    np.add.at(sums, (np.arange(down.rows)[:, None], sources), down.weights)
    around = middle.firsts[:, None] + np.arange(middle.weights.shape[1])
    weights = np.einsum("t,ptn->pn", middle.weights[0], sums[around])  # (places, size + 1)
    elements = size + bool(weights[:, -1].any())
    sources = np.append(np.arange(size), -1)[:elements]
    return RowSums(np.zeros(middle.rows, np.int64), sources, weights[:, :elements])
