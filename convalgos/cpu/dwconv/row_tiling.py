"""How planes are cut for `cpu.depthwise.rows`, into bands, tiles and strips, and what these cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np

from convalgos.core.allocator import whole_lines
from convalgos.core.boundaries import ZERO, source_indices
from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.machine import cache_sizes, vector_bytes
from convalgos.core.problem import ConvProblem
from convalgos.core.problem_views import one_group
from convalgos.cpu.dwconv.row_ends import BOTH_ENDS, ONE_END, EndedRow
from convalgos.cpu.dwconv.row_kernels import FOLDED_ROWS, HALF_SQUARE_KERNELS, SQUARE_KERNELS, TILE_ROWS
from convalgos.cpu.dwconv.row_strips import Columns, pass_sizes
from convalgos.cpu.layout import streaming
from convalgos.cpu.runtime.half import computed_bytes, map_form
from convalgos.cpu.runtime.threads import THREAD_UNITS, cached_by_threads, plan_threads, worth_sharing
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.halves import LINE_FORMS, SAME

# Rows of a tile of two vectors at most, by vector bytes: half of the registers hold sums. The same for
# vectors that stand for rows, each with a sum for each column of the stride.
MOST_ROWS = {64: 8, 32: 4, 16: 4}
FOLDED_SUMS = {64: 16, 32: 8, 16: 8}
FEW_ROWS = 4  # rows of outputs that do not fill a tile
BAND_COLUMNS = 4096  # outputs of a long row that are filtered at once
# Cycles of a thread: estimates for a Xeon (Granite Rapids) with AVX-512, fitted to no measurements.
LOAD_CYCLES = 0.8  # to load a vector that crosses cache lines, where products do not hide it,
SUM_LATENCY = 4  # until a sum can be added to,
COLUMN_CYCLES = 2  # to begin a kernel column of a tile,
TILE_CYCLES = 12  # and a tile, beside 3 for each vector of its sums,
PIECE_CYCLES = 40  # and to call a kernel
MASK_CYCLES = 2.5  # of a tap of a vector that reaches over an end of a row of a long filter; Sapphire Rapids


@dataclass(frozen=True)
class RowTiling:
    """How planes are cut into bands, and bands into tiles of rows by strips of columns."""

    problem: ConvProblem  # the 3-D view
    rows: int  # of a tile
    band_rows: int  # whole tiles of all sets; the last band of a plane takes what is left too
    band_columns: int  # whole strips; the first and the last band of a row have its borders too
    tile_cycles: float = 0.0  # of all tiles of a plane, for one filter

    @cached_attribute
    def lanes(self) -> int:
        return simd.lanes(computed_bytes(self.problem))

    @cached_attribute
    def row_sets(self) -> int:
        """Interleaved sets of output rows; only the rows of one set share rows of a dilated kernel."""
        p = self.problem
        return int(p.dilation[1] // math.gcd(p.stride[1], p.dilation[1]))

    @cached_attribute
    def row_stride(self) -> int:
        """Kernel rows between the outputs of a set."""
        p = self.problem
        return int(p.stride[1] // math.gcd(p.stride[1], p.dilation[1]))

    @property
    def reach(self) -> int:
        """Elements of x from the first tap of a row to the last."""
        return int((self.problem.kernel[2] - 1) * self.problem.dilation[2])

    @cached_attribute
    def columns(self) -> Columns:
        p = self.problem
        row = p.spatial[2], p.padding[2][0], self.reach, p.stride[2], p.spatial_out[2]
        lines = p.stride[2] == 1 and map_form(p.dtype) in LINE_FORMS
        square = self.square > 0
        return Columns(*row, self.lanes, square, lines and square, self.has_border)

    @property
    def has_border(self) -> bool:
        """Whether something else than zeros lies beyond the edges."""
        return not self.problem.is_zero_padded

    @property
    def row(self) -> EndedRow:
        p = self.problem
        low, high = p.padding[2]
        wide = p.spatial[2] > self.lanes
        ends = BOTH_ENDS if wide and p.boundary[2] == "wrap" else ONE_END
        return EndedRow(p.spatial[2], low, source_indices(p.boundary[2], p.spatial[2], low, high), ends)

    @cached_attribute
    def period(self) -> int:
        """Taps of a row between two that meet the same lanes of neighbouring sums; 0: there are none."""
        return 0 if self.lanes % self.problem.dilation[2] else self.lanes // self.problem.dilation[2]

    @cached_attribute
    def folds(self) -> bool:
        """Whether vectors of a row that follow one another are filtered as if they were rows.

        The taps of a row are rows of `period` taps then, and a vector of x feeds as many of its vectors. That
        is for filters of one row, long or of few rows of outputs.
        """
        p = self.problem
        few = p.spatial_out[1] < FEW_ROWS or p.kernel[2] > self.period
        return p.kernel[:2] == (1, 1) and self.period > 0 and few and p.boundary[1] == ZERO

    @cached_attribute
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
    def pieces(self) -> int:
        """Of a plane, which are dealt to threads."""
        return int(self.problem.spatial_out[0] * self.row_bands * self.column_bands)

    @property
    def masks(self) -> int:
        """Taps of all vectors of a row that reach over an end."""
        low, high = self.columns.safe
        return (
            self.columns.mask_bytes(self.problem.kernel[2]) // 8 if high - low < self.columns.outputs else 0
        )

    @property
    def most_rows(self) -> int:
        """Output rows of the largest band."""
        return self.problem.spatial_out[1] - (self.row_bands - 1) * self.band_rows

    @cached_attribute
    def most_columns(self) -> int:
        """Outputs of the largest band of a row."""
        return max(b - a for a, b in pairwise([*self.column_starts, self.problem.spatial_out[2]]))

    @property
    def streams(self) -> bool:
        """Whether a y too large for the caches is stored around them, from scratch."""
        return streaming.outgrows_caches(self.problem.y_bytes, streaming.STREAMED_PLANES)

    @property
    def scratch_bytes(self) -> int:
        """Of one task."""
        if not self.streams:
            return 0
        return whole_lines(self.most_rows * self.most_columns * self.problem.itemsize)

    @cached_attribute
    def offsets(self) -> np.ndarray:
        """(S,) where the taps of a row lie, from an output's first on."""
        return np.asarray(np.arange(self.problem.kernel[2], dtype=np.int64) * self.problem.dilation[2])

    @cached_attribute
    def step(self) -> int:
        """STEP of `filter_row_tiles`."""
        stride = self.problem.stride[2]
        return self.row_stride if (self.row_stride, stride) in TILE_ROWS else 0

    @cached_attribute
    def square(self) -> int:
        """TAPS of `filter_row_tiles`."""
        p = self.problem
        usual = SQUARE_KERNELS if map_form(p.dtype) == SAME else HALF_SQUARE_KERNELS
        known = p.kernel[1] == p.kernel[2] and p.kernel[2] in usual[p.stride[2]] and p.dilation[2] == 1
        return p.kernel[2] if known and self.step else 0

    @property
    def in_pairs(self) -> bool:
        """Whether two columns of taps lie side by side in what a stride loads."""
        return bool(self.problem.stride[2] == 2 and self.problem.dilation[2] == 1)


