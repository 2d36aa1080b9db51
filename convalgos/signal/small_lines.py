"""Short ways for small signals that are filtered along an axis: one look-up, and one compiled call.

Each is a decorator of functions of `convalgos.signal`, as those of `small_images` are.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import scipy  # whose parts are imported when they are used

from convalgos.core.axis_windows import AxisWindow
from convalgos.core.machine import vector_bytes
from convalgos.signal.extensions import MIXED
from convalgos.signal.line_plans import filtered_lines
from convalgos.signal.lines import BARE, TAPS, summed_along
from convalgos.signal.mixed_types import FLOATING, OF_PYTHON, filter_in_common, in_common, listed_array
from convalgos.signal.new_sizes import is_first
from convalgos.signal.short_lines import by_longer_filter
from convalgos.signal.size_cache import UNKNOWN
from convalgos.signal.small_calls import (
    TINY_PRODUCTS,
    Function,
    Small,
    is_tiny_line,
    known_calls,
    small,
    small_call,
)
from convalgos.signal.small_resampling import resampling_call

# A line and a filter that NumPy's loop of dot products convolves: so many products, where nothing is kept, or
# `BARE` taps of more samples; Sapphire Rapids
PRODUCTS, LONG_BARE = 1 << 19, 1 << 17
PRODUCTS_OF_NEW = 1 << 16  # of a signal at another rate, for whose first call nothing is made; Zen 4
FEW_LINES = 6  # that SciPy filters before a compiled call is made; Zen 5
FEW_SCALED = 1 << 12  # elements from which on a single tap is NumPy's to multiply; Sapphire Rapids
LONG_COLUMNS = 1 << 10  # elements of columns that fill no vector, from which on a pass is faster; Zen 4
EXTENSIONS = frozenset(("constant", "symmetric", "reflect", "edge", "wrap", *MIXED))
# Which SciPy divides by zero for, or reads beyond the array for, where there is one sample
OF_TWO_SAMPLES = frozenset(("reflect", "antireflect", "smooth"))
OPTIONS = frozenset(("axis", "mode", "cval"))
NO_RESULT = frozenset(("axis", "window", "padtype"))  # arguments that do not matter to equal rates


def small_without_feedback(function: Function) -> Function:
    """Of `lfilter`."""

    @functools.wraps(function)
    def short(b: Any, a: Any, x: Any, axis: Any = -1, zi: Any = None, **other: Any) -> Any:
        b, x = listed_array(b), listed_array(x)
        if type(b) is type(x) is np.ndarray and not other and b.ndim == 1:
            if type(a) in (list, np.ndarray) and np.size(a) > 1:
                return scipy.signal.lfilter(b, a, x, axis, zi)
            inside = type(axis) is int and -x.ndim <= axis < x.ndim
            if zi is not None:
                both = _with_state(b, a, x, axis, zi) if inside else None
                return function(b, a, x, axis, zi) if both is None else both
            if inside and (y := _lines(b, a, x, axis)) is not None:
                return y
        return function(b, a, x, axis, zi, **other)

    return short


def small_resampled(function: Function) -> Function:
    """Of `upfirdn`."""

    @functools.wraps(function)
    def short(h: Any, x: Any, up: Any = 1, down: Any = 1, *options: Any, **other: Any) -> Any:
        h, x = listed_array(h), listed_array(x)
        if type(h) is type(x) is np.ndarray and type(up) is type(down) is int and h.ndim == 1 <= x.ndim:
            axis, mode = _axis_and_mode(x, options, other) if options or other else (x.ndim - 1, "constant")
            if mode is not None:
                y = _resampled(h, x, up, down, axis, mode)
                if y is not None:
                    return y
        return function(h, x, up, down, *options, **other)

    return short


def small_unchanged(function: Function) -> Function:
    """Of `resample_poly`, where both rates are the same."""

    @functools.wraps(function)
    def short(x: Any, up: Any, down: Any, *options: Any, **other: Any) -> Any:
        same = type(up) is type(down) is int and up == down > 0 and not options and other.keys() <= NO_RESULT
        if same and type(x) is np.ndarray:
            return x.copy("K")  # as SciPy copies it
        return function(x, up, down, *options, **other)

    return short


# --- inside ----------------------------------------------------------------------------------


def _lines(b: np.ndarray, a: Any, x: np.ndarray, axis: int) -> np.ndarray | None:
    """x filtered along an axis by b (k,) / a; None where a is not one number, or nothing is kept."""
    if x.ndim > 1 and x.flags.fnc:  # whose first axis is the last of an array in C order
        y = _lines(b, a, x.T, x.ndim - 1 - axis % x.ndim)
        return None if y is None else y.T
    if (common := _in_common(b, a, x)) is None:
        return None
    h, x, wide = common
    if _are_few_lines(x, h, axis) and is_first((x.shape, h.size, id(wide), axis)):
        return scipy.signal.lfilter(h, np.ones(1, wide), x, axis)  # type: ignore[no-any-return]
    if axis in (-1, x.ndim - 1) and (y := filtered_lines(x, h, 0, x.shape[-1])) is not None:
        return y
    y = _kept_lines(h, x, wide, axis, 0)
    if y is None and x.size and 1 < h.size <= min(TAPS, x.shape[axis]):
        y = summed_along(x, h[::-1], axis % x.ndim, h.size - 1)
    return y


def _are_few_lines(x: np.ndarray, h: np.ndarray, axis: int) -> bool:
    """Whether SciPy filters several lines, one after the other, before a compiled call is made for them."""
    return x.ndim > 1 and 0 < x.size <= FEW_LINES * x.shape[axis] and x.size * h.size <= TINY_PRODUCTS


def _in_common(
    b: np.ndarray, a: Any, x: np.ndarray, other: str = ""
) -> tuple[np.ndarray, np.ndarray, np.dtype] | None:
    """b / a and x in the type that they and another one promote to, and that; None of other divisors."""
    wide, divisor = x.dtype, 1
    if type(a) is np.ndarray:
        if a.size != 1 or a.ndim > 1:
            return None
        char, divisor = a.dtype.char, a.item()
    else:
        divisor = a[0] if type(a) is list and len(a) == 1 else a
        char = OF_PYTHON.get(type(divisor), "")  # a Python number is one of 64 bits, as SciPy has it
        if not char:
            return None
    if b.dtype is not wide or char + other != wide.char * (1 + len(other)):
        mixed = in_common(b, x, b.dtype.char + char + wide.char + other)
        if mixed is None:
            return None
        b, x, wide = mixed
    if wide.kind not in "fc":
        return None  # which SciPy refuses
    if divisor != 1:
        if not divisor:
            return None
        with np.errstate(all="ignore"):
            b = b / wide.type(divisor)
    return b, x, wide


def _kept_lines(h: np.ndarray, x: np.ndarray, wide: np.dtype, axis: int, behind: int) -> np.ndarray | None:
    """x filtered by h, and so many outputs behind it; both are of one type. None where nothing is kept."""
    key = x.shape, h.size, id(wide), axis, behind
    known = known_calls[key]
    if known is UNKNOWN:
        if is_tiny_line(x, h) and is_first(key):
            return np.convolve(x, h)[: x.size + behind]
        known = small_call(key, wide, _filtered, *key[:2], axis, behind)
    if known is None:
        return None
    shape: Any = x.shape
    if behind:
        shape = list(shape)
        shape[axis] += behind
    y = np.empty(shape, wide)
    if x.ndim > 1 and x.shape != known.shape:
        x = x.reshape(known.shape)
    return known.call(known.address, x, h, y)  # type: ignore[no-any-return]


def _with_state(
    b: np.ndarray, a: Any, x: np.ndarray, axis: int, zi: Any
) -> tuple[np.ndarray, np.ndarray] | None:
    """x filtered by b (k,) / a, which held zi (k - 1 along the axis), and what it holds then; or None."""
    k, n = b.size, x.shape[axis]
    if x.ndim > 1 and x.flags.fnc and type(zi) is np.ndarray and zi.ndim == x.ndim:
        both = _with_state(b, a, x.T, x.ndim - 1 - axis % x.ndim, zi.T)
        return None if both is None else (both[0].T, both[1].T)
    if type(zi) is not np.ndarray or zi.ndim != x.ndim or zi.shape[axis] != k - 1 or not x.size:
        return None
    if x.size == n < x.ndim * n and zi.size == k - 1:  # a single line
        both = _with_state(b, a, x.reshape(n), 0, zi.reshape(k - 1))
        return None if both is None else (both[0].reshape(x.shape), both[1].reshape(zi.shape))
    if (k == 1 and x.size > FEW_SCALED) or (common := _in_common(b, a, x, zi.dtype.char)) is None:
        return None
    y: np.ndarray | None = None
    if x.ndim == 1:
        bare = k <= BARE and n > LONG_BARE and common[2].kind == "f"
        if not bare:
            y = _kept_lines(*common, 0, k - 1)  # (n + k - 1,)
        if y is None and (bare or n * k <= PRODUCTS):
            y = np.convolve(common[1], common[0])
    elif all(
        s in (1, t) for i, (s, t) in enumerate(zip(zi.shape, x.shape, strict=True)) if i != axis % x.ndim
    ):
        if x.size * k > TINY_PRODUCTS:
            y = by_longer_filter(common[1], common[0], axis % x.ndim, 0, n + k - 1)  # (..., n + k - 1, ...)
        if y is None:
            y = _kept_lines(*common, axis, k - 1)
        if y is None and 1 < k <= min(TAPS, n):
            return _columns_with_state(*common, axis % x.ndim, zi)
    else:
        return None
    if y is None:
        return None
    ahead = (slice(None),) * (axis % x.ndim)
    y[(*ahead, slice(k - 1))] += zi
    return y[(*ahead, slice(n))], y[(*ahead, slice(n, None))]


def _columns_with_state(
    h: np.ndarray, x: np.ndarray, wide: np.dtype, axis: int, zi: np.ndarray
) -> tuple[np.ndarray, np.ndarray] | None:
    """`_with_state` of columns that fill no vector: a pass over them, and what their last samples leave."""
    ahead, k = (slice(None),) * axis, h.size
    last = np.ascontiguousarray(x[(*ahead, slice(x.shape[axis] - k + 1, None))])  # (..., k - 1, ...)
    left = _kept_lines(h, last, wide, axis, k - 1)
    y = None if left is None else summed_along(x, h[::-1], axis, k - 1)
    if left is None or y is None:
        return None
    y[(*ahead, slice(k - 1))] += zi
    return y, left[(*ahead, slice(k - 1, None))]


def _axis_and_mode(x: np.ndarray, options: tuple[Any, ...], other: dict[str, Any]) -> tuple[int, str | None]:
    """The axis, from the front, and what lies beyond the ends; no mode of other ones and constants."""
    axis, mode, value = (
        options[i] if len(options) > i else other.get(name, default)
        for i, (name, default) in enumerate((("axis", -1), ("mode", "constant"), ("cval", 0)))
    )
    known = (
        len(options) <= 3 and other.keys() <= OPTIONS and type(mode) is str and type(value) in (int, float)
    )
    if not known or value or type(axis) is not int or not -x.ndim <= axis < x.ndim or mode not in EXTENSIONS:
        return 0, None
    if mode in OF_TWO_SAMPLES and x.shape[axis] == 1:
        mode = "edge"
    return axis % x.ndim, mode


def _resampled(h: np.ndarray, x: np.ndarray, up: int, down: int, axis: int, mode: str) -> np.ndarray | None:
    """`upfirdn` of signals, along any axis; None where nothing is kept."""
    if x.ndim > 3:
        return _of_many_axes(h, x, up, down, axis, mode)
    wide = x.dtype
    if h.dtype is not wide or wide.char not in FLOATING:
        if (mixed := filter_in_common(h, x)) is None:
            return None
        h, x, wide = mixed
    key = x.shape, x.strides, h.size, id(wide), id(h.dtype), up, down, axis, mode
    known = known_calls[key]
    if known is UNKNOWN:
        if _are_few(x, h.size, up, down, axis) and is_first(key):
            return scipy.signal.upfirdn(h, x, up, down, axis, mode)  # type: ignore[no-any-return]
        known = small_call(key, wide, resampling_call, x, h.size, up, down, axis, mode, h.dtype)
    if known is None:
        return None
    return known.call(known.address, x, h, np.empty(known.shape, wide))  # type: ignore[no-any-return]


def _are_few(x: np.ndarray, taps: int, up: int, down: int, axis: int) -> bool:
    """Whether SciPy resamples signals before a compiled call is made for them."""
    if not x.size or not taps or up < 1 or down < 1:
        return False
    outputs: int = x.size // x.shape[axis] * ((x.shape[axis] * up + taps) // down)
    return outputs * -(-taps // up) <= PRODUCTS_OF_NEW


def _of_many_axes(
    h: np.ndarray, x: np.ndarray, up: int, down: int, axis: int, mode: str
) -> np.ndarray | None:
    """The same, as of an array of two or three axes."""
    if not x.size:
        return None
    ahead, n, behind = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    flat = tuple(math.prod(sizes) for sizes in (ahead, (n,), behind) if sizes)
    y = _resampled(h, x.reshape(flat), up, down, 1 if ahead else 0, mode)
    return None if y is None else y.reshape(*ahead, -1, *behind)


def _filtered(dtype: np.dtype, x_shape: tuple[int, ...], taps: int, axis: int, more: int) -> Small | None:
    """Outputs as many as samples, and more behind them; `shape` is that of x as rows."""
    if 0 in x_shape or not taps or dtype.char not in FLOATING:
        return None
    n, axis = x_shape[axis], axis % len(x_shape)
    ahead, behind = math.prod(x_shape[:axis]), math.prod(x_shape[axis + 1 :])
    along = AxisWindow(n, taps, taps - 1, windows=n + more)
    if behind == 1:
        made = small(dtype, [AxisWindow(ahead), along], True)
        return made and made._replace(shape=(ahead, n))
    if ahead * n > LONG_COLUMNS and behind * dtype.itemsize < vector_bytes():
        return None
    windows = [AxisWindow(ahead), along, AxisWindow(behind)]
    made = small(dtype, windows[ahead == 1 :], True)
    return made and made._replace(shape=(ahead * n, behind))
