"""Norms of float32 maps in any layout, fixed to their shapes: run, or bound to arrays."""

from __future__ import annotations

import math

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.core.arguments import Shape
from convalgos.core.bound_run import BoundRun, check_bound, image_step
from convalgos.core.layouts import BLOCKS, array_shape
from convalgos.core.machine import Machine
from convalgos.cpu.elementwise.bound_steps import FLOAT, BoundStep, launched
from convalgos.cpu.elementwise.lrn_kernels import LRN_FIELDS, lrn_share
from convalgos.cpu.elementwise.norm_kernels import NORM_FIELDS, normalise_share
from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import simd

# Each vector is read for its mean, for its deviation and to be written; Zen 4, 54 maps.
PASSES = 6.0  # cycles for all of that, of two products of vectors in a cycle,
PIXEL = 30.0  # and of a core for each pixel where its channels lie together


def layer_norm_seconds(shape: Shape, layout: str, machine: Machine) -> float:
    """Predicted time to normalise each pixel of a map of a logical shape, on all threads.

    Example:
        >>> from convalgos.core.profiles import nominal
        >>> 1e-6 < layer_norm_seconds((1, 96, 56, 56), "channels_last", nominal(2)) < 1e-3
        True
    """
    images, channels, pixels = shape[0], shape[1], math.prod(shape[2:])
    lanes = machine.vector_bytes // FLOAT.itemsize
    if layout == "channels_first":
        vectors, begun = channels * -(-pixels // lanes), 0.0
    else:
        vectors, begun = pixels * -(-channels // lanes), pixels * PIXEL
    computed = images * (vectors * PASSES / machine.paced_cycles + begun / machine.cycles)
    memory = machine.stream_near(2 * math.prod(shape) * FLOAT.itemsize)
    return machine.launch + max(computed, memory)


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
        channels, (self._lanes, steps) = shape[1], _steps(shape, layout)
        self._scale, self._shift = (
            np.full(channels, default, FLOAT) if array is None else np.ascontiguousarray(array, FLOAT)
            for array, default in ((scale, 1), (shift, 0))
        )
        self._numbers = np.array([1 / max(1, channels), epsilon], FLOAT)
        self._values = steps | {
            "scale": self._scale.ctypes.data, "shift": self._shift.ctypes.data,
            "numbers": self._numbers.ctypes.data,
        }  # fmt: skip

    def bind(self, *arrays: np.ndarray) -> BoundRun:
        x, y = arrays
        values = self._values | _addresses(x, y, self._shape)
        kernel = normalise_share(FLOAT.itemsize, self._lanes)
        return launched(kernel, NORM_FIELDS, values, y.size, x, y, self)


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
