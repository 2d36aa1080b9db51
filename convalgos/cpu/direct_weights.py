"""The gradient of the filter (wgrad) by direct sums: the micro-kernel of `cpu.direct`, over pixels.

dw[filter][row] = sum over pixels of dy[filter][pixel] * x[pixel + offset[row]], rows over (C/groups, T, R,
S): the product of a direct convolution in which pixels and taps have swapped places. Blocks of dy are packed
into panels of filters. x is read as in the forward pass, in place or from a copy with its zero border, once
for all panels of a thread, whose sums stay in L2. In channels_last rows are summed tap by tap, as the
channels under one lie side by side. Of few pixels, as linear layers have them, a panel is
summed at once, and its rows go straight to dw where they lie so in it.

Rows and filters are dealt to the threads; each sums all pixels by itself, in their order. Where there are
few rows and filters, the pixels are cut into parts. Their number depends on the problem and not on the
machine, so the bits of dw do not depend on the number of threads. A 1x1 without stride may swap x and dy, to
pack the smaller, or for the order of dw.

Source: the update pass of Georganas et al. 2018, arXiv:1808.05567, without its blocked layouts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from convalgos.core.algorithm import Algorithm, error_of_sums
from convalgos.core.allocator import aligned_zeros
from convalgos.core.machine import Machine
from convalgos.core.plan import Plan
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm import panels
from convalgos.cpu.gemm.block_copies import copy_block_images
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
from convalgos.cpu.gemm.weights_blocking import FEW_PIXELS, weights_blocking
from convalgos.cpu.gemm.weights_units import Unit, is_in_place, order_rows, place_in_dw, unit_at
from convalgos.cpu.layout.copied_borders import BORDER_FIELDS, COPIED_BORDERS
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import CALL, KernelPlan, arguments
from convalgos.cpu.vectors import microkernel, simd, transpose
from convalgos.cpu.vectors.simd import call, carray, copy_bytes, pointer, zero_bytes

# Calibrated on Zen 5 with AVX-512.
SUMS = 1.04  # times the time of the forward pass for as many sums
RUN = 3e-6  # seconds of Python in a run of its own; Xeon (Sapphire Rapids)
APART = 1.4  # times the sums where pixels lie rows of channels apart: Xeon (Sapphire Rapids), linear layers

# --- kernels ---------------------------------------------------------------------------------

DIRECT_WEIGHTS_ARGUMENTS = arguments(
    "size images block_o block_p block_q blocks_o blocks_p blocks_q n o p q channels filters groups "
    "rows row_blocks taps panel panels panel_blocks parts tasks pixel_table table_length row_table "
    "copied last x_n x_c x_d x_h x_w depth height width stride_d stride_h stride_w pad_d pad_h pad_w "
    "step_d step_h span_d span_h span_w s_n s_c s_d s_h s_w unit input_bytes packed_bytes sum_bytes "
    "scratch_stride y_n y_k y_pixel dw_group dw_filter dw_row dw_elements pack_run add_panel store_run "
    "lanes copy_rows once in_place together unit_bytes row_order " + BORDER_FIELDS
)


@jit.specialise
def pack_run(SIZE: int, LANES: int) -> Callable[..., None]:
    """packed[pixel][filter] = dy[filter][pixel], of a run of pixels; other lanes keep what they have."""

    def pack_run(dy: int, y_k: int, y_pixel: int, pixels: int, filters: int, packed: int, width: int) -> None:
        if y_pixel != 1:
            for i in range(pixels):
                copy_bytes(packed + i * width * SIZE, dy + i * y_pixel * SIZE, filters * SIZE)
            return
        for k in range(0, filters, LANES):
            count = min(LANES, filters - k)
            source, target = dy + k * y_k * SIZE, packed + k * SIZE
            whole = pixels // LANES * LANES if count == LANES else 0
            for i in range(0, whole, LANES):
                transpose.load_whole_square(
                    SIZE, LANES, source + i * SIZE, y_k, target + i * width * SIZE, width
                )
            for i in range(whole, pixels, LANES):
                columns = min(LANES, pixels - i)
                transpose.load_square(
                    SIZE, LANES, source + i * SIZE, y_k, count, columns, target + i * width * SIZE, width
                )

    return pack_run


@jit.specialise
def add_panel(SIZE: int, LANES: int, ROWS: int, VECTORS: int) -> Callable[..., None]:
    """sums[row][:] (+)= sum over pixels of x[rows[row] + offsets[pixel]] * packed[pixel][:].

    Rows are dealt to tiles of ROWS and ROWS - 1, as pixels are by `panels.sum_panel`.
    """
    FEWER = max(ROWS - 1, 1)

    def add_panel(
        x: int, rows: int, count: int, offsets: int, pixels: int, packed: int, sums: int, width: int,
        accumulate: int,
    ) -> None:  # fmt: skip
        tiles = (count + ROWS - 1) // ROWS
        all_rows = max(count, tiles * FEWER)
        for tile in range(tiles):
            first = all_rows * tile // tiles
            full = all_rows * (tile + 1) // tiles - first == ROWS
            table, target = rows + first * 8, sums + first * width * SIZE
            if full:
                microkernel.added_tile(
                    SIZE, LANES, ROWS, VECTORS, x, table, offsets, packed, pixels, target, width, accumulate
                )
            else:
                microkernel.added_tile(
                    SIZE, LANES, FEWER, VECTORS, x, table, offsets, packed, pixels, target, width, accumulate
                )

    return add_panel


@jit.specialise
def sum_gradients() -> Callable[..., None]:
    """Parts x groups x blocks of rows x blocks of panels, dealt to the tasks in equal runs. Of some units of
    a part together, which is one where their inputs have nothing in common:

    1. clear the sums of all their rows and panels, if they come from several blocks;
    2. for every block of pixels of the part
       a. copy x with its zero border once, unless it is read in place,
       b. of each unit, turn dy into a panel of filters, and add its products with x to the sums, panel by
          panel;
    3. store the sums in dw, if they are not there yet.
    """

    def sum_gradients(args: int, task: int) -> None:
        a = carray(pointer(args), 1, DIRECT_WEIGHTS_ARGUMENTS)[0]
        block_x = a.scratch + task * a.scratch_stride
        packed = block_x + a.input_bytes
        sums = packed + a.packed_bytes
        blocks, of_part = block_count(a), a.groups * a.row_blocks * a.panel_blocks
        first, end = a.parts * of_part * task // a.tasks, a.parts * of_part * (task + 1) // a.tasks
        if a.filters % a.panel:  # old bytes behind the last filter may be denormal numbers, which take long
            zero_bytes(packed, a.packed_bytes)
        for part in range(first // of_part, (end + of_part - 1) // of_part):
            part_end = min(end, (part + 1) * of_part)
            for begin in range(max(first, part * of_part), part_end, a.together):
                stop = min(begin + a.together, part_end)
                if not a.once:
                    zero_bytes(sums, (stop - begin) * a.unit_bytes)
                for index in range(blocks * part // a.parts, blocks * (part + 1) // a.parts):
                    add_block(a, block_extent(a, index), begin, stop, block_x, packed, sums)
                for item in range(begin, stop):
                    store_sums(a, unit_at(a, item), sums + (item - begin) * a.unit_bytes, packed)

    return sum_gradients


@jit.helper
def add_block(
    a: Any, block: BlockExtent, begin: int, stop: int, block_x: int, packed: int, sums: int
) -> None:
    """The products of a block of pixels to the sums of the units from `begin` to `stop`."""
    offsets = a.pixel_table + table_number(a, block) * a.table_length * 8
    pixels = block.images * image_pixels(block)
    for item in range(begin, stop):
        unit = unit_at(a, item)
        if a.copied and item == begin:
            copy_input(a, block, unit, block_x)
        x, of_unit = input_at(a, block, unit, block_x), sums + (item - begin) * a.unit_bytes
        for j in range(unit.panels):
            pack_panel(a, block, unit.group, unit.panel + j, packed)
            rows, to, width = a.row_table + unit.row * 8, of_unit + j * a.sum_bytes, a.panel
            if is_in_place(a, unit.panel + j):
                to, width = place_in_dw(a, unit, unit.panel + j), a.dw_row
            call(a.add_panel, (x, rows, unit.rows, offsets, pixels, packed, to, width, 1 - a.once))


@jit.helper
def copy_input(a: Any, block: BlockExtent, unit: Unit, scratch: int) -> None:
    """The channels of a block that the rows of a unit read, or in channels_last all of them."""
    first = 0 if a.last else unit.row // a.taps
    end = (unit.row + unit.rows - 1) // a.taps + 1
    channel = 0 if a.last else unit.group * a.channels + first
    x = a.x + (block.n * a.x_n + channel * a.x_c) * a.size
    copy_block_images(a, block, x, scratch, 1 if a.last else end - first)


@jit.helper
def input_at(a: Any, block: BlockExtent, unit: Unit, scratch: int) -> Any:
    """The address of the input of a block at the first channel of a group, as the rows count channels."""
    if a.copied:
        first = unit.row // a.taps
        return scratch + (unit.group * a.channels if a.last else -first * a.s_c) * a.size
    return input_in_place(a, block, unit.group)


@jit.helper
def pack_panel(a: Any, block: BlockExtent, group: int, panel: int, packed: int) -> None:
    """dy of a block and a panel of filters, as [pixel][filter]."""
    k = group * a.filters + panel * a.panel
    filters = min(a.panel, a.filters - panel * a.panel)
    run, per_image = run_pixels(a, block), image_pixels(block)
    for i in range(block.images):
        done = 0
        while done < per_image:
            pixel = pixel_in_image(a, block, done)
            dy = a.w + ((block.n + i) * a.y_n + k * a.y_k + pixel * a.y_pixel) * a.size
            to = packed + (i * per_image + done) * a.panel * a.size
            call(a.pack_run, (dy, a.y_k, a.y_pixel, run, filters, to, a.panel))
            done += run


@jit.helper
def store_sums(a: Any, unit: Unit, sums: int, ordered: int) -> None:
    """The sums of all panels of a unit to their place, but for those that are there; `ordered`: scratch."""
    for j in range(unit.panels):
        panel = unit.panel + j
        filters = min(a.panel, a.filters - panel * a.panel)
        to = place_in_dw(a, unit, panel)
        source = sums + j * a.sum_bytes
        if a.row_order:
            order_rows(a, unit, source, ordered)
            source = ordered
        if not is_in_place(a, panel):
            call(
                a.store_run,
                (source, a.panel, unit.rows, filters, a.bias, 0, 0, to, a.dw_filter, a.dw_row),
            )


# --- plan ------------------------------------------------------------------------------------


class DirectWeightsPlan(KernelPlan):
    def __init__(self, problem: ConvProblem, algorithm: DirectWeights):
        cut = weights_blocking(problem)
        p = cut.problem
        size, lanes = p.itemsize, simd.lanes(p.itemsize)
        tasks = min(jit.thread_count(), cut.units)
        pixel_table, row_table = cut.pixel_table(spare=0), cut.tap_offsets(by_channel=True)
        row_order, first_rows = cut.row_order
        row_table = row_table[first_rows + row_order]
        spare = np.full(2 * cut.rows, row_table[-1])
        dw_filter, dw_row = (1, p.gemm_n) if cut.exchanged else (p.gemm_k, 1)
        values = cut.fields() | {
            "rows": p.gemm_k, "row_blocks": cut.row_blocks, "parts": cut.parts,
            "taps": math.prod(p.kernel), "panel": cut.panel, "panels": cut.panels,
            "panel_blocks": cut.panel_blocks, "tasks": tasks,
            "pixel_table": pixel_table, "table_length": pixel_table.shape[1],
            "row_table": np.concatenate([row_table, spare]), "last": int(p.layout == "channels_last"),
            "packed_bytes": cut.packed_elements * size, "sum_bytes": cut.panel_sums * size,
            "scratch_stride": cut.task_bytes, "dw_group": p.gemm_n * p.gemm_k, "dw_filter": dw_filter,
            "dw_row": dw_row, "dw_elements": math.prod(p.w_shape), "pack_run": pack_run(size, lanes),
            "add_panel": add_panel(size, lanes, cut.rows, cut.vectors),
            "once": int(cut.once), "in_place": int(cut.in_place),
            "together": cut.together, "unit_bytes": cut.unit_sums * size,
            "row_order": row_order if cut.by_tap else 0,
            "store_run": panels.store_run(size, lanes),
        }  # fmt: skip
        scratch = tasks * cut.task_bytes + cut.part_bytes
        super().__init__(
            problem, algorithm, DIRECT_WEIGHTS_ARGUMENTS, values, [(sum_gradients(), tasks)], scratch
        )
        self._cut, self._parts_at = cut, tasks * cut.task_bytes
        self._zeros = aligned_zeros(cut.panel, self._dtype)  # what `store_run` adds

    def pack_filter(self, w: np.ndarray) -> np.ndarray:
        """dy itself, which the kernel turns block by block."""
        return w

    def run(
        self, x: np.ndarray, w: Any, bias: np.ndarray | None, activation: str | None, y: np.ndarray,
        workspace: Any,
    ) -> None:  # fmt: skip
        first, second = x.ctypes.data, w.address
        parts = self._cut.parts
        target = y
        if parts > 1:
            part_bytes = workspace.scratch[self._parts_at : self._parts_at + self._cut.part_bytes]
            target = part_bytes.view(self._dtype).reshape(parts, *y.shape)
        given = workspace.arguments
        given.x, given.w = (second, first) if self._cut.exchanged else (first, second)
        given.y, given.bias, given.relu = target.ctypes.data, self._zeros.ctypes.data, 0
        self.launch_steps(workspace)
        if parts > 1:
            np.add.reduce(target, axis=0, out=y)  # in their order


# --- the figures for the selector --------------------------------------------------------------


def _lies_in_rows(p: ConvProblem) -> bool:
    """Whether the channels of a pixel are neighbours."""
    return p.layout == "channels_last" or math.prod(p.spatial) == 1


@dataclass(frozen=True)
class DirectWeights(Algorithm):
    family: ClassVar[str] = "cpu.direct"
    directions: ClassVar[tuple[str, ...]] = ("backward_weights",)
    boundaries: ClassVar[tuple[str, ...]] = COPIED_BORDERS

    @property
    def variant(self) -> str:
        return "weights"

    def cost(self, problem: ConvProblem, machine: Machine) -> float:
        cut = weights_blocking(problem)
        p = cut.problem
        threads, lanes = machine.threads, simd.lanes(p.itemsize)
        balance = -(-cut.units // threads) * threads / cut.units
        cycles = cut.reads * 4 * lanes / machine.peak(p.dtype)  # of all threads, in seconds
        moved = machine.stream(p.x_bytes + p.y_bytes, p.x_bytes + p.y_bytes)
        padded = cut.panels * cut.vectors / -(-p.gemm_n // lanes)  # the last panel has vectors of padding
        sums = SUMS * padded * panels.product_seconds(p, machine) + cycles
        if p.is_pointwise and p.gemm_m > FEW_PIXELS and _lies_in_rows(problem):
            sums *= APART
        written = machine.stream(2 * p.w_bytes, p.w_bytes)
        parts = 2 * cut.part_bytes / machine.cache_bandwidth
        return RUN + CALL + machine.launch + max(balance * sums, moved) + written + parts

    def least(self, problem: ConvProblem, machine: Machine) -> float:
        if problem.is_empty:
            return 0.0
        return CALL + machine.launch + panels.SUMS * problem.flops / machine.peak(problem.dtype)

    def prepare_cost(self, problem: ConvProblem, machine: Machine) -> float:
        return 1e-9  # dy is taken as it is

    def workspace_bytes(self, problem: ConvProblem) -> int:
        if problem.is_empty:
            return 0
        cut = weights_blocking(problem)
        return min(jit.thread_count(), cut.units) * cut.task_bytes + cut.part_bytes

    def error_bound(self, problem: ConvProblem) -> float:
        return error_of_sums(problem)

    def plan(self, problem: ConvProblem) -> Plan:
        return DirectWeightsPlan(problem, self)


ALGORITHMS = (DirectWeights(),)
