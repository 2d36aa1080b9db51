"""The sizes of tiles and of boxes of tiles, and of the scratch that a box takes.

A box is a block of tiles of one group: some images, output slices, rows and columns of tiles. All of a box
is read, multiplied and written before the next one, so that it stays in a cache. Where there are many tiles,
every thread works on boxes of its own. Where the filter is large and tiles are few, all threads share each
box (a team), and the filter is read once. `search` weighs a few ways to cut, by `cost.BoxSchedule.effort`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np

from convalgos.core.allocator import whole_lines
from convalgos.core.boundaries import ZERO
from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.machine import cache_sizes
from convalgos.core.problem import ConvProblem
from convalgos.core.taps import taps_met
from convalgos.cpu.gemm import panels
from convalgos.cpu.tiled import short_phases
from convalgos.cpu.tiled.elements import Elements
from convalgos.cpu.tiled.geometry import TiledAxis
from convalgos.cpu.vectors import microkernel, simd

SPARE_ROWS = 16  # entries of the row table behind the last one, for the spare rows of a micro-kernel

Cuts = tuple[int, int, int, int]  # boxes along images, output slices, rows and columns of tiles
ONE_BOX: Cuts = (1, 1, 1, 1)
NOTHING: Mapping[str, Any] = {}

# Attributes that are the same for tiles of all sizes of a problem, and for all boxes.
OF_ALL_TILES = (
    *("depth", "lanes", "channel_blocks", "filter_blocks", "vectors", "panel", "panels", "depth_taps"),
    *("phases", "row_tiles", "slice_taps", "taps", "most_rows"),
)
OF_PANELS = ("vectors", "panel", "panels", "most_rows", "product_rows")  # these follow from the first
OF_ALL_BOXES = (*OF_ALL_TILES, "grid", "points", "u_bytes", "v_row", "tile_count")


class BoxSizes(Elements):
    """The sizes of everything that a plan on boxes holds. Strides count elements.

    Args:
        problem: the 3-D view.
        cuts: boxes along images, output slices, rows and columns of tiles.
        team: all threads on one box, instead of each on its own.
        known: attributes that need not be computed, as another cut of the same problem has them.
    """

    laid: ClassVar[tuple[str, ...]] = ()  # what there is to tell of prepared filters beside sizes

    def __init__(
        self,
        problem: ConvProblem,
        rows: TiledAxis,
        columns: TiledAxis,
        cuts: Cuts,
        team: bool,
        threads: int,
        known: Mapping[str, Any] = NOTHING,
    ):
        self.problem, self.rows, self.columns = problem, rows, columns
        self.cuts, self.team, self.threads = cuts, team, threads
        self.__dict__.update(known)

    def cut_into(self, cuts: Cuts, team: bool) -> Self:
        """The same problem in other boxes. What does not depend on these is not computed again."""
        known = self._of_all_boxes
        return type(self)(self.problem, self.rows, self.columns, cuts, team, self.threads, known)

    @cached_attribute
    def _of_all_boxes(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in OF_ALL_BOXES}

    def tiled(self, outputs: tuple[int, int]) -> Self:
        """The same problem in tiles of so many outputs along rows and columns, all in one box."""
        rows, columns = self.rows._replace(outputs=outputs[0]), self.columns._replace(outputs=outputs[1])
        known = {name: getattr(self, name) for name in OF_ALL_TILES}
        return type(self)(self.problem, rows, columns, ONE_BOX, True, self.threads, known)

    @cached_attribute
    def depth(self) -> TiledAxis:
        """Depth is not tiled: its taps are summed by the product."""
        p = self.problem
        return TiledAxis(
            size=p.spatial[0], size_out=p.spatial_out[0], pad=p.padding[0][0], stride=p.stride[0],
            dilation=p.dilation[0], phases=1, lattices=1, taps=p.kernel[0], outputs=1,
        )  # fmt: skip

    # --- a tile ----------------------------------------------------------------------------------

    @property
    def dims(self) -> int:
        """Transformed dimensions of the plane."""
        return sum(a.outputs > 1 for a in (self.rows, self.columns))

    @cached_attribute
    def points(self) -> int:
        """Products of a tile per pair of channels."""
        return math.prod(a.outputs + a.taps - 1 for a in (self.rows, self.columns))

    def points_of(self, h: int, w: int) -> int:
        """`points` of tiles of h x w outputs."""
        return (h + self.rows.taps - 1) * (w + self.columns.taps - 1)

    @cached_attribute
    def phases(self) -> int:
        return self.rows.phases * self.columns.phases

    @cached_attribute
    def short_phases(self) -> tuple[int, int]:
        """Phases of rows and of columns, the last ones, that have a tap less than the others.

        Their last tap is zero. At the last point of a Winograd transform, which is infinity, a transformed
        filter is its last tap alone: there these phases need no products.
        """
        rows, columns = (
            a.phases * a.taps - size if a.outputs > 1 else 0
            for a, size in zip((self.rows, self.columns), self.problem.kernel[1:], strict=True)
        )
        return rows, columns

    @cached_attribute
    def phase_places(self) -> np.ndarray:
        """(phases,) where each phase stands among the channels of a tile: `short_phases.ordered_phases`."""
        return short_phases.ordered_phases(self.rows.phases, self.columns.phases, self.short_phases)

    @cached_attribute
    def point_taps(self) -> np.ndarray:
        """(points, 2) of a slice in depth: the first tap that has products at a point, and their number.

        With several taps in depth all are taken: their products are one sum, and no part can be left out.
        """
        short = self.short_phases if self.problem.kernel[0] == 1 else (0, 0)
        points = [a.outputs + a.taps - 1 if a.outputs > 1 else 1 for a in (self.rows, self.columns)]
        if short == (0, 0):
            return np.tile(np.array([0, self.slice_taps], np.int64), (self.points, 1))
        phases = short_phases.phases_at_points(
            (self.rows.phases, self.columns.phases), short, (points[0], points[1])
        )
        return phases * self.problem.w_shape[1]

    @cached_attribute
    def row_tiles(self) -> int:
        """Tiles of a row and column of tiles, one of each lattice."""
        return self.rows.lattices * self.columns.lattices

    @property
    def granule(self) -> tuple[int, ...]:
        """Outputs of a tile in each dimension of the 3-D view, all lattices together."""
        return (1, *(a.outputs * a.lattices for a in (self.rows, self.columns)))

    # --- channels --------------------------------------------------------------------------------

    @cached_attribute
    def channel_blocks(self) -> int:
        return -(-self.problem.w_shape[1] // self.lanes)

    @cached_attribute
    def filter_blocks(self) -> int:
        return -(-self.problem.gemm_n // self.sum_lanes)

    @property
    def parts(self) -> int:
        """Of a value at a point: 1, or 2 where it is complex."""
        return 1

    @cached_attribute
    def vectors(self) -> int:
        """Of a panel of filters."""
        return panels.tile_for(self.problem.gemm_n, self.problem.itemsize)[1]

    @cached_attribute
    def panel(self) -> int:
        """Elements of a panel of filters."""
        return self.vectors * self.parts * self.sum_lanes

    @cached_attribute
    def panels(self) -> int:
        return -(-self.filter_blocks // self.vectors)

    @cached_attribute
    def most_rows(self) -> int:
        """Tiles that the micro-kernel can take at a time."""
        return microkernel.REGISTER_TILES[simd.vector_bytes()][self.vectors]

    @cached_attribute
    def product_rows(self) -> int:
        """Tiles that the micro-kernel takes at a time: equal parts of a box."""
        count = self.box[0] * self.box[1] * self.tiles
        return -(-count // -(-count // self.most_rows))

    @property
    def chunk(self) -> int:
        """Taps of a pass over a panel."""
        return panels.chunk(self.taps)

    @cached_attribute
    def slice_taps(self) -> int:
        """Products summed for one tap in depth: phases by channels."""
        return self.phases * self.problem.w_shape[1]

    @cached_attribute
    def taps(self) -> int:
        """Products summed for one element of M."""
        return self.problem.kernel[0] * self.slice_taps

    @cached_attribute
    def depth_taps(self) -> float:
        """Taps in depth that meet the map, on the average over output slices; all where it has a border."""
        if self.problem.boundary[0] != ZERO:
            return self.problem.kernel[0]
        return taps_met(self.problem, 0) / max(1, self.depth.size_out)

    # --- a box -----------------------------------------------------------------------------------

    @cached_attribute
    def grid(self) -> tuple[int, int, int, int]:
        """Images, output slices, rows and columns of tiles of the whole problem."""
        return (self.problem.N, self.problem.spatial_out[0], self.rows.tiles, self.columns.tiles)

    @cached_attribute
    def tile_count(self) -> int:
        """Tiles of the whole problem, of all groups."""
        return self.problem.groups * math.prod(self.grid) * self.row_tiles

    @cached_attribute
    def stacks(self) -> int:
        """Planes of outputs of one filter, by the lattices of each."""
        p = self.problem
        return p.groups * p.N * p.spatial_out[0] * self.row_tiles

    @cached_attribute
    def box(self) -> tuple[int, int, int, int]:
        """The same of the largest box."""
        (n, o, h, w), (cut_n, cut_o, cut_h, cut_w) = self.grid, self.cuts
        return -(-n // cut_n), -(-o // cut_o), -(-h // cut_h), -(-w // cut_w)

    @cached_attribute
    def boxes(self) -> int:
        """Of all groups."""
        return self.problem.groups * math.prod(self.cuts)

    @cached_attribute
    def tiles(self) -> int:
        """Of a slice of a box."""
        return self.box[2] * self.box[3] * self.row_tiles

    @property
    def slot_tiles(self) -> int:
        """Tiles from an input slice of a box to the next: those of all images, which lie without a gap."""
        return self.box[0] * self.tiles

    @property
    def slot_step(self) -> int:
        """Input slices between those that a box may need."""
        return math.gcd(self.depth.stride, self.depth.dilation) if self.depth.taps > 1 else self.depth.stride

    @cached_attribute
    def slots(self) -> int:
        """Input slices of a box."""
        depth = self.depth
        return ((self.box[1] - 1) * depth.stride + (depth.taps - 1) * depth.dilation) // self.slot_step + 1

    @cached_attribute
    def v_row(self) -> int:
        """Input channels of a tile at one point: phases by channels, padded to whole vectors."""
        return self.phases * self.channel_blocks * self.parts * self.lanes

    @property
    def v_point(self) -> int:
        """All input tiles of a box at one point, and a cache line against sets that conflict."""
        return self.slots * self.slot_tiles * self.v_row + simd.LINE // self.v_size

    @property
    def spare_rows(self) -> int:
        """Of a product, which the micro-kernel writes behind the last row.

        The slices of a box may be several products, for which `product_rows` is not an equal part.
        """
        return self.product_rows if self.box[1] > 1 else 0

    @property
    def m_panel(self) -> int:
        """All output tiles of a box at one point, of one panel."""
        return (self.box[0] * self.box[1] * self.tiles + self.spare_rows) * self.panel

    @property
    def m_point(self) -> int:
        return self.panels * self.m_panel + simd.LINE // self.sum_size

    @property
    def tile_bytes(self) -> int:
        """Transformed inputs and products of a tile."""
        return self.points * (self.v_row * self.v_size + self.panels * self.panel * self.sum_size)

    @cached_attribute
    def point_bytes(self) -> int:
        """Of the transformed filter of one group at a point."""
        return self.panels * self.panel * self.taps * self.v_size

    @cached_attribute
    def u_bytes(self) -> int:
        """The transformed filter of one group."""
        return self.points * self.point_bytes

    # --- bytes of scratch --------------------------------------------------------------------------

    @cached_attribute
    def strip(self) -> int:
        """Rows of tiles whose pixels are gathered at a time: they fit a quarter of L2."""
        row = self.columns.span(self.box[3]) * self.lanes * self.size
        strip = self.box[2]
        while strip > 1 and self.rows.span(strip) * row > cache_sizes()[1] // 4:
            strip -= 1
        return strip

    @property
    def pixel_bytes(self) -> int:
        """Input or output pixels of a strip in one vector of channels, and a vector of pixels to spare."""
        inputs = self.rows.span(self.strip) * self.columns.span(self.box[3])
        outputs = math.prod(
            n * a.outputs * a.lattices for n, a in ((self.strip, self.rows), (self.box[3], self.columns))
        )
        return (max(inputs, outputs) + self.lanes) * self.lanes * self.size

    @property
    def table_bytes(self) -> int:
        """The row table of a product."""
        return whole_lines(8 * (self.box[0] * self.box[1] * self.tiles + SPARE_ROWS))

    @property
    def own_bytes(self) -> int:
        """Scratch of a thread beside the transformed box."""
        return whole_lines(self.pixel_bytes) + self.table_bytes

    @cached_attribute
    def box_bytes(self) -> int:
        """Transformed inputs and products of a box."""
        return whole_lines(self.points * (self.v_point * self.v_size + self.m_point * self.sum_size))

    @property
    def scratch_bytes(self) -> int:
        return self.threads * self.own_bytes + (1 if self.team else self.threads) * self.box_bytes
