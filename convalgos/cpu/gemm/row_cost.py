"""The cost of products of filters by rows of pixels."""

from __future__ import annotations

import math
from functools import lru_cache

from convalgos.core.machine import Machine, vector_bytes
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm import packed_blocking, panels
from convalgos.cpu.gemm.row_blocking import row_blocking, streams_pixels
from convalgos.cpu.layout import strided_rows
from convalgos.cpu.runtime.filter_reads import block_filter_seconds
from convalgos.cpu.runtime.half import in_float32
from convalgos.cpu.runtime.plan import CALL
from convalgos.cpu.vectors import microkernel, simd

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


def row_seconds(problem: ConvProblem, machine: Machine) -> float:
    """Predicted time of a run."""
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


def least_row_seconds(problem: ConvProblem, machine: Machine) -> float:
    """A lower bound of it, found in less time."""
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
