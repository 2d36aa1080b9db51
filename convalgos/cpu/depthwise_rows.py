"""Depthwise convolution, vectorised along the rows of a plane.

With one input channel per filter every plane is filtered by itself. A tile of output rows by vectors of
columns stays in registers over the whole kernel, the weights are broadcast, and each vector of x that is
loaded feeds every output row that it meets. x is read where it lies. Dilated rows are interleaved sets of
rows without dilation. In long filters of one row, neighbouring vectors stand for rows. Wins on wide maps and
signals; `cpu.depthwise.channels` wins on small maps and serves channels_last.

Source: the depthwise scheme of Zhang, Lo and Lu, "High performance depthwise and pointwise convolutions on
mobile devices" (AAAI 2020), turned from channels to columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import ClassVar

import numpy as np

from convalgos.core.algorithm import Algorithm, error_of_sums
from convalgos.core.allocator import whole_lines
from convalgos.core.cached_attribute import kept
from convalgos.core.machine import cache_sizes, vector_bytes
from convalgos.core.problem import ConvProblem
from convalgos.cpu.dwconv.row_kernels import (
    BAND,
    FOLDED_ROWS,
    RECORD,
    STRIP,
    TILE,
    TILE_ROWS,
    USUAL,
    driver,
    filter_tiles,
    folded,
)
from convalgos.cpu.dwconv.row_strips import Columns, pass_sizes, passes
from convalgos.cpu.layout import streaming
from convalgos.cpu.runtime.plan import CALL, KernelPlan
from convalgos.cpu.runtime.threads import Lone, cut_once, thread_count
from convalgos.cpu.vectors import simd

# Rows of a tile of two vectors at most, by vector bytes: half of the registers hold sums. The same for
# vectors that stand for rows, each with a sum for each column of the stride.
ROWS = {64: 8, 32: 4, 16: 4}
FOLDED_SUMS = {64: 16, 32: 8, 16: 8}
FEW = 4  # rows of outputs that do not fill a tile
COLUMNS = 4096  # outputs of a long row that are filtered at once
UNITS = 4  # of work for each thread, where the problem can be cut into so many
# Cycles of a thread: estimates for a Xeon (Granite Rapids) with AVX-512, fitted to no measurements.
LOAD = 0.8  # to load a vector that crosses cache lines, where products do not hide it,
LATENCY = 4  # until a sum can be added to,
COLUMN = 2  # to begin a kernel column of a tile,
TILE_CYCLES = 12  # and a tile, beside 3 for each vector of its sums,
PIECE_CYCLES = 40  # and to call a kernel
MASKS = 16 << 20  # bytes of tables: filters that long belong to FFTs

# --- shapes ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cut:
    """How planes are cut into bands, and bands into tiles of rows by strips of columns."""

    problem: ConvProblem  # the 3-D view
    rows: int  # of a tile
    band_rows: int  # whole tiles of all sets; the last band of a plane takes what is left too
    band_columns: int  # whole strips; the first and the last band of a row have its borders too

    @property
    def lanes(self) -> int:
        return simd.lanes(self.problem.itemsize)

    @property
    def row_sets(self) -> int:
        """Interleaved sets of output rows; only the rows of one set share rows of a dilated kernel."""
        p = self.problem
        return p.dilation[1] // math.gcd(p.stride[1], p.dilation[1])

    @property
    def row_stride(self) -> int:
        """Kernel rows between the outputs of a set."""
        p = self.problem
        return p.stride[1] // math.gcd(p.stride[1], p.dilation[1])

    @property
    def reach(self) -> int:
        """Elements of x from the first tap of a row to the last."""
        return (self.problem.kernel[2] - 1) * self.problem.dilation[2]

    @property
    def columns(self) -> Columns:
        p = self.problem
        row = p.spatial[2], p.padding[2][0], self.reach, p.stride[2], p.spatial_out[2]
        return Columns(*row, self.lanes, self.square > 0)

    @property
    def period(self) -> int:
        """Taps of a row between two that meet the same lanes of neighbouring sums; 0: there are none."""
        return 0 if self.lanes % self.problem.dilation[2] else self.lanes // self.problem.dilation[2]

    @property
    def folds(self) -> bool:
        """Whether vectors of a row that follow one another are filtered as if they were rows.

        The taps of a row are rows of `period` taps then, and a vector of x feeds as many of its vectors. That
        is for filters of one row, long or of few rows of outputs.
        """
        p = self.problem
        few = p.spatial_out[1] < FEW or p.kernel[2] > self.period
        return p.kernel[:2] == (1, 1) and self.period > 0 and few

    @kept
    def column_starts(self) -> list[int]:
        """First outputs of the bands of a row: whole strips behind its left border, at least a vector before
        the right one."""
        first, end = self.columns.inner if self.folds else (0, self.problem.spatial_out[2])
        return [0, *range(first + self.band_columns, end - self.lanes + 1, self.band_columns)]

    @property
    def row_bands(self) -> int:
        return max(1, self.problem.spatial_out[1] // self.band_rows)

    @property
    def column_bands(self) -> int:
        return len(self.column_starts)

    @property
    def most_rows(self) -> int:
        """Output rows of the largest band."""
        return self.problem.spatial_out[1] - (self.row_bands - 1) * self.band_rows

    @kept
    def most_columns(self) -> int:
        """Outputs of the largest band of a row."""
        return max(b - a for a, b in pairwise([*self.column_starts, self.problem.spatial_out[2]]))

    @property
    def streams(self) -> bool:
        """Whether a y too large for the caches is stored around them, from scratch; bands are runs in it."""
        runs = self.column_bands == 1 or self.band_rows == 1
        large = streaming.outgrows_caches(self.problem.y_bytes, streaming.STREAMED_PLANES)
        return large and runs

    @property
    def scratch_bytes(self) -> int:
        """Of one task."""
        if not self.streams:
            return 0
        return whole_lines(self.most_rows * self.most_columns * self.problem.itemsize)

    @kept
    def offsets(self) -> np.ndarray:
        """(S,) where the taps of a row lie, from an output's first on."""
        return np.arange(self.problem.kernel[2], dtype=np.int64) * self.problem.dilation[2]

    @property
    def step(self) -> int:
        """STEP of `filter_tiles`."""
        stride = self.problem.stride[2]
        return self.row_stride if (self.row_stride, stride) in TILE_ROWS else 0

    @property
    def square(self) -> int:
        """TAPS of `filter_tiles`."""
        p = self.problem
        known = p.kernel[1] == p.kernel[2] and p.kernel[2] in USUAL[p.stride[2]] and p.dilation[2] == 1
        return p.kernel[2] if known and self.step else 0

    @property
    def in_pairs(self) -> bool:
        """Whether two columns of taps lie side by side in what a stride loads."""
        return self.problem.stride[2] == 2 and self.problem.dilation[2] == 1


