"""Sums and means of float32 arrays over dimensions next to each other."""

from __future__ import annotations

import math

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.core.bound_run import BoundRun, check_bound
from convalgos.cpu.elementwise.bound_steps import FLOAT, BoundStep, launched
from convalgos.cpu.elementwise.summing_kernels import SUM_FIELDS, sum_share
from convalgos.cpu.vectors import simd

READ = 1 << 12  # elements that a unit reads, at least


class SumPlan(BoundStep):
    """y = scale times the sum of x over the dimensions from `first` up to `behind`, or the maximum.

    Args:
        shape: of x.
        y_shape: of y, with those dimensions left out, or of 1.
        largest: whether it is the maximum, or NaN where one is; not over the last dimension.

    Example:
        >>> x = np.arange(6, dtype="f4").reshape(3, 2)
        >>> SumPlan(x.shape, 0, 1, (2,), 0.5).run((x,), y := np.empty(2, "f4"))
        >>> y.tolist()
        [3.0, 4.5]
    """

    told = True

    def __init__(
        self, shape: Shape, first: int, behind: int, y_shape: Shape, scale: float = 1.0, largest: bool = False
    ):
        self._x_shape, self._y_shape = shape, y_shape
        self._scale = np.full(1, scale, np.float32)
        rows, count, inner = (
            math.prod(part) for part in (shape[:first], shape[first:behind], shape[behind:])
        )
        lanes = simd.lanes(FLOAT.itemsize)
        chunk = -(-READ // max(1, count) // lanes) * lanes
        self._values = {
            "rows": rows, "count": count, "inner": inner, "chunk": max(lanes, chunk), "largest": int(largest),
        }  # fmt: skip

    def bind(self, *arrays: np.ndarray) -> BoundRun:
        x, y = arrays
        check_bound("x", x, self._x_shape, FLOAT, strided=False)
        check_bound("y", y, self._y_shape, FLOAT, strided=False, written=True)
        named = {"x": x, "y": y, "scale": self._scale}
        values = self._values | {name: array.ctypes.data for name, array in named.items()}
        kernel = sum_share(FLOAT.itemsize, simd.lanes(FLOAT.itemsize))
        return launched(kernel, SUM_FIELDS, values, x.size, x, y, self, told=("x", "y"))
