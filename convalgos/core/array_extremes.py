"""Where along an axis of an array the largest and the least elements lie."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.core.array_operands import Operand, WholeArrays, counted_axis, without_axes

ROW = 256  # pixels, from which on maps are gone through by rows
PIXELS = 1 << 14  # between which places are looked for at a time: in the second cache
LONG, PARTS = 1 << 12, 16  # elements of a row, and of a part of it, of which few may be sought
MANY = 1 << 16  # elements along an axis, from which on their numbers are not small ones


def _extreme(y: np.ndarray, x: np.ndarray, of: str, axis: int, keepdims: bool, last: bool) -> None:
    """Where along an axis the largest or least element is: the first of those that are equal, or the last."""
    axis = counted_axis(axis, x.ndim)
    count, behind = x.shape[axis], math.prod(x.shape[axis + 1 :])
    if behind >= ROW and 0 < count < MANY and x.flags.c_contiguous and y.flags.c_contiguous:
        maps = x.reshape(-1, count, behind)
        for to, part in zip(y.reshape(-1, behind), maps, strict=True):
            for begin in range(0, behind, PIXELS):
                to[begin : begin + PIXELS] = _extreme_of_maps(part[:, begin : begin + PIXELS], of, last)
        return
    y[...] = _extreme_of_rows(x, of, axis, keepdims, last)


def _extreme_of_rows(x: np.ndarray, of: str, axis: int, keepdims: bool, last: bool) -> np.ndarray:
    find: Any = np.argmax if of == "max" else np.argmin
    if not last:
        return np.asarray(find(x, axis, keepdims=keepdims))
    turned = x[(slice(None),) * axis + (slice(None, None, -1),)]
    return np.asarray(x.shape[axis] - 1 - find(turned, axis, keepdims=keepdims))


def _extreme_of_maps(x: np.ndarray, of: str, last: bool) -> np.ndarray:
    """Of each pixel (pixels,) of maps (C, pixels): by runs of pixels, where `numpy.argmax` goes by pixels."""
    count = len(x)
    extreme = x.max(0) if of == "max" else x.min(0)
    if np.isnan(extreme).any():  # which equals nothing
        return _extreme_of_rows(x, of, 0, False, last)
    number = np.uint8 if count < 1 << 8 else np.uint16
    best, found = np.ones(extreme.shape, number), np.empty(extreme.shape, number)
    equal = np.empty(extreme.shape, bool)
    for c, row in enumerate(x):  # of equal ones that counts which has the larger number
        np.equal(row, extreme, out=equal)
        np.multiply(equal.view(np.uint8), number(c + 1 if last else count - c), out=found)
        np.maximum(best, found, out=best)
    return best.astype(np.int64) - 1 if last else count - best.astype(np.int64)


def _extreme_shape(x: Operand, of: str, axis: int, keepdims: bool, last: bool) -> Shape:
    return without_axes(x.shape, [axis], keepdims)


def _top(y: np.ndarray, x: np.ndarray, k: np.ndarray, axis: int, largest: bool) -> None:
    """Places of the k largest, or least, elements along an axis, in order; the first of equal ones first."""
    count, size = y.shape[axis], x.shape[axis]
    if not y.size:
        return
    rows, to = np.moveaxis(x, axis, -1).reshape(-1, size), np.moveaxis(y, axis, -1)
    if size < LONG or PARTS * count > size:
        to[...] = _places_in_order(rows, count, largest).reshape(to.shape)
        return
    for at, row in zip(np.ndindex(to.shape[:-1]), rows, strict=True):
        some = _reaching(row, count, largest)
        to[at] = some[_places_in_order(row[None, some], count, largest)[0]]


def _reaching(row: np.ndarray, k: int, largest: bool) -> np.ndarray:
    """Places of what may be among the k largest, or least: extremes of PARTS elements each are a bound."""
    parts = row[: len(row) // PARTS * PARTS].reshape(PARTS, -1)
    extremes = parts.max(0) if largest else parts.min(0)
    place = len(extremes) - k if largest else k - 1
    bound = np.partition(extremes, place)[place]
    found = np.flatnonzero(row >= bound if largest else row <= bound)
    return found if len(found) >= k else np.arange(len(row))  # of what has NaN


def _places_in_order(rows: np.ndarray, k: int, largest: bool) -> np.ndarray:
    """Places (rows, k) of the k largest, or least, of each row."""
    size = rows.shape[1]
    among = _among_top(rows, k, largest) if k < size else None
    if among is None:  # all
        among = np.broadcast_to(np.arange(size), rows.shape)
    values = np.take_along_axis(rows, among, 1)
    if largest:  # from the last on, so that the first of equal ones comes first when it is turned
        order = values.shape[1] - 1 - np.argsort(values[:, ::-1], 1, kind="stable")[:, ::-1]
    else:
        order = np.argsort(values, 1, kind="stable")
    return np.asarray(np.take_along_axis(among, order[:, :k], 1))


def _among_top(rows: np.ndarray, k: int, largest: bool) -> np.ndarray | None:
    """Places (rows, k) of the k largest, or least, of each row, as they stand there; None of what has NaN."""
    place = rows.shape[1] - k if largest else k - 1
    bound = np.partition(rows, place, 1)[:, place, None]
    among = rows >= bound if largest else rows <= bound
    if np.count_nonzero(among) > k * len(rows):  # of those that equal the last the first ones
        beyond, last = (rows > bound if largest else rows < bound), rows == bound
        among = beyond | (last & (np.cumsum(last, 1) <= k - beyond.sum(1, keepdims=True)))
    if np.count_nonzero(among) != k * len(rows):
        return None
    return np.nonzero(among)[1].reshape(-1, k)


def _top_shape(x: Operand, k: Operand, axis: int, largest: bool) -> Shape:
    (count,) = k.numbers()
    at = counted_axis(axis, len(x.shape))
    if not 0 <= count <= x.shape[at]:
        raise ValueError(f"k={count} of {x.shape[at]} elements are asked for")
    return (*x.shape[:at], count, *x.shape[at + 1 :])


EXTREMES: dict[str, WholeArrays] = {
    "place_of_extreme": WholeArrays(_extreme, _extreme_shape),
    "places_of_top": WholeArrays(_top, _top_shape, planned=(1,)),
}
