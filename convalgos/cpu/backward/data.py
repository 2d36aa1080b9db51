"""The gradient of the input by any forward algorithm: a forward convolution of dy for each phase.

`BackwardData` stands for an algorithm where the direction is backward_data. Without a stride it runs that
algorithm once, on dy and the transposed filter, into dx itself. With one, the phases are computed (`pieces`)
into scratch and then interleaved: slice by slice where each thread can have slices of its own (`slices`),
else each piece whole by all threads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.core.backward.by_forward import StandIn
from convalgos.core.backward.polyphase import is_whole
from convalgos.core.plan import Plan
from convalgos.core.problem import ConvProblem
from convalgos.cpu.backward import interleave, per_thread
from convalgos.cpu.backward.per_thread import SlicedPlan, Slicing, slicing
from convalgos.cpu.backward.subproblems import Piece, filters_of, kinds, pieces

# Products of phases together, zeros among them, for each that they have apart, up to which they are computed
# together: by transforms, which then have one kernel and read dy once, and by sums of products, where dx has
# up to FEW channels. Zen 5.
TRANSFORMED = 2.0
SUMMED = 1.5
FEW = 4

# --- the figures for the selector --------------------------------------------------------------


@dataclass(frozen=True)
class BackwardData(StandIn):
    """A forward algorithm of the CPU, asked for the gradient of the input."""

    apart: bool = False  # every phase by itself, always; see `pieces`

    directions: ClassVar[tuple[str, ...]] = ("backward_data",)

    @property
    def variant(self) -> str:
        return ".".join(filter(None, (self.inner.variant, "apart" if self.apart else "")))

    def within(self, problem, *, workspace_limit, deterministic, strict_nan):
        """Phases that are computed together meet, by zeros of their filters, what is under another's."""
        strict = strict_nan and not self.inner.spreads_nan and self._together(problem)
        return replace(self, apart=True) if strict else self

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(dict.fromkeys((*self.inner.needs, "llvmlite")))

    def forwards(self, problem):
        return [p.forward for p in self.pieces(problem) if p.forward]

    def kinds(self, problem):
        return kinds(problem, self.spare(problem))

    def variants(self, problem):
        """Those of the forward algorithm, where it runs once; phases apart, where they are not."""
        if problem.is_empty:
            return []
        if self._together(problem):
            return [replace(self, apart=True)]
        forwards = self.forwards(problem) if is_whole(problem) else []
        return [BackwardData(v) for f in forwards for v in self.inner.variants(f)]

    def spare(self, problem: ConvProblem) -> float:
        """That of `pieces`."""
        if self.apart:
            return 0.0
        if self.inner.spreads_nan:
            return TRANSFORMED
        return SUMMED if problem.C <= FEW else 0.0

    def pieces(self, problem: ConvProblem) -> tuple[Piece, ...]:
        return pieces(problem, self.spare(problem))

    def _together(self, problem: ConvProblem) -> bool:
        return not problem.is_empty and len(self.pieces(problem)[0].phases) > 1

    def scratch_elements(self, problem: ConvProblem) -> int:
        """Of all phases that are computed, before they are interleaved, where threads share each piece."""
        return (
            0 if is_whole(problem) else sum(count * math.prod(f.y_shape) for f, count in self.kinds(problem))
        )

    def slicing(self, problem: ConvProblem) -> Slicing | None:
        return slicing(problem, self.inner, self.spare(problem))

    def cost(self, problem, machine):
        if cut := self.slicing(problem):
            return per_thread.seconds(cut, self.inner, machine)
        sums = sum(count * self.inner.cost(f, machine) for f, count in self.kinds(problem))
        elements = self.scratch_elements(problem)
        if not elements:
            return sums
        scratch = elements * problem.itemsize
        held = scratch + problem.x_bytes + problem.y_bytes
        # from scratch to dx; beyond the caches a store reads its line first
        moved = scratch + problem.x_bytes * (2 if held > machine.l3_bytes else 1)
        copied = interleave.seconds(problem, machine)
        return sums + machine.launch + max(machine.stream(moved, held), copied)

    def least(self, problem, machine):
        if problem.is_empty:
            return 0.0
        if cut := self.slicing(problem):
            return per_thread.least_seconds(cut, self.inner, machine)
        return sum(count * self.inner.least(f, machine) for f, count in self.kinds(problem))

    def workspace_bytes(self, problem):
        if problem.is_empty:
            return 0
        if cut := self.slicing(problem):
            return per_thread.workspace_bytes(cut, self.inner)
        each = [self.inner.workspace_bytes(f) for f, _ in self.kinds(problem)]
        return max(each, default=0) + self.scratch_elements(problem) * problem.itemsize

    def plan(self, problem):
        if cut := self.slicing(problem):
            return SlicedPlan(problem, self, self.inner, cut)
        return BackwardDataPlan(problem, self)


# --- plan ------------------------------------------------------------------------------------


class BackwardDataPlan(Plan):
    def __init__(self, problem: ConvProblem, algorithm: BackwardData):
        super().__init__(problem, algorithm, algorithm.workspace_bytes(problem))
        self._whole = is_whole(problem)
        self._pieces = algorithm.pieces(problem)
        self._elements = algorithm.scratch_elements(problem)
        shared = {f: algorithm.inner.plan(f) for f, _ in algorithm.kinds(problem)}
        self._shared = tuple(shared.values())
        self._plans = [shared[p.forward] if p.forward else None for p in self._pieces]

    def prepare_filter(self, w: np.ndarray) -> list[Any]:
        turned = filters_of(self._pieces, w, self.problem.groups)
        return [
            plan.prepare_filter(part) if plan and part is not None else None
            for part, plan in zip(turned, self._plans, strict=True)
        ]

    def new_workspace(self) -> Any:
        spaces = {plan: plan.new_workspace() for plan in self._shared}
        return spaces, aligned_empty(self._elements, self._dtype)

    def run(self, x, w, bias, activation, y, workspace) -> None:
        p, (spaces, scratch) = self.problem, workspace
        together = len(self._pieces[0].phases)
        biases = bias if bias is None or together == 1 else np.tile(bias, together)
        addresses: list[int] = []
        done = 0
        for piece, plan, filters in zip(self._pieces, self._plans, w, strict=True):
            if plan is None:
                addresses.append(0)
                continue
            shape = plan.problem.array_shapes[2]
            target = y if self._whole else scratch[done : done + math.prod(shape)].reshape(shape)
            done += target.size
            dy = np.ascontiguousarray(piece.whole.part(x, p.layout))
            plan.run(dy, filters, biases, activation, target, spaces[plan])
            addresses += [target.ctypes.data + start * p.itemsize for start in piece.starts(p.layout)]
        if not self._whole:
            fill = np.zeros(p.C, self._dtype) if bias is None else bias.copy()
            if activation is not None:
                np.maximum(fill, 0, out=fill)
            interleave.interleave(p, addresses, together, fill, y)
