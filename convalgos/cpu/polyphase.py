"""The gradient of the input of a strided layer, each phase by the algorithm that is the fastest for it.

The gradient falls into a forward convolution of dy for each remainder by the stride, a phase
(`core.backward.polyphase`). Of a 3x3 kernel with stride 2 they have 2x2, 2x1, 1x2 and 1x1 taps: Winograd
saves most on the first, and nothing on the last. Every forward algorithm computes all phases of a gradient by
itself (`BackwardData`); here each phase is planned by the planner, as a problem of its own.

It wins where phases differ and are large: 3x3 layers with stride 2 and a hundred channels and more. With
fewer, all phases as one convolution are faster, or slices that stay in the caches; those are forms of the
forward algorithms.

dy (N, K, *spatial_out), w (K, C/groups, *kernel) -> dx (N, C, *spatial)

Source: Shi et al. 2016, arXiv:1609.07009, for the phases; Frigo and Johnson 2005,
doi:10.1109/JPROC.2004.840301, for sub-problems that are planned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from convalgos.core.algorithm import Algorithm
from convalgos.core.machine import Machine
from convalgos.core.plan import Plan
from convalgos.core.planner import ChildPick, Composite
from convalgos.core.problem import ConvProblem
from convalgos.cpu.backward.filter_rotation import rotation_seconds
from convalgos.cpu.backward.phases_plan import PhasesPlan, interleaving_seconds, phases_bytes
from convalgos.cpu.backward.subproblems import distinct_forwards, subproblems

# Xeon, AVX-512
SHOWN = 0.65  # of the time in which operands come into L2 again, which the sums do not hide
MIXED = 1.04  # times what phases take by themselves, where they go to several algorithms


@dataclass(frozen=True)
class Polyphase(Composite):
    """Phases apart, each by an algorithm of its own."""

    family: ClassVar[str] = "cpu.polyphase"
    directions: ClassVar[tuple[str, ...]] = ("backward_data",)

    def why_none(self, problem: ConvProblem) -> str | None:
        if problem.is_empty or max(problem.stride) == 1:
            return "takes the phases of a stride apart, and here there is one phase"
        return None if len(self.kinds(problem)) > 1 else "all phases of this problem are of one kind"

    def kinds(self, problem: ConvProblem) -> Sequence[tuple[ConvProblem, int]]:
        return distinct_forwards(problem, 0.0)

    def _has_kinds(self, problem: ConvProblem) -> bool:
        return problem.direction in self.directions and self.why_none(problem) is None

    def within(
        self, problem: ConvProblem, *, workspace_limit: int | None, deterministic: bool, strict_nan: bool
    ) -> Algorithm:
        """Where the fastest need more workspace, what scratch leaves of it is shared by the phases."""
        if workspace_limit is None or self.planner is None or not self._has_kinds(problem):
            return self
        if self.why_not(problem) is None and self.workspace_bytes(problem) <= workspace_limit:
            return self
        kinds = self.kinds(problem)
        left = workspace_limit - phases_bytes(problem, kinds)
        return replace(self, planner=self.planner.limited(max(0, left // len(kinds))))

    # --- the figures for the selector ------------------------------------------------------------

    def cost(self, problem: ConvProblem, machine: Machine) -> float:
        kinds = self.kinds(problem)
        found = [(self.child(f), count) for f, count in kinds]
        passed = problem.x_bytes + sum(count * _bytes(child) for child, count in found)
        if passed > machine.threads * machine.l2_bytes:
            sums = sum(count * _cold_seconds(child, machine) for child, count in found)
            sums += problem.x_bytes / machine.cache_bandwidth  # stores of dx read their lines first
        else:
            sums = sum(count * child.run_s for child, count in found)
        return MIXED * sums + interleaving_seconds(problem, kinds, machine)

    def least(self, problem: ConvProblem, machine: Machine) -> float:
        if not self._has_kinds(problem):
            return math.inf
        return interleaving_seconds(problem, self.kinds(problem), machine)

    def closely(self, problem: ConvProblem, machine: Machine) -> float:
        if self.planner is None:
            return math.inf
        sums = sum(count * self.planner.least(f) for f, count in self.kinds(problem))
        return MIXED * sums + self.least(problem, machine)

    def prepare_cost(self, problem: ConvProblem, machine: Machine) -> float:
        phases = sum(count for _, count in self.kinds(problem))
        return super().prepare_cost(problem, machine) + rotation_seconds(problem, phases, machine)

    def filter_bytes(self, problem: ConvProblem) -> int:
        found = ((self.child(f), count) for f, count in self.kinds(problem))
        return sum(count * child.algorithm.filter_bytes(child.computed) for child, count in found)

    def workspace_bytes(self, problem: ConvProblem) -> int:
        kinds = self.kinds(problem)
        found = [self.child(f) for f, _ in kinds]
        return phases_bytes(problem, kinds) + sum(f.algorithm.workspace_bytes(f.computed) for f in found)

    def plan(self, problem: ConvProblem) -> Plan:
        plans = {f: self.child(f).plan() for f, _ in self.kinds(problem)}
        return PhasesPlan(problem, self, subproblems(problem, 0.0), plans)


def _bytes(child: ChildPick) -> int:
    """Of all that a phase reads and writes."""
    return child.problem.x_bytes + child.problem.y_bytes + child.algorithm.filter_bytes(child.computed)


def _cold_seconds(child: ChildPick, machine: Machine) -> float:
    """The time of a phase that finds nothing of its own in L2, where the other phases were before."""
    filters = child.algorithm.filter_bytes(child.computed) / machine.cache_bandwidth
    if (held := _bytes(child)) > machine.threads * machine.l2_bytes:  # by itself it finds no more
        return max(child.run_s, filters)
    return max(child.run_s + SHOWN * held / machine.cache_bandwidth, filters)


ALGORITHMS = (Polyphase(),)
