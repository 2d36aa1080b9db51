"""One filter along one axis of an array: the lines along the other axes are the batch of one problem."""

from __future__ import annotations

import math

import numpy as np

from convalgos.core.axis_windows import AxisWindow
from convalgos.core.errors import missing
from convalgos.cpu.filtering.axis_filter import axis_filter
from convalgos.cpu.filtering.small_windows import filter_small
from convalgos.select.devices import current_machine
from convalgos.signal import short_windows
from convalgos.signal.line_plans import filtered_lines
from convalgos.signal.modes import MODES, wanted_of
from convalgos.signal.outputs import holds_result
from convalgos.signal.problems import all_finite, run_as_problem
from convalgos.signal.short_lines import by_longer_filter
from convalgos.signal.window_sums import FEW_COMPLEX, window_sums

LONG = 1 << 20  # bytes of a signal that one pass filters faster than a plan; Sapphire Rapids, two threads
BARE = 3  # taps of float64 for which NumPy's loop reads and writes, and that is all: as fast as two threads,
QUICK = 6e10  # unless the last cache gives each of them so many bytes in a second; Sapphire Rapids and Zen 5
# Up to here nothing else is faster.
PRODUCTS = 1 << 18  # of a line and a filter that NumPy's loop of dot products convolves; Zen 4, two threads
TAPS, SUMS = 64, 1 << 21  # of a filter, or products in all, that are summed; Sapphire Rapids, two threads


def filtered(
    x: np.ndarray, h: np.ndarray, axis: int, first: int, count: int, out: np.ndarray | None = None
) -> np.ndarray | None:
    """Elements [first, first + count) of the full convolution of the lines along an axis with h (k,).

    Both are of one precision, real or complex. `out` itself where a plan writes there at once, else a new
    array; None where there is no plan for it.
    """
    if out is None and x.ndim > 1 and x.flags.fnc:  # whose first axis is the last of an array in C order
        turned = filtered(x.T, h, x.ndim - 1 - axis, first, count)
        return None if turned is None else turned.T
    n, k = x.shape[axis], h.size
    lines = x.size // n
    if k == 1 and (first, count) == (0, n):
        with np.errstate(all="ignore"):
            product: np.ndarray = np.multiply(
                x, h[0], out=out if holds_result(out, x.shape, x.dtype) else None
            )
        return product
    if k <= TAPS and axis == x.ndim - 1 and (y := filtered_lines(x, h, first, count, out)) is not None:
        return y
    if count == n and (y := summed_along(x, h[::-1], axis, k - 1 - first, out=out)) is not None:
        return y
    if x.dtype.kind == "c" and h.imag.any() and k <= FEW_COMPLEX and all_finite(h):
        y = _complex_along(x, h, axis, first, count)
        if y is not None:
            return y
    if lines == 1 and n * k <= PRODUCTS:
        y = np.convolve(x.reshape(n), h)[first : first + count]
        return y.reshape([count if i == axis else 1 for i in range(x.ndim)])
    if lines > 1 and (y := by_longer_filter(x, h, axis, first, count)) is not None:
        return y
    if lines * count * k <= short_windows.GATHERED:
        low = first - k + 1
        begin = max(0, -low)
        rows = x if axis == x.ndim - 1 else np.moveaxis(x, axis, -1)  # (..., n)
        padded = np.zeros((*rows.shape[:-1], begin + max(n, first + count)), x.dtype)
        padded[..., begin : begin + n] = rows
        if low > 0:
            padded = np.ascontiguousarray(padded[..., low:])
        y = short_windows.times_windows(padded, h[::-1], (1,), (count,))
        return y if axis == x.ndim - 1 else np.moveaxis(y, -1, axis)
    others = [i for i in range(x.ndim) if i != axis]
    w = h.reshape([k if i == axis else 1 for i in range(x.ndim)])
    return run_as_problem(x, w, [axis], others, [(first, count)], "auto", out)


