"""wgrad on the GPU by direct sums, on CUDA cores: for any problem and element type.

The product of `gemm.split_k_weights` in tiles of shared memory and registers, as in `gpu.direct`, with the
pixels in the place of the taps. x and dy are read as they lie, in both layouts, and no patches are stored.
Sums are float32 for all types but float64. It always serves, and wins in strict float32 on all but depthwise
filters.

Never run on hardware. Costs are estimates.

Source: Chetlur et al. 2014, arXiv:1410.0759, whose backward pass for the filter is such a product.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import ClassVar, NamedTuple

import numpy as np

from convalgos.core.problem import LAYOUTS, ConvProblem
from convalgos.gpu.compile.module import ELEMENTS, Build
from convalgos.gpu.device import GpuMachine, current
from convalgos.gpu.gemm.split_k_weights import SplitKWeights, SplitKWeightsPlan, blocks_of_part, read_again
from convalgos.gpu.gemm.tiles import ARITHMETIC
from convalgos.gpu.launch.grid import waves
from convalgos.gpu.launch.plan import GpuPlan

STEP = 8  # pixels, as in direct_weights.cu
START = 16  # pixels whose time a part takes besides its own: to fill the tiles and to write; estimate
# Instructions besides products: for a pixel's place, for a tap of x with its bounds, for a number of dy.
PLACE, TAP, FILTER = 30, 10, 5

# --- shapes ----------------------------------------------------------------------------------


class DirectWeightsTile(NamedTuple):
    """Filters and taps of a block, and of a thread."""

    filters: int
    taps: int
    thread_filters: int
    thread_taps: int

    @property
    def threads(self) -> int:
        return self.filters // self.thread_filters * (self.taps // self.thread_taps)

    @property
    def shared_bytes(self) -> int:
        return 0  # what a block shares is static


# The float64 sums of large tiles would not fit the registers.
LARGE = tuple(DirectWeightsTile(*n) for n in ((128, 128, 8, 8), (64, 128, 4, 8)))
SMALL = tuple(DirectWeightsTile(*n) for n in ((64, 64, 4, 4), (64, 32, 4, 2), (16, 64, 2, 4), (4, 64, 1, 4)))


def direct_weights_build(tile: DirectWeightsTile, dtype: str, layout: str) -> Build:
    return Build.of(
        "direct_weights.cu",
        element_t=ELEMENTS[dtype],
        TILE_F=tile.filters,
        TILE_T=tile.taps,
        THREAD_F=tile.thread_filters,
        THREAD_T=tile.thread_taps,
        CHANNELS_LAST=int(layout == "channels_last"),
    )


# --- the figures for the selector --------------------------------------------------------------


@dataclass(frozen=True)
class DirectWeights(SplitKWeights[DirectWeightsTile]):
    family: ClassVar[str] = "gpu.direct"

    @property
    def variant(self) -> str:
        return "weights"

    def builds(self) -> Iterable[Build]:
        for dtype, layout in product(self.dtypes, LAYOUTS):
            yield from (direct_weights_build(tile, dtype, layout) for tile in _tiles(dtype))

    def tiles(self, problem: ConvProblem) -> tuple[DirectWeightsTile, ...]:
        return _tiles(problem.dtype)

    def step(self, problem: ConvProblem) -> int:
        return STEP

    def summing(
        self, problem: ConvProblem, tile: DirectWeightsTile, parts: int, machine: GpuMachine
    ) -> float:
        """Seconds of the busiest multiprocessor, or of memory."""
        pixels = -(-problem.gemm_m // (STEP * parts)) * STEP + START
        rate = machine.peak(problem.dtype) / machine.multiprocessors
        # Each product needs a share of a load from shared memory, and of what brings a step there.
        loads = PLACE / STEP + (TAP * tile.taps + FILTER * tile.filters) / tile.threads
        sums = tile.thread_filters * tile.thread_taps
        reuse = 1 + 1.5 * (1 / tile.thread_filters + 1 / tile.thread_taps) + loads / sums
        at_least = 2 if tile.threads * sums < 128 * 128 else 1  # blocks to hide latency
        busy = max(waves(blocks_of_part(problem, tile) * parts, machine), at_least)
        arithmetic = busy * tile.filters * tile.taps * pixels * 2 * reuse / (rate * ARITHMETIC)
        return max(arithmetic, machine.stream(problem.bytes) + read_again(problem, tile, machine))

    def error_bound(self, problem: ConvProblem) -> float:
        # Sums of so many products in order, then of parts: errors grow like a random walk, so 4 sqrt(k) eps
        # covers them.
        eps = np.finfo("float64" if problem.dtype == "float64" else "float32").eps
        walk = sum(map(math.sqrt, self.chain(problem)))
        return float(eps) * (4 * walk + 2) + (problem.itemsize == 2) * problem.eps

    def plan(self, problem: ConvProblem) -> GpuPlan:
        tile, parts = self.geometry(problem, current().figures)
        return SplitKWeightsPlan(
            problem,
            self,
            direct_weights_build(tile, problem.dtype, problem.layout),
            "direct_weights",
            tile,
            parts,
        )


def _tiles(dtype: str) -> tuple[DirectWeightsTile, ...]:
    return SMALL if dtype == "float64" else LARGE + SMALL


ALGORITHMS = (DirectWeights(),)
