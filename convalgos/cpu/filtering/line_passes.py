"""A pass over memory that correlates along one axis or two: how the drivers of lines are called.

float32 arrays, and small integers, are summed in float32 where that is enough; all else in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from convalgos.core.allocator import whole_lines
from convalgos.core.arguments import Shape
from convalgos.cpu.filtering import line_drivers, line_elements, line_sums, whole_sums
from convalgos.cpu.filtering.line_endings import PLAIN, end_line
from convalgos.cpu.filtering.line_steps import (
    CLOSE,
    ORDERED,
    LineStep,
    border_sources,
    order_of_sums,
    rounding_of_sums,
    way_of_sums,
)
from convalgos.cpu.filtering.line_sums import ROWS
from convalgos.cpu.runtime.record_launch import RecordLaunch
from convalgos.cpu.runtime.threads import plan_threads
from convalgos.cpu.vectors import simd

SINGLE = {"bool", "int8", "uint8", "int16", "uint16", "float32"}  # types that float32 holds exactly
CHUNK = 8 << 10  # bytes of sums of a chunk of a line that is only summed across; Zen 4
PIECE = 64 << 10  # bytes of sums of a chunk of a line that is summed along itself
SHARED = 1 << 17  # products of a pass that are worth a second thread
MOST_TAPS = 1 << 9  # of sums that whole parts are taken of with an error far below 1
FUSED_BITS = 16  # of integers whose sums are settled where they are summed
UNITS = 4  # of work for each thread, where there are so many


def _sum_bytes(x_dtype: np.dtype, y_dtype: np.dtype, ways: Sequence[str]) -> int:
    """Bytes of an element of sums: 4 where float32 holds all terms, and its sums what is asked for.

    ways: of sums of float32 to integers, of each step.
    """
    single = x_dtype.name in SINGLE and y_dtype.name in SINGLE
    return 4 if single and (y_dtype.kind == "f" or ORDERED not in ways) else 8


class LinePass:
    """One pass over memory, fixed to a shape: a step across lines, one along them, or both.

    ending: how sums meet y, which are floats, as `line_endings` has it.
    """

    def __init__(
        self, shape: Shape, x_dtype: np.dtype, y_dtype: np.dtype, steps: Sequence[LineStep],
        ending: int = PLAIN,
    ):  # fmt: skip
        self.shape, self.x_dtype, self.y_dtype = shape, x_dtype, y_dtype
        self.sources = {s: y_dtype if n else x_dtype for n, s in enumerate(steps)}  # what each reads
        self._set_numbers()
        self.kept: list[np.ndarray] = []  # tables that the record points to
        f = self.values = dict.fromkeys(line_drivers.FIELDS.names or (), 0)
        f["x_bytes"], f["y_bytes"] = x_dtype.itemsize, y_dtype.itemsize
        self._convert()
        if ending != PLAIN:
            kind = line_elements.KINDS.index(y_dtype.name)
            f["ending"] = end_line(ending, kind, self.size, self.lanes)
        products = math.prod(shape) * sum(len(s.weights) for s in steps)
        self.threads = plan_threads() if products > SHARED else 1
        self._arrange(steps)
        self.record = np.array(list(f.values()))  # (fields,) int64
        names, tasks = line_drivers.FIELDS.names, f["tasks"]
        self.run = RecordLaunch(self.kernel, self.record, names, tasks * f["scratch_bytes"], tasks, self.kept)

    def _set_numbers(self) -> None:
        """Set what is computed with, and how integers come of it."""
        ways = [way_of_sums(step, dtype, 4) for step, dtype in self.sources.items()]
        self.size = _sum_bytes(self.x_dtype, self.y_dtype, ways)
        self.ways = {s: way_of_sums(s, t, self.size) for s, t in self.sources.items()}
        self.dtype = np.dtype(f"f{self.size}")
        self.lanes = simd.lanes(self.size)

    def _arrange(self, steps: Sequence[LineStep]) -> None:
        """Set all that depends on how lines are dealt."""
        across, along = (steps[0], steps[-1]) if len(steps) == 2 else self._alone(steps[0])
        if along:
            self._along(along)
        if across:
            self._across(across, along)
            if along:
                self._fuse(across, along)
        else:
            self._rows()

    def _alone(self, step: LineStep) -> tuple[LineStep | None, LineStep | None]:
        """(step, None) where lines are long enough to sum across them, else (None, step)."""
        after = math.prod(self.shape[step.axis + 1 :])
        return (step, None) if after >= self.lanes else (None, step)

    def _table(self, values: np.ndarray) -> int:
        self.kept.append(values)
        return values.ctypes.data

    def _convert(self) -> None:
        """Set the kernels between the types of x, y and sums, where these differ."""
        if self.x_dtype != self.dtype:
            self.values["load"] = self._load(self.x_dtype)
        if self.y_dtype != self.dtype:
            kind = line_elements.KINDS.index(self.y_dtype.name)
            self.values["store"] = line_elements.store_line(kind, self.size, self.lanes)
            self.values["reload"] = self._load(self.y_dtype)

    def _load(self, dtype: np.dtype) -> int:
        return line_elements.load_line(line_elements.KINDS.index(dtype.name), self.size, self.lanes)

    def _filled(self, fill: float, count: int) -> None:
        self.values["filling"] = self._table(np.full(count, fill, self.dtype))

    def _along(self, step: LineStep) -> None:
        f, shape = self.values, self.shape
        f["pixels"], f["after"] = shape[step.axis], math.prod(shape[step.axis + 1 :])
        f["row_taps"], f["row_low"] = len(step.weights), step.window.low
        f["row_weights"], f["row_sources"] = self._taps(step)
        f["row_sums"] = self._sums(step)
        f["row_settle"], f["row_exact"], f["row_bounds"] = self._settling(step)
        f["line"] = f["pixels"] * f["after"]
        self._filled(step.fill, f["after"])

    def _across(self, step: LineStep, along: LineStep | None) -> None:
        f, shape = self.values, self.shape
        if not along:
            f["line"] = math.prod(shape[step.axis + 1 :])
        f["outer"], f["rows"] = math.prod(shape[: step.axis]), shape[step.axis]
        f["mid"] = math.prod(shape[step.axis + 1 :]) // f["line"]
        f["taps"], f["low"] = len(step.weights), step.window.low
        f["weights"], f["sources"] = self._taps(step)
        f["sums"] = self._sums(step)
        f["settle"], f["exact"], f["bounds"] = self._settling(step)
        f["chunk"] = f["line"] if along else min(f["line"], CHUNK // self.size)
        f["chunks"] = -(-f["line"] // f["chunk"])
        f["ring"] = f["taps"] + ROWS - 1 if f["load"] else 0
        self._filled(step.fill, max(f["chunk"], f["after"]))
        parts = f["outer"] * f["mid"] * f["chunks"]
        f["bands"] = max(1, min(f["rows"] // ROWS, -(-UNITS * self.threads // parts)))
        f["tasks"] = min(self.threads * UNITS, parts * f["bands"]) if self.threads > 1 else 1
        self._scratch(f["rows"] + f["taps"], f["chunk"])
        self.kernel = line_drivers.columns_share(self.size)

    def _rows(self) -> None:
        f = self.values
        f["outer"] = math.prod(self.shape) // f["line"]
        f["chunk"] = min(f["pixels"], max(1, PIECE // (f["after"] * self.size), 2 * f["row_taps"]))
        f["chunks"] = -(-f["pixels"] // f["chunk"])
        f["load"] = f["load"] or self._load(self.dtype)
        parts = f["outer"] * f["chunks"]
        f["tasks"] = min(self.threads * UNITS, parts) if self.threads > 1 else 1
        self._scratch(0, f["chunk"] * f["after"])
        self.kernel = line_drivers.rows_share(self.size)

    def _taps(self, step: LineStep) -> tuple[int, int]:
        """Addresses of the weights, and of the elements that lie beyond both borders."""
        sources = border_sources(step.window)
        return self._table(self._weights(step)), self._table(sources)

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
        positive = source.kind in "ub" and min(*step.weights, step.fill) >= 0  # where sums of 0 are exact
        bounds = np.array((error, 1 - error, 0 if positive else -1), self.dtype)
        kind = line_elements.KINDS.index(self.y_dtype.name)
        kernel = whole_sums.settle_line(kind, order_of_sums(step.weights), self.size, self.lanes)
        return kernel, self._table(np.array(step.weights)), self._table(bounds)

    def _fuse(self, across: LineStep, along: LineStep) -> None:
        """Have sums of integers settled in registers where no whole part lies beyond their type."""
        f, steps = self.values, (across, along)
        kind = line_elements.KINDS.index(self.y_dtype.name)
        if all(map(self._are_bytes, steps)):
            f["whole"], f["bounds"] = self._whole(across, line_elements.FLOAT)
            f["row_whole"], f["row_bounds"] = self._whole(along, kind)
        elif all(map(self._are_held, steps)):
            between = line_elements.KINDS.index(self.dtype.name)
            for name, held, step in (("whole", between, across), ("row_whole", kind, along)):
                order = order_of_sums(step.weights)
                f[name] = whole_sums.settled_sums(held, order, self.size, self.lanes)

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

    def _scratch(self, table: int, count: int) -> None:
        """Where each task keeps its tables and lines, of `count` elements without borders.

        table: addresses of lines that are summed across.
        """
        f = self.values
        border = f["row_taps"] * f["after"] * self.size
        f["border_bytes"] = whole_lines(border)
        f["line_bytes"] = f["border_bytes"] + whole_lines(count * self.size + border)
        f["shifted_at"] = whole_lines(8 * table)
        f["lines_at"] = f["shifted_at"] + whole_lines(8 * (f["row_taps"] + f["taps"]))
        f["stored_at"] = f["lines_at"] + ROWS * f["line_bytes"]
        f["ring_at"] = f["stored_at"] + f["line_bytes"]
        f["rows_at_once"] = ROWS
        f["scratch_bytes"] = f["ring_at"] + f["ring"] * f["line_bytes"]
