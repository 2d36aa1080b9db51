"""Depthwise convolution, vectorised along the rows of a plane.

With one input channel per filter every plane is filtered by itself. A tile of output rows by vectors of
columns stays in registers over the whole kernel, the weights are broadcast, and each vector of x that is
loaded feeds every output that it meets: shuffles shift it to each kernel column, and split columns for a
stride of 2. x is read where it lies. Dilated rows are interleaved sets of rows without dilation. Wins on
wide maps and signals; `cpu.depthwise.channels` wins on small maps and serves channels_last.

Source: the depthwise scheme of Zhang, Lo and Lu, "High performance depthwise and pointwise convolutions on
mobile devices" (AAAI 2020), turned from channels to columns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product
from typing import ClassVar

import numpy as np

from convalgos.algorithm import Algorithm, error_of_sums
from convalgos.cpu import simd
from convalgos.cpu.bands import BAND, RECORD, REGISTERS, TILE, driver, filter_tiles, stream, strips
from convalgos.cpu.kernel_plan import CALL, KernelPlan
from convalgos.cpu.threads import Lone, cut_once, thread_count
from convalgos.machine import cache_sizes, vector_bytes
from convalgos.memory import whole_lines
from convalgos.problem import ConvProblem

# Registers that hold sums at most, by vector bytes.
SUMS = {64: 16, 32: 8, 16: 8}
SPLIT_ROWS = {1: 7, 2: 4, 3: 4, 4: 3}  # of a tile at most, by its vectors, where a stride splits columns
UNROLLED = 2400  # products in the code of a strip: about a second to compile
WIDEST = 128  # columns of a kernel; wider ones belong to FFTs
COLUMNS = 4096  # outputs of a long row that are filtered at once
UNITS = 4  # of work for each thread, where the problem can be cut into so many

# --- shapes ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cut:
    """How planes are cut into bands, and bands into tiles of rows by strips of columns."""

    problem: ConvProblem  # the 3-D view
    rows: int  # of a tile
    vectors: int  # of columns, of a strip
    band_rows: int  # whole tiles of all sets; the last band of a plane takes what is left too
    band_columns: int  # whole strips; the last band of a row has what is left

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
    def chunks(self) -> tuple[int, int, int]:
        """(kernel rows of a chunk, chunks of so many, chunks of one less)."""
        return _chunks(self.problem, self.rows, self.vectors)

    def kernel(self, first: int) -> tuple[tuple[int, ...], int]:
        """(constants of `filter_tiles`, `more`) of the band of columns that begins at an output."""
        p = self.problem
        taps, _, _ = self.chunks
        row = p.kernel[2], p.stride[2], p.dilation[2], p.padding[2][0]
        left, right = (first * p.stride[2], p.spatial[2] - first * p.stride[2])
        columns = min(self.band_columns, p.spatial_out[2] - first)
        found = strips(self.vectors, self.lanes, left, right, columns, *row)
        more = max(0, max(s.number for s in found) - 2)  # the others need no code of their own
        step = self.vectors * self.lanes
        spared = more * step
        left = found[0].left
        right = max((s.first + (s.number - 1) * step) * p.stride[2] + s.right for s in found)
        right -= spared * p.stride[2]
        shape = p.itemsize, self.lanes, self.rows, self.vectors, self.row_stride, taps
        return (*shape, int(taps < p.kernel[1]), *row, left, right, columns - spared), more

    @property
    def row_bands(self) -> int:
        return max(1, self.problem.spatial_out[1] // self.band_rows)

    @property
    def column_bands(self) -> int:
        return -(-self.problem.spatial_out[2] // self.band_columns)

    @property
    def streams(self) -> bool:
        """Whether a y too large for the caches is stored around them, from scratch; bands are runs in it."""
        runs = self.column_bands == 1 or self.band_rows == 1
        return self.problem.y_bytes > cache_sizes()[2] and runs

    @property
    def scratch_bytes(self) -> int:
        """Of one task."""
        if not self.streams:
            return 0
        _, rows, columns = self.problem.spatial_out
        last = rows - (self.row_bands - 1) * self.band_rows  # rows of the largest band
        return whole_lines(last * min(columns, self.band_columns) * self.problem.itemsize)


@cut_once(256)
def cut(problem: ConvProblem) -> Cut:
    p = problem.as_3d
    l1, l2, _ = cache_sizes()
    _, rows_out, columns_out = p.spatial_out
    lanes = simd.lanes(p.itemsize)
    whole = Cut(p, 1, 1, rows_out, columns_out)
    wanted = -(-UNITS * thread_count() // (p.N * p.C * p.spatial_out[0]))  # bands of a plane
    most = max(1, rows_out // whole.row_sets // wanted)
    shapes = [
        (r, v)
        for v, split_rows in SPLIT_ROWS.items()
        if v <= -(-columns_out // lanes)
        for r in range(1, min(SUMS[vector_bytes()] // v, most) + 1)
        if p.stride[2] == 1 or r <= split_rows
    ]
    cycles = _tiles_cycles(p, whole.row_sets, whole.row_stride, shapes)
    rows, vectors = shapes[cycles.index(min(cycles))]
    c = replace(whole, rows=rows, vectors=vectors)
    strip, tile = c.vectors * lanes, c.rows * c.row_sets

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
    """Of a plane on one core. Calibrated on Zen 5, AVX-512: two products or shuffles, two loads a cycle."""
    (tiles,) = _tiles_cycles(c.problem, c.row_sets, c.row_stride, [(c.rows, c.vectors)])
    return c.problem.gemm_n * (tiles + 30 * c.problem.spatial_out[0] * c.row_bands * c.column_bands)


def _tiles_cycles(
    p: ConvProblem, row_sets: int, row_stride: int, shapes: list[tuple[int, int]]
) -> list[float]:
    """Of all tiles of a plane, for one filter, by shape: rows of a tile, and vectors of a strip at most.

    One loop over all shapes, as each choice asks for dozens.
    """
    t, r, s = p.kernel
    stride, lanes, registers = p.stride[2], simd.lanes(p.itemsize), REGISTERS[vector_bytes()]
    slices_out, rows_out, columns = p.spatial_out
    shuffled = _shuffled(s, stride)
    set_rows = -(-rows_out // row_sets)
    found = []
    for tile_rows, most in shapes:
        taps, many, few = _chunks(p, tile_rows, most)
        above = (tile_rows - 1) * row_stride
        rows = many * (above + taps) + few * (above + taps - 1)  # of x, read for a tile
        whole, rest = divmod(columns, most * lanes)
        total = 0.0
        for number, vectors, part in ((whole, most, False), (1, -(-rest // lanes), rest % lanes > 0)):
            if not number or not vectors:
                continue
            products = tile_rows * vectors * r * s
            shuffles = rows * vectors * shuffled
            kept = tile_rows * vectors + r * s + stride * vectors + 3 <= registers
            loads = 0.15 * rows * (vectors + 1) + 0.3 * (1 if kept else tile_rows) * r * s
            in_parts = 2 * (rows + tile_rows) if part else 0
            tile = t * (products / 2 + shuffles + loads + 2 * rows) + in_parts + tile_rows * vectors + 8
            total += number * tile
        found.append(slices_out * -(-set_rows // tile_rows) * row_sets * total)
    return found


def _shuffled(taps: int, stride: int) -> float:
    """Cycles of the shuffles of a vector of x, for kernel columns and a stride."""
    return (taps - 1 + 2 * (stride - 1)) * (0.1 if stride == 1 else 0.35)


def _chunks(p: ConvProblem, rows: int, vectors: int) -> tuple[int, int, int]:
    """(kernel rows of a chunk, chunks of so many, chunks of one less)."""
    r = p.kernel[1]
    most = max(1, UNROLLED // (rows * vectors * p.kernel[2]))
    count = -(-r // most)
    taps = -(-r // count)
    return taps, r - count * (taps - 1), count * taps - r


# --- plan ------------------------------------------------------------------------------------


class RowsPlan(KernelPlan):
    def __init__(self, problem: ConvProblem, algorithm: Rows):
        c = cut(problem)
        p = c.problem
        tasks = thread_count()
        bands, tiles = _tables(c)
        _, chunks, fewer = c.chunks
        self._zeros = zeros = np.zeros(2 * p.spatial[2], p.dtype)
        values = {
            "size": p.itemsize, "tasks": tasks, "planes": p.N * p.C, "channels": p.C, "multiplier": p.gemm_n,
            "band_count": len(bands), "bands": bands, "tiles": tiles,
            "height": p.spatial[1], "width": p.spatial[2],
            "x_plane": math.prod(p.spatial), "y_plane": math.prod(p.spatial_out),
            "row_step": p.dilation[1], "slice_step": p.dilation[0] * p.spatial[1] * p.spatial[2],
            "zeros": zeros.ctypes.data + p.spatial[2] * p.itemsize, "chunks": chunks, "fewer": fewer,
            "filter": p.gemm_k, "w_slice": p.kernel[1] * p.kernel[2], "y_row": c.row_sets * p.spatial_out[2],
            "stream": stream(p.itemsize, c.lanes) if c.streams else 0, "scratch_bytes": c.scratch_bytes,
        }  # fmt: skip
        super().__init__(problem, algorithm, RECORD, values, [(driver(), tasks)], tasks * c.scratch_bytes)

    def pack_filter(self, w: np.ndarray) -> np.ndarray:
        """As it is: (K, 1, *kernel)."""
        return np.array(w, order="C")


def _tables(c: Cut) -> tuple[np.ndarray, np.ndarray]:
    """The bands of a plane, and the tiles of all bands, as `BAND` and `TILE`."""
    p = c.problem
    slices_out, rows_out, columns_out = p.spatial_out
    slice = p.spatial[1] * p.spatial[2]
    of_columns = [(q, *c.kernel(q)) for q in range(0, columns_out, c.band_columns)]
    bands: list[tuple[int, ...]] = []
    tiles: list[tuple[int, ...]] = []
    for band, o in product(range(c.row_bands), range(slices_out)):
        p0 = band * c.band_rows
        p1 = p0 + c.band_rows if band < c.row_bands - 1 else rows_out
        d, t0, t1 = p.taps_meeting(0, o)
        first_tile = len(tiles)
        for first in range(c.row_sets):
            rows = range(p0 + first, p1, c.row_sets)
            for i in range(0, len(rows), c.rows):
                row = rows[min(i, len(rows) - c.rows)]  # the last tile of a set overlaps the one before
                h = row * p.stride[1] - p.padding[1][0]
                tiles.append((d * slice, h, t0, t1 - t0, (row - p0) * columns_out))
        for q, constants, more in of_columns:
            y = (o * rows_out + p0) * columns_out + q
            elements = (p1 - p0) * (min(columns_out, q + c.band_columns) - q)
            tiles_of_band = first_tile, len(tiles) - first_tile
            bands.append((q * p.stride[2], y, elements, *tiles_of_band, more, filter_tiles(*constants)))
    return np.array(bands, BAND), np.array(tiles, TILE)


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
        cycles = p.gemm_k / 2 + rest * (_shuffled(p.kernel[-1], p.stride[-1]) + 0.15)
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
    if problem.kernel[-1] > WIDEST:
        return f"unrolls the columns of the kernel, at most {WIDEST} and not {problem.kernel[-1]}"
    return None


ALGORITHMS = (Rows(),)
