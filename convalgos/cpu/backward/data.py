"""The gradient of the input (dgrad) by any forward algorithm: a forward convolution of dy for each phase.

`BackwardData` takes the place of an algorithm where the direction is backward_data. Without a stride it runs
that algorithm once, on dy and the rotated filter, into dx itself. With a stride:

1. the problem is split into sub-problems, one for each phase, or one for all (`subproblems`);
2. these are computed into dx itself by kernels that can leave gaps between their outputs, else into scratch:
   slice by slice where each thread can have slices of its own (`per_thread`), else each sub-problem by all
   threads (`phases_plan`);
3. from scratch, the phases are interleaved into dx (`interleave`).

All sub-problems go to that one algorithm. `cpu/polyphase.py` has each of them planned by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

from convalgos.core.algorithm import Algorithm
from convalgos.core.backward.by_forward import ByForward
from convalgos.core.backward.polyphase import is_whole, phases
from convalgos.core.machine import Machine
from convalgos.core.plan import Plan
from convalgos.core.problem import ConvProblem
from convalgos.cpu.backward import slices
from convalgos.cpu.backward.filter_rotation import rotation_seconds
from convalgos.cpu.backward.per_thread import SlicedPlan
from convalgos.cpu.backward.phases_plan import (
    PhasesPlan,
    interleaving_seconds,
    phases_bytes,
    spreading_seconds,
)
from convalgos.cpu.backward.slices import Slicing, slicing
from convalgos.cpu.backward.subproblems import Subproblem, distinct_forwards, subproblems
from convalgos.cpu.runtime.spread_outputs import SpreadOutputs

# Products of phases together, zeros among them, for each that they have apart, up to which they are computed
# together: by transforms, which then have one kernel and read dy once, and by sums of products, where dx has
# up to FEW channels. Zen 5.
TRANSFORMED = 2.0
SUMMED = 1.5
FEW = 4

# --- the figures for the selector --------------------------------------------------------------


@dataclass(frozen=True)
class BackwardData(ByForward):
    """A forward algorithm of the CPU, asked for the gradient of the input."""

    apart: bool = False  # every phase by itself, always; see `subproblems.subproblems`

    directions: ClassVar[tuple[str, ...]] = ("backward_data",)

    @property
    def variant(self) -> str:
        return ".".join(filter(None, (self.inner.variant, "apart" if self.apart else "")))

    def within(
        self, problem: ConvProblem, *, workspace_limit: int | None, deterministic: bool, strict_nan: bool
    ) -> Algorithm:
        """Phases that are computed together meet, by zeros of their filters, what is under another's."""
        strict = strict_nan and not self.inner.spreads_nan and self._together(problem)
        return replace(self, apart=True) if strict else self

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(dict.fromkeys((*self.inner.needs, "llvmlite")))

    def forwards(self, problem: ConvProblem) -> list[ConvProblem]:
        return [p.forward for p in self.subproblems(problem) if p.forward]

    def kinds(self, problem: ConvProblem) -> Sequence[tuple[ConvProblem, int]]:
        return distinct_forwards(problem, self.spare(problem))

    def variants(self, problem: ConvProblem) -> Sequence[Algorithm]:
        """Variants of the forward algorithm where it runs once; the phases apart where they are together."""
        if problem.is_empty:
            return []
        if self._together(problem):
            return [replace(self, apart=True)]
        forwards = self.forwards(problem) if is_whole(problem) else []
        return [BackwardData(v) for f in forwards for v in self.inner.variants(f)]

    def spare(self, problem: ConvProblem) -> float:
        """Products with zeros that are worth computing all phases together; see `subproblems.subproblems`."""
        if self.apart:
            return 0.0
        if self.inner.spreads_nan:
            return TRANSFORMED
        return SUMMED if problem.C <= FEW else 0.0

    def subproblems(self, problem: ConvProblem) -> tuple[Subproblem, ...]:
        return subproblems(problem, self.spare(problem))

    def _together(self, problem: ConvProblem) -> bool:
        return not problem.is_empty and len(self.subproblems(problem)[0].phases) > 1

    def _spreads(self, problem: ConvProblem) -> bool:
        return spreads(problem, self.inner, self.spare(problem))

    def slicing(self, problem: ConvProblem) -> Slicing | None:
        if self._spreads(problem):
            return None
        return slicing(problem, self.inner, self.spare(problem))

    def cost(self, problem: ConvProblem, machine: Machine) -> float:
        if cut := self.slicing(problem):
            return slices.slices_seconds(cut, self.inner, machine)
        sums = sum(count * self.inner.cost(f, machine) for f, count in self.kinds(problem))
        if self._spreads(problem):
            return max(sums, spreading_seconds(problem, self.kinds(problem), machine))
        return sums + interleaving_seconds(problem, self.kinds(problem), machine)

    def least(self, problem: ConvProblem, machine: Machine) -> float:
        if problem.is_empty:
            return 0.0
        if cut := self.slicing(problem):
            return slices.least_slices_seconds(cut, self.inner, machine)
        return sum(count * self.inner.least(f, machine) for f, count in self.kinds(problem))

    def prepare_cost(self, problem: ConvProblem, machine: Machine) -> float:
        if problem.is_empty:
            return 0.0
        found = self.subproblems(problem)
        phases = sum(len(p.phases) for p in found if p.forward)
        filled = self._together(problem) and not found[0].are_alike
        rotated = rotation_seconds(problem, phases, machine, filled)
        return super().prepare_cost(problem, machine) + rotated

    def filter_bytes(self, problem: ConvProblem) -> int:
        if problem.is_empty:
            return 0
        return sum(count * self.inner.filter_bytes(f) for f, count in self.kinds(problem))

    def seconds_between_layers(
        self, problem: ConvProblem, seconds: float, reading: float, machine: Machine
    ) -> float:
        kinds = [] if problem.is_empty else self.kinds(problem)
        forward = kinds[0][0] if kinds else problem
        return self.inner.seconds_between_layers(forward, seconds, reading, machine)

    def workspace_bytes(self, problem: ConvProblem) -> int:
        if problem.is_empty:
            return 0
        if cut := self.slicing(problem):
            return slices.slices_workspace_bytes(cut, self.inner)
        kinds = self.kinds(problem)
        each = [self.inner.workspace_bytes(f) for f, _ in kinds]
        return sum(each) + (0 if self._spreads(problem) else phases_bytes(problem, kinds))

    def plan(self, problem: ConvProblem) -> Plan:
        if cut := self.slicing(problem):
            return SlicedPlan(problem, self, cut)
        found, kinds = self.subproblems(problem), self.kinds(problem)
        if self._spreads(problem):
            assert isinstance(self.inner, SpreadOutputs)
            lie = problem.spatial, problem.stride
            plans = {f: self.inner.plan_spread(f, *lie) for f, _ in kinds}
            return PhasesPlan(problem, self, found, plans, spread=True)
        return PhasesPlan(problem, self, found, {f: self.child_plan(f) for f, _ in kinds})

    def why_not_on_maps(self, problem: ConvProblem) -> str | None:
        return None  # `plan_like` tells

    def plan_like(self, problem: ConvProblem, known: Plan) -> Plan:
        """The plans of its phases are like those of the known plan."""
        if not isinstance(known, PhasesPlan) or self.slicing(problem) or self._spreads(problem):
            return self.serve(problem)
        plans = {f: known.plan_of_phase_like(f) for f, _ in self.kinds(problem)}
        if any(plan is None or self.inner.why_not_on_maps(f) for f, plan in plans.items()):
            return self.serve(problem)
        like = {f: self.inner.plan_like(f, plan) for f, plan in plans.items() if plan}
        return PhasesPlan(problem, self, self.subproblems(problem), like)


@lru_cache(512)
def spreads(problem: ConvProblem, algorithm: Algorithm, spare: float) -> bool:
    """Whether kernels of an algorithm write the phases of a problem where they lie in dx."""
    if problem.is_empty or is_whole(problem) or not isinstance(algorithm, SpreadOutputs):
        return False
    found = subproblems(problem, spare)
    forwards = [p.forward for p in found if p.forward]
    apart = len(forwards) == len(phases(problem))  # together, or without taps, they are brought there
    return apart and all(map(algorithm.spreads, {*forwards}))
