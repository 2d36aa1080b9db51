"""The taps that meet each row of dx, along a dimension with any stride and dilation."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from convalgos.core.problem import ConvProblem
from convalgos.cpu.runtime.plan import fields

ROW_TAPS = fields("tap row count")  # the first tap that meets a row of dx, that row of dy, and how many do


def row_taps(p: ConvProblem, axis: int) -> np.ndarray:
    """(size,) of `ROW_TAPS` along an outer dimension."""
    taps = p.kernel[axis], p.stride[axis], p.dilation[axis], p.padding[axis][0]
    return _taps_of_rows(p.spatial[axis], p.spatial_out[axis], *taps)


@lru_cache(256)  # maps of other widths share them
def _taps_of_rows(size: int, out: int, kernel: int, step: int, near: int, pad: int) -> np.ndarray:
    common = math.gcd(step, near)
    table = np.zeros(size, ROW_TAPS)
    first_taps = {r * near % step: r for r in reversed(range(min(kernel, step)))}  # by their remainder
    for i in range(len(table)):
        place = i + pad
        tap = first_taps.get(place % step)
        if tap is None:
            continue
        row = (place - tap * near) // step  # taps further on meet rows before it
        skipped = max(0, -(-(row - out + 1) // (near // common)))
        tap, row = tap + skipped * (step // common), row - skipped * (near // common)
        if row >= 0 and tap < kernel:
            count = min(row // (near // common), (kernel - 1 - tap) // (step // common)) + 1
            table[i] = tap, row, count
    return table
