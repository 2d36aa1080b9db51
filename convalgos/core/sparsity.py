"""The zeros of a filter, as a problem tells of them: how many there are, and in which pattern they lie.

`density` is the share of elements that are not zero. In pattern "N:M" at most N of M neighbouring input
channels are not zero; in "blockRxC" zeros fill blocks of R filters by C input channels. What is computed does
not depend on either: they are what costs depend on.

Source of N:M: Mishra et al. 2021, arXiv:2104.08378.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from convalgos.core import arguments
from convalgos.core.filter_patterns import KERNEL_PATTERNS, pattern_of


def checked_zeros(density: Any, pattern: Any) -> tuple[float, str]:
    """(density, pattern) of a problem from its arguments; None stands for what the pattern allows.

    Raises:
        ValueError: names the argument, its value and what would be valid.
    """
    known = pattern_of(pattern)
    kind, first, second, left_out = known
    pattern = known.text if left_out else str(pattern)
    most = first / second if kind == "N:M" else 1.0
    if density is None:
        return most, pattern
    if kind in KERNEL_PATTERNS and density != 1:
        raise ValueError(f"density={arguments.shown(density)} must be 1 with pattern={pattern!r}")
    arguments.check_number("density", density, 0)
    if density > most:
        raise ValueError(
            f"density={arguments.shown(density)} must be at most {most} with pattern={pattern!r}"
        )
    return float(density), pattern


def random_places(
    shape: tuple[int, ...], density: float, pattern: str, rng: np.random.Generator
) -> np.ndarray:
    """Whether elements of a random filter (K, C/groups, *kernel) are not zero, by density and pattern."""
    kind, first, second, _ = pattern_of(pattern)
    filters, channels = shape[:2]
    if kind == "block":
        blocks = -(-filters // first), -(-channels // second), *shape[2:]
        kept = rng.random(blocks, np.float32) < density
        return kept.repeat(first, axis=0)[:filters].repeat(second, axis=1)[:, :channels]
    if kind == "N:M":  # of each M channels N in a row, from any of them on
        begin = rng.integers(0, second, (filters, -(-channels // second), *shape[2:]))
        begin = begin.repeat(second, axis=1)[:, :channels]
        turn = np.arange(channels).reshape(-1, *(1,) * (len(shape) - 2))
        kept = (turn + begin) % second < first
        return kept & (rng.random(shape, np.float32) < density * second / first)
    return rng.random(shape, np.float32) < density


def is_sparse_matrix(array: Any) -> bool:
    """Whether it is a sparse matrix or array of SciPy, of any format."""
    return hasattr(array, "nnz") and hasattr(array, "toarray")


def dense_filter(matrix: Any, shape: tuple[int, ...]) -> Any:
    """A filter of a shape (K, C/groups, *kernel) from a sparse matrix of a row for each output channel.

    Raises:
        ValueError: it has another shape.
    """
    flat = shape[0], math.prod(shape[1:])
    if matrix.shape != flat:
        raise ValueError(f"w has shape {matrix.shape}, but a sparse matrix of a filter {shape} has {flat}")
    return matrix.toarray().reshape(shape)
