"""Short ways for small images and signals: one look-up by shapes and type, and one compiled call.

Each is a decorator of functions of `convalgos.signal`, which are asked for what the short way does not
answer: lists, other types, large arrays, options beyond the usual.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy  # whose parts are imported when they are used

from convalgos.core.machine import vector_bytes
from convalgos.signal.booleans import convolved_booleans
from convalgos.signal.finite_values import has_finite_norm
from convalgos.signal.joint_transforms import are_slow_sums, known_convolution
from convalgos.signal.mixed_types import (
    HALVES,
    NUMBERS,
    are_booleans,
    halves_widened,
    listed_array,
    promoted_type,
)
from convalgos.signal.modes import MODES, MOST_AXES, larger, products_summed, wanted_of
from convalgos.signal.new_sizes import is_first
from convalgos.signal.size_cache import UNKNOWN
from convalgos.signal.small_calls import (
    BYTES_OF_SIGNAL,
    Function,
    Small,
    is_tiny_line,
    known_calls,
    reads,
    small,
    small_call,
)

MOST_OF_LINE = 1 << 12  # taps for each output of a signal, beyond which they are dot products
DOTS, TAPS_OF_DOTS = 8, 256  # outputs of so many taps at least, which are no more than dot products
SCALED = 1 << 12  # elements from which on a single tap is NumPy's to multiply; Sapphire Rapids
FEW = 1 << 12  # products of arrays that SciPy sums before ours has begun,
FEW_OF_VOLUMES = 1 << 10  # and of those of more axes than two
TINY = 3 << 13  # the same of images with borders; Zen 5
FEW_HALVES = 3 << 8  # and of signals that give one of float16; Zen 5
FEW_SINGLE = 1 << 8  # elements side by side up to which none is worth another view of the arrays
NARROW = 3 << 15  # products of rows of one vector by a column, beyond which transforms are faster; Zen 5
# Times as many taps as meet the image, from which on the others are left out, where there are so many;
# Sapphire Rapids, the second of Zen 5
LEFT_OUT, WORTH_LEAVING = 2, 32
FILLS = (int, float, complex)
LARGEST_FILL = 1e30  # beyond the edges; larger ones and NaN are not laid there
BOUNDARIES = {"fill": "constant", "wrap": "wrap", "symm": "symmetric"}


def small_bordered(correlates: bool) -> Callable[[Function], Function]:
    """Of `convolve2d` and `correlate2d`."""

    def decorated(function: Function) -> Function:
        @functools.wraps(function)
        def short(
            in1: Any, in2: Any, mode: Any = "full", boundary: Any = "fill", fillvalue: Any = 0, **other: Any
        ) -> Any:
            in1, in2 = listed_array(in1), listed_array(in2)
            fill = fillvalue.item() if isinstance(fillvalue, np.generic) else fillvalue
            if type(mode) is type(boundary) is str and not other:
                if type(fill) in FILLS and abs(fill) < LARGEST_FILL:
                    y = _called(in1, in2, correlates, _bordered, False, mode, boundary, fill, type(fill))
                    if y is not None:
                        return y
                if (
                    type(in1) is type(in2) is np.ndarray
                    and in1.ndim == in2.ndim == 2
                    and in1.size
                    and _are_few(in1, in2, mode, TINY)
                ):
                    return getattr(scipy.signal, function.__name__)(in1, in2, mode, boundary, fillvalue)
            return function(in1, in2, mode, boundary, fillvalue, **other)

        return short

    return decorated


def convolved_small(
    in1: Any, in2: Any, mode: Any, correlates: bool, at_once: bool = True
) -> np.ndarray | None:
    """The convolution, or correlation, of two arrays; None where nothing is kept.

    Unless `at_once`, nothing is kept of the first call of a tiny size, either.
    """
    if type(mode) is not str:
        return None
    return _called(in1, in2, correlates, _unbordered, at_once, mode)


def small_unbordered(correlates: bool) -> Callable[[Function], Function]:
    """Of `convolve` and `correlate`, of two arrays of any number of axes."""

    def decorated(function: Function) -> Function:
        @functools.wraps(function)
        def short(in1: Any, in2: Any, mode: Any = "full", method: Any = "auto", **other: Any) -> Any:
            if method == "direct" and not other and _are_few_halves(in1, in2, mode):
                return (np.correlate if correlates else np.convolve)(in1, in2, mode)
            if method in ("auto", "direct") and not other:
                y = convolved_small(in1, in2, mode, correlates, False)
                if y is None and method == "auto":
                    y = known_convolution(in1, in2, mode, correlates)
                if y is not None:
                    return y
                if are_booleans(in1, in2):
                    y = convolved_booleans(in1, in2, mode, correlates, function)
                    if y is not None:
                        return y
                if (few := _few_products(in1, in2, mode)) is not None:
                    return getattr(scipy.signal, function.__name__)(*few, mode, "direct")
                if mode != "valid" and _has_many_axes(in1, in2):
                    return getattr(scipy.signal, function.__name__)(in1, in2, mode, method)
            if not other and are_booleans(in1, in2):
                return getattr(scipy.signal, function.__name__)(in1, in2, mode, method)
            if not other and (halves := halves_widened(in1, in2)) is not None:
                if in1.ndim > 1:
                    if method == "auto":
                        method = scipy.signal.choose_conv_method(in1, in2, mode)
                    if method != "fft":  # SciPy sums no such numbers
                        return getattr(scipy.signal, function.__name__)(in1, in2, mode, method)
                with np.errstate(over="ignore"):
                    return short(*halves, mode, method).astype(np.float16)
            return function(in1, in2, mode, method, **other)

        return short

    return decorated


# --- inside ----------------------------------------------------------------------------------


def _few_products(in1: Any, in2: Any, mode: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Both in one type, where SciPy sums along several axes before ours has begun."""
    if type(in1) is not np.ndarray or type(in2) is not np.ndarray or not 1 < in1.ndim == in2.ndim:
        return None
    if in1.dtype.char not in NUMBERS or in2.dtype.char not in NUMBERS or not in1.size or not in2.size:
        return None
    most = FEW_OF_VOLUMES if in1.ndim > 2 else FEW
    if mode not in ("full", "same", "valid") or products_summed(in1.shape, in2.shape, mode) > most:
        return None
    if in1.dtype is in2.dtype:
        return in1, in2
    dtype = np.result_type(in1, in2)
    return in1.astype(dtype, copy=False), in2.astype(dtype, copy=False)


