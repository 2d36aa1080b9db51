"""Signals so short that to sort them into a problem takes longer than to convolve them.

They go straight to NumPy's loop of dot products, or through three transforms of SciPy's FFT: no problem, no
plan, nothing kept. All functions return None for what is not theirs to answer, which `convalgos.signal` then
sorts.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy  # whose parts are imported when they are used

# Up to here nothing else is faster; Sapphire Rapids, one thread.
LONGEST = 2048  # elements of two 1-D arrays together,
PRODUCTS = 1 << 20  # and of one times those of the other,
OTHER_PRODUCTS = 1 << 17  # where they are integers or complex, or may be transformed,
LONG_PRODUCTS = 1 << 15  # or where they are longer,
TAPS = 10  # elements of the smaller one of two arrays of several axes
FEW = 1 << 12  # products along several axes that SciPy sums before ours has begun
TRANSFORMED = 1 << 12  # elements of a result that is transformed whole

NUMBERS = frozenset("bhilqBHILQfdFD")  # dtypes that are computed as they are
SINGLE = frozenset("fF")


def summed(in1: Any, in2: Any, mode: str) -> np.ndarray | None:
    """`scipy.signal.convolve` by sums of products, in the dtype that the inputs promote to."""
    arrays = _arrays(in1, in2)
    return None if arrays is None or mode not in ("full", "same", "valid") else _summed(*arrays, mode)


def correlated(in1: Any, in2: Any, mode: str) -> np.ndarray | None:
    """`scipy.signal.correlate` by sums of products."""
    arrays = _arrays(in1, in2)
    if arrays is None or mode not in ("full", "same", "valid"):
        return None
    x, w = arrays
    w = w[(slice(None, None, -1),) * w.ndim]
    return _summed(x, w.conj() if w.dtype.kind == "c" else w, mode)


def transformed(in1: Any, in2: Any, mode: str) -> np.ndarray | None:
    """`scipy.signal.fftconvolve` of all axes: summed, where that is fastest and all is finite."""
    arrays = _arrays(in1, in2)
    if arrays is None or mode not in ("full", "same", "valid"):
        return None
    x, w = arrays
    if 1 in x.shape or 1 in w.shape:
        return None  # no convolution along such axes, but a product
    single = x.dtype.char in SINGLE and w.dtype.char in SINGLE
    x, w = (_floating(a, single) for a in arrays)
    y = _summed(x, w, mode) if x.size * w.size <= OTHER_PRODUCTS else None
    if y is not None and np.isfinite(y).all():
        return y  # transforms spread what is not finite
    full = [n + k - 1 for n, k in zip(x.shape, w.shape, strict=True)]
    nested = larger(x.shape, w.shape) is not None
    if math.prod(full) > TRANSFORMED or (mode == "valid" and not nested):
        return None
    lengths = [scipy.fft.next_fast_len(n, x.dtype.kind == w.dtype.kind == "f") for n in full]
    if x.dtype.kind == w.dtype.kind == "f":
        y = scipy.fft.irfftn(scipy.fft.rfftn(x, lengths) * scipy.fft.rfftn(w, lengths), lengths)
    else:
        y = scipy.fft.ifftn(scipy.fft.fftn(x, lengths) * scipy.fft.fftn(w, lengths))
    inside = y[tuple(_crop(mode, n, k) for n, k in zip(x.shape, w.shape, strict=True))]
    return np.array(inside)


def products_summed(shape1: tuple[int, ...], shape2: tuple[int, ...], mode: str) -> int:
    """How many products of elements of two arrays are summed."""
    products = math.prod(shape1) * math.prod(shape2)
    if mode == "valid":
        for n, k in zip(shape1, shape2, strict=True):
            products = products // max(n, k, 1) * (abs(n - k) + 1)
    return products


def few_products(in1: Any, in2: Any, mode: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Both in one type, where SciPy sums along several axes before ours has begun."""
    if type(in1) is not np.ndarray or type(in2) is not np.ndarray or not 1 < in1.ndim == in2.ndim:
        return None
    if in1.dtype.char not in NUMBERS or in2.dtype.char not in NUMBERS or not in1.size or not in2.size:
        return None
    if mode not in ("full", "same", "valid") or products_summed(in1.shape, in2.shape, mode) > FEW:
        return None
    dtype = np.result_type(in1, in2)
    return in1.astype(dtype, copy=False), in2.astype(dtype, copy=False)


