"""Depthwise convolution, vectorised along the rows of a plane.

With one input channel per filter every plane is filtered by itself. A tile of output rows by vectors of
columns stays in registers over the whole kernel, the weights are broadcast, and each vector of x that is
loaded feeds every output row that it meets. A band of the plane is copied first, with its zero border,
into scratch in the first cache, where a stride of 2 splits the columns into even and odd ones. Dilated
rows are interleaved sets of rows without dilation. Wins on wide maps, kernels too large for
`cpu.depthwise.channels`, and signals; that one wins on small maps and serves channels_last.

Source: the depthwise scheme of Zhang, Lo and Lu, "High performance depthwise and pointwise convolutions on
mobile devices" (AAAI 2020), turned from channels to columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import ClassVar

import numpy as np

from convalgos.algorithm import Algorithm
from convalgos.arrays import aligned_empty
from convalgos.cpu import jit, simd
from convalgos.cpu.bands import BAND, RECORD, TILE, VECTOR, copy_band, driver, filter_tiles
from convalgos.cpu.kernel_plan import KernelPlan
from convalgos.machine import cache_sizes, vector_bytes
from convalgos.problem import ConvProblem

# Registers by vector bytes: of sums, and of the weights of a chunk of kernel rows; the rest holds inputs.
SUMS = {64: 16, 32: 8, 16: 8}
WEIGHTS = {64: 8, 32: 5, 16: 5}
UNROLLED = 8  # kernel columns, and vectors of a copied row: a loop over so few costs more than it saves
COLUMNS = 2048  # outputs of a long row that are filtered at once
UNITS = 4  # of work for each thread, where the problem can be cut into so many
FETCHED = 4 << 20  # bytes of x and y from which on the next band is fetched ahead: beyond L2

# --- shapes ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cut:
    """How planes are cut into bands, and bands into tiles. Sizes are along (O, P, Q), or (D, H, W)."""

    problem: ConvProblem  # the 3-D view
    bands: tuple[int, int, int]  # number along each dimension; their sizes differ by one at most
    rows: int  # of a tile
    vectors: int  # of columns, of a tile

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
        r = self.problem.kernel[1]
        count = -(-r // WEIGHTS[vector_bytes()])
        taps = -(-r // count)
        return taps, r - count * (taps - 1), count * taps - r

    @property
    def unrolled(self) -> int:
        """Columns of a kernel of one chunk of rows that is unrolled, else 0."""
        columns = self.problem.kernel[2]
        return columns if self.chunks[0] == self.problem.kernel[1] and columns <= UNROLLED else 0

    @property
    def band(self) -> tuple[int, ...]:
        """Outputs of the largest band."""
        return tuple(-(-n // b) for n, b in zip(self.problem.spatial_out, self.bands, strict=True))

    @property
    def spans(self) -> tuple[int, ...]:
        """Input elements under the largest band."""
        p = self.problem
        return tuple((n - 1) * s + e for n, s, e in zip(self.band, p.stride, p.kernel_extent, strict=True))

    @property
    def phase(self) -> int:
        """Elements of a row in scratch that one phase of the stride has: whole vectors.

        The last tile of a row reads beyond, into what it does not use.
        """
        p = self.problem
        columns = self.band[2] + (p.kernel_extent[2] - 1) // p.stride[2]
        return -(-columns // self.lanes) * self.lanes

    @property
    def pitch(self) -> int:
        """Elements of a row in scratch."""
        return self.phase * self.problem.stride[2]

    @property
    def scratch_bytes(self) -> int:
        """Of one task: the band, and what the tiles read before and beyond it."""
        depth, height, _ = self.spans
        beyond = self.phase + self.vectors * self.lanes
        return VECTOR + -(-(depth * height * self.pitch + beyond) * self.problem.itemsize // 64) * 64

    @property
    def streams(self) -> bool:
        """Whether a y too large for the caches is stored around them: single rows, which are long."""
        return self.rows == 1 and self.problem.y_bytes > cache_sizes()[2] // 2


@lru_cache(256)
def cut(problem: ConvProblem) -> Cut:
    p = problem.as_3d
    l1, l2, _ = cache_sizes()
    c = _best_tile(Cut(p, (1, 1, 1), 1, 1))
    c = _cut_until(c, 2, lambda c: c.band[2] <= COLUMNS)
    c = _cut_until(c, 1, lambda c: c.scratch_bytes <= l1 // 3)
    c = _cut_until(c, 2, lambda c: c.scratch_bytes <= l2 // 2)
    c = _cut_until(c, 0, lambda c: c.scratch_bytes <= l2 // 2)
    for axis in (1, 2, 0):
        c = _cut_until(c, axis, lambda c: p.N * p.C * math.prod(c.bands) >= UNITS * jit.thread_count())
    return _best_tile(c)


def _best_tile(c: Cut) -> Cut:
    """The same bands with the fastest tile that fits the smallest."""
    rows = max(1, c.problem.spatial_out[1] // c.bands[1] // c.row_sets)  # of a set
    sums = SUMS[vector_bytes()]
    shapes = ((r, v) for v in (1, 2, 4, 8) for r in range(1, min(sums // v, rows) + 1))
    return min((replace(c, rows=r, vectors=v) for r, v in shapes), key=_plane_cycles)


def _cut_until(c: Cut, axis: int, enough: Callable[[Cut], bool]) -> Cut:
    """More bands along an axis until there are enough, or another would be mostly overlap."""
    least = max((1, 4 * c.row_sets, 8 * c.lanes)[axis], c.problem.kernel_extent[axis] - 1)  # outputs
    while not enough(c):
        o, p, q = (n + (i == axis) for i, n in enumerate(c.bands))
        if c.problem.spatial_out[axis] // (c.bands[axis] + 1) < least:
            break
        c = replace(c, bands=(o, p, q))
    return c


def _plane_cycles(c: Cut) -> float:
    """Of a plane on one core. Calibrated on Zen 5, AVX-512: two products, two loads or one store a cycle."""
    t, r, s = c.problem.kernel
    products = c.rows * c.vectors * r / 2
    loads = (((c.rows - 1) * c.row_stride + r) * c.vectors * 1.8 + r) / 2  # most cross a cache line
    loops = 0 if c.unrolled else 12
    tile = t * s * (max(products, loads) + loops) + 0.8 * c.rows * c.vectors + 4
    o, p, q = c.band
    sets = -(-p // c.row_sets // c.rows) * c.row_sets
    calls = o * sets * (25 + -(-q // (c.vectors * c.lanes)) * tile)
    depth, height, _ = c.spans
    copy = depth * height * (8 + 1.7 * c.pitch / c.lanes)
    return math.prod(c.bands) * (100 + copy + c.problem.gemm_n * calls)


# --- plan ------------------------------------------------------------------------------------


class RowsPlan(KernelPlan):
    def __init__(self, problem: ConvProblem, algorithm: Rows):
        c = cut(problem)
        p = c.problem
        tasks = jit.thread_count()
        bands, tiles = _tables(c)
        taps, chunks, fewer = c.chunks
        slice = c.spans[1] * c.pitch
        steps = np.arange(p.kernel[2]) * p.dilation[2]  # (S,) columns of the input with its border
        starts = steps % p.stride[2] * c.phase + steps // p.stride[2]  # (S,) columns of scratch
        vectors = c.phase // c.lanes
        fetch = p.x_bytes + p.y_bytes > FETCHED and c.bands[0] == c.bands[2] == p.spatial_out[0] == 1
        values = {
            "size": p.itemsize, "tasks": tasks, "planes": p.N * p.C, "channels": p.C, "multiplier": p.gemm_n,
            "band_count": len(bands), "bands": bands, "tiles": tiles,
            "depth": p.spatial[0], "height": p.spatial[1], "width": p.spatial[2],
            "x_plane": math.prod(p.spatial), "y_plane": math.prod(p.spatial_out),
            "ahead": fetch * math.prod(p.spatial) * p.itemsize // len(bands),
            "claimed": (fetch and not c.streams) * math.prod(c.band) * p.itemsize,
            "scratch_bytes": c.scratch_bytes, "phase": c.phase, "slice": slice,
            "slice_step": p.dilation[0] * slice, "row_step": p.dilation[1] * c.pitch,
            "starts": starts.astype(np.int64), "slice_taps": p.kernel[0], "column_taps": p.kernel[2],
            "chunks": chunks, "fewer": fewer, "filter": p.gemm_k, "y_row": c.row_sets * p.spatial_out[2],
            "copy_band": copy_band(
                p.itemsize, c.lanes, p.stride[2], vectors if vectors * p.stride[2] <= UNROLLED else 0
            ),
            "filter_tiles": filter_tiles(
                p.itemsize, c.lanes, c.rows, c.vectors, c.row_stride, taps, c.unrolled, int(c.streams)
            ),
        }  # fmt: skip
        super().__init__(problem, algorithm, RECORD, values, [(driver(), tasks)], tasks * c.scratch_bytes)

    def pack_filter(self, w: np.ndarray) -> np.ndarray:
        """(K, T, S, R): the weights of a kernel column are neighbours."""
        t, r, s = self.problem.as_3d.kernel
        packed = aligned_empty(w.size, w.dtype).reshape(-1, t, s, r)
        packed[...] = w.reshape(-1, t, r, s).swapaxes(2, 3)
        return packed


def _tables(c: Cut) -> tuple[np.ndarray, np.ndarray]:
    """The bands of a plane, and the tiles of all bands, as `BAND` and `TILE`."""
    p = c.problem
    _, rows_out, columns_out = p.spatial_out
    slice = c.spans[1] * c.pitch
    bands: list[tuple[int, ...]] = []
    tiles: list[tuple[int, int]] = []
    edges = [
        [(n * i // count, n * (i + 1) // count) for i in range(count)]
        for n, count in zip(p.spatial_out, c.bands, strict=True)
    ]
    for (o0, o1), (p0, p1), (q0, q1) in product(*edges):
        first_tile = len(tiles)
        for o, first in product(range(o0, o1), range(c.row_sets)):
            rows = range(p0 + first, p1, c.row_sets)
            for i in range(0, len(rows), c.rows):
                row = rows[min(i, len(rows) - c.rows)]  # the last tile of a set overlaps the one before
                x = (o - o0) * p.stride[0] * slice + (row - p0) * p.stride[1] * c.pitch
                tiles.append((x, (o * rows_out + row) * columns_out + q0))
        d, h, w = (n * s - pad[0] for n, s, pad in zip((o0, p0, q0), p.stride, p.padding, strict=True))
        depths = (o1 - o0 - 1) * p.stride[0] + p.kernel_extent[0]
        heights = (p1 - p0 - 1) * p.stride[1] + p.kernel_extent[1]
        bands.append((d, h, w, depths, heights, q1 - q0, tiles[first_tile][1], first_tile, len(tiles)))
    return np.array(bands, BAND), np.array(tiles, TILE)


@dataclass(frozen=True)
class Rows(Algorithm):
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
        # what lies beyond the caches is fetched while what is near is filtered
        return machine.launch + max(compute + p.bytes / machine.cache_bandwidth, memory)

    def workspace_bytes(self, problem):
        return 0 if problem.is_empty else jit.thread_count() * cut(problem).scratch_bytes

    def error_bound(self, problem):
        # sums of gemm_k products in order: errors grow like a random walk, so 4 sqrt(k) eps covers them
        return float(np.finfo(problem.dtype).eps) * (4 * math.sqrt(max(1, problem.gemm_k)) + 2)

    def plan(self, problem):
        return RowsPlan(problem, self)


def _unsuited(problem: ConvProblem) -> str | None:
    if problem.groups != problem.C:
        return "filters every channel by itself, and here a filter sums over several"
    if problem.layout != "channels_first":
        return "reads rows of channels_first maps; cpu.depthwise.channels serves channels_last"
    if problem.stride[-1] > 2:
        return f"splits columns for a stride of at most 2, not {problem.stride[-1]}"
    return None


ALGORITHMS = (Rows(),)
