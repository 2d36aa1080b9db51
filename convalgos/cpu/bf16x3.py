"""Direct convolution of float32 as sums of three bfloat16, on matrix tiles (AMX).

x = x1 + x2 + x3 and w = w1 + w2 + w3, each term a bfloat16: 24 bits of float32 are three times eight. Of the
nine products x1 w1, x1 w2, x2 w1, x2 w2, x1 w3 and x3 w1 are summed, in float32; the others are below its
rounding, so that the result is as exact as that of direct convolution. Matrix tiles multiply bfloat16 at 13
times the rate of float32; six products for one leave twice the peak of float32. Wins on 1x1 and strided
layers, and on 3x3 layers of small maps. Numbers below 1e-33 lose the last bits, as tiles take denormal
numbers for zeros.

Source: Henry, Tang and Heinecke 2019, "Leveraging the bfloat16 artificial intelligence datatype for
higher-precision computations" (arXiv:1904.06376).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from convalgos.core.algorithm import PACKING, PREPARE_CALL, Algorithm, error_of_sums
from convalgos.core.errors import Unsupported
from convalgos.core.machine import Machine, cache_sizes
from convalgos.core.plan import Plan
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm.split_cut import (
    filter_bytes,
    least_split_seconds,
    split_cut,
    split_cut_like,
    split_seconds,
    why_not_split,
)
from convalgos.cpu.gemm.split_plan import BrainSumsPlan
from convalgos.cpu.runtime.threads import SingleThreaded, plan_threads

# Times the seconds where other layers run in turn, if direct sums of float32 take once. This and all
# `filter_waits`: Xeon (AMX), 2,700 runs of layers, each behind one that wrote its x.
BETWEEN_LAYERS = 1.05


@dataclass(frozen=True)
class BrainSums(SingleThreaded, Algorithm):
    family: ClassVar[str] = "cpu.bf16x3"
    dtypes: ClassVar[tuple[str, ...]] = ("float32",)
    reads: ClassVar[tuple[str, ...]] = ("channels_last", "blocked")
    writes: ClassVar[tuple[str, ...]] = ("channels_last", "blocked")
    mixes_layouts: ClassVar[bool] = True
    filter_waits: ClassVar[float] = 1.0

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := super().why_not(problem) or why_not_split(problem):
            return reason
        if problem.groups > 1:
            return "takes groups=1 only"
        if problem.is_empty:
            return "computes no maps without elements"
        if split_cut(problem).scratch_bytes > cache_sizes()[1]:
            return "takes rows of maps of which three bfloat16 each have room in L2 only"
        return None

    def cost(self, problem: ConvProblem, machine: Machine) -> float:
        return split_seconds(problem, machine)

    def least(self, problem: ConvProblem, machine: Machine) -> float:
        return least_split_seconds(problem, machine)

    def prepare_cost(self, problem: ConvProblem, machine: Machine) -> float:
        split = PREPARE_CALL + self.filter_bytes(problem) / PACKING
        return super().prepare_cost(problem, machine) + split

    def filter_bytes(self, problem: ConvProblem) -> int:
        return filter_bytes(problem.as_3d)

    def seconds_between_layers(self, seconds: float, reading: float) -> float:
        return super().seconds_between_layers(BETWEEN_LAYERS * seconds, reading)

    def workspace_bytes(self, problem: ConvProblem) -> int:
        return plan_threads() * split_cut(problem).scratch_bytes

    def error_bound(self, problem: ConvProblem) -> float:
        return error_of_sums(problem)

    def plan(self, problem: ConvProblem) -> BrainSumsPlan:
        return BrainSumsPlan(problem, self, split_cut(problem))

    def plan_like(self, problem: ConvProblem, known: Plan) -> Plan:
        if isinstance(known, BrainSumsPlan) and (cut := split_cut_like(problem, known.cut)):
            return known.in_cut(problem, cut)
        if reason := self.why_not(problem):
            raise Unsupported(f"{self.id} cannot serve {problem}: {reason}")
        return self.plan(problem)

    def why_not_on_maps(self, problem: ConvProblem) -> str | None:
        return None  # `plan_like` tells


ALGORITHMS = (BrainSums(),)
