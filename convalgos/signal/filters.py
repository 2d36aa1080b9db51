"""FIR filters over batches of signals: `lfilter` and `filtfilt` without feedback, and Savitzky-Golay.

Every line along the filtered axis is one of a batch, where SciPy filters them one after the other. A filter
with feedback is SciPy's.

Source: Savitzky and Golay 1964, "Smoothing and differentiation of data by simplified least squares
procedures"; Gustafsson 1996, "Determining the initial states in forward-backward filtering".
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import scipy  # whose parts are imported when they are used
from numpy.polynomial import legendre

from convalgos.core.array_kinds import any_kind
from convalgos.signal import small_lines
from convalgos.signal.extensions import OF_NUMPY, with_extension
from convalgos.signal.lines import axis_of, filtered, long_signal, summed_along
from convalgos.signal.outputs import takes_out
from convalgos.signal.problems import all_finite
from convalgos.signal.scipy_answers import or_scipy, plain
from convalgos.signal.short_lines import of_short_lines

TOLD_APART = 1e6  # largest power of a sample up to which SciPy's coefficients are the fit to 1e-9 in any case


@small_lines.small_without_feedback
@any_kind("cupyx.scipy.signal")
@takes_out
@or_scipy
def lfilter(b: Any, a: Any, x: Any, axis: int = -1, zi: Any = None, *, out: Any = None) -> Any:
    """Filter signals along an axis, as `scipy.signal.lfilter` does.

    Args:
        b, a: coefficients (k,) and (l,) of the numerator and the denominator; with l = 1 it is an FIR filter,
            which runs on our plans, else SciPy's.
        x: signals of any number of dimensions.
        zi: what the filter holds before the first sample, k - 1 values along the axis for each signal.
        out: the array for y, as `convolve` takes it; without zi only.

    Returns:
        y, of the shape of x; with zi, (y, zf), and zf is what the filter holds behind the last sample.

    Raises:
        ValueError, NotImplementedError: as SciPy does.

    Example:
        >>> import numpy as np, convalgos as ca
        >>> ca.signal.lfilter([0.5, 0.5], 1.0, [[1.0, 3.0, 5.0], [2.0, 2.0, 2.0]])
        array([[0.5, 2. , 4. ],
               [1. , 2. , 2. ]])
    """
    arrays = [plain(v) for v in ((b, a, x) if zi is None else (b, a, x, zi))]
    if any(v is None or not v.size for v in arrays[:3]) or any(v is None for v in arrays):
        return None
    taps, divisor, lines = (np.atleast_1d(v) for v in arrays[:3] if v is not None)
    at = axis_of(axis, np.ndim(x)) if np.ndim(x) else None
    dtype = np.result_type(*(v for v in arrays if v is not None))
    if taps.ndim != 1 or divisor.shape != (1,) or at is None or dtype.char not in "fdFD":
        return None
    held, n = None, lines.shape[at]
    if zi is None:
        taps = taps[:n]  # the others meet nothing
    with np.errstate(all="ignore"):
        h = taps.astype(dtype) / divisor.astype(dtype)
    if not np.isfinite(h).all():
        return None  # the zeros around a signal would spread it
    if zi is not None:
        shape = list(lines.shape)
        shape[at] = h.size - 1
        held = np.asarray(zi)
        allowed = [(size,) if i == at else (size, 1) for i, size in enumerate(shape)]
        if held.ndim != lines.ndim or any(s not in of for s, of in zip(held.shape, allowed, strict=True)):
            return None
    if zi is None and out is None and (y := _of_real_lines(lines, h, at)) is not None:
        return y
    y = _with_state(lines.astype(dtype, copy=False), h, at, held, out=out)
    if y is None or zi is None:
        return y
    return _cut(y, at, 0, n), _cut(y, at, n, None)


def _of_real_lines(x: np.ndarray, h: np.ndarray, axis: int) -> np.ndarray | None:
    """Lines of finite real numbers filtered by complex taps, as by two of real ones; else None."""
    if h.dtype.kind != "c" or x.dtype.kind == "c" or not x.size:
        return None
    x = x.astype(h.real.dtype)
    if not all_finite(x):  # of which SciPy multiplies imaginary zeros
        return None
    n = x.shape[axis]
    real, imaginary = (filtered(x, np.ascontiguousarray(part), axis, 0, n) for part in (h.real, h.imag))
    if real is None or imaginary is None:
        return None
    y = np.empty(x.shape, h.dtype)
    y.real, y.imag = real, imaginary
    return y


@any_kind("cupyx.scipy.signal")
@takes_out
@or_scipy
def filtfilt(
    b: Any, a: Any, x: Any, axis: int = -1, padtype: str | None = "odd", padlen: int | None = None,
    method: str = "pad", irlen: int | None = None,
) -> Any:  # fmt: skip
    """Filter signals forwards and backwards, which shifts no phase, as `scipy.signal.filtfilt` does.

    Args:
        b, a: as `lfilter` takes them; an FIR filter runs on our plans.
        padtype: how the signal goes on at both ends: "odd", "even", "constant" or None.
        padlen: for how many samples, 3 times the number of coefficients by default.
        method: "pad", or "gust", which is SciPy's.
        out: the array for the result, as `convolve` takes it.

    Returns:
        The filtered signals, of the shape of x.

    Raises:
        ValueError: as SciPy does.

    Example:
        >>> import numpy as np, convalgos as ca
        >>> ca.signal.filtfilt([0.5, 0.5], 1.0, np.arange(8.0))
        array([0., 1., 2., 3., 4., 5., 6., 7.])
    """
    if method != "pad" or (type(a) in (list, tuple, np.ndarray) and np.size(a) > 1):
        return None
    arrays = [plain(v) for v in (b, a, x)]
    if any(v is None or not v.size for v in arrays):
        return None
    taps, divisor, signal = (np.asarray(v) for v in arrays)
    taps, at = np.atleast_1d(taps), axis_of(axis, signal.ndim)
    if taps.ndim != 1 or taps.size < 2 or divisor.size != 1 or divisor.ndim > 1 or at is None:
        return None
    if padtype not in ("odd", "even", "constant", None):
        return None
    edge = 3 * taps.size if padlen is None else padlen
    edge = 0 if padtype is None else edge
    n = signal.shape[at]
    if not isinstance(edge, int) or not 0 <= edge < n:
        return None
    y = _between_mirrors(signal, at, edge, padtype)
    coefficients = np.result_type(taps, divisor)
    dtype = np.result_type(y, coefficients if coefficients.kind in "fc" else np.float64)
    if dtype.char not in "fdFD":
        return None
    h, y = taps.astype(dtype) / divisor.astype(dtype).reshape(()), y.astype(dtype, copy=False)
    held = np.cumsum(h[:0:-1])[::-1]  # (k - 1), of a signal that was one forever
    held = held.reshape([-1 if i == at else 1 for i in range(signal.ndim)])
    for _ in range(2):  # forwards, then backwards
        state = held * _cut(y, at, 0, 1)
        filtered_once = _with_state(y, h, at, state, y.shape[at])
        if filtered_once is None:
            return None
        y = np.flip(filtered_once, at)
    return _cut(y, at, edge, edge + n)


@any_kind("cupyx.scipy.signal")
@takes_out
@or_scipy
def savgol_filter(
    x: Any, window_length: int, polyorder: int, deriv: int = 0, delta: float = 1.0, axis: int = -1,
    mode: str = "interp", cval: float = 0.0, *, out: Any = None,
) -> Any:  # fmt: skip
    """Smooth or differentiate by polynomials fitted in windows, as `scipy.signal.savgol_filter` does.

    Args:
        x: signals of any number of dimensions; other types than float32 are computed in float64.
        window_length: samples of a window.
        polyorder: the degree of the polynomials, less than that.
        deriv: which derivative is wanted, over samples that are delta apart.
        mode: what lies beyond both ends: "mirror", "nearest", "wrap", "constant" (`cval`); or "interp", which
            takes the values of the first and last polynomial.
        out: the array for the result, as `convolve` takes it.

    Returns:
        The smoothed signals, of the shape of x.

    Raises:
        ValueError: as SciPy does.

    Example:
        >>> import numpy as np, convalgos as ca
        >>> ca.signal.savgol_filter(np.arange(9.0) ** 2, 5, 2, deriv=1).round(6)
        array([ 0.,  2.,  4.,  6.,  8., 10., 12., 14., 16.])
    """
    signal = plain(x)
    if signal is None or not signal.size:
        return None
    at = axis_of(axis, signal.ndim)
    if at is None or not all(isinstance(v, int | np.integer) for v in (window_length, polyorder, deriv)):
        return None
    n, half, modes = signal.shape[at], window_length // 2, ("mirror", "constant", "nearest", "wrap", "interp")
    if (
        not 0 <= polyorder < window_length
        or deriv < 0
        or mode not in modes
        or np.ndim(delta)
        or np.ndim(cval)
    ):
        return None
    if mode == "interp" and window_length > n:
        return None
    lines = signal.astype(np.float32 if signal.dtype == np.float32 else np.float64, copy=False)
    if deriv > polyorder and all_finite(lines):
        return np.zeros_like(lines, order="C")
    h = _coefficients(window_length, polyorder, deriv, float(delta)).astype(lines.dtype)
    if mode == "interp":
        along = np.moveaxis(lines, at, -1)  # (..., n)
        ends = along[..., :window_length], along[..., n - window_length :]
        if not all(np.isfinite(end).all() for end in ends):
            return None  # SciPy refuses to fit them
        first, last = _ends(ends, window_length, polyorder, deriv, float(delta))
        y = filtered(lines, h, at, half, n, out)  # which may be the signal itself
        if y is not None and half:
            _cut(y, at, 0, half)[...] = np.moveaxis(first, -1, at)
            _cut(y, at, n - half, n)[...] = np.moveaxis(last, -1, at)
        return y
    low, boundary = window_length - 1 - half, OF_NUMPY.get(mode, mode)
    fill = float(cval) if mode == "constant" else 0.0
    if n <= window_length and (y := of_short_lines(lines, h[::-1], at, low, boundary, fill)) is not None:
        return y
    if mode == "constant" and cval == 0:
        return filtered(lines, h, at, half, n, out)
    if (y := summed_along(lines, h[::-1], at, low, boundary, fill, out)) is not None:
        return y
    padded = with_extension(lines, at, low, half, mode, cval)
    return filtered(padded, h, at, window_length - 1, n, out)


# --- inside ----------------------------------------------------------------------------------


def _with_state(
    x: np.ndarray,
    h: np.ndarray,
    axis: int,
    held: np.ndarray | None,
    count: int | None = None,
    out: np.ndarray | None = None,
) -> np.ndarray | None:
    """x filtered by h (k,): with what the filter held, and behind the samples what it holds then."""
    n, k = x.shape[axis], h.size
    if held is None:
        return filtered(x, h, axis, 0, n, out)
    y = long_signal(x, h, "full") if count is None and n >= k else None
    if y is None:
        y = filtered(x, h, axis, 0, n + k - 1 if count is None else count)
    if y is not None and k > 1:
        size = min(k - 1, y.shape[axis])
        _cut(y, axis, 0, size)[...] += _cut(held, axis, 0, size)
    return y


def _cut(x: np.ndarray, axis: int, start: int, stop: int | None) -> np.ndarray:
    return x[(slice(None),) * axis + (slice(start, stop),)]


def _between_mirrors(x: np.ndarray, axis: int, edge: int, padtype: str | None) -> np.ndarray:
    """(..., edge + n + edge, ...): x and its extension, in the type of x, as SciPy computes it."""
    if not edge:
        return x
    lines = np.moveaxis(x, axis, -1)  # (..., n)
    first, last = lines[..., :1], lines[..., -1:]
    low, high = lines[..., edge:0:-1], lines[..., -2 : -edge - 2 : -1]  # (..., edge)
    if padtype == "odd":
        low, high = 2 * first - low, 2 * last - high
    elif padtype == "constant":
        low, high = (np.broadcast_to(end, low.shape) for end in (first, last))
    return np.moveaxis(np.concatenate([low, lines, high], -1), -1, axis)


@lru_cache(512)
def _coefficients(window_length: int, polyorder: int, deriv: int, delta: float) -> np.ndarray:
    """(window_length,): SciPy's, where powers of samples tell polynomials apart, else those of `_fit`."""
    if deriv > polyorder or (window_length / 2) ** polyorder <= TOLD_APART:
        return np.asarray(scipy.signal.savgol_coeffs(window_length, polyorder, deriv=deriv, delta=delta))
    basis, values = _fit(window_length, polyorder, deriv, delta)
    return np.asarray((basis @ values[-1])[::-1])


