"""Phases of a strided kernel that have a tap less than the others, and the products that they do not need.

A kernel of 3 taps with stride 2 has phases of 2 taps and of 1, which is filled up with a zero. At the last
point of a Winograd transform, which is infinity, a transformed filter is its last tap alone: there the
products of such a phase are zero, and are left out.
"""

from __future__ import annotations

import numpy as np


def ordered_phases(rows: int, columns: int, short: tuple[int, int]) -> np.ndarray:
    """(rows * columns,) where each phase stands among the channels of a tile.

    First phases with short rows only, then whole ones, then those with short columns only, then the rest: so
    the phases that have products at a point are neighbours.

    Args:
        rows, columns: phases along them.
        short: how many of these, the last ones, have a tap less.
    """
    row, column = np.indices((rows, columns)).reshape(2, -1)
    short_row, short_column = row >= rows - short[0], column >= columns - short[1]
    kind = np.where(short_row, np.where(short_column, 3, 0), np.where(short_column, 2, 1))
    return np.argsort(np.argsort(kind, kind="stable"), kind="stable").astype(np.int64)


def phases_at_points(phases: tuple[int, int], short: tuple[int, int], points: tuple[int, int]) -> np.ndarray:
    """(points, 2) the first phase that has products at a point, as `ordered_phases` has them, and how many.

    Args:
        phases, short, points: along rows and along columns.
    """
    (rows, columns), (short_rows, short_columns) = phases, short
    only_rows = short_rows * (columns - short_columns)  # phases that are short along rows only
    found = np.empty((points[0] * points[1], 2), np.int64)
    for i, j in np.ndindex(*points):
        first = only_rows if short_rows and i == points[0] - 1 else 0
        end = rows * columns - short_rows * short_columns if first else rows * columns
        if short_columns and j == points[1] - 1:
            end = rows * columns - rows * short_columns
        found[i * points[1] + j] = first, end - first
    return found
