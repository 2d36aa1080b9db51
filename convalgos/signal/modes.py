"""The modes of convolutions: what of the full one is wanted, and which array lies inside the other."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

MODES = ("full", "same", "valid")
MOST_AXES = 3  # that plans convolve
NARROW = 8  # outputs along the last dimension that fill vectors, and times these of one that is worth a turn
WORTH_TURNING = 64  # elements of the smaller array, from which on products take longer than copies


def wanted_of(mode: str, size1: int, size2: int) -> tuple[int, int]:
    """(first, count) of the outputs that a mode takes out of the full convolution."""
    full = size1 + size2 - 1
    if mode == "full":
        return 0, full
    count = size1 if mode == "same" else size1 - size2 + 1
    return (full - count) // 2, count


def least_lengths(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], along: Sequence[int],
    wanted: Sequence[tuple[int, int]],
) -> list[int]:  # fmt: skip
    """Of transforms along some axes: what wraps around meets no element that is wanted."""
    return [
        max(x_shape[i], w_shape[i], first + count, x_shape[i] + w_shape[i] - 1 - first)
        for i, (first, count) in zip(along, wanted, strict=True)
    ]


def larger(shape1: tuple[int, ...], shape2: tuple[int, ...]) -> int | None:
    """Which of two shapes, 0 or 1, is at least as large as the other in every dimension."""
    pairs = list(zip(shape1, shape2, strict=True))
    if all(a >= b for a, b in pairs):
        return 0
    return 1 if all(b >= a for a, b in pairs) else None


def products_summed(shape1: tuple[int, ...], shape2: tuple[int, ...], mode: str) -> int:
    """How many products of elements of two arrays are summed."""
    products = math.prod(shape1) * math.prod(shape2)
    if mode == "valid":
        for n, k in zip(shape1, shape2, strict=True):
            products = products // max(n, k, 1) * (abs(n - k) + 1)
    return products


def larger_first(
    x: np.ndarray, w: np.ndarray, mode: str
) -> tuple[np.ndarray, np.ndarray, list[tuple[int, int]]]:
    """The larger array, the smaller one, and what a mode takes out of their full convolution."""
    sizes = x.shape, w.shape
    swapped = x.size < w.size
    if swapped and mode == "valid":
        sizes = w.shape, x.shape
    wanted = [wanted_of(mode, n, k) for n, k in zip(*sizes, strict=True)]
    return (w, x, wanted) if swapped else (x, w, wanted)


def longest_last(shape1: tuple[int, ...], shape2: tuple[int, ...], mode: str) -> tuple[int, ...] | None:
    """The dimensions in an order whose last one has the most outputs; None where that is not worth a copy.

    Kernels compute neighbouring outputs of the last dimension together.
    """
    if mode not in MODES or len(shape1) < 2 or min(math.prod(shape1), math.prod(shape2)) < WORTH_TURNING:
        return None
    pairs = list(zip(shape1, shape2, strict=True))
    if mode == "valid":
        pairs = [(max(pair), min(pair)) for pair in pairs]
    counts = [wanted_of(mode, *pair)[1] for pair in pairs]
    longest = max(range(len(counts)), key=counts.__getitem__)
    if counts[-1] >= NARROW or counts[longest] < NARROW * counts[-1]:
        return None
    return (*(i for i in range(len(counts)) if i != longest), longest)


def longer_axes(x_shape: tuple[int, ...], w_shape: tuple[int, ...]) -> list[int] | None:
    """Axes along which two arrays have not one element each; None where these are all, or none."""
    if 1 not in x_shape or 1 not in w_shape:
        return None
    kept = [i for i, pair in enumerate(zip(x_shape, w_shape, strict=True)) if pair != (1, 1)]
    return kept if 0 < len(kept) < len(x_shape) else None


def in_axes(x: np.ndarray, w: np.ndarray, kept: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Two arrays without the axes along which they have one element each."""
    left_out = tuple(i for i in range(x.ndim) if i not in kept)
    return x.squeeze(left_out), w.squeeze(left_out)


def in_all_axes(y: np.ndarray, kept: list[int], ndim: int) -> np.ndarray:
    """What is made of arrays `in_axes`, with one element along each of the others."""
    return np.expand_dims(y, [i for i in range(ndim) if i not in kept])
