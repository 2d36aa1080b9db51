"""One filter along one axis of an array: the lines along the other axes are the batch of one problem."""

from __future__ import annotations

import math

import numpy as np

from convalgos.signal import short_windows
from convalgos.signal.problems import run_as_problem

# Up to here nothing else is faster; Zen 4, two threads.
PRODUCTS = 1 << 18  # of a line and a filter that NumPy's loop of dot products convolves


def filtered(
    x: np.ndarray, h: np.ndarray, axis: int, first: int, count: int, out: np.ndarray | None = None
) -> np.ndarray | None:
    """Elements [first, first + count) of the full convolution of the lines along an axis with h (k,).

    Both are of one precision, real or complex. `out` itself where a plan writes there at once, else a new
    array; None where there is no plan for it.
    """
    n, k = x.shape[axis], h.size
    lines = x.size // n
    if lines == 1 and n * k <= PRODUCTS:
        y: np.ndarray = np.convolve(x.reshape(n), h)[first : first + count]
        return y.reshape([count if i == axis else 1 for i in range(x.ndim)])
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


def axis_of(axis: int, ndim: int) -> int | None:
    """The axis counted from the front, or None where there is no such axis."""
    if isinstance(axis, bool) or not isinstance(axis, int | np.integer) or not -ndim <= axis < ndim:
        return None
    return int(axis) % ndim


def lengths(*arrays: np.ndarray) -> bool:
    """Whether all have axes and elements."""
    return all(a.ndim and math.prod(a.shape) for a in arrays)
