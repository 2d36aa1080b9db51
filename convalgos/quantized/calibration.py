"""Scale and zero point of a tensor from samples of it, which come in batches and are seen once.

What is kept of them is their least and largest number and a histogram. Its bins are a power of two wide, and
where a batch reaches further, pairs of them are merged: it is the same in whatever order the batches come.

Source: Migacz 2017, "8-bit inference with TensorRT" (histograms); Choukroun et al. 2019, arXiv:1902.06822
(least mean squared error).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Real
from typing import Any

import numpy as np

from convalgos.core import arguments
from convalgos.core.arrays import as_numpy
from convalgos.core.element_types import DTYPES
from convalgos.quantized.linear import integer_dtype, scale_of_range, to_integers, to_numbers

METHODS = ("min_max", "percentile", "mse")
HALF = 8192  # bins on either side of 0: at least 32 for each of 256 integers, after both ends are cut by half
CUTS = 64  # of a range, that are tried in a sweep
SWEEPS = 3  # over both ends: the last one changes nothing in most tensors


def calibrate(
    batches: Iterable[Any],
    method: str = "min_max",
    *,
    dtype: Any = "uint8",
    symmetric: bool = False,
    percentile: float = 99.99,
) -> tuple[Any, Any]:
    """Find scale and zero point of a tensor from samples of it.

    Args:
        batches: arrays of any shapes, such as what a layer reads for image after image. A generator will do:
            each batch is looked at once, and none is kept.
        method: what range the integers shall reach over: "min_max", of all numbers; "percentile", of so many
            percent of them; "mse", the one of the least mean squared error, those beyond it being clipped.
        dtype: "uint8" or "int8".
        symmetric: as in `quantize`; ranges are then of absolute values.
        percentile: above 50, up to 100. What is beyond it is cut off at both ends by half, where symmetric is
            False.

    Returns:
        (scale, zero_point), for `quantize` and `conv`.

    Raises:
        ValueError: there are no numbers in batches, or NaN or infinity; another argument is not valid.
            TypeError: a batch is not of a floating-point type.

    Example:
        >>> import numpy as np, convalgos as ca
        >>> images = (np.full((3, 8, 8), i, np.float32) for i in range(256))
        >>> scale, zero_point = ca.quantized.calibrate(images)
        >>> float(scale), int(zero_point)
        (1.0, 0)
    """
    arguments.one_of("method", method, METHODS)
    kind = integer_dtype(dtype)
    if not isinstance(percentile, Real) or isinstance(percentile, bool) or not 50 < percentile <= 100:
        raise ValueError(f"percentile={arguments.shown(percentile)} must be above 50 and at most 100")
    seen = Histogram()
    for i, batch in enumerate(batches):
        seen.add(f"batches[{i}]", batch, count=method != "min_max")
    if not seen.any:
        raise ValueError("batches must hold at least one number: there was none")
    low, high = seen.low, seen.high
    if method == "percentile":
        low, high = seen.within(float(percentile) / 100, symmetric)
    if method == "mse":
        low, high = _least_error(seen, kind, symmetric)
    return scale_of_range(low, high, kind, symmetric)


class Histogram:
    """How many numbers lie where; bin i is [i - HALF, i - HALF + 1) * width, and width a power of two."""

    def __init__(self) -> None:
        self.low, self.high = 0.0, 0.0  # 0 is always in the range
        self.any = False
        self.width = 0.0
        self.counts = np.zeros(2 * HALF, np.int64)

    def add(self, name: str, batch: Any, count: bool = True) -> None:
        """Look at a batch; without `count`, at its least and largest number only."""
        array = as_numpy(name, batch)
        if array.dtype.name not in DTYPES:
            raise TypeError(f"{name} has dtype {array.dtype}, which must be one of {', '.join(DTYPES)}")
        if not array.size:
            return
        array = array.astype(np.promote_types(array.dtype, np.float32), copy=False)
        low, high = float(array.min()), float(array.max())
        if not (math.isfinite(low) and math.isfinite(high)):
            raise ValueError(f"{name} must hold finite numbers: its least is {low}, its largest {high}")
        self.any = True
        self.low, self.high = min(self.low, low), max(self.high, high)
        if count:
            self._widen(max(-low, high))
            at = np.floor(array.reshape(-1) / (self.width or 1)).astype(np.int64)
            self.counts += np.bincount(at + HALF, minlength=2 * HALF)

    def _widen(self, reach: float) -> None:
        """Until a number as large as `reach` is inside."""
        if not self.width and reach:  # until now there were zeros only; 2**exponent is above reach
            self.width = math.ldexp(1.0, max(-1000, math.frexp(reach)[1])) / HALF
        while reach and reach >= self.width * HALF:
            pairs = self.counts.reshape(-1, 2).sum(1)  # (HALF,)
            self.counts = np.pad(pairs, HALF // 2)
            self.width *= 2

    def middles(self) -> np.ndarray:
        """(2 * HALF,): the number that stands for those of a bin; 0 for the one that begins there."""
        middles = (np.arange(-HALF, HALF) + 0.5) * self.width
        middles[HALF] = 0
        found: np.ndarray = np.clip(middles, self.low, self.high)
        return found

    def within(self, share: float, symmetric: bool) -> tuple[float, float]:
        """The range that holds this share of the numbers, to the width of a bin."""
        ends = np.arange(-HALF, HALF + 1) * self.width
        if symmetric:
            sizes = self.counts[HALF:] + self.counts[:HALF][::-1]  # (HALF,)
            reach = min(ends[HALF + 1 + _first(sizes, share)], max(-self.low, self.high))
            return -reach, reach
        side = (1 + share) / 2
        high = ends[1 + _first(self.counts, side)]
        low = ends[::-1][1 + _first(self.counts[::-1], side)]
        return max(self.low, min(0.0, low)), min(self.high, max(0.0, high))


def _first(counts: np.ndarray, share: float) -> int:
    """The first bin up to whose end there is this share of all."""
    sums = np.cumsum(counts)
    return min(len(sums) - 1, int(np.searchsorted(sums, share * sums[-1])))


def _least_error(seen: Histogram, dtype: np.dtype, symmetric: bool) -> tuple[float, float]:
    """The range of the least mean squared error: both ends are cut in turn, by what helps most."""
    there = np.flatnonzero(seen.counts)
    numbers, counts = seen.middles()[there], seen.counts[there]

    def error(low: float, high: float) -> float:
        scale, zero_point = scale_of_range(low, high, dtype, symmetric)
        given = numbers.astype(np.float32)
        found = to_numbers(to_integers(given, scale, zero_point), scale, zero_point)
        return float(np.dot(counts, (found.astype(np.float64) - numbers) ** 2))

    shares = np.arange(CUTS, 0, -1) / CUTS  # the first of equal errors is that of the least cut
    if symmetric:
        reach = max(-seen.low, seen.high)
        reach *= min(shares, key=lambda share: error(-share * reach, share * reach))
        return -reach, reach
    low, high = seen.low, seen.high
    for _ in range(SWEEPS):
        if seen.low:
            low = min((share * seen.low for share in shares), key=lambda end: error(end, high))
        high = min((share * seen.high for share in shares), key=lambda end: error(low, end))
    return low, high
