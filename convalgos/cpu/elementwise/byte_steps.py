"""Steps of maps of uint8 with scale and zero point, fixed to their shapes: run, or bound to arrays.

All arrays are contiguous; results are those of float32 operations, each rounded, and then of rounding to
whole numbers, ties to even.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.core.bound_run import BoundRun, Launch, check_bound, image_step
from convalgos.core.byte_scale import BYTE, LEAST, MOST, ByteScale
from convalgos.core.epilogue import Activation
from convalgos.core.errors import Unsupported
from convalgos.core.laid_arrays import as_laid
from convalgos.core.layouts import array_shape
from convalgos.cpu.compile import code_generation
from convalgos.cpu.elementwise.bound_steps import FLOAT, BoundStep, bound, launched, threads_worth
from convalgos.cpu.elementwise.byte_kernels import (
    ADD,
    BYTES_FIELDS,
    DEQUANTISE,
    MULTIPLY,
    QUANTISE,
    RUNS_FIELDS,
    byte_numbers,
    change_share,
    combine_bytes_share,
    copy_runs,
    look_up_share,
)
from convalgos.cpu.elementwise.byte_means import MEAN_FIELDS, mean_share
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.packs import packs_words
from convalgos.cpu.runtime.records import copy_of_record
from convalgos.cpu.vectors import simd

CHUNK = 1 << 12  # elements of a unit
PACKED = 2.0**30  # up to which numbers are packed: they stay in words
OPERATIONS = {"add": ADD, "multiply": MULTIPLY}


class _Changing(BoundStep):
    """A step of `change_share`: its record but for the addresses of the arrays is made once.

    Subclasses set `_taken`: (name, shape in memory, type) of each array, of which y is the last.
    """

    _taken: Sequence[tuple[str, Shape, np.dtype]]

    def _set(
        self,
        kernel: int,
        numbers: np.ndarray,
        rows: int,
        count: int,
        repeats: int = 1,
        by_element: bool = True,
    ) -> None:
        """What is done to rows of `count` elements."""
        chunk = max(1, min(count, CHUNK))
        self._numbers, self._kernel, self._tasks = numbers, kernel, threads_worth(rows * count)
        values = {
            "by_element": int(by_element), "rows": rows, "count": count, "repeats": repeats, "chunk": chunk,
            "row_chunk": max(1, CHUNK // chunk), "numbers": numbers.ctypes.data, "tasks": self._tasks,
        }  # fmt: skip
        self._record = np.array(
            [tuple(values.get(name, 0) for name in BYTES_FIELDS.names or ())], BYTES_FIELDS
        )

    def _on(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """The record for arrays: a, y, or a, b, y."""
        for (name, shape, dtype), array in zip(self._taken, arrays, strict=True):
            check_bound(name, array, shape, dtype, strided=False, written=name == "y")
        record = copy_of_record(self._record)
        words = record.view(np.int64)
        words[:3] = [array.ctypes.data for array in (arrays[0], arrays[-2], arrays[-1])]
        return record

    def bind(self, *arrays: np.ndarray) -> BoundRun:
        record = self._on(arrays)
        return bound([Launch(self._kernel, record.ctypes.data, self._tasks)], record, self, arrays)

    def run(self, inputs: Sequence[np.ndarray], y: np.ndarray) -> None:
        record = self._on((*map(as_laid, inputs), y))
        jit.launch(self._kernel, record.ctypes.data, self._tasks, self._tasks > 1)


class QuantizePlan(_Changing):
    """float32 to uint8: rint(x / scale) + zero point, limited; NaN becomes the least integer.

    Example:
        >>> x = np.array([[-1.0, 0.0, 0.26, 900.0]], "f4")
        >>> QuantizePlan(x.shape, "channels_first", ByteScale(0.5, 10)).run((x,), y := np.empty((1, 4), "u1"))
        >>> y.tolist()
        [[8, 10, 11, 255]]
    """

    def __init__(self, shape: Shape, layout: str, y_scale: ByteScale):
        held = array_shape(layout, shape)
        self._taken = ("x", held, FLOAT), ("y", held, BYTE)
        zero = y_scale.zero_point
        numbers = byte_numbers(y_scale.scale, 0, LEAST - zero, MOST - zero, zero)
        self._set(change_share(simd.lanes(4), QUANTISE), numbers, 1, math.prod(held))


class DequantizePlan(_Changing):
    """uint8 to float32: (x - zero point) * scale."""

    def __init__(self, shape: Shape, layout: str, x_scale: ByteScale):
        held = array_shape(layout, shape)
        self._taken = ("x", held, BYTE), ("y", held, FLOAT)
        numbers = byte_numbers(x_scale.scale, x_scale.zero_point, 0, 0, 0)
        self._set(change_share(simd.lanes(4), DEQUANTISE), numbers, 1, math.prod(held))


class ByteArithmeticPlan(_Changing):
    """Sums and products of uint8 maps a and b, activated and brought to the scale of y.

    A sum is rint(min(max((a - za) * (sa / sy) + (b - zb) * (sb / sy), low), high)) + zy, a product
    rint(min(max((a - za) * (b - zb) * (sa * sb / sy), low), high)) + zy.

    Args:
        operation: "add" or "multiply".
        shapes: logical, of a and b; b of a product may have one number a map, (N, C, 1, 1).
        layout: channels first or last, of all.
        scales: of a, b and y.
        activation: None, relu or clip.

    Raises:
        Unsupported: other shapes, or another activation.
    """

    def __init__(
        self,
        operation: str,
        shapes: Sequence[Shape],
        layout: str,
        scales: tuple[ByteScale, ByteScale, ByteScale],
        activation: Activation | None = None,
    ):
        whole, other = shapes
        per_map = other != whole
        if per_map and (operation == "add" or other != (*whole[:2], *(1,) * (len(whole) - 2))):
            raise Unsupported(f"arrays of {shapes} are no maps of one shape, nor maps and a number of each")
        of = zip("aby", (whole, other, whole), strict=True)
        self._taken = [(name, array_shape(layout, shape), BYTE) for name, shape in of]
        pixels, last, rows = math.prod(whole[2:]), layout == "channels_last", 1
        if per_map:
            rows = whole[0] * (pixels if last else whole[1])
        numbers = _operation_numbers(operation, *scales, activation)
        largest = MOST * float(numbers["a_scale"][0] + numbers["b_scale"][0])
        if operation == "multiply":
            largest *= MOST
        packs = int(packs_words() and largest < PACKED)
        self._set(
            combine_bytes_share(simd.lanes(4), OPERATIONS[operation], packs), numbers, rows,
            math.prod(whole) // max(1, rows), max(1, pixels) if per_map and last else 1, last or not per_map,
        )  # fmt: skip


class LookupPlan(BoundStep):
    """Each byte x as table[x]: any function of one element.

    Args:
        size: elements of x and of y, which are of 8-bit integers.
        table: uint8 (256,), by x's bits.
    """

    def __init__(self, size: int, table: np.ndarray):
        self._size = size
        self._table = np.ascontiguousarray(table, np.uint8)

    def bind(self, *arrays: np.ndarray) -> BoundRun:
        x, y = arrays
        check_bound("x", x, x.shape, x.dtype, strided=False)
        check_bound("y", y, x.shape, y.dtype, strided=False, written=True)
        if (x.itemsize, y.itemsize, x.size) != (1, 1, self._size):
            raise TypeError(f"x of {x.dtype} and y of {y.dtype} must be {self._size} integers of 8 bits")
        values = {"a": x.ctypes.data, "y": y.ctypes.data, "count": x.size, "table": self._table.ctypes.data}
        lanes = simd.lanes(1)
        permutes = int(lanes == 64 and code_generation.has("avx512vbmi"))
        return launched(look_up_share(lanes, permutes), BYTES_FIELDS, values, x.size, x, y, self._table)


class ByteMeanPlan(BoundStep):
    """The mean of each map: rint(min(max(sum(x - zx) * (sx / (sy * pixels)), low), high)) + zy.

    Args:
        shape: logical, of x; y is (N, C, 1, ...).
        layout: channels first or last.
        x_scale, y_scale: of the maps and of the means.
    """

    def __init__(self, shape: Shape, layout: str, x_scale: ByteScale, y_scale: ByteScale):
        y_shape = (*shape[:2], *(1,) * (len(shape) - 2))
        self._shapes = array_shape(layout, shape), array_shape(layout, y_shape)
        pixels = math.prod(shape[2:])
        scale = float(np.float32(x_scale.scale) / (np.float32(y_scale.scale) * np.float32(pixels or 1)))
        zero = y_scale.zero_point
        self._numbers = byte_numbers(scale, 0, LEAST - zero, MOST - zero, zero)
        self._values = {
            "images": shape[0], "channels": shape[1], "pixels": pixels, "begin": -pixels * x_scale.zero_point,
            "last": int(layout == "channels_last"), "numbers": self._numbers.ctypes.data,
        }  # fmt: skip

    def bind(self, *arrays: np.ndarray) -> BoundRun:
        x, y = arrays
        check_bound("x", x, self._shapes[0], BYTE, strided=False)
        check_bound("y", y, self._shapes[1], BYTE, strided=False, written=True)
        values = self._values | {"x": x.ctypes.data, "y": y.ctypes.data}
        return launched(mean_share(simd.lanes(4)), MEAN_FIELDS, values, x.size, x, y, self._numbers)


class ByteConcatenationPlan(BoundStep):
    """uint8 maps of one scale side by side along the channels; what lies in its place already is not copied.

    Args:
        shapes: logical, of the inputs.
        layout: channels first or last.
    """

    def __init__(self, shapes: Sequence[Shape], layout: str):
        first, self._last = shapes[0], layout == "channels_last"
        self._channels = [shape[1] for shape in shapes]
        self._shapes = [array_shape(layout, shape) for shape in shapes]
        self._y_shape = array_shape(layout, (first[0], sum(self._channels), *first[2:]))
        self._rows = math.prod(self._y_shape[:-1]) if self._last else first[0]
        self._each = 1 if self._last else math.prod(first[2:])  # bytes of a channel in a run

    def bind(self, *arrays: np.ndarray) -> BoundRun:
        *inputs, y = arrays
        apart = not self._last
        check_bound("y", y, self._y_shape, BYTE, strided=apart, written=True)
        runs, to, y_row = [], y.ctypes.data, image_step(y) if apart else self._y_shape[-1]
        for i, (x, shape, channels) in enumerate(zip(inputs, self._shapes, self._channels, strict=True)):
            check_bound(f"input {i}", x, shape, BYTE, strided=apart)
            count = channels * self._each
            if x.ctypes.data != to or self._last:
                values = {
                    "x": x.ctypes.data, "y": to, "rows": self._rows, "count": count,
                    "x_row": image_step(x) if apart else count, "y_row": y_row,
                }  # fmt: skip
                runs.append(launched(copy_runs(), RUNS_FIELDS, values, x.size, x, y))
            to += count
        return bound([launch for run in runs for launch in run.launches or ()], runs)


def _operation_numbers(
    operation: str, a: ByteScale, b: ByteScale, y: ByteScale, activation: Activation | None
) -> np.ndarray:
    low, high = byte_limits(y, activation)
    of_a, of_b, of_y = (np.float32(of.scale) for of in (a, b, y))
    by_a, by_b = (of_a * of_b / of_y, 0.0) if operation == "multiply" else (of_a / of_y, of_b / of_y)
    return byte_numbers(float(by_a), a.zero_point, low, high, y.zero_point, float(by_b), b.zero_point)


def byte_limits(y: ByteScale, activation: Activation | None) -> tuple[float, float]:
    """What an activation leaves of whole numbers less their zero point.

    Raises:
        Unsupported: it is no limit.
    """
    low, high = float(LEAST - y.zero_point), float(MOST - y.zero_point)
    if activation is None:
        return low, high
    if activation.name not in ("relu", "clip"):
        raise Unsupported(f"activation {activation.name!r} is no limit of integers")
    least, most = (0.0, np.inf) if activation.name == "relu" else activation[1:]
    scale = np.float32(y.scale)
    first, last = (float(np.rint(np.float32(n) / scale)) for n in (least, most))
    return min(max(low, first), high), max(min(high, last), low)
