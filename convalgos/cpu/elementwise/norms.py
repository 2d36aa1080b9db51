"""Norms, and softmax, of float32 maps in any layout, fixed to their shapes: run, or bound to arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.core.arguments import Shape
from convalgos.core.bound_run import BoundRun, check_bound, image_step
from convalgos.core.epilogue import KINDS, Activation
from convalgos.core.layouts import BLOCKS, array_shape
from convalgos.cpu.elementwise.bound_steps import FLOAT, BoundStep, bound, launched
from convalgos.cpu.elementwise.lrn_kernels import LRN_FIELDS, lrn_share
from convalgos.cpu.elementwise.norm_kernels import (
    GROUP_FIELDS,
    NORM_FIELDS,
    apply_share,
    factors_share,
    moments_share,
    normalise_share,
)
from convalgos.cpu.elementwise.softmax_kernels import SOFTMAX_FIELDS, softmax_share
from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.activations import NONE


class _OfPixels(BoundStep):
    """A step that goes by pixels, whose channels stay when a map is of another size."""

    _layout: str
    _shape: Shape
    _values: dict[str, int]

    def on_map(self, shape: Shape) -> Self | None:
        """The same step of a map of this logical shape; None where it needs other channels."""
        if shape[1] != self._values["channels"]:
            return None
        made: Self = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__)
        made._shape = array_shape(self._layout, shape)
        made._values = self._values | _steps(shape, self._layout)[1]
        return made

    def bind(self, *arrays: np.ndarray) -> BoundRun:
        x, y = arrays
        return self._on(_addresses(x, y, self._shape), y.size, x, y)

    def bound_at(self, x: Sequence[int], y: int) -> BoundRun:
        return self._on(*_fields_at(x[0], y, self._shape))

    def _on(self, where: dict[str, int], count: int, *kept: np.ndarray) -> BoundRun:
        """A run on arrays of so many elements, which lie there."""
        raise NotImplementedError


class LayerNormPlan(_OfPixels):
    """Each pixel less the mean of its channels, over their deviation; then times scale, plus shift.

    y = (x - mean(x)) / sqrt(var(x) + epsilon) * scale + shift; y may be x itself.

    Args:
        shape: logical, (N, C, *spatial), of x.
        layout: of x and y.
        scale, shift: (C,), or None for 1 and 0.
        centred: whether means are taken away; else var(x) is the mean of the squares (RMS norm).
        largest: that 1 / sqrt(var(x) + epsilon) may be.

    Source: Ba, Kiros and Hinton 2016, arXiv:1607.06450; Zhang and Sennrich 2019, arXiv:1910.07467 (RMS norm).

    Example:
        >>> x = np.arange(6, dtype="f4").reshape(1, 3, 2)  # two pixels of three channels
        >>> LayerNormPlan(x.shape, "channels_first").run((x,), y := np.empty_like(x))
        >>> y[0].round(2).tolist()
        [[-1.22, -1.22], [0.0, 0.0], [1.22, 1.22]]
    """

    strided_batch = True
    told = by_address = True

    def __init__(
        self,
        shape: Shape,
        layout: str,
        scale: np.ndarray | None = None,
        shift: np.ndarray | None = None,
        epsilon: float = 1e-5,
        centred: bool = True,
        largest: float = math.inf,
    ):
        self._layout, self._shape = layout, array_shape(layout, shape)
        channels, (self._lanes, steps) = shape[1], _steps(shape, layout)
        self._scale, self._shift = _scale_and_shift(channels, scale, shift)
        share = 1 / max(1, channels)
        self._numbers = np.array([share if centred else 0, share, epsilon, largest], FLOAT)
        self._values = steps | {
            "scale": self._scale.ctypes.data, "shift": self._shift.ctypes.data,
            "numbers": self._numbers.ctypes.data,
        }  # fmt: skip

    def _on(self, where: dict[str, int], count: int, *kept: np.ndarray) -> BoundRun:
        kernel = normalise_share(FLOAT.itemsize, self._lanes)
        return launched(kernel, NORM_FIELDS, self._values | where, count, *kept, self, told=("x", "y"))


class GroupNormPlan(BoundStep):
    """Each group of channels of an image less its mean, over its deviation; scaled, shifted, activated.

    y = activation((x - mean(x)) / sqrt(var(x) + epsilon) * scale + shift); y may be x itself.

    Args:
        shape: logical, (N, C, *spatial), of x.
        layout: of x and y.
        groups: of neighbouring channels, which divide C: C of them are norms of instances.
        scale, shift: (C,), or None for 1 and 0.

    Source: Wu and He 2018, arXiv:1803.08494; Ulyanov, Vedaldi and Lempitsky 2016, arXiv:1607.08022.

    Example:
        >>> x = np.arange(8, dtype="f4").reshape(1, 4, 2)
        >>> GroupNormPlan(x.shape, "channels_first", 2).run((x,), y := np.empty_like(x))
        >>> y[0].round(2).tolist()
        [[-1.34, -0.45], [0.45, 1.34], [-1.34, -0.45], [0.45, 1.34]]
    """

    strided_batch = True

    def __init__(
        self,
        shape: Shape,
        layout: str,
        groups: int,
        scale: np.ndarray | None = None,
        shift: np.ndarray | None = None,
        epsilon: float = 1e-5,
        activation: Activation | None = None,
    ):
        self._shape = array_shape(layout, shape)
        images, channels, pixels = shape[0], shape[1], math.prod(shape[2:])
        self._lanes, steps = _steps(shape, layout)
        self._activation = NONE if activation is None else KINDS[activation.name].code
        self._scale, self._shift = _scale_and_shift(channels, scale, shift)
        a, b = (0, 0) if activation is None else activation[1:]
        elements = pixels * channels // max(1, groups)
        numbers = 1 / max(1, pixels), 1 / max(1, elements), epsilon, pixels, a, b
        self._numbers = np.array(numbers, FLOAT)
        by_pixel = steps["by_pixel"]
        rows = channels if by_pixel else -(-channels // self._lanes)
        self._padded = -(-channels // self._lanes) * self._lanes
        row_step = steps["channel_step"] if by_pixel or layout in BLOCKS else self._lanes
        self._values = {
            "by_pixel": by_pixel, "pixels": pixels, "channels": channels, "groups": groups, "rows": rows,
            "padded": self._padded, "pixel_step": steps["pixel_step"], "row_step": row_step,
            "scale": self._scale.ctypes.data, "shift": self._shift.ctypes.data,
            "numbers": self._numbers.ctypes.data,
        }  # fmt: skip
        self._rows, self._groups = images * rows, images * groups

    def bind(self, *arrays: np.ndarray) -> BoundRun:
        x, y = arrays
        means, factors = (aligned_empty(len(y) * self._padded, FLOAT) for _ in range(2))
        values = self._values | _addresses(x, y, self._shape)
        values |= {"means": means.ctypes.data, "factors": factors.ctypes.data}
        size, lanes = FLOAT.itemsize, self._lanes
        kernels = (
            (moments_share(size, lanes), y.size, self._rows),
            (factors_share(size, lanes), means.size, self._groups),
            (apply_share(size, lanes, self._activation), y.size, self._rows),
        )
        runs = [
            launched(kernel, GROUP_FIELDS, values, count if units > 1 else 1)
            for kernel, count, units in kernels
        ]
        launches = [launch for run in runs for launch in run.launches or ()]
        return bound(launches, runs, means, factors, x, y, self)


class LrnPlan(BoundStep):
    """Each channel over a power of the squares of its neighbours: local response normalisation.

    y[c] = x[c] / (bias + alpha / size * sum of x[i]^2, i from c - (size - 1) // 2 to c + size // 2) ^ beta

    Args:
        shape: logical, (N, C, *spatial), of x.
        layout: of x and y, which must be apart.
        size: channels of a window; those beyond the first and the last count as 0.
        bias: above 0.

    Source: Krizhevsky, Sutskever and Hinton, ImageNet classification with deep convolutional neural
    networks, 2012.

    Example:
        >>> x = np.ones((1, 3, 2), "f4")
        >>> LrnPlan(x.shape, "channels_first", 3, alpha=3.0, beta=0.5).run((x,), y := np.empty_like(x))
        >>> y[0, :, 0].round(3).tolist()  # 1 / sqrt(3), 1 / sqrt(4), 1 / sqrt(3)
        [0.577, 0.5, 0.577]
    """

    strided_batch = True

    def __init__(
        self,
        shape: Shape,
        layout: str,
        size: int,
        alpha: float = 1e-4,
        beta: float = 0.75,
        bias: float = 1.0,
    ):
        self._shape = array_shape(layout, shape)
        self._lanes, steps = _steps(shape, layout)
        self._numbers = np.array([bias, alpha / size, -beta], FLOAT)
        below, above = (size - 1) // 2, size // 2
        around = [-(-n // self._lanes) * self._lanes for n in (below, shape[1], above)]
        self._squares, self._first = (
            sum(around),
            around[0],
        )  # elements for a task, and of them before channel 0
        self._values = steps | {
            "numbers": self._numbers.ctypes.data, "below": below, "above": above,
            "squares_task": self._squares,
        }  # fmt: skip

    def bind(self, *arrays: np.ndarray) -> BoundRun:
        x, y = arrays
        squares = aligned_empty(jit.thread_count() * self._squares, FLOAT)
        squares.fill(0)
        values = self._values | _addresses(x, y, self._shape)
        values["squares"] = squares[self._first :].ctypes.data
        kernel = lrn_share(FLOAT.itemsize, self._lanes)
        return launched(kernel, LRN_FIELDS, values, y.size, x, y, squares, self)


class SoftmaxPlan(_OfPixels):
    """exp(x) over the sum of it over the channels of a pixel; y may be x itself.

    A pixel of which a channel is NaN or infinite, or all are -inf, is NaN; others of -inf have no share.

    Args:
        shape: logical, (N, C, *spatial), of x.
        layout: of x and y.
        logs: whether y is the logarithm of that.

    Example:
        >>> x = np.log(np.float32([1, 2, 5])).reshape(1, 3, 1)
        >>> SoftmaxPlan(x.shape, "channels_first").run((x,), y := np.empty_like(x))
        >>> y.ravel().round(3).tolist()
        [0.125, 0.25, 0.625]
    """

    strided_batch = True
    told = by_address = True

    def __init__(self, shape: Shape, layout: str, logs: bool = False):
        self._layout, self._shape, self._logs = layout, array_shape(layout, shape), logs
        self._lanes, self._values = _steps(shape, layout)

    def _on(self, where: dict[str, int], count: int, *kept: np.ndarray) -> BoundRun:
        kernel = softmax_share(FLOAT.itemsize, self._lanes, int(self._logs))
        return launched(kernel, SOFTMAX_FIELDS, self._values | where, count, *kept, self, told=("x", "y"))


def _scale_and_shift(
    channels: int, scale: np.ndarray | None, shift: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Both (channels,), with 1 and 0 in the place of None."""
    by = np.full(channels, 1, FLOAT) if scale is None else np.ascontiguousarray(scale, FLOAT)
    plus = np.full(channels, 0, FLOAT) if shift is None else np.ascontiguousarray(shift, FLOAT)
    return by, plus


def _steps(shape: Shape, layout: str) -> tuple[int, dict[str, int]]:
    """(elements of a vector, fields of a record): how pixels and channels of a map lie."""
    channels, pixels = shape[1], math.prod(shape[2:])
    lanes = BLOCKS.get(layout, simd.lanes(FLOAT.itemsize))
    by_pixel = layout == "channels_first" and pixels > 1
    pixel, vector = channels, lanes
    if by_pixel:
        pixel, vector = 1, pixels
    elif layout in BLOCKS:
        pixel, vector = lanes, pixels * lanes
    return lanes, {
        "by_pixel": int(by_pixel), "pixels": pixels, "channels": channels, "pixel_step": pixel,
        "channel_step": vector,
    }  # fmt: skip


def _addresses(x: np.ndarray, y: np.ndarray, shape: Shape) -> dict[str, int]:
    """The fields that say where arrays lie, which are checked."""
    check_bound("x", x, shape, FLOAT, strided=True)
    check_bound("y", y, shape, FLOAT, strided=True, written=True)
    return {
        "x": x.ctypes.data, "y": y.ctypes.data, "x_n": image_step(x), "y_n": image_step(y),
        "images": len(x) if x.size else 0,
    }  # fmt: skip


def _fields_at(x: int, y: int, shape: Shape) -> tuple[dict[str, int], int]:
    """(`_addresses` of contiguous arrays that begin at these, elements of y)."""
    size = math.prod(shape)
    step = size // max(1, shape[0])
    return {"x": x, "y": y, "x_n": step, "y_n": step, "images": shape[0] if size else 0}, size
