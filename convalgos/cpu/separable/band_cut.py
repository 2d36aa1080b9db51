"""Into how many bands of rows the maps of a separable block are cut, and what that costs.

The rows of a band stay in L2 from one convolution to the next. Fewer bands compute fewer rows twice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from convalgos.core import profiles
from convalgos.core.allocator import whole_lines
from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.machine import Machine, cache_sizes, vector_bytes
from convalgos.core.problem import ConvProblem
from convalgos.cpu.dwconv.channel_blocking import ChannelBlocking, band_blocking
from convalgos.cpu.dwconv.channel_cost import block_cycles
from convalgos.cpu.dwconv.row_bands import band_ends, plain_rows_under
from convalgos.cpu.gemm import blocked_cut, dealt_panels, packed_blocking
from convalgos.cpu.gemm.blocked_cut import BLOCKED_TILES
from convalgos.cpu.runtime.plan import CALL
from convalgos.cpu.runtime.threads import cached_by_threads, plan_threads
from convalgos.cpu.separable.block import BlockSizes, SeparableBlock, reads_planes
from convalgos.cpu.separable.panel_cut import PanelCut, PlanePanelCut
from convalgos.cpu.vectors import simd

ROOM = 0.6  # of L2, for the scratch of a task
TOGETHER = 2  # vectors of channels that are expanded before they are filtered
# Cycles of a thread, two products of vectors in each, for a byte of filters, all of which it reads: Xeon
# (Granite Rapids); and Zen 4, where such cycles are twice as long.
FILTER = {False: 0.084, True: 0.042}
SPREAD = 3  # times the fewest bands that the threads can share: up to so many are tried


class BandRows(NamedTuple):
    """Rows of each band, and the most that one has."""

    read: tuple[int, ...]  # of x
    written: tuple[int, ...]  # of y
    most: int
    most_out: int


@dataclass(eq=False)
class BandCut:
    """How a block is cut, on maps of its sizes or others."""

    layers: SeparableBlock
    sizes: BlockSizes
    expansion: PanelCut | None
    projection: PanelCut | None
    bands: int
    parts: int  # of the channels, which threads share; of one without a projection

    @cached_attribute
    def block(self) -> SeparableBlock:
        """The layers on maps of these sizes."""
        own = self.layers.problems[0].x_shape == self.sizes.x_shape
        return self.layers if own else self.layers.on_map(self.sizes.x_shape)

    @cached_attribute
    def depthwise(self) -> ChannelBlocking:
        return band_blocking(self.block.depthwise, self.bands)

    @cached_attribute
    def vectors(self) -> int:
        """Blocks of channels that are filtered."""
        return -(-self.layers.depthwise.C // simd.lanes(4))

    @cached_attribute
    def rows(self) -> BandRows:
        """Of the bands."""
        p, sizes = self.layers.depthwise, self.sizes
        of_height = sizes.read[0], sizes.written[0], p.stride[0], p.padding[0][0], p.kernel_extent[0]
        return _rows_of_bands(*of_height, self.bands)

    @cached_attribute
    def hidden_pixels(self) -> int:
        """Of the expanded rows of a band, at most."""
        return self.rows.most * self.sizes.read[1] if self.expansion else 0

    @cached_attribute
    def middle_pixels(self) -> int:
        """Of the filtered rows of a band, at most."""
        return self.rows.most_out * self.sizes.written[1] if self.projection else 0

    @cached_attribute
    def hidden_bytes(self) -> int:
        """Of a task: the vectors of a panel."""
        wide = self.expansion.widths[0] if self.expansion else 0
        return whole_lines(self.hidden_pixels * wide * vector_bytes())

    @cached_attribute
    def input_bytes(self) -> int:
        """Of a task: a copy of what a band reads, where the channels of x lie apart."""
        if not isinstance(self.expansion, PlanePanelCut):
            return 0
        return self.expansion.of_rows(self.rows.most).scratch_bytes

    @cached_attribute
    def scratch_bytes(self) -> int:
        """Of a task."""
        middle = whole_lines(self.middle_pixels * self.vectors * vector_bytes())
        return self.input_bytes + self.hidden_bytes + middle

    def cycles(self, threads: int) -> float:
        """Of the busiest thread."""
        p = self.block.depthwise
        first, last = self.block.problems[0], self.block.problems[-1]
        image = -(-self.vectors // self.parts) * self.parts * block_cycles(p)
        for rows, rows_out in zip(self.rows.read, self.rows.written, strict=True):
            if self.expansion:
                image += self.expansion.cycles(rows * p.spatial[1])
            if self.projection:
                image += self.projection.cycles(rows_out * p.spatial_out[1])
        items = p.N * self.bands * self.parts
        share = -(-items // threads) / items
        filters = sum(problem.w_bytes for problem in self.block.problems)
        moved = blocked_cut.INPUT * first.x_bytes * self.parts + blocked_cut.STORED * last.y_bytes
        return share * (p.N * image + moved) + filters / self.parts * FILTER[profiles.units_are_narrow()]


@lru_cache(2048)  # layers of one height share them
def _rows_of_bands(rows: int, rows_out: int, stride: int, pad: int, extent: int, bands: int) -> BandRows:
    ends = band_ends(rows_out, bands)
    under = [plain_rows_under(*band, rows, stride, pad, extent) for band in ends]
    read, written = (tuple([end - begin for begin, end in found]) for found in (under, ends))
    return BandRows(read, written, max(read), max(written))


@cached_by_threads(256)
def band_cut(block: SeparableBlock) -> BandCut:
    """The cut of the fewest cycles, of those whose scratch stays in L2 where there are such."""
    threads, p = plan_threads(), block.depthwise
    rows = p.spatial_out[0]
    projection = _panels(block.projection, max(BLOCKED_TILES[vector_bytes()]))
    shared = threads // math.gcd(p.N, threads)  # bands that make every thread as busy
    tried: list[BandCut] = []
    room, most = ROOM * cache_sizes()[1], math.inf
    # each part of the channels would copy what a first layer reads
    shares = {1} if projection or reads_planes(block.expansion) else {1, threads}
    for bands in sorted({1, *range(shared, rows + 1, shared)}):
        if bands > most:
            break
        cuts = [
            BandCut(block, block.sizes, _panels(block.expansion, TOGETHER, parts), projection, bands, parts)
            for parts in shares
        ]
        fitting = [cut for cut in cuts if cut.scratch_bytes <= room]
        if fitting and not tried:
            most = SPREAD * max(bands, shared)
        tried += fitting
    tried = tried or cuts[-1:]
    return min(tried, key=lambda cut: (cut.cycles(threads), cut.bands))


def band_cut_like(known: BandCut, sizes: BlockSizes) -> BandCut:
    """The cut of a block on maps of other sizes: the same panels, and bands that L2 has room for."""
    layers, expansion, projection, threads = known.layers, known.expansion, known.projection, plan_threads()
    planes = None
    if isinstance(expansion, PlanePanelCut):  # reads maps whose sizes its panels know
        expansion = planes = expansion.on_map(sizes.x_shape)
    shared, room = threads // math.gcd(sizes.x_shape[0], threads), ROOM * cache_sizes()[1]
    p, (rows_in, columns), (rows, columns_out) = layers.depthwise, sizes.read, sizes.written
    pixel = vector_bytes()
    hidden = columns * expansion.widths[0] * pixel if expansion else 0  # of a row
    middle = columns_out * known.vectors * pixel if projection else 0
    bands = max(1, min(known.bands, rows // shared * shared))
    while True:
        of = _rows_of_bands(rows_in, rows, p.stride[0], p.padding[0][0], p.kernel_extent[0], bands)
        copied = planes.of_rows(of.most).scratch_bytes if planes else 0
        hidden_bytes = whole_lines(of.most * hidden)
        scratch = copied + hidden_bytes + whole_lines(of.most_out * middle)
        if scratch <= room or bands + shared > rows:
            break
        bands = bands // shared * shared + shared
    cut = BandCut(layers, sizes, expansion, projection, bands, known.parts)
    # what its attributes are, which the search for the bands has found: looked up one by one they take longer
    cut.__dict__.update(
        vectors=known.vectors, rows=of, hidden_pixels=of.most * columns if expansion else 0,
        middle_pixels=of.most_out * columns_out if projection else 0, hidden_bytes=hidden_bytes,
        input_bytes=copied, scratch_bytes=scratch,
    )  # fmt: skip
    return cut


def _panels(problem: ConvProblem | None, most: int, parts: int = 1) -> PanelCut | None:
    """The best panels of at most so many vectors, as many for each part."""
    if problem is None:
        return None
    lanes, found = simd.lanes(4), []
    kind = PlanePanelCut if reads_planes(problem) else PanelCut
    needed = -(-problem.K // lanes)
    for vectors, rows in BLOCKED_TILES[vector_bytes()].items():
        count = -(-needed // vectors)
        if vectors <= most and -(-needed // count) == vectors:
            panels = dealt_panels.panels_of_parts(needed, count, parts)
            found.append(kind(problem, panels, rows))
    return min(found, key=lambda cut: cut.cycles(math.prod(problem.spatial_out)))


def separable_seconds(block: SeparableBlock, machine: Machine) -> float:
    """Predicted time of a run."""
    cycles = band_cut(block).cycles(plan_threads())
    return CALL + machine.launch + packed_blocking.seconds(cycles, block.depthwise, machine)
