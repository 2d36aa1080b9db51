"""Strassen's products: 7 products of halves of a matrix product in the place of 8, once or twice.

A 1x1 layer is a product of pixels by filters, summed over channels. Direct sums reach nine tenths of the
arithmetic of a processor there, and can hardly be faster; fewer products can. One level leaves out an eighth
of them, two levels 15 of 64. The sums of filters are made when they are prepared, those of pixels in the
caches, and those of outputs in registers. Wins on 1x1 layers with some hundred channels and filters, where
processors make one product of their widest vectors in a cycle.

Source: Strassen 1969, "Gaussian elimination is not optimal", in Winograd's form; Huang et al., "Strassen's
algorithm reloaded", SC 2016, and Benson and Ballard, arXiv:1409.2908, on fusing and on depth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from convalgos.core.algorithm import PREPARE_CALL, Algorithm, error_of_sums, packing_seconds
from convalgos.core.layouts import BLOCKS, PLAIN
from convalgos.core.machine import Machine
from convalgos.core.plan import Plan
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm import packed_blocking
from convalgos.cpu.gemm.strassen_cut import least_cycles, strassen_cut, takes_stride
from convalgos.cpu.gemm.strassen_plan import StrassenPlan
from convalgos.cpu.runtime.plan import CALL
from convalgos.cpu.runtime.threads import plan_threads

OF_BLOCKS = 0.92  # of the time, in blocks of channels: all that serves these is told so there, on Zen 4
# Seconds a call beyond its sums, as one layer of many whose maps another core holds: layers of 100 us lose
# more in MobileNetV2 and EfficientNet-B0 (0.93 to 1.01 of direct sums, Zen 4) than they gain alone.
AMONG_LAYERS = 5e-6
BETWEEN = 0.06  # longer by this behind other layers, where L2 takes whole lines: ResNeXt-50 on Zen 5
GROWTH = math.sqrt(7)  # of errors by a level, see `error_bound`


@dataclass(frozen=True)
class Strassen(Algorithm):
    """Parts a side: 2 for one level, 4 for two."""

    side: int

    family: ClassVar[str] = "cpu.strassen"
    least_prepare: ClassVar[float] = PREPARE_CALL
    spreads_nan: ClassVar[bool] = True
    equal_bits: ClassVar[bool] = False  # parts of the filters are summed by different products
    reads: ClassVar[tuple[str, ...]] = (*PLAIN, "blocked")
    writes: ClassVar[tuple[str, ...]] = (*PLAIN, "blocked")
    mixes_layouts: ClassVar[bool] = True

    @property
    def variant(self) -> str:
        return f"s{self.side}"

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := super().why_not(problem):
            return reason
        if not problem.is_pointwise or problem.groups > 1 or set(problem.padding) != {(0, 0)}:
            return "multiplies matrices: 1x1 kernels without padding or groups only"
        if not problem.is_plain_product and not takes_stride(problem):
            return "takes a stride in planes whose pixels have their channels next to each other only"
        if not problem.is_empty and self._too_few(problem):
            return (
                f"cuts the pixels of a map in {self.side} parts, and there are "
                f"{math.prod(problem.spatial_out)}"
            )
        return None

    def _too_few(self, problem: ConvProblem) -> bool:
        return math.prod(problem.spatial_out) < self.side

    def cost(self, problem: ConvProblem, machine: Machine) -> float:
        return self._seconds(strassen_cut(problem, self.side)[0], problem, machine)

    def least(self, problem: ConvProblem, machine: Machine) -> float:
        if problem.is_empty or not problem.is_pointwise or problem.groups > 1 or self._too_few(problem):
            return math.inf
        return self._seconds(least_cycles(problem, self.side), problem, machine)

    def _seconds(self, cycles: float, problem: ConvProblem, machine: Machine) -> float:
        share = OF_BLOCKS if problem.y_layout in BLOCKS else 1.0
        sums = packed_blocking.seconds(cycles, problem, machine)
        return CALL + machine.launch + AMONG_LAYERS + share * sums

    def prepare_cost(self, problem: ConvProblem, machine: Machine) -> float:
        return packing_seconds(problem.w_bytes + self.filter_bytes(problem), machine)

    def filter_bytes(self, problem: ConvProblem) -> int:
        if problem.is_empty:
            return 0
        cut = strassen_cut(problem, self.side)[1]
        return cut.panels * cut.passes * cut.pass_bytes

    def seconds_between_layers(
        self, problem: ConvProblem, seconds: float, reading: float, machine: Machine
    ) -> float:
        longer = 1 + BETWEEN * (1 - machine.line_waits)
        return super().seconds_between_layers(problem, longer * seconds, reading, machine)

    def workspace_bytes(self, problem: ConvProblem) -> int:
        if problem.is_empty:
            return 0
        return plan_threads() * strassen_cut(problem, self.side)[1].scratch_bytes

    def error_bound(self, problem: ConvProblem) -> float:
        # Errors of a sum grow as a random walk does, with the size of what is summed so far. Counted in
        # products of two elements that are in it, y[1][0] goes from 0 to 1, from there to 8, to 4 and to 2,
        # each in a half of the channels: the means add up to 14, those of sums without detours to 2.
        levels = self.side.bit_length() - 1
        return GROWTH**levels * error_of_sums(problem)

    def plan(self, problem: ConvProblem) -> Plan:
        return StrassenPlan(problem, self, strassen_cut(problem, self.side)[1])

    def plan_like(self, problem: ConvProblem, known: Plan) -> Plan:
        found = known.on_maps(problem) if isinstance(known, StrassenPlan) else None
        return found or self.plan(problem)

    def why_not_on_maps(self, problem: ConvProblem) -> str | None:
        few = not problem.is_empty and self._too_few(problem)
        return None if problem.is_plain_product and not few else self.why_not(problem)


ALGORITHMS = (Strassen(2), Strassen(4))
