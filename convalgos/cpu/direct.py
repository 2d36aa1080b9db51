"""Direct convolution: the register-blocked micro-kernel over a table of input offsets.

Every output of a tile of pixels by filters is summed in registers:
y[pixel][filter] = sum_tap x[pixel + offset[tap]] * w[tap][filter], taps over (C/groups, T, R, S). Kernel
size, stride, dilation, number of dimensions and layout are content of the tables, so that one kernel
serves them all. Outputs are cut into blocks of pixels; the input of a block is copied once, with its zero
border, into scratch that stays in the L2 cache, or read in place where there is no padding. Wins on 1x1,
strided and first layers; elsewhere it is the yardstick.

Source: indirect convolution (Dukhan 2019, arXiv:1907.02129), with the table over taps instead of pixels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import ClassVar

import numpy as np

from convalgos.core.algorithm import Algorithm, error_of_sums
from convalgos.core.allocator import whole_lines
from convalgos.core.machine import Machine, cache_sizes
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm import panels
from convalgos.cpu.gemm.blocking import PanelBlocks, copy_block, cut_map, flat_view
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import CALL, KernelPlan, arguments
from convalgos.cpu.runtime.threads import Lone, cut_once, thread_count
from convalgos.cpu.vectors import microkernel, simd
from convalgos.cpu.vectors.simd import call, carray, pointer

PIXELS = 896  # of a block: enough to reuse a panel of filters, few enough for scratch in L2; Zen 5
BLOCK = 4  # outputs of all filters computed in the time that a block begins and ends
FEW = 8  # tasks for each thread, up to which their sizes are weighed one by one
# Calibrated on Zen 5 with AVX-512.
COPYING = 2.2  # times the bytes over the bandwidth of the caches, to copy rows with their border
SHOWN = 0.5  # of the time in which x and y are moved, which the sums do not hide

# --- shapes ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Blocking(PanelBlocks):
    """How the output is cut."""

    filter_parts: int  # into which the filters of a block are cut to feed all threads

    @property
    def scratch_bytes(self) -> int:
        """Per task: input, then [pixel][panel] sums with spare rows for the tail of the micro-kernel."""
        sums = (self.pixels + 2 * self.rows + simd.lanes(self.problem.itemsize)) * self.panel
        return whole_lines((self.input_elements + sums) * self.problem.itemsize)


@cut_once(256)
def blocking(problem: ConvProblem) -> Blocking:
    p = flat_view(problem)
    threads = thread_count()
    rows, vectors = panels.tile_for(p.gemm_n, p.itemsize)
    copied = any(pad != (0, 0) for pad in p.padding)
    o, q_rows, q = p.spatial_out
    # Scratch of the input stays within half of L2, and there is work for every thread.
    pixels = PIXELS
    total = p.N * o * q_rows * q
    if copied:
        room = cache_sizes()[1] // 2 // (p.itemsize * max(1, p.w_shape[1]))  # input pixels
        pixels = max(32, min(pixels, room // 2))
    most = pixels
    while pixels > 32 and total / pixels < threads:
        pixels //= 2
    if o * q_rows * q <= pixels // 2:
        images = max(1, min(pixels // (o * q_rows * q), -(-p.N // threads)))
        parts = -(-p.N // images)
        images = -(-p.N // min(p.N, -(-parts // threads) * threads))  # as many blocks for each thread
        block = (o, q_rows, q)
    else:
        images = 1
        block = cut_map(pixels, (o, q_rows, q), simd.lanes(p.itemsize))

    def balanced(block: tuple[int, int, int], parts: int = 1) -> Blocking:
        """With equal tiles instead of a short last one."""
        pixels = images * block[0] * block[1] * block[2]
        return Blocking(p, images, block, copied, -(-pixels // -(-pixels // rows)), vectors, parts)

    chosen = balanced(block)
    if math.prod(chosen.blocks) * p.groups >= FEW * threads:
        return chosen
    # Few blocks: even ones, of fewer rows or with their filters in parts, for all threads to end at once.
    options = [chosen]
    if images == 1 and block[0] == 1 and block[2] == q:
        heights = {-(-q_rows // n) for n in range(1, 4 * threads)}
        tried = [n for n in heights if block[1] // 2 <= n <= max(block[1], most // q)]
        options += [balanced((1, n, q)) for n in tried if n != block[1]]
    parts = min(threads, chosen.panels)
    options += [balanced(o.block, parts) for o in options] if parts > 1 else []
    return min(options, key=lambda o: (_busiest(o, threads), -o.pixels))


def _busiest(cut: Blocking, threads: int) -> float:
    """Work of the busiest thread, in outputs of all filters, with what each block costs beside them."""
    sizes = zip((cut.problem.N, *cut.problem.spatial_out), (cut.images, *cut.block), strict=True)
    pixels = [1]  # of every block, the last ones of each dimension being cut short
    for size, block in sizes:
        whole, rest = divmod(size, block)
        if whole == 1 and not rest:
            pixels = [n * block for n in pixels]
        else:
            each = [block] * whole + ([rest] if rest else [])
            pixels = [n * m for n in pixels for m in each]
    # with rows computed in vain
    own = {n: max(n, -(-n // cut.rows) * (cut.rows - 1)) / cut.filter_parts + BLOCK for n in set(pixels)}
    units = cut.problem.groups * cut.filter_parts  # of a block
    before = [0.0, *accumulate(own[n] for n in pixels for _ in range(units))]
    ends = [before[t * len(pixels) * units // threads] for t in range(threads + 1)]
    return max(end - start for start, end in pairwise(ends))


# --- kernels ---------------------------------------------------------------------------------

RECORD = arguments(
    "size images block_o block_p block_q blocks_o blocks_p blocks_q n o p q channels filters groups "
    "parts panel panels taps chunk tasks pixel_table table_length offsets copied "
    "x_n x_c x_d x_h x_w depth height width stride_d stride_h stride_w pad_d pad_h pad_w step_d step_h "
    "span_d span_h span_w s_n s_c s_d s_h s_w load_c unit input_bytes scratch_stride "
    "y_n y_k y_pixel stream sum_panel store_run"
)


@jit.specialise
def driver():
    """Blocks x groups x parts of the filters, in this order, dealt to the tasks in equal runs."""

    def driver(args, task):
        a = carray(pointer(args), 1, RECORD)[0]
        scratch = a.scratch + task * a.scratch_stride
        sums = scratch + a.input_bytes
        per_block = a.groups * a.parts
        blocks_n = (a.n + a.images - 1) // a.images
        total = blocks_n * a.blocks_o * a.blocks_p * a.blocks_q * per_block
        loaded = -1
        for item in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            block = item // per_block
            group = item % per_block // a.parts
            part = item % a.parts
            q0 = block % a.blocks_q * a.block_q
            p0 = block // a.blocks_q % a.blocks_p * a.block_p
            o0 = block // (a.blocks_q * a.blocks_p) % a.blocks_o * a.block_o
            n0 = block // (a.blocks_q * a.blocks_p * a.blocks_o) * a.images
            images = min(a.images, a.n - n0)
            slices = min(a.block_o, a.o - o0)
            rows = min(a.block_p, a.p - p0)
            columns = min(a.block_q, a.q - q0)
            pixels = images * slices * rows * columns
            # which of the tables: the block may be cut short in each of its dimensions
            short = (images < a.images) * 8 + (slices < a.block_o) * 4
            short += (rows < a.block_p) * 2 + (columns < a.block_q)
            table = a.pixel_table + short * a.table_length * 8

            d0 = o0 * a.stride_d - a.pad_d
            h0 = p0 * a.stride_h - a.pad_h
            w0 = q0 * a.stride_w - a.pad_w
            first = n0 * a.x_n + group * a.channels * a.x_c
            if a.copied:
                key = block * a.groups + group if a.unit == 1 else block
                if key != loaded:
                    for i in range(images):
                        x = (
                            a.x
                            + ((n0 + i) * a.x_n + (group * a.channels * a.x_c if a.unit == 1 else 0)) * a.size
                        )
                        copy_block(
                            a,
                            x,
                            scratch + i * a.s_n * a.size,
                            a.load_c,
                            d0,
                            h0,
                            w0,
                            (slices - 1) * (a.stride_d if a.step_d == 1 else 1) + a.span_d,
                            (rows - 1) * (a.stride_h if a.step_h == 1 else 1) + a.span_h,
                            (columns - 1) * a.stride_w + a.span_w,
                        )
                    loaded = key
                source = scratch + (0 if a.unit == 1 else group * a.channels) * a.size
            else:
                source = a.x + (first + d0 * a.x_d + h0 * a.x_h + w0 * a.x_w) * a.size

            for panel in range(a.panels * part // a.parts, a.panels * (part + 1) // a.parts):
                w = a.w + (group * a.panels + panel) * a.taps * a.panel * a.size
                call(a.sum_panel, (source, table, pixels, a.offsets, a.taps, a.chunk, w, sums))
                k = group * a.filters + panel * a.panel
                filters = min(a.panel, a.filters - panel * a.panel)
                # runs of pixels that are neighbours in y: whole rows and slices join
                run = columns
                if columns == a.q:
                    run *= rows
                    if rows == a.p:
                        run *= slices
                per_image = slices * rows * columns
                for i in range(images):
                    done = 0
                    while done < per_image:
                        o = o0 + done // (rows * columns)
                        p = p0 + done // columns % rows
                        y = (
                            a.y
                            + ((n0 + i) * a.y_n + k * a.y_k + ((o * a.p + p) * a.q + q0) * a.y_pixel) * a.size
                        )
                        call(
                            a.store_run,
                            (
                                sums + (i * per_image + done) * a.panel * a.size,
                                a.panel,
                                run,
                                filters,
                                a.bias + k * a.size,
                                a.relu,
                                a.stream,
                                y,
                                a.y_k,
                                a.y_pixel,
                            ),
                        )
                        done += run

    return driver


# --- plan ------------------------------------------------------------------------------------


class DirectPlan(KernelPlan):
    def __init__(self, problem: ConvProblem, algorithm: Direct):
        cut = blocking(problem)
        p = cut.problem
        size, lanes = p.itemsize, simd.lanes(p.itemsize)
        tasks = thread_count()
        last = p.layout == "channels_last"
        pixel_table = cut.pixel_table(spare=cut.rows)
        values = cut.fields() | {
            "parts": cut.filter_parts, "panel": cut.panel, "panels": cut.panels, "taps": p.gemm_k,
            "chunk": panels.chunk(p.gemm_k), "tasks": tasks,
            "pixel_table": pixel_table, "table_length": pixel_table.shape[1],
            "offsets": microkernel.padded_for_prefetch(cut.tap_offsets(by_channel=not last)),
            "load_c": 1 if last else p.w_shape[1],
            "scratch_stride": cut.scratch_bytes, "stream": int(panels.streams(p)),
            "sum_panel": panels.sum_panel(size, lanes, cut.rows, cut.vectors, microkernel.PREFETCH_TAPS),
            "store_run": panels.store_run(size, lanes),
        }  # fmt: skip
        super().__init__(problem, algorithm, RECORD, values, [(driver(), tasks)], tasks * cut.scratch_bytes)
        self._cut = cut

    def pack_filter(self, w: np.ndarray) -> np.ndarray:
        """(groups, panels, taps, panel); taps in the order of the offset table."""
        cut, p = self._cut, self._cut.problem
        w = w.reshape(p.groups, p.gemm_n, p.w_shape[1], -1)  # (g, K/g, C/g, T*R*S)
        if p.layout == "channels_last":
            w = w.swapaxes(2, 3)
        return panels.pack(w.reshape(p.groups, p.gemm_n, -1), cut.panel)


def _memory(problem: ConvProblem, machine: Machine) -> float:
    """Seconds in which x and y are moved, and the sums do not hide it."""
    p = problem
    written = p.y_bytes * (1 if panels.streams(p) else 2)  # a cached store reads its line first
    return SHOWN * machine.stream(p.x_bytes + written, p.x_bytes + p.y_bytes)


@dataclass(frozen=True)
class Direct(Lone, Algorithm):
    family: ClassVar[str] = "cpu.direct"

    def cost(self, problem, machine):
        cut = blocking(problem)
        p = cut.problem
        tasks = math.prod(cut.blocks) * p.groups * cut.filter_parts
        if tasks < FEW * machine.threads:
            balance = _busiest(cut, machine.threads) * machine.threads / (p.gemm_m * p.groups)
        else:
            balance = -(-tasks // machine.threads) * machine.threads / tasks
        # elements that are copied: the input of every block, once for each part of its filters
        copied = tasks * cut.images * p.w_shape[1] * math.prod(cut.spans) if cut.copied else 0
        copies = COPYING * 2 * copied * p.itemsize / machine.cache_bandwidth
        sums = balance * panels.seconds(p, machine) * panels.crowding(p)
        return CALL + machine.launch + sums + copies + _memory(p, machine)

    def least(self, problem, machine):
        return CALL + machine.launch + panels.seconds(problem, machine) + _memory(problem, machine)

    def workspace_bytes(self, problem):
        return 0 if problem.is_empty else thread_count() * blocking(problem).scratch_bytes

    def error_bound(self, problem):
        return error_of_sums(problem)

    def plan(self, problem):
        return DirectPlan(problem, self)


ALGORITHMS = (Direct(),)
