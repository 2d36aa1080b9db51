"""Windows over integers whose weights are an outer product: sums along lines, and SciPy's integers of them.

Sums across lines and along them take r + s products in the place of r s, and are not rounded between. Where
one lies near a whole number, by no more than its error, the whole window is summed again as float64 in
SciPy's order: the lines under a window lie in a ring, with their borders.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.core.axis_windows import AxisWindow
from convalgos.core.cached_attribute import cached_attribute
from convalgos.cpu.filtering.line_borders import border_place, fill_borders
from convalgos.cpu.filtering.line_drivers import FIELDS
from convalgos.cpu.filtering.line_elements import KINDS
from convalgos.cpu.filtering.line_passes import UNITS, LinePass
from convalgos.cpu.filtering.line_steps import CLOSE, DIGITS, LineStep, way_of_sums
from convalgos.cpu.filtering.line_sums import FUSED, ROWS, SHIFTED, sum_lines
from convalgos.cpu.filtering.outer_products import line_factors
from convalgos.cpu.filtering.settling import settle_window, window_table
from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.simd import call, carray, pointer

Array = np.ndarray[Any, Any]
CACHED = 640 << 10  # bytes of the ring of a task, in the second cache; Zen 4
# Times the error of a sum and the products of a window, by bytes of an element: if that is more than the
# products along lines, windows that are summed again in order take longer; Xeon, Zen 5
AGAIN = {4: 160, 8: 80}
LARGE = 1 / 64  # the error from which on that is so where they are summed by rows first; Zen 5
MOST = 2.0**31  # magnitude of sums, which are cut off to 32 bits first


def settled_window(
    w: Array, x: np.dtype, y: np.dtype, axes: Sequence[AxisWindow], fill: float
) -> SettledWindow | None:
    """The pass that correlates arrays of integers by w, of float64; None where other sums are needed.

    w may be a product that was rounded to float32: what it differs by is part of the error.

    axes: no others with elements lie between the two along which w has taps.
    """
    filtered = [i for i, axis in enumerate(axes) if axis.taps > 1]
    if len(filtered) != 2 or max(x.itemsize, y.itemsize // 2) > 2 or not (w != 0).all():
        return None
    rows, columns = filtered
    step = LineStep(rows, tuple(w.ravel().tolist()), axes[rows], fill)
    lines = line_factors(w, True)
    if lines is None or way_of_sums(step, x, 8) != CLOSE or _largest(step, x) >= MOST:
        return None
    lines[-1] = lines[-1] * math.prod(float(lines[i][0]) for i in range(len(axes) - 1) if i not in filtered)
    if columns != len(axes) - 1:
        lines[columns] = lines[columns] * lines[-1][0]
    across, along = (LineStep(i, tuple(lines[i].tolist()), axes[i], fill) for i in filtered)
    window = SettledWindow(x, y, across, along, w)
    return None if window.is_often_summed(window.size) else window


def _largest(step: LineStep, x: np.dtype) -> float:
    """The magnitude that no sum passes."""
    limits = np.iinfo(x)
    largest = max(-int(limits.min), int(limits.max), abs(step.fill))
    return largest * math.fsum(map(abs, step.weights))


@jit.specialise
def windows_share(SIZE: int) -> jit.Kernel:
    """Bands of lines of a task, or of chunks of them, summed across each other and along themselves.

    a: `settle` has the weights of windows, `exact`, and where their taps lie, `row_exact`.
    """

    def windows_share(args: int, task: int) -> None:
        a = carray(pointer(args), 1, FIELDS)[0]
        scratch = a.scratch + task * a.scratch_bytes
        lines, sums = scratch + a.lines_at, scratch + a.stored_at
        table = carray(pointer(scratch), a.rows + a.taps, np.int64)
        shifted = carray(pointer(scratch + a.shifted_at), a.row_taps, np.int64)
        total = a.outer * a.chunks * a.bands
        for unit in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            band, part = unit % a.bands, unit // a.bands
            o, left = part // a.chunks, part % a.chunks * a.chunk
            pixels = min(a.chunk, a.pixels - left)
            begin, stop = max(0, left - a.row_low), min(a.pixels, left + pixels + a.row_taps - 1 - a.row_low)
            width, count = (pixels + a.row_taps - 1) * a.after, pixels * a.after
            first, end = a.rows * band // a.bands, a.rows * (band + 1) // a.bands
            known, i = 0, first
            while i < end:
                many = a.rows_at_once if min(end - i, a.taps + 1) >= a.rows_at_once else 1
                while known < i - first + a.taps + many - 1:
                    source = border_place(first + known - a.low, a.rows, a.low, a.taps, a.sources)
                    if source < 0:
                        table[known] = a.filling
                    else:
                        slot = scratch + a.ring_at + known % a.ring * a.line_bytes
                        x, inside = a.x + (o * a.rows + source) * a.line * a.x_bytes, slot + a.border_bytes
                        place = inside + (begin - left) * a.after * SIZE
                        call(a.load, (x + begin * a.after * a.x_bytes, place, (stop - begin) * a.after))
                        fill_borders(a, inside, 0 if a.chunks == 1 else x, left, pixels, SIZE)
                        table[known] = slot
                    known += 1
                under = scratch + 8 * (i - first)
                call(a.sums, (under, a.weights, a.taps, width, lines, a.line_bytes, many))
                for r in range(many):
                    for t in range(a.row_taps):
                        shifted[t] = lines + r * a.line_bytes + t * a.after * SIZE
                    shifts = scratch + a.shifted_at
                    call(a.row_sums, (shifts, a.row_weights, a.row_taps, count, sums, 0, SHIFTED))
                    y = a.y + ((o * a.rows + i + r) * a.line + left * a.after) * a.y_bytes
                    taps = a.taps * a.row_taps
                    call(
                        a.settle,
                        (under + 8 * r, a.row_exact, a.exact, taps, a.row_taps, a.window, count, sums, y,
                         a.bounds),
                    )  # fmt: skip
                i += many

    return windows_share


class SettledWindow(LinePass):
    """A step across lines and one along them, whose outer product `w` is."""

    def __init__(self, x: np.dtype, y: np.dtype, across: LineStep, along: LineStep, w: Array):
        self._w = w
        super().__init__(x, y, across, along)

    def _set_numbers(self) -> None:
        bytes_ = self.x_dtype.itemsize == self.y_dtype.itemsize == 1
        self.size = 4 if bytes_ and not self.is_often_summed(4) else 8
        self.error = self._error_of(self.size)
        self.dtype = np.dtype(f"f{self.size}")
        self.lanes = simd.lanes(self.size)

    def is_often_summed(self, size: int) -> bool:
        """Whether too many windows lie near whole numbers, by sums of elements of so many bytes."""
        if self._in_rows:
            return self._error_of(size) >= LARGE
        taps = sum(len(step.weights) for step in self.sources)
        return AGAIN[size] * self._error_of(size) * self._w.size >= taps

    @property
    def _in_rows(self) -> bool:
        """Whether elements of a row lie behind each other."""
        return bool(self._w.shape[-1] > 1)

    def _error_of(self, size: int) -> float:
        """At most, between sums along lines and those of windows in order."""
        across, along = self.sources
        taps = len(across.weights) + len(along.weights)
        apart = np.abs(np.outer(across.weights, along.weights).ravel() - self._w.ravel()).sum()
        factors = float(apart / np.abs(self._w).sum()) * self._most
        return (taps + 6) * self._most / 2.0 ** DIGITS[size] + self._least_error + factors

    @property
    def _least_error(self) -> float:
        """At most, between sums of windows as float64 in any two orders."""
        return (self._w.size + 3) * self._most / 2.0**53

    @cached_attribute
    def _most(self) -> float:
        """The magnitude that no sum passes."""
        across, _ = self.sources
        return _largest(across._replace(weights=tuple(self._w.ravel().tolist())), self.x_dtype)

    def _convert(self) -> None:
        self.values["load"] = self._load(self.x_dtype)

    def _arrange(self) -> None:
        across, along = self.steps
        f, w = self.values, self._w
        f["taps"], f["low"] = len(across.weights), across.window.low
        f["row_taps"], f["row_low"] = len(along.weights), along.window.low
        f["weights"] = self._table(self._weights(across))
        f["row_weights"] = self._table(self._weights(along))
        f["sums"] = f["row_sums"] = sum_lines(FUSED, self.size, self.lanes)
        f["ring"] = f["taps"] + ROWS - 1
        f["exact"] = self._table(np.roll(w.ravel(), -1))
        error = self.error
        f["bounds"] = self._table(np.array((error, 1 - error), self.dtype))
        if self._in_rows:
            window = w.reshape(f["taps"], f["row_taps"])
            f["window"] = self._table(window_table(window, simd.lanes(8), 2 * self._least_error))
        f["settle"] = settle_window(KINDS.index(self.y_dtype.name), self.size, self.lanes)
        self.kernel = windows_share(self.size)

    def _fit(self, f: dict[str, int], shape: Shape, threads: int) -> list[np.ndarray]:
        across, along = self.steps
        tables: list[np.ndarray] = []
        self._fit_along(f, shape, along, tables)
        f["outer"], f["rows"] = math.prod(shape[: across.axis]), shape[across.axis]
        f["sources"] = self._borders(across, shape, tables)
        room = CACHED // ((f["taps"] + 2 * ROWS) * self.size * f["after"]) - f["row_taps"]
        f["chunks"] = -(-f["pixels"] // max(room, 4 * f["row_taps"]))
        f["chunk"] = -(-f["pixels"] // f["chunks"])
        width = (f["chunk"] + f["row_taps"]) * f["after"]
        f["filling"] = self._filled(along.fill, width, tables)
        parts = f["outer"] * f["chunks"]
        bands = max(1, min(f["rows"] // max(ROWS, f["taps"] // 2), -(-UNITS * threads // parts)))
        f["bands"] = bands - bands % threads if parts == 1 and bands > threads else bands
        f["tasks"] = min(threads * UNITS, parts * f["bands"]) if threads > 1 else 1
        self._scratch(f, f["rows"] + f["taps"], width)
        f["border_bytes"] = f["row_low"] * f["after"] * self.size
        line, place = np.indices((f["taps"], f["row_taps"])).reshape(2, -1)
        places = np.stack([line, place * f["after"] * self.size])
        tables.append(np.roll(places, -1, 1))  # the first tap last, where sums in order begin
        f["row_exact"] = jit.data_address()(tables[-1])
        return tables
