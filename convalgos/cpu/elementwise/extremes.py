"""Channels in which the pixels of float32 maps are the largest."""

from __future__ import annotations

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.core.bound_run import BoundRun, check_bound
from convalgos.cpu.elementwise.bound_steps import FLOAT, BoundStep, launched
from convalgos.cpu.elementwise.extreme_kernels import EXTREME_FIELDS, extreme_share
from convalgos.cpu.vectors import simd

CHUNK = 1 << 10  # pixels of a unit: their channels stay in the first cache
INDEX = np.dtype(np.int64)


class LargestChannelPlan(BoundStep):
    """y[n, i] = the first c of those where x[n, c, i] is the largest, or the first that is NaN.

    Args:
        shape: of x: images, channels, pixels.
        seen: the shapes of the arrays, which may have more dimensions.

    Example:
        >>> x = np.array([[[0.0, 2.0, 1.0], [5.0, 2.0, 3.0]]], "f4")
        >>> LargestChannelPlan(x.shape).run((x,), y := np.empty((1, 3), "i8"))
        >>> y.tolist()
        [[1, 0, 1]]
    """

    told = True

    def __init__(self, shape: tuple[int, int, int], seen: tuple[Shape, Shape] | None = None):
        self._shapes = seen or (shape, (shape[0], shape[2]))
        self._values = dict(zip(("images", "channels", "pixels"), shape, strict=True)) | {"chunk": CHUNK}

    def bind(self, *arrays: np.ndarray) -> BoundRun:
        x, y = arrays
        check_bound("x", x, self._shapes[0], FLOAT, strided=False)
        check_bound("y", y, self._shapes[1], INDEX, strided=False, written=True)
        values = self._values | {"x": x.ctypes.data, "places": y.ctypes.data}
        kernel = extreme_share(FLOAT.itemsize, simd.lanes(FLOAT.itemsize))
        return launched(kernel, EXTREME_FIELDS, values, x.size, x, y, told=("x", "places"))
