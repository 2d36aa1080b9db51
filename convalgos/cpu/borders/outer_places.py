"""What a gradient of a map with a border has beside that of a map with zeros around it.

Places beyond the edges are copies of elements of the map, so that what comes to them belongs to these. A
group are such places that the same taps reach: one place along an axis, with all inside of the axes before it
and all of those behind it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np

from convalgos.core.boundaries import OUTSIDE, ZERO, source_indices
from convalgos.core.problem import ConvProblem

NOWHERE = -1  # no output lies under a tap at a place


@dataclass(frozen=True)
class PlaceGroup:
    """Places beyond the edges, what they are copies of, and the outputs that taps reach from them."""

    targets: np.ndarray  # (places,) pixels of x
    taps: np.ndarray  # (taps,) of the kernel
    outputs: np.ndarray  # (taps, places) pixels of y, or NOWHERE


@dataclass(frozen=True)
class _Axis:
    """An axis of the map with its border, of as many places."""

    sources: np.ndarray  # (places,) elements of x, or OUTSIDE
    outputs: np.ndarray  # (taps, places) elements of y, or NOWHERE
    inside: range  # places in the map

    @property
    def reached(self) -> tuple[int, int]:
        """(Pairs of taps and outputs that reach places in the map, and beyond its edges)."""
        met = np.count_nonzero(self.outputs != NOWHERE, 0) * (self.sources != OUTSIDE)
        within = int(met[self.inside.start : self.inside.stop].sum())
        return within, int(met.sum()) - within


@lru_cache(256)
def _axes(p: ConvProblem) -> list[_Axis]:
    """Of a problem in 3-D."""
    found = []
    for size, out, taps, stride, dilation, (low, high), boundary in zip(
        p.spatial, p.spatial_out, p.kernel, p.stride, p.dilation, p.padding, p.boundary, strict=True
    ):
        places = np.arange(size + low + high)
        steps = places - np.arange(taps)[:, None] * dilation  # (taps, places), of x
        met = (steps % stride == 0) & (steps >= 0) & (steps < out * stride)
        outputs = np.where(met, steps // stride, NOWHERE)
        found.append(_Axis(source_indices(boundary, size, low, high), outputs, range(low, low + size)))
    return found


def products_beyond(problem: ConvProblem) -> tuple[int, int]:
    """(Products of an input and an output channel in the map, and beyond its edges)."""
    reached = [axis.reached for axis in _axes(problem.as_3d)]
    inside = math.prod(within for within, _ in reached)
    return inside, math.prod(map(sum, reached)) - inside


def outer_places(problem: ConvProblem) -> int:
    """Places beyond the edges that are copies of elements of the map."""
    axes = _axes(problem.as_3d)
    inside = math.prod(len(axis.inside) for axis in axes)
    return math.prod(int(np.count_nonzero(axis.sources != OUTSIDE)) for axis in axes) - inside


@lru_cache(64)
def place_groups(problem: ConvProblem) -> list[PlaceGroup]:
    """The groups of a problem that have any places and taps."""
    p = problem.as_3d
    axes, found = _axes(p), []
    for outer in range(3):
        if p.boundary[outer] == ZERO:
            continue
        whole = [
            np.array(axis.inside) if i < outer else np.flatnonzero(axis.sources != OUTSIDE)
            for i, axis in enumerate(axes)
        ]
        axis = axes[outer]
        for place in range(len(axis.sources)):
            if place not in axis.inside and axis.sources[place] != OUTSIDE:
                places = [np.array([place]) if i == outer else w for i, w in enumerate(whole)]
                found.append(_group(p, axes, places))
    return [group for group in found if group.outputs.size]


def _group(p: ConvProblem, axes: list[_Axis], places: list[np.ndarray]) -> PlaceGroup:
    """Of the places that are any along each axis; taps that reach none are left out."""
    targets = _combined([axis.sources[at] for axis, at in zip(axes, places, strict=True)], p.spatial)
    outputs = [axis.outputs[:, at] for axis, at in zip(axes, places, strict=True)]  # (taps, places)
    met = [np.flatnonzero((o != NOWHERE).any(1)) for o in outputs]
    taps = _combined(met, p.kernel)
    rows = [
        _combined([o[t] for o, t in zip(outputs, tap, strict=True)], p.spatial_out) for tap in product(*met)
    ]
    return PlaceGroup(targets, taps, np.array(rows, np.int64).reshape(len(taps), len(targets)))


def _combined(parts: list[np.ndarray], sizes: tuple[int, ...]) -> np.ndarray:
    """Places in an array of some sizes from those along its axes; NOWHERE where one of these is."""
    d, h, w = np.ix_(*parts)
    flat: np.ndarray = (d * sizes[1] + h) * sizes[2] + w
    flat[(d < 0) | (h < 0) | (w < 0)] = NOWHERE
    return flat.ravel()
