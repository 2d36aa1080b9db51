"""Lines no longer than their filter, which is a square matrix then: all outputs are sums of all samples."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from convalgos.core.boundaries import OUTSIDE, source_indices
from convalgos.signal.problems import all_finite

SHORT = 64  # samples of a line, up to which products of matrices are faster than sums; Sapphire Rapids
# Products of a line with a filter that is longer, up to which they are those of a matrix; and so many times
# as many of few lines; Zen 5
MATRIX, FEW_LINES, OF_FEW = 1 << 15, 8, 4
ONE_THREAD = 1 << 18  # products up to which NumPy's OpenBLAS wakes no threads


def of_short_lines(
    x: np.ndarray, w: np.ndarray, axis: int, low: int, boundary: str, fill: float
) -> np.ndarray | None:
    """y[i] = sum_t w[t] * x[i + t - low] along an axis; None of longer lines, and of what is not finite.

    Both are of one type, float32 or float64.

    Args:
        boundary: of `core.boundaries`, with `fill` beyond the ends where that is "constant".
    """
    n = x.shape[axis]
    if n > SHORT or not (all_finite(x) and all_finite(w)):  # what is not would spread to all outputs
        return None
    by, of_fill = _matrix(w.tobytes(), x.dtype.char, n, low, boundary)
    y = np.empty(x.shape, x.dtype)
    if axis == x.ndim - 1:
        rows, of_rows, step = x.reshape(-1, n), y.reshape(-1, n), ONE_THREAD // n**2
        for first in range(0, len(rows), step):
            np.matmul(rows[first : first + step], by, out=of_rows[first : first + step])
        if fill:
            y += (of_fill * fill).astype(x.dtype)
        return y
    planes, columns = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    images, of_y, step = x.reshape(planes, n, columns), y.reshape(planes, n, columns), ONE_THREAD // n**2
    for first in range(0, columns, step):
        part = slice(first, first + step)
        np.matmul(by.T, images[..., part], out=of_y[..., part])
    if fill:
        of_y += (of_fill * fill).astype(x.dtype)[:, None]
    return y


def by_longer_filter(x: np.ndarray, h: np.ndarray, axis: int, first: int, count: int) -> np.ndarray | None:
    """Elements [first, first + count) of the full convolution of the lines along an axis with h (k,).

    As many products as samples for each output, where other sums have one for each tap. Both are of one type.
    None of lines that are not short, of filters that are no longer, and of what is not finite.
    """
    n, k = x.shape[axis], h.size
    most = MATRIX * (OF_FEW if x.size // n <= FEW_LINES else 1)
    if not 1 < n <= SHORT or k <= n or n * count > most or not (all_finite(x) and all_finite(h)):
        return None
    padded = np.zeros(2 * (n - 1) + k, h.dtype)
    padded[n - 1 : n - 1 + k] = h
    step = padded.strides[0]
    # (n, count): sample j counts for output i by tap first + i - j
    by = np.ascontiguousarray(np.ndarray((n, count), h.dtype, padded, (n - 1 + first) * step, (-step, step)))
    rows = np.moveaxis(x, axis, -1).reshape(-1, n)
    y, chunk = np.empty((len(rows), count), x.dtype), max(1, _products_at_once(x.dtype) // (n * count))
    for start in range(0, len(rows), chunk):
        np.matmul(rows[start : start + chunk], by, out=y[start : start + chunk])
    shape = [size for i, size in enumerate(x.shape) if i != axis]
    return np.moveaxis(y.reshape(*shape, count), -1, axis)


def times_matrix(by: np.ndarray, x: np.ndarray, axis: int) -> np.ndarray:
    """(..., outputs, ...): the lines along an axis, each times by (outputs, n). Both are of one precision."""
    ahead, behind = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    outputs, n = by.shape
    whole = np.ascontiguousarray(x)
    y = np.empty((*x.shape[:axis], outputs, *x.shape[axis + 1 :]), np.result_type(by, x))
    if by.dtype.kind == "f":  # of complex numbers both parts are lines
        whole, of_y = whole.view(whole.real.dtype), y.view(by.dtype)
        behind *= x.itemsize // by.itemsize
    else:
        whole, of_y = whole.astype(y.dtype, copy=False), y
    images, of_y = whole.reshape(ahead, n, behind), of_y.reshape(ahead, outputs, behind)
    step = max(1, _products_at_once(by.dtype) // by.size)
    for first in range(0, behind, step):
        part = slice(first, first + step)
        np.matmul(by, images[..., part], out=of_y[..., part])
    return y


# --- inside ----------------------------------------------------------------------------------


def _products_at_once(dtype: np.dtype) -> int:
    return ONE_THREAD >> 2 * (dtype.kind == "c")  # of which one is four


@lru_cache(256)
def _matrix(taps: bytes, kind: str, n: int, low: int, boundary: str) -> tuple[np.ndarray, np.ndarray]:
    """(n, n), what each sample counts for in each output, and (n,), what the fill value does."""
    w = np.frombuffer(taps, kind)
    at = source_indices(boundary, n, low, w.size - 1 - low)  # (n + k - 1,)
    at = np.where(at == OUTSIDE, n, at)
    output = np.arange(n)[:, None]
    place = output * (n + 1) + at[output + np.arange(w.size)]  # (outputs, taps), in the flat weights
    weights = np.bincount(place.reshape(-1), np.tile(w, n), n * (n + 1)).reshape(n, n + 1)
    return weights[:, :n].T.astype(kind), weights[:, n]
