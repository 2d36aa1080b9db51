"""Convolutions without the outer taps that reach into padding alone: large dilations on small maps."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from convalgos.core.problem import ConvProblem


@lru_cache(4096)
def of_reached_taps(problem: ConvProblem) -> ConvProblem:
    """The problem of the taps that read the map somewhere; as many go on either side of the kernel.

    Example:
        >>> atrous = ConvProblem((1, 8, 16, 16), (8, 8, 3, 3), padding=24, dilation=24)
        >>> of_reached_taps(atrous).kernel  # all but the middle read zeros
        (1, 1)
    """
    left_out = list(map(_left_out, *_dimensions(problem)))
    if not any(left_out):
        return problem
    pairs = list(zip(left_out, problem.dilation, problem.padding, strict=True))
    return problem.with_valid(
        w_shape=(*problem.w_shape[:2], *(k - 2 * n for k, n in zip(problem.kernel, left_out, strict=True))),
        padding=tuple((low - n * d, high - n * d) for n, d, (low, high) in pairs),
    )


def reaches_all(problem: ConvProblem) -> bool:
    """Whether `of_reached_taps` leaves a problem as it is, or is not for it as it has groups."""
    if problem.groups > 1 or problem.is_pointwise:
        return True
    return not any(map(_left_out, *_dimensions(problem)))


def _dimensions(problem: ConvProblem) -> tuple[Any, ...]:
    """What `_left_out` takes, of all dimensions."""
    p = problem
    return p.spatial, p.kernel, p.stride, p.padding, p.dilation, p.y_shape[2:]


def reached_filter(w: np.ndarray, problem: ConvProblem) -> np.ndarray:
    """The taps of a filter that a problem of `of_reached_taps` has."""
    if w.shape == problem.w_shape:
        return w
    for axis, (k, own) in enumerate(zip(w.shape[2:], problem.kernel, strict=True), 2):
        w = w.take(range((k - own) // 2, (k + own) // 2), axis)
    return w


def _left_out(n: int, taps: int, stride: int, padding: tuple[int, int], dilation: int, outputs: int) -> int:
    """Taps at either end of a dimension that read nothing but zeros."""
    low, high = padding
    last = stride * (outputs - 1) - low  # where the first tap reads for the last output
    count = 0
    while (
        taps - 2 * count > 1 and min(low, high) >= (count + 1) * dilation
        and last + count * dilation < 0 and (taps - 1 - count) * dilation - low >= n
    ):  # fmt: skip
        count += 1
    return count
