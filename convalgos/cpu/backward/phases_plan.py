"""The phases of a gradient of the input one after the other, each by all threads, and then interleaved.

Kernels that can leave gaps between their outputs write the phases where they lie in dx.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from convalgos.core.algorithm import Algorithm
from convalgos.core.allocator import aligned_empty, whole_lines
from convalgos.core.backward.polyphase import is_whole
from convalgos.core.bound_run import BoundRun, address_words, checked_scratch
from convalgos.core.machine import Machine
from convalgos.core.plan import Plan, numpy_dtype
from convalgos.core.prepared_filter import FilterForm, PreparedFilter
from convalgos.core.problem import ConvProblem
from convalgos.cpu.backward import interleave
from convalgos.cpu.backward.bound_parts import BoundParts
from convalgos.cpu.backward.subproblems import Subproblem, filters_of, has_views
from convalgos.cpu.runtime import jit

Kinds = Sequence[tuple[ConvProblem, int]]  # sub-problems that differ, and how many there are of each


def phases_bytes(problem: ConvProblem, kinds: Kinds) -> int:
    """Of all phases that are computed before they are interleaved."""
    if is_whole(problem):
        return 0
    return problem.itemsize * sum(count * math.prod(f.y_shape) for f, count in kinds)


def interleaving_seconds(problem: ConvProblem, kinds: Kinds, machine: Machine) -> float:
    """Predicted time to bring the phases from scratch into dx."""
    scratch = phases_bytes(problem, kinds)
    if not scratch:
        return 0.0
    held = scratch + problem.x_bytes + problem.y_bytes
    # from scratch to dx; beyond the caches a store reads its line first
    moved = scratch + problem.x_bytes * (2 if held > machine.l3_bytes else 1)
    return machine.launch + max(machine.stream(moved, held), interleave.interleave_seconds(problem, machine))


def spreading_seconds(problem: ConvProblem, kinds: Kinds, machine: Machine) -> float:
    """Predicted time to move what phases read and write where it lies in dx, at least.

    A phase alone may fit in a cache that dx does not.
    """
    held = problem.x_bytes + problem.y_bytes
    read = problem.y_bytes * sum(count for _, count in kinds)
    return machine.stream(read + problem.x_bytes * (2 if held > machine.l3_bytes else 1), held)


class PhasesPlan(BoundParts):
    """Runs the plan of each sub-problem, and interleaves what they computed, unless they write it into dx."""

    def __init__(
        self,
        problem: ConvProblem,
        algorithm: Algorithm,
        found: Sequence[Subproblem],
        plans: Mapping[ConvProblem, Plan],
        spread: bool = False,
    ):
        """
        Args:
            found: the `subproblems` of the problem.
            plans: of their forward problems.
            spread: whether the plans write pixels of dx that lie a stride apart.
        """
        inner = sum(plan.workspace_bytes for plan in plans.values())
        kinds = list(Counter(p.forward for p in found if p.forward).items())
        super().__init__(problem, algorithm, inner + (0 if spread else phases_bytes(problem, kinds)))
        self._where = jit.data_address()
        self._interleaves = not (spread or is_whole(problem))
        self._subproblems = found
        self._together = len(found[0].phases)
        self._plans = [plans[p.forward] if p.forward else None for p in found]
        self._as_views = [plan is None or plan.takes_views for plan in self._plans]
        any_order = all(plan is None or plan.any_order for plan in self._plans)
        self.any_order = any_order and has_views(found, problem)
        self._rotates = not (has_views(found, problem) and any(self._as_views))
        first = 2 if problem.layout == "channels_first" else 1
        self._reads = [p.whole.reads(problem.spatial_out, first) if p.forward else None for p in found]
        self._writes = [p.whole.writes(problem.stride, first) if spread else () for p in found]
        # A filter serves plans whose phases go to the same algorithms.
        by = ", ".join(dict.fromkeys(plan.algorithm for plan in plans.values()))
        self._key = replace(self._key, algorithm=f"{algorithm.id} ({by})")
        computed = [plan.problem.y_bytes for plan in self._plans if plan and self._interleaves]
        self._phases_bytes = whole_lines(sum(computed))
        inner = max((plan.scratch_bytes or 0 for plan in plans.values()), default=0)
        self.scratch_bytes = self._phases_bytes + inner

    @property
    def borrows(self) -> bool:
        """Whether a phase runs on filters that lie as for other sizes."""
        return any(getattr(plan, "borrows", False) for plan in self._plans)

    def plan_of_phase_like(self, forward: ConvProblem) -> Plan | None:
        """That of a phase which is the same layer as a convolution of maps of other sizes."""
        layer = forward.w_shape, forward.padding, forward.dilation

        def is_like(plan: Plan) -> bool:
            return (plan.problem.w_shape, plan.problem.padding, plan.problem.dilation) == layer

        return next((plan for plan in self._plans if plan and is_like(plan)), None)

    def filter_form(self) -> FilterForm:
        forms = (
            (part.filter_taps, plan and plan.filter_form())
            for part, plan in zip(self._subproblems, self._plans, strict=True)
        )
        return FilterForm.of(self.problem, *forms)

    def takes_as_it_lies(self, w: np.ndarray) -> bool:
        rotated = self._rotates and w.flags.aligned and w.dtype.isnative
        return rotated or super().takes_as_it_lies(w)

    def prepare_filter(self, w: np.ndarray) -> list[Any]:
        rotated = filters_of(self._subproblems, w, self.problem.groups, self._as_views)
        return [
            plan.prepare_filter(part) if plan and part is not None else None
            for part, plan in zip(rotated, self._plans, strict=True)
        ]

    def new_workspace(self) -> PhasesWorkspace:
        spaces = {plan: plan.new_workspace() for plan in self._plans if plan}
        return self._workspace(spaces)

    def _workspace(self, spaces: Mapping[Plan, Any], scratch: np.ndarray | None = None) -> PhasesWorkspace:
        found = self._subproblems if self._interleaves else None
        return PhasesWorkspace(self.problem, found, self._plans, spaces, scratch)

    def run(
        self, x: np.ndarray, w: Any, bias: np.ndarray | None, activation: str | None, y: np.ndarray,
        workspace: Any,
    ) -> None:  # fmt: skip
        biases = self._biases(bias)
        for plan, filters, reads, writes, target, inner in zip(
            self._plans, w, self._reads, self._writes, workspace.targets, workspace.inner, strict=True
        ):
            if plan is not None:
                dy = x if reads is None else np.ascontiguousarray(x[reads])
                plan.run(dy, filters, biases, activation, y[writes] if target is None else target, inner)
        if workspace.interleaving is not None:
            workspace.interleaving(bias, activation, y)

    def _parts(self, x: np.ndarray) -> list[np.ndarray]:
        return [x if reads is None else x[reads] for reads in self._reads]

    def _launched(
        self, x: np.ndarray, parts: list[np.ndarray], w: PreparedFilter, y: np.ndarray,
        bias: np.ndarray | None, activation: str | None, scratch: np.ndarray | None,
    ) -> BoundRun | None:  # fmt: skip
        """The runs of the phases, and the launch that interleaves them, where all of these are launches."""
        scratch = checked_scratch(scratch, self.scratch_bytes or 0)
        phases, inner = (None, None) if scratch is None else np.split(scratch, [self._phases_bytes])
        workspace = self._workspace({}, phases)
        runs = [
            plan.bind(
                part, PreparedFilter(plan._key, filters), y[writes] if target is None else target,
                self._biases(bias), activation, None, inner,
            )
            for plan, filters, part, writes, target in zip(
                self._plans, w.data, parts, self._writes, workspace.targets, strict=True
            )
            if plan is not None
        ]  # fmt: skip
        if any(run.launches is None for run in runs):
            return None
        launches = [launch for run in runs for launch in run.launches or ()]
        told = all(run.x_places for run in runs)
        x_words = [place.word for run in runs for place in run.x_places] if told else []
        told = all(run.y_places for run in runs)
        y_words = [place.word for run in runs for place in run.y_places] if told else []
        if workspace.interleaving is not None:
            last, (y_word,) = workspace.interleaving.bind(bias, activation, y)
            launches.append(last)
            y_words = [y_word]
        return jit.bound_run(
            tuple(launches),
            self,
            x,
            w,
            y,
            workspace,
            runs,
            x_places=address_words(x, x_words),
            y_places=address_words(y, y_words),
        )

    def _biases(self, bias: np.ndarray | None) -> np.ndarray | None:
        """Those of the phases that are computed together."""
        return bias if bias is None or self._together == 1 else np.tile(bias, self._together)


class PhasesWorkspace:
    """Of one run at a time: where sub-problems are computed, in what workspaces, what interleaves them."""

    def __init__(
        self, problem: ConvProblem, found: Sequence[Subproblem] | None, plans: Sequence[Plan | None],
        spaces: Mapping[Plan, Any], scratch: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        """
        Args:
            found: what is computed into scratch; None where plans write into dx.
            spaces: workspaces of plans that are run with them.
            scratch: bytes for what the sub-problems compute; None for new ones.
        """
        self.inner = [spaces.get(plan) if plan else None for plan in plans]
        self.targets: list[np.ndarray | None] = [None] * len(plans)  # parts of dx
        self.interleaving: interleave.Interleaving | None = None
        if found is None:
            return
        shapes = [plan.problem.array_shapes[2] if plan else (0,) for plan in plans]
        dtype, count = numpy_dtype(problem.dtype), sum(map(math.prod, shapes))
        computed = (
            aligned_empty(count, dtype) if scratch is None else scratch[: count * dtype.itemsize].view(dtype)
        )
        addresses: list[int] = []
        done = 0
        for i, (child, plan, shape) in enumerate(zip(found, plans, shapes, strict=True)):
            if plan is None:
                addresses.append(0)
                continue
            target = computed[done : done + math.prod(shape)].reshape(shape)
            self.targets[i], done = target, done + target.size
            starts = child.starts(problem.layout)
            addresses += [target.ctypes.data + start * problem.itemsize for start in starts]
        self.interleaving = interleave.Interleaving(problem, addresses, len(found[0].phases))
