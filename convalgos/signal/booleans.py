"""Lines of booleans convolved: an output is true where any product is; integers of a byte count these."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from convalgos.signal.modes import MODES

# Products up to which, and taps from which on, NumPy's loop is faster, which ends at the first true product;
# Zen 4
FEW, MANY_TAPS = 1 << 15, 64


def convolved_booleans(
    x: np.ndarray, w: np.ndarray, mode: str, correlates: bool, function: Callable[..., np.ndarray]
) -> np.ndarray | None:
    """The convolution, or correlation, of lines of booleans; None for what SciPy refuses.

    Args:
        function: the convolution, or the correlation, of integers, called as function(x, w, mode).
    """
    if not x.ndim == w.ndim == 1 or mode not in MODES or not x.size or not w.size:
        return None
    if mode == "same" and x.size < w.size:
        return None
    if x.size * w.size <= FEW or min(x.size, w.size) >= MANY_TAPS:
        w = w[::-1] if correlates else w
        y: np.ndarray = np.convolve(x, w, mode)  # type: ignore[call-overload] # one of its modes
        return y
    sums = function(x.astype(np.int8), w.astype(np.int8), mode)
    some: np.ndarray = np.not_equal(sums, 0)
    return some
