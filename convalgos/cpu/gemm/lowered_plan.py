"""Products of a lowered map and panels of filters, read through tables: no matrix of patches is made.

Every output is a row of the micro-kernel, which begins where its window begins in the lowered map; the rows
of neighbouring outputs overlap. Pieces of pixels by panels of filters are dealt to the threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from convalgos.core.algorithm import Algorithm
from convalgos.core.machine import Machine
from convalgos.core.plan import Plan
from convalgos.core.prepared_filter import FilterForm
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm import dealt_panels, panel_packing, panels
from convalgos.cpu.gemm.all_products import SUMS, AllProducts, sums_seconds
from convalgos.cpu.gemm.lowering import LOWERING_FIELDS, Lowering, lower_map, lowering
from convalgos.cpu.layout.strides import map_strides
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.filter_reads import block_filter_seconds
from convalgos.cpu.runtime.finish import finish_panel
from convalgos.cpu.runtime.plan import KernelPlan, arguments
from convalgos.cpu.runtime.threads import plan_threads
from convalgos.cpu.vectors import microkernel, simd
from convalgos.cpu.vectors.simd import call, carray, pointer

PIECE_PIXELS = 256  # outputs whose sums a task makes at a time, of a panel of filters

LOWERED_ARGUMENTS = arguments(
    LOWERING_FIELDS
    + "groups channels filters taps chunk vectors panels widest lanes pixels piece pixel_table "
    "tap_table y_n y_k y_pixel stream in_place sums sums_stride sum_panel sum_narrow store_run"
)


@jit.specialise
def multiply_lowered() -> Callable[..., None]:
    """Images x pieces of pixels x groups x panels of filters, dealt to the tasks."""

    def multiply_lowered(args: int, task: int) -> None:
        a = carray(pointer(args), 1, LOWERED_ARGUMENTS)[0]
        sums = a.scratch + a.sums + task * a.sums_stride
        pieces = (a.pixels + a.piece - 1) // a.piece
        total = a.count * pieces * a.groups * a.panels
        lowered = a.x if a.in_place else a.scratch
        for item in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            panel, group = item % a.panels, item // a.panels % a.groups
            piece, image = item // (a.panels * a.groups) % pieces, item // (a.panels * a.groups * pieces)
            first = a.pixels * piece // pieces
            count = a.pixels * (piece + 1) // pieces - first
            filters = dealt_panels.panel_extent(a, group, panel)
            source = lowered + (image * a.l_n + group * a.channels * a.l_c) * a.size
            table = a.pixel_table + first * 8
            call(filters.kernel, (source, table, count, a.tap_table, a.taps, a.chunk, filters.w, sums))
            k = group * a.filters + filters.first
            y = a.y + ((a.first + image) * a.y_n + k * a.y_k + first * a.y_pixel) * a.size
            stream = 0 if a.finish else a.stream
            call(
                a.store_run,
                (sums, filters.width, count, filters.filters, a.bias + k * a.size, a.relu, stream, y, a.y_k,
                 a.y_pixel),
            )  # fmt: skip
            finish_panel(a, y, count, filters.filters, a.y_k, a.y_pixel)

    return multiply_lowered


def piece_bytes(problem: ConvProblem, piece: int) -> int:
    """Scratch of a task: the sums of a piece of pixels, with spare rows."""
    rows, count = dealt_panels.panel_tile(problem.gemm_n, problem.itemsize)
    lanes = simd.lanes(problem.itemsize)
    vectors = -(-problem.gemm_n // lanes // count)  # of the widest panel
    return (min(piece, math.prod(problem.spatial_out)) + rows + lanes) * vectors * lanes * problem.itemsize


def lowered_bytes(cut: Lowering, piece: int = PIECE_PIXELS) -> int:
    """Scratch of a plan: the lowered map, and the sums of all tasks."""
    return cut.scratch_bytes + plan_threads() * piece_bytes(cut.problem, piece)


def piece_seconds(problem: ConvProblem, machine: Machine, slower: float) -> float:
    """`sums_seconds` where threads share the panels of filters of pieces of pixels, and read all filters."""
    p = problem
    pieces = p.N * -(-math.prod(p.spatial_out) // PIECE_PIXELS)
    items = pieces * p.groups * dealt_panels.panel_tile(p.gemm_n, p.itemsize)[1]
    busiest = -(-items // machine.threads) * machine.threads / items  # times an even share
    filters = block_filter_seconds(p, pieces, machine.threads, machine)
    return sums_seconds(p, machine, busiest * slower) + filters


def lowered_seconds(cut: Lowering, machine: Machine) -> float:
    """Predicted time of a run."""
    launches = len(cut.passes) * (1 if cut.in_place else 2)
    return piece_seconds(cut.problem, machine, SUMS) + (launches - 1) * machine.launch + cut.seconds(machine)


class LoweredPlan(KernelPlan):
    """One launch to lower some images, one for their products.

    Args:
        order: the taps of a group in the order in which they are summed, as indices into those of a filter.
        chunk: taps of a pass over a panel.
        piece: pixels whose sums are made at a time.
    """

    finishes = takes_views = any_order = True

    def __init__(
        self, problem: ConvProblem, algorithm: Algorithm, cut: Lowering, order: np.ndarray, chunk: int,
        piece: int = PIECE_PIXELS,
    ):  # fmt: skip
        p = cut.problem
        size, lanes = p.itemsize, simd.lanes(p.itemsize)
        tasks, out = plan_threads(), math.prod(p.spatial_out)
        rows, self._panels = dealt_panels.panel_tile(p.gemm_n, size)
        self._cut, self._order = cut, order
        y_n, y_k, _, _, y_pixel = map_strides(p.layout, p.K, p.spatial_out)
        needed, soon = -(-p.gemm_n // lanes), microkernel.PREFETCH_TAPS
        values = cut.fields() | {
            "tasks": tasks, "groups": p.groups, "channels": p.w_shape[1], "filters": p.gemm_n,
            "taps": p.gemm_k, "chunk": chunk, "pixels": out, "piece": piece,
            "pixel_table": cut.pixel_table(spare=rows),
            "tap_table": microkernel.padded_for_prefetch(cut.tap_offsets()[order]),
            "y_n": y_n, "y_k": y_k, "y_pixel": y_pixel, "stream": int(panels.streams_panels(p)),
            "in_place": int(cut.in_place), "sums": cut.scratch_bytes, "sums_stride": piece_bytes(p, piece),
            "store_run": panels.store_run(size, lanes),
            **dealt_panels.panel_kernels(panels.sum_panel, size, rows, needed, self._panels, soon),
        }  # fmt: skip
        steps = [(multiply_lowered(), tasks)]
        if not cut.in_place:
            steps.insert(0, (lower_map(size), tasks))
        passes = cut.passes if len(cut.passes) > 1 else ({},)
        scratch = lowered_bytes(cut, piece)
        super().__init__(problem, algorithm, LOWERED_ARGUMENTS, values, steps, scratch, passes)

    def filter_form(self) -> FilterForm:
        """Taps lie in the order of the lowered map, which is the same for maps of all sizes of a layout."""
        return FilterForm.of(self.problem, self._panels, self.problem.layout)

    def pack_filter(self, w: np.ndarray) -> np.ndarray:
        """`packed_panels`, taps in the order of their table."""
        p = self._cut.problem
        w = w.reshape(p.groups, p.gemm_n, p.w_shape[1], *p.kernel)  # (g, K/g, C/g, T, R, S)
        return panel_packing.packed_panels(w, self._panels, self._order)


class LoweredProducts(AllProducts):
    """An algorithm that lays out the taps along one dimension."""

    laid_along: ClassVar[int]  # `ROWS` or `COLUMNS`

    def cost(self, problem: ConvProblem, machine: Machine) -> float:
        return lowered_seconds(lowering(problem, self.laid_along), machine)

    def workspace_bytes(self, problem: ConvProblem) -> int:
        return 0 if problem.is_empty else lowered_bytes(lowering(problem, self.laid_along))

    def plan(self, problem: ConvProblem) -> Plan:
        cut = lowering(problem, self.laid_along)
        order = np.argsort(cut.tap_offsets(), kind="stable")  # as the taps lie in memory
        return LoweredPlan(problem, self, cut, order, panels.chunk(problem.gemm_k))
