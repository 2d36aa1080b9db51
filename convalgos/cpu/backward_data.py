"""The gradient of the input by any forward algorithm: a forward convolution of dy for each phase.

`BackwardData` stands for an algorithm where the direction is backward_data. Without a stride it runs that
algorithm once, on dy and the transposed filter, into dx itself. With one, the phases are computed into
scratch and then interleaved: slice by slice where each thread can have slices of its own (`slices`), else all
of each phase by all threads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from convalgos.algorithm import Plan
from convalgos.cpu import interleave, slices
from convalgos.cpu.slices import SlicedPlan, slicing
from convalgos.cpu.turned_filter import turned
from convalgos.memory import aligned_empty
from convalgos.problem import ConvProblem
from convalgos.stand_in import StandIn
from convalgos.transposed import Phase, is_whole, phases

# --- shapes ----------------------------------------------------------------------------------


def scratch_elements(problem: ConvProblem) -> int:
    """Of all phases that are computed, before they are interleaved."""
    if is_whole(problem):
        return 0
    return problem.N * problem.C * sum(math.prod(p.size) for p in phases(problem) if p.forward)


# --- the figures for the selector --------------------------------------------------------------


@dataclass(frozen=True)
class BackwardData(StandIn):
    """A forward algorithm of the CPU, asked for the gradient of the input."""

    directions: ClassVar[tuple[str, ...]] = ("backward_data",)

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(dict.fromkeys((*self.inner.needs, "numba")))

    def forwards(self, problem):
        return [p.forward for p in phases(problem) if p.forward is not None]

    def variants(self, problem):
        """Those of the forward algorithm, where it runs once."""
        forwards = self.forwards(problem) if not problem.is_empty and is_whole(problem) else []
        return [BackwardData(v) for f in forwards for v in self.inner.variants(f)]

    def cost(self, problem, machine):
        if cut := slicing(problem, self.inner):
            return slices.seconds(cut, self.inner, machine)
        sums = sum(self.inner.cost(f, machine) for f in self.forwards(problem))
        elements = scratch_elements(problem)
        if not elements:
            return sums
        moved = elements * problem.itemsize + problem.x_bytes  # from scratch to dx; both may be in the caches
        copied = interleave.seconds(problem, machine)
        return sums + machine.launch + max(machine.stream(moved, moved), copied)

    def least(self, problem, machine):
        if problem.is_empty:
            return 0.0
        if cut := slicing(problem, self.inner):
            return slices.least_seconds(cut, self.inner, machine)
        return sum(self.inner.least(f, machine) for f in self.forwards(problem))

    def workspace_bytes(self, problem):
        if problem.is_empty:
            return 0
        if cut := slicing(problem, self.inner):
            return slices.workspace_bytes(cut, self.inner)
        each = [self.inner.workspace_bytes(f) for f in self.forwards(problem)]
        return max(each, default=0) + scratch_elements(problem) * problem.itemsize

    def plan(self, problem):
        if cut := slicing(problem, self.inner):
            return SlicedPlan(problem, self, self.inner, cut)
        return BackwardDataPlan(problem, self)


# --- plan ------------------------------------------------------------------------------------


class BackwardDataPlan(Plan):
    def __init__(self, problem: ConvProblem, algorithm: BackwardData):
        super().__init__(problem, algorithm, algorithm.workspace_bytes(problem))
        self._whole = is_whole(problem)
        self._phases = phases(problem)
        self._plans: dict[Phase, Plan] = {
            p: algorithm.inner.plan(p.forward) for p in self._phases if p.forward is not None
        }

    def prepare_filter(self, w: np.ndarray) -> dict[Phase, Any]:
        groups = self.problem.groups
        return {p: plan.prepare_filter(turned(p, w, groups)) for p, plan in self._plans.items()}

    def new_workspace(self) -> Any:
        return {p: plan.new_workspace() for p, plan in self._plans.items()}, aligned_empty(
            scratch_elements(self.problem), self._dtype
        )

    def run(self, x, w, bias, activation, y, workspace) -> None:
        p, (spaces, scratch) = self.problem, workspace
        parts: list[np.ndarray | None] = []
        done = 0
        for phase in self._phases:
            plan = self._plans.get(phase)
            if plan is None:
                parts.append(None)
                continue
            shape = p.array_shape((p.N, p.C, *phase.size))
            target = y if self._whole else scratch[done : done + math.prod(shape)].reshape(shape)
            done += target.size
            dy = np.ascontiguousarray(phase.part(x, p.layout))
            plan.run(dy, w[phase], bias, activation, target, spaces[phase])
            parts.append(target)
        if not self._whole:
            fill = np.zeros(p.C, self._dtype) if bias is None else bias.copy()
            if activation is not None:
                np.maximum(fill, 0, out=fill)
            interleave.interleave(p, parts, fill, y)
