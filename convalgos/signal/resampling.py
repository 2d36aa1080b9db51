"""Signals up- and downsampled by filters: `upfirdn` and `resample_poly`.

Of `up` phases of the result, each is the input convolved with every up-th coefficient, with stride `down`:
all phases are the filters of one strided problem. Nothing is multiplied by the zeros that upsampling puts in.

Source: Vaidyanathan 1990, "Multirate digital filters, filter banks, polyphase networks, and applications".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import scipy  # whose parts are imported when they are used

from convalgos.core.array_kinds import any_kind
from convalgos.signal import short_windows, small_lines
from convalgos.signal.extensions import with_extension
from convalgos.signal.lines import axis_of
from convalgos.signal.long_resampling import resampled_apart
from convalgos.signal.outputs import takes_out
from convalgos.signal.problems import all_finite, real_parts, signal_plan
from convalgos.signal.scipy_answers import or_scipy, plain
from convalgos.signal.short_lines import SHORT, times_matrix

FEW_COMPLEX = 20  # taps of a phase that SciPy sums before parts are taken apart; Sapphire Rapids
MANY_LINES = 64  # that pay for a matrix of their own
ONE_THREAD = (
    1 << 18
)  # real products up to which NumPy's OpenBLAS wakes no threads, which may take milliseconds
MODES = (
    "constant",
    "symmetric",
    "edge",
    "smooth",
    "wrap",
    "reflect",
    "antisymmetric",
    "antireflect",
    "line",
)
BACKGROUNDS: dict[str, Callable[..., Any]] = {
    "mean": np.mean,
    "median": np.median,
    "minimum": np.min,
    "maximum": np.max,
}


@small_lines.small_resampled
@any_kind("cupyx.scipy.signal")
@takes_out
@or_scipy
def upfirdn(
    h: Any, x: Any, up: int = 1, down: int = 1, axis: int = -1, mode: str = "constant", cval: float = 0
) -> Any:
    """Upsample, filter and downsample signals along an axis, as `scipy.signal.upfirdn` does.

    Args:
        h: coefficients (k,) of the filter.
        x: signals of any number of dimensions.
        up: up - 1 zeros are put behind each sample,
        down: and every down-th filtered one is kept.
        mode: what lies beyond both ends: "constant" (`cval`), "symmetric", "reflect", "edge", "smooth",
            "wrap", "antisymmetric", "antireflect" or "line". One sample that is mirrored in itself, or goes
            on smoothly, goes on as it is.
        out: the array for the result, as `convolve` takes it.

    Returns:
        ((n - 1) * up + k - 1) // down + 1 samples along the axis.

    Raises:
        ValueError: as SciPy does; or lines without samples are to go on beyond their ends.

    Example:
        >>> import convalgos as ca
        >>> ca.signal.upfirdn([1.0, 1.0, 1.0], [1.0, 2.0, 3.0], up=3)
        array([1., 1., 1., 2., 2., 2., 3., 3., 3.])
    """
    if isinstance(mode, str) and mode.lower() in small_lines.OF_TWO_SAMPLES and _is_one_sample(x, axis):
        return upfirdn(h, x, up, down, axis, "edge", cval)
    taps, signal = plain(h), plain(x)
    if taps is None or signal is None or taps.ndim != 1 or not taps.size:
        return None
    at = axis_of(axis, signal.ndim)
    if at is None or not all(isinstance(v, int | np.integer) and v > 0 for v in (up, down)):
        return None
    if not isinstance(mode, str) or mode.lower() not in MODES or not isinstance(cval, int | float):
        return None
    outputs = ((signal.shape[at] - 1) * int(up) + taps.size - 1) // int(down) + 1
    if not signal.size:
        if outputs > 0 and not signal.shape[at] and mode.lower() != "constant":
            # SciPy divides by zero, or reads what is not there
            raise ValueError(f"lines without samples have none to go on with: mode={mode!r}")
        return None
    dtype = np.result_type(taps, signal, np.float32)
    if (y := _of_short_lines(taps, signal, int(up), int(down), at, mode.lower())) is not None:
        return y
    lines = np.moveaxis(signal.astype(dtype, copy=False), at, -1)  # (..., n)
    y = _resampled(lines, taps.astype(dtype), int(up), int(down), outputs, mode.lower(), cval)
    return None if y is None else np.moveaxis(y, -1, at)


@small_lines.small_unchanged
@any_kind("cupyx.scipy.signal")
@takes_out
@or_scipy
def resample_poly(
    x: Any, up: int, down: int, axis: int = 0, window: Any = ("kaiser", 5.0), padtype: str = "constant",
    cval: float | None = None,
) -> Any:  # fmt: skip
    """Resample signals along an axis by the factor up / down, as `scipy.signal.resample_poly` does.

    Args:
        x: signals of any number of dimensions.
        window: the window of the low-pass filter that is designed, or the coefficients of a filter.
        padtype: what lies beyond both ends: a mode of `upfirdn`; or "mean", "median", "maximum" or "minimum"
            of each signal.
        out: the array for the result, as `convolve` takes it.

    Returns:
        ceil(n * up / down) samples along the axis.

    Raises:
        ValueError: as SciPy does.

    Example:
        >>> import numpy as np, convalgos as ca
        >>> ca.signal.resample_poly(np.ones(1000), 3, 2).shape
        (1500,)
    """
    signal = plain(x)
    if signal is not None and cval is None and padtype in MODES and _has_no_samples(signal, axis):
        # nothing is read beyond the ends, where SciPy divides by zero
        return scipy.signal.resample_poly(x, up, down, axis, window, "constant")
    if signal is None or not signal.size or not all(isinstance(v, int | np.integer) for v in (up, down)):
        return None
    at = axis_of(axis, signal.ndim)
    if up < 1 or down < 1 or at is None or padtype not in (*MODES, *BACKGROUNDS):
        return None
    if not isinstance(window, str | tuple | np.ndarray) or (cval is not None and padtype != "constant"):
        return None
    common = math.gcd(up, down)
    up, down = int(up) // common, int(down) // common
    if up == down == 1:
        return None
    h = _low_pass(window, up, down, signal.dtype)
    if h is None:
        return None
    n, outputs = signal.shape[at], -(-signal.shape[at] * up // down)
    before = down - (h.size - 1) // 2 % down  # zeros that bring the middle of the filter to an output
    skipped = ((h.size - 1) // 2 + before) // down
    behind = max(0, (outputs + skipped - 1) * down + 1 - (n - 1) * up - h.size - before)
    h = np.concatenate([np.zeros(before, h.dtype), h, np.zeros(behind, h.dtype)])
    background = None
    if padtype in BACKGROUNDS:
        background = BACKGROUNDS[padtype](signal, axis=at, keepdims=True)
        signal, padtype = signal - background, "constant"
    y = upfirdn(h, signal, up, down, at, padtype, cval or 0)
    y = y[(slice(None),) * at + (slice(skipped, skipped + outputs),)]
    if background is not None:
        y += background
    return y


# --- inside ----------------------------------------------------------------------------------


def _has_no_samples(signal: np.ndarray, axis: Any) -> bool:
    at = axis_of(axis, signal.ndim)
    return at is not None and not signal.shape[at]


def _is_one_sample(x: Any, axis: Any) -> bool:
    shape = np.shape(x)
    known = isinstance(axis, int | np.integer) and -len(shape) <= axis < len(shape)
    return bool(known and shape[axis] == 1)


def _low_pass(window: Any, up: int, down: int, dtype: np.dtype) -> np.ndarray | None:
    """(k,): the filter that keeps what both rates can hold, times up."""
    if isinstance(window, np.ndarray):
        return window * up if window.ndim == 1 and window.size and window.dtype.char in "fdFD" else None
    try:
        h = _designed(window, max(up, down))
    except TypeError:  # a window that cannot be a key
        return None
    return h.astype(dtype if dtype.kind in "fc" else np.float64) * up


@lru_cache(512)
def _designed(window: Any, rate: int) -> np.ndarray:
    return np.asarray(scipy.signal.firwin(20 * rate + 1, 1.0 / rate, window=window))


def _of_short_lines(
    h: np.ndarray, x: np.ndarray, up: int, down: int, axis: int, mode: str
) -> np.ndarray | None:
    """Signals that go on for longer than they are, whose outputs are sums of all their samples; else None."""
    n, lines = x.shape[axis], x.size // x.shape[axis]
    if mode == "constant" or n > min(SHORT, -(-h.size // up)) or lines < MANY_LINES:
        return None
    if not all_finite(x) or not all_finite(h):
        return None  # what is not would spread to all outputs
    wide = np.result_type(h, x, np.float32)
    of_h, of_x = (wide if a.dtype.kind == "c" else np.dtype(wide.char.lower()) for a in (h, x))
    by = upfirdn(h.astype(of_h), np.eye(n, dtype=of_h), up, down, 0, mode)  # (outputs, n)
    return times_matrix(by, x.astype(of_x, copy=False), axis)


def _resampled(
    x: np.ndarray, h: np.ndarray, up: int, down: int, outputs: int, mode: str, cval: float
) -> np.ndarray | None:
    """(..., outputs) of signals (..., n) and a filter (k,): every phase a filter of one strided problem."""
    common = math.gcd(up, down)
    h, up, down = h[::common], up // common, down // common  # the other coefficients meet zeros only
    if x.dtype.kind == "c" and h.size <= FEW_COMPLEX * up:
        return None
    bank = _phases(h, up, down)  # (up, 1, s)
    n, taps, s = x.shape[-1], -(-h.size // up), bank.shape[-1]
    turns, low = -(-outputs // up), taps - 1  # turns of all phases
    if mode != "constant" or cval:
        reach = max(0, (outputs - 1) * down // up + 1 - n)  # samples behind the last one that an output reads
        if n < 2:
            return None  # of a single sample SciPy has ways of its own
        if mode != "constant" and (
            (y := resampled_apart(x, h, up, down, outputs, mode, upfirdn)) is not None
        ):
            return y
        x, low = with_extension(x, x.ndim - 1, low, reach, mode, cval), 0
    read = (turns - 1) * down + s - low  # samples
    x, high = x[..., :read], max(0, read - x.shape[-1])
    lines = math.prod(x.shape[:-1])
    finite = all_finite(x)
    if not all_finite(h) or (up > 1 and not finite):
        return None  # the zeros around a signal, or beside the coefficients of a phase, would spread it
    products = lines * turns * bank.size
    real = products * (4 if x.dtype.kind == "c" else 1)
    if products // up <= short_windows.GATHERED and real <= ONE_THREAD:
        padded = x
        if low or high:
            padded = np.zeros((*x.shape[:-1], low + x.shape[-1] + high), x.dtype)
            padded[..., low : low + x.shape[-1]] = x
        y = short_windows.times_windows(
            np.ascontiguousarray(padded), bank[..., ::-1][:, 0], (down,), (turns,)
        )
        return y.reshape(*x.shape[:-1], turns * up)[..., :outputs]
    images = real_parts(x.reshape(lines, 1, x.shape[-1]), 0)  # (parts * lines, 1, n)
    filters = real_parts(bank, 0)  # (parts * up, 1, s)
    plan = signal_plan(
        images.shape, filters.shape, ((low, high),), 1, images.dtype.name, "auto", finite, down
    )
    if plan is None:
        return None
    y = plan(images, filters)[..., :turns]  # (parts of x * lines, parts of h * up, turns)
    parts_x, parts_h = images.shape[0] // lines, filters.shape[0] // up
    y = y.reshape(parts_x, lines, parts_h, up, turns)
    joined = np.empty((lines, turns, up), x.dtype)
    if parts_x * parts_h == 1:
        joined[...] = y[0, :, 0].transpose(0, 2, 1)
    else:
        z = y[0, :, 0] + 0j
        z.real -= y[1, :, 1] if parts_x == parts_h else 0
        z.imag += (y[1, :, 0] if parts_x == 2 else 0) + (y[0, :, 1] if parts_h == 2 else 0)
        joined[...] = z.transpose(0, 2, 1)
    return joined.reshape(*x.shape[:-1], turns * up)[..., :outputs]


def _phases(h: np.ndarray, up: int, down: int) -> np.ndarray:
    """(up, 1, s): what each phase multiplies the samples from its first one on by, flipped as filters are.

    Output up * j + r reads position (up * j + r) * down of the signal with zeros, which is coefficient
    r * down % up behind its sample down * j + r * down // up.
    """
    taps = -(-h.size // up)
    whole = np.zeros(taps * up, h.dtype)
    whole[: h.size] = h
    coefficients = whole.reshape(taps, up)
    s = taps + (up - 1) * down // up
    bank = np.zeros((up, 1, s), h.dtype)
    for r in range(up):
        sample, phase = divmod(r * down, up)
        end = s - sample
        bank[r, 0, end - taps : end] = coefficients[:, phase]
    return bank
