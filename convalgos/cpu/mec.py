"""Memory-efficient convolution (MEC): columns are lowered, rows are shared by windows that overlap.

im2col writes each input element R*S times. MEC lays out the S columns under an output only; the R rows of a
window then follow one another in the lowered map, and the windows of the outputs below it begin a row later
in the same memory. So the lowered map is about R times smaller, and a row of outputs is one product of
matrices whose rows overlap. The paper claims much less memory than other ways that lower, and more speed,
on phones and servers.

Here our micro-kernel reads the windows through tables, in both layouts. It serves every problem, and beats
im2col where the matrix of patches leaves the caches; `cpu.direct`, which lowers nothing, is as fast or
faster.

Source: Cho and Brand 2017, "MEC: memory-efficient convolution for deep neural network", arXiv:1706.06873.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from convalgos.core.machine import Machine
from convalgos.core.plan import Plan
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm import panels
from convalgos.cpu.gemm.all_products import AllProducts
from convalgos.cpu.gemm.lowered_plan import LoweredPlan, lowered_bytes, lowered_seconds
from convalgos.cpu.gemm.lowering import COLUMNS, lowering


@dataclass(frozen=True)
class Mec(AllProducts):
    family: ClassVar[str] = "cpu.mec"

    def cost(self, problem: ConvProblem, machine: Machine) -> float:
        return lowered_seconds(lowering(problem, COLUMNS), machine)

    def workspace_bytes(self, problem: ConvProblem) -> int:
        return 0 if problem.is_empty else lowered_bytes(lowering(problem, COLUMNS))

    def plan(self, problem: ConvProblem) -> Plan:
        cut = lowering(problem, COLUMNS)
        order = np.argsort(cut.tap_offsets(), kind="stable")  # as the taps lie in memory
        return LoweredPlan(problem, self, cut, order, panels.chunk(problem.gemm_k))


ALGORITHMS = (Mec(),)
