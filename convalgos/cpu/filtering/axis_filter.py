"""A correlation of floats along one axis, with weights that every call brings.

Of floats only the sums depend on the weights, so that one pass serves all filters of a length.
"""

from __future__ import annotations

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.core.axis_windows import AxisWindow
from convalgos.cpu.filtering import line_drivers
from convalgos.cpu.filtering.line_passes import LinePass
from convalgos.cpu.filtering.line_steps import LineStep
from convalgos.cpu.runtime.record_launch import RecordLaunch
from convalgos.cpu.runtime.threads import cached_by_threads


class AxisFilter:
    """y[i] = sum_t weights[t] * x[i + t - window.low] along an axis of arrays of a shape.

    Args:
        dtype: of x, weights and y: float32 or float64, of this machine's order.
        fill: what lies outside with the boundary "constant".
    """

    def __init__(self, shape: Shape, dtype: np.dtype, axis: int, window: AxisWindow, fill: float):
        of_any = LinePass(shape, dtype, dtype, [LineStep(axis, (0.0,) * window.taps, window, fill)])
        values, tasks = of_any.values, of_any.values["tasks"]
        self._run = RecordLaunch(
            of_any.kernel, of_any.record, line_drivers.FIELDS.names, tasks * values["scratch_bytes"], tasks,
            of_any.kept, "weights" if values["taps"] else "row_weights",
        )  # fmt: skip

    def __call__(self, x: np.ndarray, weights: np.ndarray, y: np.ndarray) -> None:
        """x, weights (taps,), y: C-contiguous; y apart from the others in memory."""
        self._run(x, y, weights)


@cached_by_threads(256)
def axis_filter(shape: Shape, dtype: np.dtype, axis: int, window: AxisWindow, fill: float) -> AxisFilter:
    """The one for these arguments."""
    return AxisFilter(shape, dtype, axis, window, fill)
