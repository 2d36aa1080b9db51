"""Direct convolution on the GPU: an implicit GEMM on the ordinary units, for every problem and element type.

The convolution of a group is a product of gemm_m pixels x gemm_k taps by gemm_k taps x gemm_n filters. A
block of threads computes a tile of it from shared memory, each thread a small tile in registers; the matrix
of patches is never stored: a table gives, for each tap, its offset in x and its place in the kernel. Sums
are float32 for all types but float64, so results are as exact as the element type allows. It is the one that
always serves, and the judge of other GPU algorithms; it wins on strided layers, on shapes too odd for the
others, and in strict float32 on 1x1.

Source: Chetlur et al. 2014, arXiv:1410.0759 (implicit precomputed GEMM); register tiles as in Volkov and
Demmel 2008.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import ClassVar, NamedTuple

import numpy as np

from convalgos.core.problem import ConvProblem
from convalgos.gpu.compile.module import ELEMENTS, Build
from convalgos.gpu.device import GpuMachine, current
from convalgos.gpu.gemm.tap_table import tap_table, why_not_counted
from convalgos.gpu.launch.kernel_records import DIVISOR, divisor
from convalgos.gpu.launch.plan import GRID_X, NO_BIAS, GpuAlgorithm, GpuPlan, ceil_div, waves
from convalgos.gpu.vendor.verify import appoint

TILE_K = 8  # taps of a step, as in direct.cu
ARITHMETIC = (
    0.6  # of the peak that a block of full tiles reaches: other instructions, waiting for x; estimate
)

# --- shapes ----------------------------------------------------------------------------------


class Tile(NamedTuple):
    """Pixels and filters of a block, and of a thread."""

    m: int
    n: int
    thread_m: int
    thread_n: int

    @property
    def threads(self) -> int:
        return self.m // self.thread_m * (self.n // self.thread_n)


LARGE = (Tile(128, 128, 8, 8), Tile(128, 64, 8, 4))  # whose float64 sums would not fit the registers
SMALL = (Tile(64, 64, 4, 4), Tile(128, 16, 4, 2), Tile(256, 4, 4, 1))
CUT = np.dtype(
    [
        *((name, DIVISOR) for name in ("filter_tiles", "groups", "columns", "rows", "depth")),
        *((name, np.int32) for name in ("taps", "filters_padded")),
    ]
)


def tiles(dtype: str) -> tuple[Tile, ...]:
    return SMALL if dtype == "float64" else LARGE + SMALL


def blocks(problem: ConvProblem, tile: Tile) -> int:
    return ceil_div(problem.gemm_m, tile.m) * ceil_div(problem.gemm_n, tile.n) * problem.groups


def build(tile: Tile, dtype: str, layout: str) -> Build:
    return Build.of(
        "direct.cu",
        element_t=ELEMENTS[dtype],
        TILE_M=tile.m,
        TILE_N=tile.n,
        THREAD_M=tile.thread_m,
        THREAD_N=tile.thread_n,
        CHANNELS_LAST=int(layout == "channels_last"),
    )


# --- the figures for the selector --------------------------------------------------------------


@dataclass(frozen=True)
class Direct(GpuAlgorithm):
    family: ClassVar[str] = "gpu.direct"

    def builds(self):
        for dtype, layout in product(self.dtypes, ("channels_first", "channels_last")):
            yield from (build(tile, dtype, layout) for tile in tiles(dtype))

    def spills(self, build, arch):
        # 64 sums and the taps on their way fill 128 registers, with which two blocks share a multiprocessor.
        large = dict(build.macros)["TILE_N"] == 128 and dict(build.macros)["THREAD_N"] == 8
        return 32 if large and arch != "sm_90a" else 0

    def why_not(self, problem):
        if reason := super().why_not(problem):
            return reason
        if not problem.is_empty and blocks(problem, self.tile(problem, current().figures)) > GRID_X:
            return "needs more blocks than a launch may have"
        return why_not_counted(problem)

    def cost(self, problem, machine):
        tile = self.tile(problem, machine)
        return _compute(problem, tile, machine) + machine.launch

    def error_bound(self, problem):
        # sums of gemm_k products in order: errors grow like a random walk, so 4 sqrt(k) eps covers them
        eps = np.finfo("float64" if problem.dtype == "float64" else "float32").eps
        return (
            float(eps) * (4 * math.sqrt(max(1, problem.gemm_k)) + 2) + (problem.itemsize == 2) * problem.eps
        )

    def tile(self, problem: ConvProblem, machine: GpuMachine) -> Tile:
        """The fastest by prediction."""
        return min(tiles(problem.dtype), key=lambda tile: _compute(problem, tile, machine))

    def plan(self, problem):
        return DirectPlan(problem, self, self.tile(problem, current().figures))


def _compute(problem: ConvProblem, tile: Tile, machine: GpuMachine) -> float:
    """Seconds of the busiest multiprocessor, or of memory."""
    taps = ceil_div(problem.gemm_k, TILE_K) * TILE_K
    rate = machine.peak(problem.dtype) / machine.multiprocessors
    # Each product needs a share of a load from shared memory, and the tap and the bounds of its x.
    reuse = 1 + 1.5 * (1 / tile.thread_m + 1 / tile.thread_n) + 10 * tile.threads / (tile.m * tile.n)
    at_least = 2 if tile.threads * tile.thread_m * tile.thread_n < 128 * 128 else 1  # blocks to hide latency
    busy = max(waves(blocks(problem, tile), machine), at_least)
    arithmetic = busy * tile.m * tile.n * (taps + 16) * 2 * reuse / (rate * ARITHMETIC)
    again = ceil_div(problem.gemm_n, tile.n)  # how often x is read, mostly from L2
    return max(arithmetic, machine.stream(problem.bytes) + machine.stream((again - 1) * problem.x_bytes) / 3)


# --- the plan ----------------------------------------------------------------------------------


class DirectPlan(GpuPlan):
    def __init__(self, problem: ConvProblem, algorithm: Direct, tile: Tile):
        super().__init__(problem, algorithm)
        table = tap_table(problem, TILE_K)  # (taps, 4)
        self._padded = ceil_div(problem.gemm_n, tile.n) * tile.n
        self._taps = self.device.table(table)
        divisors = (self._padded // tile.n, problem.groups, *reversed(problem.as_3d.spatial_out))
        cut = np.array([(*map(divisor, divisors), len(table), self._padded)], CUT)
        self._cut = self.by_value(cut)
        module = build(tile, problem.dtype, problem.layout)
        self._kernel = self.launch(module, "direct", (blocks(problem, tile),), tile.threads)

    def prepare_filter(self, w):
        """(groups, taps, filters_padded), zeros beyond the filters and the taps."""
        p = self.problem
        w = w.reshape(p.groups, p.gemm_n, p.w_shape[1], -1)  # (groups, K/groups, C/groups, T*R*S)
        order = (0, 3, 2, 1) if p.layout == "channels_last" else (0, 2, 3, 1)
        packed = self.device.xp.zeros((p.groups, len(self._taps), self._padded), w.dtype)
        packed[:, : p.gemm_k, : p.gemm_n] = w.transpose(order).reshape(p.groups, p.gemm_k, p.gemm_n)
        return packed

    def run(self, x, w, bias, activation, y, workspace):
        bias = NO_BIAS if bias is None else bias
        self._kernel(x, w, bias, y, self._taps, self.conv[activation is not None], self._cut)


ALGORITHMS = (Direct(),)
appoint(ALGORITHMS[0])
