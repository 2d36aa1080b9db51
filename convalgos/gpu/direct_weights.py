"""The gradient of the filter on the GPU by direct sums, on the ordinary units: any problem and element type.

The product of `split_k_weights` in tiles of shared memory and registers, as in `gpu.direct`, with the pixels
in the place of the taps: x and dy are read as they lie, in both layouts, and no patches are stored. Sums are
float32 for all types but float64. It always serves, and wins in strict float32 wherever a filter is no
depthwise one.

Never run on hardware. Costs are estimates.

Source: Chetlur et al. 2014, arXiv:1410.0759, whose backward pass for the filter is such a product.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import ClassVar, NamedTuple

import numpy as np

from convalgos.core.problem import LAYOUTS
from convalgos.gpu.compile.module import ELEMENTS, Build
from convalgos.gpu.device import current
from convalgos.gpu.gemm.split_k_weights import WeightSums, WeightSumsPlan, blocks, read_again
from convalgos.gpu.launch.plan import waves

STEP = 8  # pixels, as in direct_weights.cu
ARITHMETIC = 0.6  # of the peak that a block of full tiles reaches, as in `gpu.direct`; estimate
START = 16  # pixels whose time a part takes besides its own: to fill the tiles and to write; estimate
# Instructions besides products: for a pixel's place, for a tap of x with its bounds, for a number of dy.
PLACE, TAP, FILTER = 30, 10, 5

# --- shapes ----------------------------------------------------------------------------------


class Tile(NamedTuple):
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


LARGE = (Tile(128, 128, 8, 8), Tile(64, 128, 4, 8))  # whose float64 sums would not fit the registers
SMALL = (Tile(64, 64, 4, 4), Tile(64, 32, 4, 2), Tile(16, 64, 2, 4), Tile(4, 64, 1, 4))


def build(tile: Tile, dtype: str, layout: str) -> Build:
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
class DirectWeights(WeightSums):
    family: ClassVar[str] = "gpu.direct"

    @property
    def variant(self):
        return "weights"

    def builds(self):
        for dtype, layout in product(self.dtypes, LAYOUTS):
            yield from (build(tile, dtype, layout) for tile in _tiles(dtype))

    def tiles(self, problem):
        return _tiles(problem.dtype)

    def step(self, problem):
        return STEP

    def summing(self, problem, tile, parts, machine):
        """Seconds of the busiest multiprocessor, or of memory."""
        pixels = -(-problem.gemm_m // (STEP * parts)) * STEP + START
        rate = machine.peak(problem.dtype) / machine.multiprocessors
        # Each product needs a share of a load from shared memory, and of what brings a step there.
        loads = PLACE / STEP + (TAP * tile.taps + FILTER * tile.filters) / tile.threads
        sums = tile.thread_filters * tile.thread_taps
        reuse = 1 + 1.5 * (1 / tile.thread_filters + 1 / tile.thread_taps) + loads / sums
        at_least = 2 if tile.threads * sums < 128 * 128 else 1  # blocks to hide latency
        busy = max(waves(blocks(problem, tile) * parts, machine), at_least)
        arithmetic = busy * tile.filters * tile.taps * pixels * 2 * reuse / (rate * ARITHMETIC)
        return max(arithmetic, machine.stream(problem.bytes) + read_again(problem, tile, machine))

    def error_bound(self, problem):
        # Sums of so many products in order, then of parts: errors grow like a random walk, so 4 sqrt(k) eps
        # covers them.
        eps = np.finfo("float64" if problem.dtype == "float64" else "float32").eps
        walk = sum(map(math.sqrt, self.chain(problem)))
        return float(eps) * (4 * walk + 2) + (problem.itemsize == 2) * problem.eps

    def plan(self, problem):
        tile, parts = self.geometry(problem, current().figures)
        return WeightSumsPlan(
            problem, self, build(tile, problem.dtype, problem.layout), "direct_weights", tile, parts
        )


def _tiles(dtype: str) -> tuple[Tile, ...]:
    return SMALL if dtype == "float64" else LARGE + SMALL


ALGORITHMS = (DirectWeights(),)
