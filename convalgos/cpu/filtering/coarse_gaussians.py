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
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.core.arguments import Shape
from convalgos.cpu.filtering.coarse_grids import (
    LOST,
    NUDGED,
    cubic,
    fitting_step,
    sums_of_rows,
    sums_on_grid,
)
from convalgos.cpu.filtering.coarse_lines import BlockPass
from convalgos.cpu.filtering.grid_lines import GridLinePass
from convalgos.cpu.filtering.panel_passes import PanelPass, takes_panels
from convalgos.cpu.filtering.plane_products import PlanePass, are_of_all, widest_row
from convalgos.cpu.filtering.row_sums import RowPass, RowSums
from convalgos.cpu.runtime.array_steps import ArrayStep, array_steps_of, chained
from convalgos.cpu.runtime.threads import cached_by_threads, plan_threads

# Standard deviations in steps of the grid, from the coarsest grid to a fine one
RATIOS = (1.8, 2.0, 2.2, 2.6, 3.0, 4.0)
LEAST_STEP = 5  # with which it takes less time than a recursion; Zen 4
PLANES = 15  # elements of rows, up to which lines across them are turned over to lie in rows; Zen 5
SMALL = 1 << 17  # bytes between two passes that may begin anywhere: a place of its own takes 2 us
PHASES = 9  # places between two of the grid at which the error is found
SPLINES = np.array((1, 120, 1191, 2416, 1191, 120, 1)) / 5040  # a cubic B-spline by another, on the grid
PERIOD = 256  # of the transforms that find the short filter, in steps
ROUNDED = 4  # roundings of a type, times the root of the products of a sum


class CoarseGaussian(NamedTuple):
    """A Gaussian along an axis by way of a grid.

    middle: (odd,) the short filter; error: as a share of the weights.
    """

    middle: np.ndarray
    error: float


@lru_cache(64)
def coarse_gaussian(sigma: float, reach: int, step: float) -> CoarseGaussian:
    """In the place of 2 * reach + 1 weights."""
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    total = weights.sum()
    half = math.ceil(reach / step)
    near = np.arange(-half, half + 1)
    samples = np.zeros(max(PERIOD, 4 * half))
    samples[near] = np.where(np.abs(near * step) <= reach, np.exp(-0.5 * (near * step / sigma) ** 2), 0)
    both = np.zeros(samples.size)
    both[np.arange(-3, 4)] = SPLINES
    middle = np.fft.ifft(np.fft.fft(samples) / np.fft.fft(both)).real[near]
    middle /= middle.sum()
    return CoarseGaussian(middle, _error(weights / total, step, middle))


def _error(weights: np.ndarray, step: float, middle: np.ndarray) -> float:
    """The sum of absolute differences from the weights, the largest of those of all places."""
    reach, half = len(weights) // 2, len(middle) // 2
    numbers = np.arange(-1 - half, half + 3)  # (2 * half + 4,) places of the grid that an output is made of
    around = max(reach, math.ceil((half + 4) * step))  # elements on each side
    expected = np.pad(weights, around - reach)  # (2 * around + 1,)
    worst = 0.0
    for place in np.linspace(0, step / 2, PHASES):
        coarse = np.convolve(middle, cubic(np.arange(-1, 3) - place / step))  # (2 * half + 4,)
        at = numbers * step - place
        sums = cubic((np.arange(-around, around + 1) - at[:, None]) / step)  # (2 * half + 4, elements)
        found = (coarse / sums.sum(1)) @ sums
        worst = max(worst, float(np.abs(found - expected).sum()))
    return worst


def steps_within(
    filters: Sequence[tuple[float, int]], lines: Sequence[tuple[str, int]], dtype: np.dtype,
    max_rel_error: float,
) -> list[float] | None:  # fmt: skip
    """Steps of the coarsest grids for (sigma, reach) of some axes, of (boundary, size), that stay within an
    error together, if any do."""
    for ratio in RATIOS:
        most = [sigma / ratio for sigma, _ in filters]
        if min(most) < LEAST_STEP:
            return None
        steps = [fitting_step(*line, step) for line, step in zip(lines, most, strict=True)]
        found = [coarse_gaussian(*each, step) for each, step in zip(filters, steps, strict=True)]
        rounded = sum(ROUNDED * math.sqrt(4 * step) for step in steps) * float(np.finfo(dtype).eps)
        rounded += LOST * len(steps)
        if math.prod(1 + each.error for each in found) - 1 + rounded <= max_rel_error:
            return steps
    return None


class CoarseAxis(NamedTuple):
    """An axis, what lies beyond its ends, and the Gaussian along it: see `coarse_gaussian`.

    in_blocks: it is the last axis, and filtered by a `BlockPass`; its step is a whole number.
    """

    axis: int
    boundary: str
    sigma: float
    reach: int
    step: float
    in_blocks: bool = False


@cached_by_threads(64)
def coarse_chain(
    shape: Shape, dtype: np.dtype, axes: tuple[CoarseAxis, ...], fill: float, of: np.dtype | None = None,
    into: np.dtype | None = None,
) -> CoarseChain:  # fmt: skip
    """What filters arrays of a shape along some axes, in their order in the array, in a float dtype.

    of, into: short integers of x or y, where they are not of dtype.
    """
    return CoarseChain(shape, dtype, axes, fill, of, into)


