"""Where along an axis of an array the largest and the least elements lie."""

from __future__ import annotations

from typing import Any

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.core.array_operands import Operand, WholeArrays, counted_axis, without_axes

ROW = 256  # pixels, from which on maps are gone through by rows
PIXELS = 1 << 14  # between which places are looked for at a time: in the second cache
PARTS = 16  # elements of which one may be among the k largest, where k are sought among many
MANY = 1 << 16  # elements along an axis, from which on their numbers are not small ones


def _extreme(y: np.ndarray, x: np.ndarray, of: str, axis: int, keepdims: bool, last: bool) -> None:
    """Where along an axis the largest or least element is: the first of those that are equal, or the last."""
    axis = counted_axis(axis, x.ndim)
    count, behind = x.shape[axis], int(np.prod(x.shape[axis + 1 :], initial=1))
    if behind >= ROW and 0 < count < MANY and x.flags.c_contiguous and y.flags.c_contiguous:
        maps = x.reshape(-1, count, behind)
        for to, part in zip(y.reshape(-1, behind), maps, strict=True):
            for begin in range(0, behind, PIXELS):
                to[begin : begin + PIXELS] = _extreme_of_maps(part[:, begin : begin + PIXELS], of, last)
        return
    find: Any = np.argmax if of == "max" else np.argmin
    if last:
        turned = x[(slice(None),) * axis + (slice(None, None, -1),)]
        y[...] = count - 1 - find(turned, axis, keepdims=keepdims)
    else:
        y[...] = find(x, axis, keepdims=keepdims)


def _extreme_of_maps(x: np.ndarray, of: str, last: bool) -> np.ndarray:
    """Of each pixel (pixels,) of maps (C, pixels): by runs of pixels, where `numpy.argmax` goes by pixels."""
    count = len(x)
    extreme = x.max(0) if of == "max" else x.min(0)
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
    rows = np.moveaxis(x, axis, -1)
    to = np.moveaxis(y, axis, -1)
    count = to.shape[-1]
    for at in np.ndindex(rows.shape[:-1]):
        to[at] = _top_of_row(rows[at], count, largest)


def _top_of_row(row: np.ndarray, k: int, largest: bool) -> np.ndarray:
    places = np.arange(len(row))
    if k > 0 and PARTS * k <= len(row):  # what may be among them, without a sort of all
        bound = _bound(row[: len(row) // PARTS * PARTS].reshape(PARTS, -1), k, largest)
        places = np.flatnonzero(row >= bound if largest else row <= bound)
    if largest:  # from the last on, so that the first of equal ones comes first when it is turned
        order = np.argsort(row[places][::-1], kind="stable")[::-1]
        return np.asarray(places[::-1][order[:k]])
    return np.asarray(places[np.argsort(row[places], kind="stable")[:k]])


def _bound(parts: np.ndarray, k: int, largest: bool) -> Any:
    """A number that at least k elements reach: of the extremes of some elements each, the kth."""
    if largest:
        extremes = parts.max(0)
        return np.partition(extremes, len(extremes) - k)[len(extremes) - k]
    return np.partition(parts.min(0), k - 1)[k - 1]


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
