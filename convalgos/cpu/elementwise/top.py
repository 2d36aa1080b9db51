"""Places of the largest, or least, elements of rows of float32."""

from __future__ import annotations

import math

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.core.bound_run import BoundRun, check_bound
from convalgos.cpu.elementwise.bound_steps import FLOAT, BoundStep, launched
from convalgos.cpu.elementwise.top_kernels import TOP_FIELDS, top_share

INDEX = np.dtype(np.int64)
MOST_FOUND = 64  # elements of each row: each is put among those found so far, one after the other


class TopPlan(BoundStep):
    """y[..., i] = where the i-th of the largest elements of a row x[...] is; equal ones in their order.

    Args:
        shape: of x.
        count: how many of each row, at most MOST_FOUND.
        largest: else the least.

    Example:
        >>> x = np.array([[1.0, 3.0, 2.0, 3.0]], "f4")
        >>> TopPlan(x.shape, 3, True).run((x,), y := np.empty((1, 3), "i8"))
        >>> y.tolist()
        [[1, 3, 2]]
    """

    def __init__(self, shape: Shape, count: int, largest: bool):
        self._x_shape, self._y_shape = shape, (*shape[:-1], count)
        sizes = math.prod(shape[:-1]), shape[-1], count, -1 if largest else 1
        self._values = dict(zip(("rows", "size", "count", "sign"), sizes, strict=True))

    def bind(self, *arrays: np.ndarray) -> BoundRun:
        x, y = arrays
        check_bound("x", x, self._x_shape, FLOAT, strided=False)
        check_bound("y", y, self._y_shape, INDEX, strided=False, written=True)
        values = self._values | {"x": x.ctypes.data, "places": y.ctypes.data}
        return launched(top_share(), TOP_FIELDS, values, x.size, x, y)
