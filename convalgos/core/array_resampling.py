"""Functions of whole arrays that read between their elements: arrays in another size, and at given places."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.core.array_operands import Operand, WholeArrays, counted_axis
from convalgos.core.moves import scaled_size

KEYS = (-1, 0, 1, 2)  # taps of cubic interpolation, from the one before a place on
ROUNDED: dict[str, Callable[[np.ndarray], Any]] = {  # how a place becomes that of the nearest element
    "round_prefer_floor": lambda x: np.ceil(x - np.float32(0.5)),
    "round_prefer_ceil": lambda x: np.floor(x + np.float32(0.5)),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _places(coordinates: str, before: int, after: int, scale: float) -> np.ndarray:
    """Where on a dimension of x those of y lie, in float32, by which the nearest ones are found."""
    i, one, half = np.arange(after, dtype=np.float32), np.float32(1), np.float32(0.5)
    by = np.float32(scale)
    if coordinates == "align_corners":
        return i * np.float32(before - 1) / np.float32(max(1, after - 1))
    if coordinates == "asymmetric":
        return i / by
    found = (i + half) / by - half
    if coordinates == "pytorch_half_pixel" and after == 1:
        return np.zeros(1, np.float32)
    if coordinates == "half_pixel_symmetric":
        found += np.float32(before) * half * (one - np.float32(after) / (by * np.float32(before)))
    return found


def _cubic(distance: np.ndarray, a: float) -> np.ndarray:
    """The weight of an element at a distance, by Keys."""
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


@lru_cache(64)
def _taps(
    mode: str, coordinates: str, rounded: str, a: float, outside: bool, before: int, after: int, scale: float
) -> tuple[np.ndarray, np.ndarray]:
    """(the elements that each place of y is made of, their weights), both (taps, after)."""
    where = _places(coordinates, before, after, scale)
    if mode == "nearest":
        found = ROUNDED[rounded](where)[None]
        return np.clip(found, 0, before - 1).astype(np.int64), np.ones((1, after), np.float32)
    if mode == "linear":
        where = np.clip(where, 0, before - 1)
    first, steps = np.floor(where).astype(np.int64), np.array(KEYS if mode == "cubic" else (0, 1))
    places = first + steps[:, None]
    if mode == "linear":
        share = where - first
        weights = np.stack([1 - share, share])
    else:
        weights = _cubic(where.astype(np.float64) - places, a)
        if outside:
            weights *= (places >= 0) & (places < before)
            weights /= weights.sum(0)
    return np.clip(places, 0, before - 1), weights.astype(np.float32)


def repeats(coordinates: str, rounded: str, before: int, after: int) -> bool:
    """Whether the nearest elements are each of x a whole number of times."""
    if after % before:
        return False
    places, _ = _taps("nearest", coordinates, rounded, 0.0, False, before, after, after / before)
    return np.array_equal(places[0], np.arange(after) // (after // before))


def resize_axes(
    shape: Shape, scales: np.ndarray, sizes: np.ndarray, axes: tuple[int, ...]
) -> list[tuple[int, int, float]]:
    """(axis, size of y, scale) of those that are resized, by scales, or to sizes where these are given."""
    places = [counted_axis(axis, len(shape)) for axis in axes] or [*range(len(shape))]
    scales, sizes = scales.reshape(-1), sizes.reshape(-1)
    if sizes.size:
        return [(i, int(n), float(n) / max(1, shape[i])) for i, n in zip(places, sizes, strict=True)]
    return [(i, scaled_size(shape[i], s), s) for i, s in zip(places, map(float, scales), strict=True)]


def _resize(
    y: np.ndarray, x: np.ndarray, scales: np.ndarray, sizes: np.ndarray, mode: str, coordinates: str,
    rounded: str, a: float, outside: bool, axes: tuple[int, ...],
) -> None:  # fmt: skip
    given = resize_axes(x.shape, scales, sizes, axes)
    for axis, after, scale in sorted(given, key=lambda g: g[1] / max(1, x.shape[g[0]])):  # what shrinks first
        if after != x.shape[axis] or scale != 1:
            tables = _taps(mode, coordinates, rounded, a, outside, x.shape[axis], after, scale)
            x = _resized_along(x, axis, *tables)
    y[...] = x


def _resized_along(x: np.ndarray, axis: int, places: np.ndarray, weights: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.take(x, places[0], axis)
    if len(places) == 1:
        return found
    shape = (-1,) + (1,) * (x.ndim - 1 - axis)
    found = found * weights[0].astype(x.dtype).reshape(shape)
    for place, weight in zip(places[1:], weights[1:], strict=True):
        part = np.take(x, place, axis)
        part *= weight.astype(x.dtype).reshape(shape)
        found += part
    return found


def _resized_shape(
    x: Operand, scales: Operand, sizes: Operand, mode: str, coordinates: str, rounded: str, a: float,
    outside: bool, axes: tuple[int, ...],
) -> Shape:  # fmt: skip
    if scales.value is None or sizes.value is None:
        raise ValueError("the sizes of a resize depend on what is computed: only a run knows them")
    shape = list(x.shape)
    for axis, after, _ in resize_axes(x.shape, scales.value, sizes.value, axes):
        shape[axis] = after
    return tuple(shape)


# --- at given places -------------------------------------------------------------------------------


def _reflected(where: np.ndarray, size: int, corners: bool) -> np.ndarray:
    """Places behind a border as what they are in a mirror there."""
    low, high = (0.0, size - 1.0) if corners else (-0.5, size - 0.5)
    span = high - low
    if span <= 0:
        return np.zeros_like(where)
    turns, rest = np.divmod(np.abs(where - np.float32(low)), np.float32(span))
    return np.where(turns % 2 == 0, low + rest, high - rest).astype(where.dtype)


def _grid_sample(
    y: np.ndarray, x: np.ndarray, grid: np.ndarray, mode: str, padding: str, corners: bool
) -> None:
    """x (N, C, *spatial) at places (N, *y_spatial, dimensions) from -1 to 1, of which the last dimension of x
    comes first. Around x stand zeros, so that all places have elements around them."""
    x, grid = np.asarray(x), np.asarray(grid)  # as views of a memory map small parts take twice as long
    pixels = np.zeros((*x.shape[:2], *(n + 2 for n in x.shape[2:])), x.dtype)
    inside: Any = (..., *[slice(1, -1)] * (x.ndim - 2))
    pixels[inside] = x
    for n, to in enumerate(y.reshape(*y.shape[:2], -1)):
        flat: Any = 0  # where the first of the elements around each place lies
        shares = []
        for size, part in zip(x.shape[2:], np.moveaxis(grid[n], -1, 0)[::-1], strict=True):
            where = _place_of(part.reshape(-1), size, mode, padding, corners)
            first = np.minimum(np.floor(where), size - 1) if mode == "linear" else where
            shares.append(where - first)
            flat = flat * (size + 2) + first.astype(np.int64) + 1
        _sample_image(to, pixels[n], flat, shares if mode == "linear" else [])


def _place_of(place: np.ndarray, size: int, mode: str, padding: str, corners: bool) -> np.ndarray:
    """Of numbers from -1 to 1 along a dimension: where they lie in it, or next to it."""
    scale, middle = np.float32((size - 1 if corners else size) / 2), np.float32((size - 1) / 2)
    where = place * scale + middle
    if mode == "nearest":
        where = np.rint(where)
    if padding == "reflection":
        where = _reflected(where, size, corners)
    low, high = (-1, size) if padding == "zeros" else (0, size - 1)
    return np.asarray(np.clip(where, low, high))


def _sample_image(y: np.ndarray, pixels: np.ndarray, flat: np.ndarray, shares: list[np.ndarray]) -> None:
    """y (C, places), of pixels (C, *spatial): those at places, or between them and the ones behind."""
    spatial, elements = pixels.shape[1:], pixels.reshape(len(pixels), -1)
    steps = [int(np.prod(spatial[i + 1 :])) for i in range(len(spatial))]
    np.take(elements, flat, 1, out=y, mode="clip")
    if not shares:
        return
    part = np.empty_like(y)
    for corner in product(*((0, 1) for _ in spatial)):
        weight: Any = 1
        for share, behind in zip(shares, corner, strict=True):
            weight = weight * (share if behind else 1 - share)
        if not any(corner):
            y *= weight
            continue
        at = flat + sum(step for step, behind in zip(steps, corner, strict=True) if behind)
        np.take(elements, at, 1, out=part, mode="clip")
        part *= weight
        y += part


def _sampled_shape(x: Operand, grid: Operand, mode: str, padding: str, corners: bool) -> Shape:
    if grid.shape[-1] != len(x.shape) - 2:
        raise ValueError(f"places of {grid.shape[-1]} numbers are none in an array of shape {x.shape}")
    return (*x.shape[:2], *grid.shape[1:-1])


RESAMPLING: dict[str, WholeArrays] = {
    "resize": WholeArrays(_resize, _resized_shape),
    "grid_sample": WholeArrays(_grid_sample, _sampled_shape),
}
