"""How windows over rows are cut into units, and what `window_kernels` read beside arrays and filters."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from convalgos.core.allocator import whole_lines
from convalgos.core.axis_windows import AxisWindow, PixelWindow
from convalgos.core.window_borders import filling, sources_along
from convalgos.cpu.filtering import window_kernels as kernels
from convalgos.cpu.filtering.window_kernels import LISTED, OUTSIDE, ROWS
from convalgos.cpu.layout.strided_rows import row_copier
from convalgos.cpu.runtime.threads import plan_threads
from convalgos.cpu.vectors import simd

Array = np.ndarray[Any, Any]
CACHE = 1 << 19  # bytes of the rings of a task
THREAD_CHUNKS = 4  # units for each thread, where there are rows for them
SHARE = 1 << 16  # products that are worth a thread
ALONE = np.zeros((1, 1), np.int64)  # where the only plane lies


def source_planes(axes: Sequence[AxisWindow], plane: int) -> Array:
    """(outputs of all axes, taps of all axes) int64: where the plane lies that a window meets, or OUTSIDE.

    plane: from one to the next.
    """
    if not axes:
        return ALONE
    offsets = np.zeros((1, 1), np.int64)  # (outputs, taps)
    outside = np.zeros((1, 1), bool)
    for axis in axes:
        at = np.arange(axis.outputs)[:, None] + np.arange(axis.taps)
        windows = sources_along(axis)[at]  # (outputs, taps)
        offsets = offsets[:, None, :, None] * axis.size + windows[None, :, None, :]
        outside = outside[:, None, :, None] | (windows == OUTSIDE)[None, :, None, :]
        offsets, outside = (a.reshape(a.shape[0] * a.shape[1], -1) for a in (offsets, outside))
    return np.where(outside, OUTSIDE, offsets * plane)


class WindowCut:
    """Units of some rows of a plane, and of these some columns, whose rings lie in the second cache.

    Args:
        planes: (outer, rings) byte offsets of planes of x.
        rows, columns: the last two axes; with steps, of windows one element apart, and of all that they span.
        size: bytes of the elements of sums.
        taps: (listed taps,) each: ring, row and column of those that a list names.
        along: taps of the filter along the row, which then are none of the window; or 0.
        tiles: whether ROWS rows of windows are summed together, by all weights of the window.
        steps: from window to window, of rows and columns; of columns more than 1 only along rows.
        apart: columns between taps of a row.
        close: whether sums are, so that each is settled by a list of its taps.
    """

    def __init__(
        self, planes: Array, rows: AxisWindow, columns: AxisWindow | PixelWindow, size: int,
        taps: Sequence[Array], along: int,
        tiles: bool, steps: tuple[int, int] = (1, 1), apart: int = 1, close: bool = False,
    ):  # fmt: skip
        self.rows, self.columns, self.size, self.along, self.apart = rows, columns, size, along, apart
        self.steps, (row_step, step) = steps, steps
        self.outer, self.rings = planes.shape
        self.outputs = outputs = -(-rows.outputs // row_step), -(-columns.outputs // step)
        self.tiles = tiles and row_step == 1 and rows.taps >= ROWS - 1 and outputs[0] >= ROWS
        self.ring_rows = rows.taps + ROWS - 1
        block, beside = LISTED * simd.lanes(size), columns.taps - 1
        room = CACHE // max(1, self.rings * self.ring_rows * size) - beside
        parts = -(-outputs[1] // max(block, room // block * block))
        self.width = min(outputs[1], -(-outputs[1] // (parts * block)) * block)
        others = self.outer * -(-outputs[1] // self.width)
        threads = plan_threads()
        wanted = max(1, THREAD_CHUNKS * threads // others)
        chunk = max(outputs[0] // wanted, 2 * rows.taps // row_step, 2 * ROWS)
        self.row_chunk = min(outputs[0], -(-chunk // ROWS) * ROWS)
        units = others * -(-outputs[0] // self.row_chunk)
        listed = len(taps[0])
        products = (listed + along) * self.outer * outputs[0] * outputs[1]
        self.tasks = max(1, min(threads, units, products // SHARE))
        pitch = whole_lines((self.width + beside + block) * size)
        self.pitch = pitch + (64 if pitch % 1024 == 0 else 0)  # rows of a ring in other sets of the cache
        # a row before its filter along itself, and its phases, of which whole blocks are read
        row = whole_lines((self.width * step + beside + block) * size)
        self.phase = whole_lines((self.width + beside // step + 1 + block) * size) // size if step > 1 else 0
        self.before = row + step * self.phase * size if along else 0
        tables = 8 * (along + 1 + max(listed, self.rings * self.ring_rows) + close * listed)
        self.scratch = whole_lines(tables) + 64 + (self.rings * self.ring_rows + ROWS) * self.pitch
        self.scratch += self.before
        self._planes, self._taps = np.ascontiguousarray(planes), taps

    def values(self, order: int, x_size: int, y_size: int, fill: float) -> dict[str, int | Array]:
        """Fields of the record, without the run's, those of filters, and of other types of memory."""
        return self.shared(order, x_size, y_size) | self.sizes(x_size, y_size, fill)

    def shared(self, order: int, x_size: int, y_size: int) -> dict[str, int | Array]:
        """Fields of those, that arrays of other sizes have, too."""
        ring, row, shift = self._taps
        size, lanes, (row_step, step) = self.size, simd.lanes(self.size), self.steps
        return {
            "x_size": x_size, "y_size": y_size, "rings": self.rings, "low": self.columns.low,
            "taps_r": self.rows.taps,
            "taps_s": 1 if self.along else (self.columns.taps - 1) // self.apart + 1,
            "tap_step": self.apart, "listed_count": len(ring), "listed_ring": ring, "listed_row": row,
            "listed_shift": shift * self.apart,
            "tile": kernels.sum_window_tile(order, size, lanes, kernels.vectors()),
            "listed": kernels.sum_listed(order, size, lanes), "ring_rows": self.ring_rows,
            "along": self.along, "row_step": row_step, "column_step": step, "extent": self.rows.taps,
            "beside": self.columns.taps - 1, "split": row_copier(size, lanes, step, step) if step > 1 else 0,
            "settle": 0, "exact": 0, "bounds": 0,
        }  # fmt: skip

    def sizes(self, x_size: int, y_size: int, fill: float) -> dict[str, int | Array]:
        """The other ones of those."""
        y_row = self.outputs[1] * y_size
        return {
            "x_row": self.columns.size * x_size, "y_plane": self.outputs[0] * y_row, "y_row": y_row,
            "outer": self.outer, "rows": self.outputs[0], "columns": self.outputs[1],
            "columns_in": self.columns.size, "row_chunk": self.row_chunk, "width": self.width,
            "planes": self._planes, "row_source": sources_along(self.rows),
            "column_source": self._column_sources(),
            "fill": filling(fill, np.dtype(f"f{self.size}"), max(self.pitch, self.before) // self.size),
            "rows_at_once": ROWS if self.tiles else 1, "scratch_stride": self.scratch, "pitch": self.pitch,
            "along_shifts": along_shifts(self.along, self.apart, self.steps[1], self.phase),
            "phase": self.phase, "before_bytes": self.before, "tasks": self.tasks,
        }  # fmt: skip

    def _column_sources(self) -> Array:
        columns = self.columns
        return columns.sources if isinstance(columns, PixelWindow) else sources_along(columns)


@lru_cache(256)
def along_shifts(along: int, apart: int, step: int, phase: int) -> Array:
    """(along,) int64: where taps along a row lie, that has been taken apart into phases."""
    at = np.arange(along) * apart
    return at % step * phase + at // step
