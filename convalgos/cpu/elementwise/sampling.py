"""Float32 maps and volumes read at places between their pixels."""

from __future__ import annotations

import math

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.core.bound_run import BoundRun, check_bound
from convalgos.cpu.elementwise.bound_steps import FLOAT, BoundStep, launched
from convalgos.cpu.elementwise.sampling_kernels import SAMPLING_FIELDS, sample_share


class SamplingPlan(BoundStep):
    """y[n, c, p, q] = x[n, c] at grid[n, p, q], a column and a row from -1 to 1; in volumes a plane, too.

    Args:
        shape: of x (N, C, H, W), or (N, C, D, H, W).
        y_shape: (N, C, P, Q), or (N, C, O, P, Q).
        nearest: the nearest pixel, else linear between those around a place.
        border: pixels of the border repeat without end, else zeros lie around.
        corners: -1 and 1 are the middles of the first and the last pixel, else their outer edges.

    Example:
        >>> x, grid = np.float32([[[[1, 2, 4]]]]), np.float32([[[[0.5, 0]]]])
        >>> plan = SamplingPlan(x.shape, (1, 1, 1, 1), False, False, True)
        >>> plan.run((x, grid), y := np.empty((1, 1, 1, 1), "f4"))
        >>> float(y.max())
        3.0
    """

    def __init__(self, shape: Shape, y_shape: Shape, nearest: bool, border: bool, corners: bool):
        self._shapes = shape, (y_shape[0], *y_shape[2:], len(shape) - 2), y_shape
        images, channels, *sizes = shape
        depth, height, width = (1, *sizes)[-3:]
        self._values = {
            "images": images, "channels": channels, "depth": depth, "height": height, "width": width,
            "places": math.prod(y_shape[2:]), "dimensions": len(sizes), "nearest": int(nearest),
            "f_low": _bits(0 if border else -1),
        }  # fmt: skip
        for name, size in (("depth", depth), ("height", height), ("width", width)):
            self._values |= {
                f"f_scale_{name[0]}": _bits((size - 1 if corners else size) / 2),
                f"f_middle_{name[0]}": _bits((size - 1) / 2),
                f"f_{name}": _bits(size - 1 if border else size),
            }

    def bind(self, *arrays: np.ndarray) -> BoundRun:
        x, grid, y = arrays
        for name, array, shape in zip(("x", "grid", "y"), arrays, self._shapes, strict=True):
            check_bound(name, array, shape, FLOAT, strided=False, written=name == "y")
        values = self._values | {"x": x.ctypes.data, "grid": grid.ctypes.data, "y": y.ctypes.data}
        return launched(sample_share(), SAMPLING_FIELDS, values, 4 * y.size, x, grid, y)


def _bits(number: float) -> int:
    """Of a float32."""
    return int(np.float32(number).view(np.uint32))
