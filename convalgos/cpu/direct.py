"""Direct convolution: the register-blocked micro-kernel over a table of input offsets.

Every output of a tile of pixels by filters is summed in registers:
y[pixel][filter] = sum_tap x[pixel + offset[tap]] * w[tap][filter], taps over (C/groups, T, R, S). Kernel
size, stride, dilation, number of dimensions and layout are content of the tables: one kernel serves them all.
Outputs are cut into blocks of pixels. The input of a block is copied once, with its border, into scratch
that stays in the L2 cache, or read in place where there is no padding; that of 1x1 layers of many filters is
packed (`gemm.packed_plan`), and blocks of channels have tiles of their own (`gemm.blocked_plan`). Wins on
1x1, strided and first layers; elsewhere others are measured against it.

Source: indirect convolution (Dukhan 2019, arXiv:1907.02129), with the table over taps instead of pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from convalgos.core.algorithm import Algorithm, error_of_sums
from convalgos.core.layouts import PLAIN
from convalgos.core.machine import Machine
from convalgos.core.plan import Plan
from convalgos.core.prepared_filter import FilterForm
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm import blocked_plan, dealt_panels, gemv, packed_blocking, packed_plan, panels
from convalgos.cpu.gemm.block_copies import copy_block_images
from convalgos.cpu.gemm.blocked_cut import blocked_cut, blocked_seconds, lies_in_blocks
from convalgos.cpu.gemm.blocking import (
    BlockExtent,
    block_count,
    block_extent,
    image_pixels,
    input_in_place,
    pixel_in_image,
    run_pixels,
    table_number,
)
from convalgos.cpu.gemm.direct_blocking import (
    FEW,
    DirectBlocking,
    copied_seconds,
    direct_blocking,
    direct_fields,
)
from convalgos.cpu.gemm.panel_packing import packed_panels
from convalgos.cpu.gemm.unpacked_rows import UnpackedRows, UnpackedRowsPlan, is_matrix_product
from convalgos.cpu.layout.copied_borders import BORDER_FIELDS, COPIED_BORDERS
from convalgos.cpu.layout.groups import why_not_in_blocks
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.filter_reads import block_filter_seconds
from convalgos.cpu.runtime.finish import finish_panel
from convalgos.cpu.runtime.plan import CALL, KernelPlan, arguments
from convalgos.cpu.runtime.threads import SingleThreaded, cached_by_threads, plan_threads
from convalgos.cpu.vectors.simd import call, carray, pointer

ONE_BLOCK = 16  # outputs, which are not cut
# Calibrated on Zen 5 with AVX-512.
TABLED = 1.08  # times the sums of `panels`, where pixels are found through a table; convbench, on a Xeon too
STRIDED = 0.3  # longer by this is a 1x1 layer with a stride, which takes a part of each line of x, and waits
ASKED_FOR = 0.4  # of what is shown, of neighbours whose lines are asked for; Xeon (Granite Rapids)
SHOWN = 0.5  # of the time in which x and y are moved, which the sums do not hide

# --- kernels ---------------------------------------------------------------------------------

DIRECT_ARGUMENTS = arguments(
    "size images block_o block_p block_q blocks_o blocks_p blocks_q n o p q channels filters groups "
    "parts parts_first vectors panels widest taps chunk tasks pixel_table table_length offsets copied "
    "x_n x_c x_d x_h x_w depth height width stride_d stride_h stride_w pad_d pad_h pad_w step_d step_h "
    "span_d span_h span_w s_n s_c s_d s_h s_w load_c unit last input_bytes scratch_stride "
    "y_n y_k y_pixel stream sum_panel sum_narrow store_run lanes copy_rows " + BORDER_FIELDS
)


@jit.specialise
def sum_blocks() -> Callable[..., None]:
    """Parts of the filters x groups x blocks, in this order, dealt to the tasks in equal runs; where inputs
    are copied groups x blocks x parts; channels_last, whose pixels hold all groups, blocks x groups x parts.
    For each:

    1. find the block of pixels, the group and the part of its filters;
    2. read the input of the block in place, or copy it with its zero border, once for all parts;
    3. sum a panel of filters over all taps, for all pixels of the block;
    4. store the sums in y with bias and activation, in runs of neighbouring pixels.
    """

    def sum_blocks(args: int, task: int) -> None:
        a = carray(pointer(args), 1, DIRECT_ARGUMENTS)[0]
        scratch = a.scratch + task * a.scratch_stride
        sums = scratch + a.input_bytes
        blocks = block_count(a)
        total = blocks * a.groups * a.parts
        loaded = -1
        for item in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            unit, part = item // a.parts, item % a.parts
            if a.parts_first:
                unit, part = item % (total // a.parts), item // (total // a.parts)
            index, group = unit // a.groups, unit % a.groups
            if not a.last:
                index, group = unit % blocks, unit // blocks
            block = block_extent(a, index)
            if a.copied:
                key = index if a.last else index * a.groups + group
                if key != loaded:
                    channel = 0 if a.last else group * a.channels
                    x = a.x + (block.n * a.x_n + channel * a.x_c) * a.size
                    copy_block_images(a, block, x, scratch, a.load_c)
                    loaded = key
                source = scratch + (group * a.channels if a.last else 0) * a.size
            else:
                source = input_in_place(a, block, group)
            table = a.pixel_table + table_number(a, block) * a.table_length * 8
            pixels = block.images * image_pixels(block)
            for panel in range(a.panels * part // a.parts, a.panels * (part + 1) // a.parts):
                filters = dealt_panels.panel_extent(a, group, panel)
                call(filters.kernel, (source, table, pixels, a.offsets, a.taps, a.chunk, filters.w, sums))
                store_panel(a, block, group, filters, sums)

    return sum_blocks


@jit.helper
def store_panel(a: Any, block: BlockExtent, group: int, panel: dealt_panels.PanelExtent, sums: int) -> None:
    """The sums [pixel][filter] of a panel to y."""
    k = group * a.filters + panel.first
    run, per_image = run_pixels(a, block), image_pixels(block)
    for i in range(block.images):
        done = 0
        while done < per_image:
            pixel = pixel_in_image(a, block, done)
            y = a.y + ((block.n + i) * a.y_n + k * a.y_k + pixel * a.y_pixel) * a.size
            source, bias = sums + (i * per_image + done) * panel.width * a.size, a.bias + k * a.size
            stream = 0 if a.finish else a.stream
            call(
                a.store_run,
                (source, panel.width, run, panel.filters, bias, a.relu, stream, y, a.y_k, a.y_pixel),
            )
            finish_panel(a, y, run, panel.filters, a.y_k, a.y_pixel)
            done += run


# --- plan ------------------------------------------------------------------------------------


class DirectPlan(KernelPlan):
    finishes = takes_views = any_order = True

    def __init__(self, problem: ConvProblem, algorithm: Direct):
        cut, tasks = direct_blocking(problem), plan_threads()
        steps, scratch = [(sum_blocks(), tasks)], tasks * cut.scratch_bytes
        super().__init__(problem, algorithm, DIRECT_ARGUMENTS, direct_fields(cut), steps, scratch)
        self._set_cut(cut)

    def _set_cut(self, cut: DirectBlocking) -> None:
        self._cut = cut
        self.strided_batch = cut.copied or cut.images == 1  # else the table of pixels knows where images lie

    def on_maps(self, problem: ConvProblem) -> Self | None:
        """This plan for other sizes of the maps; None where these have the filter in other panels."""
        cut = direct_blocking(problem)
        if cut.panels != self._cut.panels:
            return None
        plan = self.resized(problem, direct_fields(cut, known=True), plan_threads() * cut.scratch_bytes)
        plan._set_cut(cut)
        return plan

    def filter_form(self) -> FilterForm:
        in_pixels = self._cut.problem.layout == "channels_last"
        return FilterForm.of(self.problem, "panels", self._cut.panels, in_pixels)

    def pack_filter(self, w: np.ndarray) -> np.ndarray:
        """`packed_panels`; taps in the order of the offset table."""
        cut, p = self._cut, self._cut.problem
        w = w.reshape(p.groups, p.gemm_n, p.w_shape[1], *p.kernel)  # (g, K/g, C/g, T, R, S)
        return packed_panels(np.moveaxis(w, 2, -1) if p.layout == "channels_last" else w, cut.panels)


# --- forms -----------------------------------------------------------------------------------


class DirectForm(Protocol):
    """One of the ways in which the sums are made."""

    def seconds(self, problem: ConvProblem, machine: Machine) -> float:
        """Predicted time of a run."""

    def least(self, problem: ConvProblem, machine: Machine) -> float:
        """A lower bound of it, found in less time."""

    def scratch_bytes(self, problem: ConvProblem) -> int:
        """Of all tasks."""

    def plan(self, problem: ConvProblem, algorithm: Direct) -> Plan: ...


class Neighbours:
    """The pixels of a 1x1 layer are neighbours: packed, or read as they lie."""

    def seconds(self, problem: ConvProblem, machine: Machine) -> float:
        cycles = packing(problem)[0]
        sums = max(packed_blocking.seconds(cycles, problem, machine), panels.filter_seconds(problem, machine))
        return CALL + machine.launch + sums + ASKED_FOR * _memory(problem, machine)

    def least(self, problem: ConvProblem, machine: Machine) -> float:
        sums, memory = panels.product_seconds(problem, machine), _memory(problem, machine)
        return CALL + machine.launch + 0.9 * sums + ASKED_FOR * memory

    def scratch_bytes(self, problem: ConvProblem) -> int:
        return plan_threads() * (packing(problem)[1] or direct_blocking(problem)).scratch_bytes

    def plan(self, problem: ConvProblem, algorithm: Direct) -> Plan:
        packed, of = packing(problem)[1], (problem, algorithm)
        return packed_plan.PackedPlan(*of, packed) if packed else DirectPlan(*of)


class TabledBlocks:
    """Pixels of blocks of the map are found through a table."""

    def seconds(self, problem: ConvProblem, machine: Machine) -> float:
        cut = direct_blocking(problem)
        p = cut.problem
        tasks = math.prod(cut.blocks) * p.groups * cut.filter_parts
        if p.gemm_m <= ONE_BLOCK:
            balance = 1.0  # parts of the filters of one block, which begins and ends once
        elif tasks < FEW * machine.threads:
            balance = cut.busiest(machine.threads) * machine.threads / (p.gemm_m * p.groups)
        else:
            balance = -(-tasks // machine.threads) * machine.threads / tasks
        slower = TABLED * panels.crowding_of_windows(p)
        if p.is_pointwise and p.stride[2] > 1:
            slower *= 1 + STRIDED * machine.line_waits
        sums = balance * panels.product_seconds(p, machine) * slower
        if p.gemm_m > ONE_BLOCK:
            sums = math.hypot(sums, block_filter_seconds(p, math.prod(cut.blocks), cut.filter_parts, machine))
        return CALL + machine.launch + sums + copied_seconds(cut, machine) + _memory(p, machine)

    def least(self, problem: ConvProblem, machine: Machine) -> float:
        sums, memory = panels.product_seconds(problem, machine), _memory(problem, machine)
        return CALL + machine.launch + sums * panels.crowding_of_windows(problem) + memory

    def scratch_bytes(self, problem: ConvProblem) -> int:
        return 0 if problem.is_empty else plan_threads() * direct_blocking(problem).scratch_bytes

    def plan(self, problem: ConvProblem, algorithm: Direct) -> Plan:
        return DirectPlan(problem, algorithm)


class InBlocks:
    """x and y lie in blocks of channels, and tiles of neighbours are vectors in both."""

    def seconds(self, problem: ConvProblem, machine: Machine) -> float:
        return blocked_seconds(problem, machine)

    least = seconds

    def scratch_bytes(self, problem: ConvProblem) -> int:
        return plan_threads() * blocked_cut(problem)[1].scratch_bytes

    def plan(self, problem: ConvProblem, algorithm: Direct) -> Plan:
        return blocked_plan.BlockedPlan(problem, algorithm, blocked_cut(problem)[1])


FEW_OUTPUTS, UNPACKED_ROWS = gemv.FewOutputs(), UnpackedRows()
NEIGHBOURS, BLOCKS, IN_BLOCKS = Neighbours(), TabledBlocks(), InBlocks()
RESIZED = {BLOCKS: DirectPlan, IN_BLOCKS: blocked_plan.BlockedPlan, UNPACKED_ROWS: UnpackedRowsPlan}


def direct_form(problem: ConvProblem) -> DirectForm:
    """The way that suits a problem."""
    if is_matrix_product(problem):
        return UNPACKED_ROWS
    if gemv.is_gemv(problem):
        return FEW_OUTPUTS
    if lies_in_blocks(problem):
        return IN_BLOCKS
    first = problem.layout == problem.y_layout == "channels_first"
    return NEIGHBOURS if problem.is_plain_product and first and not problem.is_empty else BLOCKS


@cached_by_threads(256)
def packing(problem: ConvProblem) -> tuple[float, packed_blocking.PackedCut | None]:
    """Of a 1x1 layer whose pixels are neighbours: cycles of the busiest thread, and how pixels are packed
    where that takes less than to read them as they lie."""
    cut, threads = direct_blocking(problem), plan_threads()
    p = cut.problem
    in_place = packed_blocking.cycles_in_place(cut, cut.rows, cut.filter_parts, cut.busiest(threads))
    if cut.filter_parts == 1 and math.prod(cut.blocks) > p.N:
        in_place += packed_blocking.waiting(p, threads)
    if p.gemm_n < packed_blocking.LEAST_FILTERS or p.spatial[1] < packed_blocking.LEAST_PIXELS:
        return in_place, None
    return packed_blocking.packed_cut(p, threads, limit=in_place)


def _memory(p: ConvProblem, machine: Machine) -> float:
    """Seconds in which x and y are moved, and the sums do not hide it."""
    written = p.y_bytes * (1 if panels.streams_panels(p) else 2)  # a cached store reads its line first
    return SHOWN * machine.stream(p.x_bytes + written, p.x_bytes + p.y_bytes)


@dataclass(frozen=True)
class Direct(SingleThreaded, Algorithm):
    family: ClassVar[str] = "cpu.direct"
    reads: ClassVar[tuple[str, ...]] = (*PLAIN, "blocked")
    writes: ClassVar[tuple[str, ...]] = (*PLAIN, "blocked")
    mixes_layouts: ClassVar[bool] = True

    def knows_border(self, problem: ConvProblem) -> bool:
        return set(COPIED_BORDERS).issuperset(problem.boundary) and direct_form(problem) is BLOCKS

    def why_not(self, problem: ConvProblem) -> str | None:
        return super().why_not(problem) or why_not_in_blocks(problem)

    def cost(self, problem: ConvProblem, machine: Machine) -> float:
        return direct_form(problem).seconds(problem, machine)

    def least(self, problem: ConvProblem, machine: Machine) -> float:
        return direct_form(problem).least(problem, machine)

    def seconds_between_layers(
        self, problem: ConvProblem, seconds: float, reading: float, machine: Machine
    ) -> float:
        if gemv.is_gemv(problem):
            return seconds + reading  # no sums to hide it
        return super().seconds_between_layers(problem, seconds, reading, machine)

    def workspace_bytes(self, problem: ConvProblem) -> int:
        return direct_form(problem).scratch_bytes(problem)

    def error_bound(self, problem: ConvProblem) -> float:
        return error_of_sums(problem)

    def plan(self, problem: ConvProblem) -> Plan:
        return direct_form(problem).plan(problem, self)

    def plan_like(self, problem: ConvProblem, known: Plan) -> Plan:
        form = direct_form(problem)
        in_place = form is NEIGHBOURS and packing(problem)[1] is None
        kind = RESIZED.get(BLOCKS if in_place else form)
        found = known.on_maps(problem) if kind and isinstance(known, kind) else None
        return found or self.plan(problem)

    def why_not_on_maps(self, problem: ConvProblem) -> str | None:
        # channels and groups alone can be such that it does not serve, but for borders, which one form has
        return None if problem.is_zero_padded else self.why_not(problem)


ALGORITHMS = (Direct(),)
