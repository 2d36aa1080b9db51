"""Images that go on beyond their edges as they began, or mirrored, with filters as large as they are.

A periodic image is convolved by one circular transform of just its size, and a mirrored one is periodic with
twice the size: a 4096 x 4096 image with a filter as large takes seconds. Of a filter that is longer than the
period, taps that meet the same pixels are one tap, of their sum.
"""

from __future__ import annotations

import math

import numpy as np
import scipy  # whose parts are imported when they are used

from convalgos.signal.problems import all_finite

ONE_THREAD = 1 << 15  # pixels that are transformed before a second thread has begun
AROUND = 2  # times the image, with all that lies around it, is where a circular transform is faster
# Seconds of a product of float64 in sums, and of a pixel in three transforms for each power of two of pixels;
# Sapphire Rapids, two threads
PRODUCT, TRANSFORMED = 1e-10, 1e-9


def within_period(x: np.ndarray, w: np.ndarray, boundary: str) -> np.ndarray:
    """A filter no longer than a period of the image; the same where something is not finite."""
    sizes = _period(x, boundary)
    if all(k <= n for n, k in zip(sizes, w.shape, strict=True)):
        return w
    if not (all_finite(x) and all_finite(w)):
        return w
    for axis, (size, k) in enumerate(zip(sizes, w.shape, strict=True)):
        if k > size:
            w = _summed(w, axis, size)
    return w


def circular(x: np.ndarray, w: np.ndarray, wanted: list[tuple[int, int]], boundary: str) -> np.ndarray | None:
    """By one transform of a period of the image; None where padding it takes less, or what is not finite."""
    around = math.prod(count + k - 1 for (_, count), k in zip(wanted, w.shape, strict=True))
    period = _period(x, boundary)
    pixels = math.prod(period)
    products = math.prod(count for _, count in wanted) * w.size
    sums, transforms = products * PRODUCT, pixels * math.log2(pixels + 1) * TRANSFORMED
    if around < AROUND * pixels or sums < transforms or not (all_finite(x) and all_finite(w)):
        return None
    if boundary == "symm":
        x = np.block([[x, x[:, ::-1]], [x[::-1], x[::-1, ::-1]]])
    taps = _summed(_summed(w, 0, period[0]), 1, period[1])
    fft, workers = scipy.fft, 1 if pixels <= ONE_THREAD else -1
    if x.dtype.kind == "c":
        spectrum = fft.fft2(x, workers=workers) * fft.fft2(taps, workers=workers)
        y = fft.ifft2(spectrum, workers=workers, overwrite_x=True)
    else:
        spectrum = fft.rfft2(x, workers=workers) * fft.rfft2(taps, workers=workers)
        y = fft.irfft2(spectrum, period, workers=workers, overwrite_x=True)
    places = [
        np.arange(first, first + count) % size for (first, count), size in zip(wanted, period, strict=True)
    ]
    return np.asarray(y[np.ix_(*places)])


# --- inside ----------------------------------------------------------------------------------


def _period(x: np.ndarray, boundary: str) -> list[int]:
    return [n * (1 + (boundary == "symm")) for n in x.shape]


def _summed(w: np.ndarray, axis: int, size: int) -> np.ndarray:
    """As many taps along an axis, each the sum of those that are whole periods apart."""
    widths = [(0, 0), (0, 0)]
    widths[axis] = (0, -w.shape[axis] % size)
    whole = np.pad(w, widths)
    shape = [*whole.shape[:axis], whole.shape[axis] // size, size, *whole.shape[axis + 1 :]]
    taps: np.ndarray = whole.reshape(shape).sum(axis, dtype=w.dtype)
    return taps
