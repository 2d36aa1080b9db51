"""The sizes of boxes of tiles of x and dy, and of the scratch in which the gradient of a filter is summed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from convalgos.core.allocator import whole_lines
from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.machine import cache_sizes
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm import panels
from convalgos.cpu.tiled.blocking import ONE_BOX, BoxSizes
from convalgos.cpu.tiled.geometry import TiledAxis, tiled_axis
from convalgos.cpu.tiled.search import cuts_of
from convalgos.cpu.vectors import microkernel, simd

ORDERED_CHANNELS = 16  # of x whose gradients are brought into the order of dw at a time
WEIGHT_TARGETS = (16, 32, 64, 128, 256)  # tiles of a box that are tried
CHUNK_SHARE = 0.4  # of L2 that the sums of some channels for a panel fill, where there is one box


@dataclass(frozen=True)
class TiledWeightsBlocking:
    """The tiles of x and of dy in boxes that belong together, and the sums of their products."""

    inputs: BoxSizes
    gradients: BoxSizes  # as many tiles, without overlap, transformed to the points of those of x

    @property
    def problem(self) -> ConvProblem:
        """The 3-D view."""
        return self.inputs.problem

    @property
    def vectors(self) -> int:
        """Of a panel of filters."""
        return panels.tile_for(self.problem.gemm_n, self.problem.itemsize)[1]

    @property
    def panel(self) -> int:
        return self.vectors * self.inputs.lanes

    @property
    def panels(self) -> int:
        return -(-self.problem.gemm_n // self.panel)

    @property
    def product_rows(self) -> int:
        """Channels that the micro-kernel takes at a time: equal parts of all."""
        count = self.channels
        return -(-count // -(-count // microkernel.REGISTER_TILES[simd.vector_bytes()][self.vectors]))

    @cached_attribute
    def chunks(self) -> int:
        """Parts of the channels, each summed for a panel and written at once; 0 where M is kept for boxes."""
        if self.inputs.boxes > self.problem.groups:
            return 0
        of_channel = self.inputs.points * self.m_rows * self.panel * self.problem.itemsize
        most = max(ORDERED_CHANNELS, int(cache_sizes()[1] * CHUNK_SHARE) // of_channel)
        return -(-self.problem.w_shape[1] // most)

    @property
    def channels(self) -> int:
        """Most channels whose sums are held together."""
        return -(-self.problem.w_shape[1] // max(1, self.chunks))

    @property
    def m_rows(self) -> int:
        """Rows of M for a channel."""
        return self.problem.kernel[0] * self.inputs.phases

    @property
    def m_row(self) -> int:
        """Elements of a row of M: filters, in whole panels."""
        return self.panel if self.chunks else self.panels * self.panel

    @property
    def m_point(self) -> int:
        return self.m_rows * self.channels * self.m_row + simd.LINE // self.problem.itemsize

    @property
    def m_bytes(self) -> int:
        """Of M, or of each thread's part of it."""
        return whole_lines(self.inputs.points * self.m_point * self.problem.itemsize)

    @property
    def v_bytes(self) -> int:
        return whole_lines(self.inputs.points * self.inputs.v_point * self.problem.itemsize)

    @property
    def d_bytes(self) -> int:
        """A panel more: the last one of a row of D may reach beyond it."""
        elements = self.gradients.points * self.gradients.v_point + self.panel
        return whole_lines(elements * self.problem.itemsize)

    @property
    def own_bytes(self) -> int:
        """Scratch of a thread: pixels of a strip, then gradients on their way to dw."""
        taps = math.prod(self.problem.kernel)
        order = (
            (ORDERED_CHANNELS * taps + 2 * self.inputs.lanes + 64) * self.inputs.lanes * self.problem.itemsize
        )
        return whole_lines(max(self.inputs.pixel_bytes, self.gradients.pixel_bytes, order))

    @property
    def scratch_bytes(self) -> int:
        sums = self.m_bytes * (self.inputs.threads if self.chunks else 1)
        return self.inputs.threads * self.own_bytes + self.v_bytes + self.d_bytes + sums


def uncut_weights(problem: ConvProblem, outputs: tuple[int, int], threads: int) -> TiledWeightsBlocking:
    """All tiles of so many outputs of a problem in one box."""
    p = problem.as_3d
    rows, columns = tiled_axis(p, 1, outputs[0]), tiled_axis(p, 2, outputs[1])
    inputs = BoxSizes(p, rows, columns, ONE_BOX, True, threads)
    pointwise = ConvProblem(
        p.y_shape, (p.K, p.gemm_n, 1, 1, 1), groups=p.groups, layout=p.layout, dtype=p.dtype
    )
    down, across = (
        TiledAxis(a.size_out, a.size_out, 0, 1, a.lattices, 1, a.lattices, 1, a.outputs)
        for a in (rows, columns)
    )
    points = {"points": inputs.points}
    return TiledWeightsBlocking(inputs, BoxSizes(pointwise, down, across, ONE_BOX, True, threads, points))


def weight_ways(all_tiles: TiledWeightsBlocking) -> list[TiledWeightsBlocking]:
    """Cuts into boxes of about each target, of which V and D fit half of L3 or are the least."""
    inputs, gradients = all_tiles.inputs, all_tiles.gradients
    sizes = [(d, inputs.grid[d]) for d in (3, 2, 1, 0) if inputs.grid[d] > 1]
    found: dict[tuple[int, ...], TiledWeightsBlocking] = {}
    for target in WEIGHT_TARGETS:
        cuts = cuts_of(sizes, target / inputs.row_tiles)
        cut = TiledWeightsBlocking(inputs.cut_into(cuts, True), gradients.cut_into(cuts, True))
        if not found or cut.v_bytes + cut.d_bytes <= cache_sizes()[2] // 2:
            found[cuts] = cut
    if all_tiles.v_bytes <= cache_sizes()[2]:
        found[all_tiles.inputs.cuts] = all_tiles
    return list(found.values())
