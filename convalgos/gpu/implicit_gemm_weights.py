"""The gradient of the filter by an implicit GEMM on tensor cores: float16, bfloat16, TF32 and its triple.

The product of `split_k_weights` in fragments of 16 x 8 sums that a warp computes with one instruction, in the
arithmetic that `gemm.mma` tells of. x and dy are read as they lie, in both layouts: whole 16 bytes where
channels lie last and are multiples of them, single elements otherwise. Wins on dense layers of these types.

Never run on hardware: only in an emulation of what NVIDIA documents. Costs are estimates.

Source: NVIDIA's PTX ISA, mma.sync and ldmatrix; the product is that of Chetlur et al. 2014, arXiv:1410.0759.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from convalgos.core.problem import ConvProblem
from convalgos.gpu.compile.module import ELEMENTS, Build
from convalgos.gpu.device import current
from convalgos.gpu.gemm.mma import COPIED, GATHERED, LOADS, MATHS, TensorCores
from convalgos.gpu.gemm.split_k_weights import WeightSums, WeightSumsPlan, blocks, read_again
from convalgos.gpu.launch.plan import ceil_div, waves

ROW_BYTES = 128  # pixels of a step times bytes of an element, as in implicit_gemm_weights.cu
START = 3  # steps whose time a part takes besides its own: to fill the stages and to write; estimate
NARROW = 0.85  # of the speed, with tiles that read more of shared memory for a product; estimate
PRODUCTS = {"half": 1 / 16, "tf32": 1 / 8, "3xtf32": 3 / 8}  # instructions that add to a sum, by pixel

# --- shapes ----------------------------------------------------------------------------------


class Tile(NamedTuple):
    """Filters and taps of a block."""

    filters: int
    taps: int

    @property
    def threads(self) -> int:
        return 128 if self == (64, 64) else 256

    @property
    def shared_bytes(self) -> int:
        """Two stages of rows of filters and of taps, each 8 elements off the banks of the row before."""
        return 2 * ROW_BYTES * (self.filters + self.taps + 16)


TILES = (Tile(128, 128), Tile(64, 128), Tile(64, 64))


def is_copied(problem: ConvProblem) -> bool:
    """Whether whole 16 bytes of x and of dy lie together."""
    each = 16 // problem.itemsize
    whole = problem.w_shape[1] % each == 0 and problem.gemm_n % each == 0
    return problem.layout == "channels_last" and whole


def build(math_: str, dtype: str, tile: Tile, layout: str, copied: bool) -> Build:
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
class ImplicitGemmWeights(TensorCores, WeightSums):
    family: ClassVar[str] = "gpu.implicit_gemm"

    @property
    def variant(self):
        return f"weights_{self.math}"

    def builds(self):
        for dtype in self.dtypes:
            for layout, copied in LOADS:
                for tile in self._tiles(layout, copied):
                    yield build(self.math, dtype, tile, layout, copied)

    def tiles(self, problem):
        return self._tiles(problem.layout, is_copied(problem))

    def _tiles(self, layout: str, copied: bool) -> tuple[Tile, ...]:
        """Few channels that do not lie in whole 16 bytes are rare channels last: one tile serves them."""
        if layout == "channels_last" and not copied:
            return TILES[-1:]
        return TILES[1:] if self.math == "3xtf32" else TILES

    def step(self, problem):
        return ROW_BYTES // problem.itemsize

    def summing(self, problem, tile, parts, machine):
        """Seconds of the busiest multiprocessor, or of memory."""
        pixels = (ceil_div(ceil_div(problem.gemm_m, self.step(problem)), parts) + START) * self.step(problem)
        share = (COPIED if is_copied(problem) else GATHERED) * (1 if tile == TILES[0] else NARROW)
        at_least = 2 if tile == TILES[-1] else 1  # blocks to hide latency
        busy = max(waves(blocks(problem, tile) * parts, machine), at_least)
        arithmetic = busy * 2 * tile.filters * tile.taps * pixels / self.rate(share, machine)
        return max(arithmetic, machine.stream(problem.bytes) + read_again(problem, tile, machine))

    def error_bound(self, problem):
        # Sums in a part: a random walk, at twice the error of rounding. Tensor cores cut sums off, and take
        # half a unit from them in each product: over very many pixels more than the walk.
        pixels, parts = self.chain(problem)
        cut_off = pixels * PRODUCTS[self.math] / 2
        sums = 2**-23 * (8 * math.sqrt(pixels) + 4 * math.sqrt(parts) + cut_off + 8)
        return sums + self.rounding(problem)

    def plan(self, problem):
        tile, parts = self.geometry(problem, current().figures)
        module = build(self.math, problem.dtype, tile, problem.layout, is_copied(problem))
        return WeightSumsPlan(problem, self, module, "implicit_gemm_weights", tile, parts)


ALGORITHMS = tuple(ImplicitGemmWeights(name) for name in MATHS if name != "double")
