"""Short ways for small images and signals: one look-up by shapes and type, and one compiled call.

Each is a decorator of functions of `convalgos.signal`, which are asked for what the short way does not
answer: lists, other types, large arrays, options beyond the usual.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy  # whose parts are imported when they are used

from convalgos.core.boundaries import source_indices
from convalgos.core.errors import missing
from convalgos.cpu.filtering.small_windows import SmallWindows, filter_lines_small, filter_small
from convalgos.signal.mixed_types import FLOATING, NUMBERS, OF_PYTHON, in_common
from convalgos.signal.problems import wanted_of

# Up to here nothing else is faster; Zen 4
BYTES_OF_PRODUCTS = 1 << 23  # products, times the bytes of one,
PRODUCTS = 1 << 19  # and of integers so many
STUFFED = 32  # up * down, up to which vectors over zeros are faster than single products without,
STUFFED_COMPLEX = 8  # and of complex numbers; Sapphire Rapids
FEW_STUFFED = 1 << 16  # products with zeros or not, up to which it does not matter; Sapphire Rapids
KEPT = 512  # pairs of shapes
# Products that SciPy sums before ours has begun; Zen 4
FEW_ALONG = 1 << 19  # along rows and columns
FEW_OF_RATES = 3 << 15  # of signals and filters, of which it leaves out none that meets nothing
NO_RESULT = frozenset(("axis", "window", "padtype"))  # arguments that do not matter to equal rates
BOUNDARIES = {"fill": "constant", "wrap": "wrap", "symm": "symmetric"}

Function = Callable[..., Any]


class Small(NamedTuple):
    """A compiled call for some shapes."""

    call: Function
    address: int
    shape: tuple[int, ...]
    windows: SmallWindows | None  # whose record is at the address
    swapped: bool = False  # the second array is the image, and the first one the filter


NEW = Small(len, 0, (), None)  # stands for what is not known yet
_known: dict[Any, Any] = {}  # a `Small`, or None where there is no short way


def small_bordered(correlates: bool) -> Callable[[Function], Function]:
    """Of `convolve2d` and `correlate2d`."""

    def decorated(function: Function) -> Function:
        @functools.wraps(function)
        def short(
            in1: Any, in2: Any, mode: Any = "full", boundary: Any = "fill", fillvalue: Any = 0, **other: Any
        ) -> Any:
            if type(in1) is np.ndarray and type(in2) is np.ndarray and type(fillvalue) is int and not other:
                dtype = in1.dtype
                if dtype is in2.dtype and fillvalue == 0 and type(mode) is type(boundary) is str:
                    key = in1.shape, in2.shape, id(dtype), mode, boundary, correlates
                    known = _known.get(key, NEW)
                    if known is NEW:
                        known = _kept(key, dtype, _bordered, *key[:2], *key[3:])
                    if known is not None:
                        w = in2.conj() if correlates and dtype.kind == "c" else in2
                        y = known.call(known.address, in1, w, np.empty(known.shape, dtype))
                        if y is not None:
                            return y
            return function(in1, in2, mode, boundary, fillvalue, **other)

        return short

    return decorated


def small_unbordered(correlates: bool) -> Callable[[Function], Function]:
    """Of `convolve` and `correlate`, of two signals or two images."""

    def decorated(function: Function) -> Function:
        @functools.wraps(function)
        def short(in1: Any, in2: Any, mode: Any = "full", method: Any = "auto", **other: Any) -> Any:
            if type(in1) is type(in2) is np.ndarray and not other:
                dtype = in1.dtype
                if dtype is in2.dtype and method in ("auto", "direct") and type(mode) is str:
                    key = in1.shape, in2.shape, id(dtype), mode, correlates
                    known = _known.get(key, NEW)
                    if known is NEW:
                        known = _kept(key, dtype, _unbordered, *key[:2], mode, correlates)
                    if known is not None:
                        w = in2.conj() if correlates and dtype.kind == "c" else in2
                        x = in1
                        if known.swapped:
                            x, w = np.flip(w) if correlates else w, x
                        y = known.call(known.address, x, w, np.empty(known.shape, dtype))
                        if y is not None:
                            return y
            return function(in1, in2, mode, method, **other)

        return short

    return decorated


def small_both_axes(function: Function) -> Function:
    """Of `sepfir2d`, for which SciPy takes a microsecond: the compiled call looks at kinds and types."""
    empty = np.empty

    @functools.wraps(function)
    def short(input: Any, hrow: Any, hcol: Any, *, out: Any = None) -> Any:
        try:
            dtype = input.dtype
            call, address, shape, _, _ = _known[input.shape, hrow.size, hcol.size, id(dtype)]
            y = call(address, input, hrow, hcol, empty(shape, dtype)) if out is None else None
        except KeyError:
            y = NEW
        except (AttributeError, TypeError):  # lists, what is no key, and what has no short way
            y = None
        if y is not None and y is not NEW:
            return y
        if type(input) is type(hrow) is type(hcol) is np.ndarray and out is None:
            if y is NEW:
                key = input.shape, hrow.size, hcol.size, id(dtype)
                if _kept(key, dtype, _both_axes, *key[:3]) is not None:
                    return short(input, hrow, hcol)
            few = input.ndim == 2 and input.size * (hrow.size + hcol.size) <= FEW_ALONG
            if few and hcol.size <= input.shape[0] and hrow.size <= input.shape[1]:  # else SciPy reads beyond
                return scipy.signal.sepfir2d(input, hrow, hcol)
        return function(input, hrow, hcol, out=out)

    return short


def small_without_feedback(function: Function) -> Function:
    """Of `lfilter`."""

    @functools.wraps(function)
    def short(b: Any, a: Any, x: Any, axis: Any = -1, zi: Any = None, **other: Any) -> Any:
        if type(b) is type(x) is np.ndarray and zi is None and not other and b.ndim == 1:
            if type(a) in (list, np.ndarray) and np.size(a) > 1:
                return scipy.signal.lfilter(b, a, x, axis)
            along_rows = type(axis) is int and axis in (-1, x.ndim - 1)
            y = _lines(b, a, x) if along_rows else None
            if y is not None:
                return y
        return function(b, a, x, axis, zi, **other)

    return short


def small_resampled(function: Function) -> Function:
    """Of `upfirdn`."""

    @functools.wraps(function)
    def short(h: Any, x: Any, up: Any = 1, down: Any = 1, *options: Any, **other: Any) -> Any:
        if type(h) is type(x) is np.ndarray and type(up) is type(down) is int and "out" not in other:
            if h.ndim == 1 and 0 < x.ndim < 3 and not options and not other:
                key = x.shape, h.size, id(x.dtype), id(h.dtype), up, down
                known = _known.get(key, NEW)
                if known is NEW:
                    known = _kept_resampled(key, h, x, up, down)
                if known is not None:
                    w, wide = h, x.dtype
                    if h.dtype is not wide and (mixed := in_common(h, x, h.dtype.char + wide.char)):
                        w, x, wide = mixed
                    y = known.call(known.address, x, w, np.empty(known.shape[2 - x.ndim :], wide))
                    if y is not None:
                        return y if down == 1 else y[..., ::down].copy()
            axis = options[0] if options else other.get("axis", -1)
            if type(axis) is int and -x.ndim <= axis < x.ndim and up > 0:
                n = max(1, x.shape[axis])
                if x.size // n * (n * up + h.size) * h.size <= FEW_OF_RATES * up * down:
                    return scipy.signal.upfirdn(h, x, up, down, *options, **other)
        return function(h, x, up, down, *options, **other)

    return short


def small_unchanged(function: Function) -> Function:
    """Of `resample_poly`, where both rates are the same."""

    @functools.wraps(function)
    def short(x: Any, up: Any, down: Any, *options: Any, **other: Any) -> Any:
        same = type(up) is type(down) is int and up == down > 0 and not options and other.keys() <= NO_RESULT
        return x.copy() if same and type(x) is np.ndarray else function(x, up, down, *options, **other)

    return short


# --- inside ----------------------------------------------------------------------------------


def _lines(b: np.ndarray, a: Any, x: np.ndarray) -> np.ndarray | None:
    """x (n,) or (lines, n) filtered by b (k,); None where a is not 1, or nothing is kept for the shapes."""
    wide = x.dtype
    if type(a) is np.ndarray:
        if a.shape != (1,) or a[0] != 1:
            return None
        types = b.dtype.char + a.dtype.char + wide.char
    else:
        value = a[0] if type(a) is list and len(a) == 1 else a
        char = OF_PYTHON.get(type(value))
        if char is None or value != 1:
            return None
        types = b.dtype.char + char + wide.char  # a Python number is one of 64 bits, as SciPy has it
    if b.dtype is not wide or types[1] != wide.char:
        mixed = in_common(b, x, types)
        if mixed is None:
            return None
        b, x, wide = mixed
    key = x.shape, b.size, id(wide)
    known = _known.get(key, NEW)
    if known is NEW:
        known = _kept(key, wide, _filtered, *key[:2])
    return None if known is None else known.call(known.address, x, b, np.empty(x.shape, wide))


def _kept(key: Any, dtype: np.dtype, make: Callable[..., Small | None], *given: Any) -> Small | None:
    """What is made for a key, once; of types whose `id` stays theirs: NumPy's own of this machine's order."""
    if missing("llvmlite") or dtype.char not in NUMBERS or np.dtype(dtype.char) is not dtype:
        return None
    if len(_known) >= KEPT:
        _known.clear()
    _known[key] = made = make(dtype, *given)
    return made


def _kept_resampled(key: Any, h: np.ndarray, x: np.ndarray, up: int, down: int) -> Small | None:
    """`_kept` of `upfirdn`, whose two arrays are brought into one type."""
    wide = x.dtype
    if h.dtype is not wide:
        mixed = in_common(h, x, h.dtype.char + wide.char)
        if mixed is None:
            return None
        wide = mixed[2]
    return _kept(key, wide, _resampled, x.shape, h.size, up, down)


def _small(
    dtype: np.dtype, w_shape: tuple[int, int], sources: list[np.ndarray], turned: bool
) -> Small | None:
    counts = [len(s) - k + 1 for s, k in zip(sources, w_shape, strict=True)]
    products, call = counts[0] * counts[1] * w_shape[0] * w_shape[1], filter_small()
    most = BYTES_OF_PRODUCTS // dtype.itemsize if dtype.char in FLOATING else PRODUCTS
    if call is None or products > most:
        return None
    windows = SmallWindows(dtype, w_shape, sources, turned)
    return Small(call, windows.address, windows.shape, windows)


def _bordered(
    dtype: np.dtype, x_shape: tuple[int, ...], w_shape: tuple[int, ...], mode: str, boundary: str,
    correlates: bool,
) -> Small | None:  # fmt: skip
    if len(x_shape) != 2 or len(w_shape) != 2 or 0 in x_shape or 0 in w_shape:
        return None
    if mode not in ("full", "same", "valid") or boundary not in BOUNDARIES:
        return None
    pairs = list(zip(x_shape, w_shape, strict=True))
    if mode == "valid" and any(n < k for n, k in pairs):
        return None
    wanted = [wanted_of(mode, n, k) for n, k in pairs]
    if correlates and mode == "same":
        wanted = [(k // 2, n) for n, k in pairs]
    sources = _reads(BOUNDARIES[boundary], pairs, wanted)
    return _small(dtype, (w_shape[0], w_shape[1]), sources, not correlates)


def _unbordered(
    dtype: np.dtype, x_shape: tuple[int, ...], w_shape: tuple[int, ...], mode: str, correlates: bool
) -> Small | None:
    if not 0 < len(x_shape) == len(w_shape) < 3 or 0 in x_shape or 0 in w_shape:
        return None
    pairs = [(1, 1)] * (2 - len(x_shape)) + list(zip(x_shape, w_shape, strict=True))
    swapped = math.prod(w_shape) > math.prod(x_shape)
    if mode == "valid" and swapped:
        pairs = [(k, n) for n, k in pairs]
    if mode not in ("full", "same", "valid") or (mode == "valid" and any(n < k for n, k in pairs)):
        return None
    wanted = [wanted_of(mode, n, k) for n, k in pairs]
    if mode != "valid" and swapped:
        pairs = [(k, n) for n, k in pairs]
    sources = _reads("constant", pairs, wanted)
    small = _small(dtype, (pairs[0][1], pairs[1][1]), sources, swapped or not correlates)
    return small._replace(swapped=swapped, shape=small.shape[-len(x_shape) :]) if small else None


def _both_axes(dtype: np.dtype, x_shape: tuple[int, ...], rows: int, columns: int) -> Small | None:
    if len(x_shape) != 2 or 0 in x_shape or rows % 2 == 0 or columns % 2 == 0 or dtype.char not in FLOATING:
        return None
    h, w = x_shape
    call = filter_lines_small()
    if call is None or h * w * (rows + columns) * dtype.itemsize > BYTES_OF_PRODUCTS:
        return None
    along = _sources("symmetric", w, -(rows // 2), w + rows // 2)
    across = _sources("symmetric", h, -(columns // 2), h + columns // 2)
    one = SmallWindows(dtype, (1, rows), (np.arange(h), along), True)
    one.then(SmallWindows(dtype, (columns, 1), (across, np.arange(w)), True))
    return Small(call, one.address, (h, w), one)


def _filtered(dtype: np.dtype, x_shape: tuple[int, ...], taps: int) -> Small | None:
    if len(x_shape) not in (1, 2) or 0 in x_shape or not taps or dtype.char not in FLOATING:
        return None
    rows, n = x_shape if len(x_shape) == 2 else (1, *x_shape)
    return _small(dtype, (1, taps), [np.arange(rows), _sources("constant", n, 1 - taps, n)], True)


def _resampled(dtype: np.dtype, x_shape: tuple[int, ...], taps: int, up: int, down: int) -> Small | None:
    most = STUFFED_COMPLEX if dtype.kind == "c" else STUFFED
    rows, n = x_shape if len(x_shape) == 2 else (1, *x_shape)
    if not rows * n or not taps or up < 1 or down < 1 or dtype.char not in FLOATING:
        return None
    if up * down > most and rows * (n * up + taps) * taps > FEW_STUFFED:
        return None
    at = np.arange(1 - taps, (n - 1) * up + taps)
    inside = (at >= 0) & (at <= (n - 1) * up) & (at % up == 0)
    return _small(dtype, (1, taps), [np.arange(rows), np.where(inside, at // up, -1)], True)


def _reads(
    boundary: str, pairs: Sequence[tuple[int, int]], wanted: Sequence[tuple[int, int]]
) -> list[np.ndarray]:
    """What outputs read along each axis: element e of the full convolution elements e - k + 1 to e.

    Args:
        pairs: sizes of x and of the filter.
        wanted: (first, count) of the elements of the full convolution.
    """
    return [
        _sources(boundary, n, first - k + 1, first + count)
        for (n, k), (first, count) in zip(pairs, wanted, strict=True)
    ]


def _sources(boundary: str, size: int, begin: int, end: int) -> np.ndarray:
    """What lies at places [begin, end) of a line."""
    low, high = max(0, -begin), max(0, end - size)
    return source_indices(boundary, size, low, high)[begin + low : end + low]
