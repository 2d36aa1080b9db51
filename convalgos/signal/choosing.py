"""Which method `convolve` takes, and the lags that `correlate` computes."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import scipy  # whose parts are imported when they are used

from convalgos.core.arguments import Shape
from convalgos.core.setting import setting
from convalgos.signal.convolution import convolve
from convalgos.signal.mixed_types import FLOATING, HALVES, are_booleans
from convalgos.signal.modes import MODES, larger, wanted_of
from convalgos.signal.problems import signal_plan
from convalgos.signal.scipy_answers import plain
from convalgos.signal.size_cache import UNKNOWN, SizeCache

SUMMED = 1 << 15  # products that `convolve` sums in any case
ROUNDS = 3  # of a method that is measured; the fastest counts
KEPT = 1 << 22  # bytes of answers
DIGITS = 4  # of sizes, in binary, by which the faster method is told
LARGEST = 2**52  # of a sum of integers; from here on SciPy's rule takes none by transforms
KINDS_OF_INTEGERS, NUMERIC = frozenset("iu"), frozenset("biufc")  # kinds of types
_known = SizeCache(KEPT)  # answers, by what they depend on
_arange = np.arange  # looked up once: this is most of what takes time here


def choose_conv_method(in1: Any, in2: Any, mode: str = "full", measure: bool = False) -> Any:
    """Find the method that `convolve` takes, or the faster one, as `scipy.signal.choose_conv_method` does.

    Args:
        in1, in2: arrays of the same number of dimensions.
        mode: "full", "same" or "valid".
        measure: True times both methods on these arrays.

    Returns:
        "direct" for algorithms that sum products, "fft" for those that transform; integers are summed where
        float64 would round them. With measure, (method, seconds of each).

    Raises:
        ValueError: as SciPy does.

    Example:
        >>> import numpy as np, convalgos as ca
        >>> ca.signal.choose_conv_method(np.ones(100_000), np.ones(20_000))
        'fft'
    """
    arrays = type(in1) is type(in2) is np.ndarray and type(mode) is str and not measure
    if arrays and are_booleans(in1, in2):
        return "direct"  # they are not transformed
    if arrays and in1.dtype.kind in "biu" and in2.dtype.kind in "biu" and in1.size and in2.size:
        return _of_integers(in1, in2, mode)
    key = arrays and (in1.shape, in2.shape, in1.dtype.char, in2.dtype.char, mode, setting())
    if arrays and (known := _known[key]) is not UNKNOWN:
        return known
    if arrays and _are_left_with_integers(in1, in2):
        return _of_integers(in1, in2, mode)
    y = _chosen(in1, in2, mode, measure)
    of_sizes = y is not None
    if y is None:
        y = scipy.signal.choose_conv_method(in1, in2, mode, measure)
    if arrays and (of_sizes or (in1.dtype.kind in "bfc" and in2.dtype.kind in "bfc")):
        _keep(key, y)  # of integers SciPy looks at the numbers
    return y


def _are_left_with_integers(x: np.ndarray, w: np.ndarray) -> bool:
    """Whether one of two arrays has integers, of which SciPy looks at the numbers, and ours has no answer."""
    kinds = {x.dtype.kind, w.dtype.kind}
    if not x.size or not w.size or not kinds <= NUMERIC or not kinds & KINDS_OF_INTEGERS:
        return False
    return x.ndim > 3 or x.dtype.char + w.dtype.char in HALVES


def _of_integers(x: np.ndarray, w: np.ndarray, mode: str) -> Any:
    """By SciPy's rule: sums that float64 would round are direct ones, and for others the shapes tell."""
    if int(np.abs(x).max()) * int(np.abs(w).max()) * min(x.size, w.size) >= LARGEST:
        return "direct"
    key = x.shape, w.shape, mode
    if (known := _known[key]) is UNKNOWN:
        zeros = (np.broadcast_to(0.0, a.shape) for a in (x, w))
        known = _keep(key, scipy.signal.choose_conv_method(*zeros, mode))
    return known