def _are_few_halves(in1: Any, in2: Any, mode: Any) -> bool:
    """Whether two signals give one of float16 in few products, which are NumPy's, as in SciPy."""
    if type(in1) is not np.ndarray or type(in2) is not np.ndarray or not in1.ndim == in2.ndim == 1:
        return False
    if in1.dtype.char + in2.dtype.char not in HALVES or not 0 < in1.size * in2.size <= FEW_HALVES:
        return False
    return mode in ("full", "valid") or (mode == "same" and in1.size >= in2.size)


def _has_many_axes(in1: Any, in2: Any) -> bool:
    """Whether arrays of numbers are convolved along more axes than ours convolve."""
    if type(in1) is not np.ndarray or type(in2) is not np.ndarray or not MOST_AXES < in1.ndim == in2.ndim:
        return False
    many = sum(1 not in pair for pair in zip(in1.shape, in2.shape, strict=True)) > MOST_AXES
    return many and in1.dtype.char in NUMBERS and in2.dtype.char in NUMBERS


def _called(
    in1: Any, in2: Any, correlates: bool, make: Callable[..., Small | None], at_once: bool, *options: Any
) -> np.ndarray | None:  # fmt: skip
    """What is kept for two arrays and some options, called with them in their common type; None without it.

    Args:
        make: called as make(dtype, shape, other shape, correlates, *options) at first.
        at_once: whether it is made for the first call of a tiny size, too.
    """
    if type(in1) is not np.ndarray or type(in2) is not np.ndarray:
        return None
    x, w, dtype = in1, in2, in1.dtype
    if dtype is not w.dtype:
        if (wide := promoted_type(x, w)) is None:
            return None
        dtype = wide
    key = x.shape, w.shape, id(dtype), correlates, options
    known = known_calls[key]
    if known is UNKNOWN:
        if not at_once and _is_tiny(in1, in2, make, options[0]) and is_first(key):
            return None
        known = small_call(key, dtype, make, x.shape, w.shape, correlates, *options)
    if known is None:
        return None
    if x.dtype is not dtype:  # only now, as large arrays are another way's to convert
        x = x.astype(dtype)
    if w.dtype is not dtype:
        w = w.astype(dtype)
    if known.taps is not None:
        if not has_finite_norm(w):
            return None  # what is not finite would spread from zeros
        w = w[known.taps]
    if known.swapped and make is _unbordered and options[0] == "same" and not has_finite_norm(x):
        return None  # nor do SciPy's sums spread it from zeros
    if correlates and dtype.kind == "c":
        if known.swapped and make is _bordered:
            x = x.conj()  # as SciPy does, which swaps first
        elif in2.dtype.kind == "c":  # of what was real it is another copy
            w = w.conj()
    if known.swapped:
        x, w = np.flip(w) if correlates else w, x
    y: np.ndarray | None = known.call(known.address, _rows(x), _rows(w), np.empty(known.shape, dtype))
    return y


