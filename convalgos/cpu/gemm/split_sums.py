"""Direct convolution of float32 that are split into three terms each, for matrix tiles (AMX)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from convalgos.core.algorithm import Algorithm, error_of_sums, packing_seconds
from convalgos.core.errors import Unsupported
from convalgos.core.machine import Machine, cache_sizes
from convalgos.core.plan import Plan
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm.split_cut import (
    SplitCut,
    least_split_seconds,
    split_cut,
    split_cut_like,
    split_seconds,
    why_not_split,
)
from convalgos.cpu.gemm.split_forms import SplitForm
from convalgos.cpu.gemm.split_plan import SplitSumsPlan
from convalgos.cpu.runtime.threads import SingleThreaded, plan_threads

# Times the seconds where other layers run in turn, if direct sums of float32 take once. This and all
# `filter_waits`: Xeon (AMX), 2,700 runs of layers, each behind one that wrote its x.
BETWEEN_LAYERS = 1.05


@dataclass(frozen=True)
class SplitSums(SingleThreaded, Algorithm):
    """What algorithms have in common that split float32 into terms of some form."""

    form: ClassVar[SplitForm]
    dtypes: ClassVar[tuple[str, ...]] = ("float32",)
    reads: ClassVar[tuple[str, ...]] = ("channels_last", "blocked")
    writes: ClassVar[tuple[str, ...]] = ("channels_last", "blocked")
    mixes_layouts: ClassVar[bool] = True
    filter_waits: ClassVar[float] = 1.0

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := super().why_not(problem) or why_not_split(problem, self.form):
            return reason
        if problem.groups > 1:
            return "takes groups=1 only"
        if problem.is_empty:
            return "computes no maps without elements"
        if self._cut(problem).scratch_bytes > cache_sizes()[1]:
            return "takes rows of maps of which three terms each have room in L2 only"
        return None

    def cost(self, problem: ConvProblem, machine: Machine) -> float:
        return split_seconds(problem, machine, self.form)

    def least(self, problem: ConvProblem, machine: Machine) -> float:
        return least_split_seconds(problem, machine, self.form)

    def prepare_cost(self, problem: ConvProblem, machine: Machine) -> float:
        split = packing_seconds(self.filter_bytes(problem), machine, self.form.packing)
        return super().prepare_cost(problem, machine) + split

    def filter_bytes(self, problem: ConvProblem) -> int:
        return self.form.filter_bytes(problem.as_3d)

    def seconds_between_layers(
        self, problem: ConvProblem, seconds: float, reading: float, machine: Machine
    ) -> float:
        return super().seconds_between_layers(problem, BETWEEN_LAYERS * seconds, reading, machine)

    def workspace_bytes(self, problem: ConvProblem) -> int:
        return plan_threads() * self._cut(problem).scratch_bytes

    def error_bound(self, problem: ConvProblem) -> float:
        return error_of_sums(problem)

    def plan(self, problem: ConvProblem) -> SplitSumsPlan:
        return SplitSumsPlan(problem, self, self._cut(problem))

    def plan_like(self, problem: ConvProblem, known: Plan) -> Plan:
        if isinstance(known, SplitSumsPlan) and (cut := split_cut_like(problem, known.cut)):
            return known.in_cut(problem, cut)
        if reason := self.why_not(problem):
            raise Unsupported(f"{self.id} cannot serve {problem}: {reason}")
        return self.plan(problem)

    def why_not_on_maps(self, problem: ConvProblem) -> str | None:
        return None  # `plan_like` tells

    def _cut(self, problem: ConvProblem) -> SplitCut:
        return split_cut(problem, self.form)
