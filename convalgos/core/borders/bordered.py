"""An algorithm that knows zeros only, where something else lies beyond the edges: on the extended map.

The map of a run is copied into scratch with its border around it, and convolved there; a gradient of the
input is computed with its border, which is then folded onto it. Devices may have other ways for gradients.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from convalgos.core.algorithm import Algorithm, Figures
from convalgos.core.backward.by_forward import ByForward
from convalgos.core.borders.extended import extended
from convalgos.core.boundaries import BOUNDARIES
from convalgos.core.problem import ConvProblem


@dataclass(frozen=True)
class Bordered(ByForward):
    """`inner`, in the form in which it computes the direction, under the same id."""

    @property
    def directions(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.inner.directions

    @property
    def boundaries(self) -> tuple[str, ...]:  # type: ignore[override]
        return BOUNDARIES

    @property
    def bounded_with(self) -> str:  # type: ignore[override]
        return f"bordered {self.inner.bounded_with or type(self.inner).__name__}"

    @property
    def dtypes(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.inner.dtypes

    @property
    def searches(self) -> bool:
        return self.inner.searches

    def alone(self, problem: ConvProblem) -> ConvProblem:
        """What the algorithm computes, which knows zeros only."""
        return extended(problem).problem

    def forwards(self, problem: ConvProblem) -> list[ConvProblem]:
        return [self.alone(problem)]

    def takes_halves(self, problem: ConvProblem) -> bool:
        """Gradients of the input are added in float32, and rounded once."""
        alone = self.alone(problem)
        return problem.direction != "backward_data" and self.inner.takes_halves(alone)

    def why_not(self, problem: ConvProblem) -> str | None:
        if problem.dtype == "binary":
            return "has +1 and -1 only, and zeros in the place of the border"
        return self.inner.why_not(self.alone(problem))

    def variants(self, problem: ConvProblem) -> Iterable[Algorithm]:
        return [replace(self, inner=v) for v in self.inner.variants(self.alone(problem))]

    def note(self, problem: ConvProblem) -> str:
        told = self.inner.note(self.alone(problem))
        return ", ".join(filter(None, (told, self.told_of_border(problem))))

    def told_of_border(self, problem: ConvProblem) -> str:
        return "on a copy with its border"

    def cost(self, problem: ConvProblem, machine: Figures) -> float:
        alone = self.alone(problem)
        sums = 0.0 if alone.is_empty else self.inner.cost(alone, machine)
        return sums + self.copying(problem, machine)

    def copying(self, problem: ConvProblem, machine: Figures) -> float:
        """Predicted seconds to extend the map, or to fold a gradient of it."""
        moved = problem.x_bytes + extended(problem).problem.x_bytes
        seconds: float = machine.launch + machine.stream(moved)
        return seconds

    def least(self, problem: ConvProblem, machine: Figures) -> float:
        alone = self.alone(problem)
        return 0.0 if alone.is_empty else self.inner.least(alone, machine)

    def least_of_all(self, problem: ConvProblem, machine: Figures) -> float:
        alone = self.alone(problem)
        return 0.0 if alone.is_empty else self.inner.least_of_all(alone, machine)

    def closely(self, problem: ConvProblem, machine: Figures) -> float:
        alone = self.alone(problem)
        return 0.0 if alone.is_empty else self.inner.closely(alone, machine)

    def granule(self, problem: ConvProblem) -> tuple[int, ...]:
        return self.inner.granule(self.alone(problem))

    def filter_bytes(self, problem: ConvProblem) -> int:
        return self.inner.filter_bytes(self.alone(problem))

    def workspace_bytes(self, problem: ConvProblem) -> int:
        """The extended map, and what the algorithm needs."""
        if problem.is_empty:
            return 0
        alone = extended(problem).problem
        return alone.x_bytes + (0 if alone.is_empty else self.inner.workspace_bytes(alone))

    def error_bound(self, problem: ConvProblem) -> float:
        """Of a gradient that is folded, for every copy of an element."""
        times = extended(problem).copies if problem.direction == "backward_data" else 1
        return times * self.inner.error_bound(self.alone(problem))

    def child_plan(self, problem: ConvProblem) -> Any:
        return self.inner.built(problem, problem)
