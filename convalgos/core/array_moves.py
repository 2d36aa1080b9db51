"""Functions of whole arrays that move elements: gathers, slices, pads, tiles, and what is made of sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.core.array_operands import Operand, WholeArrays, counted_axis, like_first
from convalgos.core.array_pads import padded_shape, write_padded
from convalgos.core.moves import viewed_shape

ALL = slice(None)
BUFFERED = 8192  # elements from which on a look at all places costs less than the buffer of a checked gather


def _seen(y: np.ndarray, x: np.ndarray, *others: np.ndarray, **options: Any) -> None:
    """The same elements in another shape."""
    y[...] = x.reshape(y.shape)


def _reshaped(x: Operand, target: Operand, allowzero: bool) -> Shape:
    sizes = tuple(target.numbers())
    if allowzero and 0 in sizes:
        return sizes
    return viewed_shape(x.shape, sizes)


def _squeezed(x: Operand, axes: Sequence[int] | None) -> Shape:
    rank = len(x.shape)
    gone = (
        {i for i, n in enumerate(x.shape) if n == 1}
        if axes is None
        else {counted_axis(a, rank) for a in axes}
    )
    if any(x.shape[i] != 1 for i in gone):
        raise ValueError(f"axes={axes} of {x.shape} have more than one element")
    return tuple(n for i, n in enumerate(x.shape) if i not in gone)


def _unsqueezed(x: Operand, axes: Sequence[int]) -> Shape:
    rank, rest = len(x.shape) + len(axes), iter(x.shape)
    one = {counted_axis(a, rank) for a in axes}
    return tuple(1 if i in one else next(rest) for i in range(rank))


def _flattened(x: Operand, axis: int) -> Shape:
    at = axis % len(x.shape) if axis < 0 else axis
    return (math.prod(x.shape[:at]), math.prod(x.shape[at:]))


def _expanded(y: np.ndarray, x: np.ndarray, sizes: np.ndarray) -> None:
    np.copyto(y, x)


def _expanded_shape(x: Operand, sizes: Operand) -> Shape:
    return np.broadcast_shapes(x.shape, tuple(sizes.numbers()))


def _tiled(y: np.ndarray, x: np.ndarray, repeats: np.ndarray) -> None:
    pairs = [(m // n if n else 0, n) for m, n in zip(y.shape, x.shape, strict=True)]
    parts = y.reshape([size for pair in pairs for size in pair])  # (repeats, elements) of each dimension
    parts[...] = x.reshape([size for n in x.shape for size in (1, n)])


def _tiled_shape(x: Operand, repeats: Operand) -> Shape:
    return tuple(n * m for n, m in zip(x.shape, repeats.numbers(), strict=True))


def _transposed(y: np.ndarray, x: np.ndarray, order: Sequence[int]) -> None:
    y[...] = x.transpose(order)


def _transposed_shape(x: Operand, order: Sequence[int]) -> Shape:
    return tuple(x.shape[i] for i in order)


def _concatenated(y: np.ndarray, *arrays: np.ndarray, axis: int) -> None:
    np.concatenate(arrays, axis, out=y)


def _concatenated_shape(*arrays: Operand, axis: int) -> Shape:
    first = arrays[0].shape
    at = counted_axis(axis, len(first))
    if any((*a.shape[:at], *a.shape[at + 1 :]) != (*first[:at], *first[at + 1 :]) for a in arrays):
        raise ValueError(f"{[a.shape for a in arrays]} do not go side by side along {axis}")
    return (*first[:at], sum(a.shape[at] for a in arrays), *first[at + 1 :])


# --- slices and pads -------------------------------------------------------------------------------


def _slices(shape: Shape, parts: Sequence[Sequence[int]]) -> tuple[slice, ...]:
    """Of each dimension, from begins, ends and, where they are given, axes and steps."""
    begins, ends, *more = parts
    axes = more[0] if more and len(more[0]) else range(len(begins))
    steps = more[1] if len(more) > 1 else [1] * len(begins)
    found = [ALL] * len(shape)
    for begin, end, given, step in zip(begins, ends, axes, steps, strict=True):
        axis = counted_axis(given, len(shape))
        whole = step < 0 and end < -shape[axis]
        found[axis] = slice(begin, None if whole else end, step)
    return tuple(found)


def _sliced(y: np.ndarray, x: np.ndarray, *parts: np.ndarray) -> None:
    y[...] = x[_slices(x.shape, [[int(n) for n in part.reshape(-1)] for part in parts])]


def _sliced_shape(x: Operand, *parts: Operand) -> Shape:
    slices = _slices(x.shape, [part.numbers() for part in parts])
    return tuple(len(range(n)[part]) for n, part in zip(x.shape, slices, strict=True))


# --- gathers and scatters --------------------------------------------------------------------------


def _check_places(places: np.ndarray, size: int) -> int:
    """The least place, 0 of none; IndexError where one, counted from the end if negative, is no element."""
    if not places.size:
        return 0
    least, last = int(places.min()), int(places.max())
    if not -size <= least <= last < size:
        raise IndexError(f"places from {least} to {last} are out of bounds of {size} elements")
    return least


def _gathered(y: np.ndarray, x: np.ndarray, places: np.ndarray, axis: int) -> None:
    if not places.ndim:
        at: tuple[Any, ...] = (*(slice(None),) * counted_axis(axis, x.ndim), int(places))
        y[...] = x[at]
        return
    if y.size < BUFFERED:
        x.take(places, axis, out=y)
        return
    _check_places(places, x.shape[axis])
    np.take(x, places, axis, out=y, mode="wrap")  # which writes y at once; "raise" goes through a buffer


def _gathered_shape(x: Operand, places: Operand, axis: int) -> Shape:
    at = counted_axis(axis, len(x.shape))
    return (*x.shape[:at], *places.shape, *x.shape[at + 1 :])


def _element_numbers(shape: Shape, places: np.ndarray, axis: int) -> np.ndarray:
    """Of elements that are chosen along an axis, and as they stand along others: which they are of all."""
    axis = counted_axis(axis, len(shape))
    if _check_places(places, shape[axis]) < 0:
        places = places % shape[axis]
    numbers = np.asarray(np.multiply(places, math.prod(shape[axis + 1 :]), dtype=np.int64))
    for i, n in enumerate(places.shape):
        if i != axis and n > 1:
            along = np.arange(n) * math.prod(shape[i + 1 :])
            numbers += along.reshape(n, *(1,) * (len(shape) - 1 - i))
    return numbers


def _elements_gathered(y: np.ndarray, x: np.ndarray, places: np.ndarray, axis: int) -> None:
    numbers = _element_numbers(x.shape, places, axis)
    if y.size:
        np.take(x.reshape(-1), numbers, out=y, mode="wrap")


def _expanded_gathered(
    y: np.ndarray, x: np.ndarray, places: np.ndarray, sizes: np.ndarray, axis: int
) -> None:
    """Of places that are broadcast, as x is along all dimensions but the axis."""
    axis = counted_axis(axis, x.ndim)
    _check_places(places, x.shape[axis])
    whole = tuple(
        n if i == axis or n > 1 else m for i, (n, m) in enumerate(zip(x.shape, y.shape, strict=True))
    )
    elements = np.broadcast_to(x, whole)[tuple(ALL if i == axis else slice(m) for i, m in enumerate(y.shape))]
    y[...] = np.take_along_axis(elements, np.broadcast_to(places, y.shape), axis)


def _expanded_gathered_shape(x: Operand, places: Operand, sizes: Operand, axis: int) -> Shape:
    return _expanded_shape(places, sizes)


def _like_second(x: Operand, places: Operand, **options: Any) -> Shape:
    return places.shape


def _slice_places(places: np.ndarray, batch_dims: int) -> tuple[np.ndarray, ...]:
    """Where slices lie that are chosen along the first dimensions behind those of a batch."""
    along = np.moveaxis(places, -1, 0)
    shape = along.shape[1:]
    batch = [
        n.reshape(n.shape + (1,) * (len(shape) - batch_dims))
        for n in np.ogrid[tuple(map(slice, shape[:batch_dims]))]
    ]
    return (*batch, *along)


def _slices_gathered(y: np.ndarray, x: np.ndarray, places: np.ndarray, batch_dims: int) -> None:
    y[...] = x[_slice_places(places, batch_dims)]


def _slices_gathered_shape(x: Operand, places: Operand, batch_dims: int) -> Shape:
    return (*places.shape[:-1], *x.shape[batch_dims + places.shape[-1] :])


SCATTERED: dict[str, Any] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _scatter(y: np.ndarray, where: tuple[np.ndarray, ...], updates: np.ndarray, reduction: str) -> None:
    if reduction == "none":
        y[where] = updates
    else:
        SCATTERED[reduction].at(y, where, updates)


def _elements_scattered(
    y: np.ndarray, x: np.ndarray, places: np.ndarray, updates: np.ndarray, axis: int, reduction: str
) -> None:
    to = x.flatten()  # NumPy scatters into one dimension ten times as fast as into several
    _scatter(to, (_element_numbers(x.shape, places, axis).reshape(-1),), updates.reshape(-1), reduction)
    y[...] = to.reshape(y.shape)


def _expanded_scattered(
    y: np.ndarray, x: np.ndarray, places: np.ndarray, sizes: np.ndarray, updates: np.ndarray, **options: Any
) -> None:
    """At places that are broadcast to the updates."""
    _elements_scattered(y, x, np.broadcast_to(places, updates.shape), updates, **options)


def _slices_scattered(
    y: np.ndarray, x: np.ndarray, places: np.ndarray, updates: np.ndarray, reduction: str
) -> None:
    y[...] = x
    _scatter(y, _slice_places(places, 0), updates, reduction)


def _one_hot(y: np.ndarray, places: np.ndarray, depth: np.ndarray, values: np.ndarray, axis: int) -> None:
    off, on = values
    y[...] = off
    size = int(depth.reshape(-1)[0])
    at = np.where(places < 0, places + size, places).astype(np.int64)
    rows = np.moveaxis(y, axis, -1)
    rows[at[..., None] == np.arange(size)] = on


def _one_hot_shape(places: Operand, depth: Operand, values: Operand, axis: int) -> Shape:
    at = counted_axis(axis, len(places.shape) + 1)
    return (*places.shape[:at], *depth.numbers(), *places.shape[at:])


# --- what is made of sizes -------------------------------------------------------------------------


def _shape_of(y: np.ndarray, x: np.ndarray, start: int, end: int | None) -> None:
    y[...] = x.shape[start:end]


def _shape_of_shape(x: Operand, start: int, end: int | None) -> Shape:
    return (len(x.shape[start:end]),)


def _size_of(y: np.ndarray, x: np.ndarray) -> None:
    y[...] = x.size


def _counted(y: np.ndarray, start: np.ndarray, end: np.ndarray, step: np.ndarray) -> None:
    y[...] = start.reshape(()) + np.arange(len(y)).astype(y.dtype) * step.reshape(())


def _counted_shape(start: Operand, end: Operand, step: Operand) -> Shape:
    values = [o.value for o in (start, end, step)]
    if any(v is None for v in values):
        raise ValueError("the ends of a range depend on what is computed: only a run knows them")
    first, last, by = (float(v.reshape(-1)[0]) for v in values if v is not None)
    return (max(0, math.ceil((last - first) / by)),)


def _filled(y: np.ndarray, sizes: np.ndarray, value: np.ndarray) -> None:
    y[...] = value.reshape(-1)[0]


def _filled_shape(sizes: Operand, value: Operand) -> Shape:
    return tuple(sizes.numbers())


def _number_shape(x: Operand) -> Shape:
    return ()


MOVES: dict[str, WholeArrays] = {
    "same": WholeArrays(_seen, like_first),
    "reshape": WholeArrays(_seen, _reshaped, planned=(1,)),
    "squeeze": WholeArrays(_seen, _squeezed),
    "unsqueeze": WholeArrays(_seen, _unsqueezed),
    "flatten": WholeArrays(_seen, _flattened),
    "expand": WholeArrays(_expanded, _expanded_shape, planned=(1,)),
    "tile": WholeArrays(_tiled, _tiled_shape, planned=(1,)),
    "transpose": WholeArrays(_transposed, _transposed_shape),
    "concatenate": WholeArrays(_concatenated, _concatenated_shape),
    "slice": WholeArrays(_sliced, _sliced_shape),
    "pad": WholeArrays(write_padded, padded_shape),
    "gather": WholeArrays(_gathered, _gathered_shape),
    "gather_elements": WholeArrays(_elements_gathered, _like_second),
    "gather_expanded": WholeArrays(_expanded_gathered, _expanded_gathered_shape, planned=(2,)),
    "gather_slices": WholeArrays(_slices_gathered, _slices_gathered_shape),
    "scatter_elements": WholeArrays(_elements_scattered, like_first),
    "scatter_expanded": WholeArrays(_expanded_scattered, like_first, planned=(2,)),
    "scatter_slices": WholeArrays(_slices_scattered, like_first),
    "one_hot": WholeArrays(_one_hot, _one_hot_shape),
    "shape": WholeArrays(_shape_of, _shape_of_shape, of_shapes=True),
    "size": WholeArrays(_size_of, _number_shape, of_shapes=True),
    "range": WholeArrays(_counted, _counted_shape),
    "fill": WholeArrays(_filled, _filled_shape, planned=(0,)),
}
