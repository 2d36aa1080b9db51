"""The predicted time of a problem in boxes of tiles: for the choice of boxes, and as an algorithm's cost."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import ClassVar, Self

from convalgos.core.algorithm import packing_seconds
from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.layouts import BLOCKS
from convalgos.core.machine import Machine, cache_sizes
from convalgos.cpu.gemm import panels
from convalgos.cpu.runtime.filter_reads import reading_seconds
from convalgos.cpu.runtime.plan import CALL
from convalgos.cpu.tiled.blocking import OF_PANELS, BoxSizes, Cuts
from convalgos.cpu.vectors import microkernel, simd

# Calibrated on Zen 5 with AVX-512, 2 cores; times are counted in tiles where they decide between boxes.
TARGETS = (8, 12, 16, 24, 32, 40, 48, 64, 96)  # tiles of a box of one thread that are tried
MANY = 64  # boxes of a thread, from which on all threads have as good as the same work
WAIT = 1.5  # tiles computed in the time that the filters of a box take to come from L3
MEMORY = 5  # tiles computed by a thread in the time that they come from memory, which all threads share
KEPT = 0.5  # of L3 is what filters can fill that every box finds there again
SPILL = 0.02  # slower by this for each L2 that a box fills, up to 10, where other programs use L3 too
LOST = 0.4  # slower by this for an L2 that a box of a thread and its filters take beyond it; Xeon
TEAM = 1.08  # slower by this where threads wait for each other, and for each other's tiles
PRODUCT = 1.02  # of the measured peak, inside the micro-kernel
OVERLAP = 4  # the norm of what a team takes for its sums and its filters, as it fetches these meanwhile
READ = 6  # tiles computed in the time that the filters of a box take from L3 where too few hide it
PRODUCT_CALL = 1.5e-8  # seconds around each product of a point,
ROW_CALL = 9e-9  # and each row of pixels that is gathered or scattered
LAUNCH = 2.1  # parallel regions' worth of time that each takes which a team starts from Python
TILE_TAPS = 4  # taps computed in the time that a tile of the micro-kernel begins and ends
ENOUGH = 10  # registers of sums that keep the arithmetic units busy
TRANSFORM = 0.36  # vectors moved by transforms, in L2, in a cycle; Zen 4 and a Xeon (Granite Rapids), too
MISSING = 0.007  # of them that come from the last cache, for each point; convbench, Xeon (Granite Rapids)
HIDDEN = 2.36  # cycles meanwhile that hide a vector from there: all of them on Zen 5
STRIDED = 0.5  # longer by this where steps of a stride are gathered, and wait; Xeon (Granite Rapids)
PAGE = 4096
FAR = 20  # cycles in which a pixel comes that lies pages behind the one before it: nothing fetches it; Zen 5
SHARED_TAPS = 128  # of a pass over a panel in a team; Xeon (Granite Rapids)
CROSSING = 2.5  # times as slow as from the last cache are bytes that another core has written
SHOWN = 0.43  # of the time in which x and y are moved, which the rest does not hide
PREPARE = 5e9  # bytes of a filter, before and behind its transform, in a second; see `packing_seconds`


def overlapped(sums: float, filters: float, norm: int = OVERLAP) -> float:
    """Seconds of sums whose filters are read meanwhile."""
    longer, shorter = max(sums, filters), min(sums, filters)
    return longer * (1 + (shorter / longer) ** norm) ** (1 / norm) if shorter else longer


class BoxSchedule(BoxSizes):
    """Sizes, and the predicted time. Efforts are counted in tiles."""

    targets: ClassVar[tuple[int, ...]] = TARGETS
    team_targets: ClassVar[tuple[int, ...]] = ()  # beside a box that fills half of L3
    transform_speed: ClassVar[float] = TRANSFORM
    by_clock: ClassVar[bool] = True  # transforms move and shuffle more than they compute
    shown: ClassVar[float] = SHOWN
    preparing: ClassVar[float] = PREPARE
    filters_apart: ClassVar[bool] = True  # counted by what they take to be read, not in efforts
    least_flops: ClassVar[float] = 2 / PRODUCT  # over the speed, for an output and a channel of its group

    def cut_into(self, cuts: Cuts, team: bool) -> Self:
        made = super().cut_into(cuts, team)
        if team and made.u_bytes > made.threads * cache_sizes()[1]:
            made.narrow_panels()
        return made

    def narrow_panels(self) -> None:
        """Panels as wide as there are tiles of rows: with each one a vector of the next taps is fetched.

        Where a panel is wider, the rest comes from L3 while the next sums wait.
        """
        table, count = microkernel.REGISTER_TILES[simd.vector_bytes()], math.prod(self.box[:2]) * self.tiles
        blocks = self.panels * self.vectors
        fitting = [
            v for v in table if v <= -(-count // table[v]) and -(-self.filter_blocks // v) * v == blocks
        ]
        vectors = max(fitting, default=self.vectors)
        if vectors < self.vectors:
            self._take_panels(vectors)

    def _take_panels(self, vectors: int) -> None:
        for name in OF_PANELS:
            self.__dict__.pop(name, None)
        self.__dict__["vectors"] = vectors

    def is_like(self, known: BoxSchedule) -> bool:
        """Whether it is in tiles like those of a cut of the layer for other sizes of its maps."""
        tiles, others = ((c.rows.outputs, c.columns.outputs, c.threads) for c in (self, known))
        return tiles == others and type(self) is type(known)

    def in_panels_of(self, known: BoxSchedule) -> Self:
        """The same boxes on the filters of another cut of the layer, in panels as wide as there."""
        made = self.cut_into(self.cuts, self.team)
        made._take_panels(known.vectors)
        return made

    @property
    def chunk(self) -> int:
        """Taps of a pass over a panel: few in a team, so that filters come from L3 all the time."""
        fetches = self.team and self.filters_apart
        return panels.chunk(self.taps, SHARED_TAPS) if fetches else super().chunk

    @cached_attribute
    def busy_tiles(self) -> float:
        """Tiles that the busiest thread computes."""
        if self.team or self.boxes > MANY * self.threads:
            return self.tile_count / self.threads
        shares = [self._tiles_before(self.boxes * t // self.threads) for t in range(1, self.threads)]
        done = [0, *shares, self.tile_count // self.row_tiles]
        return float(max(end - start for start, end in pairwise(done))) * self.row_tiles

    def _tiles_before(self, box: int) -> int:
        """Tiles, of one lattice, of all boxes before one: groups are outermost, columns innermost."""
        below, tiles = 0, 1  # before the box, among boxes of the same outer indices; and of all these boxes
        for n, c in zip(reversed(self.grid), reversed(self.cuts), strict=True):
            box, index = divmod(box, c)
            first = index * n // c
            below = first * tiles + ((index + 1) * n // c - first) * below
            tiles *= n
        return box * tiles + below

    @property
    def effort(self) -> float:
        """The time of the busiest thread, counted in tiles."""
        computed = self.busy_tiles * self.slowdown + WAIT * self.rounds
        return max(computed, READ * self.rounds) + MEMORY * self.fetches

    @cached_attribute
    def rounds(self) -> float:
        """Boxes of the busiest thread."""
        return self.boxes / self.threads if self.team else -(-self.boxes // self.threads)

    @property
    def fetches(self) -> int:
        """How often the filter of a group comes from memory, in all groups."""
        return self.boxes if self.problem.groups * self.u_bytes > KEPT * cache_sizes()[2] else 0

    @cached_attribute
    def slowdown(self) -> float:
        """The time of a tile in its box, over that of one in a small box of one thread."""
        return self.slowed(self.box_bytes, self.team)

    def slowed(self, box_bytes: float, team: bool) -> float:
        """The same of a box of some bytes."""
        l2 = cache_sizes()[1]
        filled = box_bytes / (self.threads if team else 1) / l2
        slowed = (TEAM if team else 1) + SPILL * min(10.0, filled)
        if not team and self.u_bytes < l2:  # else filters come from L3 in any case
            slowed += LOST * min(1.0, max(0.0, filled + self.u_bytes / l2 - 1))
        return slowed

    @cached_attribute
    def product_flops(self) -> float:
        """Of a tile."""
        return self.point_flops * self.products_of(self.rows.outputs, self.columns.outputs)

    @cached_attribute
    def point_flops(self) -> float:
        """Of a tile at a point, for one product that is summed."""
        return 2 * self.panels * self.panel * self.depth_taps

    def products_of(self, h: int, w: int) -> int:
        """Products that are summed at all points of a tile of h x w outputs; see `point_taps`."""
        rows, columns, p = self.rows, self.columns, self.problem
        summed = self.points_of(h, w) * self.phases
        if p.kernel[0] == 1:
            short_h = rows.phases * rows.taps - p.kernel[1] if h > 1 else 0
            short_w = columns.phases * columns.taps - p.kernel[2] if w > 1 else 0
            if short_h or short_w:
                summed -= (w + columns.taps - 1) * short_h * columns.phases
                summed -= (h + rows.taps - 1) * short_w * rows.phases
                summed += short_h * short_w
        return summed * p.w_shape[1]

    def product_speed(self, pace: float) -> float:
        """Of the micro-kernel, over the peak; pace: `Machine.pace`."""
        enough = min(1.0, self.vectors * self.most_rows / (pace * ENOUGH))
        return PRODUCT * enough * self.taps / (self.taps + pace * TILE_TAPS)

    @property
    def pixel_moves(self) -> int:
        """How often a pixel under a tile is read or written before its transform."""
        return 1 if self.problem.layout in BLOCKS else 2

    @property
    def output_moves(self) -> int:
        """How often an output is written or read behind its transform."""
        return 1 if self.problem.y_layout in BLOCKS else 3

    @property
    def filled(self) -> float:
        """The part of the lanes of blocks of channels that hold channels."""
        return self.problem.w_shape[1] / (self.channel_blocks * self.lanes)

    @cached_attribute
    def transform_bytes(self) -> float:
        """What is read and written in the caches to transform a tile there and back.

        Whole vectors are written; of pixels, and by products, the channels that there are are read.
        """
        region = self.rows.span(self.strip) * self.columns.span(self.box[3])
        pixels = region / (self.strip * self.box[3] * self.row_tiles)  # under each tile
        values, outputs = self.points * self.parts, self.rows.outputs * self.columns.outputs
        reads = self.filled * self.pixel_moves * pixels + (1 + self.filled) * values * self.phases
        reads *= self.slots / self.box[1] * self.channel_blocks
        writes = self.filter_blocks * (values + self.output_moves * outputs)
        return (reads + writes) * self.lanes * self.size

    @cached_attribute
    def calls(self) -> float:
        """Seconds of the busiest thread around its products and rows of pixels."""
        n, o, h, _ = self.box
        gathered = self.channel_blocks * self.slots * -(-h // self.strip) * self.rows.span(self.strip)
        scattered = self.filter_blocks * o * h * self.rows.outputs * self.rows.lattices
        products = self.points * self.panels
        return self.rounds * (PRODUCT_CALL * products + ROW_CALL * n * (gathered + scattered))

    def seconds(self, machine: Machine) -> float:
        """Predicted time of one run."""
        products = self.product_seconds(machine)
        moved = self.busy_tiles * self.threads * self.transform_bytes
        launches = machine.launch * (3 * LAUNCH * self.boxes if self.team else 1)
        blocks = self.slots / self.box[1] * self.channel_blocks * self.phases + self.filter_blocks
        computed = self.busy_tiles * self.threads * blocks * self.transforming(self.points, machine)
        crossing = self.crossing_bytes / machine.cache_bandwidth
        moving = self.moving(moved, machine) + self.far_pixels / machine.cycles
        return CALL + launches + products + self.calls + moving + crossing + computed

    def product_seconds(self, machine: Machine) -> float:
        """Seconds of the products, with filters that come from L3 and from memory meanwhile."""
        tiles, norm = self.busy_tiles * self.slowdown, OVERLAP
        if not self.team:
            tiles, norm = tiles + WAIT * self.rounds, 2
        speed = self.peak(machine) * self.product_speed(machine.pace)
        sums = tiles * self.threads * self.product_flops / speed
        return overlapped(sums, self.filter_seconds(machine), norm)

    def filter_seconds(self, machine: Machine) -> float:
        """Seconds in which filters that L2 does not keep come from L3 and from memory."""
        groups, sharing = self.problem.groups, self.threads if self.team else 1
        own = self.box_bytes / sharing
        of_thread = self.u_bytes * (groups / self.threads if self.team or groups >= self.threads else 1)
        reads = self.boxes
        if self.u_bytes / sharing + own < cache_sizes()[1]:  # the boxes of a group find it there again
            reads = min(reads, max(groups, 1 if self.team else self.threads))
        return reading_seconds(reads * self.u_bytes, of_thread + own, groups * self.u_bytes, machine)

    @property
    def crossing_bytes(self) -> float:
        """What goes from one core's cache to another's, as bytes of the last cache: threads of a team read
        tiles that others wrote."""
        return CROSSING * (1 - 1 / self.threads) * self.box_bytes * self.boxes if self.team else 0.0

    def transforming(self, points: int, machine: Machine) -> float:
        """Seconds to transform a block of channels of a tile, beside those to move its bytes."""
        return 0.0

    def moving(self, transformed: float, machine: Machine) -> float:
        """Seconds to move the bytes of the transforms, and those of x and y."""
        p = self.problem
        outer = self.shown * machine.stream(p.x_bytes + 2 * p.y_bytes)
        near, far = self.byte_seconds(machine)
        return transformed * (near + self.missing(self.points) * far) + outer

    def byte_seconds(self, machine: Machine) -> tuple[float, float]:
        """Seconds in which transforms move a byte, and wait for one that comes from the last cache."""
        gathers = max(self.rows.stride, self.columns.stride) > 1
        strided = 1 + STRIDED * machine.line_waits if gathers else 1.0
        near = 1 / (self.transform_cycles(machine) * machine.vector_bytes)
        waited = max(0.0, 1 / machine.cache_bandwidth - HIDDEN * near)
        return strided * near / self.transform_speed, strided * waited

    @property
    def far_pixels(self) -> float:
        """Cycles of all threads in which pixels come one by one: those of a phase of a large stride lie pages
        apart, and a layer has as many phases."""
        if self.columns.outputs == 1 or self.columns.stride * self.lanes * self.size < PAGE:
            return 0.0
        pixels = math.prod(a.outputs + a.taps - 1 for a in (self.rows, self.columns)) * self.phases
        return FAR * self.busy_tiles * self.threads * pixels * self.slots / self.box[1] * self.channel_blocks

    @classmethod
    def transform_cycles(cls, machine: Machine) -> float:
        """Cycles a second of all threads in which transforms move vectors."""
        return machine.cycles if cls.by_clock else machine.paced_cycles

    @classmethod
    def missing(cls, points: int) -> float:
        """The part of these bytes that comes from the last cache, in tiles of so many points."""
        return MISSING * points

    def prepare_seconds(self, machine: Machine) -> float:
        """Predicted time to transform the filter."""
        transformed = packing_seconds(self.problem.groups * self.u_bytes, machine, self.preparing)
        return packing_seconds(self.problem.w_bytes, machine, PREPARE) + transformed
