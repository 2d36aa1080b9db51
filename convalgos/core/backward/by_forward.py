"""A forward algorithm that stands for itself in another direction, under the same id."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from convalgos.core.algorithm import Algorithm, Figures
from convalgos.core.element_types import DTYPES
from convalgos.core.problem import ConvProblem


@dataclass(frozen=True)
class ByForward(Algorithm):
    """Runs a forward algorithm on one or several forward problems that make up one of another direction.

    Subclasses implement `forwards`, and what an algorithm must. Mixed with the base class of a device's
    algorithms, which comes second.
    """

    inner: Algorithm

    @abstractmethod
    def forwards(self, problem: ConvProblem) -> Sequence[ConvProblem]:
        """What the forward algorithm computes, of a problem that is not empty."""

    def kinds(self, problem: ConvProblem) -> Sequence[tuple[ConvProblem, int]]:
        """Those of them that differ, and how many there are of each."""
        return [(f, 1) for f in self.forwards(problem)]

    def child_plan(self, problem: ConvProblem) -> Any:
        """The plan of one of `forwards`: of the forward algorithm. All child problems are planned here."""
        return self.inner.plan(problem)

    # --- as the forward algorithm is ---------------------------------------------------------

    @property
    def family(self) -> str:  # type: ignore[override]
        return self.inner.family

    @property
    def variant(self) -> str:
        return self.inner.variant

    @property
    def dtypes(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(dtype for dtype in self.inner.dtypes if dtype in DTYPES)  # gradients are of floats

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.inner.needs

    @property
    def deterministic(self) -> bool:  # type: ignore[override]
        return self.inner.deterministic

    @property
    def spreads_nan(self) -> bool:  # type: ignore[override]
        return self.inner.spreads_nan

    @property
    def equal_bits(self) -> bool:  # type: ignore[override]
        return self.inner.equal_bits

    @property
    def skips_zeros(self) -> bool:  # type: ignore[override]
        return self.inner.skips_zeros

    @property
    def patterns(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.inner.patterns

    @property
    def approximates(self) -> bool:  # type: ignore[override]
        return self.inner.approximates

    @property
    def casts(self) -> bool:  # type: ignore[override]
        return self.inner.casts

    @property
    def spins(self) -> bool:
        return self.inner.spins

    def takes_halves(self, problem: ConvProblem) -> bool:
        return super().takes_halves(problem) and self.inner.takes_halves(problem)

    # --- as its problems are -----------------------------------------------------------------

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := super().why_not(problem):
            return reason
        if problem.is_empty:
            return None
        reasons = (self.inner.why_not(f) for f, _ in self.kinds(problem))
        return next((f"as a forward convolution: {r}" for r in reasons if r), None)

    def prepare_cost(self, problem: ConvProblem, machine: Figures) -> float:
        return sum(count * self.inner.prepare_cost(f, machine) for f, count in self.kinds(problem))

    def error_bound(self, problem: ConvProblem) -> float:
        if problem.is_empty:
            return self.inner.error_bound(problem)
        return max((self.inner.error_bound(f) for f, _ in self.kinds(problem)), default=problem.eps)
