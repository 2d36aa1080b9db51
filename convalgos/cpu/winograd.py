"""Winograd's short convolutions: fewer products, on tiles that stay in the cache.

A tile of m x m outputs of an r x r kernel takes (m + r - 1)^2 products per pair of channels instead of
m^2 r^2: F(4, 3) saves a factor of 4. Input tiles, filters and products are transformed by the exact
matrices of `convalgos.transforms`; between the transforms every point of the tiles is a matrix product of
its own, which runs on the micro-kernel. Wins on 3x3 and 5x5 kernels with 16 and more channels.

Kernels with r taps in one dimension of the plane and 1 in the other use the 1-D form; taps in depth are
summed inside the product; stride and dilation are steps inside the tiles (`tiles.Axis`).

Source: Lavin and Gray, "Fast algorithms for convolutional neural networks", arXiv:1509.09308, with the
cache-resident blocks of Zlateski et al., "Anatomy of Winograd convolution on CPUs", arXiv:1809.10170.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np

from convalgos.algorithm import Algorithm
from convalgos.arrays import aligned_empty
from convalgos.cpu import jit, schedule, simd
from convalgos.cpu.boxes import RECORD, BoxPlan
from convalgos.cpu.schedule import Schedule
from convalgos.cpu.simd import call, carray, pointer
from convalgos.problem import ConvProblem
from convalgos.transforms import Matrix, amplification, cook_toom, multiply_2d

# --- kernels: transforms of tiles ----------------------------------------------------------------


def _matrices(matrix: Matrix, dims: int) -> tuple[Matrix, Matrix]:
    """What rows and columns are multiplied by."""
    return (matrix if dims == 2 else ((Fraction(1),),)), matrix


def _spread(v, matrix, dims, source, row_step, column_step, target, point_step):
    """Pixels at source + i * row_step + j * column_step to points, `point_step` apart."""
    read, to = v.pointer(source), v.pointer(target)

    def load(i, j):
        return v.load(read, v.plus(v.mul(row_step, i), v.mul(column_step, j)))

    def store(i, j, value):
        v.store(value, to, v.mul(point_step, i * len(matrix) + j))

    multiply_2d(v.axpy, *_matrices(matrix, dims), load, store)


@simd.emitter
def input_tile(v, M, R, DIMS, source, row_step, column_step, target, point_step):
    """BT d B: alpha x alpha pixels to points."""
    _spread(v, cook_toom(M, R).BT, DIMS, source, row_step, column_step, target, point_step)


@simd.emitter
def filter_tile(v, M, R, DIMS, source, row_step, column_step, target, point_step):
    """G g GT: r x r taps to points."""
    _spread(v, cook_toom(M, R).G, DIMS, source, row_step, column_step, target, point_step)


@simd.emitter
def output_tile(v, M, R, DIMS, source, point_step, target, row_step, column_step):
    """AT m A: points to m x m pixels."""
    read, to = v.pointer(source), v.pointer(target)
    matrix = cook_toom(M, R).AT

    def load(i, j):
        return v.load(read, v.mul(point_step, i * len(matrix[0]) + j))

    def store(i, j, value):
        v.store(value, to, v.plus(v.mul(row_step, i), v.mul(column_step, j)))

    multiply_2d(v.axpy, *_matrices(matrix, DIMS), load, store)


@jit.specialise
def input_tiles(SIZE, LANES, M, R, DIMS):
    def input_tiles(source, row_step, column_step, tile_step, count, target, target_step, point_step):
        for i in range(count):
            input_tile(
                SIZE, LANES, M, R, DIMS, source + i * tile_step * SIZE, row_step, column_step,
                target + i * target_step * SIZE, point_step,
            )  # fmt: skip

    return input_tiles


@jit.specialise
def filter_tiles(SIZE, LANES, M, R, DIMS):
    def filter_tiles(source, row_step, column_step, tile_step, count, target, target_step, point_step):
        for i in range(count):
            filter_tile(
                SIZE, LANES, M, R, DIMS, source + i * tile_step * SIZE, row_step, column_step,
                target + i * target_step * SIZE, point_step,
            )  # fmt: skip

    return filter_tiles


@jit.specialise
def output_tiles(SIZE, LANES, M, R, DIMS):
    def output_tiles(source, source_step, point_step, count, target, row_step, column_step, tile_step):
        for i in range(count):
            output_tile(
                SIZE, LANES, M, R, DIMS, source + i * source_step * SIZE, point_step,
                target + i * tile_step * SIZE, row_step, column_step,
            )  # fmt: skip

    return output_tiles


# --- kernels: the filter -------------------------------------------------------------------------

CHUNK = 512  # taps of a filter that are transposed at a time: 32 KiB

FILTER_RECORD = np.dtype(
    [*RECORD.descr, *((name, np.int64) for name in ("u", "filter_tiles", "some_channels", "task_bytes"))]
)
"""The record of the boxes, and where the filter goes."""


@jit.specialise
def transform_filters():
    """w (group, filter, channel, depth tap, row, column) -> U, in the order that `boxes` reads.

    Rows and columns are multiples of the phases. An item is a group and a vector of filters.
    """

    def transform_filters(args, task):
        a = carray(pointer(args), 1, FILTER_RECORD)[0]
        scratch = a.scratch + task * a.task_bytes
        pixel = a.lanes * a.size
        width = a.columns.phases * a.columns.taps
        plane = a.rows.phases * a.rows.taps * width
        volume = a.depth.taps * plane
        down = a.rows.phases * width * a.lanes
        across = a.columns.phases * a.lanes if a.columns.outputs > 1 else down
        u_panel = a.depth.taps * a.slice_taps * a.panel
        items = a.groups * a.filter_blocks
        for item in range(items * task // a.tasks, items * (task + 1) // a.tasks):
            group, block = item // a.filter_blocks, item % a.filter_blocks
            filters = min(a.lanes, a.filters - block * a.lanes)
            panel = group * a.points * a.panels + block // a.vectors
            u = panel * u_panel + block % a.vectors * a.lanes
            for c in range(0, a.channels, a.some_channels):
                channels = min(a.some_channels, a.channels - c)
                w = ((group * a.filters + block * a.lanes) * a.channels + c) * volume
                source = a.w + w * a.size
                call(a.gather, (source, a.channels * volume, 1, filters, channels * volume, scratch))
                for tap in range(a.depth.taps):
                    for phase in range(a.rows.phases * a.columns.phases):
                        phase_h, phase_w = phase // a.columns.phases, phase % a.columns.phases
                        source = scratch + (tap * plane + phase_h * width + phase_w) * pixel
                        row = tap * a.slice_taps + phase * a.channels + c
                        target = a.u + (u + row * a.panel) * a.size
                        step = volume * a.lanes
                        call(
                            a.filter_tiles,
                            (source, down, across, step, channels, target, a.panel, a.panels * u_panel),
                        )  # fmt: skip

    return transform_filters


# --- plan ----------------------------------------------------------------------------------------


class WinogradPlan(BoxPlan):
    def __init__(self, problem: ConvProblem, algorithm: Winograd, cut: Schedule):
        kernel = (problem.itemsize, cut.lanes, algorithm.m, algorithm.r, cut.dims)
        super().__init__(problem, algorithm, cut, input_tiles(*kernel), output_tiles(*kernel))
        self._filter_tiles = filter_tiles(*kernel)

    def pack_filter(self, w):
        """U (groups, points, panels, taps, panel)."""
        cut, p = self.cut, self.cut.problem
        taps = tuple(a.phases * a.taps for a in (cut.rows, cut.columns))
        w = w.reshape(p.w_shape)  # (K, C/g, T, R, S)
        if taps != p.kernel[1:]:  # with the zeros of the phases that have a tap less
            padded = np.zeros((*p.w_shape[:3], *taps), w.dtype)
            padded[..., : p.kernel[1], : p.kernel[2]] = w
            w = padded
        shape = (p.groups, cut.points, cut.panels, cut.taps, cut.panel)
        u = aligned_empty(math.prod(shape), w.dtype).reshape(shape)
        written = (cut.filter_blocks - 1) % cut.vectors * cut.lanes + cut.lanes
        u[:, :, -1, :, written:] = 0

        volume = math.prod(w.shape[2:])
        some_channels = max(1, CHUNK // volume)
        task_bytes = (some_channels * volume + cut.lanes) * cut.lanes * p.itemsize
        scratch = aligned_empty(cut.threads * task_bytes, np.uint8)
        record = np.zeros(1, FILTER_RECORD)
        for name in RECORD.names or ():
            record[name] = self._record[name]
        record["w"], record["u"], record["scratch"] = w.ctypes.data, u.ctypes.data, scratch.ctypes.data
        record["some_channels"], record["task_bytes"] = some_channels, task_bytes
        record["filter_tiles"] = self._filter_tiles
        jit.launch(transform_filters(), record.ctypes.data, cut.threads)
        return u


# --- algorithm -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Winograd(Algorithm):
    """F(m, r) in one or both dimensions of a plane."""

    m: int
    r: int = 3

    family: ClassVar[str] = "cpu.winograd"

    @property
    def variant(self):
        return f"f{self.m}x{self.r}"

    def why_not(self, problem):
        if reason := super().why_not(problem):
            return reason
        found = schedule.form(problem, self.r)
        return found if isinstance(found, str) else None

    def cost(self, problem, machine):
        return machine.launch if problem.is_empty else self._schedule(problem).seconds(machine)

    def workspace_bytes(self, problem):
        return 0 if problem.is_empty else self._schedule(problem).scratch_bytes

    def error_bound(self, problem):
        # The sum of a point is a random walk, whose errors are as large as its own products; the constant
        # covers the largest of many outputs and the few operations of the transforms.
        eps = float(np.finfo(problem.dtype).eps)
        if problem.is_empty:
            return eps
        cut = self._schedule(problem)
        return 3 * eps * amplification(self.m, self.r) ** cut.dims * math.sqrt(cut.taps + 8)

    def plan(self, problem):
        return WinogradPlan(problem, self, self._schedule(problem))

    def _schedule(self, problem: ConvProblem) -> Schedule:
        return schedule.schedule(problem, self.m, self.r)


ALGORITHMS = (
    Winograd(2),
    Winograd(4),
    Winograd(5),  # maps of 5, 10 and 14
    Winograd(6),
    Winograd(4, 2),  # 3x3 with stride 2
    Winograd(5, 4),  # 7x7 with stride 2
    Winograd(2, 5),
    Winograd(4, 5),
)
