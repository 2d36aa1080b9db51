"""The short way of `sepfir2d`, for which SciPy takes less than a microsecond on small images."""

from __future__ import annotations

import functools
import threading
from typing import Any

import numpy as np
import scipy  # whose parts are imported when they are used

from convalgos.core.errors import missing
from convalgos.core.forks import guarded
from convalgos.core.machine import vector_bytes
from convalgos.cpu.filtering.separable_calls import SeparableCalls, filter_separable
from convalgos.cpu.filtering.small_windows import AT_ONCE
from convalgos.signal.mixed_types import FLOATING
from convalgos.signal.new_sizes import is_first
from convalgos.signal.small_calls import BYTES_OF_PRODUCTS, Function

FEW = 1 << 19  # products along rows and columns that SciPy sums before ours has begun; Zen 4
BYTES = 3 << 16  # of an image, from which on a plan is faster; Sapphire Rapids, two threads
BYTES_NARROW = 1 << 24  # products of a narrow one, times the bytes of each; Sapphire Rapids, two threads
BYTES_LAID = 1 << 23  # of its rows with what lies beyond, from which on a plan is faster; Zen 5
NARROW = 2  # rows for each column, from which vectors are filled by several rows; Zen 5
SINGLE_TAPS = 1 << 12  # pixels from which on NumPy multiplies them by single taps; Sapphire Rapids
SHORT = 2  # bytes of other numbers whose results are float32
OF_TAPS = {"f": "f", "d": "fd", "F": "fF", "D": "fdD"}  # types of filters, by those of results


def small_both_axes(function: Function) -> Function:
    """Of `sepfir2d`."""
    calls: SeparableCalls | None = None
    call: Function = _not_yet
    address, lock = 0, guarded(threading.Lock())

    @functools.wraps(function)
    def short(input: Any, hrow: Any, hcol: Any, *, out: Any = None) -> Any:
        if out is None:
            y = call(address, input, hrow, hcol)
            return y if y is not None else first(input, hrow, hcol)
        return function(input, hrow, hcol, out=out)

    def first(input: Any, hrow: Any, hcol: Any) -> Any:
        """A call that is not known."""
        nonlocal calls, call, address
        if type(input) is type(hrow) is type(hcol) is np.ndarray and input.ndim == 2:
            rows, columns, (height, width) = hrow.size, hcol.size, input.shape
            few = input.size * (rows + columns) <= FEW and input.nbytes <= BYTES
            few = few and columns <= height and rows <= width  # else SciPy reads beyond
            if few and is_first((height, width, input.dtype.char, rows, columns)):
                return scipy.signal.sepfir2d(input, hrow, hcol)
            if calls is None and not missing("llvmlite") and (compiled := filter_separable()) is not None:
                with lock:
                    if calls is None:
                        made = SeparableCalls()
                        address = made.address
                        call = compiled  # other threads may call it from here on,
                        calls = made  # and add to the table
            times = hrow.size == hcol.size == 1 and input.size > SINGLE_TAPS
            if times or (calls is not None and calls.asks_for(input, hrow, hcol)):
                dtype = _result(input, hrow, hcol)
                if dtype is not None and times:
                    return _times(input.astype(dtype), hrow[0], hcol[0])
                if dtype is not None and calls is not None and _fits(input, hrow, hcol, dtype):
                    calls.add(input, hrow, hcol, dtype, _is_narrow(input.shape, dtype))
                    if (y := call(address, input, hrow, hcol)) is not None:  # no thread took the slot since
                        return y
            if few and (input.dtype.kind in "fc" or 8 * input.size <= BYTES):  # of the result, at most
                return scipy.signal.sepfir2d(input, hrow, hcol)
        return function(input, hrow, hcol)

    return short


# --- inside ----------------------------------------------------------------------------------


def _not_yet(address: int, x: Any, rows: Any, columns: Any) -> None:
    """In the place of the compiled call, until there is one."""


def _result(x: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.dtype | None:
    """The type of the result; None of what is not taken here."""
    taken = rows.ndim == columns.ndim == 1 and rows.size % 2 == columns.size % 2 == 1 and x.size
    if not taken or not all(a.dtype.isnative for a in (x, rows, columns)):
        return None
    dtype = x.dtype
    if dtype.kind in "biu" or dtype.char == "e":
        dtype = np.dtype("f" if dtype.itemsize <= SHORT else "d")
    if dtype.char not in FLOATING or any(h.dtype.char not in OF_TAPS[dtype.char] for h in (rows, columns)):
        return None
    return dtype


def _fits(x: np.ndarray, rows: np.ndarray, columns: np.ndarray, dtype: np.dtype) -> bool:
    """Whether the compiled call takes these, and is the fastest way."""
    products = x.size * (rows.size + columns.size) * dtype.itemsize
    if _is_narrow(x.shape, dtype):
        height, width = x.shape
        laid = height * (
            width * dtype.itemsize + AT_ONCE * vector_bytes()
        )  # rows are laid out to be filtered
        fast = products <= BYTES_NARROW and (rows.size == 1 or laid <= BYTES_LAID)
    else:
        fast = products <= BYTES_OF_PRODUCTS and x.size * dtype.itemsize <= BYTES
    if not fast:
        return False
    aligned = all(a.flags.aligned for a in (x, rows, columns))
    return aligned and all(bool(np.isfinite(h).all()) for h in (rows, columns))


def _is_narrow(shape: tuple[int, ...], dtype: np.dtype) -> bool:
    """Whether vectors are filled by elements of several rows, as one row does not fill one."""
    height, width = shape
    return height >= NARROW * width and width * min(dtype.itemsize, 8) <= vector_bytes()


def _times(y: np.ndarray, row: Any, column: Any) -> np.ndarray:
    """What single taps make of an image, in its place."""
    with np.errstate(all="ignore"):
        np.multiply(y, row, out=y)
        np.multiply(y, column, out=y)
    return y
