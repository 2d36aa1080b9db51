"""Sums of products of arrays of up to three axes, in their own type: few taps are fast, and integers exact.

Long signals, large images and volumes go through the compiled call for small ones, piece after piece.
Integers wrap around. A volume is convolved as one tall image for each plane of the filter, or each row where
these are fewer; what windows sum that reach from a plane into the next is left out.
"""

from __future__ import annotations

import math

import numpy as np

from convalgos.core.axis_windows import AxisWindow, PixelWindow
from convalgos.core.errors import missing
from convalgos.core.machine import vector_bytes
from convalgos.cpu.filtering.small_windows import SmallWindows, filter_small
from convalgos.signal.modes import MODES, larger, larger_first, wanted_of
from convalgos.signal.size_cache import UNKNOWN, SizeCache

PIECE = 1 << 16  # bytes of the outputs of a piece
FEW = 8  # outputs that are summed one by one
# Seconds of a product, by the bytes of a number; of each element that is copied or written; of a call;
# Sapphire Rapids
PRODUCT = {1: 3e-11, 2: 3e-11, 4: 7e-11, 8: 1.5e-10, 16: 1.5e-10}
ELEMENT, CALL = 1e-9, 8e-6
FEW_COMPLEX = 48  # taps of complex numbers, which plans take apart
FEW_ACROSS = 32  # taps across rows, for which plans transpose
LONGEST_ROW = 1 << 14  # elements of a row that is laid out, which is kept and looked at one by one

KEPT = 1 << 24  # bytes of what is kept for shapes
_known = SizeCache(KEPT)  # `SmallWindows`

Wanted = list[tuple[int, int]]  # (first, count) along each axis of the full convolution


def window_seconds(wanted: Wanted, w_shape: tuple[int, ...], dtype: np.dtype) -> float:
    """Of `window_sums`; without end where it has no answer."""
    if len(wanted) > 3 or missing("llvmlite") or filter_small() is None or not _fit(wanted, w_shape):
        return math.inf
    counts = [count for _, count in wanted]
    planes = 1
    if len(counts) == 3:
        turned = _has_fewer_rows(w_shape)
        planes, rows = w_shape[turned], w_shape[not turned]
        counts[not turned] += rows - 1
    outputs = math.prod(counts)
    return planes * CALL + outputs * (math.prod(w_shape) * PRODUCT[dtype.itemsize] + planes * ELEMENT)


def window_sums(x: np.ndarray, w: np.ndarray, wanted: Wanted, dtype: np.dtype) -> np.ndarray | None:
    """Elements `wanted` of the full convolution of x with w in a type.

    None where w is not finite, or rows are too long.
    """
    if not _fit(wanted, w.shape):
        return None
    if dtype.kind == "u":  # the same bits, and no copies of integers that are seen with signs
        y = window_sums(x, w, wanted, np.dtype(f"i{dtype.itemsize}"))
        return None if y is None else y.view(dtype)
    if _has_fewer_rows(w.shape):
        y = window_sums(x.swapaxes(0, 1), w.swapaxes(0, 1), [wanted[1], wanted[0], wanted[2]], dtype)
        return None if y is None else np.ascontiguousarray(y.swapaxes(0, 1))
    padded, w = _padded(x, w.shape, wanted, dtype), w.astype(dtype, copy=False)
    if len(wanted) == 1 and wanted[0][1] <= FEW and dtype.kind == "i":
        turned = w[::-1]
        return np.array(
            [(padded[i : i + w.size] * turned).sum(dtype=dtype) for i in range(wanted[0][1])], dtype
        )
    return _inside(padded, w)


def few_complex(x: np.ndarray, w: np.ndarray, mode: str) -> np.ndarray | None:
    """The convolution of two complex arrays of one or two axes, where one has few taps; else None."""
    if mode not in MODES or x.ndim > 2 or min(x.size, w.size) > FEW_COMPLEX or missing("llvmlite"):
        return None
    if not x.dtype.kind == w.dtype.kind == "c" or filter_small() is None:
        return None
    if mode == "valid" and larger(x.shape, w.shape) is None:
        return None
    x, w, wanted = larger_first(x, w, mode)
    return window_sums(x, w, wanted, np.result_type(x, w))


def few_along(x: np.ndarray, w: np.ndarray, axis: int, mode: str) -> np.ndarray | None:
    """The convolution along one axis with a filter of few taps, whose other axes are 1; else None."""
    n, k = x.shape[axis], w.size
    before = math.prod(x.shape[:axis])
    behind = x.size // n // before
    if before > 1 or not 1 < k <= min(n, FEW_ACROSS) or missing("llvmlite") or filter_small() is None:
        return None
    first, count = wanted_of(mode, n, k)
    y = window_sums(
        x.reshape(n, behind), w.reshape(k, 1), [(first, count), (0, behind)], np.result_type(x, w)
    )
    return None if y is None else y.reshape(*x.shape[:axis], count, *x.shape[axis + 1 :])


