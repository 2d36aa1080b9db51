"""Elements gathered from computed places along one dimension, in runs of those that lie side by side."""

from __future__ import annotations

import ctypes
import math
from typing import Any, NamedTuple

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.core.bound_run import BoundRun, check_bound
from convalgos.core.errors import Unsupported
from convalgos.cpu.elementwise.bound_steps import BoundStep, launched
from convalgos.cpu.elementwise.gathering_kernels import GATHER_FIELDS, gather_share

PLACES, NARROW = np.dtype(np.int64), np.dtype(np.int32)
DIMENSIONS = 4  # of runs, once those that lie as one are


class _Dimension(NamedTuple):
    """Of y: its size, and the steps of x and of the places along it, in elements."""

    size: int
    x: int
    places: int


class GatherPlan(BoundStep):
    """y = elements of x at places along an axis, which count from the end where they are negative.

    Args:
        x_shape, places_shape: their shapes.
        axis: along which places are those of x.
        y_shape: None where each place is one of all that x has behind the axis (ONNX's Gather); else x and
            places are broadcast to it, along all dimensions but the axis of x (GatherElements).
        dtype: of x.
        moving: which of them may lie elsewhere in each run, "x" or "places".

    Raises:
        Unsupported: x and places lie across each other in too many dimensions.

    Example:
        >>> x = np.arange(6, dtype="f4").reshape(3, 2)
        >>> plan = GatherPlan(x.shape, (2,), 0, None, x.dtype)
        >>> plan.run((x, np.array([2, -2])), y := np.empty((2, 2), "f4"))
        >>> y.tolist()
        [[4.0, 5.0], [2.0, 3.0]]
    """

    told = True

    def __init__(
        self, x_shape: Shape, places_shape: Shape, axis: int, y_shape: Shape | None, dtype: np.dtype,
        moving: str = "x",
    ):  # fmt: skip
        self._shapes, self._dtype, self._moving = (x_shape, places_shape), dtype, moving
        if y_shape is None:
            dimensions = _of_runs(x_shape, places_shape, axis)
        else:
            dimensions = dimensions_of_elements(x_shape, places_shape, axis, y_shape)
        self._y_shape = tuple(d.size for d in dimensions)
        run, self._values = run_values(dimensions, x_shape, axis, dtype.itemsize)
        self._values["nbytes"] = run * dtype.itemsize

    def bind(self, *arrays: np.ndarray) -> BoundRun:
        x, places, y = arrays
        seen = x if x.flags.aligned else x.view(np.uint8)  # constants of a file lie anywhere
        shape = (*self._shapes[0][:-1], self._shapes[0][-1] * (x.itemsize // seen.itemsize))
        check_bound("x", seen, shape, self._dtype if seen is x else seen.dtype, strided=False)
        check_bound("y", y, self._y_shape, self._dtype, strided=False, written=True)
        read, wrong = places_read(places, self._shapes[1]), np.zeros(1, PLACES)
        named: dict[str, Any] = {"x": x, "places": read, "y": y, "wrong": wrong}
        values = self._values | {name: array.ctypes.data for name, array in named.items()}
        values["wide"] = int(read.dtype == PLACES)
        told = (self._moving, "y")
        inner = launched(gather_share(), GATHER_FIELDS, values, y.size, *named.values(), told=told)
        return checked_run(inner, places, read, wrong)


def run_values(
    dimensions: list[_Dimension], x_shape: Shape, axis: int, itemsize: int
) -> tuple[int, dict[str, int]]:
    """Elements of a run, and the fields of records that say where runs lie."""
    run, rest = _merged(dimensions)
    if len(rest) > DIMENSIONS or 0 in (*x_shape, *(d.size for d in dimensions)):
        raise Unsupported(f"places of {x_shape} lie along too many dimensions, or there are none")
    values = {"size": x_shape[axis], "step": math.prod(x_shape[axis + 1 :]) * itemsize}
    for i, d in enumerate([_Dimension(1, 0, 0)] * (DIMENSIONS - len(rest)) + rest):
        values |= {f"d{i}": d.size, f"x{i}": d.x * itemsize, f"p{i}": d.places}
    return run, values


def places_read(places: np.ndarray, shape: Shape) -> np.ndarray:
    """The array that kernels read: the places themselves, or one that they are copied to."""
    if places.shape != shape:
        raise ValueError(f"places have shape {places.shape}, but the run takes {shape}")
    plain = places.dtype in (PLACES, NARROW) and places.flags.c_contiguous and places.flags.aligned
    return places if plain else np.empty(shape, PLACES)


def checked_run(inner: BoundRun, places: np.ndarray, read: np.ndarray, wrong: np.ndarray) -> BoundRun:
    """A run that raises IndexError where kernels have met a place that is none."""
    noted = ctypes.c_int64.from_address(wrong.ctypes.data)

    def check() -> None:
        if noted.value:
            noted.value = 0
            raise IndexError("places are out of bounds of the elements of an array")

    def run() -> None:
        if read is not places:
            np.copyto(read, places)
        inner.run()
        check()

    if read is not places:
        return BoundRun(run, None, (inner, places))
    return inner._replace(call=run, kept=(*inner.kept, wrong), check=check)


def _of_runs(x_shape: Shape, places_shape: Shape, axis: int) -> list[_Dimension]:
    before, behind = _steps(x_shape)[:axis], _steps(x_shape)[axis + 1 :]
    return [
        *(_Dimension(n, step, 0) for n, step in zip(x_shape, before, strict=False)),
        *(_Dimension(n, 0, step) for n, step in zip(places_shape, _steps(places_shape), strict=True)),
        *(_Dimension(n, step, 0) for n, step in zip(x_shape[axis + 1 :], behind, strict=True)),
    ]


def dimensions_of_elements(
    x_shape: Shape, places_shape: Shape, axis: int, y_shape: Shape
) -> list[_Dimension]:
    """Of y, where places and x, but along its axis, are broadcast to it."""
    found = []
    steps = zip(_steps(x_shape), _steps(places_shape), strict=True)
    for i, (step, of_places) in enumerate(steps):
        if x_shape[i] not in (1, y_shape[i]) and x_shape[i] < y_shape[i] and i != axis:
            raise Unsupported(f"{x_shape} has fewer elements along {i} than {y_shape}")
        along = 0 if i == axis or x_shape[i] == 1 else step
        found.append(_Dimension(y_shape[i], along, 0 if places_shape[i] == 1 else of_places))
    return found


def _steps(shape: Shape) -> list[int]:
    return [math.prod(shape[i + 1 :]) for i in range(len(shape))]


def _merged(dimensions: list[_Dimension]) -> tuple[int, list[_Dimension]]:
    """Elements that lie side by side, and the dimensions of runs of them, as few as can be."""
    rest, run = [d for d in dimensions if d.size != 1], 1
    while rest and not rest[-1].places and rest[-1].x == run:
        run *= rest.pop().size
    found: list[_Dimension] = []
    for d in reversed(rest):
        last = found[-1] if found else None
        if last and d.x == last.x * last.size and d.places == last.places * last.size:
            found[-1] = _Dimension(d.size * last.size, last.x, last.places)
        else:
            found.append(d)
    return run, found[::-1]
