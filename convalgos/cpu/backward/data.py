"""The gradient of the input (dgrad) by any forward algorithm: a forward convolution of dy for each phase.

`BackwardData` takes the place of an algorithm where the direction is backward_data. Without a stride it runs
that algorithm once, on dy and the rotated filter, into dx itself. With a stride:

1. the problem is split into sub-problems, one for each phase, or one for all (`subproblems`);
2. these are computed into scratch: slice by slice where each thread can have slices of its own
   (`per_thread`), else each sub-problem by all threads;
3. the phases are interleaved into dx (`interleave`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from convalgos.core.algorithm import Algorithm
from convalgos.core.allocator import aligned_empty
from convalgos.core.backward.by_forward import ByForward
from convalgos.core.backward.polyphase import is_whole
from convalgos.core.machine import Machine
from convalgos.core.plan import Plan
from convalgos.core.problem import ConvProblem
from convalgos.cpu.backward import interleave, slices
from convalgos.cpu.backward.per_thread import SlicedPlan
from convalgos.cpu.backward.slices import Slicing, slicing
from convalgos.cpu.backward.subproblems import Subproblem, distinct_forwards, filters_of, subproblems

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

    def scratch_elements(self, problem: ConvProblem) -> int:
        """Of all phases that are computed before they are interleaved, where threads share each of them."""
        return (
            0 if is_whole(problem) else sum(count * math.prod(f.y_shape) for f, count in self.kinds(problem))
        )

    def slicing(self, problem: ConvProblem) -> Slicing | None:
        return slicing(problem, self.inner, self.spare(problem))

    def cost(self, problem: ConvProblem, machine: Machine) -> float:
        if cut := self.slicing(problem):
            return slices.slices_seconds(cut, self.inner, machine)
        sums = sum(count * self.inner.cost(f, machine) for f, count in self.kinds(problem))
        elements = self.scratch_elements(problem)
        if not elements:
            return sums
        scratch = elements * problem.itemsize
        held = scratch + problem.x_bytes + problem.y_bytes
        # from scratch to dx; beyond the caches a store reads its line first
        moved = scratch + problem.x_bytes * (2 if held > machine.l3_bytes else 1)
        copied = interleave.interleave_seconds(problem, machine)
        return sums + machine.launch + max(machine.stream(moved, held), copied)

    def least(self, problem: ConvProblem, machine: Machine) -> float:
        if problem.is_empty:
            return 0.0
        if cut := self.slicing(problem):
            return slices.least_slices_seconds(cut, self.inner, machine)
        return sum(count * self.inner.least(f, machine) for f, count in self.kinds(problem))

    def workspace_bytes(self, problem: ConvProblem) -> int:
        if problem.is_empty:
            return 0
        if cut := self.slicing(problem):
            return slices.slices_workspace_bytes(cut, self.inner)
        each = [self.inner.workspace_bytes(f) for f, _ in self.kinds(problem)]
        return max(each, default=0) + self.scratch_elements(problem) * problem.itemsize

    def plan(self, problem: ConvProblem) -> Plan:
        if cut := self.slicing(problem):
            return SlicedPlan(problem, self, cut)
        return BackwardDataPlan(problem, self)


# --- plan ------------------------------------------------------------------------------------


class BackwardDataPlan(Plan):
    def __init__(self, problem: ConvProblem, algorithm: BackwardData):
        super().__init__(problem, algorithm, algorithm.workspace_bytes(problem))
        self._whole = is_whole(problem)
        self._subproblems = algorithm.subproblems(problem)
        self._elements = algorithm.scratch_elements(problem)
        shared = {f: algorithm.child_plan(f) for f, _ in algorithm.kinds(problem)}
        self._shared = tuple(shared.values())
        self._plans = [shared[p.forward] if p.forward else None for p in self._subproblems]

    def prepare_filter(self, w: np.ndarray) -> list[Any]:
        rotated = filters_of(self._subproblems, w, self.problem.groups)
        return [
            plan.prepare_filter(part) if plan and part is not None else None
            for part, plan in zip(rotated, self._plans, strict=True)
        ]

    def new_workspace(self) -> Any:
        spaces = {plan: plan.new_workspace() for plan in self._shared}
        return spaces, aligned_empty(self._elements, self._dtype)

    def run(
        self, x: np.ndarray, w: Any, bias: np.ndarray | None, activation: str | None, y: np.ndarray,
        workspace: Any,
    ) -> None:  # fmt: skip
        p, (spaces, scratch) = self.problem, workspace
        together = len(self._subproblems[0].phases)
        biases = bias if bias is None or together == 1 else np.tile(bias, together)
        addresses: list[int] = []
        done = 0
        for subproblem, plan, filters in zip(self._subproblems, self._plans, w, strict=True):
            if plan is None:
                addresses.append(0)
                continue
            shape = plan.problem.array_shapes[2]
            target = y if self._whole else scratch[done : done + math.prod(shape)].reshape(shape)
            done += target.size
            dy = np.ascontiguousarray(subproblem.whole.part(x, p.layout))
            plan.run(dy, filters, biases, activation, target, spaces[plan])
            addresses += [target.ctypes.data + start * p.itemsize for start in subproblem.starts(p.layout)]
        if not self._whole:
            fill = np.zeros(p.C, self._dtype) if bias is None else bias.copy()
            if activation is not None:
                np.maximum(fill, 0, out=fill)
            interleave.interleave_phases(p, addresses, together, fill, y)
