"""Depthwise convolution, vectorised along the rows of a plane.

With one input channel per filter every plane is filtered by itself. A tile of output rows by vectors of
columns stays in registers over the whole kernel, the weights are broadcast, and each vector of x that is
loaded feeds every output row that it meets. x is read where it lies, and tables tell of borders that are not
zero. Dilated rows are interleaved sets of rows without dilation. In long filters of one row, neighbouring
vectors stand for rows. Wins on wide maps and signals; `cpu.depthwise.channels` wins on small maps and serves
channels_last.

Source: the depthwise scheme of Zhang, Lo and Lu, "High performance depthwise and pointwise convolutions on
mobile devices" (AAAI 2020), turned from channels to columns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from convalgos.core.algorithm import Algorithm, error_of_sums
from convalgos.core.boundaries import BOUNDARIES, ZERO, fills_alike, source_indices
from convalgos.core.element_types import HALF_DTYPES
from convalgos.core.machine import Machine
from convalgos.core.plan import Plan, numpy_dtype
from convalgos.core.prepared_filter import FilterForm
from convalgos.core.problem import ConvProblem, Shape
from convalgos.cpu.dwconv.row_kernels import (
    ROW_BAND,
    ROW_KERNEL_FIELDS,
    ROW_STRIP,
    ROW_TILE,
    filter_depthwise_planes,
    filter_row_tiles,
)
from convalgos.cpu.dwconv.row_strips import pass_table
from convalgos.cpu.dwconv.row_tables import RowTables, folded_passes
from convalgos.cpu.dwconv.row_tiling import RowTiling, plane_cycles, row_tiling
from convalgos.cpu.layout import streaming
from convalgos.cpu.runtime import half
from convalgos.cpu.runtime.half import computed_bytes, map_form
from convalgos.cpu.runtime.plan import CALL, KernelPlan
from convalgos.cpu.runtime.records import records_of_rows
from convalgos.cpu.runtime.threads import SingleThreaded, plan_threads, worth_sharing
from convalgos.cpu.vectors import simd

ONE_CHANNEL = 1.3  # slower by this where all filters read one plane; Xeon (Granite Rapids), 1 to 2.2
STRIDED, FEW_COLUMNS = 1.3, 10  # slower by this where a strided row has so few outputs; the same machine
NARROW = 0.07  # slower by this for each column of a kernel over 3 where a row is no vector; the same machine
MASKS = 16 << 20  # bytes of tables: filters that long belong to FFTs

# --- plan ------------------------------------------------------------------------------------


class RowsPlan(KernelPlan):
    finishes = strided_batch = rows_apart = True

    def __init__(self, problem: ConvProblem, algorithm: Rows):
        c = row_tiling(problem)
        p = c.problem
        tasks = plan_threads()
        tables = RowTables(c)
        self._zeros, zeros = filler_row(c)
        rows = source_indices(p.boundary[1], p.spatial[1], *p.padding[1])
        self._lines = rows.astype(np.int64)
        self._masks = tables.masks
        kernel = computed_bytes(p), c.lanes, map_form(p.dtype)
        values: dict[str, int | np.ndarray] = {
            "size": p.itemsize, "sum_size": kernel[0], "tasks": tasks, "planes": p.N * p.C, "channels": p.C,
            "multiplier": p.gemm_n,
            "band_count": len(tables.bands), "bands": records_of_rows(ROW_BAND, tables.bands),
            "strips": records_of_rows(ROW_STRIP, tables.strips),
            "tiles": records_of_rows(ROW_TILE, tables.tiles),
            "height": p.spatial[1], "width": p.spatial[2], **_steps("x", p.x_shape),
            **_steps("y", p.y_shape), "pad": p.padding[2][0], "row_step": p.dilation[1],
            "dilation_d": p.dilation[0], "step": c.row_stride,
            "zeros": zeros, "lines": self._lines.ctypes.data + 8 * p.padding[1][0], "fill": self._zeros,
            "offsets": c.offsets,
            "passes": pass_table([(0, p.kernel[1], 0, p.kernel[2])], c.step, c.in_pairs),
            "folded_passes": folded_passes(c), "filter": p.gemm_k, "w_row": p.kernel[2],
            "w_slice": p.kernel[1] * p.kernel[2], "period": c.period, "row_sets": c.row_sets,
            "line": c.most_columns if c.streams else p.spatial_out[2],
            "filter_tiles": filter_row_tiles(
                *kernel, c.rows, c.step, p.stride[2], c.square, c.row.ends if c.has_border else 0
            ),
            "stream": streaming.stream(p.itemsize, simd.lanes(p.itemsize)) if c.streams else 0,
            "scratch_bytes": c.scratch_bytes,
        }  # fmt: skip
        steps = [(filter_depthwise_planes(), tasks)]
        super().__init__(problem, algorithm, ROW_KERNEL_FIELDS, values, steps, tasks * c.scratch_bytes)

    def _set_steps(self, arguments: Any, name: str, array: np.ndarray) -> None:
        steps = [step // array.itemsize for step in array.strides[:-1]]
        axes = ("slice", "row")[3 - self.problem.ndim :]
        for axis, step in zip(("n", "plane", *axes), steps, strict=True):
            setattr(arguments, f"{name}_{axis}", step)
        if name == "y" and not arguments.stream:
            arguments.line = arguments.y_row

    def filter_form(self) -> FilterForm:
        return FilterForm.of(self.problem)

    def pack_filter(self, w: np.ndarray) -> np.ndarray:
        """As it is: (K, 1, *kernel)."""
        return np.array(w, self.problem.compute_dtype, order="C")


def _steps(name: str, shape: Shape) -> dict[str, int]:
    """Elements from one image, plane, slice and row of a whole map to the next; shape: (N, C, D, H, W)."""
    axes = enumerate(("n", "plane", "slice", "row"), 1)
    return {f"{name}_{axis}": math.prod(shape[i:]) for i, axis in axes}


def filler_row(c: RowTiling) -> tuple[np.ndarray, int]:
    """What rows beyond the map hold, and the address of what lies under the first tap of the first output."""
    p, before = c.problem, 0
    count = c.reach + 4 * p.stride[2] * c.lanes
    if c.has_border:  # read as rows of x are
        count, before = max(count, p.spatial[2]), p.padding[2][0]
    value = np.full(count, p.fill_value).astype(numpy_dtype(p.dtype))
    return value, value.ctypes.data - before * p.itemsize


@dataclass(frozen=True)
class Rows(SingleThreaded, Algorithm):
    family: ClassVar[str] = "cpu.depthwise"
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "float64", *HALF_DTYPES)
    boundaries: ClassVar[tuple[str, ...]] = BOUNDARIES

    @property
    def variant(self) -> str:
        return "rows"

    def why_not(self, problem: ConvProblem) -> str | None:
        return super().why_not(problem) or _unsuited(problem)

    def knows_border(self, problem: ConvProblem) -> bool:
        return problem.dtype not in HALF_DTYPES and problem.as_3d.boundary[0] == ZERO and fills_alike(problem)

    def takes_halves(self, problem: ConvProblem) -> bool:
        return super().takes_halves(problem) and half.why_not(problem.dtype) is None

    def cost(self, problem: ConvProblem, machine: Machine) -> float:
        c = row_tiling(problem)
        p = c.problem
        cycles = machine.peak(p.dtype) / (4 * c.lanes)  # a second, of all cores
        compute = p.N * p.C * plane_cycles(c) / cycles * (ONE_CHANNEL if p.C == 1 < p.K else 1)
        if not worth_sharing(problem):
            compute *= machine.threads
        elif c.folds:  # a row is one piece where all of it reaches over its ends
            compute *= max(1.0, machine.threads / (p.N * p.C * c.pieces))
            compute += machine.stream(p.N * p.C * 8 * c.masks)
        if p.spatial_out[2] < c.lanes:
            compute *= 1 + NARROW * max(0, p.kernel[2] - 3)
        if p.stride[2] > 1 and p.spatial_out[2] <= FEW_COLUMNS:
            compute *= STRIDED
        # a cached store reads its line first, which shows where y is too large for the caches
        large = p.y_bytes > machine.l3_bytes / 2 and not c.streams
        memory = machine.stream(p.x_bytes + p.y_bytes * (2 if large else 1), p.bytes)
        if c.streams:
            return CALL + machine.launch + compute + memory
        # what lies beyond the caches is fetched while what is near is filtered
        return CALL + machine.launch + max(compute + p.bytes / machine.cache_bandwidth / 2, memory)

    def least(self, problem: ConvProblem, machine: Machine) -> float:
        if _of_other_layers(problem):
            return math.inf
        p, lanes = problem, simd.lanes(computed_bytes(problem))
        vectors = p.N * p.K * math.prod(p.spatial_out[:-1]) * -(-p.spatial_out[-1] // lanes)  # of y
        rest = p.gemm_k // (p.kernel[-1] * (p.kernel[-2] if p.ndim > 1 else 1))  # kernel slices
        cycles = p.gemm_k / 2 + rest * 0.15
        compute = vectors * cycles * 4 * lanes / machine.peak(p.dtype)
        return CALL + machine.launch + max(compute, machine.stream(p.x_bytes + p.y_bytes, p.bytes))

    def workspace_bytes(self, problem: ConvProblem) -> int:
        return 0 if problem.is_empty else plan_threads() * row_tiling(problem).scratch_bytes

    def error_bound(self, problem: ConvProblem) -> float:
        return error_of_sums(problem)

    def plan(self, problem: ConvProblem) -> Plan:
        return RowsPlan(problem, self)


def _of_other_layers(problem: ConvProblem) -> str | None:
    """Why a problem is not for this; told without cutting it."""
    if problem.groups != problem.C:
        return "filters every channel by itself, and here a filter sums over several"
    if problem.layout != "channels_first":
        return "reads rows of channels_first maps; cpu.depthwise.channels serves channels_last"
    if problem.stride[-1] > 2:
        return f"splits columns for a stride of at most 2, not {problem.stride[-1]}"
    return None


def _unsuited(problem: ConvProblem) -> str | None:
    if reason := _of_other_layers(problem):
        return reason
    if not problem.is_empty:
        nbytes = row_tiling(problem).columns.mask_bytes(problem.kernel[-1])
        if nbytes > MASKS:
            return f"has masks for each vector that meets padding, here {nbytes} bytes and at most {MASKS}"
    return None


ALGORITHMS = (Rows(),)
