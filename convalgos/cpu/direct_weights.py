"""The gradient of the filter by direct sums: the micro-kernel of `cpu.direct`, with the pixels as its taps.

dw[filter][row] = sum over pixels of dy[filter][pixel] * x[pixel + offset[row]], rows over (C/groups, T, R,
S): the product of a direct convolution in which pixels and taps have changed places. Blocks of dy are turned
into panels of filters, as a filter is when it is prepared; x is read as there, in place or from a copy with
its zero border, once for all panels of a thread, whose sums stay in L2. Rows and filters are dealt to the
threads, each of which sums all pixels by itself, in their order; where there are few of them, the pixels are
cut into parts, as many as the problem needs and not the machine: so the bits do not depend on the number of
threads. A 1x1 without stride may exchange x and dy, to turn the smaller.

Source: the update pass of Georganas et al. 2018, arXiv:1808.05567, without its layouts of blocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np

from convalgos.core.algorithm import Algorithm, error_of_sums
from convalgos.core.allocator import aligned_zeros, whole_lines
from convalgos.core.machine import cache_sizes
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm import panels
from convalgos.cpu.gemm.blocking import PanelBlocks, copy_block, cut_map, flat_view
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import CALL, KernelPlan, arguments
from convalgos.cpu.vectors import microkernel, simd, transpose
from convalgos.cpu.vectors.simd import call, carray, copy_bytes, pointer, zero_bytes

PIXELS = 512  # of a block: its panel of filters stays in L2 beside the rows that read it
UNITS = 64  # pieces of dw to deal to threads, below which the pixels are cut into parts
PARTS = 8  # of the pixels, at most,
PART_BLOCKS = 12  # and blocks of a part, at least
EVEN = 8  # units for each thread, from which on they need not be dealt evenly
# Calibrated on Zen 5 with AVX-512.
SUMS = 1.04  # times the time of the forward pass for as many sums
TURNING = 0.45  # cycles of a thread for each element of dy that goes into a panel
COPYING = 1.0  # and for each element of x that is copied with its border,
READING = 0.3  # or read in place; estimates

# --- shapes ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cut(PanelBlocks):
    """Blocks of pixels, rows and panels. `problem` has x and dy exchanged where `exchanged`."""

    exchanged: bool
    row_blocks: int  # into which the rows of a group are cut,
    panel_blocks: int  # and its panels
    parts: int  # into which the blocks of pixels are cut

    @property
    def most_rows(self) -> int:
        """Of a block of rows."""
        return -(-self.problem.gemm_k // self.row_blocks)

    @property
    def most_panels(self) -> int:
        """Of a block of panels."""
        return -(-self.panels // self.panel_blocks)

    @property
    def units(self) -> int:
        return self.parts * self.problem.groups * self.row_blocks * self.panel_blocks

    @property
    def packed_elements(self) -> int:
        """Of a panel of a block; a square of the tail may write a vector of pixels more."""
        return (self.pixels + simd.lanes(self.problem.itemsize)) * self.panel

    @property
    def panel_sums(self) -> int:
        """Elements of the sums of a panel."""
        return (self.most_rows + 2 * self.rows + simd.lanes(self.problem.itemsize)) * self.panel

    @property
    def task_bytes(self) -> int:
        elements = self.input_elements + self.packed_elements + self.most_panels * self.panel_sums
        return whole_lines(elements * self.problem.itemsize)

    @property
    def part_bytes(self) -> int:
        """Of all parts of dw, before they are added up."""
        return self.parts * self.problem.w_bytes if self.parts > 1 else 0

    @property
    def reads(self) -> float:
        """Cycles of all threads in which x is read or copied and dy is turned, for all units."""
        p = self.problem
        turned = TURNING * self.row_blocks * self.panels * self.panel
        read = (COPYING if self.copied else READING) * self.panel_blocks * p.w_shape[1] * self.halo
        return p.groups * p.gemm_m * (turned + read)

    @property
    def halo(self) -> float:
        """Elements of x for each pixel of a block and channel."""
        return math.prod(self.spans) / math.prod(self.block)


@lru_cache(256)
def cutting(problem: ConvProblem) -> Cut:
    p, exchanged = _view(problem)
    threads, l2, size = jit.thread_count(), cache_sizes()[1], p.itemsize
    rows, vectors = panels.tile_for(p.gemm_n, size)
    copied = any(pad != (0, 0) for pad in p.padding)
    pixels = PIXELS
    if copied and p.layout == "channels_last":  # all channels of a pixel are copied
        pixels = max(32, min(pixels, l2 // 4 // (p.C * size)))
    o, q_rows, q = p.spatial_out
    images = max(1, min(p.N, pixels // (o * q_rows * q)))
    block = (o, q_rows, q) if images > 1 else cut_map(pixels, (o, q_rows, q), simd.lanes(size))
    cut = Cut(p, images, block, copied, min(rows, p.gemm_k), vectors, exchanged, 1, 1, 1)
    # The parts are part of the answer's last bits: neither threads nor caches have a say.
    pieces = p.groups * cut.panels * -(-p.gemm_k // (4 * cut.rows))
    parts = max(1, min(PARTS, p.gemm_m // (PART_BLOCKS * PIXELS))) if pieces < UNITS else 1
    cut = replace(cut, parts=min(parts, math.prod(cut.blocks)))

    # The rows of x of a unit, where they are copied, lie in a part of L2.
    most = p.gemm_k
    if copied and p.layout == "channels_first":
        channels = max(1, l2 // 3 // (cut.images * cut.strides[1] * size))
        most = max(cut.rows, channels * math.prod(p.kernel))
    found = (_dealt(cut, count, most, threads, l2) for count in _counts(cut.panels))
    return min(found, key=lambda dealt: (_uneven(dealt, threads), dealt.reads))


def _counts(most: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, ... up to `most`."""
    return sorted({n for e in range(most.bit_length()) for n in (1 << e, 3 << e) if n < most} | {most})


