"""Sizes and predicted times of boxes of tiles whose points are complex, as those of `cpu.fft_tiles`."""

from __future__ import annotations

import math
from typing import ClassVar

from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.machine import Machine, cache_sizes
from convalgos.cpu.tiled.cost import WAIT, BoxSchedule
from convalgos.cpu.vectors import simd

ROWS = {64: 8, 32: 3, 16: 3}  # of the micro-kernel, with three registers of sums each; vector bytes -> rows

# Calibrated on Zen 5 with AVX-512.
PRODUCT = 1.15  # of the peak, inside the micro-kernel, whose waits the effort counts in full
READ = 4  # tiles computed in the time that the filters of a box take from L3 where too few hide it
TILE_TAPS = 5  # taps computed in the time that a tile of the micro-kernel begins and ends
LATENCY = 2.7  # rows that keep the arithmetic units busy
SPILL = 0.06  # slower by this for each L2 that a box fills, from the third on
TEAM = 1.2  # slower by this where threads share a box, and read what others wrote
KEPT = 0.65  # of L3 is what filters, x and y can fill that are used again and again
MEMORY = 3  # tiles computed by a thread in the time that the filter of a box takes from memory
TRANSFORM = 0.34  # vectors moved by transforms, in L2, in a cycle
MISSING = 1.1  # of them that come from the last cache; convbench, Xeon (Granite Rapids)
SHOWN = 0.64  # of the time in which x and y are moved, which the rest does not hide
OPERATIONS = 1.4  # of a transform, over points * log2(points), with what the fused ones lose


class SpectralBoxSchedule(BoxSchedule):
    """A schedule of complex points. A panel is one vector of filters, so that its sums fit the registers."""

    targets: ClassVar = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
    team_targets: ClassVar = (4, 8, 16, 24, 32)
    transform_speed: ClassVar = TRANSFORM
    by_clock: ClassVar = False
    shown: ClassVar = SHOWN
    filters_apart: ClassVar = False
    least_flops: ClassVar = 3 / PRODUCT  # half of the points of a tile, with three products each

    @property
    def parts(self) -> int:
        return 2

    @property
    def vectors(self) -> int:
        return 1

    @property
    def output_moves(self) -> int:
        return 3  # all outputs go through scratch

    @property
    def most_rows(self) -> int:
        return ROWS[simd.vector_bytes()]

    @cached_attribute
    def points(self) -> int:
        return self.points_of(self.rows.outputs, self.columns.outputs)

    def points_of(self, h: int, w: int) -> int:
        t = w + self.columns.taps - 1 if w > 1 else h + self.rows.taps - 1
        return t * t // 2 + 2 if h > 1 and w > 1 else t // 2 + 1

    def products_of(self, h: int, w: int) -> int:
        return self.points_of(h, w) * self.slice_taps  # the last tap makes the filter at every point

    @property
    def short_phases(self) -> tuple[int, int]:
        return 0, 0  # the last tap makes the filter at every point

    @property
    def fetches(self) -> int:
        p, room = self.problem, KEPT * cache_sizes()[2]
        filters = p.groups * self.u_bytes
        if filters + p.x_bytes + p.y_bytes < room:
            return 0  # still there from the last run
        return self.boxes if filters > room else p.groups

    @property
    def effort(self) -> float:
        computed = self.busy_tiles * self.slowdown + WAIT * self.boxes / self.threads
        return max(computed, READ * self.rounds) + MEMORY * self.fetches

    def product_seconds(self, machine: Machine) -> float:
        speed = machine.peak(self.problem.dtype) * self.product_speed(machine.pace)
        return self.effort * self.threads * self.product_flops / speed

    @property
    def slowdown(self) -> float:
        return super().slowdown * max(1.0, LATENCY / self.product_rows)

    def slowed(self, box_bytes: float, team: bool) -> float:
        beyond = max(0.0, box_bytes / (self.threads if team else 1) / cache_sizes()[1] - 2)
        return (1 + SPILL * beyond) * (TEAM if team else 1)

    @cached_attribute
    def point_flops(self) -> float:
        return 6 * self.panels * self.lanes * self.depth_taps

    def product_speed(self, pace: float) -> float:
        return PRODUCT * self.taps / (self.taps + pace * TILE_TAPS)

    @classmethod
    def missing(cls, points: int) -> float:
        return MISSING

    def transforming(self, points: int, machine: Machine) -> float:
        operations = OPERATIONS * 2 * points * math.log2(2 * points) * self.lanes
        return 2 * operations / machine.peak(self.problem.dtype)
