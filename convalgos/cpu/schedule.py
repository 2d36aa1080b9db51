"""How Winograd's tiles are cut into boxes and given to the threads.

A box is a block of tiles: some images, output slices, rows and columns of tiles of one group. All of a box
is transformed, multiplied and transformed back before the next one, so that it stays in a cache. Where
tiles abound, every thread works on boxes of its own, as large as its L2 cache likes (`team` False). Where
the filter is large and tiles are few, each box is shared by all threads, which then read the filter once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

from convalgos.cpu import jit, simd
from convalgos.cpu.tiles import Axis, axis
from convalgos.machine import cache_sizes
from convalgos.problem import ConvProblem

LINE = 64  # bytes; matrices of neighbouring points are kept a line off a power of two
SPARE = 16  # rows of a product that its micro-kernel may write behind the last one


@dataclass(frozen=True)
class Schedule:
    """Sizes of everything that a Winograd plan holds. Counts are elements unless named bytes."""

    problem: ConvProblem  # the 3-D view
    rows: Axis
    columns: Axis
    cuts: tuple[int, int, int, int]  # boxes along images, output slices, rows and columns of tiles
    team: bool  # all threads on one box, instead of each on its own
    threads: int

    @cached_property
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

    @property
    def points(self) -> int:
        """Products of a tile per pair of channels."""
        return math.prod(a.outputs + a.taps - 1 for a in (self.rows, self.columns))

    @property
    def phases(self) -> int:
        return self.rows.phases * self.columns.phases

    @property
    def row_tiles(self) -> int:
        """Tiles of a row and column of tiles, one of each lattice."""
        return self.rows.lattices * self.columns.lattices

    # --- channels --------------------------------------------------------------------------------

    @cached_property
    def lanes(self) -> int:
        return simd.lanes(self.problem.itemsize)

    @cached_property
    def channel_blocks(self) -> int:
        return -(-self.problem.w_shape[1] // self.lanes)

    @cached_property
    def filter_blocks(self) -> int:
        return -(-self.problem.gemm_n // self.lanes)

    @cached_property
    def vectors(self) -> int:
        """Of a panel of filters."""
        return simd.tile_for(self.problem.gemm_n, self.problem.itemsize)[1]

    @property
    def panel(self) -> int:
        """Filters of a panel."""
        return self.vectors * self.lanes

    @property
    def panels(self) -> int:
        return -(-self.filter_blocks // self.vectors)

    @property
    def product_rows(self) -> int:
        """Tiles that the micro-kernel takes at a time: equal parts of those of a box."""
        most = simd.TILES[simd.vector_bytes()][self.vectors]
        count = self.box[0] * self.box[1] * self.tiles
        return -(-count // -(-count // most))

    @property
    def slice_taps(self) -> int:
        """Products summed for one tap in depth: phases by channels."""
        return self.phases * self.problem.w_shape[1]

    @property
    def taps(self) -> int:
        """Products summed for one element of M."""
        return self.problem.kernel[0] * self.slice_taps

    # --- a box -----------------------------------------------------------------------------------

    @property
    def grid(self) -> tuple[int, int, int, int]:
        """Images, output slices, rows and columns of tiles of the whole problem."""
        return (self.problem.N, self.problem.spatial_out[0], self.rows.tiles, self.columns.tiles)

    @property
    def box(self) -> tuple[int, int, int, int]:
        """The same of the largest box."""
        return tuple(-(-n // c) for n, c in zip(self.grid, self.cuts, strict=True))  # type: ignore[return-value]

    @property
    def boxes(self) -> int:
        """Of all groups."""
        return self.problem.groups * math.prod(self.cuts)

    @property
    def tiles(self) -> int:
        """Of a slice of a box."""
        return self.box[2] * self.box[3] * self.row_tiles

    @property
    def slot_step(self) -> int:
        """Input slices between those that a box may need."""
        return math.gcd(self.depth.stride, self.depth.dilation) if self.depth.taps > 1 else self.depth.stride

    @property
    def slots(self) -> int:
        """Input slices of a box."""
        depth = self.depth
        return ((self.box[1] - 1) * depth.stride + (depth.taps - 1) * depth.dilation) // self.slot_step + 1

    @property
    def v_row(self) -> int:
        """Input channels of a tile at one point: phases by channels, padded to whole vectors."""
        return self.phases * self.channel_blocks * self.lanes

    @property
    def v_point(self) -> int:
        """All input tiles of a box at one point."""
        return self.box[0] * self.slots * self.tiles * self.v_row + LINE // self.problem.itemsize

    @property
    def m_panel(self) -> int:
        """All output tiles of a box at one point, of one panel."""
        return (self.box[0] * self.box[1] * self.tiles + SPARE) * self.panel

    @property
    def m_point(self) -> int:
        return self.panels * self.m_panel + LINE // self.problem.itemsize

    # --- bytes of scratch --------------------------------------------------------------------------

    @property
    def strip(self) -> int:
        """Rows of tiles whose pixels are gathered at a time: they fit a quarter of L2."""
        pixel = self.lanes * self.problem.itemsize
        row = self.columns.span(self.box[3]) * pixel
        fitting = [n for n in range(1, self.box[2] + 1) if self.rows.span(n) * row <= cache_sizes()[1] // 4]
        return max(fitting, default=1)

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
        return _lines(8 * (self.box[0] * self.box[1] * self.tiles + SPARE))

    @property
    def own_bytes(self) -> int:
        """Scratch of a thread beside the transformed box."""
        return _lines(self.pixel_bytes) + self.table_bytes

    @property
    def box_bytes(self) -> int:
        """Transformed inputs and products of a box."""
        return _lines(self.points * (self.v_point + self.m_point) * self.problem.itemsize)

    @property
    def scratch_bytes(self) -> int:
        return self.threads * self.own_bytes + (1 if self.team else self.threads) * self.box_bytes


def _lines(count: int) -> int:
    return -(-count // LINE) * LINE


def form(problem: ConvProblem, r: int) -> tuple[bool, bool] | str:
    """Whether rows and columns of a plane are transformed by F(m, r), or why neither can be."""
    p = problem.as_3d
    taps = [axis(p, dimension, 1).taps for dimension in (1, 2)]
    if set(taps) <= {1, r} and r in taps:
        return taps[0] == r, taps[1] == r
    size = "x".join(map(str, problem.kernel))
    steps = "" if set(problem.stride) == {1} else " with stride " + "x".join(map(str, problem.stride))
    needed = f"needs {r} taps in one dimension of the plane, and {r} or 1 in the other"
    found = f"kernel {size}{steps} has {taps[0]} by {taps[1]}"
    return f"{needed}; {found}" if problem.ndim > 1 else f"needs {r} taps; kernel {size}{steps} has {taps[1]}"


@lru_cache(512)
def schedule(problem: ConvProblem, m: int, r: int, team: bool | None = None) -> Schedule:
    """The schedule of a problem that `form` accepts; `team` forces the kind."""
    p = problem.as_3d
    chosen = form(problem, r)
    assert not isinstance(chosen, str)
    rows, columns = (
        axis(p, d, m if transformed else 1) for d, transformed in ((1, chosen[0]), (2, chosen[1]))
    )
    threads = jit.thread_count()
    _, l2, l3 = cache_sizes()
    whole = Schedule(p, rows, columns, (1, 1, 1, 1), True, threads)
    total = math.prod(whole.grid) * whole.row_tiles
    u_bytes = whole.points * whole.panels * whole.panel * whole.taps * p.itemsize
    if team is None:
        team = (total <= 1024 and u_bytes > l3 // 2) or total < 32
    per_tile = whole.points * (whole.v_row + whole.panels * whole.panel) * p.itemsize
    target = max(1, l3 // per_tile) if team else max(28, min(56, int(0.7 * l2) // per_tile))
    return Schedule(p, rows, columns, _cuts(whole, target, 1 if team else threads), team, threads)


def _cuts(whole: Schedule, target: int, threads: int) -> tuple[int, int, int, int]:
    n, o, h, w = whole.grid
    cell = whole.row_tiles
    box_w = w if w * cell < 2 * target else max(1, round(target / cell))
    left = target / (-(-w // -(-w // box_w)) * cell)
    box_o = max(1, min(o, round(left))) if whole.problem.kernel[0] > 1 else 1
    left /= box_o
    box_h = max(1, min(h, round(left)))
    left /= box_h
    if whole.problem.kernel[0] == 1:
        box_o = max(1, min(o, round(left)))
        left /= box_o
    box_n = max(1, min(n, round(left)))
    cuts = [-(-total // box) for total, box in zip((n, o, h, w), (box_n, box_o, box_h, box_w), strict=True)]
    # as many boxes for every thread
    count = math.prod(cuts) * whole.problem.groups
    if count % threads and count < 8 * threads:
        for d, total in enumerate((n, o, h, w)):
            more = next(
                (
                    c
                    for c in range(cuts[d], min(total, 2 * cuts[d] + threads) + 1)
                    if count // cuts[d] * c % threads == 0
                ),
                None,
            )
            if more:
                cuts[d] = more
                break
    return tuple(cuts)  # type: ignore[return-value]
