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
LEAST = -126  # exponent of a float32 that is not denormal
LAID = "scaled channels"  # tells prepared filters that have scales from older ones


def scale_bytes(channels: int) -> int:
    """Of the scales of a filter: a line that tells whether there are any, and those of whole entries."""
    return int(LINE + 4 * LINE * -(-channels // LINE))


def scaled_channels(w: np.ndarray, to: np.ndarray) -> np.ndarray:
    """w over the scales of its channels, or w itself where these are alike.

    Args:
        w: (.., channels, numbers).
        to: bytes, of which the scales are written behind a line.
    """
    sizes = _largest(w)  # (channels,)
    exponents = np.frexp(sizes)[1]
    powers = np.clip(exponents - exponents[sizes > 0].max(initial=-200) + ALIKE, LEAST, 0)
    # nothing of a channel without weights counts, but for what is not finite
    scales = np.where(sizes > 0, np.ldexp(np.float32(1), powers), np.float32(0))
    to.view(np.int64)[0] = scaled = bool(sizes.any() and (scales < 1).any())
    if not scaled:
        return w
    behind = to[LINE:].view(np.float32)
    behind[: len(scales)], behind[len(scales) :] = scales, 0
    divided: np.ndarray = w * np.ldexp(np.float32(1), -powers)[:, None]
    return divided


def finer(scales: np.ndarray) -> int:
    """How many times a product of spreads counts of which scales take a part (see `scaled_channels`)."""
    return UNLIKE if scales.view(np.int64)[..., 0].any() else 1


def _largest(w: np.ndarray) -> np.ndarray:
    """(channels,) the largest size of finite weights of each."""
    rows = w.reshape(-1, w.shape[-2] * w.shape[-1])
    sizes = np.maximum(rows.max(axis=0, initial=0), -rows.min(axis=0, initial=0))
    if not np.isfinite(sizes).all():
        return _largest(np.where(np.isfinite(w), w, np.float32(0)))
    largest: np.ndarray = sizes.reshape(w.shape[-2:]).max(axis=1)
    return largest
