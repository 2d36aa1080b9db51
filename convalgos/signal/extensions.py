"""Signals continued beyond their ends, as SciPy's boundary modes have it.

Source: the modes of `scipy.signal.upfirdn`, and of `scipy.ndimage`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from convalgos.core.boundaries import source_indices
from convalgos.cpu.filtering.sample_mixes import SAMPLES

MIXED = ("smooth", "line", "antisymmetric", "antireflect")  # modes in which samples are summed
FEW = 1 << 14  # elements that are taken one by one; Zen 4
OF_NUMPY = {  # SciPy's name: numpy.pad's
    "symmetric": "symmetric",
    "symm": "symmetric",
    "reflect": "reflect",
    "mirror": "reflect",
    "edge": "edge",
    "nearest": "edge",
    "wrap": "wrap",
}


def with_extension(x: np.ndarray, axis: int, low: int, high: int, mode: str, value: Any = 0) -> np.ndarray:
    """(..., low + n + high, ...): x with elements before and behind it along an axis.

    Raises:
        KeyError: there is no such mode.
    """
    if not low and not high:
        return x
    widths = [(0, 0)] * x.ndim
    widths[axis] = (low, high)
    if mode in ("constant", "fill"):
        return np.pad(x, widths, constant_values=value)
    if mode in MIXED:
        lines = np.moveaxis(x, axis, -1)  # (..., n)
        places, weights = mixed_samples(mode, lines.shape[-1], low, high)
        ends = sum(lines[..., places[:, k]] * weights[:, k] for k in range(SAMPLES))  # (..., low + high)
        y = np.concatenate([ends[..., :low], lines, ends[..., low:]], -1)
        return np.moveaxis(y.astype(x.dtype, copy=False), -1, axis)
    name = OF_NUMPY[mode]
    if x.size <= FEW:  # np.pad looks at each side of each axis before it copies
        return x.take(source_indices(name, x.shape[axis], low, high), axis)
    padded: np.ndarray = np.pad(x, widths, name)  # type: ignore[call-overload] # any of its modes
    return padded


def mixed_samples(mode: str, n: int, low: int, high: int) -> tuple[np.ndarray, np.ndarray]:
    """(low + high, SAMPLES) twice: the sums of which samples, times what, lie before and behind n of them.

    n is at least two but in modes "antisymmetric" and "line"; samples times 0 are last. The
    sums are straight lines through two samples of an end or both ends, or mirror images of the other sign:
    without the sample at the end, or around it, where that of an image is mirrored again.
    """
    at = np.concatenate([np.arange(-low, 0), np.arange(n, n + high)])
    places, weights = np.zeros((len(at), SAMPLES), np.int64), np.zeros((len(at), SAMPLES))
    places[:, 1], places[:, 2] = 0, n - 1
    if mode == "line" and n == 1:  # of no slope, as SciPy has it
        weights[:, 0] = np.nan
    elif mode == "antisymmetric":
        turned = at % (2 * n) >= n
        places[:, 0] = np.where(turned, 2 * n - 1 - at % (2 * n), at % (2 * n))
        weights[:, 0] = np.where(turned, -1, 1)
    elif mode == "antireflect":
        period = 2 * (n - 1)
        turns, rest = at // period, at % period  # each turn goes on from where the one before it ended
        turned = rest >= n
        places[:, 0] = np.where(turned, period - rest, rest)
        weights[:, 0] = np.where(turned, -1, 1)
        weights[:, 1], weights[:, 2] = -2 * turns, 2 * turns + 2 * turned
    else:
        before = at < 0
        apart = 1 if mode == "smooth" else n - 1
        steps = np.where(before, -at, at - (n - 1)) / apart
        places[:, 1] = np.where(before, 0, n - 1)
        places[:, 2] = np.where(before, apart, n - 1 - apart)
        weights[:, 1], weights[:, 2] = 1 + steps, -steps
    order = np.argsort(weights == 0, 1, kind="stable")
    return np.take_along_axis(places, order, 1), np.take_along_axis(weights, order, 1)
