"""Gradients of maps in chunks whose border is made of the map: what came to the border is added to the map.

A border is thin, so each block that has a part of it gets the whole border of its side, and takes its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from convalgos.core.borders.extended import extended
from convalgos.core.boundaries import COPIES, source_indices
from convalgos.core.problem import ConvProblem
from convalgos.dask.engine import DaskArray, da
from convalgos.dask.maps import Order, of_blocks


def extended_problem(problem: ConvProblem) -> ConvProblem:
    """The problem on the map with its border, whose outputs are the same; itself where zeros lie beyond."""
    return problem if problem.is_zero_padded else extended(problem).problem


def border_added(dx: DaskArray, problem: ConvProblem, order: Order) -> DaskArray:
    """The gradient of a map from that of the one with its border."""
    dtype = dx.dtype
    if dtype.itemsize == 2:  # sums are rounded once
        dx = dx.astype(np.float32)
    for axis in extended(problem).axes:
        boundary, size = problem.boundary[axis.axis], problem.spatial[axis.axis]
        at = order.laid((None, None, *range(problem.ndim))).index(axis.axis)
        sources = source_indices(boundary, size, *problem.padding[axis.axis])
        whole, dx = dx, dx[_along(at, axis.inside)]
        for outside in axis.outside if boundary in COPIES else ():
            if outside.stop > outside.start:
                dx = _added(dx, whole[_along(at, outside)], at, sources[outside])
    return dx.astype(dtype)


@dataclass(frozen=True)
class AddedBorder:
    """A block with what came to copies of its elements."""

    axis: int

    def __call__(self, block: np.ndarray, border: np.ndarray, copied: np.ndarray) -> np.ndarray:
        """copied: (of the border's length,) the element of the block that each place is a copy of, or < 0."""
        here = copied >= 0
        if not here.any():
            return block
        y = np.array(block)
        np.add.at(np.moveaxis(y, self.axis, 0), copied[here], np.moveaxis(border, self.axis, 0)[here])
        return y


def _added(dx: DaskArray, border: DaskArray, axis: int, sources: np.ndarray) -> DaskArray:
    """dx with the border of one side."""
    ends = pairwise(accumulate(dx.chunks[axis], initial=0))
    copied = [np.where((sources >= first) & (sources < stop), sources - first, -1) for first, stop in ends]
    labels = tuple(range(dx.ndim))
    return da.blockwise(
        AddedBorder(axis), labels, dx, labels, border.rechunk({axis: -1}), labels, *of_blocks(copied, axis),
        align_arrays=False, dtype=dx.dtype, meta=dx._meta, token="border",
    )  # fmt: skip


def _along(axis: int, where: slice) -> tuple[Any, ...]:
    return (*(slice(None),) * axis, where)
