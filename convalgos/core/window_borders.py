"""Tables of what windows along an axis see beyond its ends, found in little time for axes of new sizes.

What lies beyond the ends are elements near to these: one table serves all axes but the shortest.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from convalgos.core.axis_windows import AxisWindow

Array = np.ndarray[Any, Any]


@lru_cache(512)
def border_elements(window: AxisWindow, size: int) -> Array:
    """(taps,) int64: the elements that lie before the first one of an axis, and then behind the last one, or
    OUTSIDE; then 0. The window's own size is not read."""
    near = 2 * window.taps  # at a border nothing depends on the elements farther away
    first, grows = _ends(window.boundary, window.taps, window.low, min(size, near), size <= near)
    if grows is None:
        return first
    found: Array = first + size * grows
    found.setflags(write=False)
    return found


@lru_cache(1024)
def _ends(boundary: str, taps: int, low: int, near: int, is_whole: bool) -> tuple[Array, Array | None]:
    """`border_elements` of an axis of `near` elements, and None; or unless `is_whole` of an axis of any more,
    as the sum of the first table and the size times the second."""
    at = AxisWindow(near, taps, low, boundary).sources
    at = np.concatenate([at[:low], at[low + near :], [0]])  # (low + high + 1,)
    at.setflags(write=False)
    if is_whole:
        return at, None
    from_end = 2 * at >= near
    if not from_end.any():
        return at, None
    return np.where(from_end, at - near, at), from_end.astype(np.int64)


@lru_cache(512)
def sources_along(window: AxisWindow, behind: int = 0) -> Array:
    """`window.sources`, and so many zeros more; kept, as axes of a size come again before shapes do."""
    size, low = window.size, window.low
    if not is_around(window):
        table = np.append(window.sources, np.zeros(behind, np.int64))
    else:
        ends = border_elements(window, size)
        table = np.concatenate((ends[:low], np.arange(size), ends[low:-1], np.zeros(behind, np.int64)))
    table.setflags(write=False)
    return table


def is_around(window: AxisWindow) -> bool:
    """Whether there is a window around each element, that the element is in."""
    return window.windows is None and 0 <= window.low < window.taps and window.size > 0


def filling(fill: float, dtype: np.dtype, count: int) -> Array:
    """So many elements of one value, or some more."""
    return _filling(fill, dtype, count.bit_length())


@lru_cache(64)
def _filling(fill: float, dtype: np.dtype, bits: int) -> Array:
    return np.full(1 << bits, fill, dtype)