def larger(shape1: tuple[int, ...], shape2: tuple[int, ...]) -> int | None:
    """Which of two shapes, 0 or 1, is at least as large as the other in every dimension."""
    pairs = list(zip(shape1, shape2, strict=True))
    if all(a >= b for a, b in pairs):
        return 0
    return 1 if all(b >= a for a, b in pairs) else None


# --- inside ----------------------------------------------------------------------------------


def _arrays(in1: Any, in2: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """Both inputs, where they are plain arrays or lists of numbers, of one to three axes and not empty."""
    if type(in1) in (list, tuple):
        in1 = np.asarray(in1)
    if type(in2) in (list, tuple):
        in2 = np.asarray(in2)
    if type(in1) is not np.ndarray or type(in2) is not np.ndarray:
        return None
    if in1.dtype.char not in NUMBERS or in2.dtype.char not in NUMBERS:
        return None
    return (in1, in2) if in1.size and in2.size and 0 < in1.ndim == in2.ndim < 4 else None


def _summed(x: np.ndarray, w: np.ndarray, mode: str) -> np.ndarray | None:
    """The convolution by sums, where nothing is faster."""
    if x.ndim > 1:
        return _by_taps(x, w, mode)
    most = PRODUCTS if x.dtype.kind == w.dtype.kind == "f" else OTHER_PRODUCTS
    if products_summed(x.shape, w.shape, mode) > (LONG_PRODUCTS if x.size + w.size > LONGEST else most):
        return None
    if mode != "same":
        y: np.ndarray = np.convolve(x, w, mode)  # type: ignore[call-overload] # one of "full" and "valid"
        return y
    return np.convolve(x, w)[_crop(mode, x.size, w.size)].copy()


def _by_taps(x: np.ndarray, w: np.ndarray, mode: str) -> np.ndarray | None:
    """The same of several axes: the larger array, times each element of the other, is added in its place."""
    if max(x.size, w.size) > LONGEST or min(x.size, w.size) > TAPS:
        return None
    if mode == "valid" and larger(x.shape, w.shape) is None:
        return None
    dtype = np.result_type(x, w)
    image, kernel = (a.astype(dtype, copy=False) for a in ((x, w) if x.size >= w.size else (w, x)))
    if not np.isfinite(kernel).all():
        return None  # in SciPy it spreads from the zeros around the image
    full = np.zeros([n + k - 1 for n, k in zip(x.shape, w.shape, strict=True)], dtype)
    with np.errstate(all="ignore"):
        for tap in np.ndindex(kernel.shape):
            window = full[tuple(slice(t, t + n) for t, n in zip(tap, image.shape, strict=True))]
            window += image * kernel[tap]
    if mode == "full":
        return full
    return full[tuple(_crop(mode, n, k) for n, k in zip(x.shape, w.shape, strict=True))].copy()


def _floating(array: np.ndarray, single: bool) -> np.ndarray:
    """In single or in double precision, real or complex as it was."""
    kinds = (np.complex64, np.float32) if single else (np.complex128, np.float64)
    return array.astype(kinds[array.dtype.kind != "c"], copy=False)


def _crop(mode: str, n: int, k: int) -> slice:
    """What a mode takes out of the full convolution, along one axis."""
    if mode == "full":
        return slice(0, n + k - 1)
    count = n if mode == "same" else abs(n - k) + 1
    first = (n + k - 1 - count) // 2
    return slice(first, first + count)
