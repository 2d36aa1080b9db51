"""Compiled calls for small arrays, by shapes and types: one look-up, and no problem and no plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from convalgos.core.boundaries import source_indices
from convalgos.core.errors import missing
from convalgos.core.machine import vector_bytes
from convalgos.cpu.filtering.column_rates import ColumnRates
from convalgos.cpu.filtering.decimated_sums import DecimatedSums
from convalgos.cpu.filtering.small_rates import SmallRates
from convalgos.cpu.filtering.small_windows import SmallWindows, filter_small
from convalgos.signal.mixed_types import FLOATING, NUMBERS

# Up to here nothing else is faster; Zen 4
BYTES_OF_PRODUCTS = 1 << 23  # products, times the bytes of one,
PRODUCTS = 1 << 19  # and of integers so many
BYTES_OF_SIGNAL = 1 << 20  # of one signal, which is copied; Sapphire Rapids
VECTORS, BYTES_OF_VOLUME = 3 << 16, 1 << 19  # that are multiplied, and of what is laid out; Sapphire Rapids
KEPT = 512  # pairs of shapes

Function = Callable[..., Any]


class Small(NamedTuple):
    """A compiled call for some shapes."""

    call: Function
    address: int
    shape: tuple[int, ...]
    windows: SmallWindows | SmallRates | DecimatedSums | ColumnRates | None  # whose record is at the address
    swapped: bool = False  # the second array is the image, and the first one the filter
    taps: tuple[slice, ...] | None = None  # of a filter whose other ones meet zeros only


NEW = Small(len, 0, (), None)  # stands for what is not known yet
known_calls: dict[Any, Any] = {}  # a `Small`, or None where there is no short way


def small_call(key: Any, dtype: np.dtype, make: Callable[..., Small | None], *given: Any) -> Small | None:
    """What is made for a key, once; of types whose `id` stays theirs: NumPy's own of this machine's order."""
    if missing("llvmlite") or dtype.char not in NUMBERS or np.dtype(dtype.char) is not dtype:
        return None
    if len(known_calls) >= KEPT:
        known_calls.clear()
    known_calls[key] = made = make(dtype, *given)
    return made


def small(
    dtype: np.dtype, w_shape: Sequence[int], sources: list[np.ndarray], turned: bool, fill: complex = 0,
    x_shape: Sequence[int] = (),
) -> Small | None:  # fmt: skip
    """What `SmallWindows` is made of; None of more products than are fast."""
    counts = [len(s) - k + 1 for s, k in zip(sources, w_shape, strict=True)]
    products, call = math.prod(counts) * math.prod(w_shape), filter_small()
    vectors = products // counts[-1] * -(-counts[-1] * dtype.itemsize // vector_bytes())
    fits = vectors <= VECTORS
    if len(sources) > 2:
        fits &= math.prod(map(len, sources)) * dtype.itemsize <= BYTES_OF_VOLUME
    else:
        fits &= products <= (BYTES_OF_PRODUCTS // dtype.itemsize if dtype.char in FLOATING else PRODUCTS)
    if call is None or not fits:
        return None
    windows = SmallWindows(dtype, w_shape, sources, turned, fill, x_shape)
    return Small(call, windows.address, windows.shape, windows)


def reads(
    boundary: str, pairs: Sequence[tuple[int, int]], wanted: Sequence[tuple[int, int]]
) -> list[np.ndarray]:
    """What outputs read along each axis: element e of the full convolution elements e - k + 1 to e.

    Args:
        pairs: sizes of x and of the filter.
        wanted: (first, count) of the elements of the full convolution.
    """
    return [
        sources(boundary, n, first - k + 1, first + count)
        for (n, k), (first, count) in zip(pairs, wanted, strict=True)
    ]


def sources(boundary: str, size: int, begin: int, end: int) -> np.ndarray:
    """What lies at places [begin, end) of a line."""
    low, high = max(0, -begin), max(0, end - size)
    return source_indices(boundary, size, low, high)[begin + low : end + low]
