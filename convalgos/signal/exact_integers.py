"""Integers whose sums float64 may round: convolved exactly, by transforms of floats or modulo primes.

Transforms in float64 err by less than a known bound times the norms of both arrays. Where that is below a
half, rounding gives the exact sums. Where it is not, the arrays are split: x = x0 + 2^s x1 has parts of
half the bits, whose convolutions are added up modulo 2^64. The other ways are sums in float64, up to 2^53,
number-theoretic transforms, and SciPy's sums; the one that is estimated fastest is taken.

Source: Percival 2003, "Rapid multiplication modulo the sum and difference of highly composite numbers",
Mathematics of Computation 72, theorem 5.1.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np

from convalgos.core.errors import missing
from convalgos.cpu.spectral.integer_convolution import convolved_integers, ntt_seconds
from convalgos.signal.modes import MODES, MOST_AXES, larger_first
from convalgos.signal.problems import run_as_problem
from convalgos.signal.window_sums import window_seconds, window_sums

LARGEST_EXACT = 2**53  # integers up to here are float64 numbers, and so are their sums
# Of 1/2, below which rounding finds the integer. The bound is the theorem's (1 + e)^m - 1, of which m e is
# taken: with m < 10^4 and e = 2^-53 that is 10^-12 of it less. A level of radix 2 counts 3 (1 + sqrt(5) + b)
# of e where roots err by b e: at most 14 with b = 1.41 (`line_roots`), and one of radix 4, which is two,
# less; 15 are taken, and two levels more. Equal, alternating and random inputs of up to 2^20 elements err by
# 0.035 of the bound.
ROOM = 0.45
ROUNDING = 2.0**-53
# Roundings of a level of three transforms, 1 + sqrt(5) of a butterfly and b of its root each, and of products
OF_LEVEL, OF_PRODUCTS = 15, 8
MORE_LEVELS = 2  # of an axis, as real arrays are packed and blocks may be longer than the result
MOST_PARTS = 4  # of an array
BLOCK_OF_FILTERS = 8  # transforms are about so many times as long as the filter
# Seconds of a call of a plan, of a level of an element, of a product of float64; Sapphire Rapids, two threads
CALL, LEVEL, PRODUCT = 8e-5, 1.3e-9, 3e-11
SUM = 6e-10  # and of one product of SciPy's sums, which are always possible; Zen 4


class IntegerParts(NamedTuple):
    """How an array is split: into so many parts, each of so many bits, the low ones first."""

    parts: int = 1
    bits: int = 0


BothParts = tuple[IntegerParts, IntegerParts]  # of both arrays
WHOLE = (IntegerParts(), IntegerParts())


def convolved_exactly(
    x: np.ndarray, w: np.ndarray, mode: str, dtype: np.dtype, values: tuple[int, int]
) -> np.ndarray | None:
    """The convolution of two arrays of integers, modulo 2^bits of the dtype; None where SciPy is faster.

    Args:
        values: the largest absolute ones of x and w.
    """
    if mode not in MODES or missing("llvmlite"):
        return None
    if x.size < w.size:
        values = values[::-1]
    x, w, wanted = _without_single_taps(*larger_first(x, w, mode))
    # what is above 2^63 is below 0 modulo 2^64, and then no larger
    largest = min(math.prod(values), 2**126) * w.size
    products = math.prod(count for _, count in wanted) * w.size
    splits = parts_of_integers(x, w, values)
    summed = largest < LARGEST_EXACT and len(_along(w)) <= MOST_AXES
    ways = {
        "scipy": SUM * products,
        "sums": window_seconds(wanted, w.shape, dtype),
        "ntt": ntt_seconds(x.shape, w.shape, largest),
        "direct": CALL + PRODUCT * products if summed else math.inf,
        "fft": math.inf if splits is None else float_seconds(x.shape, w.shape, splits),
    }
    way, y = min(ways, key=lambda name: ways[name]), None
    if way == "sums":
        return window_sums(x, w, wanted, dtype)
    if way in ("direct", "fft"):
        method = "exact" if splits == WHOLE else way  # sums of whole arrays are exact as well then
        y = by_floats(x, w, wanted, splits if way == "fft" and splits else WHOLE, method)
    if y is None and ways["ntt"] <= ways["scipy"]:
        whole = convolved_integers(x.astype(np.int64, copy=False), w.astype(np.int64, copy=False), largest)
        y = whole[tuple(slice(first, first + count) for first, count in wanted)]
    return None if y is None else np.array(y.astype(dtype, copy=False), order="C", copy=None)


def few_sums(x: np.ndarray, w: np.ndarray, mode: str, dtype: np.dtype) -> np.ndarray | None:
    """The same by sums in the dtype, where no transform can be faster; else None."""
    if mode not in MODES:
        return None
    x, w, wanted = larger_first(x, w, mode)
    if window_seconds(wanted, w.shape, dtype) > float_seconds(x.shape, w.shape, WHOLE):
        return None
    return window_sums(x, w, wanted, dtype)


def modulo_dtype(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """x with signs, where sums wrap around anyway: its values are half as large."""
    return x.view(np.dtype(f"i{x.dtype.itemsize}")) if x.dtype == dtype and dtype.kind == "u" else x


def largest_of(x: np.ndarray) -> int:
    """The largest absolute value."""
    return max(abs(int(x.min())), abs(int(x.max())))


# --- by floats -----------------------------------------------------------------------------------


def transform_error(x_shape: tuple[int, ...], w_shape: tuple[int, ...]) -> float:
    """How far a convolution by float64 transforms may err, relative to the product of both 2-norms.

    It holds for sums over blocks, too: the norms of blocks multiply to no more, by Cauchy and Schwarz.
    """
    full = [n + k - 1 for n, k in zip(x_shape, w_shape, strict=True)]
    levels = sum(math.ceil(math.log2(n)) + MORE_LEVELS for n in full)
    return ROUNDING * (OF_LEVEL * levels + OF_PRODUCTS)


def parts_of_integers(x: np.ndarray, w: np.ndarray, values: tuple[int, int]) -> BothParts | None:
    """How x and w are split for transforms to be exact; None where a few parts are too large still."""
    if len(_along(w)) > MOST_AXES:
        return None  # no problem of ours
    most = ROOM / transform_error(x.shape, w.shape)
    if _norm(x) * _norm(w) < most:
        return WHOLE
    of_x, of_w = (_choices(a, value) for a, value in zip((x, w), values, strict=True))
    exact = [(s, t) for (s, of_s), (t, of_t) in itertools.product(of_x, of_w) if of_s * of_t < most]
    return min(exact, key=lambda pair: (1 + pair[0].parts) * (1 + pair[1].parts), default=None)


def float_seconds(x_shape: tuple[int, ...], w_shape: tuple[int, ...], splits: BothParts) -> float:
    """Of transforms of all parts."""
    full = math.prod(n + k - 1 for n, k in zip(x_shape, w_shape, strict=True))
    block = min(full, BLOCK_OF_FILTERS * math.prod(w_shape))
    spectra = math.prod(1 + s.parts for s in splits) / math.prod(1 + s.parts for s in WHOLE)
    return CALL + LEVEL * full * math.log2(block + 1) * spectra


def by_floats(
    x: np.ndarray, w: np.ndarray, wanted: list[tuple[int, int]], splits: BothParts, method: str
) -> np.ndarray | None:
    """Elements `wanted` of the full convolution, int64 modulo 2^64; None where there is no plan for it."""
    of_x, of_w = (_parts(a, split) for a, split in zip((x, w), splits, strict=True))
    along = _along(w)
    convolved = [2 + i for i in along]
    others = [i for i in range(2 + x.ndim) if i not in convolved]
    inside = [wanted[i] for i in along]
    sums = run_as_problem(of_x[:, None], of_w[None], convolved, others, inside, method)
    if sums is None:
        return None
    np.rint(sums, out=sums)  # (parts of x, parts of w, *counts)
    y: np.ndarray = sums[0, 0].astype(np.int64)
    for i, j in itertools.product(*(range(s.parts) for s in splits)):
        shift = i * splits[0].bits + j * splits[1].bits
        if 0 < shift < 64:  # others are multiples of 2^64
            y += sums[i, j].astype(np.int64) << np.int64(shift)
    return y


def _along(w: np.ndarray) -> list[int]:
    """The axes along which there is more than one tap, or the last one."""
    return [i for i, k in enumerate(w.shape) if k > 1] or [w.ndim - 1]


def _without_single_taps(
    x: np.ndarray, w: np.ndarray, wanted: list[tuple[int, int]]
) -> tuple[np.ndarray, np.ndarray, list[tuple[int, int]]]:
    """The same, with nothing unwanted along axes of one tap."""
    cuts, kept = [slice(None)] * w.ndim, list(wanted)
    for axis, (first, count) in enumerate(wanted):
        if w.shape[axis] == 1:
            cuts[axis], kept[axis] = slice(first, first + count), (0, count)
    return x[tuple(cuts)], w, kept


def _norm(x: np.ndarray) -> float:
    """No less than the 2-norm."""
    line = x.astype(np.float64).reshape(-1)
    total = np.square(line).sum()  # OpenBLAS wakes threads for dot products, which may take milliseconds
    return math.sqrt(total) * (1 + x.size * ROUNDING)


def _choices(x: np.ndarray, largest: int) -> list[tuple[IntegerParts, float]]:
    """Ways to split an array, and what the 2-norm of no part exceeds."""
    found = [(IntegerParts(), _norm(x))]
    for parts in range(2, MOST_PARTS + 1):
        bits = -(-(largest.bit_length() + 1) // parts)  # signs take one
        found.append((IntegerParts(parts, bits), math.sqrt(x.size) * 2.0 ** (bits - 1)))
    return found


def _parts(x: np.ndarray, split: IntegerParts) -> np.ndarray:
    """(parts, *x.shape) of float64: x is their sum, times powers of 2^bits, modulo 2^64."""
    if split.parts == 1:
        return x.astype(np.float64)[None]
    found = np.empty((split.parts, *x.shape))
    left, half, mask = x.astype(np.int64), 1 << split.bits - 1, (1 << split.bits) - 1
    for part in found[:-1]:
        low = (left + half & mask) - half  # from -half to half - 1
        part[...] = low
        left = left - low >> split.bits
    found[-1] = left
    return found