def _is_tiny(x: np.ndarray, w: np.ndarray, make: Callable[..., Small | None], mode: str) -> bool:
    """Whether ways for which nothing is kept take less time than to make what is kept.

    SciPy turns results around, without a copy, where the second array is the larger one.
    """
    if make is _bordered:
        return _are_few(x, w, mode, TINY)
    if x.ndim < 2:
        return x.dtype.char in NUMBERS and w.dtype.char in NUMBERS and is_tiny_line(x, w)
    if x.ndim != w.ndim or mode not in MODES or not all(map(operator.ge, x.shape, w.shape)):
        return False
    return _are_few(x, w, mode, FEW_OF_VOLUMES if x.ndim > 2 else FEW)


def _are_few(x: np.ndarray, w: np.ndarray, mode: str, most: int) -> bool:
    """Whether no more products are summed; where there can be no more, these are not counted."""
    return x.size * w.size <= most or products_summed(x.shape, w.shape, mode) <= most


def _rows(x: np.ndarray) -> np.ndarray:
    """An array of more than two axes as one image, planes below each other."""
    return x if x.ndim < 3 else x.reshape(-1, x.shape[-1])


def _bordered(
    dtype: np.dtype, x_shape: tuple[int, ...], w_shape: tuple[int, ...], correlates: bool, mode: str,
    boundary: str, fill: Any, of_fill: type,
) -> Small | None:  # fmt: skip
    if of_fill is complex and dtype.kind != "c":
        return None
    if dtype.kind in "iu":
        fill = int(fill)  # SciPy cuts it off, too, and refuses what the type does not hold
        if not np.iinfo(dtype).min <= fill <= np.iinfo(dtype).max:
            return None
    if len(x_shape) != 2 or len(w_shape) != 2 or 0 in x_shape or 0 in w_shape:
        return None
    if mode not in ("full", "same", "valid") or boundary not in BOUNDARIES:
        return None
    swapped = mode == "valid" and larger(x_shape, w_shape) == 1
    if swapped:
        x_shape, w_shape = w_shape, x_shape
    pairs = list(zip(x_shape, w_shape, strict=True))
    if mode == "valid" and any(n < k for n, k in pairs):
        return None
    wanted = [wanted_of(mode, n, k) for n, k in pairs]
    if correlates and mode == "same":
        wanted = [(k // 2, n) for n, k in pairs]
    taps = None
    if boundary == "fill" and not fill and math.prod(w_shape) >= WORTH_LEAVING:
        spans = [  # of taps that meet the image
            (max(0, first + 1 - n), min(k, first + count))
            for (n, k), (first, count) in zip(pairs, wanted, strict=True)
        ]
        if math.prod(stop - start for start, stop in spans) * LEFT_OUT <= math.prod(w_shape):
            taps = tuple(
                slice(k - stop, k - start) if correlates else slice(start, stop)
                for (start, stop), (_, k) in zip(spans, pairs, strict=True)
            )
            pairs = [(n, stop - start) for (n, _), (start, stop) in zip(pairs, spans, strict=True)]
            wanted = [
                (first - start, count) for (first, count), (start, _) in zip(wanted, spans, strict=True)
            ]
    places = reads(BOUNDARIES[boundary], pairs, wanted)
    made = small(dtype, places, swapped or not correlates, fill)
    return made and made._replace(swapped=swapped, taps=taps)


def _unbordered(
    dtype: np.dtype, x_shape: tuple[int, ...], w_shape: tuple[int, ...], correlates: bool, mode: str
) -> Small | None:
    if not 0 < len(x_shape) == len(w_shape) or 0 in x_shape or 0 in w_shape:
        return None
    single = len(x_shape) > 1 and x_shape[-1] == w_shape[-1] == 1
    if single and max(math.prod(x_shape), math.prod(w_shape)) > FEW_SINGLE:
        # vectors are filled along the last axis
        made = _unbordered(dtype, x_shape[:-1], w_shape[:-1], correlates, mode)
        return made and _without_last(made, x_shape[:-1], w_shape[:-1])
    pairs = [(1, 1)] * (2 - len(x_shape)) + list(zip(x_shape, w_shape, strict=True))
    swapped = math.prod(w_shape) > math.prod(x_shape)
    if mode == "valid" and swapped:
        pairs = [(k, n) for n, k in pairs]
    if mode not in ("full", "same", "valid") or (mode == "valid" and any(n < k for n, k in pairs)):
        return None
    wanted = [wanted_of(mode, n, k) for n, k in pairs]
    if mode != "valid" and swapped:
        pairs = [(k, n) for n, k in pairs]
    (_, outputs), (n, taps) = wanted[-1], pairs[-1]
    least, most = sorted((math.prod(x_shape), math.prod(w_shape)))
    if least == 1 and most > SCALED and not (mode == "same" and swapped):
        return Small(_scaled, 0, w_shape if swapped else x_shape, None, swapped)
    if len(x_shape) == 1 and outputs <= DOTS and taps >= TAPS_OF_DOTS:
        return Small(_dots if swapped or not correlates else _dots_correlated, 0, (outputs,), None, swapped)
    if len(x_shape) == 1 and (n * dtype.itemsize > BYTES_OF_SIGNAL or taps > MOST_OF_LINE * outputs):
        return None
    if dtype.kind == "c" and are_slow_sums(pairs, wanted, dtype.itemsize, len(x_shape) == 1):
        return None
    is_column = dtype.kind == "f" and len(x_shape) == 2 and taps == 1
    if is_column and n * dtype.itemsize <= vector_bytes() and wanted[0][1] * pairs[0][1] > NARROW:
        return None
    places = reads("constant", pairs, wanted)
    made = small(dtype, places, swapped or not correlates)
    return made._replace(swapped=swapped, shape=made.shape[-len(x_shape) :]) if made else None


def _without_last(made: Small, x_shape: tuple[int, ...], w_shape: tuple[int, ...]) -> Small:
    """The same for arrays that have one more axis, of a single element."""
    of_x, of_w = (w_shape, x_shape) if made.swapped else (x_shape, w_shape)

    def call(address: int, x: np.ndarray, w: np.ndarray, y: np.ndarray) -> Any:
        called = made.call(address, _rows(x.reshape(of_x)), _rows(w.reshape(of_w)), y.reshape(made.shape))
        return None if called is None else y

    return made._replace(call=call, shape=(*made.shape, 1))


def _scaled(_: int, x: np.ndarray, w: np.ndarray, y: np.ndarray) -> np.ndarray:
    """A single tap times all elements."""
    with np.errstate(all="ignore"):  # NumPy warns of what is not finite, SciPy's sums do not
        np.multiply(x, w.reshape(-1)[0], out=y.reshape(x.shape))
    return y


def _dots(_: int, x: np.ndarray, w: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.convolve(x, w, "valid")


def _dots_correlated(_: int, x: np.ndarray, w: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.convolve(x, w[::-1], "valid")
