"""Tiles of a convolution as a product: gemm_m pixels x gemm_k taps by gemm_k taps x gemm_n filters"""

from __future__ import annotations

from typing import Protocol

from convalgos.core.problem import ConvProblem
from convalgos.gpu.launch.grid import ceil_div

ARITHMETIC = 0.6  # of the peak that a block of full tiles on CUDA cores reaches; estimate


class PixelTile(Protocol):
    """Outputs of a block."""

    @property
    def pixels(self) -> int: ...
    @property
    def filters(self) -> int: ...


def tile_count(problem: ConvProblem, tile: PixelTile) -> int:
    """Tiles that cover the outputs of all groups."""
    tiles = ceil_div(problem.gemm_m, tile.pixels) * ceil_div(problem.gemm_n, tile.filters)
    return tiles * problem.groups
