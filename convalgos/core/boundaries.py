"""Borders: what lies beyond the edges of a map, where padding makes outputs see it.

The names are those of `numpy.pad`. Of a row a b c d:

    zero       0 0 0 | a b c d | 0 0 0
    constant   f f f | a b c d | f f f      with f the fill value
    edge       a a a | a b c d | d d d
    reflect    d c b | a b c d | c b a
    symmetric  c b a | a b c d | d c b
    wrap       b c d | a b c d | a b c

All but the first two are tables: each element of padding is a copy of one element of the map, which
`source_indices` names, also where the padding is longer than the map.
"""

from __future__ import annotations

from functools import lru_cache
from numbers import Real
from typing import Any, Final

import numpy as np

from convalgos.core import arguments
from convalgos.core.arguments import Pads, Shape
from convalgos.core.element_types import INTEGERS

ZERO: Final = "zero"
BOUNDARIES = (ZERO, "constant", "edge", "reflect", "symmetric", "wrap")
COPIES = BOUNDARIES[2:]  # of elements of the map
OUTSIDE = -1  # in the place of an index: no element of the map lies there


def checked_border(boundary: Any, fill_value: Any, spatial: Shape, padding: Pads) -> dict[str, Any]:
    """The boundary of each dimension of a problem, and its fill value, from its arguments.

    A dimension without padding has a "zero" boundary, and so has one that is filled with 0: what is computed
    alike is one problem.

    Raises:
        ValueError: names the argument, its value and what would be valid.
    """
    ndim = len(spatial)
    names = (boundary,) * ndim
    if arguments.is_sequence(boundary):
        names = tuple(boundary)
    if len(names) != ndim:
        raise ValueError(f"boundary={arguments.shown(boundary)} must be one name or {ndim} of them")
    for name in names:
        arguments.one_of("boundary", name, BOUNDARIES)
    fill = checked_fill(fill_value)
    kept = []
    for name, size, pads in zip(names, spatial, padding, strict=True):
        if name in COPIES and not size and pads != (0, 0):
            raise ValueError(f"boundary={name!r} has nothing to copy from a dimension of size 0")
        plain = pads == (0, 0) or (name == "constant" and fill == 0)
        if name == "constant" and not size and not plain:
            raise ValueError(f"fill_value={fill:g}: a dimension of size 0 is padded with zeros only")
        kept.append(ZERO if plain else name)
    return {"boundary": tuple(kept), "fill_value": fill if "constant" in kept else 0.0}


def checked_fill(fill_value: Any) -> float:
    """A fill value as a number.

    Raises:
        ValueError: it is none.
    """
    if isinstance(fill_value, bool) or not isinstance(fill_value, Real):
        raise ValueError(f"fill_value={arguments.shown(fill_value)} must be a number")
    return float(fill_value)


def check_fill_of(dtype: str, fill_value: float) -> None:
    """ValueError for a fill value that is none of an integer type."""
    if dtype in INTEGERS:
        limits = np.iinfo(dtype)
        if not (fill_value.is_integer() and limits.min <= fill_value <= limits.max):
            raise ValueError(
                f"fill_value={fill_value:g} must be a whole number from {limits.min} to {limits.max}, of x's "
                f"type {dtype}"
            )


def fills_alike(problem: Any) -> bool:
    """Whether all that is no copy of the map is one value: zeros, or the fill value."""
    pads = zip(problem.boundary, problem.padding, strict=True)
    return problem.fill_value == 0 or (ZERO, True) not in {(name, pad != (0, 0)) for name, pad in pads}


@lru_cache(256)
def source_indices(boundary: str, size: int, low: int, high: int) -> np.ndarray[Any, Any]:
    """(low + size + high,) int64: the element of a map of `size` at each place of the padded one.

    `OUTSIDE` where there is none, with "zero" and "constant".
    """
    at = np.arange(-low, size + high)
    if boundary in (ZERO, "constant"):
        at[(at < 0) | (at >= size)] = OUTSIDE
    elif boundary == "edge":
        at = at.clip(0, size - 1)
    elif boundary == "wrap":
        at %= size
    else:  # there and back again: 0 1 2 3 3 2 1 0, or without the ends 0 1 2 3 2 1
        period = 2 * size if boundary == "symmetric" else max(1, 2 * size - 2)
        at %= period
        at = np.minimum(at, period - 1 - at if boundary == "symmetric" else period - at)
    at.setflags(write=False)
    return at


def padded(problem: Any, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A logical x (N, C, *spatial) with its border, as an array of its own.

    What lies beyond a "zero" edge and a "constant" one is 0.
    """
    last_zeros = sorted(range(problem.ndim), key=lambda axis: problem.boundary[axis] == ZERO)
    for axis in last_zeros:
        boundary, pads = problem.boundary[axis], problem.padding[axis]
        if boundary in COPIES:
            x = x.take(source_indices(boundary, problem.spatial[axis], *pads), axis + 2)
        else:
            around = [(0, 0)] * x.ndim
            around[axis + 2] = pads
            x = np.pad(x, around, constant_values=problem.fill_value if boundary == "constant" else 0)
    return x


def valid(problem: Any) -> Any:
    """The problem on the padded map, whose outputs are the same."""
    sizes = (size + low + high for size, (low, high) in zip(problem.spatial, problem.padding, strict=True))
    return problem.replace(x_shape=(*problem.x_shape[:2], *sizes), padding=0, boundary=ZERO, fill_value=0.0)


def folded(problem: Any, dx: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The gradient of x from that of `padded`: what went to several places is summed from all of them."""
    for axis, (size, (low, high), boundary) in enumerate(
        zip(problem.spatial, problem.padding, problem.boundary, strict=True), 2
    ):
        at = source_indices(boundary, size, low, high)
        summed = np.zeros((*dx.shape[:axis], size, *dx.shape[axis + 1 :]), dx.dtype)
        inside = at != OUTSIDE
        np.add.at(np.moveaxis(summed, axis, 0), at[inside], np.moveaxis(dx, axis, 0)[inside])
        dx = summed
    return dx
