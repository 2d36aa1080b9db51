"""wgrad by an implicit GEMM on tensor cores: float16, bfloat16, TF32 and TF32 in three products.

The product of `gemm.split_k_weights` in fragments of 16 x 8 sums that a warp computes with one mma
instruction, in the arithmetic that `gemm.mma` tells of. x and dy are read as they lie, in both layouts: in
chunks of 16 bytes where channels lie last and are multiples of them, in single elements otherwise. Wins on
dense layers of these types.

Never run on hardware: only in an emulation of what NVIDIA documents. Costs are estimates.

Source: NVIDIA's PTX ISA, mma.sync and ldmatrix; the product is that of Chetlur et al. 2014, arXiv:1410.0759.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from convalgos.core.problem import ConvProblem
from convalgos.gpu.compile.module import ELEMENTS, Build
from convalgos.gpu.device import GpuMachine, current
from convalgos.gpu.gemm.mma import COPIED, GATHERED, LOADS, MATHS, STEP_BYTES, TensorCores, is_copied
from convalgos.gpu.gemm.split_k_weights import (
    SplitKWeights,
    SplitKWeightsPlan,
    WeightsTile,
    blocks_of_part,
    read_again,
)
from convalgos.gpu.launch.grid import ceil_div, waves
from convalgos.gpu.launch.plan import GpuPlan

START = 3  # steps whose time a part takes besides its own: to fill the stages and to write; estimate
NARROW = 0.85  # of the speed, with tiles that read more of shared memory for a product; estimate
PRODUCTS = {"half": 1 / 16, "tf32": 1 / 8, "3xtf32": 3 / 8}  # instructions that add to a sum, by pixel

# --- shapes ----------------------------------------------------------------------------------


class ImplicitGemmWeightsTile(NamedTuple):
    """Filters and taps of a block."""

    filters: int
    taps: int

    @property
    def threads(self) -> int:
        return 128 if self == (64, 64) else 256

    @property
    def shared_bytes(self) -> int:
        """Two stages of rows of filters and of taps, each 8 elements off the banks of the row before."""
        return 2 * STEP_BYTES * (self.filters + self.taps + 16)


IMPLICIT_GEMM_WEIGHTS_TILES = tuple(ImplicitGemmWeightsTile(*n) for n in ((128, 128), (64, 128), (64, 64)))


def _is_copied(problem: ConvProblem) -> bool:
    """Of x and of dy."""
    return is_copied(problem, problem.w_shape[1], problem.gemm_n)


def implicit_gemm_weights_build(
    math_: str, dtype: str, tile: WeightsTile, layout: str, copied: bool
) -> Build:
    return Build.of(
        "implicit_gemm_weights.cu",
        element_t=ELEMENTS[dtype],
        MATH=MATHS[math_],
        TILE_F=tile.filters,
        TILE_T=tile.taps,
        CHANNELS_LAST=int(layout == "channels_last"),
        VECTOR=int(copied),
    )


# --- the figures for the selector --------------------------------------------------------------


@dataclass(frozen=True)
class ImplicitGemmWeights(TensorCores, SplitKWeights[ImplicitGemmWeightsTile]):
    family: ClassVar[str] = "gpu.implicit_gemm"

    @property
    def variant(self) -> str:
        return f"weights_{self.math}"

    def builds(self) -> Iterable[Build]:
        for dtype in self.dtypes:
            for layout, copied in LOADS:
                for tile in self._tiles(layout, copied):
                    yield implicit_gemm_weights_build(self.math, dtype, tile, layout, copied)

    def tiles(self, problem: ConvProblem) -> tuple[ImplicitGemmWeightsTile, ...]:
        return self._tiles(problem.layout, _is_copied(problem))

    def _tiles(self, layout: str, copied: bool) -> tuple[ImplicitGemmWeightsTile, ...]:
        """Few channels that do not lie in whole 16 bytes are rare channels last: one tile serves them."""
        if layout == "channels_last" and not copied:
            return IMPLICIT_GEMM_WEIGHTS_TILES[-1:]
        return IMPLICIT_GEMM_WEIGHTS_TILES[1:] if self.math == "3xtf32" else IMPLICIT_GEMM_WEIGHTS_TILES

    def step(self, problem: ConvProblem) -> int:
        return STEP_BYTES // problem.itemsize

    def summing(
        self, problem: ConvProblem, tile: ImplicitGemmWeightsTile, parts: int, machine: GpuMachine
    ) -> float:
        """Seconds of the busiest multiprocessor, or of memory."""
        pixels = (ceil_div(ceil_div(problem.gemm_m, self.step(problem)), parts) + START) * self.step(problem)
        large, *_, small = IMPLICIT_GEMM_WEIGHTS_TILES
        share = (COPIED if _is_copied(problem) else GATHERED) * (1 if tile == large else NARROW)
        at_least = 2 if tile == small else 1  # blocks to hide latency
        busy = max(waves(blocks_of_part(problem, tile) * parts, machine), at_least)
        arithmetic = busy * 2 * tile.filters * tile.taps * pixels / self.rate(share, machine)
        return max(arithmetic, machine.stream(problem.bytes) + read_again(problem, tile, machine))

    def error_bound(self, problem: ConvProblem) -> float:
        # Sums in a part: a random walk, at twice the error of rounding. Tensor cores cut sums off, and take
        # half a unit from them in each product: over very many pixels more than the walk.
        pixels, parts = self.chain(problem)
        cut_off = pixels * PRODUCTS[self.math] / 2
        sums = 2**-23 * (8 * math.sqrt(pixels) + 4 * math.sqrt(parts) + cut_off + 8)
        return sums + self.rounding(problem)

    def plan(self, problem: ConvProblem) -> GpuPlan:
        tile, parts = self.geometry(problem, current().figures)
        layout, copied = problem.layout, _is_copied(problem)
        module = implicit_gemm_weights_build(self.math, problem.dtype, tile, layout, copied)
        return SplitKWeightsPlan(problem, self, module, "implicit_gemm_weights", tile, parts)


ALGORITHMS = tuple(ImplicitGemmWeights(name) for name in MATHS if name in ("half", "tf32", "3xtf32"))
