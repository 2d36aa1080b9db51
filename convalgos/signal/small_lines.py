"""Short ways for small signals that are filtered along an axis: one look-up, and one compiled call.

Each is a decorator of functions of `convalgos.signal`, as those of `small_images` are.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import scipy  # whose parts are imported when they are used

from convalgos.signal.mixed_types import FLOATING, OF_PYTHON, in_common
from convalgos.signal.small_calls import NEW, Function, Small, known_calls, small, small_call, sources

STUFFED = 32  # up * down, up to which vectors over zeros are faster than single products without,
STUFFED_COMPLEX = 8  # and of complex numbers; Sapphire Rapids
FEW_STUFFED = 1 << 17  # products with zeros or not, up to which it does not matter; Sapphire Rapids
# Products of signals and filters that SciPy sums before ours has begun, of which it leaves out none that
# meets nothing; Zen 4
FEW_OF_RATES = 3 << 15
EXTENSIONS = frozenset(("constant", "symmetric", "reflect", "edge", "wrap"))  # modes of `core.boundaries`
NO_RESULT = frozenset(("axis", "window", "padtype"))  # arguments that do not matter to equal rates


def small_without_feedback(function: Function) -> Function:
    """Of `lfilter`."""

    @functools.wraps(function)
    def short(b: Any, a: Any, x: Any, axis: Any = -1, zi: Any = None, **other: Any) -> Any:
        if type(b) is type(x) is np.ndarray and zi is None and not other and b.ndim == 1:
            if type(a) in (list, np.ndarray) and np.size(a) > 1:
                return scipy.signal.lfilter(b, a, x, axis)
            along = type(axis) is int and (axis in (-1, x.ndim - 1) or (x.ndim == 2 and axis in (0, -2)))
            y = _lines(b, a, x, axis in (-1, x.ndim - 1)) if along else None
            if y is not None:
                return y
        return function(b, a, x, axis, zi, **other)

    return short


def small_resampled(function: Function) -> Function:
    """Of `upfirdn`."""

    @functools.wraps(function)
    def short(h: Any, x: Any, up: Any = 1, down: Any = 1, *options: Any, **other: Any) -> Any:
        if type(h) is type(x) is np.ndarray and type(up) is type(down) is int and "out" not in other:
            mode = _mode_of_rows(x.ndim, options, other) if options or other else "constant"
            if mode is not None and h.ndim == 1 and x.ndim == 3 and x.size:
                y = short(h, x.reshape(-1, x.shape[2]), up, down, -1, mode)
                return y.reshape(*x.shape[:2], -1)
            if mode is not None and h.ndim == 1 and 0 < x.ndim < 3:
                key = x.shape, h.size, id(x.dtype), id(h.dtype), up, down, mode
                known = known_calls.get(key, NEW)
                if known is NEW:
                    known = _kept_resampled(key, h, x, up, down, mode)
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


def _lines(b: np.ndarray, a: Any, x: np.ndarray, of_rows: bool) -> np.ndarray | None:
    """x (n,) or (lines, n), or (n, lines) where it is not of rows, filtered by b (k,).

    None where a is not 1, or nothing is kept for the shapes.
    """
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
    key = x.shape, b.size, id(wide), of_rows
    known = known_calls.get(key, NEW)
    if known is NEW:
        known = small_call(key, wide, _filtered, *key[:2], of_rows)
    return None if known is None else known.call(known.address, x, b, np.empty(x.shape, wide))


def _mode_of_rows(ndim: int, options: tuple[Any, ...], other: dict[str, Any]) -> str | None:
    """What lies beyond the ends of rows, where `axis` and `mode` are all that is given."""
    if len(options) > 2 or not other.keys() <= {"axis", "mode"}:
        return None
    axis = options[0] if options else other.get("axis", -1)
    mode = options[1] if len(options) == 2 else other.get("mode", "constant")
    return mode if type(axis) is int and axis in (-1, ndim - 1) and mode in EXTENSIONS else None


def _kept_resampled(
    key: Any, h: np.ndarray, x: np.ndarray, up: int, down: int, mode: str
) -> Small | None:  # fmt: skip
    """`_kept` of `upfirdn`, whose two arrays are brought into one type."""
    wide = x.dtype
    if h.dtype is not wide:
        mixed = in_common(h, x, h.dtype.char + wide.char)
        if mixed is None:
            return None
        wide = mixed[2]
    return small_call(key, wide, _resampled, x.shape, h.size, up, down, mode)


def _filtered(dtype: np.dtype, x_shape: tuple[int, ...], taps: int, of_rows: bool) -> Small | None:
    if len(x_shape) not in (1, 2) or 0 in x_shape or not taps or dtype.char not in FLOATING:
        return None
    rows, columns = x_shape if len(x_shape) == 2 else (1, *x_shape)
    if of_rows:
        places = [np.arange(rows), sources("constant", columns, 1 - taps, columns)]
    else:
        places = [sources("constant", rows, 1 - taps, rows), np.arange(columns)]
    return small(dtype, (1, taps) if of_rows else (taps, 1), places, True)


def _resampled(
    dtype: np.dtype, x_shape: tuple[int, ...], taps: int, up: int, down: int, mode: str
) -> Small | None:  # fmt: skip
    most = STUFFED_COMPLEX if dtype.kind == "c" else STUFFED
    rows, n = x_shape if len(x_shape) == 2 else (1, *x_shape)
    if not rows * n or not taps or up < 1 or down < 1 or dtype.char not in FLOATING:
        return None
    if up * down > most and rows * (n * up + taps) * taps > FEW_STUFFED:
        return None
    if mode != "constant" and n < 2:
        return None  # which some modes cannot continue
    at = np.arange(1 - taps, (n - 1) * up + taps)
    beyond = (taps - 1) // up
    samples = sources(mode, n, -beyond, n + beyond)[np.clip(at // up, -beyond, n - 1 + beyond) + beyond]
    return small(dtype, (1, taps), [np.arange(rows), np.where(at % up == 0, samples, -1)], True)
