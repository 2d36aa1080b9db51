"""Correlations and convolutions along one axis, with weights that the caller gives."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from convalgos.core.array_kinds import any_kind
from convalgos.ndimage import arguments
from convalgos.ndimage.known_calls import known_calls
from convalgos.ndimage.lines import Weights, correlate_axes


@known_calls
@any_kind("cupyx.scipy.ndimage")
def correlate1d(
    input: Any,
    weights: Any,
    axis: int = -1,
    output: Any = None,
    mode: str = "reflect",
    cval: complex = 0.0,
    origin: int = 0,
) -> Any:
    """Correlate lines of an array with weights, as `scipy.ndimage.correlate1d` does.

    Args:
        input: array of bool, integers, float32, float64, complex64 or complex128, of any number of axes.
        weights: (taps,) numbers.
        axis: along which lines lie.
        output: None for a new array of the input's type, a dtype for one of that, or an array of the input's
            shape to be filled, which may be the input itself.
        mode: what lies beyond the ends of a line: "reflect" (d c b a | a b c d | d c b a), "constant"
            (`cval`), "nearest" (a a a | a b c d | d d d), "mirror" (d c b | a b c d | c b a) or "wrap"
            (b c d | a b c d | a b c), also under their other names "grid-mirror", "grid-constant",
            "grid-wrap".
        cval: the number beyond the ends with mode="constant".
        origin: moves the filter by so many elements; 0 has it centred.

    Returns:
        y[i] = sum_t weights[t] * x[i + t - taps // 2 - origin], in float64 and SciPy's order where `output`
        has integers, which are then SciPy's exactly. float32 is summed in float32: within
        2**-24 * (taps + 1) * sum_t |weights[t] * x_t| of the exact sum.

    Raises:
        ValueError, RuntimeError: what SciPy refuses, with its words. TypeError: a type that is not filtered.

    Example:
        >>> import convalgos as ca
        >>> ca.ndimage.correlate1d([2, 8, 0, 4, 1, 9, 9, 0], weights=[1, 3])
        array([ 8, 26,  8, 12,  7, 28, 36,  9])
    """
    w = np.asarray(weights)
    return _correlated(input, w.conj() if w.dtype.kind == "c" else w, axis, output, mode, cval, origin)


@known_calls
@any_kind("cupyx.scipy.ndimage")
def convolve1d(
    input: Any,
    weights: Any,
    axis: int = -1,
    output: Any = None,
    mode: str = "reflect",
    cval: complex = 0.0,
    origin: int = 0,
) -> Any:
    """Convolve lines of an array with weights, as `scipy.ndimage.convolve1d` does.

    Arguments, result and errors are those of `correlate1d`, with the weights in reversed order.

    Example:
        >>> import convalgos as ca
        >>> ca.ndimage.convolve1d([2, 8, 0, 4, 1, 9, 9, 0], weights=[1, 3])
        array([14, 24,  4, 13, 12, 36, 27,  0])
    """
    w = np.atleast_1d(np.asarray(weights))[::-1]
    moved = -operator.index(origin) - (len(w) + 1) % 2
    return _correlated(input, w, axis, output, mode, cval, moved)


def _correlated(
    input: Any, w: np.ndarray, axis: int, output: Any, mode: str, cval: complex, origin: int
) -> np.ndarray:
    x = arguments.input_array("input", input)
    step = Weights(arguments.one_axis(axis, x.ndim), w, mode, origin)
    return correlate_axes(x, [step], output, cval)
