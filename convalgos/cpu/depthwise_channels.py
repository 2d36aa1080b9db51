"""Depthwise and small grouped convolution, vectorised over channels.

A vector is one pixel of as many whole groups as it has lanes. A row of output pixels stays in registers over
the whole kernel, and every input pixel is loaded once for each kernel row; where groups have several input
channels, a shuffle copies each to the lanes of the filters of its group. Kernel elements that meet only
padding are left out, so that no padded copy is made: channels_last is filtered in place, channels_first goes
through square transposes in scratch. Wins on small maps, strides, groups and channels_last;
`cpu.depthwise.rows` wins on wide channels_first maps.

Source: the NHWC depthwise kernels of XNNPACK and oneDNN; skipped borders as in oneDNN's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import repeat
from typing import ClassVar

import numpy as np

from convalgos.core.algorithm import Algorithm, error_of_sums
from convalgos.core.allocator import aligned_empty
from convalgos.core.cached_attribute import kept
from convalgos.core.machine import cache_sizes, vector_bytes
from convalgos.core.problem import ConvProblem
from convalgos.cpu.dwconv.channel_kernels import (
    BAND,
    BLOCK,
    GROUPED,
    GROUPED_PIXELS,
    PIXELS,
    RECORD,
    RUN,
    USUAL,
    driver,
    filter_block,
)
from convalgos.cpu.layout import channel_vectors
from convalgos.cpu.runtime.plan import CALL, KernelPlan
from convalgos.cpu.runtime.threads import Lone, cut_once, thread_count
from convalgos.cpu.vectors import simd

# Output pixels whose sums are in registers, by vector bytes and vectors of each pixel.
MOST_PIXELS = {64: {1: 14, 2: 8}, 32: {1: 7, 2: 4}, 16: {1: 7, 2: 4}}
LATENT = 8  # sums that must be under way for two products a cycle
AHEAD = 4  # rows behind the kernel that are asked for: what comes from memory takes so long
UNITS = 4  # of work for each thread, where the problem can be cut into so many
SCRATCH = 16 << 20  # bytes for each thread: wide rows are not cut

# --- shapes ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cut:
    """How the work is cut: `vectors` of groups by bands of output rows, and rows into blocks of columns."""

    problem: ConvProblem  # the 3-D view
    in_place: bool  # x and y are read and written where they lie
    vectors: int  # filtered side by side
    pixels: int  # of a block of columns
    bands: int  # their sizes differ by one row at most

    @property
    def lanes(self) -> int:
        return simd.lanes(self.problem.itemsize)

    @property
    def groups(self) -> int:
        """Whole groups of a vector."""
        return _groups(self.problem)

    @property
    def blocks(self) -> int:
        """Of `vectors` vectors of groups."""
        return -(-self.problem.groups // (self.groups * self.vectors))

    @property
    def source(self) -> tuple[int, int, int]:
        """Elements between pixels, slices and vectors of what the kernels read: x, or its band in scratch."""
        p = self.problem
        height = min(p.spatial[1], (self.band_rows - 1) * p.stride[1] + p.kernel_extent[1])
        return self._strides(p.spatial[0], (p.spatial[1] if self.in_place else height) * p.spatial[2], p.C)

    @property
    def target(self) -> tuple[int, int, int]:
        """The same for what they write: y, or its band in scratch."""
        p = self.problem
        rows = p.spatial_out[1] if self.in_place else self.band_rows
        return self._strides(p.spatial_out[0], rows * p.spatial_out[2], p.K)

    def _strides(self, slices: int, pixels: int, channels: int) -> tuple[int, int, int]:
        if self.in_place:
            return channels, pixels * channels, self.lanes
        pixels = -(-pixels // self.lanes) * self.lanes  # squares
        return self.lanes, pixels * self.lanes, slices * pixels * self.lanes

    @property
    def band_rows(self) -> int:
        """Output rows of the largest band."""
        return -(-self.problem.spatial_out[1] // self.bands)

    @property
    def scratch_bytes(self) -> int:
        """Of one task."""
        if self.in_place:
            return 0
        return self.vectors * (self.source[2] + self.target[2]) * self.problem.itemsize

    @property
    def fetch(self) -> bool:
        """Whether the kernels ask for lines of x and y ahead.

        In place those of rows further down, which lie alike; of the next planes on small maps, that little
        in a row.
        """
        p = self.problem
        if self.in_place:
            alike = p.spatial == p.spatial_out and set(p.stride) == set(p.dilation) == {1}
            return alike and p.x_bytes > cache_sizes()[2] // 4
        return self.bands == 1 and self.scratch_bytes <= cache_sizes()[0]

    @kept
    def code(self) -> tuple[int, int, int]:
        """TAPS, STRIDE and DILATION of `filter_columns`: one of USUAL, or of GROUPED."""
        p = self.problem
        row = p.kernel[2], p.stride[2], p.dilation[2]
        depthwise = max(p.w_shape[1], p.gemm_n) == 1
        known = USUAL if depthwise else GROUPED if p.w_shape[1] == p.gemm_n else ((0, 0, 0),)
        reach = (row[0] - 1) * row[2]  # columns at both ends of a block that may be padding
        if row in known and max(self._padding(0), self._padding(-1)) <= reach:
            return row
        return (0, *row[1:]) if (0, *row[1:]) in known else (0, 0, 0)

    @property
    def ranged(self) -> bool:
        """Whether the kernel reads which outputs each tap meets from tables."""
        return self.code == (0, 0, 0)

    @kept
    def columns(self) -> list[tuple[int, int, int]]:
        """(first output column, padding columns left and right) of each block; the last overlaps.

        The padding counts columns of the block's input that some output meets, up to the last of them.
        """
        p = self.problem
        first = np.minimum(np.arange(0, p.spatial_out[2], self.pixels), p.spatial_out[2] - self.pixels)
        start = first * p.stride[2] - p.padding[2][0]  # (blocks,) input column of the first tap
        left = np.maximum(0, -start)
        right = np.maximum(0, start + self.reach - p.spatial[2])
        return list(zip(first.tolist(), left.tolist(), right.tolist(), strict=True))

    @property
    def reach(self) -> int:
        """Input columns from the first that a block meets to the last."""
        p = self.problem
        return (self.pixels - 1) * p.stride[2] + p.kernel_extent[2]

    def _padding(self, block: int) -> int:
        """Columns of padding that the first block meets on the left, or the last one on the right."""
        p = self.problem
        if block == 0:
            return p.padding[2][0]
        start = (p.spatial_out[2] - self.pixels) * p.stride[2] - p.padding[2][0]
        return start + self.reach - p.spatial[2]

    @property
    def range_bytes(self) -> int:
        """Of the tables of `ranges`, at most: of each block that meets padding, and one of all others."""
        step = self.pixels * self.problem.stride[2]
        ends = sum(-(-max(0, self._padding(block)) // step) for block in (0, -1))
        return 16 * self.problem.kernel[2] * (ends + 1) if self.ranged else 0

    def ranges(self, first: int) -> np.ndarray:
        """(S, 2) of a block of columns: the first output that meets the map under each tap, and one
        behind."""
        p = self.problem
        column = first * p.stride[2] - p.padding[2][0] + np.arange(p.kernel[2]) * p.dilation[2]  # of output 0
        start = np.clip(-(column // p.stride[2]), 0, self.pixels)
        end = np.clip(-((column - p.spatial[2]) // p.stride[2]), 0, self.pixels)
        return np.stack([np.minimum(start, end), end], 1).astype(np.int64)


def _groups(p: ConvProblem) -> int:
    return simd.lanes(p.itemsize) // max(p.w_shape[1], p.gemm_n)


@cut_once(256)
def cut(problem: ConvProblem) -> Cut:
    p = problem.as_3d
    lanes, groups = simd.lanes(p.itemsize), _groups(problem)
    whole = p.w_shape[1] == p.gemm_n and groups * p.gemm_n == lanes  # no lane is left over
    in_place = p.layout == "channels_last" and whole and p.groups >= groups
    rows_out, columns = p.spatial_out[1:]
    most = MOST_PIXELS[vector_bytes()]
    # Two vectors keep the registers busy on narrow maps, and spare the first cache where the pixels lie so
    # many bytes apart that they share few of its sets.
    narrow = columns <= (2 if in_place else 1) * most[2]
    crowded = in_place and p.C * p.itemsize % 512 == 0
    pair = max(p.w_shape[1], p.gemm_n) == 1 and p.groups >= 2 * groups and (narrow or crowded)
    for vectors in (2, 1) if pair else (1,):
        # whole blocks, and few of them: the last overlaps the one before
        known = PIXELS[vectors] if max(p.w_shape[1], p.gemm_n) == 1 else GROUPED_PIXELS
        sizes = [n for n in known if n <= min(most[vectors], columns)]
        pixels = min(sizes, key=lambda n: (-(-columns // n) * (max(n, LATENT / vectors) + 0.6), -n))
        c = Cut(p, in_place, vectors, pixels, 1)
        if vectors == 1 or not c.ranged:
            break
    if in_place:
        row_bytes = p.spatial[0] * p.stride[1] * p.spatial[2] * p.C * p.itemsize
    else:
        row_bytes = c.scratch_bytes // rows_out
    threads, overlap = thread_count(), p.kernel_extent[1] - 1  # rows of x that two bands share
    rows = max(1, overlap, cache_sizes()[1] // 2 // row_bytes)
    bands = -(-rows_out // rows)
    while bands < rows_out:
        units = p.N * c.blocks * bands
        if units >= UNITS * threads or (units >= threads and rows_out // (bands + 1) <= overlap):
            break
        bands += 1
    return replace(c, bands=bands)


def _block_cycles(c: Cut) -> float:
    """Of a block of groups of one image, on one core.

    Calibrated on Zen 5 with AVX-512: two products or shuffles a cycle, and squares of pixels turned in two
    cycles a pixel in the first cache, in three and a half beyond.
    """
    p = c.problem
    slices, rows = p.taps_met(0), p.taps_met(1)
    blocks = -(-p.spatial_out[2] // c.pixels)
    products = p.taps_met(2) * blocks * c.pixels / p.spatial_out[2]  # the last block overlaps
    loads = products if c.ranged else min(products, blocks * c.reach)
    channels = p.w_shape[1]
    shuffles = loads if channels > 1 and c.groups > 1 else 0
    kernel = slices * rows * (channels * (0.5 * products + 0.25 * shuffles) + 4 * blocks)
    outputs = p.spatial_out[0] * (p.spatial_out[1] * (6 + 0.6 * c.pixels) * blocks)
    calls = 50 * blocks * c.bands + 15 * blocks * p.spatial_out[0] * (c.bands + p.kernel[1] - 1)
    turned = 0.0 if c.in_place else (c.source[2] + c.target[2]) * c.bands / c.lanes
    turned *= 2 if c.scratch_bytes <= cache_sizes()[0] else 3.5
    return c.vectors * (kernel + outputs + turned) + calls + 80 * c.bands


# --- plan ------------------------------------------------------------------------------------


class ChannelsPlan(KernelPlan):
    def __init__(self, problem: ConvProblem, algorithm: Channels):
        c = cut(problem)
        p = c.problem
        tasks = thread_count()
        slices, slices_out = p.spatial[0], p.spatial_out[0]
        x_pixels, y_pixels = math.prod(p.spatial), math.prod(p.spatial_out)
        last = p.layout == "channels_last"
        (x_c, x_pixel), (y_k, y_pixel) = ((1, p.C), (1, p.K)) if last else ((x_pixels, 1), (y_pixels, 1))
        # what the kernels read and write, `from` and `to`: x and y themselves, or scratch
        (from_pixel, from_slice, from_vector), (to_pixel, to_slice, to_vector) = c.source, c.target
        from_row, to_row = p.spatial[2] * from_pixel, p.spatial_out[2] * to_pixel
        w_row = p.w_shape[1] * p.kernel[2] * c.lanes
        w_slice, w_vector = p.kernel[1] * w_row, p.kernel[0] * p.kernel[1] * w_row
        bands, runs = _tables(c, (from_slice, from_row), (to_slice, to_row), (w_slice, w_row))
        kernel = p.itemsize, c.lanes, p.w_shape[1], p.gemm_n, c.vectors, c.pixels
        self._ranges: dict[tuple[int, int], np.ndarray] = {}  # by padding: blocks without any share theirs
        addresses = []
        for q, left, right in c.columns if c.ranged else ():
            if (left, right) not in self._ranges:
                self._ranges[left, right] = c.ranges(q)
            addresses.append(self._ranges[left, right].ctypes.data)
        values = {
            "size": p.itemsize, "tasks": tasks, "images": p.N, "blocks": c.blocks, "vectors": c.vectors,
            "block_groups": c.groups, "groups": p.groups, "channels": p.w_shape[1], "filters": p.gemm_n,
            "last_group": p.groups - c.vectors * c.groups if c.in_place else p.groups,  # the last overlaps
            "in_place": int(c.in_place), "band_count": c.bands, "bands": bands, "runs": runs,
            "x_n": p.C * x_pixels, "x_c": x_c, "x_vector": c.groups * p.w_shape[1] * x_c,
            "x_slice": x_pixels // slices * x_pixel, "x_pixel": x_pixel,
            "y_n": p.K * y_pixels, "y_k": y_k, "y_vector": c.groups * p.gemm_n * y_k,
            "y_slice": y_pixels // slices_out * y_pixel, "y_pixel": y_pixel,
            "slices": slices, "slices_out": slices_out,
            "from_vector": from_vector, "from_slice": from_slice, "from_pixel": from_pixel,
            "to_vector": to_vector, "to_slice": to_slice, "to_pixel": to_pixel,
            "from_next": p.stride[1] * from_row, "to_next": to_row,
            "slice_step": p.dilation[0] * from_slice, "row_step": p.dilation[1] * from_row,
            "rows_ahead": p.kernel[1] + AHEAD,
            "w_block": c.vectors * w_vector, "w_vector": w_vector, "w_slice": w_slice, "w_row": w_row,
            "scratch_bytes": c.scratch_bytes, "sums": c.vectors * slices * from_slice,
            "columns": np.array(
                [
                    ((q * p.stride[2] - p.padding[2][0]) * from_pixel, q * to_pixel, left, right, table)
                    for (q, left, right), table in zip(c.columns, addresses or repeat(0), strict=False)
                ],
                BLOCK,
            ),
            "column_count": len(c.columns), "fetch": int(c.fetch), "taps": p.kernel[2],
            "stride": p.stride[2], "dilation": p.dilation[2], "filter_block": filter_block(*kernel, *c.code),
            "gather": channel_vectors.gather(p.itemsize, c.lanes),
            "place": channel_vectors.place(p.itemsize, c.lanes),
        }  # fmt: skip
        super().__init__(problem, algorithm, RECORD, values, [(driver(), tasks)], tasks * c.scratch_bytes)
        self._cut, self._filters = c, _filters(c)

    def pack_filter(self, w: np.ndarray) -> np.ndarray:
        """(blocks, vectors, T, R, C/groups, S, lanes): lanes are the filters of the groups of a vector."""
        c, p = self._cut, self._cut.problem
        filters, outside = self._filters
        packed = aligned_empty(c.blocks * c.vectors * p.gemm_k * c.lanes, w.dtype)
        packed = packed.reshape(c.blocks, c.vectors, *p.kernel[:2], p.w_shape[1], p.kernel[2], c.lanes)
        chosen = w.reshape(p.K, p.w_shape[1], *p.kernel)[filters]  # (blocks, vectors, lanes, C/g, T, R, S)
        packed[...] = chosen.transpose(0, 1, 4, 5, 3, 6, 2)
        if outside is not None:
            np.copyto(packed, 0, where=outside[:, :, None, None, None, None, :])
        return packed


def _filters(c: Cut) -> tuple[np.ndarray, np.ndarray | None]:
    """(blocks, vectors, lanes) the filter of each lane, and which lanes have none, if any."""
    p = c.problem
    first = np.arange(c.blocks) * c.vectors * c.groups
    if c.in_place:
        first = np.minimum(first, p.groups - c.vectors * c.groups)
    groups = np.add.outer(first, np.arange(c.vectors) * c.groups)  # (blocks, vectors)
    lanes = np.arange(c.lanes)
    filters = np.add.outer(groups * p.gemm_n, lanes)
    outside = (filters >= p.K) | (lanes >= c.groups * p.gemm_n)
    return np.where(outside, 0, filters), outside if outside.any() else None


def _tables(c: Cut, source: tuple[int, int], target: tuple[int, int], w: tuple[int, int]):
    """The bands, and the runs of output rows in them, as `BAND` and `RUN`.

    source, target and w: elements between the slices, and between the rows, of what the kernels read,
    write, and of the filter.
    """
    p = c.problem
    height, rows_out = p.spatial[1], p.spatial_out[1]
    bands: list[tuple[int, ...]] = []
    runs: list[tuple[int, ...]] = []
    for i in range(c.bands):
        p0, p1 = rows_out * i // c.bands, rows_out * (i + 1) // c.bands
        h0 = min(height, max(0, p0 * p.stride[1] - p.padding[1][0]))
        h1 = max(h0, min(height, (p1 - 1) * p.stride[1] - p.padding[1][0] + p.kernel_extent[1]))
        first = len(runs)
        for o in range(p.spatial_out[0]):
            d, t0, t1 = p.taps_meeting(0, o)
            row = p0
            while row < p1:
                h, r0, r1 = p.taps_meeting(1, row)
                end = row + 1
                while end < p1 and p.taps_meeting(1, end)[1:] == (r0, r1):
                    end += 1
                x, taps, y = (
                    a * outer + b * inner
                    for (a, b), (outer, inner) in (((d, h), source), ((t0, r0), w), ((o, row), target))
                )
                runs.append((x, taps, y, t1 - t0, r1 - r0, end - row))
                row = end
        columns, columns_out = p.spatial[2], p.spatial_out[2]
        x_band, y_band = (h0 * columns, (h1 - h0) * columns), (p0 * columns_out, (p1 - p0) * columns_out)
        bands.append((*x_band, *y_band, first, len(runs) - first))
    return np.array(bands, BAND), np.array(runs, RUN)


@dataclass(frozen=True)
class Channels(Lone, Algorithm):
    family: ClassVar[str] = "cpu.depthwise"

    @property
    def variant(self):
        return "channels"

    def why_not(self, problem):
        return super().why_not(problem) or _unsuited(problem)

    def least_groups(self, problem):
        return max(1, min(problem.groups, 2 * _groups(problem)))

    def cost(self, problem, machine):
        c = cut(problem)
        p = c.problem
        cycles = machine.peak(p.dtype) / (4 * c.lanes)  # a second, of all cores
        compute = p.N * c.blocks * _block_cycles(c) / cycles
        written = p.y_bytes * (2 if p.y_bytes > machine.l3_bytes / 2 else 1)  # a store reads its line first
        memory = machine.stream(p.x_bytes + written, p.bytes)
        memory /= 2 if c.fetch else 1  # half is hidden behind the sums
        return CALL + machine.launch + compute + memory

    def least(self, problem, machine):
        if _of_other_groups(problem):
            return math.inf
        p, lanes = problem.as_3d, simd.lanes(problem.itemsize)
        rows = p.taps_met(0) * p.taps_met(1)
        blocks = -(-p.spatial_out[2] // MOST_PIXELS[vector_bytes()][1])  # of columns, at least
        # of a vector of groups; products with padding are left out
        cycles = rows * (0.5 * p.w_shape[1] * p.taps_met(2) + 4 * blocks)
        cycles += math.prod(p.spatial_out[:2]) * (6 * blocks + 0.6 * p.spatial_out[2])
        if p.layout == "channels_first":  # pixels are turned
            cycles += 2 * math.prod(p.spatial_out)
            if p.kernel_extent[1] >= p.stride[1]:
                reach = (p.spatial_out[1] - 1) * p.stride[1] + p.kernel_extent[1]
                cycles += 2 * p.spatial[0] * min(p.spatial[1], reach) * p.spatial[2]
        compute = p.N * -(-p.groups // _groups(p)) * cycles * 4 * lanes / machine.peak(p.dtype)
        return CALL + machine.launch + compute + machine.stream(p.x_bytes + p.y_bytes, p.bytes) / 2

    def workspace_bytes(self, problem):
        return 0 if problem.is_empty else thread_count() * cut(problem).scratch_bytes

    def error_bound(self, problem):
        return error_of_sums(problem)

    def plan(self, problem):
        return ChannelsPlan(problem, self)


def _of_other_groups(problem: ConvProblem) -> str | None:
    """Why the channels and filters of a problem are not for this; told without cutting it."""
    lanes = simd.lanes(problem.itemsize)
    if problem.groups == 1 and problem.C > 1:
        return "filters groups of few channels, and this is one group of all"
    if max(problem.w_shape[1], problem.gemm_n) > lanes:
        return (
            f"holds whole groups in vectors of {lanes} lanes, and these have "
            f"{problem.w_shape[1]} channels and {problem.gemm_n} filters"
        )
    return None


def _unsuited(problem: ConvProblem) -> str | None:
    reason = _of_other_groups(problem)
    if reason or problem.is_empty:
        return reason
    c = cut(problem)
    if c.scratch_bytes > SCRATCH:
        return f"copies whole rows, here {c.scratch_bytes} bytes for each thread and at most {SCRATCH}"
    if c.range_bytes > SCRATCH:
        return f"has a table of taps for each block that meets padding, here {c.range_bytes} bytes in all"
    return None


ALGORITHMS = (Channels(),)
