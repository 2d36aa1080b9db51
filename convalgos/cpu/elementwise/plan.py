"""Elementwise steps of float32 maps in any layout, fixed to their shapes: run, or bound to arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Self

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.core.bound_run import AddressWord, BoundRun, address_words, check_bound, image_step
from convalgos.core.epilogue import Activation
from convalgos.core.errors import Unsupported
from convalgos.core.layouts import BLOCKS, array_shape
from convalgos.cpu.elementwise.bound_steps import FLOAT, BoundStep, launched
from convalgos.cpu.elementwise.broadcasting import Broadcast, broadcast_of
from convalgos.cpu.elementwise.kernels import (
    ADD,
    COMBINE_FIELDS,
    COPY,
    DIVIDE,
    DIVIDED,
    MULTIPLY,
    SLOPE,
    SUBTRACT,
    SUBTRACTED,
    UPSAMPLE_FIELDS,
    combine_share,
    upsample_share,
)
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.array_pass import PASS_FIELDS, ArrayPass, finish_share
from convalgos.cpu.runtime.finish import activation_numbers, finish_address
from convalgos.cpu.vectors import simd

CHUNK = 1 << 12  # elements that are finished at a time: a part of the first cache
OPERATIONS = {
    "add": ADD, "shift": ADD, "multiply": MULTIPLY, "identity": COPY, "subtract": SUBTRACT, "divide": DIVIDE,
    "slope": SLOPE,
}  # fmt: skip
TURNED = {
    ADD: ADD,
    MULTIPLY: MULTIPLY,
    SUBTRACT: SUBTRACTED,
    DIVIDE: DIVIDED,
}  # of operands that change places


class ElementwisePlan(BoundStep):
    """y = activation(a + b), activation(a * b), activation(a - b), activation(a / b), or activation(a).

    Args:
        operation: "add" or "shift", "multiply", "subtract", "divide", "identity", or "slope", by which a is
            multiplied with b where it is less than 0.
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

    told = by_address = True

    def __init__(
        self, operation: str, shapes: Sequence[Shape], layout: str, activation: Activation | None = None
    ):
        self._operation, self._activation, self.layout = OPERATIONS[operation], activation, layout
        y_shape = np.broadcast_shapes(*shapes)
        self._shapes = [_laid(layout, shape) for shape in shapes]
        self._y_shape = _laid(layout, y_shape)
        self._turned = self._shapes[0] != self._y_shape  # a is the one that is broadcast
        whole, *other = self._shapes[::-1] if self._turned else self._shapes
        if whole != self._y_shape or any(len(shape) != len(whole) for shape in self._shapes):
            raise Unsupported(f"none of the arrays {shapes} has the shape of their sum, {y_shape}")
        if layout in BLOCKS and any(shape[1] != y_shape[1] for shape in shapes):
            raise Unsupported(f"one channel of {shapes} is not broadcast over the others in {layout}")
        self._cast: Broadcast | None = None
        if self._turned:
            if self._operation not in TURNED:
                raise Unsupported(f"{shapes[0]} is broadcast over what it is to {operation} by")
            self._operation = TURNED[self._operation]
        if other and (other[0] != whole or self._operation != ADD):
            self._cast = broadcast_of(whole[1:], other[0][1:])

    def on_maps(self, a: Shape, *other: Shape) -> Self | None:
        """The same step of arrays of these logical shapes; None where they may be broadcast otherwise."""
        if self._turned or len(other) != len(self._shapes) - 1:
            return None
        cast = None
        laid = _laid(self.layout, a)
        made: Self = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__)
        made._shapes, made._y_shape = [laid], laid
        if other:
            (b,) = other
            if len(b) != len(a) or b[1:2] != a[1:2]:
                return None
            made._shapes.append(b_laid := _laid(self.layout, b))
            if b_laid != laid or self._operation != ADD:
                with suppress(Unsupported):
                    cast = broadcast_of(laid[1:], b_laid[1:])
                if cast is None or b[:1] not in ((1,), a[:1]):
                    return None
        made._cast = cast
        return made

    def bind(self, *arrays: np.ndarray) -> BoundRun:
        *inputs, y = [array if array.ndim else array.reshape(1) for array in arrays]
        for name, array, shape in zip("ab", inputs, self._shapes, strict=False):
            check_bound(name, array, shape, FLOAT, strided=True)
        check_bound("y", y, self._y_shape, FLOAT, strided=True, written=True)
        a, *other = inputs[::-1] if self._turned else inputs
        b = other[0] if other else None
        if self._cast is None:
            made = ArrayPass(a, b, y, self._activation)
            return passed(made)
        run = combined_run(self._operation, self._activation, (a, b, y), self._cast)
        return run._replace(x_places=()) if self._turned else run  # whose first input is not a

    def bound_at(self, x: Sequence[int], y: int) -> BoundRun | None:
        if self._turned:
            return None
        b = x[1] if len(x) > 1 else 0
        if self._cast is None:
            return _passed_at((x[0], b, y), math.prod(self._y_shape), self._activation)
        sizes = [math.prod(shape) for shape in (*self._shapes, self._y_shape)]
        whole = self._y_shape[0]
        steps = [size // max(1, whole) for size in sizes]
        if self._shapes[-1][0] < whole:
            steps[1] = 0
        return _combined_at(self._operation, self._activation, (x[0], b, y), steps, self._cast, whole)


def _laid(layout: str, shape: Shape) -> Shape:
    """The shape of an array in a layout; that of one element has a dimension, too."""
    return array_shape(layout, shape) or (1,)


class ConstantOperandPlan(BoundStep):
    """An elementwise step whose b is constant.

    Args:
        plan: of both.
        b: in its layout.
    """

    told = True

    def __init__(self, plan: BoundStep, b: np.ndarray):
        self._plan, self._b = plan, b
        self.by_address = plan.by_address

    def on_map(self, shape: Shape) -> ConstantOperandPlan | None:
        """The same step of a map of this logical shape; None where the constant has other numbers than one
        for each channel."""
        if not isinstance(self._plan, ElementwisePlan) or len(shape) < 2:
            return None
        of_channels = (1, shape[1], *(1,) * len(shape[2:]))
        if self._b.shape != array_shape(self._plan.layout, of_channels):
            return None
        plan = self._plan.on_maps(shape, of_channels)
        return None if plan is None else ConstantOperandPlan(plan, self._b)

    def bind(self, *arrays: np.ndarray) -> BoundRun:
        a, y = arrays
        return self._plan.bind(a, self._b, y)

    def bound_at(self, x: Sequence[int], y: int) -> BoundRun | None:
        return self._plan.bound_at((x[0], jit.data_address()(self._b)), y)


class ConcatenationPlan(BoundStep):
    """Maps side by side along the channels; those that lie in their places in y already are not copied.

    Args:
        shapes: logical, of the inputs.
        layout: of all; in blocks, all but the last input have whole blocks.
    """

    told = by_address = True

    def __init__(self, shapes: Sequence[Shape], layout: str):
        self._shapes = [array_shape(layout, shape) for shape in shapes]
        self._axis = -1 if layout == "channels_last" else 1
        channels = [shape[1] for shape in shapes]
        if any(count % BLOCKS.get(layout, 1) for count in channels[:-1]):
            raise Unsupported(f"inputs of {channels} channels do not fill whole blocks of {layout}")
        first, axis = self._shapes[0], self._axis % len(self._shapes[0])
        together = sum(shape[axis] for shape in self._shapes)
        self._y_shape = (*first[:axis], together, *first[axis + 1 :])

    def bind(self, *arrays: np.ndarray) -> BoundRun:
        *inputs, y = arrays
        check_bound("y", y, self._y_shape, FLOAT, strided=True, written=True)
        ends = np.cumsum([shape[self._axis] for shape in self._shapes])[:-1]
        runs = [
            self._copied(f"input {i}", x, shape, part)
            for i, (x, shape, part) in enumerate(
                zip(inputs, self._shapes, np.split(y, ends, self._axis), strict=True)
            )
            if x.size and x.ctypes.data != part.ctypes.data
        ]
        words = [place.word for run in runs for place in run.y_places]
        return jit.bound_run(
            tuple(launch for run in runs for launch in run.launches or ()), runs, y,
            y_places=address_words(y, words),
        )  # fmt: skip

    def bound_at(self, x: Sequence[int], y: int) -> BoundRun | None:
        if self._axis != 1 or self._y_shape[0] != 1:
            return None
        runs: list[BoundRun] = []
        words: list[AddressWord] = []
        begin = y
        for at, shape in zip(x, self._shapes, strict=True):
            count = math.prod(shape)
            if at != begin:
                run = _passed_at((at, 0, begin), count, None)
                runs.append(run)
                words += [AddressWord(place.word, begin - y) for place in run.y_places]
            begin += count * FLOAT.itemsize
        launches = tuple([launch for run in runs for launch in run.launches or ()])
        return jit.bound_run(launches, runs, y_places=tuple(words))

    def _copied(self, name: str, x: np.ndarray, shape: Shape, y: np.ndarray) -> BoundRun:
        check_bound(name, x, shape, FLOAT, strided=self._axis == 1)
        if self._axis == 1:
            return passed(ArrayPass(x, None, y, None))
        pixels = y.reshape(math.prod(shape[:-1]), shape[-1])
        if y.size and not np.may_share_memory(pixels, y):
            raise Unsupported(f"y has strides {y.strides}, but its pixels must lie evenly")
        values = {
            "operation": COPY, "images": 1, "groups": 1, "rows": len(pixels), "count": shape[-1],
            "a_row": shape[-1], "y_row": image_step(pixels),
        }  # fmt: skip
        where = x.ctypes.data, x.ctypes.data, y.ctypes.data
        return _bound_rows(where, y.size, values, activation_numbers(FLOAT, None), x, y)


class UpsamplingPlan(BoundStep):
    """Each element of x repeated by a whole factor along each spatial dimension (nearest neighbour).

    Args:
        shape: logical, of x.
        factors: along each spatial dimension.
        layout: of x and y.
    """

    told = by_address = True

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

    def bind(self, *arrays: np.ndarray) -> BoundRun:
        x, y = arrays
        check_bound("x", x, self._x_shape, FLOAT, strided=True)
        check_bound("y", y, self._y_shape, FLOAT, strided=True, written=True)
        return self._on(x.ctypes.data, y.ctypes.data, image_step(x), image_step(y), x, y)

    def bound_at(self, x: Sequence[int], y: int) -> BoundRun:
        planes = self._values["planes"]
        return self._on(x[0], y, planes * self._values["x_plane"], planes * self._values["y_plane"])

    def _on(self, x: int, y: int, x_n: int, y_n: int, *kept: np.ndarray) -> BoundRun:
        count = math.prod(self._y_shape)
        images = self._x_shape[0] if count else 0
        values = self._values | {"x": x, "y": y, "x_n": x_n, "y_n": y_n, "images": images}
        kernel = upsample_share(FLOAT.itemsize, simd.lanes(FLOAT.itemsize))
        return launched(kernel, UPSAMPLE_FIELDS, values, count, *kept, told=("x", "y"))


def combined_run(
    operation: int, activation: Activation | None, arrays: tuple[Any, Any, np.ndarray], cast: Broadcast
) -> BoundRun:
    """y = activation(a, b combined), of images; a and b may be one image for all."""
    a, b, y = arrays
    steps = [0 if len(of) < len(y) else image_step(of) for of in arrays]
    where = a.ctypes.data, b.ctypes.data, y.ctypes.data
    return _combined_at(operation, activation, where, steps, cast, len(y), a, b, y)


def _combined_at(
    operation: int, activation: Activation | None, where: tuple[int, int, int], steps: Sequence[int],
    cast: Broadcast, images: int, *kept: Any,
) -> BoundRun:  # fmt: skip
    """The same of arrays at these addresses, with so many elements from one image of each to the next."""
    groups, rows, count, b_group, by_element = cast
    (a_n, b_n, y_n), a_row, y_row = steps, count, count
    if groups * rows == 1 and not b_n:  # vectors that read the same: short ones cost more as images
        images, rows, a_row, y_row = 1, images, a_n, y_n
    image = rows * count
    values = {
        "operation": operation, "by_element": by_element, "images": images, "groups": groups, "rows": rows,
        "count": count, "a_n": a_n, "a_g": image, "a_row": a_row, "b_n": b_n, "b_g": b_group, "y_n": y_n,
        "y_g": image, "y_row": y_row,
        "finish": 0 if activation is None else finish_address(FLOAT, activation),
    }  # fmt: skip
    return _bound_rows(where, images * groups * image, values, activation_numbers(FLOAT, activation), *kept)


def _bound_rows(
    where: tuple[int, int, int], size: int, values: dict[str, int], numbers: np.ndarray, *kept: Any
) -> BoundRun:
    count = max(1, min(values["count"], CHUNK))
    a, b, y = where
    values = values | {
        "a": a, "b": b, "y": y, "numbers": jit.data_address()(numbers), "chunk": count,
        "row_chunk": max(1, CHUNK // count),
    }  # fmt: skip
    kernel = combine_share(FLOAT.itemsize, simd.lanes(FLOAT.itemsize))
    return launched(kernel, COMBINE_FIELDS, values, size, *kept, numbers, told=("a", "y"))


def _passed_at(where: tuple[int, int, int], count: int, activation: Activation | None) -> BoundRun:
    """`passed` of so many contiguous elements at the addresses of source, what is added or 0, and target."""
    source, added, target = where
    numbers = activation_numbers(FLOAT, activation)
    values = {
        "finish": finish_address(FLOAT, activation), "images": 1 if count else 0, "count": count,
        "size": FLOAT.itemsize, "numbers": jit.data_address()(numbers), "source": source,
        "source_n": count, "added": added, "added_n": count, "target": target, "target_n": count,
    }  # fmt: skip
    return launched(finish_share(), PASS_FIELDS, values, count, numbers, told=("source", "target"))


def passed(made: ArrayPass) -> BoundRun:
    """A run of a pass over whole arrays."""
    x_place, y_place = ((AddressWord(word, 0),) for word in made.target_words)
    return jit.bound_run((made.launch,), made, x_places=x_place, y_places=y_place)
