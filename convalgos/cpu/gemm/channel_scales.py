"""Powers of two that make channels of filters alike before they are split into digits, which share units.

A filter of w_c / s_c has the same products with x_c s_c. Scales are such that the largest weights of no
channel are much smaller than those of another one: the largest number of a pixel then meets a weight that is
nearly as large as any, and what digits leave out of either is small beside an output. Without, one channel of
x and another one of w that are much larger than all others give errors beside which outputs are small.
"""

from __future__ import annotations

import numpy as np

from convalgos.cpu.vectors.simd import LINE

ALIKE = 2  # exponents of the largest weights of channels, up to which they stay as they are
UNLIKE = 4  # times spreads where channels are scaled, as few of them have the largest numbers
EXPONENT, NOT_FINITE = 23, 255  # where the exponent of a float32 begins, and that of infinities
LEAST = -126  # exponent of a float32 that is not denormal
LAID = "scaled channels"  # tells prepared filters that have scales from older ones


def scale_bytes(channels: int) -> int:
    """Of the scales of a filter: a line that tells whether there are any, and those of whole entries."""
    return int(LINE + 4 * LINE * -(-channels // LINE))


def tell_scales(largest: np.ndarray, to: np.ndarray) -> np.ndarray | None:
    """By what the channels of a filter are multiplied, (groups, channels); None where they stay as they are.

    Args:
        largest: bits of the largest sizes of their weights, (tasks, groups, channels, lanes).
        to: bytes of each group, (groups, `scale_bytes`): what x is multiplied by is written behind a line.
    """
    bits = np.maximum.reduce(largest, axis=(0, 3))  # (groups, channels)
    if _are_alike(bits):  # as most are: the rest takes longer than to split a small filter
        to.view(np.int64)[:, 0] = 0
        return None
    sizes = bits.view(np.float32)
    exponents = np.frexp(sizes)[1]
    most = np.where(sizes > 0, exponents, -200).max(axis=1, keepdims=True)
    powers = np.clip(exponents - most + ALIKE, LEAST, 0)
    # nothing of a channel without weights counts, but for what is not finite
    scales = np.where(sizes > 0, np.ldexp(np.float32(1), powers), np.float32(0))
    scaled = sizes.any(axis=1) & (scales < 1).any(axis=1)
    to.view(np.int64)[:, 0] = scaled
    if not scaled.any():
        return None
    behind = to[:, LINE:].view(np.float32)
    behind[:, : scales.shape[1]], behind[:, scales.shape[1] :] = scales, 0
    return np.where(scaled[:, None], np.ldexp(np.float32(1), -powers), np.float32(1))


def _are_alike(bits: np.ndarray) -> bool:
    """Whether the exponents of all sizes, of which these are the bits, are known to be near each other."""
    if not bits.size:
        return False
    least, most = (int(f.reduce(bits, axis=None)) >> EXPONENT for f in (np.minimum, np.maximum))
    return least > 0 and most < NOT_FINITE and least + ALIKE >= most
