"""Minima and maxima of windows of any shape: by their marked elements, or by runs of these in its rows."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any

import numpy as np

from convalgos.core.arguments import Shape, shown
from convalgos.core.axis_windows import AxisWindow
from convalgos.core.boundaries import OUTSIDE, source_indices
from convalgos.cpu.sliding.marked import MarkedWindow
from convalgos.cpu.sliding.passes import Slides
from convalgos.cpu.sliding.reductions import MINIMUM
from convalgos.ndimage.arguments import InvalidArgument
from convalgos.ndimage.conversions import cast, holds
from convalgos.ndimage.known_calls import Write

BAND = 1 << 18  # bytes of rows that are reduced together
FEW = 20  # marked elements for each run of them, up to which each by itself takes less time; Xeon

Run = tuple[Slides | None, list[tuple[slice, ...]]]  # see `_windows_of`


def whole_footprint(marked: np.ndarray, ndim: int, axes: Sequence[int]) -> np.ndarray:
    """A footprint of booleans of some axes, in their order in the array, as one of all `ndim` of these.

    Raises:
        InvalidArgument: it has other axes, or no elements.
    """
    if marked.ndim != len(axes):
        raise InvalidArgument(f"footprint.ndim ({marked.ndim}) must match len(axes) ({len(axes)})")
    if not marked.any():
        raise InvalidArgument("All-zero footprint is not supported: at least one element must be true")
    return np.expand_dims(marked, tuple(axis for axis in range(ndim) if axis not in axes))


class Footprint:
    """Minima or maxima under a footprint, of arrays of a shape and a dtype. Many threads may call it at once.

    A call as f(x, y) fills y. Both are C-contiguous and apart from each other. Bands of rows get their
    borders and stay in the cache meanwhile. Where rows of a footprint have long runs of neighbours, these are
    windows along the last axis.

    Args:
        lows: elements of the footprint before the place of the output, along each axis.
        fill: what lies beyond a constant border, which the dtype can hold.
    """

    def __init__(
        self, shape: Shape, dtype: np.dtype, footprint: np.ndarray, lows: Sequence[int], boundary: str,
        fill: float, reduction: int,
    ):  # fmt: skip
        self._fill, self._extreme = fill, np.minimum if reduction == MINIMUM else np.maximum
        self._sources = [
            source_indices(boundary, size, low, taps - 1 - low)
            for size, taps, low in zip(shape, footprint.shape, lows, strict=True)
        ]
        self._inner = [axis for axis, taps in enumerate(footprint.shape) if axis and taps > 1]
        rows = max(2 * footprint.shape[0], BAND * shape[0] // (math.prod(shape) * dtype.itemsize))
        self._bands = [(first, min(first + rows, shape[0])) for first in range(0, shape[0], rows)]
        self._before = footprint.shape[0] - 1  # rows more of x than of y
        whole = [len(source) for source in self._sources]
        rows_of = {last - first for first, last in self._bands}
        self._runs, self._marked = dict[int, list[Run]](), dict[int, MarkedWindow]()
        places, few = _places(footprint.tobytes(), footprint.shape)
        for n in rows_of:
            if few:
                self._marked[n] = MarkedWindow((n, *shape[1:]), dtype, footprint.shape, places, reduction)
            else:
                self._runs[n] = _windows_of(footprint, whole, dtype, reduction, n)

    def __call__(self, x: np.ndarray, y: np.ndarray) -> None:
        for first, last in self._bands:
            self._fill_band(x, y[first:last], first, last)

    def _fill_band(self, x: np.ndarray, y: np.ndarray, first: int, last: int) -> None:
        """y (last - first, ...), from rows of the whole x."""
        at = self._sources[0][first : last + self._before]
        band = self._padded(x, 0, at) if self._before else x[first:last]
        for axis in self._inner:
            band = self._padded(band, axis, self._sources[axis])
        if self._marked:
            self._marked[last - first].run(np.ascontiguousarray(band), y)
            return
        found = self._parts(band, last - first)
        reduced = next(found)
        for part in found:
            self._extreme(reduced, part, out=y)
            reduced = y
        if reduced is not y:
            y[...] = reduced

    def _parts(self, band: np.ndarray, rows: int) -> Iterator[np.ndarray]:
        """Windows of a padded band whose extremes make so many rows."""
        for slide, parts in self._runs[rows]:
            windows = band
            if slide is not None:
                windows = np.empty_like(band)
                slide(band, windows)
            yield from (windows[part] for part in parts)

    def _padded(self, x: np.ndarray, axis: int, at: np.ndarray) -> np.ndarray:
        """Elements of x along an axis, and what lies beyond its borders."""
        found = x.take(at, axis)  # of index -1, too, which is then overwritten
        if len(outside := np.flatnonzero(at == OUTSIDE)):
            np.moveaxis(found, axis, 0)[outside] = self._fill
        return found


def _windows_of(
    footprint: np.ndarray, whole: Sequence[int], dtype: np.dtype, reduction: int, rows: int
) -> list[Run]:
    """(windows of one length along the last axis, places of their results that make y) of a band of rows."""
    shape = (rows + footprint.shape[0] - 1, *whole[1:])
    sizes = [n - taps + 1 for n, taps in zip(shape, footprint.shape, strict=True)]
    found = []
    for length, runs in groupby(sorted(_runs(footprint)), key=lambda run: run[0]):
        axis = len(shape) - 1
        window = [(axis, AxisWindow(0, length))]
        parts = [tuple(slice(p, p + n) for p, n in zip(place, sizes, strict=True)) for _, place in runs]
        found.append((Slides(shape, dtype, reduction, window) if length > 1 else None, parts))
    return found


def footprint_write(
    shape: Shape, x: np.dtype, y: np.dtype, footprint: np.ndarray, lows: Sequence[int], boundary: str,
    cval: float, reduction: int,
) -> Write:  # fmt: skip
    """What fills arrays of a shape, which have elements, of any two real types."""
    of, into = (np.dtype(np.uint8) if dtype.kind == "b" else dtype for dtype in (x, y))
    if boundary == "constant":  # of the type of x, as SciPy has it for footprints
        cval = float(cast(np.array(cval), of))
    fits = boundary != "constant" or (holds(cval, of) and holds(cval, into))
    dtype = of if fits else np.dtype(np.float64)
    reduced = Footprint(shape, dtype, footprint, lows, boundary, cval, reduction)

    def write(x: np.ndarray, y: np.ndarray) -> None:
        source = np.ascontiguousarray(x.view(of), dtype)
        target = y.view(into)
        found = target if dtype == into else np.empty_like(source)
        reduced(source, found)
        if found is not target:
            target[...] = cast(found, into)

    return write


def origins_of(origin: Any, shape: Sequence[int], axes: Sequence[int]) -> list[int]:
    """Elements of a whole footprint before the place of the output, along each of its axes.

    SciPy's rule: origins have the order of `axes`, or where these are all of the array, that of the array.

    Raises:
        InvalidArgument: an origin outside of it, or another number of them.
    """
    given = list(origin) if np.iterable(origin) else [origin] * len(axes)
    if len(given) != len(axes):
        raise InvalidArgument(f"origin={shown(origin)} must be one value or one for each of {len(axes)} axes")
    axes = axes if len(axes) < len(shape) else range(len(shape))
    lows = [0] * len(shape)
    for axis, shift in zip(axes, given, strict=True):
        lows[axis] = shape[axis] // 2 + operator.index(shift)
        if not 0 <= lows[axis] < shape[axis]:
            raise InvalidArgument(f"invalid origin: origin={shift} lies outside of {shape[axis]} elements")
    return lows


@lru_cache(256)
def _places(marked: bytes, shape: tuple[int, ...]) -> tuple[np.ndarray, bool]:
    """((taps, ndim) of marked elements, whether these are few for each run of them)."""
    footprint = np.frombuffer(marked, bool).reshape(shape)
    places = np.argwhere(footprint)
    return places, len(places) <= FEW * len(list(_runs(footprint)))


def _runs(footprint: np.ndarray) -> Iterator[tuple[int, tuple[int, ...]]]:
    """(neighbours, place of the first) of each run of marked elements along the last axis."""
    for row in np.ndindex(footprint.shape[:-1]):
        for marked, group in groupby(enumerate(footprint[row]), key=lambda each: bool(each[1])):
            if marked:
                places = [i for i, _ in group]
                yield len(places), (*row, places[0])
