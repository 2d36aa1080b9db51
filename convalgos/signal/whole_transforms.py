"""Convolutions by three transforms of whole arrays, through SciPy's FFT: no problem, no plan, no keeping."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy  # whose parts are imported when they are used

SPARE = 0.9  # of what is transformed that is wanted, from which on the rest is not worth a copy
ONE_THREAD = 1 << 18  # elements that are transformed before a second thread has begun


def transformed_whole(
    x: np.ndarray, w: np.ndarray, along: Sequence[int], wanted: Sequence[tuple[int, int]], workers: int = 1
) -> np.ndarray:
    """Elements `wanted`, (first, count), of the full convolution along some axes; the others broadcast.

    Both are of one precision. What is not finite is spread.
    """
    # as long that what wraps around meets no element that is wanted
    least = [
        max(x.shape[i], w.shape[i], first + count, x.shape[i] + w.shape[i] - 1 - first)
        for i, (first, count) in zip(along, wanted, strict=True)
    ]
    real = x.dtype.kind == w.dtype.kind == "f"
    lengths = [scipy.fft.next_fast_len(n, real) for n in least]
    y = cyclic(x, w, lengths, along, workers)
    crops = [slice(None)] * y.ndim
    for i, (first, count) in zip(along, wanted, strict=True):
        crops[i] = slice(first, first + count)
    inside = y[tuple(crops)]
    # of which a small rest would keep the memory of the whole
    return inside.copy() if inside.size < SPARE * y.size else np.ascontiguousarray(inside)


def cyclic(
    x: np.ndarray, w: np.ndarray, lengths: Sequence[int], along: Sequence[int], workers: int
) -> np.ndarray:
    """The cyclic convolution of some lengths along some axes; transforms of one axis begin sooner."""
    fft, several = scipy.fft, "n" if len(along) > 1 else ""
    at: tuple[Any, Any] = (lengths, along) if several else (lengths[0], along[0])
    if x.dtype.kind == w.dtype.kind == "f":
        to, back = getattr(fft, f"rfft{several}"), getattr(fft, f"irfft{several}")
        spectrum = to(x, *at)
        y: np.ndarray = back(spectrum * (spectrum if w is x else to(w, *at)), *at)
        return y
    to, back = getattr(fft, f"fft{several}"), getattr(fft, f"ifft{several}")
    spectrum, other = (to(a, *at, workers=workers) for a in (x, w))
    holds = all(n >= k for n, k in zip(spectrum.shape, other.shape, strict=True))  # else that is repeated
    spectrum = np.multiply(spectrum, other, out=spectrum if holds else None)
    y = back(spectrum, None, at[1], workers=workers, overwrite_x=True)
    return y