def tile_rows(stride: int, narrow: bool) -> int:
    """Rows of a tile at most; narrow: where it is one vector wide, filtered by code for its kernel."""
    return ROWS[vector_bytes()] // (1 if narrow else stride)


def folded_rows(stride: int) -> list[int]:
    """Vectors of outputs that are filtered as rows, at once."""
    return [r for r in FOLDED_ROWS if r * stride <= FOLDED_SUMS[vector_bytes()]]


@cut_once(256)
def cut(problem: ConvProblem) -> Cut:
    p = problem.as_3d
    l1, l2, _ = cache_sizes()
    _, rows_out, columns_out = p.spatial_out
    lanes = simd.lanes(p.itemsize)
    whole = Cut(p, 1, rows_out, columns_out)
    wanted = -(-UNITS * thread_count() // (p.N * p.C * p.spatial_out[0]))  # bands of a plane
    most = max(1, rows_out // whole.row_sets // wanted)
    narrow = columns_out <= lanes and whole.square > 0
    shapes = [r for r in TILE_ROWS[whole.step, p.stride[2]] if r <= min(tile_rows(p.stride[2], narrow), most)]
    cycles = _tiles_cycles(whole, shapes)
    c = replace(whole, rows=shapes[cycles.index(min(cycles))])
    strip, tile = 2 * lanes, c.rows * c.row_sets

    def rows_under(rows: int) -> int:  # of x
        return (rows - 1) * p.stride[1] + p.kernel_extent[1]

    column_bytes = p.itemsize * (rows_under(tile) * p.stride[2] + tile)
    columns = max(1, l2 // 2 // column_bytes // strip) * strip
    if rows_out == 1:
        columns = min(columns, max(1, min(COLUMNS, columns_out // wanted) // strip) * strip)
    if columns >= columns_out:
        columns = -(-columns_out // strip) * strip
    rows = tile
    row_bytes = p.itemsize * min(columns, columns_out) * (p.stride[2] * p.stride[1] + 1)
    while (rows + tile) * row_bytes <= l1 // 2 and rows_out // (rows + tile) >= wanted:
        rows += tile
    return replace(c, band_rows=rows, band_columns=columns)


def _plane_cycles(c: Cut) -> float:
    """Of a plane on one core."""
    p = c.problem
    (tiles,) = _tiles_cycles(c, [c.rows])
    pieces = p.spatial_out[0] * c.row_bands * c.column_bands
    return p.gemm_n * (tiles + PIECE_CYCLES * pieces)


def _tiles_cycles(c: Cut, shapes: Sequence[int]) -> list[float]:
    """Of all tiles of a plane, for one filter, by the rows of a tile."""
    p = c.problem
    slices_out, rows_out, columns_out = p.spatial_out
    vectors = -(-columns_out // c.lanes)
    if c.folds:
        return [slices_out * rows_out * _folded_cycles(c, vectors)] * len(shapes)
    step = c.step
    sizes = pass_sizes(p.kernel[1], step)
    set_rows = -(-rows_out // c.row_sets)
    strips = -(-vectors // 2)
    return [
        slices_out * -(-set_rows // rows) * c.row_sets * strips
        * (TILE_CYCLES + p.kernel[0] * sum(_pass_cycles(c, rows, min(2, vectors), step, s) for s in sizes))
        for rows in shapes
    ]  # fmt: skip


def _pass_cycles(c: Cut, rows: int, vectors: int, step: int, size: int) -> float:
    """Of all columns of a pass over some rows of taps, for a tile."""
    loads = ((rows - 1) * (step or size) + size) * vectors
    sums = rows * size * vectors
    return c.problem.kernel[2] * (COLUMN + max(sums / 2 + 0.1 * loads, LOAD * loads, size * LATENCY / 2))


def _folded_cycles(c: Cut, vectors: int) -> float:
    """Of a row of outputs, where vectors are filtered as rows."""
    s, lanes_rows = c.problem.kernel[2], min(max(folded_rows(c.problem.stride[2])), vectors)
    full, rest = divmod(s, c.period)
    tile = float(TILE_CYCLES + 3 * lanes_rows)
    for taps, columns in ((full + 1, rest), (full, c.period - rest)):
        for size in pass_sizes(taps, 1) if columns else ():
            tile += columns / s * _pass_cycles(c, lanes_rows, 1, 1, size)
    return vectors / lanes_rows * tile


# --- plan ------------------------------------------------------------------------------------


class RowsPlan(KernelPlan):
    def __init__(self, problem: ConvProblem, algorithm: Rows):
        c = cut(problem)
        p = c.problem
        tasks = thread_count()
        tables = _Tables(c)
        self._zeros = np.zeros(c.reach + 4 * p.stride[2] * c.lanes, p.dtype)
        self._masks = tables.masks
        values = {
            "size": p.itemsize, "tasks": tasks, "planes": p.N * p.C, "channels": p.C, "multiplier": p.gemm_n,
            "band_count": len(tables.bands), "bands": np.array(tables.bands, BAND),
            "strips": np.array(tables.strips, STRIP), "tiles": np.array(tables.tiles, TILE),
            "height": p.spatial[1], "width": p.spatial[2], "x_plane": math.prod(p.spatial),
            "y_plane": math.prod(p.spatial_out), "pad": p.padding[2][0], "row_step": p.dilation[1],
            "slice_step": p.dilation[0] * p.spatial[1] * p.spatial[2], "step": c.row_stride,
            "zeros": self._zeros.ctypes.data, "offsets": c.offsets,
            "passes": passes([(0, p.kernel[1], 0, p.kernel[2])], c.step, c.in_pairs),
            "folded_passes": _folded_passes(c), "filter": p.gemm_k, "w_row": p.kernel[2],
            "w_slice": p.kernel[1] * p.kernel[2], "period": c.period, "y_row": c.row_sets * p.spatial_out[2],
            "filter_tiles": filter_tiles(p.itemsize, c.lanes, c.rows, c.step, p.stride[2], c.square),
            "stream": streaming.stream(p.itemsize, c.lanes) if c.streams else 0,
            "scratch_bytes": c.scratch_bytes,
        }  # fmt: skip
        super().__init__(problem, algorithm, RECORD, values, [(driver(), tasks)], tasks * c.scratch_bytes)

    def pack_filter(self, w: np.ndarray) -> np.ndarray:
        """As it is: (K, 1, *kernel)."""
        return np.array(w, order="C")


def _folded_passes(c: Cut) -> np.ndarray:
    """Rows of `period` taps; the last is cut short."""
    if not c.folds:
        return np.zeros(0, np.int64)
    columns = c.problem.kernel[2]
    full, rest = divmod(columns, c.period)
    if c.in_pairs and rest % 2:  # the last tap has no neighbour, but those above it have
        parts = [(0, full + 1, 0, rest - 1), (0, full, rest - 1, c.period - rest + 1), (full, 1, rest - 1, 1)]
    else:
        parts = [(0, full + 1, 0, rest), (0, full, rest, c.period - rest)]
    return passes(parts, 1, c.in_pairs)


class _Tables:
    """The bands of a plane, the strips of all bands, and the tiles of both: `BAND`, `STRIP` and `TILE`."""

    def __init__(self, c: Cut):
        self.c = c
        self.bands: list[tuple[int, ...]] = []
        self.strips: list[tuple[int, ...]] = []
        self.tiles: list[tuple[int, ...]] = []
        self.masks: list[np.ndarray] = []  # of the strips
        p = c.problem
        of_columns = [(a, b, *self._strips(a, b)) for a, b in pairwise([*c.column_starts, p.spatial_out[2]])]
        for band, o in product(range(c.row_bands), range(p.spatial_out[0])):
            p0 = band * c.band_rows
            self._add(o, p0, p0 + c.band_rows if band < c.row_bands - 1 else p.spatial_out[1], of_columns)

    def _strips(self, first: int, end: int) -> tuple[tuple[int, ...], tuple[int, int]]:
        """The strips of a band of columns, as in `BAND`, and the outputs between them that are folded."""
        columns = self.c.columns
        a, b = columns.inner if self.c.folds else (end, end)
        a, b = max(first, min(a, end)), max(first, min(b, end))
        before, behind = columns.strips(first, a), columns.strips(b, end)
        plain = before.plain or behind.plain
        again = [(q, self.c.lanes) for q in behind.plain if before.plain]
        lefts, rights = before.left + behind.left, before.right + behind.right
        doubles, singles = before.double + behind.double, before.single + behind.single
        found: list[int] = []  # how many of each kind, and the first of them
        for strips in (
            [(q, self.c.lanes) for q in lefts],
            [(q, self.c.lanes) for q in rights],
            doubles + again,
        ):
            found += [len(strips), len(self.strips)]
            self.strips += [(q, second, self._masks(q, second), self.c.lanes) for q, second in strips]
        found += [len(singles), len(self.strips)]
        self.strips += [(q, 0, self._masks(q, None), count) for q, count in singles]
        return (len(plain), plain.start, *found), (a, b)

    def _masks(self, q: int, second: int | None) -> int:
        columns = self.c.columns
        found = columns.part_masks(q, second) if columns.shifted else columns.masks(q, second, self.c.offsets)
        self.masks.append(found)
        return self.masks[-1].ctypes.data

    def _add(self, o: int, p0: int, p1: int, of_columns) -> None:
        """The bands of some rows of a slice of outputs."""
        c, p = self.c, self.c.problem
        d, t0, t1 = p.taps_meeting(0, o)
        tiles = self._add_tiles(self._row_tiles(d, t0, t1 - t0, p0, p1))
        for first, end, strips, (a, b) in of_columns:
            if a == b:
                of_folded = 0, 0, 0
            else:
                rows = max(r for r in folded_rows(p.stride[2]) if r <= (b - a) // c.lanes)
                folded_tiles = self._add_tiles(self._folded_tiles(d, t1 - t0, p0, p1, a, b, rows))
                of_folded = folded(p.itemsize, c.lanes, rows, p.stride[2]), *folded_tiles
            y = (o * p.spatial_out[1] + p0) * p.spatial_out[2]
            self.bands.append((y, first, (p1 - p0) * (end - first), *tiles, *strips, *of_folded))

    def _add_tiles(self, tiles: list[tuple[int, ...]]) -> tuple[int, int]:
        """(the first of them, their number)."""
        self.tiles += tiles
        return len(self.tiles) - len(tiles), len(tiles)

    def _row_tiles(self, d: int, t0: int, slices: int, p0: int, p1: int) -> list[tuple[int, ...]]:
        c, p = self.c, self.c.problem
        found: list[tuple[int, ...]] = []
        for first in range(c.row_sets):
            rows = range(p0 + first, p1, c.row_sets)
            for i in range(0, len(rows), c.rows):
                row = rows[min(i, len(rows) - c.rows)]  # the last tile of a set overlaps the one before
                h = row * p.stride[1] - p.padding[1][0]
                found.append((d * p.spatial[1] * p.spatial[2], h, t0, slices, (row - p0) * p.spatial_out[2]))
        return found

    def _folded_tiles(
        self, d: int, slices: int, p0: int, p1: int, first: int, end: int, rows: int
    ) -> list[tuple[int, ...]]:
        """Of `rows` vectors each, for every row of outputs; the last of a row overlaps the one before."""
        c, p = self.c, self.c.problem
        step = rows * c.lanes
        found: list[tuple[int, ...]] = []
        for row in range(p0, p1):
            h = row * p.stride[1] - p.padding[1][0]
            meets = slices if 0 <= h < p.spatial[1] else 0
            x = (d * p.spatial[1] + h) * p.spatial[2]
            for q in range(first, end, step):
                at = min(q, end - step)
                found.append((x + at * p.stride[2], 0, 0, meets, (row - p0) * p.spatial_out[2] + at))
        return found


@dataclass(frozen=True)
class Rows(Lone, Algorithm):
    family: ClassVar[str] = "cpu.depthwise"

    @property
    def variant(self):
        return "rows"

    def why_not(self, problem):
        return super().why_not(problem) or _unsuited(problem)

    def cost(self, problem, machine):
        c = cut(problem)
        p = c.problem
        cycles = machine.peak(p.dtype) / (4 * c.lanes)  # a second, of all cores
        compute = p.N * p.C * _plane_cycles(c) / cycles
        # a cached store reads its line first, which shows where y is too large for the caches
        large = p.y_bytes > machine.l3_bytes / 2 and not c.streams
        memory = machine.stream(p.x_bytes + p.y_bytes * (2 if large else 1), p.bytes)
        if c.streams:
            return CALL + machine.launch + compute + memory
        # what lies beyond the caches is fetched while what is near is filtered
        return CALL + machine.launch + max(compute + p.bytes / machine.cache_bandwidth / 2, memory)

    def least(self, problem, machine):
        if _unsuited(problem):
            return math.inf
        p, lanes = problem, simd.lanes(problem.itemsize)
        vectors = p.N * p.K * math.prod(p.spatial_out[:-1]) * -(-p.spatial_out[-1] // lanes)  # of y
        rest = p.gemm_k // (p.kernel[-1] * (p.kernel[-2] if p.ndim > 1 else 1))  # kernel slices
        cycles = p.gemm_k / 2 + rest * 0.15
        compute = vectors * cycles * 4 * lanes / machine.peak(p.dtype)
        return CALL + machine.launch + max(compute, machine.stream(p.x_bytes + p.y_bytes, p.bytes))

    def workspace_bytes(self, problem):
        return 0 if problem.is_empty else thread_count() * cut(problem).scratch_bytes

    def error_bound(self, problem):
        return error_of_sums(problem)

    def plan(self, problem):
        return RowsPlan(problem, self)


def _unsuited(problem: ConvProblem) -> str | None:
    if problem.groups != problem.C:
        return "filters every channel by itself, and here a filter sums over several"
    if problem.layout != "channels_first":
        return "reads rows of channels_first maps; cpu.depthwise.channels serves channels_last"
    if problem.stride[-1] > 2:
        return f"splits columns for a stride of at most 2, not {problem.stride[-1]}"
    if not problem.is_empty:
        nbytes = cut(problem).columns.mask_bytes(problem.kernel[-1])
        if nbytes > MASKS:
            return f"has masks for each vector that meets padding, here {nbytes} bytes and at most {MASKS}"
    return None


ALGORITHMS = (Rows(),)
