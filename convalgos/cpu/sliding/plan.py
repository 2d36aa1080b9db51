"""Windows slid along one or two dimensions of an array, fixed to its shape and ready to run."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from convalgos.core.allocator import ALIGNMENT, aligned_empty
from convalgos.core.axis_windows import AxisWindow
from convalgos.core.window_borders import filling, sources_along
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.record_launch import RecordLaunch
from convalgos.cpu.runtime.records import copy_of_record
from convalgos.cpu.runtime.threads import cached_by_threads, plan_threads
from convalgos.cpu.sliding.kernels import FILL, SLIDE_FIELDS, slide_windows
from convalgos.cpu.sliding.quotients import float_quotient, mean_numbers, short_quotient
from convalgos.cpu.sliding.reductions import FLOAT, LINED, MEAN, SHORT, SIGNED, UNSIGNED, WEIGHTED
from convalgos.cpu.sliding.steps import sliding_steps
from convalgos.cpu.sliding.strips import strip_width, strips_of
from convalgos.cpu.vectors import simd

FORM_OF = {"f": FLOAT, "i": SIGNED, "u": UNSIGNED}  # by the kind of a dtype
DIRECT = 8  # rows that are reduced one by one; more by blocks. Zen 4
CHUNK = 1 << 13  # bytes of a row that go through all steps at a time
SHARE = 1 << 15  # bytes of x that are worth a thread
UNITS = 4  # of work for each thread
SHORT_ROWS = 1 << 11  # bytes of short rows that go through all steps at a time, where there are some; Zen 5
BLOCKS = 4  # that a thread goes through in one band, whose first one is read twice


def sliding_bytes(dtype: np.dtype, reduction: int, taps: tuple[int, int]) -> int:
    """Bytes of an element where it is computed with."""
    if reduction < MEAN or dtype.kind == "f":
        return dtype.itemsize
    short = dtype.itemsize == 1 and FORM_OF[dtype.kind] == UNSIGNED
    if short and all(short_quotient(n) is not None for n in taps):
        return SHORT
    return 4 if dtype.itemsize <= 2 and all(float_quotient(dtype, n) for n in taps) else 8


class RowPhase(NamedTuple):
    """Windows of rows that lie apart, and share rows: of every `apart`-th row of `axis` from `first` on.

    y has them in its rows from y_first on, y_apart from each other.
    """

    axis: AxisWindow
    taps: int
    outputs: int
    first: int
    apart: int
    y_first: int
    y_apart: int
    y_rows: int

    @property
    def size(self) -> int:
        return self.axis.size

    @property
    def sources(self) -> np.ndarray:
        return self.axis.sources[self.first :: self.apart][: self.outputs + self.taps - 1]


class _Shared(NamedTuple):
    """What plans for arrays of all sizes share. values: fields of `SLIDE_FIELDS`, which point to `kept`."""

    size: int
    lanes: int
    kernel: int
    values: dict[str, int]
    kept: list[np.ndarray]


@lru_cache(256)
def _shared(dtype: np.dtype, reduction: int, row_taps: int, column_taps: int, fill: float) -> _Shared:
    size, form = sliding_bytes(dtype, reduction, (row_taps, column_taps)), FORM_OF[dtype.kind]
    as_integers = form != FLOAT and (reduction < MEAN or size == SHORT)
    computed = np.dtype(f"u{size}" if as_integers else f"f{size}")
    by = [np.zeros(2, computed)] * 2
    if reduction == MEAN:
        by = [mean_numbers(size, taps) for taps in (row_taps, column_taps)]
    fills = np.full(1, fill * (row_taps if reduction >= WEIGHTED else 1)).astype(computed)
    tables = {"fill": fills, "row_numbers": by[0], "numbers": by[1]}
    values = dict.fromkeys(SLIDE_FIELDS.names or (), 0)
    values |= {name: table.ctypes.data for name, table in tables.items()}
    block = row_taps - 1 if row_taps > DIRECT else 0
    values |= {"taps": row_taps, "block": block, "number_step": 0, "channels": 1}
    lanes = simd.lanes(size)
    kernel = slide_windows(size, lanes, dtype.itemsize, form, reduction)
    return _Shared(size, lanes, kernel, values, list(tables.values()))


class SlidingPlan:
    """y = the reduction of windows of rows and columns of x (planes, rows, columns, step).

    Args:
        rows, columns: the windows along both; y is (planes, rows.outputs, columns.outputs, step). Those of
            columns are as long as what they span.
        step: elements between neighbours of a row.
        fill: what lies beyond constant borders, which the dtype can hold.
        in_place: x is y, and has as many rows and columns.
        stride: of the rows of windows that y has.
        apart, column_stride: columns between those of a window, and between windows that y has. Only of
            weighted sums, whose elements are floats.
    """

    def __init__(
        self, dtype: np.dtype, reduction: int, planes: int, rows: AxisWindow | RowPhase, columns: AxisWindow,
        step: int = 1, fill: float = 0, in_place: bool = False, stride: int = 1, apart: int = 1,
        column_stride: int = 1,
    ):  # fmt: skip
        shared = _shared(dtype, reduction, rows.taps, columns.taps, fill)
        steps = sliding_steps((columns.taps - 1) // apart + 1, step * apart, reduction >= MEAN)
        size, stored = shared.size, dtype.itemsize
        width, wide = columns.size * step, -(-columns.outputs // column_stride) * step
        y_first, y_apart, y_rows = 0, 1, -(-rows.outputs // stride)
        if isinstance(rows, RowPhase):
            y_first, y_apart, y_rows = rows.y_first, rows.y_apart, rows.y_rows
        self._begin, lanes = y_first * wide * stored, shared.lanes
        block = shared.values["block"]
        each = strip_width(size, stored, block, columns, step)
        each = -(-each // column_stride) * column_stride
        strips = strips_of(columns, step, each, size)
        reach = (columns.taps - 1) * step
        chunk = -(-max(CHUNK // size, 4 * reach) // step) * step
        self._lanes, self._line = lanes, -(-chunk // lanes) * lanes if reduction == LINED else 0
        bands, self._tasks = _cut(planes * strips.strips, rows, block, planes * rows.size * width * stored)
        # blocks read behind the last row, too
        behind = block + 1
        row_table = (
            np.append(rows.sources, np.zeros(behind, np.int64))
            if isinstance(rows, RowPhase)
            else sources_along(rows, behind)
        )
        constant = filling(fill, dtype, max(width, 1))
        lines = strips.longest + reach, min(chunk, strips.outputs) + reach
        at_once = 1
        if strips.strips == stride == column_stride == 1 and columns.taps > 1 and reduction != LINED:
            at_once = max(1, min(rows.outputs // bands, SHORT_ROWS // max(1, strips.longest * size)))
        if at_once > 1:
            lines = at_once * strips.longest + reach, at_once * strips.longest + reach
        whole = strips.outputs if column_stride > 1 else at_once * strips.longest * (at_once > 1)
        kept = rows.size * width * stored if in_place else 0
        lined = (*lines, whole), size, block, -(-rows.outputs // bands) + rows.taps + block, kept
        address = jit.data_address()
        f = shared.values | {
            "tasks": self._tasks, "planes": planes, "x_plane": rows.size * width * stored,
            "y_plane": y_rows * wide * stored, "x_row": width * stored, "y_row": y_apart * wide * stored,
            "rows": rows.outputs, "bands": bands, "strips": strips.strips,
            "strip_table": address(strips.table), "run_table": address(strips.runs),
            "border_table": address(strips.borders), "row_table": address(row_table),
            "steps": len(steps), "step_table": address(steps),
            "constant": address(constant), "chunk": chunk, "stride": stride,
            "column_stride": column_stride, "pixel": step, "at_once": at_once, "pitch": strips.longest,
        }  # fmt: skip
        _scratch(f, *lined)
        words = np.fromiter(f.values(), np.int64, len(f))
        self._record, self._kernel = words.view(SLIDE_FIELDS), shared.kernel
        self._kept = shared, strips, row_table, constant, steps
        # (x, y) of whole arrays and without numbers, as `run` has them
        scratch_bytes = f["scratch_bytes"] * self._tasks
        self.launch = RecordLaunch(
            self._kernel, words, SLIDE_FIELDS.names, scratch_bytes, self._tasks, self._kept
        )

    @property
    def scratch_bytes(self) -> int:
        """Of a run."""
        return int(self._record["scratch_bytes"][0]) * self._tasks

    def run(
        self, x: np.ndarray, y: np.ndarray, numbers: np.ndarray | None = None,
        scratch: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        """Both contiguous, of the plan's dtype and sizes, and apart from each other unless `in_place`.

        Args:
            numbers: of weighted sums, (planes, or any part of their number, 2): weight and bias; or where
                they are LINED, (step, 2), of each element of a pixel.
        """
        record = copy_of_record(self._record)
        if scratch is None:
            scratch = aligned_empty(self.scratch_bytes, np.uint8)
        record["x"], record["y"] = x.ctypes.data, y.ctypes.data + self._begin
        record["scratch"] = scratch.ctypes.data
        if numbers is not None and self._line:
            each = np.resize(numbers, (self._line, *numbers.shape[1:]))  # (elements of a chunk, 2)
            lined = each.reshape(-1, self._lanes, 2).swapaxes(1, 2).copy()  # (vectors, 2, lanes)
            record["numbers"], record["channels"] = lined.ctypes.data, 1
        elif numbers is not None:
            record["numbers"], record["channels"] = numbers.ctypes.data, len(numbers)
            record["number_step"] = 2 * numbers.itemsize
        jit.launch(self._kernel, record.ctypes.data, self._tasks, self._tasks > 1)


sliding_plan = cached_by_threads(128)(SlidingPlan)


def _cut(units: int, rows: AxisWindow | RowPhase, block: int, nbytes: int) -> tuple[int, int]:
    """(bands of rows, tasks) among which strips of planes are dealt."""
    threads = plan_threads() if nbytes >= 2 * SHARE else 1
    bands = 1 if threads == 1 else max(1, min(rows.outputs, -(-threads * UNITS // units)))
    if block:
        bands = min(bands, max(threads, rows.outputs // (BLOCKS * block)))
    return bands, min(threads, units * bands)


def _scratch(
    f: dict[str, int], lines: tuple[int, int, int], size: int, block: int, rows: int, kept: int
) -> None:
    """Set where in the scratch of a task each part begins, and the bytes of all and of a line of a block.

    lines: elements of a line, of its part that goes through steps at a time, and of all results of one.
    """
    line, work, whole = (_aligned(n * size + 8 * simd.vector_bytes()) for n in lines)
    f["line"], f["work"], f["sums"] = FILL, FILL + line, FILL + line + work
    f["prefix"] = f["sums"] + work
    f["suffix"] = f["prefix"] + (line if block else 0)
    f["addresses"] = f["suffix"] + line * block
    f["whole"] = f["addresses"] + _aligned(8 * (rows + 1))
    end = f["whole"] + whole
    f["in_place"] = end if kept else 0
    f["scratch_bytes"], f["suffix_row"] = end + _aligned(kept), line


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
