"""Where rows and columns of inputs under tiles of dy go: to dx, to what they are copies of, or nowhere.

Of several boxes along the rows, each brings what it alone or as the first has to dx. What others have for the
same rows, and the rows beyond the edges of the map, are kept apart, and added behind all boxes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from convalgos.core.allocator import whole_lines
from convalgos.core.boundaries import OUTSIDE, source_indices
from convalgos.core.problem import ConvProblem
from convalgos.cpu.tiled.geometry import TiledAxis
from convalgos.cpu.tiled.overlap_schedule import OverlapSchedule

DROPPED = -1  # a row that belongs to nothing; row i of those kept apart is APART - i
APART = -2


class OverlapTables(NamedTuple):
    """Rows and columns are counted from the first under the tiles of a box."""

    places: np.ndarray  # (boxes along the rows, rows of a box): the row of dx, DROPPED or APART
    folded_rows: np.ndarray  # (pairs, 2) of a box that has all: a row, and the one to which it is added
    folded_columns: np.ndarray  # (pairs, 2)
    targets: np.ndarray  # (rows apart,) of dx


@lru_cache(64)
def overlap_tables(problem: ConvProblem, cut: OverlapSchedule) -> OverlapTables:
    p, (rows, columns) = problem.as_3d, cut.inputs
    of_rows, of_columns = _sources(p, 1, rows), _sources(p, 2, columns)
    count, boxes = cut.reached[0], cut.cuts[2]
    places = np.full((boxes, count), DROPPED)
    targets: list[int] = []
    step = rows.outputs * rows.lattices
    for box in range(boxes):
        first, end = (step * (rows.tiles * b // boxes) for b in (box, box + 1))
        for row in range(first, min(first + count, len(of_rows))):
            inside = 0 <= row - rows.pad < rows.size
            if of_rows[row] == OUTSIDE or (boxes == 1 and not inside):
                continue
            if inside and (row < end or box == boxes - 1):
                places[box, row - first] = row - rows.pad
            elif row < end + (rows.taps - 1) * rows.lattices:
                places[box, row - first] = APART - len(targets)
                targets.append(int(of_rows[row]))
    folded_rows = _folds(of_rows, rows) if boxes == 1 else np.zeros((0, 2), np.int64)
    return OverlapTables(places, folded_rows, _folds(of_columns, columns), np.array(targets, np.int64))


def apart_bytes(problem: ConvProblem, cut: OverlapSchedule) -> int:
    """Of the rows that are kept apart."""
    p = problem.as_3d
    rows = len(overlap_tables(problem, cut).targets)
    return whole_lines(rows * p.N * p.C * p.spatial[0] * p.spatial[2] * p.itemsize)


def _sources(p: ConvProblem, dimension: int, axis: TiledAxis) -> np.ndarray:
    """(places,) what each place under all tiles is a copy of, or OUTSIDE."""
    reached = axis.span(axis.tiles)
    of_border = source_indices(p.boundary[dimension], axis.size, *p.padding[dimension])
    return np.concatenate([of_border, np.full(max(0, reached - len(of_border)), OUTSIDE)])[:reached]


def _folds(sources: np.ndarray, axis: TiledAxis) -> np.ndarray:
    """The places beyond the edges that are copies of others, and these."""
    at = np.arange(len(sources)) - axis.pad
    beyond = np.flatnonzero((sources != OUTSIDE) & ((at < 0) | (at >= axis.size)))
    return np.stack([beyond, sources[beyond] + axis.pad], 1).astype(np.int64)