class CoarseChain:
    """Passes of which each reads what the one before has written."""

    def __init__(
        self, shape: Shape, dtype: np.dtype, axes: tuple[CoarseAxis, ...], fill: float, of: np.dtype | None,
        into: np.dtype | None,
    ):  # fmt: skip
        self._dtype, self._fill, self._threads = dtype, fill, plan_threads()
        self._count = math.prod(shape)
        self._passes: list[RowPass | BlockPass | GridLinePass | PanelPass | PlanePass] = []
        self._add(shape, axes, of, into)
        counts = [one.count for one in self._passes[:-1]]
        self._sizes = [max(counts[i::2], default=0) for i in range(2)]
        is_small = max(self._sizes) * dtype.itemsize < SMALL
        self._empty: Callable[..., np.ndarray] = np.empty if is_small else aligned_empty

    def _add(
        self, shape: Shape, axes: tuple[CoarseAxis, ...], of: np.dtype | None, into: np.dtype | None
    ) -> None:
        one, *others = axes
        size, outer = shape[one.axis], math.prod(shape[: one.axis])
        inner = math.prod(shape[one.axis + 1 :])
        if one.in_blocks:
            filtered = coarse_gaussian(one.sigma, one.reach, one.step).middle
            given = outer, size, self._dtype, int(one.step), filtered, one.boundary
            self._passes.append(BlockPass(*given, self._fill, self._threads, of, into))
            return
        if inner <= PLANES:
            if others:  # along lines of so few elements that nothing is spared by making rows coarse first
                self._add(shape, tuple(others), of, None)
                of = None
            self._filter_lines(one, outer, size, inner, of, into)
            return
        if not others and self._sum_planes(one, outer, size, inner, of, into):
            return
        filtered = coarse_gaussian(one.sigma, one.reach, one.step).middle
        down, back = sums_of_rows(one.boundary, size, one.step, filtered)
        ends = not others and not back
        self._sum(outer, size, inner, down, of, into if ends else None)
        if others:
            fewer = (*shape[: one.axis], down.rows, *shape[one.axis + 1 :])
            self._add(fewer, tuple(others), None, None if back else into)
        rows = down.rows
        for number, by in enumerate(back, 1):
            self._sum(outer, rows, inner, by, None, into if number == len(back) else None)
            rows = by.rows

    def _filter_lines(
        self, one: CoarseAxis, outer: int, size: int, inner: int, of: np.dtype | None, into: np.dtype | None
    ) -> None:
        """Lines of elements that are at most a few elements apart."""
        if self._sum_planes(one, outer, size, inner, of, into):
            return
        filtered = coarse_gaussian(one.sigma, one.reach, one.step).middle
        down, middle, up = sums_on_grid(one.boundary, size, one.step, filtered)
        up = _nudged(up, into)
        if inner == 1 and takes_panels(outer, size, one.step, self._dtype.itemsize):
            sums = [each for each in (down, middle, up) if each is not None]
            panels = PanelPass(outer, size, self._dtype, sums, self._fill, self._threads, of, into)
            self._passes.append(panels)
        else:
            given = outer, size, self._dtype, down, middle, up, self._fill, self._threads
            self._passes.append(GridLinePass(*given, of, into, inner))

    def _sum_planes(
        self, one: CoarseAxis, outer: int, size: int, inner: int, of: np.dtype | None, into: np.dtype | None
    ) -> bool:
        """Whether planes of short rows are summed by matrices."""
        if not 1 < inner <= widest_row(self._dtype):
            return False
        filtered = coarse_gaussian(one.sigma, one.reach, one.step).middle
        down, back = sums_of_rows(one.boundary, size, one.step, filtered, math.inf)
        *others, last = down, *back
        sums = [*others, _nudged(last, into)]
        if not are_of_all(size, sums):
            return False
        given = outer, size, inner, self._dtype, sums, self._fill, self._threads
        self._passes.append(PlanePass(*given, of, into))
        return True

    def _sum(
        self, outer: int, rows: int, inner: int, by: RowSums, of: np.dtype | None = None,
        into: np.dtype | None = None,
    ) -> None:  # fmt: skip
        given = outer, rows, inner, self._dtype, _nudged(by, into), self._fill, self._threads
        self._passes.append(RowPass(*given, of=of, into=into))

    @property
    def run(self) -> Callable[[np.ndarray, np.ndarray], None]:
        """y = x filtered, by calls with x and y; many threads may run it at once.

        x, y: C-contiguous, and apart from each other. A single pass is what is called.
        """
        return self._passes[0].run if len(self._passes) == 1 else self

    @property
    def array_steps(self) -> list[ArrayStep] | None:
        """What a call does, for `array_steps.array_steps_of`, whose buffers have as many elements as y."""
        if max(one.count for one in self._passes) > self._count:
            return None
        return chained([array_steps_of(one.run) for one in self._passes])

    def __call__(self, x: np.ndarray, y: np.ndarray) -> None:
        held = [self._empty(size, self._dtype) for size in self._sizes]
        *others, last = self._passes
        for i, one in enumerate(others):
            one.run(x, held[i % 2])
            x = held[i % 2]
        last.run(x, y)


def _nudged(up: RowSums, into: np.dtype | None) -> RowSums:
    """Sums that are cut off to integers, if there is a type of these."""
    return up if into is None else up._replace(weights=up.weights * NUDGED)