def _ends(
    ends: tuple[np.ndarray, np.ndarray], window_length: int, polyorder: int, deriv: int, delta: float
) -> list[np.ndarray]:
    """(..., half) twice: the first and last samples from those of their windows, (..., window_length) twice.

    In float64, through the polyorder + 1 numbers that tell a polynomial: large windows take little memory.
    """
    basis, values = _fit(window_length, polyorder, deriv, delta)
    half = window_length // 2
    at = slice(0, half), slice(window_length - half, window_length)
    return [end @ basis @ values[rows].T for end, rows in zip(ends, at, strict=True)]


@lru_cache(512)
def _fit(window_length: int, polyorder: int, deriv: int, delta: float) -> tuple[np.ndarray, np.ndarray]:
    """(window_length, polyorder + 1), orthonormal polynomials at the samples of a window, and
    (window_length + 1, polyorder + 1), their derivatives there and, in the last row, in the middle."""
    scale = max(1, window_length - 1) / 2
    at = np.append(np.arange(window_length) / scale - 1, 0.0)  # from -1 to 1, then the middle
    q, r = np.linalg.qr(legendre.legvander(at[:-1], polyorder))  # of polynomials, nearly orthogonal already
    slopes = legendre.legder(np.eye(polyorder + 1), deriv)  # of each polynomial, a column
    values = legendre.legval(at, slopes).T / (scale * delta) ** deriv
    return q, np.linalg.solve(r.T, values.T).T
