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
from convalgos.cpu import jit, schedule, simd, tiles
from convalgos.cpu.boxes import BoxPlan
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

FILTER_FIELDS = (
    "w u scratch size lanes tasks groups filters channels chunk taps_d phases_h phases_w rows columns "
    "panel panels vectors blocks points slice_taps scratch_stride transformed_w gather filter_tiles"
)
FILTER_RECORD = np.dtype([(name, np.int64) for name in FILTER_FIELDS.split()])


@jit.specialise
def transform_filters():
    """w (group, filter, channel, depth tap, rows, columns) -> U, in the order that `boxes` reads.

    Rows and columns are multiples of the phases. An item is a group and a vector of filters.
    """

    def transform_filters(args, task):
        a = carray(pointer(args), 1, FILTER_RECORD)[0]
        scratch = a.scratch + task * a.scratch_stride
        pixel = a.lanes * a.size
        plane = a.rows * a.columns
        per_filter = a.channels * a.taps_d * plane
        u_panel = a.taps_d * a.slice_taps * a.panel
        down = a.phases_h * a.columns * a.lanes
        across = a.phases_w * a.lanes if a.transformed_w else down
        items = a.groups * a.blocks
        for item in range(items * task // a.tasks, items * (task + 1) // a.tasks):
            group, block = item // a.blocks, item % a.blocks
            first = block * a.lanes
            u = (group * a.points * a.panels + block // a.vectors) * u_panel + block % a.vectors * a.lanes
            for c in range(0, a.channels, a.chunk):
                channels = min(a.chunk, a.channels - c)
                w = (group * a.filters + first) * per_filter + c * a.taps_d * plane
                call(
                    a.gather,
                    (a.w + w * a.size, per_filter, 1, min(a.lanes, a.filters - first),
                     channels * a.taps_d * plane, scratch),
                )  # fmt: skip
                for tap in range(a.taps_d):
                    for phase in range(a.phases_h * a.phases_w):
                        element = tap * plane + phase // a.phases_w * a.columns + phase % a.phases_w
                        row = tap * a.slice_taps + phase * a.channels + c
                        call(
                            a.filter_tiles,
                            (scratch + element * pixel, down, across, a.taps_d * plane * a.lanes, channels,
                             a.u + (u + row * a.panel) * a.size, a.panel, a.panels * u_panel),
                        )  # fmt: skip

    return transform_filters


# --- plan ------------------------------------------------------------------------------------------

CHUNK = 512  # taps of a filter that are transposed at a time: 32 KiB


class WinogradPlan(BoxPlan):
    def __init__(self, problem: ConvProblem, algorithm: Winograd, cut: Schedule):
        kernel = (problem.itemsize, cut.lanes, algorithm.m, algorithm.r, cut.dims)
        super().__init__(problem, algorithm, cut, input_tiles(*kernel), output_tiles(*kernel))
        self._filter_tiles = filter_tiles(*kernel)

    def pack_filter(self, w):
        """U (groups, points, panels, taps, panel)."""
        cut, p = self.cut, self.cut.problem
        taps = [a.phases * a.taps for a in (cut.rows, cut.columns)]
        w = w.reshape(p.w_shape)  # (K, C/g, T, R, S)
        if taps != list(p.kernel[1:]):
            padded = np.zeros((*p.w_shape[:3], *taps), w.dtype)
            padded[..., : p.kernel[1], : p.kernel[2]] = w
            w = padded
        shape = (p.groups, cut.points, cut.panels, cut.taps, cut.panel)
        u = aligned_empty(math.prod(shape), w.dtype).reshape(shape)
        used = (cut.filter_blocks - 1) % cut.vectors * cut.lanes + cut.lanes
        u[:, :, -1, :, used:] = 0
        threads = jit.thread_count()
        chunk = max(1, CHUNK // math.prod(w.shape[2:]))
        stride = (chunk * math.prod(w.shape[2:]) + cut.lanes) * cut.lanes * p.itemsize
        scratch = aligned_empty(threads * stride, np.uint8)
        record = np.zeros(1, FILTER_RECORD)
        values = {
            "w": w.ctypes.data, "u": u.ctypes.data, "scratch": scratch.ctypes.data, "size": p.itemsize,
            "lanes": cut.lanes, "tasks": threads, "groups": p.groups, "filters": p.gemm_n,
            "channels": p.w_shape[1], "chunk": chunk, "taps_d": p.kernel[0], "phases_h": cut.rows.phases,
            "phases_w": cut.columns.phases, "rows": taps[0], "columns": taps[1], "panel": cut.panel,
            "panels": cut.panels, "vectors": cut.vectors, "blocks": cut.filter_blocks, "points": cut.points,
            "slice_taps": cut.slice_taps, "scratch_stride": stride,
            "transformed_w": int(cut.columns.outputs > 1), "gather": tiles.gather(p.itemsize, cut.lanes),
            "filter_tiles": self._filter_tiles,
        }  # fmt: skip
        for name, value in values.items():
            record[name] = value
        jit.launch(transform_filters(), record.ctypes.data, threads)
        return u


@dataclass(frozen=True)
class Winograd(Algorithm):
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
        return 4 * problem.flops / machine.peak(problem.dtype)

    def workspace_bytes(self, problem):
        return 0 if problem.is_empty else schedule.schedule(problem, self.m, self.r).scratch_bytes

    def error_bound(self, problem):
        found = schedule.form(problem, self.r)
        dims = sum(found)
        eps = float(np.finfo(problem.dtype).eps)
        return eps * amplification(self.m, self.r) ** dims * (4 * problem.gemm_k**0.5 + 8)

    def plan(self, problem):
        return WinogradPlan(problem, self, schedule.schedule(problem, self.m, self.r))


ALGORITHMS = (Winograd(2), Winograd(4), Winograd(6), Winograd(4, 5), Winograd(2, 5))
