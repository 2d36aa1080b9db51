"""Boxes of tiles whose products are of 16-bit integers, with sums of 32 bits."""

from __future__ import annotations

from typing import ClassVar

from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.machine import Machine
from convalgos.cpu.compile.code_generation import has
from convalgos.cpu.gemm import panels
from convalgos.cpu.tiled.cost import BoxSchedule
from convalgos.cpu.vectors import simd

PREPARE = 0.22e9  # bytes of a filter that NumPy transforms in a second; Xeon (Sapphire Rapids)
# Speed of products of pairs of 16-bit integers over float32: in one instruction, or with one to add them up.
IN_ONE, IN_TWO, IN_TWO_WIDE = 2.0, 1.5, 1.0


def sums_words() -> bool:
    """Whether one instruction multiplies pairs and adds them to sums."""
    return has("avx512vnni", "avx512vl") or has("avxvnni")


class ShortBoxSchedule(BoxSchedule):
    """Pixels are gathered as vectors of 16-bit integers; V and U have as many bits, and M twice as many."""

    preparing: ClassVar[float] = PREPARE

    @property
    def size(self) -> int:
        return 2

    @property
    def v_size(self) -> int:
        return 2

    @property
    def sum_size(self) -> int:
        return 4

    @cached_attribute
    def lanes(self) -> int:
        return simd.lanes(2)

    @property
    def sum_lanes(self) -> int:
        return simd.lanes(4)

    @cached_attribute
    def vectors(self) -> int:
        return panels.tile_for(self.problem.gemm_n, 4)[1]

    @cached_attribute
    def slice_taps(self) -> int:
        """Channels of a row of V that are multiplied: those of one phase end with a whole word."""
        return self.v_row if self.phases > 1 else -(-self.problem.w_shape[1] // 2) * 2

    def peak(self, machine: Machine) -> float:
        wide = simd.vector_bytes() == 64
        return machine.peak_float32 * (IN_ONE if sums_words() else IN_TWO_WIDE if wide else IN_TWO)
