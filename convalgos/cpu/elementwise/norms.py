"""Norms of float32 maps in any layout, fixed to their shapes: run, or bound to arrays."""

from __future__ import annotations

import math

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.core.bound_run import BoundRun, check_bound, image_step
from convalgos.core.layouts import BLOCKS, array_shape
from convalgos.cpu.elementwise.bound_steps import FLOAT, BoundStep, launched
from convalgos.cpu.elementwise.norm_kernels import NORM_FIELDS, normalise_share
from convalgos.cpu.vectors import simd


class LayerNormPlan(BoundStep):
    """Each pixel less the mean of its channels, over their deviation; then times scale, plus shift.

    y = (x - mean(x)) / sqrt(var(x) + epsilon) * scale + shift; y may be x itself.

    Args:
        shape: logical, (N, C, *spatial), of x.
        layout: of x and y.
        scale, shift: (C,), or None for 1 and 0.

    Source: Ba, Kiros and Hinton 2016, arXiv:1607.06450.

    Example:
        >>> x = np.arange(6, dtype="f4").reshape(1, 3, 2)  # two pixels of three channels
        >>> LayerNormPlan(x.shape, "channels_first").run((x,), y := np.empty_like(x))
        >>> y[0].round(2).tolist()
        [[-1.22, -1.22], [0.0, 0.0], [1.22, 1.22]]
    """

    strided_batch = True

    def __init__(
        self,
        shape: Shape,
        layout: str,
        scale: np.ndarray | None = None,
        shift: np.ndarray | None = None,
        epsilon: float = 1e-5,
    ):
        self._shape = array_shape(layout, shape)
        channels, pixels = shape[1], math.prod(shape[2:])
        self._lanes = BLOCKS.get(layout, simd.lanes(FLOAT.itemsize))
        by_pixel = layout == "channels_first" and pixels > 1
        pixel, vector = channels, self._lanes
        if by_pixel:
            pixel, vector = 1, pixels
        elif layout in BLOCKS:
            pixel, vector = self._lanes, pixels * self._lanes
        self._scale, self._shift = (
            np.full(channels, default, FLOAT) if array is None else np.ascontiguousarray(array, FLOAT)
            for array, default in ((scale, 1), (shift, 0))
        )
        self._numbers = np.array([1 / max(1, channels), epsilon], FLOAT)
        self._values = {
            "scale": self._scale.ctypes.data, "shift": self._shift.ctypes.data,
            "numbers": self._numbers.ctypes.data, "by_pixel": int(by_pixel), "pixels": pixels,
            "channels": channels, "pixel_step": pixel, "channel_step": vector,
        }  # fmt: skip

    def bind(self, *arrays: np.ndarray) -> BoundRun:
        x, y = arrays
        check_bound("x", x, self._shape, FLOAT, strided=True)
        check_bound("y", y, self._shape, FLOAT, strided=True, written=True)
        values = self._values | {
            "x": x.ctypes.data, "y": y.ctypes.data, "x_n": image_step(x), "y_n": image_step(y),
            "images": len(x) if x.size else 0,
        }  # fmt: skip
        kernel = normalise_share(FLOAT.itemsize, self._lanes)
        return launched(kernel, NORM_FIELDS, values, y.size, x, y, self)
