"""Boxes of tiles that are rounded to 8 bits for their products."""

from __future__ import annotations

from convalgos.core.allocator import whole_lines
from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.machine import Machine, cache_sizes
from convalgos.cpu.tiled import quantised_products
from convalgos.cpu.tiled.short_schedule import ShortBoxSchedule

BYTES = 4.0  # speed of products of bytes over float32
SPILL = 0.15  # slower by this for each L2 that a box fills: transforms are more of the time than elsewhere
FETCH = 4.0  # tiles computed in the time that a thread reads filters that L2 does not keep


class ByteBoxSchedule(ShortBoxSchedule):
    """V of 16-bit integers, which products round to 8 bits; U of 8 bits; M of float32."""

    @cached_attribute
    def slice_taps(self) -> int:
        return self.v_row if self.phases > 1 else -(-self.problem.w_shape[1] // 4) * 4

    @cached_attribute
    def point_bytes(self) -> int:
        """With what sums begin with, and the scales of filters."""
        taps = self.problem.kernel[0] * (self.slice_taps + 4)
        return self.panels * self.panel * (taps + 4)

    @property
    def own_bytes(self) -> int:
        """Where no pixels are, rounded rows of a point and their scales."""
        rows = self.slots * self.slot_tiles + 2 * quantised_products.GROUP
        return max(super().own_bytes, whole_lines(4 * rows) + whole_lines(rows * self.v_row))

    def peak(self, machine: Machine) -> float:
        return BYTES * machine.peak_float32

    @property
    def effort(self) -> float:
        kept = self.team or self.u_bytes + self.box_bytes < cache_sizes()[1]
        return super().effort + (0.0 if kept else FETCH * self.rounds)

    def slowed(self, box_bytes: float, team: bool) -> float:
        filled = box_bytes / (self.threads if team else 1) / cache_sizes()[1]
        return super().slowed(box_bytes, team) + SPILL * min(10.0, filled)
