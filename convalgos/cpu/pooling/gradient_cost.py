"""What gradients of planes take with channels last: window by window, or separated by columns and rows.

Nanoseconds of a thread of a Xeon (Granite Rapids) with vectors of 64 bytes, found on 600 random maps of 2 KB
to 24 MB, of float32 and float64. What is chosen there takes a twentieth longer than the faster way.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from convalgos.core.pool_problem import PoolProblem, PoolWindows
from convalgos.cpu.pooling.tables import in_three
from convalgos.cpu.vectors import simd


class _Tap(NamedTuple):
    """A tap of a window of a vector of channels, which is found and added to."""

    whole: float
    masked: float  # of fewer channels,
    again: float  # and the same where windows overlap: what was just stored by a mask is loaded


WINDOW = 1.5  # a window of a vector,
PIXEL = 1.2  # and a pixel that is zero at first
TAPS = {"max": _Tap(1.3, 2.2, 3.9), "mean": _Tap(0.5, 1.1, 2.7)}
# Separated: a vector whose maximum is gone on with, or that is added; one that is read and written;
# and a pixel that is copied, of each of its vectors and of all
FOUND, ADDED, PASSED, COPIED, BEGUN = 1.5, 0.55, 0.8, 0.5, 0.5


def scattered_seconds(problem: PoolProblem) -> float:
    """Of one thread, window by window."""
    depth, height, width = in_three(problem)
    channels, lanes = problem.x_shape[1], _lanes(problem)
    whole, part = divmod(channels, lanes)
    vectors = whole + bool(part)
    apart = height.kernel <= height.stride and width.kernel <= width.stride
    tap = TAPS[problem.reduction]
    taps = (
        height.kernel * width.kernel * (whole * tap.whole + bool(part) * (tap.masked if apart else tap.again))
    )
    outputs = len(height.first) * len(width.first)
    each = outputs * (taps + WINDOW * vectors) + height.size * width.size * vectors * PIXEL
    return 1e-9 * problem.x_shape[0] * depth.size * each


def separated_seconds(problem: PoolProblem) -> float:
    """Of one thread, of windows of a plane."""
    _, height, width = in_three(problem)
    channels, lanes = problem.x_shape[1], _lanes(problem)
    rows, outputs = len(height.first), len(width.first)
    x_line, y_line = (count * channels / lanes for count in (width.size, outputs))  # vectors
    added = height.size * (_windows_over(height) * y_line + _windows_over(width) * x_line)
    each = ADDED * added + PASSED * (2 * height.size * x_line + rows * y_line)
    copied = height.size
    if problem.reduction == "max":
        under = min(height.size, rows * height.kernel)  # rows of x that are gone over
        each += FOUND * y_line * (under * width.kernel + rows * height.kernel)
        copied += under
    if width.stride > 1:
        each += copied * width.size * (COPIED * math.ceil(channels / lanes) + BEGUN)
    return 1e-9 * problem.x_shape[0] * each


def _windows_over(windows: PoolWindows) -> float:
    """Over each element, in the mean."""
    return len(windows.first) * windows.kernel / windows.size


def _lanes(problem: PoolProblem) -> int:
    return simd.lanes(max(4, problem.itemsize))
