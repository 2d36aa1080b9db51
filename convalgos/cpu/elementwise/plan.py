"""Elementwise steps of float32 maps in any layout, fixed to their shapes: run, or bound to arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.core.bound_run import BoundRun, Launch, check_bound, image_step
from convalgos.core.epilogue import Activation
from convalgos.core.errors import Unsupported
from convalgos.core.layouts import BLOCKS, array_shape
from convalgos.core.machine import Machine
from convalgos.cpu.elementwise.broadcasting import Broadcast, broadcast_of
from convalgos.cpu.elementwise.kernels import (
    ADD,
    COMBINE_FIELDS,
    COPY,
    MULTIPLY,
    UPSAMPLE_FIELDS,
    combine_share,
    upsample_share,
)
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.array_pass import SHARE, ArrayPass
from convalgos.cpu.runtime.finish import activation_numbers, finish_address
from convalgos.cpu.vectors import simd

FLOAT = np.dtype(np.float32)
CHUNK = 1 << 12  # elements that are finished at a time: a part of the first cache
OPERATIONS = {"add": ADD, "multiply": MULTIPLY, "identity": COPY}


def elementwise_seconds(shapes: Sequence[Shape], machine: Machine) -> float:
    """Predicted time of a step that reads or writes arrays of these shapes, from the bytes that it moves."""
    return machine.launch + machine.stream(sum(map(math.prod, shapes)) * FLOAT.itemsize)


class BoundStep:
    """A step that is bound to arrays each time that it is run."""

    def bind(self, inputs: Sequence[np.ndarray], y: np.ndarray) -> BoundRun:
        """A run on these very arrays, in their layout; images may lie apart.

        Raises:
            ValueError, TypeError, Unsupported: an array is not as the step takes it.
        """
        raise NotImplementedError

    def run(self, inputs: Sequence[np.ndarray], y: np.ndarray) -> None:
        """Write y."""
        self.bind(inputs, y).run()


class ElementwisePlan(BoundStep):
    """y = activation(a + b), activation(a * b), or activation(a).

    Args:
        operation: "add", "multiply" or "identity".
        shapes: logical, (N, C, *spatial), of a and b, one of which may be broadcast over the other.
        layout: of all of them.

    Raises:
        Unsupported: they are broadcast otherwise than over whole maps, channels or images.

    Example:
        >>> a, b = np.ones((1, 2, 3, 4), "f4"), np.full((1, 2, 1, 1), 3, "f4")
        >>> plan = ElementwisePlan("multiply", (a.shape, b.shape), "channels_first")
        >>> plan.run((a, b), y := np.empty_like(a))
        >>> float(y.max())
        3.0
    """

    def __init__(
        self, operation: str, shapes: Sequence[Shape], layout: str, activation: Activation | None = None
    ):
        self._operation, self._activation = OPERATIONS[operation], activation
        y_shape = np.broadcast_shapes(*shapes)
        self._shapes = [array_shape(layout, shape) for shape in shapes]
        self._y_shape = array_shape(layout, y_shape)
        self._turned = self._shapes[0] != self._y_shape  # a is the one that is broadcast
        whole, *other = self._shapes[::-1] if self._turned else self._shapes
        if whole != self._y_shape or any(len(shape) != len(whole) for shape in self._shapes):
            raise Unsupported(f"none of the arrays {shapes} has the shape of their sum, {y_shape}")
        if layout in BLOCKS and any(shape[1] != y_shape[1] for shape in shapes):
            raise Unsupported(f"one channel of {shapes} is not broadcast over the others in {layout}")
        self._cast: Broadcast | None = None
        if other and (other[0] != whole or operation == "multiply"):
            self._cast = broadcast_of(whole[1:], other[0][1:])

    def bind(self, inputs: Sequence[np.ndarray], y: np.ndarray) -> BoundRun:
        for name, array, shape in zip("ab", inputs, self._shapes, strict=False):
            check_bound(name, array, shape, FLOAT, strided=True)
        check_bound("y", y, self._y_shape, FLOAT, strided=True, written=True)
        a, *other = inputs[::-1] if self._turned else inputs
        b = other[0] if other else None
        if self._cast is None:
            made = ArrayPass(a, b, y, self._activation)
            return _bound([made.launch], made)
        return self._combined(a, b, y, self._cast)

    def _combined(self, a: Any, b: Any, y: np.ndarray, cast: Broadcast) -> BoundRun:
        image = cast.rows * cast.elements
        values = {
            "operation": self._operation, "by_element": cast.by_element, "images": len(y),
            "groups": cast.groups, "rows": cast.rows, "count": cast.elements, "a_n": image_step(a),
            "a_g": image, "a_row": cast.elements, "b_n": 0 if len(b) < len(y) else image_step(b),
            "b_g": cast.b_group, "y_n": image_step(y), "y_g": image, "y_row": cast.elements,
        }  # fmt: skip
        finish = 0 if self._activation is None else finish_address(FLOAT, self._activation)
        numbers = activation_numbers(FLOAT, self._activation)
        return _bound_rows(a, b, y, values | {"finish": finish}, numbers)


class CopyPlan(BoundStep):
    """y = x, where y is a slice of the channels of a larger array.

    Args:
        shape: logical, of x.
        layout: of both; in blocks, slices begin at whole blocks.
    """

    def __init__(self, shape: Shape, layout: str):
        self._shape, self._last = array_shape(layout, shape), layout == "channels_last"

    def bind(self, inputs: Sequence[np.ndarray], y: np.ndarray) -> BoundRun:
        (x,) = inputs
        if not self._last:
            check_bound("x", x, self._shape, FLOAT, strided=True)
            check_bound("y", y, self._shape, FLOAT, strided=True, written=True)
            made = ArrayPass(x, None, y, None)
            return _bound([made.launch], made)
        pixels, channels = math.prod(self._shape[:-1]), self._shape[-1]
        rows = [_pixels(name, array, self._shape) for name, array in (("x", x), ("y", y))]
        values = {
            "operation": COPY, "images": 1, "groups": 1, "rows": pixels, "count": channels,
            "a_row": image_step(rows[0]), "y_row": image_step(rows[1]),
        }  # fmt: skip
        return _bound_rows(x, x, y, values, activation_numbers(FLOAT, None))


class UpsamplingPlan(BoundStep):
    """Each element of x repeated by a whole factor along each spatial dimension (nearest neighbour).

    Args:
        shape: logical, of x.
        factors: along each spatial dimension.
        layout: of x and y.
    """

    def __init__(self, shape: Shape, factors: Shape, layout: str):
        larger = tuple(n * f for n, f in zip(shape[2:], factors, strict=True))
        self._x_shape, self._y_shape = (array_shape(layout, (*shape[:2], *s)) for s in (shape[2:], larger))
        sizes = (*(1,) * (3 - len(factors)), *shape[2:])
        deep, high, across = (*(1,) * (3 - len(factors)), *factors)
        planes = 1 if layout == "channels_last" else self._x_shape[1]
        count = 1 if layout == "channels_first" else self._x_shape[-1]
        pixels = math.prod(sizes) * count
        y_row = sizes[2] * across * count
        self._values = dict(zip(("depth", "height", "width"), sizes, strict=True)) | {
            "planes": planes, "count": count, "deep": deep, "high": high, "across": across,
            "x_plane": pixels, "y_plane": pixels * math.prod(factors), "y_row": y_row,
            "y_slice": sizes[1] * high * y_row,
        }  # fmt: skip

    def bind(self, inputs: Sequence[np.ndarray], y: np.ndarray) -> BoundRun:
        (x,) = inputs
        check_bound("x", x, self._x_shape, FLOAT, strided=True)
        check_bound("y", y, self._y_shape, FLOAT, strided=True, written=True)
        values = self._values | {
            "images": len(x) if x.size else 0,
            "x_n": image_step(x),
            "y_n": image_step(y),
        }
        values |= {"x": x.ctypes.data, "y": y.ctypes.data}
        kernel = upsample_share(FLOAT.itemsize, simd.lanes(FLOAT.itemsize))
        return _launched(kernel, UPSAMPLE_FIELDS, values, y.size, x, y)


def _pixels(name: str, array: np.ndarray, shape: Shape) -> np.ndarray:
    """(pixels, channels) of an array in channels_last, whose pixels lie evenly."""
    if array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape}, but the run takes {shape}")
    pixels = array.reshape(-1, shape[-1])
    if not np.may_share_memory(pixels, array):
        raise Unsupported(f"{name} has strides {array.strides}, but its pixels must lie evenly")
    check_bound(name, pixels, pixels.shape, FLOAT, strided=True, written=name == "y")
    return pixels


def _bound_rows(a: Any, b: Any, y: np.ndarray, values: dict[str, int], numbers: np.ndarray) -> BoundRun:
    count = max(1, min(values["count"], CHUNK))
    values = values | {
        "a": a.ctypes.data, "b": b.ctypes.data, "y": y.ctypes.data, "numbers": numbers.ctypes.data,
        "chunk": count, "row_chunk": max(1, CHUNK // count),
    }  # fmt: skip
    kernel = combine_share(FLOAT.itemsize, simd.lanes(FLOAT.itemsize))
    return _launched(kernel, COMBINE_FIELDS, values, y.size, a, b, y, numbers)


def _launched(kernel: int, fields: np.dtype, values: dict[str, int], count: int, *kept: Any) -> BoundRun:
    """A run of a kernel, by as many threads as so many elements are worth."""
    tasks = max(1, min(jit.thread_count(), count // SHARE))
    values = values | {"tasks": tasks}
    record = np.array([tuple(values.get(name, 0) for name in fields.names or ())], fields)
    return _bound([Launch(kernel, record.ctypes.data, tasks)], record, *kept)


def _bound(launches: list[Launch], *kept: Any) -> BoundRun:
    table = jit.launch_table(launches)
    run = partial(jit.launch_all, table.ctypes.data, len(launches))
    return BoundRun(run, tuple(launches), (table, *kept))
