"""How the gradient of a filter is cut: blocks of pixels, of rows of dw and of panels of filters.

A row of dw is an element of (C/groups, T, R, S): the sum of products over all pixels. Threads are dealt
blocks of rows and panels; where these are few, the blocks of pixels are cut into parts, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from convalgos.core.allocator import whole_lines
from convalgos.core.machine import cache_sizes
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm import panels
from convalgos.cpu.gemm.blocking import PanelBlocks, cut_map, flat_view
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.threads import cached_by_threads
from convalgos.cpu.vectors import simd

PIXELS = 512  # of a block: its panel of filters stays in L2 beside the rows that read it;
GROUPED_PIXELS = 128  # of groups of channels_last, whose lines of x then stay in the first cache
UNITS = 64  # pieces of dw to deal to threads, below which the pixels are cut into parts
PARTS = 8  # of the pixels, at most,
PART_BLOCKS = 12  # and blocks of a part, at least
FEW_PIXELS = 64  # by which dw is bound by memory
EVEN = 8  # units for each thread, from which on they need not share out evenly
# Calibrated on Zen 5 with AVX-512.
PACKING_CYCLES = 0.45  # cycles of a thread for each element of dy that goes into a panel
COPYING_CYCLES = 1.0  # and for each element of x that is copied with its border,
READING_CYCLES = 0.3  # or read in place; estimates
COPYING_CYCLES_LAST = 0.25  # of each element of whole rows of channels_last; an estimate
SHARED_SUMS = 3  # of L2 at most one of so many parts for the sums of units that read one copy


@dataclass(frozen=True)
class WeightsBlocking(PanelBlocks):
    """Blocks of pixels, rows and panels. `problem` has x and dy exchanged where `exchanged`."""

    exchanged: bool
    row_blocks: int  # into which the rows of a group are cut,
    panel_blocks: int  # and its panels
    parts: int  # into which the blocks of pixels are cut
    together: int = 1  # units of a task that read one copy of a block

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
    def once(self) -> bool:
        """Whether a unit has one block of pixels."""
        return math.prod(self.blocks) == self.parts

    @property
    def in_place(self) -> bool:
        """Whether the rows of whole panels are summed where they belong in dw, and no row more."""
        fewer = max(self.rows - 1, 1)
        counts = {self.problem.gemm_k // self.row_blocks, self.most_rows}
        return self.once and self.exchanged and all(-(-n // self.rows) * fewer <= n for n in counts)

    @property
    def by_tap(self) -> bool:
        """Whether the rows of a block are summed tap by tap: the channels under one lie side by side."""
        p = self.problem
        return p.layout == "channels_last" and math.prod(p.kernel) > 1 < p.w_shape[1]

    @property
    def row_order(self) -> tuple[np.ndarray, np.ndarray]:
        """(C/groups*T*R*S,) in the order of sums the number of each row in its block, and the block's first
        row."""
        rows, blocks = self.problem.gemm_k, self.row_blocks
        order, first = np.arange(rows), np.zeros(rows, np.int64)
        for begin, end in pairwise(rows * block // blocks for block in range(blocks + 1)):
            taps = np.arange(begin, end) % math.prod(self.problem.kernel) if self.by_tap else order[begin:end]
            order[begin:end], first[begin:end] = np.argsort(taps, kind="stable"), begin
        return order, first

    @property
    def packed_elements(self) -> int:
        """Of a panel of a block; a square of the tail may write a vector of pixels more. Later it has the
        rows of dw in their order."""
        rows = self.most_rows if self.by_tap else 0
        return max(self.pixels + simd.lanes(self.problem.itemsize), rows) * self.panel

    @property
    def panel_sums(self) -> int:
        """Elements of the sums of a panel."""
        return (self.most_rows + 2 * self.rows + simd.lanes(self.problem.itemsize)) * self.panel

    @property
    def unit_sums(self) -> int:
        """Elements of the sums of a unit."""
        return self.most_panels * self.panel_sums

    @property
    def task_bytes(self) -> int:
        elements = self.input_elements + self.packed_elements + self.together * self.unit_sums
        return whole_lines(elements * self.problem.itemsize)

    @property
    def part_bytes(self) -> int:
        """Of all parts of dw, before they are added up."""
        return self.parts * self.problem.w_bytes if self.parts > 1 else 0

    @property
    def reads(self) -> float:
        """Cycles of all threads in which x is read or copied and dy is packed, for all units."""
        p = self.problem
        packing = PACKING_CYCLES * self.row_blocks * self.panels * self.panel
        read = (
            (COPYING_CYCLES if self.copied else READING_CYCLES) * self.panel_blocks * p.w_shape[1] * self.halo
        )
        if self.shares_copies:  # all channels, once for units that go together
            copies = -(-self.units // (self.parts * self.together))
            read = COPYING_CYCLES_LAST * copies * p.w_shape[1] * self.halo
        return p.groups * p.gemm_m * (packing + read)

    @property
    def shares_copies(self) -> bool:
        """Whether the copy of a block has the channels of all groups, which are neighbours."""
        return self.copied and self.problem.groups > 1 and self.problem.layout == "channels_last"

    @property
    def halo(self) -> float:
        """Elements of x for each pixel of a block and channel."""
        return math.prod(self.spans) / math.prod(self.block)


@cached_by_threads(256)
def weights_blocking(problem: ConvProblem) -> WeightsBlocking:
    p, exchanged = _view(problem)
    threads, l2, size = jit.thread_count(), cache_sizes()[1], p.itemsize
    rows, vectors = panels.tile_for(p.gemm_n, size)
    copied = any(pad != (0, 0) for pad in p.padding)
    pixels = GROUPED_PIXELS if p.groups > 1 and p.layout == "channels_last" else PIXELS
    if copied and p.layout == "channels_last":  # all channels of a pixel are copied
        pixels = max(32, min(pixels, l2 // 4 // (p.C * size)))
    o, q_rows, q = p.spatial_out
    images = max(1, min(p.N, pixels // (o * q_rows * q)))
    block = (o, q_rows, q) if images > 1 else cut_map(pixels, (o, q_rows, q), simd.lanes(size))
    cut = WeightsBlocking(p, images, block, copied, min(rows, p.gemm_k), vectors, exchanged, 1, 1, 1)
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


def _dealt(cut: WeightsBlocking, panel_blocks: int, most_rows: int, threads: int, l2: int) -> WeightsBlocking:
    """So many blocks of panels, and the fewest blocks of rows that fit L2 and share out evenly."""
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
    found = replace(cut, row_blocks=first, panel_blocks=panel_blocks)
    if not found.shares_copies:
        return found
    of_task = min(-(-found.units // threads), found.units // found.parts)
    return replace(found, together=max(1, min(of_task, l2 // (SHARED_SUMS * found.unit_sums * p.itemsize))))


def _uneven(cut: WeightsBlocking, threads: int) -> float:
    """Time of the busiest thread over that of the average one, if that matters."""
    uneven = -(-cut.units // threads) * threads / cut.units
    return uneven if uneven > 1.05 else 1.0


def _view(problem: ConvProblem) -> tuple[ConvProblem, bool]:
    """The 3-D view, and whether x and dy have swapped places in it.

    The smaller of them is packed; of few pixels x, since rows of dw are then summed where they belong.
    """
    p = flat_view(problem)
    if not p.is_plain_product or (p.w_shape[1] >= p.gemm_n and p.gemm_m > FEW_PIXELS):
        return p, False
    return p.with_valid(x_shape=p.y_shape, w_shape=(p.C, p.gemm_n, 1, 1, 1)), True
