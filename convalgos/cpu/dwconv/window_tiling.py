"""How maps of bytes are cut into bands for `cpu.depthwise.windows`, and where the rows of a band lie."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise, product

import numpy as np

from convalgos.core.allocator import whole_lines
from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.machine import cache_sizes
from convalgos.core.problem import ConvProblem
from convalgos.cpu.dwconv.byte_rows import PHASE_ROWS
from convalgos.cpu.dwconv.window_sums import STORE_BLOCK, STORE_RUN
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.runtime.threads import THREAD_UNITS, cached_by_threads, plan_threads
from convalgos.cpu.vectors import simd

WINDOW = 4  # bytes of a word: columns of a kernel that meet one
TURNED_CHANNELS = 64  # of channels_last maps, that are turned at once: a cache line
BAND_COLUMNS = 4096  # outputs of a row that are summed at once, at most
# A band: places in x of its first window, with padding; its outputs, and the tables that store them.
OUTPUT_BAND = fields("slice first parts y outputs tiles blocks runs")


@dataclass(frozen=True)
class WindowTiling:
    """Bands of `rows` x `columns` outputs; the last ones of a map have fewer."""

    problem: ConvProblem  # the 3-D view
    filters: int  # summed at a time, at most
    vectors: int  # of outputs, too
    groups: int  # whose rows are placed at once
    rows: int
    columns: int

    @property
    def lanes(self) -> int:
        return simd.lanes(4)

    @property
    def step(self) -> int:
        """Bytes from one window to the next: 1, 2 or 4. Of a stride of 3 every third is stored."""
        return math.gcd(self.problem.stride[2], 4)

    @property
    def lines(self) -> bool:
        """Whether words hold four rows, as the kernel has one column."""
        p = self.problem
        return bool(p.kernel[2] == 1 == p.stride[2] and p.kernel[1] > 1)

    @cached_attribute
    def windows(self) -> list[list[int]]:
        """Columns of the kernel by the windows that they are in."""
        found: list[list[int]] = []
        step = self.problem.dilation[2]
        for column in range(self.problem.kernel[2]):
            if not found or (column - found[-1][0]) * step >= WINDOW:
                found.append([])
            found[-1].append(column)
        return found

    @property
    def pitch(self) -> int:
        """Bytes from one row to the next. They share the padding; of rows that are cut every block of outputs
        lies in one."""
        p = self.problem
        if self.columns < p.spatial_out[2]:
            unit = 4 * self.lanes * self.step
            return -(-((self.columns - 1) * p.stride[2] + p.kernel_extent[2]) // unit) * unit
        row = max(p.spatial[2] + max(p.padding[2]), (self.columns - 1) * p.stride[2] + 1)
        return -(-row // self.step) * self.step

    @property
    def row_vectors(self) -> int:
        """That are written of a row, with the padding behind it."""
        return -(-(self.pitch + self.problem.padding[2][1]) // (4 * self.lanes))

    def rows_under(self, rows: int) -> int:
        """Rows of x that some rows of outputs meet."""
        p = self.problem
        return int((rows - 1) * p.stride[1] + p.kernel_extent[1])

    @property
    def phases(self) -> int:
        return int(self.problem.stride[1])

    @property
    def phase(self) -> int:
        """Bytes of the rows of a phase of the stride, whose last one is written beyond its end."""
        rows = -(-self.rows_under(self.rows) // self.phases)
        return whole_lines((rows - 1) * self.pitch + self.row_vectors * 4 * self.lanes)

    @property
    def plane(self) -> int:
        """Bytes of a slice of a channel."""
        return self.phases * self.phase

    @property
    def planes(self) -> int:
        return int(self.problem.w_shape[1] * self.problem.kernel[0])

    @property
    def last(self) -> bool:
        """Whether maps are channels_last: rows are turned on the way in, and outputs on the way out."""
        return bool(self.problem.layout == "channels_last")

    @property
    def y_plane(self) -> int:
        """Elements from one filter to the next of what sums are stored in."""
        p = self.problem
        return whole_lines(self.rows * self.columns) if self.last else math.prod(p.spatial_out)

    @property
    def y_bytes(self) -> int:
        """Of outputs before they are turned, which is done by vectors of filters."""
        if not self.last:
            return 0
        filters = self.groups * self.problem.gemm_n
        return -(-filters // self.lanes) * self.lanes * self.y_plane * Y_BYTES[self.problem.y_dtype]

    @property
    def scratch_bytes(self) -> int:
        """Of one task."""
        return self.sums + self.y_bytes

    @property
    def sums(self) -> int:
        """Where outputs are before they are turned. Sums read a tile and a window beyond the last row."""
        spare = (self.vectors + 1) * 4 * self.lanes * self.step + self.problem.kernel_extent[2]
        return RECORDS + whole_lines(int(self.groups * self.planes * self.plane + spare))

    @cached_attribute
    def offsets(self) -> np.ndarray:
        """(C/groups * T * R * windows,) bytes from the first of an output to those of its windows; of lines,
        of whose words the last is filled up with the last row, to those of its rows."""
        p = self.problem
        filled = -(-p.kernel[1] // WINDOW) * WINDOW if self.lines else p.kernel[1]
        rows = np.minimum(np.arange(filled), p.kernel[1] - 1) * p.dilation[1]
        of_rows = rows % self.phases * self.phase + rows // self.phases * self.pitch
        of_planes = np.add.outer(np.arange(self.planes) * self.plane, of_rows)
        columns = np.array([window[0] * p.dilation[2] for window in self.windows])
        found: np.ndarray = np.add.outer(of_planes, columns).ravel().astype(np.int64)
        return found

    def tiles(self, rows: int) -> int:
        places = rows * self.pitch // self.step
        return -(-places // (self.vectors * self.lanes))

    def stores(self, rows: int, columns: int, lanes: int) -> tuple[np.ndarray, np.ndarray]:
        """`STORE_BLOCK` of each vector of y that a band is stored by, and the `STORE_RUN` of all of them."""
        p = self.problem
        between, pitch = p.stride[2] // self.step, self.pitch // self.step  # places of outputs
        blocks = self.tiles(rows) * self.vectors * self.lanes // lanes
        places = np.add.outer(np.arange(rows) * pitch, np.arange(columns) * between).ravel()
        width = columns if self.last else p.spatial_out[2]
        to = np.add.outer(np.arange(rows) * width, np.arange(columns)).ravel()
        ends = np.searchsorted(places, np.arange(blocks + 1) * lanes)
        found: list[tuple[int, ...]] = []
        runs: list[tuple[int, ...]] = []
        for block, (first, end) in enumerate(pairwise(ends.tolist())):
            inside = places[first:end] - block * lanes
            goes_on = (np.diff(inside) == 1) & (np.diff(to[first:end]) == 1)
            starts = [0, *(np.flatnonzero(~goes_on) + 1).tolist()] if end > first else []
            before = len(runs)
            for a, b in pairwise([*starts, end - first]):
                lane = int(inside[a])
                runs.append((int(to[first + a]) - lane, lane, b - a, _bits(lane, b - a)))
            kept = sum(1 << int(lane) for lane in inside)
            at = int(to[first]) if end > first else 0
            found.append((before, len(starts), _signed(kept), at, _bits(0, end - first)))
        return np.array(found, STORE_BLOCK), np.array(runs, STORE_RUN)

    def phase_rows(self, row: int, rows: int) -> np.ndarray:
        """`PHASE_ROWS` of a band of so many output rows."""
        p = self.problem
        first, height, step = row * p.stride[1] - p.padding[1][0], p.spatial[1], self.phases
        found = []
        for phase in range(step):
            count = max(0, -(-(self.rows_under(rows) - phase) // step))
            above = min(count, max(0, -((first + phase) // step)))
            end = max(above, min(count, -((first + phase - height) // step)))
            x = (first + phase + above * step) * p.spatial[2] if end > above else 0
            found.append((x, above, end - above, count - end, phase * self.phase))
        return np.array(found, PHASE_ROWS)

    def bands(self, lanes: int) -> tuple[np.ndarray, list[np.ndarray]]:
        """`OUTPUT_BAND` of all bands of a group of an image, and the tables that they tell of."""
        p = self.problem
        height, width = p.spatial_out[1:]
        rows, columns = range(0, height, self.rows), range(0, width, self.columns)
        parts = {row: self.phase_rows(row, min(self.rows, height - row)) for row in rows}
        kinds = {
            (m, n): self.stores(m, n, lanes)
            for m in {min(self.rows, height - row) for row in rows}
            for n in {min(self.columns, width - column) for column in columns}
        }
        found = []
        for o, row, column in product(range(p.spatial_out[0]), rows, columns):
            kind = min(self.rows, height - row), min(self.columns, width - column)
            blocks, runs = kinds[kind]
            found.append(
                (
                    o * p.stride[0] - p.padding[0][0], column * p.stride[2] - p.padding[2][0],
                    parts[row].ctypes.data, (o * height + row) * width + column, kind[0] * kind[1],
                    self.tiles(kind[0]), blocks.ctypes.data, runs.ctypes.data,
                )
            )  # fmt: skip
        kept = [*parts.values(), *(table for pair in kinds.values() for table in pair)]
        return np.array(found, OUTPUT_BAND), kept


Y_BYTES = {"int32": 4, "float32": 4, "int8": 1, "uint8": 1}
RECORDS = 512  # bytes of scratch for what the driver tells the kernels


def _bits(first: int, count: int) -> int:
    """As many bits from the first on, as an integer with a sign."""
    return _signed(((1 << count) - 1) << first)


def _signed(bits: int) -> int:
    """64 bits as an integer with a sign."""
    return bits - (1 << 64) if bits >> 63 else bits


@cached_by_threads(256)
def window_tiling(problem: ConvProblem) -> WindowTiling:
    p, lanes = problem.as_3d, simd.lanes(4)
    l1, l2, _ = cache_sizes()
    _, height, width = p.spatial_out
    columns = width if width <= BAND_COLUMNS else BAND_COLUMNS
    filters = min(p.gemm_n, 4 if lanes >= 16 else 2)
    filters = 2 if filters == 3 else filters
    cut = WindowTiling(p, filters, 4, 1, 1, columns)
    if cut.last:
        cut = replace(cut, groups=max(1, min(p.groups, TURNED_CHANNELS // max(p.w_shape[1], p.gemm_n))))
    row_bytes = cut.groups * cut.planes * cut.pitch * p.stride[1] + cut.y_bytes
    budget = l2 // 4 if cut.last else l1 // 2
    rows = max(1, budget // row_bytes - (p.kernel_extent[1] - 1) // p.stride[1])
    if cut.last and columns < width:
        rows = 1  # whose outputs lie side by side
    planes = p.N * -(-p.groups // cut.groups) * p.spatial_out[0] * -(-width // columns)
    wanted = -(-THREAD_UNITS * plan_threads() // planes)
    bands = max(-(-height // rows), min(wanted, max(1, height // max(4, p.kernel_extent[1]))))
    cut = replace(cut, rows=-(-height // bands))
    if filters == 1:
        blocks = 2 * replace(cut, vectors=8).tiles(cut.rows)
        cut = replace(cut, vectors=8 if blocks == cut.tiles(cut.rows) else 4)
    if cut.last:
        return cut
    units = planes * -(-height // cut.rows)
    at_once = min(p.groups, l1 // 4 // (cut.planes * cut.plane), units // (THREAD_UNITS * plan_threads()))
    return replace(cut, groups=max(1, at_once))
