"""Minima and maxima of windows of any shape: each row of a footprint is a few runs of neighbours."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from convalgos.core.arguments import shown
from convalgos.core.axis_windows import AxisWindow
from convalgos.core.boundaries import OUTSIDE, source_indices
from convalgos.cpu.sliding.kernels import MINIMUM
from convalgos.cpu.sliding.passes import slide_along
from convalgos.ndimage.arguments import InvalidArgument


def whole_footprint(footprint: Any, ndim: int, axes: Sequence[int]) -> np.ndarray:
    """A footprint of some axes, in their order in the array, as one of all `ndim` of these, of booleans.

    Raises:
        InvalidArgument: it has other axes, or no elements.
    """
    marked = np.asarray(footprint, dtype=bool)
    if marked.ndim != len(axes):
        raise InvalidArgument(f"footprint.ndim ({marked.ndim}) must match len(axes) ({len(axes)})")
    if not marked.any():
        raise InvalidArgument("All-zero footprint is not supported: at least one element must be true")
    return np.expand_dims(marked, tuple(axis for axis in range(ndim) if axis not in axes))


def slide_footprint(
    x: np.ndarray, y: np.ndarray, footprint: np.ndarray, lows: Sequence[int], boundary: str, fill: float,
    reduction: int,
) -> None:  # fmt: skip
    """y = the minima or maxima of x under a footprint, whose runs are windows along the last axis.

    Args:
        x, y: C-contiguous, of one shape and dtype, apart from each other.
        lows: elements of the footprint before the place of the output, along each axis.
        fill: what lies beyond a constant border, which the dtype can hold.
    """
    for axis, (taps, low) in enumerate(zip(footprint.shape, lows, strict=True)):
        at = source_indices(boundary, y.shape[axis], low, taps - 1 - low)
        x = x.take(at, axis)  # of index -1, too, which is then overwritten
        if boundary == "constant":
            np.moveaxis(x, axis, 0)[at == OUTSIDE] = fill
    x = np.ascontiguousarray(x)
    extreme = np.minimum if reduction == MINIMUM else np.maximum
    begun = False
    for length, runs in groupby(sorted(_runs(footprint)), key=lambda run: run[0]):
        windows = x
        if length > 1:
            windows = np.empty_like(x)
            slide_along(x, windows, reduction, [(x.ndim - 1, AxisWindow(x.shape[-1], length))])
        for _, place in runs:
            part = windows[tuple(slice(p, p + n) for p, n in zip(place, y.shape, strict=True))]
            if begun:
                extreme(y, part, out=y)
            else:
                y[...] = part
            begun = True


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


def _runs(footprint: np.ndarray) -> Iterator[tuple[int, tuple[int, ...]]]:
    """(neighbours, place of the first) of each run of marked elements along the last axis."""
    for row in np.ndindex(footprint.shape[:-1]):
        for marked, group in groupby(enumerate(footprint[row]), key=lambda each: bool(each[1])):
            if marked:
                places = [i for i, _ in group]
                yield len(places), (*row, places[0])
