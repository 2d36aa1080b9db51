"""Functions of each element of a float32 array by itself, in any layout: run, or bound to arrays."""

from __future__ import annotations

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.core.bound_run import BoundRun, check_bound
from convalgos.cpu.elementwise.bound_steps import FLOAT, BoundStep, launched
from convalgos.cpu.elementwise.function_kernels import FUNCTION_FIELDS, FUNCTIONS, function_share
from convalgos.cpu.vectors import simd


class FunctionPlan(BoundStep):
    """y = function(x), one of `FUNCTIONS`, which have NumPy's names; y may be x itself.

    Args:
        shape: of the arrays.

    Example:
        >>> FunctionPlan("sqrt", (3,)).run((np.float32([4, 9, -1]),), y := np.empty(3, "f4"))
        >>> y.tolist()
        [2.0, 3.0, nan]
    """

    told = True

    def __init__(self, function: str, shape: Shape):
        self._shape = tuple(shape)
        lanes = simd.lanes(FLOAT.itemsize)
        self._kernel = function_share(FLOAT.itemsize, lanes, FUNCTIONS.index(function))

    def bind(self, *arrays: np.ndarray) -> BoundRun:
        x, y = arrays
        check_bound("x", x, self._shape, FLOAT, strided=False)
        check_bound("y", y, self._shape, FLOAT, strided=False, written=True)
        values = {"x": x.ctypes.data, "y": y.ctypes.data, "count": y.size}
        return launched(self._kernel, FUNCTION_FIELDS, values, y.size, x, y, self, told=("x", "y"))
