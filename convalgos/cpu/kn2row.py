"""kn2row, accumulating: a product of matrices for each tap of the kernel, added to the outputs that it moves
to.

y[n, :, o] += w[:, :, tap] @ x[n, :, o * stride + tap * dilation]: a 1x1 convolution for each tap. Nothing
is laid out twice, at the price of reading and writing all sums once for each tap. The paper claims the
speed of the best ways that lay out patches, for a fraction of their memory, and often more on several
threads.

Here a product sums the channels of one tap in registers, for a panel of filters and as many pixels as a
part of L2 holds sums of; then comes the next tap. Padded maps are copied once with their border, others are
read in place, where each tap asks for all their lines anew. From 64 channels on it is nearly as fast as
`cpu.direct`, which keeps its sums in registers over all taps; with few channels the sums are moved more often
than they are added to.

Source: Anderson et al. 2017, "Low-memory GEMM-based convolution algorithms for deep neural networks",
arXiv:1709.03395.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from convalgos.core.machine import Machine, cache_sizes
from convalgos.core.plan import Plan
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm import dealt_panels, panels
from convalgos.cpu.gemm.all_products import AllProducts
from convalgos.cpu.gemm.lowered_plan import PIECE_PIXELS, LoweredPlan, lowered_bytes, lowered_seconds
from convalgos.cpu.gemm.lowering import lowering
from convalgos.cpu.vectors import simd

TAP = 6  # channels summed in the time in which the sums of a tap are read and written; Xeon (Granite Rapids)


def piece_pixels(problem: ConvProblem) -> int:
    """Pixels whose sums, of a panel of filters, stay in L2 beside the channels of x."""
    lanes = simd.lanes(problem.itemsize)
    count = dealt_panels.panel_tile(problem.gemm_n, problem.itemsize)[1]
    width = -(-problem.gemm_n // lanes // count) * lanes * problem.itemsize  # bytes of a pixel
    return max(PIECE_PIXELS, cache_sizes()[1] // 16 // width)


@dataclass(frozen=True)
class Kn2row(AllProducts):
    family: ClassVar[str] = "cpu.kn2row"

    def cost(self, problem: ConvProblem, machine: Machine) -> float:
        cut, sums = lowering(problem, None), panels.product_seconds(problem, machine)
        anew = cut.in_place and panels.windows_share_lines(problem)  # lines, for each tap
        again = TAP / problem.w_shape[1] + (panels.crowding(problem) - 1 if anew else 0.0)
        return lowered_seconds(cut, machine) + again * sums

    def workspace_bytes(self, problem: ConvProblem) -> int:
        return 0 if problem.is_empty else lowered_bytes(lowering(problem, None), piece_pixels(problem))

    def plan(self, problem: ConvProblem) -> Plan:
        p = problem
        order = (
            np.arange(p.gemm_k).reshape(p.w_shape[1], -1).T.ravel()
        )  # all channels of a tap, then the next
        chunk = panels.chunk(p.w_shape[1])
        return LoweredPlan(p, self, lowering(p, None), order, chunk, piece_pixels(p))


ALGORITHMS = (Kn2row(),)
