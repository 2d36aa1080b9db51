"""Tables of what windows along an axis see beyond its ends, found in little time for axes of new sizes.

What lies beyond the ends are elements near to these: one table serves all axes but the shortest.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from convalgos.core.axis_windows import AxisWindow

Array = np.ndarray[Any, Any]


def border_sources(window: AxisWindow, size: int) -> Array:
    """(taps,) int64: what lies before the first element of an axis, and then behind the last one; then 0.

    An element, OUTSIDE, or -2 for the last element, -3 for that before it, and so on.
    """
    near = 2 * window.taps  # at a border nothing depends on the elements farther away
    return _ends(window.boundary, window.taps, window.low, min(size, near), size <= near)[0]


def border_elements(window: AxisWindow, size: int) -> Array:
    """The same with all elements counted from the first one."""
    near = 2 * window.taps
    _, first, grows = _ends(window.boundary, window.taps, window.low, min(size, near), size <= near)
    return first + size * grows


@lru_cache(1024)
def _ends(boundary: str, taps: int, low: int, near: int, is_whole: bool) -> tuple[Array, Array, Array]:
    """(`border_sources`, and `border_elements` as sums of the first and sizes times the second) of an axis of
    `near` elements; or of any with more, unless `is_whole`."""
    at = AxisWindow(near, taps, low, boundary).sources
    at = np.concatenate([at[:low], at[low + near :], [0]])  # (low + high + 1,)
    from_end = 2 * at >= near if not is_whole else np.zeros(len(at), bool)
    codes, first = np.where(from_end, at - near - 1, at), np.where(from_end, at - near, at)
    tables = codes, first, from_end.astype(np.int64)
    for table in tables:
        table.setflags(write=False)
    return tables


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