def tile_rows(stride: int, narrow: bool) -> int:
    """Rows of a tile at most; narrow: where it is one vector wide, filtered by code for its kernel."""
    return MOST_ROWS[vector_bytes()] // (1 if narrow else stride)


def folded_rows(stride: int) -> list[int]:
    """Vectors of outputs that are filtered as rows, at once."""
    return [r for r in FOLDED_ROWS if r * stride <= FOLDED_SUMS[vector_bytes()]]


@cached_by_threads(256)
def row_tiling(problem: ConvProblem) -> RowTiling:
    planes = problem.N * problem.C * problem.as_3d.spatial_out[0]
    units = THREAD_UNITS * plan_threads() if worth_sharing(problem) else 1
    wanted = -(-units // planes)  # bands of a plane
    return replace(_plane_tiling(one_group(problem), wanted, cache_sizes()), problem=problem.as_3d)


@lru_cache(4096)
def _plane_tiling(problem: ConvProblem, wanted: int, caches: tuple[int, int, int]) -> RowTiling:
    """How the planes of a channel are cut, into so many bands or more; kept for other numbers of channels."""
    p = problem.as_3d
    l1, l2, _ = caches
    _, rows_out, columns_out = p.spatial_out
    lanes = simd.lanes(computed_bytes(p))
    whole = RowTiling(p, 1, rows_out, columns_out)
    most = max(1, rows_out // whole.row_sets // wanted)
    narrow = columns_out <= lanes and whole.square > 0
    shapes = [r for r in TILE_ROWS[whole.step, p.stride[2]] if r <= min(tile_rows(p.stride[2], narrow), most)]
    cycles = _tiles_cycles(whole, shapes)
    c = replace(whole, rows=shapes[cycles.index(min(cycles))], tile_cycles=min(cycles))
    strip, tile = 2 * lanes, c.rows * c.row_sets

    def rows_under(rows: int) -> int:  # of x
        return int((rows - 1) * p.stride[1] + p.kernel_extent[1])

    column_bytes = p.itemsize * (rows_under(tile) * p.stride[2] + tile)
    columns = max(1, l2 // 2 // column_bytes // strip) * strip
    if rows_out == 1:
        threads = -(-wanted // THREAD_UNITS)
        full = max(folded_rows(p.stride[2])) * lanes if whole.folds else 0  # outputs that fill the registers
        wide = max(columns_out // wanted, min(full, columns_out // threads))
        columns = min(columns, max(1, min(BAND_COLUMNS, wide) // strip) * strip)
    if columns >= columns_out:
        columns = -(-columns_out // strip) * strip
    rows = tile
    row_bytes = p.itemsize * min(columns, columns_out) * (p.stride[2] * p.stride[1] + 1)
    while (rows + tile) * row_bytes <= l1 // 2 and rows_out // (rows + tile) >= wanted:
        rows += tile
    return replace(c, band_rows=rows, band_columns=columns)


def plane_cycles(c: RowTiling) -> float:
    """Of a plane on one core."""
    p = c.problem
    masked = p.spatial_out[0] * p.spatial_out[1] * MASK_CYCLES * c.masks if c.folds else 0.0
    return p.gemm_n * (c.tile_cycles + PIECE_CYCLES * c.pieces + masked)


def _tiles_cycles(c: RowTiling, shapes: Sequence[int]) -> list[float]:
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


def _pass_cycles(c: RowTiling, rows: int, vectors: int, step: int, size: int) -> float:
    """Of all columns of a pass over some rows of taps, for a tile."""
    loads = ((rows - 1) * (step or size) + size) * vectors
    sums = rows * size * vectors
    return c.problem.kernel[2] * (
        COLUMN_CYCLES + max(sums / 2 + 0.1 * loads, LOAD_CYCLES * loads, size * SUM_LATENCY / 2)
    )


def _folded_cycles(c: RowTiling, vectors: int) -> float:
    """Of a row of outputs, where vectors are filtered as rows."""
    s, lanes_rows = c.problem.kernel[2], min(max(folded_rows(c.problem.stride[2])), vectors)
    full, rest = divmod(s, c.period)
    tile = float(TILE_CYCLES + 3 * lanes_rows)
    for taps, columns in ((full + 1, rest), (full, c.period - rest)):
        sizes = pass_sizes(taps, 1) if columns else []
        for size in dict.fromkeys(sizes):
            tile += sizes.count(size) * columns / s * _pass_cycles(c, lanes_rows, 1, 1, size)
    return vectors / lanes_rows * tile
