"""The gradient of the filter of a linear layer: the sum of outer products, along rows of channels.

dw[k][:] = sum over pixels m of dy[m][k] * x[m][:]: where the channels of a pixel lie side by side, this is a
1x1 convolution of one image whose channels are the pixels, whose row of pixels are the channels of x, and
whose filters are dy. So it is summed as `cpu.direct.pixels` sums: a block of columns of x is copied into
scratch once, a tile of filters of dy is packed there as it is needed, and rows of dw are written as they lie.
Wins on linear layers, whose maps are one pixel, and on 1x1 layers of few pixels in channels_last;
`cpu.direct.channels`, which adds block after block of pixels to dw, wins where there are many.

x (N, *spatial, C), dy (N, *spatial, K) -> dw (K, C)

Source: the outer-product form of Goto and van de Geijn, "Anatomy of high-performance matrix multiplication"
(2008), its short panel-panel product.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from convalgos.core.algorithm import Algorithm, error_of_sums
from convalgos.core.machine import Machine
from convalgos.core.plan import Plan
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm import packed_blocking
from convalgos.cpu.gemm.row_blocking import row_blocking
from convalgos.cpu.gemm.row_cost import least_row_seconds, row_seconds
from convalgos.cpu.gemm.row_plan import PixelRowsPlan, row_scratch_bytes
from convalgos.cpu.runtime.threads import plan_threads

MOST_PIXELS = 2048  # whose tile of x and of dy still lies in L2
# Xeon (Sapphire Rapids), 40 linear layers of 1 to 1024 pixels
TURN_CYCLES = 3.0  # to pack a tap of a tile of filters; an estimate
WRITTEN = 0.7  # of the time in which dw is written, which few sums do not hide
DEEP = 8192  # pixels with which sums take twice as long: 90 1x1 layers in channels_last

# --- plan ------------------------------------------------------------------------------------


@lru_cache(1024)
def _forward(problem: ConvProblem) -> ConvProblem:
    """The convolution of one image of which dw is the output: pixels as channels, channels as a row."""
    p = problem
    return ConvProblem((1, p.gemm_m, 1, p.C), (p.K, p.gemm_m, 1, 1), dtype=p.dtype)


class DirectOuterPlan(PixelRowsPlan):
    reads_filter = True

    def __init__(self, problem: ConvProblem, algorithm: Algorithm):
        super().__init__(problem, algorithm, _forward(problem), weight_step=problem.K)
        self.strided_batch = False  # images are channels of what is computed

    def pack_filter(self, w: np.ndarray) -> np.ndarray:
        """dy itself, whose tiles the kernel packs."""
        return w


# --- the figures for the selector --------------------------------------------------------------


@dataclass(frozen=True)
class DirectOuter(Algorithm):
    family: ClassVar[str] = "cpu.direct"
    directions: ClassVar[tuple[str, ...]] = ("backward_weights",)

    @property
    def variant(self) -> str:
        return "outer"

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := super().why_not(problem):
            return reason
        if not problem.is_plain_product or problem.groups > 1:
            return "sums outer products of pixels, which a 1x1 filter without stride, padding or groups has"
        if problem.layout == "channels_first" and math.prod(problem.spatial) > 1:
            return "takes rows of channels: those of channels_last, or of maps of one pixel"
        if problem.gemm_m > MOST_PIXELS:
            return f"sums all pixels at once, at most {MOST_PIXELS}, and here there are {problem.gemm_m}"
        return None

    def cost(self, problem: ConvProblem, machine: Machine) -> float:
        forward = _forward(problem)
        cut = row_blocking(forward)
        turned = math.prod(cut.blocks) * cut.tiles * problem.gemm_m * TURN_CYCLES / machine.threads
        sums = row_seconds(forward, machine) * (1 + problem.gemm_m / DEEP)
        sums += packed_blocking.seconds(turned, forward, machine)
        written = problem.w_bytes * (1 if cut.streams else 2)  # a cached store reads its line first
        return sums + WRITTEN * machine.stream(written, problem.w_bytes)

    def least(self, problem: ConvProblem, machine: Machine) -> float:
        if problem.is_empty or self.why_not(problem):
            return 0.0
        return least_row_seconds(_forward(problem), machine)

    def prepare_cost(self, problem: ConvProblem, machine: Machine) -> float:
        return 1e-9  # dy is taken as it is

    def workspace_bytes(self, problem: ConvProblem) -> int:
        if problem.is_empty:
            return 0
        return plan_threads() * row_scratch_bytes(row_blocking(_forward(problem)), turns=True)

    def error_bound(self, problem: ConvProblem) -> float:
        return error_of_sums(problem)

    def plan(self, problem: ConvProblem) -> Plan:
        return DirectOuterPlan(problem, self)


ALGORITHMS = (DirectOuter(),)
