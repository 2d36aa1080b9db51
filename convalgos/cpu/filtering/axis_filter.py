"""A correlation of floats along one axis, with weights that every call brings.

Of floats only the sums depend on the weights, so that one pass serves all filters of a length.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.core.axis_windows import AxisWindow
from convalgos.cpu.filtering.line_passes import LinePass
from convalgos.cpu.filtering.line_steps import LineStep
from convalgos.cpu.runtime.threads import cached_by_threads
from convalgos.cpu.vectors import simd


class AxisFilter:
    """y[i] = sum_t weights[t] * x[i + t - window.low] along an axis of arrays of a shape.

    Args:
        dtype: of x, weights and y: float32 or float64, of this machine's order.
        fill: what lies outside with the boundary "constant".
    """

    def __init__(self, shape: Shape, dtype: np.dtype, axis: int, window: AxisWindow, fill: float):
        across = math.prod(shape[axis + 1 :]) >= simd.lanes(dtype.itemsize)
        of_any = _axis_pass(dtype, axis, window._replace(size=0), fill, across)
        self._run = of_any.of(shape, "weights" if across else "row_weights")

    def __call__(self, x: np.ndarray, weights: np.ndarray, y: np.ndarray) -> None:
        """x, weights (taps,), y: C-contiguous; y apart from the others in memory."""
        self._run(x, y, weights)


@lru_cache(256)
def _axis_pass(dtype: np.dtype, axis: int, window: AxisWindow, fill: float, across: bool) -> LinePass:
    """Of arrays of any sizes."""
    step = LineStep(axis, (0.0,) * window.taps, window, fill)
    return LinePass(dtype, dtype, step if across else None, None if across else step)


@cached_by_threads(256)
def axis_filter(shape: Shape, dtype: np.dtype, axis: int, window: AxisWindow, fill: float) -> AxisFilter:
    """The one for these arguments."""
    return AxisFilter(shape, dtype, axis, window, fill)
