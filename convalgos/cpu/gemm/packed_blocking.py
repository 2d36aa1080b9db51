"""How a 1x1 layer is cut where its pixels are packed: blocks of them, and parts of the filters.

Threads share the pixels, and each of them reads all filters; or they share the filters, and each of them
packs all pixels for itself. Two threads that store neighbouring pixels wait for each other's line in each
row of y, longer where they store into one line.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from convalgos.core import profiles
from convalgos.core.allocator import whole_lines
from convalgos.core.machine import Machine, cache_sizes, vector_bytes
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm import dealt_panels, panels
from convalgos.cpu.vectors import microkernel, simd

LEAST_FILTERS, LEAST_PIXELS = 65, 4  # of fewer, packing a pixel takes as long as it saves
ROOM = 0.6  # of L2, for the packed pixels of a block
MOST_PIXELS = 896  # of a block: the sums of more outgrow the rest of L2
FIRST_CACHE = 0.7  # of it, for the filters of a pass
# Cycles of a thread, in each of which it makes two products of vectors; on a Xeon (Granite Rapids).
SUMS, LOADS, WAITS = 0.85, 0.25, 1.0  # times the sums: always, for each load of one, and over the registers
PACKING = 0.7  # for a pixel and a tap,
OUTPUT = 6.0  # a vector of y to be stored,
NEAR, FAR = 0.01, 0.03  # a byte of the filters to come from L2 or from beyond, once for each block,
SHARED = 250.0  # a line of y to come from another thread, which stores the pixels beside in the same line,
BESIDE = 120.0  # or in the next one, which is fetched with it,
BLOCK = 1000.0  # and a block to begin and end
ROUNDING = 1 + 1e-9  # times that differ by more do so however they were rounded
IN_PLACE = 1.06  # times the sums of pixels that are read as they lie, beside `panels.crowding`,
TORN = 1.25  # where channels begin within lines and x does not stay in L2,
DISTANT = 1.06  # and where x is so many times L2
FAR_X = 4
LINE_FLOPS = 6.5  # of that machine in the time in which a byte comes from the last cache


@dataclass(frozen=True)
class PackedCut(dealt_panels.DealtPanels):
    """Pixels of a block of a map, and the parts into which its filters are cut."""

    problem: ConvProblem  # one long column of pixels, as of `blocking.flat_view`
    pixels: int  # of a block
    rows: int  # of the micro-kernel
    panels: int
    parts: int

    @property
    def blocks(self) -> int:
        """Of one image."""
        return -(-math.prod(self.problem.spatial_out) // self.pixels)

    @property
    def chunk(self) -> int:
        """Taps of a pass over a panel: equal passes, whose filters stay in the first cache."""
        most = max(16, int(FIRST_CACHE * cache_sizes()[0]) // (self.panel * self.problem.itemsize))
        return -(-self.problem.gemm_k // -(-self.problem.gemm_k // most))

    @property
    def pitch(self) -> int:
        """Elements of a packed tile, with a vector to spare: an odd number of lines, for the tiles to lie in
        different sets of a cache."""
        line = 64 // self.problem.itemsize
        elements = self.problem.gemm_k * self.rows + simd.lanes(self.problem.itemsize)
        return (-(-elements // line) | 1) * line

    @property
    def packed_bytes(self) -> int:
        return -(-self.pixels // self.rows) * self.pitch * self.problem.itemsize

    @property
    def scratch_bytes(self) -> int:
        """Per task: packed tiles, then [pixel][panel] sums with spare rows for the last tile."""
        sums = (self.pixels + 2 * self.rows + simd.lanes(self.problem.itemsize)) * self.panel
        return whole_lines(self.packed_bytes + sums * self.problem.itemsize)


def packed_cut(p: ConvProblem, threads: int, limit: float = math.inf) -> tuple[float, PackedCut | None]:
    """The fewest cycles of the busiest thread, and the cut that takes these; none where all take `limit`."""
    taps, image, lanes, maps = p.gemm_k, p.spatial_out[1], simd.lanes(p.itemsize), p.N * p.groups
    second = cache_sizes()[1]
    in_room = int(ROOM * second) // (p.itemsize * taps)  # pixels
    waits, needed = waiting(p, threads), -(-p.gemm_n // lanes)  # needed: vectors of filters
    best: tuple[float, int, int, int, int] = limit, 0, 0, 0, 0
    tiles_tried = []
    table = microkernel.PACKED_TILES[vector_bytes()]
    for widest, most in table.items():
        least = -(-needed // widest)  # panels
        pixel = taps / 2 * _sums(most, needed, least) + needed * OUTPUT + taps * PACKING
        tiles_tried.append((pixel * maps * image / threads, widest, most, least))
    for cycles, widest, most, least in sorted(tiles_tried):  # cycles at least
        if cycles > ROUNDING * best[0]:
            break
        fewest = -(-image // min(image, max(2 * most, in_room), MOST_PIXELS))  # blocks of an image
        even = fewest if maps % threads == 0 else -(-fewest // threads) * threads
        for parts, blocks in {(1, even), (min(threads, least), fewest)}:
            count = dealt_panels.panels_of_parts(needed, least, parts)
            if -(-needed // count) < widest and -(-needed // count) in table:
                continue  # the same panels, in larger tiles
            pixels = -(-image // blocks)
            if image % lanes == 0:  # a block begins with a line of y
                pixels = -(-pixels // lanes) * lanes
            tiles = -(-pixels // most)
            rows = max(most * 3 // 4 + 1, -(-pixels // tiles))
            # of an item: a part of the filters for a block
            share = -(-needed // parts) / needed  # of the vectors of filters
            blocks = -(-image // pixels)
            items = -(-maps * blocks * parts // threads)  # of a thread
            line = share * needed * vector_bytes()  # of a tap of all panels of a part
            fetch = line * (FAR if line * taps > second // 2 else NEAR)
            summed = max(pixels, -(-pixels // rows) * (rows - 1))  # with spare rows
            sums = share * summed / 2 * _sums(rows, needed, count)
            stored = pixels * share * needed * OUTPUT
            cycles = items * (taps * (sums + fetch + pixels * PACKING) + stored + BLOCK)
            if parts == 1 and blocks > 1:
                cycles += waits
            best = min(best, (cycles, pixels, rows, count, parts))
    return best[0], PackedCut(p, *best[1:]) if best[1] else None


def _waits(rows: int, vectors: int) -> float:
    """Cycles for the sums of a tap of a tile, over those of the products."""
    return SUMS + (LOADS * (rows + vectors) + WAITS) / (rows * vectors)


def _sums(rows: int, needed: int, count: int) -> float:
    """The same for all vectors of filters in so many panels."""
    return sum(n * v * _waits(rows, v) for n, v in dealt_panels.panel_widths(needed, count) if n)


def cycles_in_place(cut: dealt_panels.DealtPanels, rows: int, parts: int, busiest: float) -> float:
    """The same where pixels are read as they lie, from the outputs of all filters of the busiest thread.

    Args:
        rows: of the micro-kernel.
    """
    p = cut.problem
    vectors = -(-cut.vectors_of // parts) * parts  # of filters, as if all parts were the largest
    waits = panels.SUMS + panels.WAITS * cut.panels / (rows * cut.vectors_of)
    longer = IN_PLACE * panels.crowding(p)
    if math.prod(p.spatial) % simd.lanes(p.itemsize) and p.x_bytes > cache_sizes()[1]:
        longer *= TORN
    if p.x_bytes > FAR_X * cache_sizes()[1]:
        longer *= DISTANT
    sums = p.gemm_k / 2 * waits * (1 + (longer - 1) * loss_to_lines())
    return busiest * vectors * (sums + OUTPUT)


@cache
def loss_to_lines() -> float:
    """How much of what sums lose to lines outside of the first cache they lose on this machine.

    Lines come while the sums of others are made, which takes longer the slower the arithmetic is: a Zen 4,
    whose units take half a vector, loses 0.2 of it, and a Zen 5 0.4.
    """
    figures = profiles.nominal(1)
    return min(1.0, figures.peak_float32 / figures.cache_bandwidth / LINE_FLOPS)


def seconds(cycles: float, problem: ConvProblem, machine: Machine) -> float:
    """Of a thread, which makes two fused multiply-adds of vectors in a cycle."""
    return cycles * machine.threads * 4 * simd.lanes(problem.itemsize) / machine.peak(problem.dtype)


def waiting(p: ConvProblem, threads: int) -> float:
    """Cycles in which threads that share the pixels of an image in equal runs wait for each other's lines."""
    if threads == 1 or p.N * p.groups % threads == 0:
        return 0.0
    return p.gemm_n * (SHARED if math.prod(p.spatial_out) % simd.lanes(p.itemsize) else BESIDE)
