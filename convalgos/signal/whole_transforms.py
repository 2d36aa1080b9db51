"""Convolutions by three transforms of whole arrays, through SciPy's FFT: no problem, no plan, no keeping.

Small arrays are transformed together (`joint_transforms`), or along all axes in one call. Larger ones are
filled up with zeros and transformed an axis at a time, and what is wanted is cut out as soon as it can be:
there are no transforms of lines of zeros, nor of such that nobody wants.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy  # whose parts are imported when they are used

from convalgos.signal.joint_transforms import joint_of_arrays
from convalgos.signal.modes import least_lengths

SPARE = 0.9  # of what is transformed that is wanted, from which on the rest is not worth a copy
ONE_THREAD = 1 << 18  # elements that are transformed before a second thread has begun
IN_ONE_CALL = 1 << 13  # elements of several axes, up to which more calls take longer than zeros; Zen 5

Wanted = Sequence[tuple[int, int]]  # (first, count) along each axis that is convolved


def transformed_whole(
    x: np.ndarray, w: np.ndarray, along: Sequence[int], wanted: Wanted, workers: int = 1
) -> np.ndarray:
    """Elements `wanted` of the full convolution along some axes; the others broadcast.

    Both are of one precision. What is not finite is spread.
    """
    if w is not x:
        joint = joint_of_arrays(x, w, along, wanted)
        if joint is not None:
            return joint.convolved(x, w)
    least = least_lengths(x.shape, w.shape, along, wanted)
    real = x.dtype.kind == w.dtype.kind == "f"
    lines = math.prod(max(x.shape[i], w.shape[i]) for i in range(x.ndim) if i not in along)
    way = _by_axes if len(along) > 1 and lines * math.prod(least) > IN_ONE_CALL else _at_once
    whole, inside = way(x, w, least, along, wanted, workers, real)
    # of which a small rest would keep the memory of the whole
    return inside.copy() if inside.size < SPARE * whole.size else np.ascontiguousarray(inside)


# --- inside: what a transform writes, and what is wanted of it --------------------------------


def _at_once(
    x: np.ndarray, w: np.ndarray, least: list[int], along: Sequence[int], wanted: Wanted, workers: int,
    real: bool,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Transforms of all axes in one call; those of one axis begin sooner."""
    fft, several, kind = scipy.fft, "n" if len(along) > 1 else "", "rfft" if real else "fft"
    to, back = getattr(fft, kind + several), getattr(fft, f"i{kind}{several}")
    lengths = [fft.next_fast_len(n, real) for n in least]
    at: tuple[Any, Any] = (lengths, along) if several else (lengths[0], along[0])
    spectrum = to(x, *at, workers=workers)
    y = back(_product(spectrum, spectrum if w is x else to(w, *at, workers=workers)), *at, workers=workers)
    crops = [slice(None)] * y.ndim
    for i, (first, count) in zip(along, wanted, strict=True):
        crops[i] = slice(first, first + count)
    return y, y[tuple(crops)]


def _by_axes(
    x: np.ndarray, w: np.ndarray, least: list[int], along: Sequence[int], wanted: Wanted, workers: int,
    real: bool,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Transforms of one axis after the other: the last one first, as its lines are side by side."""
    fft, last = scipy.fft, along[-1]
    to, back = (fft.rfft, fft.irfft) if real else (fft.fft, fft.ifft)
    lengths = [fft.next_fast_len(n, real and i == last) for n, i in zip(least, along, strict=True)]

    def spectrum(a: np.ndarray) -> np.ndarray:
        y: np.ndarray = to(a, lengths[-1], last, workers=workers)
        for n, i in zip(lengths[-2::-1], along[-2::-1], strict=True):
            y = fft.fft(y, n, i, overwrite_x=True, workers=workers)
        return y

    of_x = spectrum(x)
    inside = _product(of_x, of_x if w is x else spectrum(w))
    for n, i, (first, count) in zip(lengths, along, wanted, strict=True):
        inverse = back if i == last else fft.ifft
        y = inverse(inside, n, i, overwrite_x=True, workers=workers)
        inside = y[(slice(None),) * i + (slice(first, first + count),)]
    return y, inside


def _product(spectrum: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Their product, in place of the first one where it is as large."""
    holds = all(n >= k for n, k in zip(spectrum.shape, other.shape, strict=True))  # else that is repeated
    y: np.ndarray = np.multiply(spectrum, other, out=spectrum if holds else None)
    return y
