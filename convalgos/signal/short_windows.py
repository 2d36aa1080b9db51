"""Short signals and small images by all their windows side by side, times the filter: no problem, no plan."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from convalgos.signal.mixed_types import promoted
from convalgos.signal.modes import larger

# Elements of all windows up to which nothing else is faster; Zen 4, two threads.
GATHERED = 1 << 16
# The same of arrays of which one lies inside the other, along several axes; and products of few windows,
# of real floats, which plans sum with vectors and threads, and of others; Sapphire Rapids
GATHERED_INSIDE = 1 << 15
FEW, PRODUCTS, OTHER_PRODUCTS = 8, 1 << 18, 1 << 23
DOT = 1 << 12  # products of a piece that BLAS sums: it wakes no threads, and rounding stays small


def times_windows(
    x: np.ndarray, w: np.ndarray, strides: tuple[int, ...], counts: tuple[int, ...]
) -> np.ndarray:
    """(..., *counts) or (..., *counts, filters): the sums over windows that begin `strides` apart.

    Args:
        x: (..., *spatial), contiguous.
        w: (*kernel) or (filters, *kernel), of x's type; it is not flipped.
        counts: of windows along each of the last axes, which all lie inside x.
    """
    n, steps = len(counts), x.strides
    kernel, lines, ahead = w.shape[w.ndim - n :], x.shape[: x.ndim - n], steps[: x.ndim - n]
    inside = steps[x.ndim - n :]
    along = tuple([s * by for s, by in zip(inside, strides, strict=True)])
    windows: np.ndarray = np.ndarray(  # (*kernel, ..., *counts), elements of x
        (*kernel, *lines, *counts), x.dtype, x, 0, (*inside, *ahead, *along)
    )
    if w.ndim == n:
        rows = windows.reshape(w.size, -1)  # (taps, ... * counts)
        y: np.ndarray = w.reshape(w.size) @ rows
        return y.reshape(*lines, *counts)
    rows = windows.reshape(w[0].size, -1)
    y = rows.T @ w.reshape(len(w), -1).T  # (... * counts, filters)
    return y.reshape(*lines, *counts, len(w))


def few_inside(in1: Any, in2: Any, mode: str, correlates: bool) -> np.ndarray | None:
    """Convolutions, or correlations, of arrays one of which is inside the other at few places; else None."""
    if mode != "valid" or type(in1) is not np.ndarray or type(in2) is not np.ndarray:
        return None
    if not 1 < in1.ndim == in2.ndim or not in1.size or not in2.size:
        return None
    if (which := larger(in1.shape, in2.shape)) is None:
        return None
    if (mixed := promoted(in1, in2)) is not None:
        x, w, dtype = mixed
    elif {in1.dtype.char, in2.dtype.char} in ({"f", "F"}, {"d", "D"}):
        dtype = np.result_type(in1, in2)
        x, w = in1.astype(dtype, copy=False), in2.astype(dtype, copy=False)
    else:
        return None
    turned = (slice(None, None, -1),) * x.ndim
    if correlates:
        w = w[turned].conj()
    x, w = (w, x) if which else (x, w)
    counts = tuple(n - k + 1 for n, k in zip(x.shape, w.shape, strict=True))
    outputs = math.prod(counts)
    with np.errstate(all="ignore"):  # NumPy warns of what is not finite, SciPy's sums do not
        if outputs <= FEW and outputs * w.size <= (PRODUCTS if dtype.char in "fd" else OTHER_PRODUCTS):
            y, taps = np.empty(counts, dtype), w[turned]
            for at in np.ndindex(counts):
                window = x[tuple(slice(i, i + k) for i, k in zip(at, w.shape, strict=True))]  # (*kernel)
                y[at] = _dot(window, taps) if dtype.kind == "c" else (window * taps).sum(dtype=dtype)
            return y
        if outputs * w.size <= GATHERED_INSIDE:
            taps = np.ascontiguousarray(w[turned])
            return times_windows(np.ascontiguousarray(x), taps, (1,) * x.ndim, counts)
    return None


# --- inside ----------------------------------------------------------------------------------


def _dot(x: np.ndarray, w: np.ndarray) -> np.generic:
    """The sum of the products of complex elements, without an array of these."""
    a, b = x.reshape(-1), w.reshape(-1)
    parts = [a[i : i + DOT] @ b[i : i + DOT] for i in range(0, a.size, DOT)]
    total: np.generic = np.sum(parts, dtype=x.dtype)
    return total
