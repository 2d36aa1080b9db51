"""The sizes of tiles and boxes of tiles, and of the scratch that they are computed in.

A box is a block of tiles: some images, output slices, rows and columns of tiles of one group. All of a box
is read, multiplied and written before the next one, so that it stays in a cache. Where tiles abound, every
thread works on boxes of its own. Where the filter is large and tiles are few, all threads share each box
(a team), and the filter is read once. `box_search` weighs a few ways to cut, by `Schedule.effort`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from convalgos.core.allocator import whole_lines
from convalgos.core.cached_attribute import kept
from convalgos.core.machine import cache_sizes
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm import panels
from convalgos.cpu.tiled.geometry import Axis
from convalgos.cpu.vectors import microkernel, simd

LINE = 64  # bytes; the matrices of neighbouring points are kept a line off a power of two
SPARE = 16  # entries of the row table behind the last one, for rows that a micro-kernel computes in vain

# What is the same for all kinds of tiles of a problem, for those of all sizes, and for all boxes of these.
GEOMETRY = (
    *("problem", "rows", "columns", "cuts", "team", "threads", "depth", "lanes", "channel_blocks"),
    *("filter_blocks", "depth_taps", "phases", "row_tiles", "stacks"),
)
COMMON = (
    *("problem", "threads", "depth", "lanes", "channel_blocks", "filter_blocks", "vectors", "panels"),
    *("depth_taps", "phases", "row_tiles"),
)
WHOLE = (*COMMON, "rows", "columns", "grid", "points", "u_bytes", "v_row", "tile_count")

S = TypeVar("S", bound="BoxSizes")


@dataclass(frozen=True)
class BoxSizes:
    """The sizes of everything that a plan on boxes holds. Strides count elements."""

    problem: ConvProblem  # the 3-D view
    rows: Axis
    columns: Axis
    cuts: tuple[int, int, int, int]  # boxes along images, output slices, rows and columns of tiles
    team: bool  # all threads on one box, instead of each on its own
    threads: int

    def cut_into(self: S, cuts: tuple[int, int, int, int], team: bool) -> S:
        """The same problem in other boxes. What does not depend on these is not computed again."""
        other = object.__new__(type(self))
        other.__dict__.update(self._of_all_boxes, cuts=cuts, team=team)
        return other

    @kept
    def _of_all_boxes(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in WHOLE}

    def tiled(self: S, outputs: tuple[int, int]) -> S:
        """The same problem in tiles of so many outputs along rows and columns, all in one box."""
        other = object.__new__(type(self))
        other.__dict__.update({name: getattr(self, name) for name in COMMON}, cuts=(1, 1, 1, 1), team=True)
        for name, count in zip(("rows", "columns"), outputs, strict=True):
            cut = other.__dict__[name] = object.__new__(Axis)
            cut.__dict__.update(getattr(self, name).__dict__, outputs=count)
        return other

    @kept
    def depth(self) -> Axis:
        """Depth is not tiled: its taps are summed by the product."""
        p = self.problem
        return Axis(
            size=p.spatial[0], size_out=p.spatial_out[0], pad=p.padding[0][0], stride=p.stride[0],
            dilation=p.dilation[0], phases=1, lattices=1, taps=p.kernel[0], outputs=1,
        )  # fmt: skip

    # --- a tile ----------------------------------------------------------------------------------

    @property
    def dims(self) -> int:
        """Transformed dimensions of the plane."""
        return sum(a.outputs > 1 for a in (self.rows, self.columns))

    @kept
    def points(self) -> int:
        """Products of a tile per pair of channels."""
        return math.prod(a.outputs + a.taps - 1 for a in (self.rows, self.columns))

    def points_of(self, h: int, w: int) -> int:
        """`points` of tiles of h x w outputs."""
        return (h + self.rows.taps - 1) * (w + self.columns.taps - 1)

    @kept
    def phases(self) -> int:
        return self.rows.phases * self.columns.phases

    @kept
    def short_phases(self) -> tuple[int, int]:
        """Phases of rows and of columns, the last ones, that have a tap less than the others.

        What they lack is the last tap, which alone makes the filter at the last point of a transform, that
        at infinity: there these phases need no products.
        """
        axes = zip((self.rows, self.columns), self.problem.kernel[1:], strict=True)
        return tuple(a.phases * a.taps - size if a.outputs > 1 else 0 for a, size in axes)  # type: ignore[return-value]

    @kept
    def phase_places(self) -> np.ndarray:
        """(phases,) where each phase stands among the channels of a tile.

        First those with short rows only, then whole ones, those with short columns only, and the rest: so
        the phases that have products at a point are neighbours.
        """
        row, column = np.indices((self.rows.phases, self.columns.phases)).reshape(2, -1)
        short_row, short_column = (
            index >= a.phases - short
            for index, a, short in zip(
                (row, column), (self.rows, self.columns), self.short_phases, strict=True
            )
        )
        kind = np.where(short_row, np.where(short_column, 3, 0), np.where(short_column, 2, 1))
        return np.argsort(np.argsort(kind, kind="stable"), kind="stable").astype(np.int64)

    @kept
    def point_taps(self) -> np.ndarray:
        """(points, 2) of a slice in depth: the first tap that has products at a point, and their number.

        Taps in depth are one sum, which cannot leave out a part of each: there all are taken.
        """
        channels = self.problem.w_shape[1]
        short_h, short_w = self.short_phases if self.problem.kernel[0] == 1 else (0, 0)
        shorts = short_h * (self.columns.phases - short_w), (self.rows.phases - short_h) * short_w
        alphas = tuple(a.outputs + a.taps - 1 if a.outputs > 1 else 1 for a in (self.rows, self.columns))
        taps = np.empty((self.points, 2), np.int64)
        taps[:] = 0, self.slice_taps
        for point in range(self.points if short_h or short_w else 0):
            i, j = divmod(point, alphas[1])
            first = shorts[0] if short_h and i == alphas[0] - 1 else 0
            end = self.phases - short_h * short_w if first else self.phases
            if short_w and j == alphas[1] - 1:
                end = self.phases - (self.rows.phases * short_w)
            taps[point] = first * channels, (end - first) * channels
        return taps

    @kept
    def row_tiles(self) -> int:
        """Tiles of a row and column of tiles, one of each lattice."""
        return self.rows.lattices * self.columns.lattices

    @property
    def granule(self) -> tuple[int, ...]:
        """Outputs of a tile in each dimension of the 3-D view, all lattices together."""
        return (1, *(a.outputs * a.lattices for a in (self.rows, self.columns)))

    # --- channels --------------------------------------------------------------------------------

    @kept
    def lanes(self) -> int:
        return simd.lanes(self.problem.itemsize)

    @kept
    def channel_blocks(self) -> int:
        return -(-self.problem.w_shape[1] // self.lanes)

    @kept
    def filter_blocks(self) -> int:
        return -(-self.problem.gemm_n // self.lanes)

    @property
    def parts(self) -> int:
        """Of a value at a point: 1, or 2 where it is complex."""
        return 1

    @kept
    def vectors(self) -> int:
        """Of a panel of filters."""
        return panels.tile_for(self.problem.gemm_n, self.problem.itemsize)[1]

    @property
    def panel(self) -> int:
        """Elements of a panel of filters."""
        return self.vectors * self.parts * self.lanes

    @kept
    def panels(self) -> int:
        return -(-self.filter_blocks // self.vectors)

    @property
    def most_rows(self) -> int:
        """Tiles that the micro-kernel can take at a time."""
        return microkernel.REGISTER_TILES[simd.vector_bytes()][self.vectors]

    @property
    def product_rows(self) -> int:
        """Tiles that the micro-kernel takes at a time: equal parts of those of a box."""
        count = self.box[0] * self.box[1] * self.tiles
        return -(-count // -(-count // self.most_rows))

    @property
    def slice_taps(self) -> int:
        """Products summed for one tap in depth: phases by channels."""
        return self.phases * self.problem.w_shape[1]

    @property
    def taps(self) -> int:
        """Products summed for one element of M."""
        return self.problem.kernel[0] * self.slice_taps

    @kept
    def depth_taps(self) -> float:
        """Taps in depth that meet the map, on the average over output slices."""
        return self.problem.taps_met(0) / max(1, self.depth.size_out)

    # --- a box -----------------------------------------------------------------------------------

    @kept
    def grid(self) -> tuple[int, int, int, int]:
        """Images, output slices, rows and columns of tiles of the whole problem."""
        return (self.problem.N, self.problem.spatial_out[0], self.rows.tiles, self.columns.tiles)

    @kept
    def tile_count(self) -> int:
        """Tiles of the whole problem, of all groups."""
        return self.problem.groups * math.prod(self.grid) * self.row_tiles

    @kept
    def stacks(self) -> int:
        """Planes of outputs of one filter, by the lattices of each."""
        p = self.problem
        return p.groups * p.N * p.spatial_out[0] * self.row_tiles

    @kept
    def box(self) -> tuple[int, int, int, int]:
        """The same of the largest box."""
        (n, o, h, w), (cut_n, cut_o, cut_h, cut_w) = self.grid, self.cuts
        return -(-n // cut_n), -(-o // cut_o), -(-h // cut_h), -(-w // cut_w)

    @property
    def boxes(self) -> int:
        """Of all groups."""
        return self.problem.groups * math.prod(self.cuts)

    @property
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

    @kept
    def slots(self) -> int:
        """Input slices of a box."""
        depth = self.depth
        return ((self.box[1] - 1) * depth.stride + (depth.taps - 1) * depth.dilation) // self.slot_step + 1

    @kept
    def v_row(self) -> int:
        """Input channels of a tile at one point: phases by channels, padded to whole vectors."""
        return self.phases * self.channel_blocks * self.parts * self.lanes

    @property
    def v_point(self) -> int:
        """All input tiles of a box at one point."""
        return self.slots * self.slot_tiles * self.v_row + LINE // self.problem.itemsize

    @property
    def spare_rows(self) -> int:
        """Of a product, written in vain behind the last one.

        The slices of a box may be several products, for which `product_rows` is not an equal part.
        """
        return self.product_rows if self.box[1] > 1 else 0

    @property
    def m_panel(self) -> int:
        """All output tiles of a box at one point, of one panel."""
        return (self.box[0] * self.box[1] * self.tiles + self.spare_rows) * self.panel

    @property
    def m_point(self) -> int:
        return self.panels * self.m_panel + LINE // self.problem.itemsize

    @property
    def tile_bytes(self) -> int:
        """Transformed inputs and products of a tile."""
        return self.points * (self.v_row + self.panels * self.panel) * self.problem.itemsize

    @kept
    def point_bytes(self) -> int:
        """Of the transformed filter of one group at a point."""
        return self.panels * self.panel * self.taps * self.problem.itemsize

    @kept
    def u_bytes(self) -> int:
        """The transformed filter of one group."""
        return self.points * self.point_bytes

    # --- bytes of scratch --------------------------------------------------------------------------

    @kept
    def strip(self) -> int:
        """Rows of tiles whose pixels are gathered at a time: they fit a quarter of L2."""
        row = self.columns.span(self.box[3]) * self.lanes * self.problem.itemsize
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
        return (max(inputs, outputs) + self.lanes) * self.lanes * self.problem.itemsize

    @property
    def table_bytes(self) -> int:
        """The row table of a product."""
        return whole_lines(8 * (self.box[0] * self.box[1] * self.tiles + SPARE))

    @property
    def own_bytes(self) -> int:
        """Scratch of a thread beside the transformed box."""
        return whole_lines(self.pixel_bytes) + self.table_bytes

    @property
    def box_bytes(self) -> int:
        """Transformed inputs and products of a box."""
        return whole_lines(self.points * (self.v_point + self.m_point) * self.problem.itemsize)

    @property
    def scratch_bytes(self) -> int:
        return self.threads * self.own_bytes + (1 if self.team else self.threads) * self.box_bytes
