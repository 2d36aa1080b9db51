"""Long lines at other rates, which go on beyond their ends: no copy of a line with its extension is made.

Most outputs read no sample beyond the ends. These are those of a line between zeros, and what lies at both
ends is computed once more, of the short pieces of the line that it reads.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from convalgos.cpu.filtering.sample_mixes import SAMPLES
from convalgos.signal.extensions import MIXED, OF_NUMPY, mixed_samples

LONG = 1 << 22  # bytes of a line from which on its copy costs more; Sapphire Rapids


def resampled_apart(
    x: np.ndarray,
    h: np.ndarray,
    up: int,
    down: int,
    outputs: int,
    mode: str,
    between_zeros: Callable[..., np.ndarray],
) -> np.ndarray | None:  # fmt: skip
    """`upfirdn` of real lines (..., n) by a filter (k,) in a mode other than "constant"; None of short ones.

    Args:
        up, down: without a common divisor.
        between_zeros: `upfirdn` with zeros beyond the ends.
    """
    n, low = x.shape[-1], -(-h.size // up) - 1  # samples before the last one of an output that it reads
    behind = max(0, (outputs - 1) * down // up + 1 - n)
    if x.dtype.kind != "f" or n * x.itemsize <= LONG or 4 * max(low, behind, down) >= n:
        return None
    y = between_zeros(h, x, up, down)
    ends = _beyond(x, low, behind, mode)  # (..., low + behind)
    first = -(-low * up // down)  # outputs that read samples before the first one
    if first:
        zeros = -low % down  # so that outputs of the piece are outputs of the line
        read = (first - 1) * down // up + 1
        piece = np.concatenate(
            [np.zeros((*x.shape[:-1], zeros), x.dtype), ends[..., :low], x[..., :read]], -1
        )
        ahead = (zeros + low) // down * up
        y[..., :first] = between_zeros(h, piece, up, down)[..., ahead : ahead + first]
    last = -(-n * up // down)  # the first output that reads samples behind the last one
    if last < outputs:
        start = max(0, last * down // up - low) // down * down
        piece = np.concatenate([x[..., start:], ends[..., low:]], -1)
        ahead = start // down * up
        y[..., last:] = between_zeros(h, piece, up, down)[..., last - ahead : outputs - ahead]
    return y


def _beyond(x: np.ndarray, low: int, high: int, mode: str) -> np.ndarray:
    """(..., low + high): what lies before and behind lines that are longer than that."""
    n = x.shape[-1]
    if mode in MIXED:
        places, weights = mixed_samples(mode, n, low, high)
        mixed = sum(x[..., places[:, k]] * weights[:, k] for k in range(SAMPLES))
        return np.asarray(mixed).astype(x.dtype, copy=False)
    at, name = np.concatenate([np.arange(-low, 0), np.arange(n, n + high)]), OF_NUMPY[mode]
    if name == "wrap":
        at %= n
    elif name == "edge":
        at = at.clip(0, n - 1)
    else:
        around = name == "reflect"  # the sample at an end
        at = np.where(at < 0, -at - 1 + around, 2 * n - 1 - around - at)
    return x[..., at]