def _complex_along(x: np.ndarray, h: np.ndarray, axis: int, first: int, count: int) -> np.ndarray | None:
    """`filtered` of complex numbers by sums of few taps, which plans take apart."""
    if missing("llvmlite") or filter_small() is None:
        return None
    n, k, ahead = x.shape[axis], h.size, math.prod(x.shape[:axis])
    behind = x.size // (n * ahead)
    axes = [(ahead, (0, ahead), 1), (n, (first, count), k), (behind, (0, behind), 1)]
    kept = [each for each in axes if each[0] > 1 or each[2] > 1] or axes[1:2]
    sizes, wanted, taps = zip(*kept, strict=True)
    y = window_sums(x.reshape(sizes), h.reshape(taps), list(wanted), x.dtype)
    return None if y is None else y.reshape(*x.shape[:axis], count, *x.shape[axis + 1 :])


def summed_along(
    x: np.ndarray, w: np.ndarray, axis: int, low: int, boundary: str = "constant", fill: float = 0.0,
    out: np.ndarray | None = None,
) -> np.ndarray | None:  # fmt: skip
    """y[i] = sum_t w[t] * x[i + t - low] along an axis, by sums; None where something else may be faster.

    Args:
        w: (k,), which is real, or has no imaginary parts.
        boundary: of `core.boundaries`, with `fill` beyond the ends where that is "constant".
        out: as of `filtered`.
    """
    n, k = x.shape[axis], w.size
    if x.dtype.char not in "fdFD":
        return None
    if (k > TAPS and (k > n or x.size * k > SUMS)) or missing("llvmlite") or not np.isfinite(w.sum()):
        return None  # the zeros beyond the ends would spread what is not finite
    if x.dtype.kind == "c" and (w.imag.any() or not all_finite(x)):
        return None
    whole = np.ascontiguousarray(x, x.dtype.char)
    parts = whole.view(whole.real.dtype).reshape(*x.shape, -1)  # (..., real and imaginary part)
    weights = np.ascontiguousarray(w.real, parts.dtype)
    writes = holds_result(out, x.shape, whole.dtype) and not np.may_share_memory(out, x)
    y = out if writes and out is not None else np.empty_like(whole)
    by = axis_filter(parts.shape, parts.dtype, axis, AxisWindow(n, k, low, boundary), fill)
    by(parts, weights, y.view(parts.dtype))
    return y


def long_signal(x: np.ndarray, w: np.ndarray, mode: str) -> np.ndarray | None:
    """The convolution of a long signal of floats with few taps; else None."""
    if x.size < w.size and mode != "same":
        x, w = w, x
    n, k = x.size, w.size
    if x.ndim != 1 or x.nbytes <= LONG or k > TAPS or x.dtype.char not in "fd" or mode not in MODES:
        return None
    if k <= BARE and x.dtype.char == "d" and not _is_cache_quick():
        bare: np.ndarray = np.convolve(x, w, mode)  # type: ignore[call-overload] # any of its modes
        return bare
    if mode != "full":
        first, count = wanted_of(mode, n, k)
        y = summed_along(x, w[::-1], 0, k - 1 - first)
        return None if y is None else y[:count]
    y = np.empty(n + k - 1, x.dtype)
    if summed_along(x, w[::-1], 0, k - 1, out=y[:n]) is None:
        return None
    y[n:] = np.convolve(x[n - k + 1 :], w)[k - 1 :] if k > 1 else ()
    return y


def _is_cache_quick() -> bool:
    machine = current_machine()
    return machine.cache_bandwidth >= QUICK * machine.threads > QUICK


def axis_of(axis: int, ndim: int) -> int | None:
    """The axis counted from the front, or None where there is no such axis."""
    if isinstance(axis, bool) or not isinstance(axis, int | np.integer) or not -ndim <= axis < ndim:
        return None
    return int(axis) % ndim
