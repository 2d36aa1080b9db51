"""What float32 are split into for matrix tiles: three bfloat16, or three digits of eight bits."""

from __future__ import annotations

import math
from dataclasses import dataclass

from convalgos.core.allocator import whole_lines
from convalgos.core.machine import Machine
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm.channel_scales import LAID, scale_bytes
from convalgos.cpu.gemm.split_terms import CHANNELS, TERMS
from convalgos.cpu.gemm.word_cost import word_peak
from convalgos.cpu.gemm.word_tiles import ENGINES, Engine

LANES = 16  # filters of a matrix tile


@dataclass(frozen=True)
class SplitForm:
    """Cycles are of a thread in which float32 has its peak."""

    engine: Engine
    dtype: str  # of a term
    channels: int  # of an entry: what a matrix tile has in a row
    products: int  # of terms, for one of float32, in most layers
    sums: int  # of 32 bits that an output has, until its products are summed
    scaled: bool  # whether terms are whole numbers, of which each filter has its own unit
    waiting: float  # times the products of matrix tiles, as they wait for loads
    split: float  # to split two vectors of a pixel
    output: float  # of a vector of outputs
    packing: float  # bytes of terms that a filter is split into in a second

    def filter_bytes(self, p: ConvProblem) -> int:
        """Of the three terms of a filter, and of its units and scales."""
        filters = -(-p.K // LANES) * LANES
        filled = -(-p.C // self.channels) * self.channels * filters
        nbytes = 64 // self.channels * TERMS * filled * math.prod(p.kernel)
        if self.scaled:  # and spreads
            nbytes += filters * 4 + whole_lines(filters // LANES * 8) + scale_bytes(p.C)
        return int(nbytes)

    @property
    def laid(self) -> tuple[str, ...]:
        """What there is to tell of how filters are laid (`FilterForm`)."""
        return (LAID,) if self.scaled else ()

    def peak(self, machine: Machine) -> float:
        """Operations on terms in a second."""
        return word_peak(self.engine, self.dtype, machine)

    def product_cycles(self, machine: Machine) -> tuple[float, float]:
        """Cycles of a thread in a second, and those of the products of two matrix tiles."""
        rate = machine.peak_float32 / machine.threads / (4 * LANES)
        operations = 2 * 16 * LANES * self.channels
        return rate, rate * operations * machine.threads / self.peak(machine)


# Xeon (Sapphire Rapids), 616 layers of one to eight images
BRAIN_FLOATS = SplitForm(ENGINES["amx", "bfloat16"], "bfloat16", CHANNELS, 6, 1, False, 1.02, 23.0, 8.4, 12e9)
DIGITS = SplitForm(ENGINES["amx", "int8"], "int8", 2 * CHANNELS, 6, 4, True, 1.6, 16.0, 14.0, 5e9)
