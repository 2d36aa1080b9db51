"""Direct convolution, vectorised along rows of pixels instead of filters.

A tile of filters by vectors of pixels is summed in registers: y[filter][pixels] = sum_tap w[filter][tap] *
x[pixels + offset[tap]]. The input of a block is copied once, with its zero border and split into the phases
of the stride (`layout.strided_rows`): in scratch every tap of a vector of pixels is a vector. The sums lie as
channels_first wants them, and nothing is transposed, which with few taps takes as long as the sums. Wins on
first layers and 1x1 of few channels; `cpu.direct` wins on small maps and serves channels_last.

Source: the register tile of Goto and van de Geijn, "Anatomy of high-performance matrix multiplication"
(2008), over input rows in place of a packed matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from convalgos.core.algorithm import Algorithm, error_of_sums
from convalgos.core.allocator import aligned_zeros
from convalgos.core.element_types import HALF_DTYPES
from convalgos.core.machine import Machine, vector_bytes
from convalgos.core.plan import Plan
from convalgos.core.prepared_filter import FilterForm
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm import packed_blocking, panels, row_panels
from convalgos.cpu.gemm.blocking import (
    BlockExtent,
    block_count,
    block_extent,
    image_pixels,
    pixel_in_image,
    run_pixels,
    table_number,
)
from convalgos.cpu.gemm.row_blocking import block_tables, offsets, row_blocking, streams_pixels
from convalgos.cpu.gemm.row_copies import read_rows
from convalgos.cpu.layout import half_rows, streaming, strided_rows
from convalgos.cpu.layout.copied_borders import BORDER_FIELDS, COPIED_BORDERS, border_tables
from convalgos.cpu.runtime import half, jit
from convalgos.cpu.runtime.filter_reads import block_filter_seconds
from convalgos.cpu.runtime.finish import finish_panel
from convalgos.cpu.runtime.half import in_float32
from convalgos.cpu.runtime.plan import CALL, KernelPlan, arguments
from convalgos.cpu.runtime.threads import SingleThreaded, plan_threads
from convalgos.cpu.vectors import halves, microkernel, simd
from convalgos.cpu.vectors.simd import call, carray, pointer

# Calibrated on Zen 5 with AVX-512.
LATENCY = 9  # sums that keep the arithmetic units busy
CROSSING = 0.15  # of the sums, beside them, where vectors cross lines: Xeon (Granite Rapids), 0.1 to 0.3
DEEP = 1.18  # times the sums of a 1x1 layer whose pixels of a tile outgrow the first cache; the same machine
TILE_TAPS = 1.8  # taps computed in the time that a tile begins and ends
CLOSE = 0.5  # times the bytes moved within the caches, and all of a 1x1 layer; Xeon (Granite Rapids)
UNHIDDEN = 2.0  # times the bytes of y of a depthwise layer, which no sums hide; the same machine
FROM_FAR = 2.0  # times the copies of a 1x1 layer whose x does not stay in L2; the same machine
HALVES = 0.87  # times the same layer in float32, of which twice as much is moved; the same machine
STAGED_RUN = 50.0  # cycles to bring a run of finished pixels of an image to y; the same machine
ELEMENT = 0.7e-9  # seconds to copy an element where the stride is large: an estimate, Xeon (Granite Rapids)
BLOCK = 1e-7  # seconds in which a block of a group begins and ends: depthwise 1x1, Xeon (Granite Rapids)

# --- kernels ---------------------------------------------------------------------------------

PIXELS_ARGUMENTS = arguments(
    "size map_size images block_o block_p block_q blocks_o blocks_p blocks_q n o p q channels filters groups "
    "parts tiles taps tasks offsets vectors starts places counts table_length "
    "x_n x_c depth height width stride_d stride_h stride_w pad_d pad_h pad_w step_d step_h span_d span_h "
    "s_n s_c s_d s_h phase kept input_bytes scratch_stride staged stream y_n y_k copy_rows "
    "store_staged sum_pixels " + BORDER_FIELDS
)


@jit.specialise
def store_staged(SIZE: int, LANES: int) -> Callable[..., None]:
    """Finished rows to y: `rows` of them, each in `runs` pieces of `run` pixels, `y_run` apart in y."""

    def store_staged(
        source: int, stride: int, rows: int, runs: int, run: int, y: int, y_k: int, y_run: int, stream: int
    ) -> None:
        for i in range(rows):
            for j in range(runs):
                from_ = source + (i * stride + j * run) * SIZE
                streaming.copy_run(SIZE, LANES, from_, y + (i * y_k + j * y_run) * SIZE, run, stream)

    return store_staged


@jit.specialise
def sum_row_blocks() -> Callable[..., None]:
    """Groups x blocks x parts of the filters, in this order, dealt to the tasks in equal runs. For each:

    1. find the group, the block of pixels and the part of its filters;
    2. copy the input of the block, once for all parts;
    3. sum a tile of filters over all taps, for all vectors of pixels, into y or into staged rows;
    4. bring staged rows to y, around the caches where y is large.
    """

    def sum_row_blocks(args: int, task: int) -> None:
        a = carray(pointer(args), 1, PIXELS_ARGUMENTS)[0]
        scratch = a.scratch + task * a.scratch_stride
        blocks = block_count(a)
        total = a.groups * blocks * a.parts
        loaded = -1
        for item in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            group, part = item // (blocks * a.parts), item % a.parts
            block = block_extent(a, item // a.parts % blocks)
            if item // a.parts != loaded:
                loaded = item // a.parts
                read_rows(a, block, group, scratch)
            for tile in range(a.tiles * part // a.parts, a.tiles * (part + 1) // a.parts):
                sum_tile(a, block, group, tile, scratch)

    return sum_row_blocks


@jit.helper
def sum_tile(a: Any, block: BlockExtent, group: int, tile: int, scratch: int) -> None:
    """y of a block for one tile of the filters of a group."""
    k = a.filters * tile // a.tiles
    count = a.filters * (tile + 1) // a.tiles - k
    k += group * a.filters
    w, bias = a.w + k * a.taps * a.size, a.bias + k * a.size
    y = a.y + (block.n * a.y_n + pixel_in_image(a, block, 0) + k * a.y_k) * a.map_size
    staged = scratch + a.input_bytes
    target, stride = (staged, a.staged) if a.staged else (y, a.y_k)
    index = table_number(a, block)
    table, vectors = index * a.table_length * 8, carray(pointer(a.vectors), 16, np.int64)[index]
    call(
        a.sum_pixels,
        (
            scratch, vectors, a.starts + table, a.offsets, a.taps, w, count, bias, a.relu, target, stride,
            a.places + table, a.counts + table,
        ),
    )  # fmt: skip
    if a.staged or a.finish:
        run = run_pixels(a, block)
        runs = block.images * image_pixels(block) // run
        y_run = a.y_n if a.images > 1 else (a.q if block.rows > 1 and run == block.columns else a.p * a.q)
        if a.staged:
            stream = 0 if a.finish else a.stream
            call(a.store_staged, (staged, a.staged, count, runs, run, y, a.y_k, y_run, stream))
        for j in range(runs):
            finish_panel(a, y + j * y_run * a.size, run, count, a.y_k, 1)


# --- plan ------------------------------------------------------------------------------------


class DirectPixelsPlan(KernelPlan):
    finishes = True

    def __init__(self, problem: ConvProblem, algorithm: DirectPixels):
        cut = row_blocking(in_float32(problem))
        p, form, of_map = cut.problem, halves.SAME, problem.itemsize
        size, lanes = p.itemsize, cut.lanes
        if of_map == 2:
            form = halves.HALF if problem.dtype == "float16" else halves.BRAIN
            copier = half_rows.copy_half_rows(form, lanes, p.stride[2], cut.kept)
        else:
            copier = strided_rows.row_copier(size, lanes, p.stride[2], cut.kept)
        tasks = plan_threads()
        vectors, starts, places, counts = block_tables(cut)
        pixels_out = math.prod(p.spatial_out)
        s_n, s_c, s_d, s_h = cut.strides
        soon = microkernel.PREFETCH_TAPS if p.kernel[2] == 1 else 0
        values = {
            "size": size, "map_size": of_map, "n": p.N, "images": cut.images,
            "channels": p.w_shape[1], "filters": p.gemm_n, "groups": p.groups, "parts": cut.filter_parts,
            "tiles": cut.tiles, "taps": p.gemm_k, "tasks": tasks,
            "offsets": microkernel.padded_for_prefetch(offsets(cut)), "vectors": vectors,
            "starts": starts, "places": places, "counts": counts, "table_length": starts.shape[1],
            "x_n": p.C * math.prod(p.spatial), "x_c": math.prod(p.spatial),
            "step_d": cut.steps[0], "step_h": cut.steps[1], "s_n": s_n, "s_c": s_c, "s_d": s_d, "s_h": s_h,
            "phase": cut.phase, "kept": cut.kept, "input_bytes": cut.input_elements * size,
            "scratch_stride": cut.scratch_bytes, "staged": cut.staged, "stream": int(cut.streams),
            "y_n": p.K * pixels_out, "y_k": pixels_out,
            "copy_rows": copier, "store_staged": store_staged(of_map, simd.lanes(of_map)),
            "sum_pixels": row_panels.sum_pixels(size, lanes, cut.rows, cut.vectors, soon, form),
        }  # fmt: skip
        for axis, block, blocks, out in zip("opq", cut.block, cut.blocks[1:], p.spatial_out, strict=True):
            values |= {f"block_{axis}": block, f"blocks_{axis}": blocks, axis: out}
        values |= dict(zip(("depth", "height", "width"), p.spatial, strict=True))
        values |= border_tables(p)
        for axis, stride, pad in zip("dhw", p.stride, p.padding, strict=True):
            values |= {f"stride_{axis}": stride, f"pad_{axis}": pad[0]}
        values |= {"span_d": p.kernel_extent[0], "span_h": p.kernel_extent[1]}
        super().__init__(
            problem,
            algorithm,
            PIXELS_ARGUMENTS,
            values,
            [(sum_row_blocks(), tasks)],
            tasks * cut.scratch_bytes,
        )
        self._cut = cut
        self.strided_batch = cut.images == 1 or cut.staged > 0  # else a table knows where images of y lie

    def _new_scratch(self) -> np.ndarray:
        """Zeroed: vectors are summed beyond the ends of rows too, and would be slow on denormal numbers."""
        return aligned_zeros(self.scratch_bytes or 0, np.uint8)

    def filter_form(self) -> FilterForm:
        return FilterForm.of(self.problem, self._cut.tiles)

    def pack_filter(self, w: np.ndarray) -> np.ndarray:
        """(groups, tiles, taps, filters of a tile)."""
        p = self._cut.problem
        if w.itemsize == 2:
            wide = np.empty(w.shape, np.float32)
            half.convert(w, wide)
            w = wide
        return row_panels.pack_rows(w, p.groups, p.gemm_n, p.gemm_k, self._cut.tiles)


def _waits(rows: int, vectors: int, pace: float, ahead: bool = False) -> float:
    """How much longer sums take in small tiles: they wait, at a `Machine.pace`, for themselves or for loads.

    ahead: whether the pixels of later taps are asked for, at a load for each vector and for offsets.
    """
    sums = rows * vectors
    loads = 1.8 * vectors + rows  # most of pixels cross a cache line
    if ahead:
        loads += vectors + 2
    return max(1.0, pace * LATENCY / sums, pace * loads / sums)


@lru_cache(1024)
def _least_waits(filters: int, pace: float) -> float:
    """The same of the tile that suits a number of filters best."""
    return min(
        _waits(min(filters, rows), vectors, pace)
        for vectors, rows in microkernel.REGISTER_TILES[vector_bytes()].items()
    )


def _crossing(p: ConvProblem, pace: float) -> float:
    """How much longer sums take where vectors of pixels cross lines."""
    crossing = p.kernel[-1] > 1 or (p.is_pointwise and math.prod(p.spatial) * p.itemsize % vector_bytes())
    return 1 + pace * CROSSING if crossing else 1.0


def _memory(p: ConvProblem, machine: Machine) -> float:
    """Seconds to move x and y: copies wait for x where it comes from memory, and so do streamed stores."""
    beyond = p.x_bytes + p.y_bytes > machine.l3_bytes
    stored = UNHIDDEN * beyond if p.gemm_n == 1 else 0.6 * streams_pixels(p)
    memory = (2 * p.x_bytes * beyond + stored * p.y_bytes) / machine.bandwidth
    cached = 0.0 if streams_pixels(p) else p.y_bytes / machine.cache_bandwidth
    return (CLOSE if p.is_pointwise else 1.0) * memory + CLOSE * cached


@dataclass(frozen=True)
class DirectPixels(SingleThreaded, Algorithm):
    family: ClassVar[str] = "cpu.direct"
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "float64", *HALF_DTYPES)

    @property
    def variant(self) -> str:
        return "pixels"

    def knows_border(self, problem: ConvProblem) -> bool:
        return problem.itemsize > 2 and set(COPIED_BORDERS).issuperset(problem.boundary)

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := super().why_not(problem):
            return reason
        if problem.layout != "channels_first":
            return "takes vectors along rows of channels_first maps; cpu.direct serves channels_last"
        return None

    def takes_halves(self, problem: ConvProblem) -> bool:
        split = problem.stride[-1] <= strided_rows.MOST_STRIDE
        return split and super().takes_halves(problem) and half.why_not(problem.dtype) is None

    def cost(self, problem: ConvProblem, machine: Machine) -> float:
        cut = row_blocking(in_float32(problem))
        p = cut.problem
        waits = _waits(cut.rows, cut.vectors, machine.pace, p.kernel[2] == 1)
        waits = (waits + machine.pace * TILE_TAPS / p.gemm_k) * _crossing(p, machine.pace)
        if p.is_pointwise and p.gemm_k * cut.vectors * vector_bytes() > machine.l1_bytes:
            waits *= DEEP
        blocks = math.prod(cut.blocks)
        tasks = blocks * p.groups * cut.filter_parts
        summed = 2 * cut.busiest(machine.threads) * cut.lanes * p.gemm_n * p.gemm_k  # flops of a thread
        compute = machine.threads * summed * waits / machine.peak(p.dtype)
        if cut.images == 1 and cut.filter_parts == 1 and blocks > p.N:
            compute += packed_blocking.seconds(packed_blocking.waiting(p, machine.threads), p, machine)
        reading = block_filter_seconds(p, blocks, cut.filter_parts, machine)
        compute = math.hypot(compute, max(panels.filter_seconds(p, machine), reading))
        planes = cut.copied[0] * cut.images * tasks * p.w_shape[1]
        rows = planes * cut.copied[1]
        vectors = cut.kept * cut.phase // cut.lanes
        copied = strided_rows.copying_seconds(planes, rows, vectors, cut.lanes, machine.peak(p.dtype))
        if p.stride[2] > strided_rows.MOST_STRIDE:
            copied += rows * cut.kept * cut.phase * ELEMENT / machine.threads
        if p.is_pointwise and p.x_bytes > machine.threads * machine.l2_bytes // 2:
            copied *= FROM_FAR
        if cut.images > 1:
            runs = p.N * p.K / machine.threads
            copied += packed_blocking.seconds(runs * STAGED_RUN, p, machine)
        begun = tasks * BLOCK / machine.threads
        seconds = compute + begun + copied + _memory(p, machine)
        return CALL + machine.launch + seconds * (HALVES if problem.itemsize == 2 else 1)

    def least(self, problem: ConvProblem, machine: Machine) -> float:
        if problem.layout != "channels_first":
            return math.inf
        short, problem = problem.itemsize == 2, in_float32(problem)
        waits = _least_waits(problem.gemm_n, machine.pace)
        waits = (waits + machine.pace * TILE_TAPS / max(1, problem.gemm_k)) * _crossing(problem, machine.pace)
        computed = problem.flops * waits / machine.peak(problem.dtype)
        copied = problem.x_bytes if max(problem.stride) == 1 else 0  # else what no tap reads is left out
        lanes = simd.lanes(problem.itemsize)
        vectors = copied / vector_bytes()
        computed += strided_rows.copying_seconds(0, vectors, 1, lanes, machine.peak(problem.dtype))
        least = computed + _memory(problem, machine)
        return CALL + machine.launch + least * (HALVES if short else 1)

    def workspace_bytes(self, problem: ConvProblem) -> int:
        return 0 if problem.is_empty else plan_threads() * row_blocking(in_float32(problem)).scratch_bytes

    def error_bound(self, problem: ConvProblem) -> float:
        return error_of_sums(problem)

    def plan(self, problem: ConvProblem) -> Plan:
        return DirectPixelsPlan(problem, self)


ALGORITHMS = (DirectPixels(),)
