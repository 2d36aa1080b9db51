"""What `convolve` does without a plan: sums of few taps, and transforms of whole arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from convalgos.signal import short_signals
from convalgos.signal.arrangements import sides_of
from convalgos.signal.joint_transforms import Joint, joint_of_arrays
from convalgos.signal.lines import long_signal
from convalgos.signal.modes import longest_last
from convalgos.signal.problems import TAPS_OF_COMPLEX, all_finite
from convalgos.signal.window_sums import FEW_COMPLEX, few_complex

FEW_OF_BOTH = 3 << 11  # elements of one complex and one real array whose transforms may be faster; Zen 5
TURNED_COMPLEX = 1 << 14  # elements from which on complex numbers are not transformed whole; Zen 5


def spreads_farther(x: np.ndarray, w: np.ndarray, mode: str) -> bool:
    """Whether what is not finite would meet zeros beyond the ends that SciPy's sums do not read.

    The smaller array is the filter, whose taps all meet zeros. SciPy's sums of signals read none, and along
    several axes they read those around in1 where in1 is centred on.
    """
    if x.ndim == 1:
        least = min(x.size, w.size)
        return not all(all_finite(a) for a in (x, w) if a.size == least)
    return mode == "same" and x.size < w.size and not all_finite(x)


def are_complex_lines(x: np.ndarray, w: np.ndarray) -> bool:
    """Whether finite numbers are transformed along one axis of several, as `fftconvolve` does it."""
    taps = min(x.size, w.size)
    lines = x.ndim > 1 and taps >= TAPS_OF_COMPLEX and taps in (max(x.shape), max(w.shape))
    return lines and convolved_axes(x, w) == 1 and all_finite(x) and all_finite(w)


def may_be_joint(x: np.ndarray, w: np.ndarray, mode: str) -> bool:
    """Whether arrays that are not summed as rows may be transformed together."""
    sides = sides_of(x.shape, w.shape, mode, None) if min(x.size, w.size) > FEW_COMPLEX else None
    if sides is None or sides.single:
        return False
    return joint_of_arrays(x, w, sides.convolved, sides.wanted) is not None


def without_plan(
    x: np.ndarray, w: np.ndarray, mode: str, method: str, keep: Callable[[Joint], None] | None
) -> np.ndarray | None:
    """Floats where sums of few taps, or whole complex transforms, are faster than any plan; else None."""
    if method == "fft":
        return short_signals.transformed(x, w, mode) if all_finite(x) and all_finite(w) else None
    kinds, pairs = x.dtype.kind + w.dtype.kind, list(zip(x.shape, w.shape, strict=True))
    if kinds == "ff":
        if (y := long_signal(x, w, mode)) is not None:
            return y
        whole = x.ndim > 1 and mode != "valid" and short_signals.are_alike(pairs, short_signals.OF_IMAGES)
    elif (y := few_complex(x, w, mode)) is not None:
        return y
    else:
        whole = kinds == "cc" or max(x.size, w.size) <= FEW_OF_BOTH or short_signals.are_alike(pairs)
    if not whole or method != "auto" or not (all_finite(x) and all_finite(w)):
        return None
    return short_signals.transformed(x, w, mode, None, keep, sums=True)


def order_of_transforms(x: np.ndarray, w: np.ndarray, mode: str) -> tuple[int, ...] | None:
    """The order of axes in which plans transform two arrays faster; None where that is not worth a copy."""
    are_real = x.dtype.kind != "c" != w.dtype.kind
    return longest_last(x.shape, w.shape, mode) if are_real or max(x.size, w.size) >= TURNED_COMPLEX else None


def convolved_axes(x: np.ndarray, w: np.ndarray, axes: set[int] | None = None) -> int:
    """How many axes are convolved; along those of length 1 it is a product."""
    pairs = zip(x.shape, w.shape, strict=True)
    return sum(1 not in pair and (axes is None or i in axes) for i, pair in enumerate(pairs))
