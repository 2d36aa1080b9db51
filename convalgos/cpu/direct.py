"""Direct convolution: the register-blocked micro-kernel over a table of input offsets.

Every output of a tile of pixels by filters is summed in registers:
y[pixel][filter] = sum_tap x[pixel + offset[tap]] * w[tap][filter], taps over (C/groups, T, R, S). Kernel
size, stride, dilation, number of dimensions and layout are content of the tables: one kernel serves them all.
Outputs are cut into blocks of pixels. The input of a block is copied once, with its zero border, into scratch
that stays in the L2 cache, or read in place where there is no padding; that of 1x1 layers of many filters is
packed (`gemm.packed_plan`). Wins on 1x1, strided and first layers; elsewhere others are measured against it.

Source: indirect convolution (Dukhan 2019, arXiv:1907.02129), with the table over taps instead of pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, ClassVar

import numpy as np

from convalgos.core.algorithm import Algorithm, error_of_sums
from convalgos.core.allocator import whole_lines
from convalgos.core.machine import Machine, cache_sizes
from convalgos.core.plan import Plan
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm import gemv, packed_blocking, panels
from convalgos.cpu.gemm.blocking import (
    BlockExtent,
    PanelBlocks,
    block_count,
    block_extent,
    copy_block_images,
    cut_map,
    flat_view,
    image_pixels,
    input_in_place,
    pixel_in_image,
    run_pixels,
    table_number,
)
from convalgos.cpu.gemm.packed_blocking import PackedCut
from convalgos.cpu.gemm.packed_plan import PackedPlan
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import CALL, KernelPlan, arguments
from convalgos.cpu.runtime.threads import SingleThreaded, cached_by_threads, plan_threads
from convalgos.cpu.vectors import microkernel, simd
from convalgos.cpu.vectors.simd import call, carray, pointer

PIXELS = 896  # of a block: enough to reuse a panel of filters, few enough for scratch in L2; Zen 5
BLOCK_OUTPUTS = 4  # outputs of all filters computed in the time that a block begins and ends
ONE_BLOCK = 16  # outputs, which are not cut
FEW = 8  # tasks for each thread, up to which their sizes are weighed one by one
# Calibrated on Zen 5 with AVX-512.
COPYING = 2.2  # times the bytes over the bandwidth of the caches, to copy rows with their border
SHOWN = 0.5  # of the time in which x and y are moved, which the sums do not hide

# --- shapes ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class DirectBlocking(PanelBlocks):
    """How the output is cut."""

    filter_parts: int  # into which the filters of a block are cut to feed all threads

    @property
    def scratch_bytes(self) -> int:
        """Per task: input, then [pixel][panel] sums with spare rows for the tail of the micro-kernel."""
        sums = (self.pixels + 2 * self.rows + simd.lanes(self.problem.itemsize)) * self.panel
        return whole_lines((self.input_elements + sums) * self.problem.itemsize)

    def busiest(self, threads: int) -> float:
        """Work of the busiest of some threads, in outputs of all filters."""
        sizes, block = (self.problem.N, *self.problem.spatial_out), (self.images, *self.block)
        return _busiest(sizes, block, self.rows, _dealt_groups(self.problem), self.filter_parts, threads)


@cached_by_threads(256)
def direct_blocking(problem: ConvProblem) -> DirectBlocking:
    p, lanes, threads = flat_view(problem), simd.lanes(problem.itemsize), plan_threads()
    rows, vectors = panels.tile_for(p.gemm_n, p.itemsize)
    copied = any(pad != (0, 0) for pad in p.padding)
    pixels = PIXELS
    if copied:  # scratch of the input stays within half of L2
        room = cache_sizes()[1] // 2 // (p.itemsize * max(1, p.w_shape[1]))  # input pixels
        pixels = max(32, min(pixels, room // 2))
    parts = min(threads, -(-p.gemm_n // (vectors * lanes)))  # at most
    sizes = (p.N, *p.spatial_out)
    images, block, parts = _cut_outputs(sizes, pixels, lanes, rows, _dealt_groups(p), parts, threads)
    return DirectBlocking(p, images, block, copied, _even_rows(images, block, rows), vectors, parts)


Sizes = tuple[int, int, int, int]  # along (N, O, P, Q)
Groups = tuple[int, int]  # that are dealt to threads one after the other, and in each block


def _dealt_groups(p: ConvProblem) -> Groups:
    """Threads share groups rather than pixels, and write no cache line in common, where maps lie apart."""
    return (p.groups, 1) if p.layout == "channels_first" else (1, p.groups)


@lru_cache(1024)
def _cut_outputs(
    sizes: Sizes, most: int, lanes: int, rows: int, groups: Groups, most_parts: int, threads: int
) -> tuple[int, tuple[int, int, int], int]:
    """Images and outputs of a block, of about `most` pixels, and the parts of its filters.

    Kept for the next layer on a map of these sizes.

    Args:
        rows: of the micro-kernel.
        most_parts: of the filters of a group.
    """
    n, o, p, q = sizes
    pixels = most
    while pixels > 32 and groups[0] * math.prod(sizes) / pixels < threads:  # there is work for every thread
        pixels //= 2
    images, block = 1, (o, p, q)
    if o * p * q <= pixels // 2:
        images = max(1, min(pixels // (o * p * q), -(-n // threads)))
        shares = -(-n // images)
        images = -(-n // min(n, -(-shares // threads) * threads))  # as many blocks for each thread
    else:
        block = cut_map(pixels, (o, p, q), lanes)
    blocks = -(-n // images) * math.prod(-(-size // b) for size, b in zip((o, p, q), block, strict=True))
    if blocks * math.prod(groups) >= FEW * threads:
        return images, block, 1
    # Few blocks: even ones, of fewer rows or with their filters in parts, for all threads to end at once.
    heights = {block[1]}
    if images == 1 and block[0] == 1 and block[2] == q:
        low, high = block[1] // 2, max(block[1], most // q)
        heights |= {h for h in (-(-p // count) for count in range(1, 4 * threads)) if low <= h <= high}
    columns = blocks // -(-p // block[1])  # of blocks
    bounds = sorted(  # of the work of the busiest thread, as if that of all were dealt evenly
        (
            math.prod(groups)
            * (math.prod(sizes) + BLOCK_OUTPUTS * parts * columns * -(-p // height))
            / threads,
            -height,
            parts,
        )
        for height in heights
        for parts in {1, most_parts}
    )
    best = (math.inf, 0, 1)  # work, and of equals the largest blocks
    for least, minus_height, parts in bounds:
        if least > best[0]:
            break
        tried = (block[0], -minus_height, block[2])
        even = _even_rows(images, tried, rows)
        best = min(
            best, (_busiest(sizes, (images, *tried), even, groups, parts, threads), minus_height, parts)
        )
    return images, (block[0], -best[1], block[2]), best[2]


def _even_rows(images: int, block: tuple[int, int, int], rows: int) -> int:
    """Of the micro-kernel, at most `rows`: equal tiles instead of a short last one."""
    pixels = images * math.prod(block)
    return -(-pixels // -(-pixels // rows))


@lru_cache(1024)
def _busiest(sizes: Sizes, block: Sizes, rows: int, groups: Groups, parts: int, threads: int) -> float:
    """Work of the busiest thread, in outputs of all filters, with what each block costs beside them."""
    pixels = [1] * groups[0]  # of every block, the last ones of each dimension being cut short
    for size, along in zip(sizes, block, strict=True):
        whole, rest = divmod(size, along)
        each = [along] * whole + [rest] * (rest > 0)
        pixels = [n * m for n in pixels for m in each]
    # in parts of filters, with the spare rows of tiles
    work = [max(n, -(-n // rows) * (rows - 1)) + BLOCK_OUTPUTS * parts for n in pixels]
    before = [0, *accumulate(work)]
    units = groups[1] * parts  # of a block
    starts = []  # work before that of each thread
    for thread in range(threads + 1):
        done, more = divmod(len(work) * units * thread // threads, units)
        starts.append(before[done] * units + (more * work[done] if more else 0))
    return max(end - start for start, end in pairwise(starts)) / parts


@cached_by_threads(256)
def run_cycles(problem: ConvProblem) -> tuple[float, PackedCut | None]:
    """Of a 1x1 layer whose pixels are neighbours: cycles of the busiest thread, and how pixels are packed
    where that takes less than to read them as they lie. Of other layers (0, None)."""
    if not problem.is_pointwise or problem.layout != "channels_first" or problem.is_empty:
        return 0.0, None
    cut, threads = direct_blocking(problem), plan_threads()
    p = cut.problem
    if not p.spatial == p.spatial_out == (1, p.spatial[1], 1):
        return 0.0, None
    in_place = packed_blocking.cycles_in_place(cut, cut.filter_parts, cut.busiest(threads))
    if p.gemm_n < packed_blocking.LEAST_FILTERS or p.spatial[1] < packed_blocking.LEAST_PIXELS:
        return in_place, None
    packed = packed_blocking.packed_cut(p, threads)
    return min((in_place, None), packed, key=lambda found: found[0])


# --- kernels ---------------------------------------------------------------------------------

DIRECT_ARGUMENTS = arguments(
    "size images block_o block_p block_q blocks_o blocks_p blocks_q n o p q channels filters groups "
    "parts panel panels taps chunk tasks pixel_table table_length offsets copied "
    "x_n x_c x_d x_h x_w depth height width stride_d stride_h stride_w pad_d pad_h pad_w step_d step_h "
    "span_d span_h span_w s_n s_c s_d s_h s_w load_c unit input_bytes scratch_stride "
    "y_n y_k y_pixel stream sum_panel store_run lanes copy_rows"
)


@jit.specialise
def sum_blocks() -> Callable[..., None]:
    """Groups x blocks x parts of the filters, in this order, dealt to the tasks in equal runs; channels_last,
    whose pixels hold all groups, blocks x groups x parts. For each:

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
            index, group = unit // a.groups, unit % a.groups
            if a.unit == 1:
                index, group = unit % blocks, unit // blocks
            block = block_extent(a, index)
            if a.copied:
                key = index * a.groups + group if a.unit == 1 else index
                if key != loaded:
                    channel = group * a.channels if a.unit == 1 else 0
                    x = a.x + (block.n * a.x_n + channel * a.x_c) * a.size
                    copy_block_images(a, block, x, scratch, a.load_c)
                    loaded = key
                source = scratch + (0 if a.unit == 1 else group * a.channels) * a.size
            else:
                source = input_in_place(a, block, group)
            table = a.pixel_table + table_number(a, block) * a.table_length * 8
            pixels = block.images * image_pixels(block)
            for panel in range(a.panels * part // a.parts, a.panels * (part + 1) // a.parts):
                w = a.w + (group * a.panels + panel) * a.taps * a.panel * a.size
                call(a.sum_panel, (source, table, pixels, a.offsets, a.taps, a.chunk, w, sums))
                store_panel(a, block, group, panel, sums)

    return sum_blocks


@jit.helper
def store_panel(a: Any, block: BlockExtent, group: int, panel: int, sums: int) -> None:
    """The sums [pixel][filter] of a panel to y."""
    k = group * a.filters + panel * a.panel
    filters = min(a.panel, a.filters - panel * a.panel)
    run, per_image = run_pixels(a, block), image_pixels(block)
    for i in range(block.images):
        done = 0
        while done < per_image:
            pixel = pixel_in_image(a, block, done)
            y = a.y + ((block.n + i) * a.y_n + k * a.y_k + pixel * a.y_pixel) * a.size
            source, bias = sums + (i * per_image + done) * a.panel * a.size, a.bias + k * a.size
            call(
                a.store_run,
                (source, a.panel, run, filters, bias, a.relu, a.stream, y, a.y_k, a.y_pixel),
            )
            done += run


# --- plan ------------------------------------------------------------------------------------


class DirectPlan(KernelPlan):
    def __init__(self, problem: ConvProblem, algorithm: Direct):
        cut = direct_blocking(problem)
        p = cut.problem
        size, lanes = p.itemsize, simd.lanes(p.itemsize)
        tasks = plan_threads()
        last = p.layout == "channels_last"
        pixel_table = cut.pixel_table(spare=cut.rows)
        values = cut.fields() | {
            "parts": cut.filter_parts, "panel": cut.panel, "panels": cut.panels, "taps": p.gemm_k,
            "chunk": panels.chunk(p.gemm_k), "tasks": tasks,
            "pixel_table": pixel_table, "table_length": pixel_table.shape[1],
            "offsets": microkernel.padded_for_prefetch(cut.tap_offsets(by_channel=not last)),
            "load_c": 1 if last else p.w_shape[1],
            "scratch_stride": cut.scratch_bytes, "stream": int(panels.streams_panels(p)),
            "sum_panel": panels.sum_panel(size, lanes, cut.rows, cut.vectors, microkernel.PREFETCH_TAPS),
            "store_run": panels.store_run(size, lanes),
        }  # fmt: skip
        super().__init__(
            problem, algorithm, DIRECT_ARGUMENTS, values, [(sum_blocks(), tasks)], tasks * cut.scratch_bytes
        )
        self._cut = cut

    def pack_filter(self, w: np.ndarray) -> np.ndarray:
        """(groups, panels, taps, panel); taps in the order of the offset table."""
        cut, p = self._cut, self._cut.problem
        w = w.reshape(p.groups, p.gemm_n, p.w_shape[1], -1)  # (g, K/g, C/g, T*R*S)
        if p.layout == "channels_last":
            w = w.swapaxes(2, 3)
        return panels.packed_panels(w.reshape(p.groups, p.gemm_n, -1), cut.panel)


def _memory(problem: ConvProblem, machine: Machine) -> float:
    """Seconds in which x and y are moved, and the sums do not hide it."""
    p = problem
    written = p.y_bytes * (1 if panels.streams_panels(p) else 2)  # a cached store reads its line first
    return SHOWN * machine.stream(p.x_bytes + written, p.x_bytes + p.y_bytes)


@dataclass(frozen=True)
class Direct(SingleThreaded, Algorithm):
    family: ClassVar[str] = "cpu.direct"

    def cost(self, problem: ConvProblem, machine: Machine) -> float:
        if gemv.is_gemv(problem):
            return gemv.gemv_seconds(problem, machine)
        if cycles := run_cycles(problem)[0]:
            sums = packed_blocking.seconds(cycles, problem, machine)
            within = problem.x_bytes + problem.y_bytes <= machine.threads * machine.l2_bytes
            return CALL + machine.launch + sums + _memory(problem, machine) * (0.5 if within else 1.0)
        cut = direct_blocking(problem)
        p = cut.problem
        tasks = math.prod(cut.blocks) * p.groups * cut.filter_parts
        if p.gemm_m <= ONE_BLOCK:
            balance = 1.0  # parts of the filters of one block, which begins and ends once
        elif tasks < FEW * machine.threads:
            balance = cut.busiest(machine.threads) * machine.threads / (p.gemm_m * p.groups)
        else:
            balance = -(-tasks // machine.threads) * machine.threads / tasks
        # elements that are copied: the input of every block, once for each part of its filters
        copied = tasks * cut.images * p.w_shape[1] * math.prod(cut.spans) if cut.copied else 0
        copies = COPYING * 2 * copied * p.itemsize / machine.cache_bandwidth
        sums = balance * panels.product_seconds(p, machine) * panels.crowding(p)
        return CALL + machine.launch + sums + copies + _memory(p, machine)

    def least(self, problem: ConvProblem, machine: Machine) -> float:
        if gemv.is_gemv(problem):
            return gemv.gemv_seconds(problem, machine)
        sums, memory = panels.product_seconds(problem, machine), _memory(problem, machine)
        if problem.is_pointwise:
            return CALL + machine.launch + 0.9 * sums + 0.5 * memory
        return CALL + machine.launch + sums * panels.crowding(problem) + memory

    def workspace_bytes(self, problem: ConvProblem) -> int:
        if problem.is_empty:
            return 0
        if gemv.is_gemv(problem):
            return gemv.gemv_blocking(problem).tasks * gemv.gemv_scratch_bytes(problem)
        cut = run_cycles(problem)[1] or direct_blocking(problem)
        return plan_threads() * cut.scratch_bytes

    def error_bound(self, problem: ConvProblem) -> float:
        return error_of_sums(problem)

    def plan(self, problem: ConvProblem) -> Plan:
        if gemv.is_gemv(problem):
            return gemv.GemvPlan(problem, self)
        packed = run_cycles(problem)[1]
        return PackedPlan(problem, self, packed) if packed else DirectPlan(problem, self)


ALGORITHMS = (Direct(),)
