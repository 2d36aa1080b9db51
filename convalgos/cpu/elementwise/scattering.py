"""Elements added to computed places along one dimension, in runs of those that lie side by side."""

from __future__ import annotations

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.core.bound_run import BoundRun, check_bound
from convalgos.cpu.elementwise.bound_steps import FLOAT, BoundStep, launched
from convalgos.cpu.elementwise.gathering import (
    PLACES,
    checked_run,
    dimensions_of_elements,
    places_read,
    run_values,
)
from convalgos.cpu.elementwise.scattering_kernels import SCATTER_FIELDS, scatter_share
from convalgos.cpu.vectors import simd


class ScatterSumPlan(BoundStep):
    """y = x, to which updates are added at places along an axis (ONNX's ScatterElements), by one thread.

    Args:
        x_shape, places_shape, updates_shape: their shapes; places are broadcast to the updates.

    Raises:
        Unsupported: places lie in too many dimensions.

    Example:
        >>> x, updates = np.zeros((3, 2), "f4"), np.float32([[1, 2], [3, 4]])
        >>> plan = ScatterSumPlan(x.shape, (2, 1), updates.shape, 0)
        >>> plan.run((x, np.array([[2], [-1]]), updates), y := np.empty_like(x))
        >>> y.tolist()
        [[0.0, 0.0], [0.0, 0.0], [4.0, 6.0]]
    """

    def __init__(self, x_shape: Shape, places_shape: Shape, updates_shape: Shape, axis: int):
        self._x_shape, self._places_shape, self._updates_shape = x_shape, places_shape, updates_shape
        dimensions = dimensions_of_elements(x_shape, places_shape, axis, updates_shape)
        run, values = run_values(dimensions, x_shape, axis, FLOAT.itemsize)
        self._values = values | {"run": run}

    def bind(self, *arrays: np.ndarray) -> BoundRun:
        x, places, updates, y = arrays
        check_bound("x", x, self._x_shape, FLOAT, strided=False)
        check_bound("updates", updates, self._updates_shape, FLOAT, strided=False)
        check_bound("y", y, self._x_shape, FLOAT, strided=False, written=True)
        read, wrong = places_read(places, self._places_shape), np.zeros(1, PLACES)
        named = {"x": x, "places": read, "updates": updates, "y": y, "wrong": wrong}
        values = self._values | {name: array.ctypes.data for name, array in named.items()}
        kernel = scatter_share(FLOAT.itemsize, simd.lanes(FLOAT.itemsize))
        values |= {"nbytes": x.nbytes, "wide": int(read.dtype == PLACES)}
        inner = launched(kernel, SCATTER_FIELDS, values, 0, *named.values())
        return checked_run(inner, places, read, wrong)
