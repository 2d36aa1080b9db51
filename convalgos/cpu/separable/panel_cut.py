"""The panels of filters of a convolution beside a depthwise one, and the tiles of pixels that they take.

It is a pointwise one; or the first layer of a network, before its first depthwise layer, which reads a map of
few channels that lie apart: the rows that a band needs are copied with their border, once for all panels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

from convalgos.core.arguments import Shape
from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.machine import cache_sizes
from convalgos.core.problem import ConvProblem
from convalgos.core.problem_views import on_map
from convalgos.cpu.gemm import blocked_cut, dealt_panels
from convalgos.cpu.gemm.blocked_cut import PASS, BlockedCut, tile_cycles
from convalgos.cpu.vectors import simd


@dataclass(frozen=True)
class PanelCut:
    """Panels of the filters of a pointwise convolution, and the tiles of pixels that they take."""

    problem: ConvProblem
    panels: int
    rows: int  # of a tile, at most

    @cached_attribute
    def vectors(self) -> int:
        """Of all filters."""
        return -(-self.problem.K // simd.lanes(4))

    @cached_attribute
    def widths(self) -> tuple[int, int]:
        """Vectors of the widest and of the narrowest panel."""
        return -(-self.vectors // self.panels), self.vectors // self.panels

    @cached_attribute
    def entries(self) -> int:
        """Blocks of channels."""
        return -(-self.problem.C // simd.lanes(4))

    @property
    def chunk(self) -> int:
        """Blocks of channels of a pass over a panel, whose filters stay in the first cache; equal passes."""
        most = max(1, int(PASS * cache_sizes()[0]) // (self.widths[0] * simd.lanes(4) ** 2 * 4))
        return -(-self.entries // -(-self.entries // most))

    def cycles(self, pixels: int) -> float:
        """Of a thread, for so many pixels in a row."""
        return self._of_tiles(-(-pixels // self.rows), pixels)

    def _of_tiles(self, tiles: float, pixels: int) -> float:
        """Cycles of so many tiles of that many pixels in all."""
        p = self.problem
        widths = dealt_panels.summed_widths(p.K, self.panels, p.itemsize)
        return sum(n * tiles * tile_cycles(pixels / tiles, v, p.gemm_k) for n, v in widths)


@dataclass(frozen=True)
class PlanePanelCut(PanelCut):
    """That of a convolution whose channels lie apart."""

    def on_map(self, x_shape: Shape) -> Self:
        """The same on maps of other sizes."""
        return replace(self, problem=on_map(self.problem, x_shape))

    @cached_attribute
    def _of_a_row(self) -> BlockedCut:
        return self.of_rows(1)

    @cached_attribute
    def entries(self) -> int:
        """Rows of the kernel in all channels."""
        return self._of_a_row.entries

    @property
    def chunk(self) -> int:
        return self._of_a_row.chunk

    def of_rows(self, rows: int) -> BlockedCut:
        """How so many rows of outputs are read, with the copy of what they need."""
        p = self.problem.as_3d
        return BlockedCut(p, 1, (1, rows, p.spatial_out[2]), True, self.panels, self.rows, 1, False)

    def cycles(self, pixels: int) -> float:
        """Likewise; a tile takes pixels of one row."""
        p = self.problem
        columns = p.spatial_out[1]
        tiles = pixels / columns * -(-columns // self.rows)
        read = p.x_bytes / p.N * pixels / math.prod(p.spatial_out)
        return self._of_tiles(tiles, pixels) + blocked_cut.COPIED * read
