"""A correlation along one axis, and which sums lead to its integers.

Integers that come out are SciPy's to the last bit: of sums that are exact, or whose error is known and which
are summed again, in SciPy's order, where that could matter, or of sums in that order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from convalgos.core.axis_windows import AxisWindow
from convalgos.cpu.filtering import line_sums

EXACT, CLOSE, ORDERED = "exact", "close", "ordered"  # how integers come of sums
MOST_ERROR = 1 / 256  # of sums that are settled: of sixteen, one in eight times one lies so close
RARE, NEAR = 128, 1e-9  # sums of multiples of smaller fractions are seldom whole; float64 multiples
SCALES = 1, 16, 256  # by which weights may be whole numbers
MOST_SINGLE = float(np.finfo(np.float32).max)
DIGITS = {4: 24, 8: 53}  # of sums of so many bytes


class LineStep(NamedTuple):
    """A correlation along one axis: y[i] = sum_t weights[t] * x[i + t - window.low]."""

    axis: int
    weights: tuple[float, ...]
    window: AxisWindow  # of as many taps, whose size is not read: that of the array is
    fill: float  # what lies outside with "constant"

    @property
    def of_any_size(self) -> LineStep:
        """The same, which is equal to those of other sizes."""
        return self._replace(window=self.window._replace(size=0))


@lru_cache(256)
def way_of_sums(step: LineStep, dtype: np.dtype, size: int) -> str:
    """How sums of fused products lead to the integers that sums in SciPy's order are cut off to.

    EXACT: no sum is rounded. CLOSE: those next to whole numbers are settled, and few. ORDERED: in no way.

    Args:
        dtype: of what is summed.
        size: bytes of an element of the sums.
    """
    if dtype.kind == "f" or not abs(step.fill * 16) < 2**20 or not (step.fill * 16).is_integer():
        return ORDERED  # float32 may not hold what lies outside
    terms = _largest_sum(step, dtype)
    whole = step.fill.is_integer()
    for scale in SCALES:
        fits = terms * scale < 2.0 ** DIGITS[size]
        if whole and fits and all((w * scale).is_integer() for w in step.weights):
            return EXACT
    near = rounding_of_sums(step, dtype, size) >= MOST_ERROR or _often_whole(step.weights)
    return ORDERED if near else CLOSE


@lru_cache(256)
def _often_whole(weights: tuple[float, ...]) -> bool:
    """Whether sums of integers are often whole: weights of means are all multiples of one fraction."""
    parts = np.array(weights)[:, None] * np.arange(1, RARE)  # (taps, fractions)
    return bool((np.abs(parts - parts.round()) < NEAR).all(0).any())


def rounding_of_sums(step: LineStep, dtype: np.dtype, size: int) -> float:
    """At most, between a sum of fused products with rounded weights and one in SciPy's order."""
    return (len(step.weights) + 3) * _largest_sum(step, dtype) / 2.0 ** DIGITS[size]


def _largest_sum(step: LineStep, dtype: np.dtype) -> float:
    return max(_largest_of(dtype), abs(step.fill)) * math.fsum(map(abs, step.weights))


@lru_cache(64)
def _largest_of(dtype: np.dtype) -> int:
    """Absolute value of a type of integers or booleans."""
    return 255 if dtype.kind == "b" else max(-int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))


def fit_single(weights: Sequence[float]) -> bool:
    """Whether float32 holds them: the product of 0 with a weight that is infinite there would be NaN."""
    return min(weights) >= -MOST_SINGLE and max(weights) <= MOST_SINGLE


@lru_cache(256)
def order_of_sums(weights: tuple[float, ...]) -> int:
    """The kernel that sums products in the order of SciPy."""
    half = len(weights) // 2
    before, behind = np.array(weights[:half]), np.array(weights[: -half - 1 : -1] if half else ())
    if len(weights) % 2:
        near = np.finfo(np.float64).eps
        if not (np.abs(before - behind) > near).any():
            return line_sums.SYMMETRIC
        if not (np.abs(before + behind) > near).any():
            return line_sums.ANTISYMMETRIC
    return line_sums.IN_ORDER