def _keep(key: Any, method: Any) -> Any:
    _known.keep(key, method)
    return method


def _chosen(in1: Any, in2: Any, mode: str, measure: bool) -> Any:
    """The method, with the times if it measures; None for what is SciPy's to answer."""
    arrays = plain(in1), plain(in2)
    if mode not in MODES or any(a is None or not a.size or not 0 < a.ndim < 4 for a in arrays):
        return None
    x, w = (np.asarray(a) for a in arrays)
    if x.ndim != w.ndim or (mode == "valid" and larger(x.shape, w.shape) is None):
        return None
    if measure:
        times = {method: _seconds(x, w, mode, method) for method in ("fft", "direct")}
        return min(times, key=lambda method: times[method]), times
    dtype = np.result_type(x, w)
    if dtype.char not in FLOATING:
        return None
    if x.size * w.size <= SUMMED:
        return "direct"
    if x.size < w.size:
        x, w = (w, x) if mode != "same" else (x, w)
    parts = tuple(1 + (a.dtype.kind == "c") for a in (x, w))
    shapes = tuple(map(_rounded, x.shape)), tuple(map(_rounded, w.shape))
    return _of_sizes(mode, shapes, parts, "float32" if dtype.char in "fF" else "float64")


def _of_sizes(mode: str, shapes: tuple[Shape, Shape], parts: tuple[int, ...], real: str) -> Any:
    """The method of the fastest algorithm for real arrays of some shapes, or complex ones of two parts."""
    key = mode, shapes, parts, real, setting()
    if (known := _known[key]) is not UNKNOWN:
        return known
    sizes, padding = [], []
    for n, k in zip(*shapes, strict=True):
        first, count = wanted_of(mode, n, k)
        low, high = first - k + 1, first + count
        sizes.append(min(n, high) - max(0, low))
        padding.append((max(0, -low), max(0, high - n)))
    plan = signal_plan(
        (parts[0], 1, *sizes), (parts[1], 1, *shapes[1]), tuple(padding), 1, real, "auto", True
    )
    method = "fft" if plan is not None and plan.algorithm.startswith("cpu.fft") else "direct"
    return _keep(key, None if plan is None else method)


def _rounded(size: int) -> int:
    """One of eight sizes to each doubling, for which it is known sooner which method is the faster one."""
    step = 1 << max(0, size.bit_length() - DIGITS)
    return (size + step // 2) // step * step


def _seconds(x: np.ndarray, w: np.ndarray, mode: str, method: str) -> float:
    fastest = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        convolve(x, w, mode, method)
        fastest = min(fastest, time.perf_counter() - start)
    return fastest


def correlation_lags(in1_len: int, in2_len: int, mode: str = "full") -> Any:
    """The lags of the elements that `correlate` returns for 1-D inputs: `scipy.signal.correlation_lags`.

    Args:
        in1_len, in2_len: the lengths of both inputs.
        mode: "full", "same" or "valid".

    Returns:
        By how many samples in2 is moved for each element of the correlation.

    Raises:
        ValueError: there is no such mode.

    Example:
        >>> import convalgos as ca
        >>> ca.signal.correlation_lags(4, 3)
        array([-2, -1,  0,  1,  2,  3])
    """
    if mode == "full":
        return _arange(1 - in2_len, in1_len)
    if mode == "valid":
        return _arange(in1_len - in2_len + 1) if in1_len >= in2_len else _arange(in1_len - in2_len, 1)
    if mode == "same" and type(in1_len) is type(in2_len) is int and in2_len > 0:
        first = (in1_len + in2_len - 1) // 2 - in1_len // 2 + 1 - in2_len
        return _arange(first, first + in1_len)
    return scipy.signal.correlation_lags(in1_len, in2_len, mode)
