"""Compiled calls for small arrays, by shapes and types: one look-up, and no problem and no plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from convalgos.core.axis_windows import AxisWindow
from convalgos.core.errors import missing
from convalgos.core.machine import vector_bytes
from convalgos.cpu.filtering.rate_records import RateRecord
from convalgos.cpu.filtering.small_windows import SmallWindows, filter_small
from convalgos.signal.mixed_types import FLOATING, NUMBERS
from convalgos.signal.size_cache import SizeCache

# Up to here nothing else is faster; Zen 4
BYTES_OF_PRODUCTS = 1 << 23  # products, times the bytes of one,
PRODUCTS = 1 << 19  # and of integers so many
BYTES_OF_SIGNAL = 1 << 20  # of one signal, which is copied; Sapphire Rapids
VECTORS, BYTES_OF_VOLUME = 3 << 16, 1 << 19  # that are multiplied, and of what is laid out; Sapphire Rapids
# Elements of a signal and a filter, and products of other numbers than floats; Zen 4
TINY_LINE, TINY_PRODUCTS = 1 << 11, 1 << 14
UNROLLED, UNROLLED_LINE = 11, 1 << 14  # taps for which NumPy has loops, and elements with so few; Zen 5
KEPT = 1 << 26  # bytes of calls that are kept

Function = Callable[..., Any]


class Small(NamedTuple):
    """A compiled call for some shapes."""

    call: Function
    address: int
    shape: tuple[int, ...]
    windows: SmallWindows | RateRecord | None  # whose record is at the address
    swapped: bool = False  # the second array is the image, and the first one the filter
    taps: tuple[slice, ...] | None = None  # of a filter whose other ones meet zeros only


known_calls = SizeCache(KEPT)  # a `Small`, or None where there is no short way


def small_call(key: Any, dtype: np.dtype, make: Callable[..., Small | None], *given: Any) -> Small | None:
    """What is made for a key, once; of types whose `id` stays theirs: NumPy's own of this machine's order."""
    if missing("llvmlite") or dtype.char not in NUMBERS or np.dtype(dtype.char) is not dtype:
        return None
    made = make(dtype, *given)
    known_calls.keep(key, made, 0 if made is None or made.windows is None else made.windows.nbytes)
    return made


def small(dtype: np.dtype, windows: Sequence[AxisWindow], turned: bool, fill: complex = 0) -> Small | None:
    """What `SmallWindows` is made of; None of more products than are fast."""
    counts = [w.outputs for w in windows]
    products, call = math.prod(counts) * math.prod([w.taps for w in windows]), filter_small()
    vectors = products // counts[-1] * -(-counts[-1] * dtype.itemsize // vector_bytes())
    fits = vectors <= VECTORS
    if len(windows) > 2:
        fits &= math.prod([w.outputs + w.taps - 1 for w in windows]) * dtype.itemsize <= BYTES_OF_VOLUME
    else:
        fits &= products <= (BYTES_OF_PRODUCTS // dtype.itemsize if dtype.char in FLOATING else PRODUCTS)
    if call is None or not fits:
        return None
    made = SmallWindows(dtype, windows, turned, fill)
    return Small(call, made.address, made.shape, made)


def is_tiny_line(x: np.ndarray, w: np.ndarray) -> bool:
    """Whether NumPy's loop convolves two signals of a type before a compiled call is made for them."""
    if not x.ndim == w.ndim == 1 or not x.size or not w.size:
        return False
    if x.size + w.size > (UNROLLED_LINE if min(x.size, w.size) <= UNROLLED else TINY_LINE):
        return False
    return x.dtype.kind == "f" or x.size * w.size <= TINY_PRODUCTS


def reads(
    boundary: str, pairs: Sequence[tuple[int, int]], wanted: Sequence[tuple[int, int]]
) -> list[AxisWindow]:
    """What outputs read along each axis: element e of the full convolution elements e - k + 1 to e.

    Args:
        pairs: sizes of x and of the filter.
        wanted: (first, count) of the elements of the full convolution.
    """
    return [
        AxisWindow(n, k, k - 1 - first, boundary, count)
        for (n, k), (first, count) in zip(pairs, wanted, strict=True)
    ]