# --- inside ----------------------------------------------------------------------------------


def _fit(wanted: Wanted, w_shape: tuple[int, ...]) -> bool:
    """Whether rows of the filter are short, as others are cut into pieces; or a signal has few outputs."""
    return (len(wanted) == 1 and wanted[0][1] <= FEW) or w_shape[-1] <= LONGEST_ROW


def _has_fewer_rows(w_shape: tuple[int, ...]) -> bool:
    """Whether a volume has fewer rows than planes."""
    return len(w_shape) == 3 and w_shape[1] < w_shape[0]


def _padded(x: np.ndarray, w_shape: tuple[int, ...], wanted: Wanted, dtype: np.dtype) -> np.ndarray:
    """What the wanted outputs read, (count + k - 1) along each axis."""
    places = []  # (first, stop) in x, and how many zeros lie before
    for n, k, (first, count) in zip(x.shape, w_shape, wanted, strict=True):
        low = first - k + 1
        places.append((max(0, low), min(n, first + count), max(0, -low)))
    inside = x[tuple(slice(start, stop) for start, stop, _ in places)]
    shape = [count + k - 1 for k, (_, count) in zip(w_shape, wanted, strict=True)]
    if list(inside.shape) == shape:
        return inside.astype(dtype, copy=False)
    padded = np.zeros(shape, dtype)
    padded[tuple(slice(low, low + n) for n, (_, _, low) in zip(inside.shape, places, strict=True))] = inside
    return padded


def _inside(x: np.ndarray, w: np.ndarray) -> np.ndarray | None:
    """The convolution where w lies inside x."""
    counts = [n - k + 1 for n, k in zip(x.shape, w.shape, strict=True)]
    if x.ndim == 3:
        return _planes(x, w, counts)
    y = np.empty(counts, x.dtype)
    if x.ndim == 2 and x.shape[1] > 2 * LONGEST_ROW:
        for first in range(0, counts[1], LONGEST_ROW):
            part = _inside(x[:, first : first + LONGEST_ROW + w.shape[1] - 1], w)
            if part is None:
                return None
            y[:, first : first + LONGEST_ROW] = part
        return y
    step = max(1, PIECE // (y[0].nbytes or 1))
    for first in range(0, counts[0], step):
        piece = y[first : first + step]
        if not _sum_piece(x[first : first + len(piece) + len(w) - 1], w, piece):
            return None
    return y


def _planes(x: np.ndarray, w: np.ndarray, counts: list[int]) -> np.ndarray | None:
    """The same of volumes (planes, rows, columns)."""
    depth, rows = counts[0], x.shape[1]
    whole = np.empty((depth * rows, counts[2]), x.dtype)  # of which some rows are none
    total = whole[: depth * rows - w.shape[1] + 1]
    for d, taps in enumerate(w[::-1]):  # (rows, columns) each
        part = _inside(x[d : d + depth].reshape(depth * rows, -1), taps)
        if part is None:
            return None
        if d == 0:
            total[...] = part
        else:
            with np.errstate(all="ignore"):  # NumPy warns of what is not finite, SciPy's sums do not
                total += part
    return whole.reshape(depth, rows, -1)[:, : counts[1]].copy()


def _windows(key: tuple[str, tuple[int, ...], tuple[int, ...]]) -> SmallWindows:
    """Of a type's character and the shapes of x and w: the outputs that lie inside; a signal is one row."""
    char, x_shape, w_shape = key
    along = [AxisWindow(n, k, windows=n - k + 1) for n, k in zip(x_shape, w_shape, strict=True)]
    ahead, dtype = [AxisWindow(1)] * (2 - len(along)), np.dtype(char)
    if _fills_no_vector(x_shape, w_shape, dtype):
        made = SmallWindows(dtype, [AxisWindow(1), PixelWindow(along[0], x_shape[1])], True)
    else:
        made = SmallWindows(dtype, ahead + along, True)
    _known.keep(key, made, made.nbytes)
    return made


def _fills_no_vector(x_shape: tuple[int, ...], w_shape: tuple[int, ...], dtype: np.dtype) -> bool:
    """Whether columns are summed of rows that fill no vector, and are taken as one."""
    return len(w_shape) == 2 and w_shape[1] == 1 and x_shape[1] * dtype.itemsize < vector_bytes()


def _sum_piece(x: np.ndarray, w: np.ndarray, y: np.ndarray) -> bool:
    """Whether it did, which it does not with a filter that is not finite."""
    call, key = filter_small(), (y.dtype.char, x.shape, w.shape)
    assert call is not None
    windows = known if (known := _known[key]) is not UNKNOWN else _windows(key)
    if _fills_no_vector(x.shape, w.shape, y.dtype):
        x = x.reshape(-1)
    if call(windows.address, x, w, y) is not None:
        return True
    if x.flags.aligned and w.flags.aligned:
        return False
    return call(windows.address, x.copy(), w.copy(), y) is not None
