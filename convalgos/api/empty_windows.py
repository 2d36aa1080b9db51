"""Windows that meet no element of x: dilated ones, between whose taps all of it lies.

Their maximum is -inf (of integers the least number), which lies nowhere: index -1, and no part of a gradient.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from convalgos.core.layouts import to_logical
from convalgos.core.pool_problem import PoolProblem

NOWHERE = -1


def empty_windows(problem: PoolProblem) -> np.ndarray | None:
    """(*spatial_out,) bool: the windows that meet no element; None where all meet some."""
    along = [windows.taps == 0 for windows in problem.windows]
    if not any(empty.any() for empty in along):
        return None
    found: np.ndarray = reduce(np.logical_or.outer, along)
    return found


def mark_nowhere(places: np.ndarray, problem: PoolProblem, empty: np.ndarray) -> None:
    """Say of the maxima of these windows that they lie nowhere; places in the order of memory."""
    to_logical(places, problem.layout, problem.y_shape[1])[:, :, empty] = NOWHERE


def write_gradient(
    dy: np.ndarray, dx: np.ndarray, places: np.ndarray, problem: PoolProblem, empty: np.ndarray
) -> None:
    """Write dx, each dy to the place of its maximum, all in the order of memory, by NumPy: it is rare."""
    logical: Any = [to_logical(array, problem.layout, problem.y_shape[1]) for array in (dy, places)]
    given, found = (array[:, :, ~empty] for array in logical)  # (N, C, windows that meet x)
    target = to_logical(dx, problem.layout, problem.y_shape[1])
    sums = np.zeros((*target.shape[:2], target[0, 0].size), np.float64)
    image, channel, _ = np.indices(given.shape, sparse=True)
    np.add.at(sums, (image, channel, found), given)
    target[...] = sums.reshape(target.shape)