def _dealt(cut: Cut, panel_blocks: int, most_rows: int, threads: int, l2: int) -> Cut:
    """So many blocks of panels, and of rows as few as fit into L2 with their sums and can be dealt evenly."""
    p = cut.problem
    width = -(-cut.panels // panel_blocks) * cut.panel * p.itemsize  # bytes of the sums of a row
    most = min(most_rows, max(2 * cut.rows, l2 // width))
    first = -(-p.gemm_k // most)
    fixed = p.groups * panel_blocks * cut.parts
    for count in range(first, max(first, p.gemm_k // (2 * cut.rows)) + 1):
        units = fixed * count
        if units % threads == 0 or units >= EVEN * threads:
            first = count
            break
    return replace(cut, row_blocks=first, panel_blocks=panel_blocks)


def _uneven(cut: Cut, threads: int) -> float:
    """Time of the busiest thread over that of the average one, if that matters."""
    uneven = -(-cut.units // threads) * threads / cut.units
    return uneven if uneven > 1.05 else 1.0


def _view(problem: ConvProblem) -> tuple[ConvProblem, bool]:
    """The 3-D view, and whether x and dy have changed places in it: the smaller of them is turned."""
    p = flat_view(problem)
    plain = p.is_pointwise and set(p.stride) == {1} and set(p.padding) == {(0, 0)}
    if not plain or p.w_shape[1] >= p.gemm_n:
        return p, False
    return p.with_valid(x_shape=p.y_shape, w_shape=(p.C, p.gemm_n, 1, 1, 1)), True


# --- kernels ---------------------------------------------------------------------------------

RECORD = arguments(
    "size images block_o block_p block_q blocks_o blocks_p blocks_q n o p q channels filters groups "
    "rows row_blocks taps panel panels panel_blocks parts tasks pixel_table table_length row_table "
    "copied last x_n x_c x_d x_h x_w depth height width stride_d stride_h stride_w pad_d pad_h pad_w "
    "step_d step_h span_d span_h span_w s_n s_c s_d s_h s_w unit input_bytes packed_bytes sum_bytes "
    "scratch_stride y_n y_k y_pixel dw_group dw_filter dw_row dw_elements pack_run add_panel store_run"
)


@jit.specialise
def pack_run(SIZE, LANES):
    """packed[pixel][filter] = dy[filter][pixel], for a run of pixels; behind the last filter is anything."""

    def pack_run(dy, y_k, y_pixel, pixels, filters, packed, width):
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
def add_panel(SIZE, LANES, ROWS, VECTORS):
    """sums[row][:] += sum over pixels of x[rows[row] + offsets[pixel]] * packed[pixel][:].

    Rows are dealt to tiles of ROWS and ROWS - 1, as pixels are by `panels.sum_panel`.
    """
    FEWER = max(ROWS - 1, 1)

    def add_panel(x, rows, count, offsets, pixels, packed, sums):
        tiles = (count + ROWS - 1) // ROWS
        all_rows = max(count, tiles * FEWER)
        width = VECTORS * LANES
        for tile in range(tiles):
            first = all_rows * tile // tiles
            full = all_rows * (tile + 1) // tiles - first == ROWS
            table, target = rows + first * 8, sums + first * width * SIZE
            if full:
                microkernel.conv_tile(
                    SIZE, LANES, ROWS, VECTORS, 1, 0,
                    x, table, offsets, packed, pixels, target, width, packed,
                )  # fmt: skip
            else:
                microkernel.conv_tile(
                    SIZE, LANES, FEWER, VECTORS, 1, 0,
                    x, table, offsets, packed, pixels, target, width, packed,
                )  # fmt: skip

    return add_panel


@jit.specialise
def driver():
    """Parts x groups x blocks of rows x blocks of panels, in this order, dealt to the tasks in equal runs."""

    def driver(args, task):
        a = carray(pointer(args), 1, RECORD)[0]
        block_x = a.scratch + task * a.scratch_stride
        packed = block_x + a.input_bytes
        sums = packed + a.packed_bytes
        blocks = (a.n + a.images - 1) // a.images * a.blocks_o * a.blocks_p * a.blocks_q
        total = a.parts * a.groups * a.row_blocks * a.panel_blocks
        for item in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            panel_block = item % a.panel_blocks
            row_block = item // a.panel_blocks % a.row_blocks
            group = item // (a.panel_blocks * a.row_blocks) % a.groups
            part = item // (a.panel_blocks * a.row_blocks * a.groups)
            row = a.rows * row_block // a.row_blocks
            rows = a.rows * (row_block + 1) // a.row_blocks - row
            panel = a.panels * panel_block // a.panel_blocks
            panels = a.panels * (panel_block + 1) // a.panel_blocks - panel
            first_c, end_c = row // a.taps, (row + rows - 1) // a.taps + 1  # channels that the rows read
            zero_bytes(sums, panels * a.sum_bytes)
            for block in range(blocks * part // a.parts, blocks * (part + 1) // a.parts):
                q0 = block % a.blocks_q * a.block_q
                p0 = block // a.blocks_q % a.blocks_p * a.block_p
                o0 = block // (a.blocks_q * a.blocks_p) % a.blocks_o * a.block_o
                n0 = block // (a.blocks_q * a.blocks_p * a.blocks_o) * a.images
                images = min(a.images, a.n - n0)
                slices = min(a.block_o, a.o - o0)
                lines = min(a.block_p, a.p - p0)
                columns = min(a.block_q, a.q - q0)
                # which of the tables: the block may be cut short in each of its dimensions
                short = (images < a.images) * 8 + (slices < a.block_o) * 4
                short += (lines < a.block_p) * 2 + (columns < a.block_q)

                d0 = o0 * a.stride_d - a.pad_d
                h0 = p0 * a.stride_h - a.pad_h
                w0 = q0 * a.stride_w - a.pad_w
                x = a.x + (n0 * a.x_n + group * a.channels * a.x_c) * a.size
                if a.copied:
                    at_c = 0 if a.last else first_c
                    if a.last:
                        x -= group * a.channels * a.x_c * a.size  # all channels are copied
                    for i in range(images):
                        copy_block(
                            a,
                            x + (i * a.x_n + at_c * a.x_c) * a.size,
                            block_x + i * a.s_n * a.size,
                            1 if a.last else end_c - first_c,
                            d0,
                            h0,
                            w0,
                            (slices - 1) * (a.stride_d if a.step_d == 1 else 1) + a.span_d,
                            (lines - 1) * (a.stride_h if a.step_h == 1 else 1) + a.span_h,
                            (columns - 1) * a.stride_w + a.span_w,
                        )
                    x = block_x + (group * a.channels if a.last else -at_c * a.s_c) * a.size
                else:
                    x += (d0 * a.x_d + h0 * a.x_h + w0 * a.x_w) * a.size

                # runs of pixels that are neighbours in dy: whole rows and slices join
                run = columns
                if columns == a.q:
                    run *= lines
                    if lines == a.p:
                        run *= slices
                per_image = slices * lines * columns
                offsets = a.pixel_table + short * a.table_length * 8
                pixels = images * per_image
                for j in range(panels):
                    k = group * a.filters + (panel + j) * a.panel
                    filters = min(a.panel, a.filters - (panel + j) * a.panel)
                    for i in range(images):
                        done = 0
                        while done < per_image:
                            o = o0 + done // (lines * columns)
                            p = p0 + done // columns % lines
                            pixel = (o * a.p + p) * a.q + q0
                            dy = a.w + ((n0 + i) * a.y_n + k * a.y_k + pixel * a.y_pixel) * a.size
                            to = packed + (i * per_image + done) * a.panel * a.size
                            call(a.pack_run, (dy, a.y_k, a.y_pixel, run, filters, to, a.panel))
                            done += run
                    target = sums + j * a.sum_bytes
                    call(a.add_panel, (x, a.row_table + row * 8, rows, offsets, pixels, packed, target))
            for j in range(panels):
                filters = min(a.panel, a.filters - (panel + j) * a.panel)
                place = group * a.dw_group + (panel + j) * a.panel * a.dw_filter + row * a.dw_row
                target = a.y + (part * a.dw_elements + place) * a.size
                from_ = sums + j * a.sum_bytes
                call(
                    a.store_run,
                    (from_, a.panel, rows, filters, a.bias, 0, 0, target, a.dw_filter, a.dw_row),
                )

    return driver


# --- plan ------------------------------------------------------------------------------------


class DirectWeightsPlan(KernelPlan):
    def __init__(self, problem: ConvProblem, algorithm: DirectWeights):
        cut = cutting(problem)
        p = cut.problem
        size, lanes = p.itemsize, simd.lanes(p.itemsize)
        tasks = min(jit.thread_count(), cut.units)
        pixel_table, row_table = cut.pixel_table(spare=0), cut.tap_offsets(by_channel=True)
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
            "store_run": panels.store_run(size, lanes),
        }  # fmt: skip
        scratch = tasks * cut.task_bytes + cut.part_bytes
        super().__init__(problem, algorithm, RECORD, values, [(driver(), tasks)], scratch)
        self._cut, self._parts_at = cut, tasks * cut.task_bytes
        self._zeros = aligned_zeros(cut.panel, self._dtype)  # what `store_run` adds

    def pack_filter(self, w):
        """dy itself, which the kernel turns block by block."""
        return w

    def run(self, x, w, bias, activation, y, workspace) -> None:
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


@dataclass(frozen=True)
class DirectWeights(Algorithm):
    family: ClassVar[str] = "cpu.direct"
    directions: ClassVar[tuple[str, ...]] = ("backward_weights",)

    @property
    def variant(self):
        return "weights"

    def cost(self, problem, machine):
        cut = cutting(problem)
        p = cut.problem
        threads = machine.threads
        balance = -(-cut.units // threads) * threads / cut.units
        cycles = cut.reads * 4 * simd.lanes(p.itemsize) / machine.peak(p.dtype)  # of all threads, in seconds
        moved = machine.stream(p.x_bytes + p.y_bytes, p.x_bytes + p.y_bytes)
        sums = SUMS * panels.seconds(p, machine) + cycles
        written = machine.stream(2 * p.w_bytes, p.w_bytes)
        parts = 2 * cut.part_bytes / machine.cache_bandwidth
        return CALL + machine.launch + max(balance * sums, moved) + written + parts

    def least(self, problem, machine):
        if problem.is_empty:
            return 0.0
        return CALL + machine.launch + panels.SUMS * problem.flops / machine.peak(problem.dtype)

    def prepare_cost(self, problem, machine):
        return 1e-9  # dy is taken as it is

    def workspace_bytes(self, problem):
        if problem.is_empty:
            return 0
        cut = cutting(problem)
        return min(jit.thread_count(), cut.units) * cut.task_bytes + cut.part_bytes

    def error_bound(self, problem):
        return error_of_sums(problem)

    def plan(self, problem):
        return DirectWeightsPlan(problem, self)


ALGORITHMS = (DirectWeights(),)
