"""Windows of Gaussian weights by recursion: the numbers of a filter, and a pass along an axis."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from convalgos.core.allocator import whole_lines
from convalgos.core.boundaries import source_indices
from convalgos.cpu.filtering.recursive_gaussians import fitted_exponentials
from convalgos.cpu.filtering.recursive_kernels import (
    NUMBERS,
    WIDTH,
    WINDOW_RECURSION_FIELDS,
    filter_windows,
)
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.records import copy_of_record
from convalgos.cpu.runtime.threads import plan_threads
from convalgos.cpu.vectors import simd

WIDEST = 1.5  # times half a window: standard deviations whose exponentials stand for all wider ones
SHARE = 1 << 12  # elements that are worth a thread; Zen 4


class Halves(NamedTuple):
    """Exponentials in the place of half a window of a Gaussian, from its middle on.

    numbers: (pairs * NUMBERS + 1,) A, B, turn of an element and of a half for each pair; then what of the
    middle element is in both halves. error: the sum of absolute differences of the weights of a window, over
    that of the weights.
    """

    numbers: np.ndarray
    error: float


@lru_cache(1024)
def window_halves(sigma: float, taps: int, pairs: int) -> Halves:
    """Of weights exp(-d^2 / (2 sigma^2)), d from the middle of a window."""
    half, odd = -(-taps // 2), taps % 2
    k = np.arange(half)  # (half,)
    weights = np.exp(-0.5 * ((k + 0.5 * (1 - odd)) / sigma) ** 2)
    found, turn, apart = fitted_exponentials(weights, min(sigma, WIDEST * half), pairs)
    end = turn**half
    rows = np.stack([*found.reshape(2, pairs), turn.real, turn.imag, end.real, end.imag], 1)
    middle = found[:pairs].sum() if odd else 0.0
    once = odd * np.array([1.0] + [0.0] * (half - 1))
    error = ((2 - once) * apart).sum() / ((2 - once) * weights).sum()
    return Halves(np.append(rows.ravel(), middle), float(error))


class WindowRecursion:
    """y (planes, outputs, after) = windows along the middle axis of x (planes, size, after), ready to run.

    Args:
        shape: of x.
        line: planes behind each other that have one filter, of which there are `filters` in turn.
        low, high: elements of padding, beyond a boundary that is zero or copies elements.
    """

    def __init__(
        self, dtype: np.dtype, pairs: int, shape: tuple[int, int, int], line: int, filters: int, taps: int,
        low: int, high: int, boundary: str,
    ):  # fmt: skip
        planes, size, after = shape
        lanes, half = simd.lanes(dtype.itemsize), -(-taps // 2)
        self.shape, self.places = shape, low + size + high
        outputs = self.places - taps + 1
        self.count = planes * outputs * after  # elements of y
        wide = WIDTH * lanes
        row = wide * dtype.itemsize
        panel_at = whole_lines((pairs * NUMBERS + 1) * row) + half * row
        result_at = panel_at + (self.places + half + lanes) * row
        self._sources = np.array(source_indices(boundary, size, low, high))
        units = -(-planes // wide) if after == 1 else planes * -(-after // wide)
        self.tasks = max(1, min(plan_threads(), units, self.count // SHARE))
        each = result_at + (outputs + lanes) * row
        self.scratch_bytes = each * self.tasks
        values = (
            0, 0, 0, each, self.tasks, planes, size, after, outputs, taps, half, self.places, low,
            self._sources.ctypes.data, 0, filters, line, panel_at, result_at,
        )  # fmt: skip
        self._record = np.array([values], WINDOW_RECURSION_FIELDS)
        self._kernel = filter_windows(dtype.itemsize, lanes, pairs)

    def run(self, x: np.ndarray, y: np.ndarray, numbers: np.ndarray, scratch: np.ndarray) -> None:
        """numbers: (filters, pairs * NUMBERS + 1), of x's type. Many threads may run it at once."""
        record = copy_of_record(self._record)
        for name, array in (("x", x), ("y", y), ("numbers", numbers), ("scratch", scratch)):
            record[name] = array.ctypes.data
        jit.launch(self._kernel, record.ctypes.data, self.tasks, self.tasks > 1)
