"""Products of a matrix of filters by few vectors: convolutions of few outputs, such as 1x1 on maps of 1x1.

Each element of the filter is used for as few outputs as there are, so the filter is read once, as it lies: in
panels (taps, filters of the panel), one after the other. The inputs of an output, (taps,), are one row: where
they lie so in x they are read there, else they are copied to scratch.

A panel is as wide as the registers hold sums for all outputs; where these are few, the sums over some of the
taps are kept apart, as one sum would wait for itself.

Source: the matrix-vector product of the BLAS (Lawson et al. 1979), by columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from convalgos.core.algorithm import Algorithm
from convalgos.core.allocator import whole_lines
from convalgos.core.layouts import to_logical
from convalgos.core.machine import Machine, vector_bytes
from convalgos.core.prepared_filter import FilterForm
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm import dealt_panels, panel_packing, panels
from convalgos.cpu.layout.strides import map_strides
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.filter_reads import reading_seconds
from convalgos.cpu.runtime.finish import finish_panel
from convalgos.cpu.runtime.plan import CALL, KernelPlan, arguments
from convalgos.cpu.runtime.threads import cached_by_threads, short_launch_threads, worth_sharing
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.simd import Value, Vec, call, carray, emitter, pointer

ROWS = (1, 2, 4, 8)  # outputs of the micro-kernel; with more the tiles of `panels` are as fast
MOST_ROWS = ROWS[-1]
SUMS = 8  # that keep the arithmetic units busy
WIDEST = 8  # vectors of a panel
AHEAD = 4096  # bytes of a filter that are asked for before they are read; Xeon (Granite Rapids)
MOST_INPUTS = 1 << 20  # elements of x, and inputs of all outputs
COPIED = 0.7e-9  # seconds of an input that is copied; Xeon (Granite Rapids)
OUTSIDE = -1  # of a table of inputs: the border, which is zero


def widest_panel(rows: int) -> int:
    """Vectors of filters for which the registers hold sums beside `rows` outputs."""
    registers = 32 if vector_bytes() == 64 else 16
    return max(1, min(WIDEST, (registers - 2) // (rows + 1)))


def sums_apart(rows: int, vectors: int) -> int:
    """Sums that an output is made of: by all vectors of its filters, as bits must not depend on threads."""
    return next(n for n in (1, 2, 4) if n == 4 or n * rows * vectors >= SUMS)


@emitter
def gemv_tile(
    v: Vec, ROWS: int, vectors: Value, apart: Value, x: Value, rows: Value, w: Value, taps: Value, y: Value
) -> None:
    """`one_tile` of a width and a number of sums that are known only when it runs."""
    widths = range(1, widest_panel(ROWS) + 1)
    found = {(n, sums_apart(ROWS, all_)) for n in widths for all_ in range(n, SUMS + 1)}
    for width, count in sorted(found):
        with v.within(v.isub(vectors, width), 1), v.within(v.isub(apart, count), 1):
            one_tile(v, ROWS, width, count, x, rows, w, taps, y)


def one_tile(
    v: Vec, ROWS: int, VECTORS: int, APART: int, x: Value, rows: Value, w: Value, taps: Value, y: Value
) -> None:
    """y[i][:] = sum_t x[rows[i] + t] * w[t][:], for i < ROWS; w: (taps, VECTORS*lanes), y: rows of as many.

    rows: an int64 table. The sums over every APART-th tap are kept apart, and added at last.
    """
    width = VECTORS * v.lanes
    base, filters, target = v.pointer(x), v.pointer(w), v.pointer(y)
    inputs = [v.at(base, v.table64(rows, i)) for i in range(ROWS)]
    sums = [[[v.register(v.zero()) for _ in range(VECTORS)] for _ in range(ROWS)] for _ in range(APART)]

    def add(at: Any, own: list[list[Any]]) -> None:
        tap = v.at(filters, v.imul(at, width))
        weights = [v.load(tap, j * v.lanes) for j in range(VECTORS)]
        for j in range(VECTORS):
            v.prefetch(tap, AHEAD // v.size + j * v.lanes, near=True)
        for row, input_ in zip(own, inputs, strict=True):
            value = v.broadcast(input_, at)
            for total, weight in zip(row, weights, strict=True):
                total.set(v.fma(value, weight, total.value))

    whole = v.idiv(taps, APART)
    with v.loop(whole) as t:
        for i, own in enumerate(sums):
            add(v.iadd(v.imul(t, APART), i), own)
    if APART > 1:
        done = v.imul(whole, APART)
        with v.loop(v.isub(taps, done)) as t:
            add(v.iadd(done, t), sums[0])
    for i in range(ROWS):
        for j in range(VECTORS):
            total = reduce(v.fadd, [own[i][j].value for own in sums])
            v.store(total, target, (i * VECTORS + j) * v.lanes)


GEMV_ARGUMENTS = arguments(
    "size outputs taps panels vectors apart filters tasks copied table rows scratch_stride input_bytes "
    "pixels images y_n y_k y_pixel store_run"
)


@jit.helper
def copy_inputs(a: Any, scratch: int, SIZE: int) -> None:
    """The inputs of all outputs, (outputs, taps), from where `table` says, with zeros for the border."""
    table = carray(pointer(a.table), a.outputs * a.taps, np.int32)
    x = carray(pointer(a.x), 1, np.int32 if SIZE == 4 else np.int64)
    to = carray(pointer(scratch), 1, np.int32 if SIZE == 4 else np.int64)
    for i in range(a.outputs * a.taps):
        from_ = table[i]
        if from_ < 0:
            to[i] = 0
        else:
            to[i] = x[from_]


@jit.specialise
def multiply_rows(SIZE: int, LANES: int, ROWS: int) -> Callable[..., None]:
    """Panels of filters dealt to the tasks: sums, and their output step.

    The vectors of all filters are dealt to the panels evenly.
    """

    def multiply_rows(args: int, task: int) -> None:
        a = carray(pointer(args), 1, GEMV_ARGUMENTS)[0]
        x, sums = a.x, a.scratch + task * a.scratch_stride
        if a.copied:
            x = sums
            copy_inputs(a, x, SIZE)
            sums += a.input_bytes
        for panel in range(a.panels * task // a.tasks, a.panels * (task + 1) // a.tasks):
            first = a.vectors * panel // a.panels
            count, k = a.vectors * (panel + 1) // a.panels - first, first * LANES
            w, width = a.w + k * a.taps * SIZE, count * LANES
            gemv_tile(SIZE, LANES, ROWS, count, a.apart, x, a.rows, w, a.taps, sums)
            filters, bias = min(width, a.filters - k), a.bias + k * SIZE
            for i in range(a.images):
                source = sums + i * a.pixels * width * SIZE
                y = a.y + (i * a.y_n + k * a.y_k) * SIZE
                call(a.store_run, (source, width, a.pixels, filters, bias, a.relu, 0, y, a.y_k, a.y_pixel))
                finish_panel(a, y, a.pixels, filters, a.y_k, a.y_pixel)

    return multiply_rows


@dataclass(frozen=True)
class GemvBlocking(dealt_panels.DealtPanels):
    """How the product is cut."""

    problem: ConvProblem  # the 3-D view
    tasks: int
    rows: int  # outputs of the micro-kernel, of which the last may be spare
    panels: int


def is_gemv(problem: ConvProblem) -> bool:
    """Whether there are so few outputs, and inputs, that a filter is best read once."""
    p = problem
    few = 0 < p.gemm_m <= MOST_ROWS and p.groups == 1
    return few and max(p.gemm_m * p.gemm_k, math.prod(p.x_shape)) <= MOST_INPUTS


@cached_by_threads(256)
def gemv_blocking(problem: ConvProblem) -> GemvBlocking:
    p = problem.as_3d
    tasks = short_launch_threads(p)
    rows = next(n for n in ROWS if n >= p.gemm_m)
    vectors = -(-p.K // simd.lanes(p.itemsize))
    count = dealt_panels.panels_of_parts(vectors, -(-vectors // widest_panel(rows)), tasks)
    return GemvBlocking(p, tasks, rows, count)


def inputs_of_outputs(p: ConvProblem) -> np.ndarray:
    """(outputs, taps) int32: where in x the inputs lie, or OUTSIDE; taps in the order of memory.

    p: the 3-D view.
    """
    last = p.layout == "channels_last"
    laid = p.array_shape(p.x_shape)
    places = to_logical(np.arange(math.prod(laid), dtype=np.int32).reshape(laid), p.layout, p.C)
    places = np.pad(places, ((0, 0), (0, 0), *p.padding), constant_values=OUTSIDE)
    spans = sliding_window_view(places, p.kernel_extent, (2, 3, 4))  # (N, C, outputs.., kernel extent..)
    spans = spans[:, :, *(slice(None, None, s) for s in (*p.stride, *p.dilation))]
    order = (0, 2, 3, 4, 5, 6, 7, 1) if last else (0, 2, 3, 4, 1, 5, 6, 7)
    return np.ascontiguousarray(spans.transpose(order).reshape(p.gemm_m, p.gemm_k))


class GemvPlan(KernelPlan):
    finishes = takes_views = any_order = True

    def __init__(self, problem: ConvProblem, algorithm: Algorithm):
        self._cut = cut = gemv_blocking(problem)
        p = cut.problem
        size, lanes = p.itemsize, simd.lanes(p.itemsize)
        table, scratch = inputs_of_outputs(p), gemv_scratch_bytes(problem)
        in_place = bool((table != OUTSIDE).all() and (np.diff(table) == 1).all())  # or rows are copied
        rows = np.full(cut.rows, 0, np.int64)  # of the micro-kernel; spare ones are the last one again
        first = table[:, 0] if in_place else np.arange(p.gemm_m) * p.gemm_k
        rows[: p.gemm_m], rows[p.gemm_m :] = first, first[-1]
        pixels = math.prod(p.spatial_out)
        y_n, y_k, _, _, y_pixel = map_strides(p.y_layout, p.K, p.spatial_out)
        if by_pixel := p.y_layout == "channels_last" or pixels == 1:  # y is (outputs, K)
            y_k, y_pixel = 1, y_n // pixels
        values: dict[str, int | np.ndarray] = {
            "size": size, "outputs": p.gemm_m, "taps": p.gemm_k, "panels": cut.panels,
            "vectors": cut.vectors_of, "apart": sums_apart(cut.rows, cut.vectors_of),
            "filters": p.K, "tasks": cut.tasks, "copied": int(not in_place), "table": table, "rows": rows,
            "input_bytes": 0 if in_place else self._input_bytes(p), "scratch_stride": scratch,
            "pixels": p.gemm_m if by_pixel else pixels, "images": 1 if by_pixel else p.N,
            "y_n": y_n, "y_k": y_k, "y_pixel": y_pixel,
            "store_run": panels.store_run(size, lanes),
        }  # fmt: skip
        kernel = multiply_rows(size, lanes, cut.rows)
        steps = [(kernel, cut.tasks)]
        super().__init__(problem, algorithm, GEMV_ARGUMENTS, values, steps, cut.tasks * scratch)

    @staticmethod
    def _input_bytes(p: ConvProblem) -> int:
        return whole_lines(p.gemm_m * p.gemm_k * p.itemsize)

    def filter_form(self) -> FilterForm:
        in_pixels = self._cut.problem.layout == "channels_last"
        return FilterForm.of(self.problem, "outputs", self._cut.panels, in_pixels)

    def pack_filter(self, w: np.ndarray) -> np.ndarray:
        """(panels, taps, filters of a panel)."""
        p = self._cut.problem
        if p.layout == "channels_last":
            w = np.moveaxis(w, 1, -1)  # (K, T, R, S, C)
        return panel_packing.packed_panels(w[None], self._cut.panels)


def gemv_scratch_bytes(problem: ConvProblem) -> int:
    """Of a task: the inputs of all outputs, and the sums of a panel with spare rows behind them."""
    cut = gemv_blocking(problem)
    p, lanes = cut.problem, simd.lanes(problem.itemsize)
    sums = (cut.rows + lanes) * cut.vectors * lanes
    return GemvPlan._input_bytes(p) + whole_lines(sums * p.itemsize)


class FewOutputs:
    """The form of direct convolution whose filter is read once, each of its elements for all outputs."""

    def seconds(self, problem: ConvProblem, machine: Machine) -> float:
        """Predicted time of a run: to read the filter from where it lies, beside the sums."""
        p = problem
        threads = machine.threads if worth_sharing(p) else 1
        read = p.w_bytes / machine.near_bandwidth * machine.threads / threads
        read += reading_seconds(p.w_bytes, p.w_bytes / threads, p.w_bytes, machine)
        sums = p.flops / machine.peak(p.dtype) * machine.threads / threads
        copied = 0 if math.prod(p.spatial) == 1 else p.gemm_m * p.gemm_k
        return CALL + math.hypot(read, sums) + copied * COPIED

    least = seconds

    def scratch_bytes(self, problem: ConvProblem) -> int:
        return gemv_blocking(problem).tasks * gemv_scratch_bytes(problem)

    def plan(self, problem: ConvProblem, algorithm: Algorithm) -> GemvPlan:
        return GemvPlan(problem, algorithm)
