"""A pass over memory that correlates along one axis or two: how the drivers of lines are called.

What does not depend on the sizes of arrays, such as kernels and tables of weights, is found once for all of
them, as images come in many sizes: what is left for each is some arithmetic.

float32 arrays, and small integers, are summed in float32 where that is enough; all else in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from convalgos.core.allocator import whole_lines
from convalgos.core.arguments import Shape
from convalgos.core.window_borders import border_elements, filling
from convalgos.cpu.filtering import line_drivers, line_elements, line_sums, settling, whole_sums
from convalgos.cpu.filtering.line_endings import PLAIN, end_line
from convalgos.cpu.filtering.line_steps import (
    CLOSE,
    ORDERED,
    LineStep,
    fit_single,
    order_of_sums,
    rounding_of_sums,
    way_of_sums,
)
from convalgos.cpu.filtering.line_sums import ROWS
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.record_launch import RecordLaunch
from convalgos.cpu.runtime.threads import plan_threads
from convalgos.cpu.vectors import simd

SINGLE = frozenset(map(np.dtype, "?bBhHf"))  # types that float32 holds exactly
CHUNK = 8 << 10  # bytes of sums of a chunk of a line that is only summed across; Zen 4
PIECE = 64 << 10  # bytes of sums of a chunk of a line that is summed along itself
SHARED = 1 << 17  # products of a pass that are worth a second thread
MOST_TAPS = 1 << 9  # of sums that whole parts are taken of with an error far below 1
FUSED_BITS = 16  # of integers whose sums are settled where they are summed
UNITS = 4  # of work for each thread, where there are so many


def _sum_bytes(x_dtype: np.dtype, y_dtype: np.dtype, steps: Sequence[LineStep], ways: Sequence[str]) -> int:
    """Bytes of an element of sums: 4 where float32 holds all terms, and its sums what is asked for.

    ways: of sums of float32 to integers, of each step.
    """
    single = x_dtype in SINGLE and y_dtype in SINGLE
    single = single and all(fit_single(step.weights) for step in steps)
    return 4 if single and (y_dtype.kind == "f" or ORDERED not in ways) else 8


class LinePass:
    """One pass over memory, of arrays of any sizes: a step across lines, one along them, or both.

    ending: how sums meet y, which are floats, as `line_endings` has it.
    """

    def __init__(
        self, x_dtype: np.dtype, y_dtype: np.dtype, across: LineStep | None, along: LineStep | None,
        ending: int = PLAIN,
    ):  # fmt: skip
        self.x_dtype, self.y_dtype, self.across, self.along = x_dtype, y_dtype, across, along
        self.steps = [step for step in self._all_steps() if step is not None]
        self.sources = {s: y_dtype if n else x_dtype for n, s in enumerate(self.steps)}  # what each reads
        self._set_numbers()
        self._taps = sum(len(step.weights) for step in self.steps)
        self._kept: list[np.ndarray] = []  # tables that records point to
        f = self.values = dict.fromkeys(line_drivers.FIELDS.names or (), 0)
        f["x_bytes"], f["y_bytes"] = x_dtype.itemsize, y_dtype.itemsize
        self._convert()
        if ending != PLAIN:
            kind = line_elements.element_kind(y_dtype)
            f["ending"] = end_line(ending, kind, self.size, self.lanes)
        self._arrange()

    def of(self, shape: Shape, third: str = "") -> RecordLaunch:
        """The pass over arrays of a shape, as a call (x, y) that fills y.

        third: the name of a field that such a call may bring.
        """
        f = self.values.copy()
        threads = plan_threads() if math.prod(shape) * self._taps > SHARED else 1
        tables = self._fit(f, shape, threads)
        record, tasks = np.fromiter(f.values(), np.int64, len(f)), f["tasks"]
        kept = self._kept, tables
        return RecordLaunch(
            self.kernel, record, line_drivers.FIELDS.names, tasks * f["scratch_bytes"], tasks, kept, third
        )

    def _all_steps(self) -> Sequence[LineStep | None]:
        """In the order that they are made in."""
        return self.across, self.along

    def _set_numbers(self) -> None:
        """Set what is computed with, and how integers come of it."""
        ways = [way_of_sums(step, dtype, 4) for step, dtype in self.sources.items()]
        self.size = _sum_bytes(self.x_dtype, self.y_dtype, self.steps, ways)
        self.ways = {s: way_of_sums(s, t, self.size) for s, t in self.sources.items()}
        self.dtype = np.dtype(f"f{self.size}")
        self.lanes = simd.lanes(self.size)

    def _arrange(self) -> None:
        """Set all that depends on which steps there are, and not on sizes."""
        f = self.values
        if self.along:
            self._set_along(self.along)
        if not self.across:
            f["load"] = f["load"] or self._load(self.dtype)
            self.kernel = line_drivers.rows_share(self.size)
            return
        self._set_across(self.across)
        self._fuse(self.across, self.along)
        self.kernel = line_drivers.columns_share(self.size)

    def _fit(self, f: dict[str, int], shape: Shape, threads: int) -> list[np.ndarray]:
        """Set all that depends on sizes; the tables that the record points to beside those of any size."""
        tables: list[np.ndarray] = []
        if self.along:
            self._fit_along(f, shape, self.along, tables)
        if self.across:
            self._fit_across(f, shape, self.across, threads, tables)
        else:
            self._fit_rows(f, shape, threads)
        return tables

    def _table(self, values: np.ndarray) -> int:
        self._kept.append(values)
        return jit.data_address()(values)

    def _convert(self) -> None:
        """Set the kernels between the types of x, y and sums, where these differ."""
        if self.x_dtype != self.dtype:
            self.values["load"] = self._load(self.x_dtype)
        if self.y_dtype != self.dtype:
            kind = line_elements.element_kind(self.y_dtype)
            self.values["store"] = line_elements.store_line(kind, self.size, self.lanes)
            self.values["reload"] = self._load(self.y_dtype)

    def _load(self, dtype: np.dtype) -> int:
        return line_elements.load_line(line_elements.element_kind(dtype), self.size, self.lanes)

    def _set_along(self, step: LineStep) -> None:
        f = self.values
        f["row_taps"], f["row_low"] = len(step.weights), step.window.low
        f["row_weights"], f["row_sums"] = self._table(self._weights(step)), self._sums(step)
        f["row_settle"], f["row_exact"], f["row_bounds"] = self._settling(step)

    def _set_across(self, step: LineStep) -> None:
        f = self.values
        f["taps"], f["low"] = len(step.weights), step.window.low
        f["weights"], f["sums"] = self._table(self._weights(step)), self._sums(step)
        f["settle"], f["exact"], f["bounds"] = self._settling(step)
        f["ring"] = f["taps"] + ROWS - 1 if f["load"] else 0

    def _fit_along(self, f: dict[str, int], shape: Shape, step: LineStep, tables: list[np.ndarray]) -> None:
        f["pixels"], f["after"] = shape[step.axis], math.prod(shape[step.axis + 1 :])
        f["row_sources"] = self._borders(step, shape, tables)
        f["line"] = f["pixels"] * f["after"]
        f["filling"] = self._filled(step.fill, f["after"], tables)

    def _fit_across(
        self, f: dict[str, int], shape: Shape, step: LineStep, threads: int, tables: list[np.ndarray]
    ) -> None:
        behind, line = math.prod(shape[step.axis + 1 :]), f["line"]
        if not self.along:
            f["line"] = line = behind
        outer, rows, mid = math.prod(shape[: step.axis]), shape[step.axis], behind // line
        chunk = line if self.along else min(line, CHUNK // self.size)
        chunks = -(-line // chunk)
        f["outer"], f["rows"], f["mid"], f["chunk"], f["chunks"] = outer, rows, mid, chunk, chunks
        f["sources"] = self._borders(step, shape, tables)
        f["filling"] = self._filled(step.fill, max(chunk, f["after"]), tables)
        parts = outer * mid * chunks
        f["bands"] = bands = max(1, min(rows // ROWS, -(-UNITS * threads // parts)))
        f["tasks"] = min(threads * UNITS, parts * bands) if threads > 1 else 1
        self._scratch(f, rows + f["taps"], chunk)

    def _fit_rows(self, f: dict[str, int], shape: Shape, threads: int) -> None:
        f["outer"] = math.prod(shape) // f["line"]
        f["chunk"] = min(f["pixels"], max(1, PIECE // (f["after"] * self.size), 2 * f["row_taps"]))
        f["chunks"] = -(-f["pixels"] // f["chunk"])
        parts = f["outer"] * f["chunks"]
        f["tasks"] = min(threads * UNITS, parts) if threads > 1 else 1
        self._scratch(f, 0, f["chunk"] * f["after"])

    def _borders(self, step: LineStep, shape: Shape, tables: list[np.ndarray]) -> int:
        """The address of what lies beyond both borders of a step's axis."""
        sources = border_elements(step.window, shape[step.axis])
        tables.append(sources)
        return jit.data_address()(sources)

    def _filled(self, fill: float, count: int, tables: list[np.ndarray]) -> int:
        """The address of so many elements, or more, of what lies outside."""
        found = filling(fill, self.dtype, count)
        tables.append(found)
        return jit.data_address()(found)

    def _weights(self, step: LineStep) -> np.ndarray:
        """(taps,) as they are summed with."""
        return np.array(step.weights, self.dtype)

    def _sums(self, step: LineStep) -> int:
        in_order = self.y_dtype.kind != "f" and self.ways[step] == ORDERED
        order = order_of_sums(step.weights) if in_order else line_sums.FUSED
        return line_sums.sum_lines(order, self.size, self.lanes)

    def _settling(self, step: LineStep) -> tuple[int, int, int]:
        """(kernel, address of its weights, of its bounds) of sums that are settled, else zeros."""
        if self.y_dtype.kind == "f" or self.ways[step] != CLOSE:
            return 0, 0, 0
        source = self.sources[step]
        error = rounding_of_sums(step, source, self.size)
        bounds = np.array((error, 1 - error), self.dtype)
        kind = line_elements.element_kind(self.y_dtype)
        kernel = settling.settle_line(kind, order_of_sums(step.weights), self.size, self.lanes)
        return kernel, self._table(np.array(step.weights)), self._table(bounds)

    def _fuse(self, across: LineStep, along: LineStep | None) -> None:
        """Have sums of integers settled in registers where no whole part lies beyond their type."""
        f = self.values
        last, between = (line_elements.element_kind(dtype) for dtype in (self.y_dtype, self.dtype))
        steps = [("", across, between if along else last)] + ([("row_", along, last)] if along else [])
        if all(self._are_bytes(step) for _, step, _ in steps):
            for name, step, kind in steps:
                f[f"{name}whole"], f[f"{name}bounds"] = self._whole(step, kind)
        elif all(self._are_held(step) for _, step, _ in steps):
            for name, step, kind in steps:
                order = order_of_sums(step.weights)
                f[f"{name}whole"] = whole_sums.settled_sums(kind, order, self.size, self.lanes)

    def _are_held(self, step: LineStep) -> bool:
        """Whether sums are settled, and none that is cut off lies beyond the type of y, which is x's."""
        if self.ways[step] != CLOSE or self.y_dtype.kind not in "iu" or self.x_dtype != self.y_dtype:
            return False
        limits, taps = np.iinfo(self.y_dtype), step.weights
        most = max(int(limits.max), abs(step.fill)) * math.fsum(map(abs, taps))
        positive = limits.min < 0 or min(*taps, step.fill) >= 0
        return limits.bits == FUSED_BITS and positive and most < limits.max + 0.5

    def _are_bytes(self, step: LineStep) -> bool:
        """Whether sums lie from 0 to 255, and are settled."""
        taps, types = step.weights, {self.sources[step], self.y_dtype}
        held = min(*taps, step.fill) >= 0 and 255 * math.fsum(taps) < 255.5 and step.fill <= 255
        known = self.size == 4 and self.ways[step] == CLOSE and len(taps) <= MOST_TAPS
        return types == {np.dtype(np.uint8)} and held and known

    def _whole(self, step: LineStep, kind: int) -> tuple[int, int]:
        """(kernel, address of its bounds) of sums of bytes to a kind; each product is rounded by 2**-16."""
        error = (len(step.weights) + 3) // 2  # in units of the last place
        below = 1 << (2 * error).bit_length()  # that many units behind a whole number are too few
        bounds = np.array((256 + error / (1 << whole_sums.FRACTION),), np.float32).view(np.int32)
        digits = (1 << whole_sums.FRACTION) - below
        kernel = whole_sums.whole_sums(kind, order_of_sums(step.weights), self.size, self.lanes)
        return kernel, self._table(np.append(bounds, np.int32(digits)))

    def _scratch(self, f: dict[str, int], table: int, count: int) -> None:
        """Where each task keeps its tables and lines, of `count` elements without borders.

        table: addresses of lines that are summed across.
        """
        border = f["row_taps"] * f["after"] * self.size
        f["border_bytes"] = whole_lines(border)
        f["line_bytes"] = f["border_bytes"] + whole_lines(count * self.size + border)
        f["shifted_at"] = whole_lines(8 * table)
        f["lines_at"] = f["shifted_at"] + whole_lines(8 * (f["row_taps"] + f["taps"]))
        f["stored_at"] = f["lines_at"] + ROWS * f["line_bytes"]
        f["ring_at"] = f["stored_at"] + f["line_bytes"]
        f["rows_at_once"] = ROWS
        f["scratch_bytes"] = f["ring_at"] + f["ring"] * f["line_bytes"]
