"""What lies beyond the ends of lines that are summed, and where the lines lie that an axis has there.

The tables `sources` name what lies before the first element, and then what lies behind the last one: an
element, or -1 for `filling`. Records are those of `line_drivers`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors.simd import call, carray, copy_bytes, pointer


@jit.helper
def copy_pixel(target: int, source: int, count: int, size: int) -> None:
    """target[:count] = source[:count], of elements of 1, 2, 4 or 8 bytes."""
    if count > 1:
        copy_bytes(target, source, count * size)
    elif size == 1:
        carray(pointer(target), 1, np.int8)[0] = carray(pointer(source), 1, np.int8)[0]
    elif size == 2:
        carray(pointer(target), 1, np.int16)[0] = carray(pointer(source), 1, np.int16)[0]
    elif size == 4:
        carray(pointer(target), 1, np.int32)[0] = carray(pointer(source), 1, np.int32)[0]
    else:
        carray(pointer(target), 1, np.int64)[0] = carray(pointer(source), 1, np.int64)[0]


@jit.helper
def fill_borders(a: Any, line: int, x: int, first: int, pixels: int, size: int) -> None:
    """What lies before and behind some pixels of a line that begin at `line`.

    x: the whole line in memory where `line` has only a part of it, or 0.
    """
    sources = carray(pointer(a.row_sources), a.row_taps, np.int64)
    k, end = first, first + pixels + a.row_taps - 1
    while k < end:
        if a.row_low <= k < a.row_low + a.pixels:
            k = a.row_low + a.pixels  # what lies between the borders is there
        else:
            target = line + (k - a.row_low - first) * a.after * size
            source = sources[k if k < a.row_low else k - a.pixels]
            if source < 0:
                copy_pixel(target, a.filling, a.after, size)
            elif x == 0:
                copy_pixel(target, line + source * a.after * size, a.after, size)
            else:
                call(a.load, (x + source * a.after * a.x_bytes, target, a.after))
            k += 1


@jit.helper
def shift_lines(a: Any, table: int, line: int, size: int) -> None:
    """The table of a line, shifted by each tap."""
    shifted = carray(pointer(table), a.row_taps, np.int64)
    for t in range(a.row_taps):
        shifted[t] = line + (t - a.row_low) * a.after * size


@jit.helper
def border_place(place: int, size: int, low: int, taps: int, sources: int) -> int:
    """The element at a place, which may lie beyond the ends of an axis, or -1."""
    source, table = place, carray(pointer(sources), taps, np.int64)
    if place < 0:
        source = table[place + low]
    elif place >= size:
        source = table[place + low - size]
    return int(source)
