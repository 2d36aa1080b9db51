"""Sub-problems are planned by the planner: what an algorithm asks of it that is made of other problems.

Such an algorithm, a `Composite`, is handed a planner from above, and never imports one. The planner finds the
fastest algorithm of each sub-problem as it does for a caller's problem, within the same limits.

Source: Frigo and Johnson 2005, doi:10.1109/JPROC.2004.840301, whose solvers are handed the planner so.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, Self

from convalgos.core.algorithm import Algorithm, Figures
from convalgos.core.plan import Plan
from convalgos.core.problem import ConvProblem


class ChildPick(NamedTuple):
    """What was found for a sub-problem."""

    algorithm: Algorithm
    problem: ConvProblem
    run_s: float  # as measured, where it was, else as predicted
    prepare_s: float  # to prepare the filter

    @property
    def computed(self) -> ConvProblem:
        """What the algorithm computes in the place of the sub-problem."""
        return self.algorithm.computed(self.problem)

    def plan(self) -> Plan:
        return self.algorithm.built(self.problem, self.computed)


class Planner(Protocol):
    """Finds algorithms of sub-problems. Planners that are equal find the same."""

    @property
    def deterministic(self) -> bool:
        """Whether it only finds algorithms that give the same bits on every run."""

    @property
    def spreads_nan(self) -> bool:
        """Whether it may find algorithms in which a NaN reaches outputs that do not read it."""

    @property
    def equal_bits(self) -> bool:
        """Whether it only finds algorithms in which equal filters give equal bits."""

    def best(self, problem: ConvProblem) -> ChildPick | None:
        """The fastest; None where nothing serves the problem within the limits."""

    def least(self, problem: ConvProblem) -> float:
        """A lower bound of `best(problem).run_s`, found in less time."""

    def under(self, constraints: Any, composite: str) -> Planner:
        """This planner within the limits on a choice, by all that is known now.

        Args:
            constraints: `select.constraints.Constraints`, or None.
            composite: the id for which it plans. Where `allow` names that and nothing else, its sub-problems
                may go to any algorithm.
        """

    def limited(self, workspace_bytes: int) -> Planner:
        """This planner with so much workspace for each sub-problem."""


@dataclass(frozen=True)
class Composite(Algorithm):
    """An algorithm made of sub-problems that the planner plans, each by another algorithm if that is faster.

    Subclasses implement `kinds`, and what an algorithm must but for what follows from the sub-problems.
    """

    planner: Planner | None = None  # handed down by `registry`

    @abstractmethod
    def kinds(self, problem: ConvProblem) -> Sequence[tuple[ConvProblem, int]]:
        """The sub-problems that differ, and how many there are of each, of a problem that is not empty."""

    @abstractmethod
    def why_none(self, problem: ConvProblem) -> str | None:
        """Why there are no sub-problems of different kinds, in one sentence, or None. Quick to tell."""

    def planned_by(self, planner: Planner) -> Self:
        return replace(self, planner=planner)

    def child(self, problem: ConvProblem) -> ChildPick:
        """What is picked for a sub-problem of a problem that is served."""
        assert self.planner is not None
        found = self.planner.best(problem)
        assert found is not None, f"{self.id} does not serve {problem}"
        return found

    # --- as its sub-problems are -------------------------------------------------------------

    @property
    def searches(self) -> bool:
        return True

    @property
    def deterministic(self) -> bool:  # type: ignore[override]
        return self.planner is not None and self.planner.deterministic

    @property
    def spreads_nan(self) -> bool:  # type: ignore[override]
        return self.planner is None or self.planner.spreads_nan

    @property
    def equal_bits(self) -> bool:  # type: ignore[override]
        return self.planner is not None and self.planner.equal_bits

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := super().why_not(problem) or self.why_none(problem):
            return reason
        if self.planner is None:
            return "has no planner for its sub-problems: it is one of ca.algorithms()"
        ids = set()
        for child, _ in self.kinds(problem):
            if (found := self.planner.best(child)) is None:
                return f"nothing serves its sub-problem {child} within the limits"
            ids.add(found.algorithm.id)
        return f"{ids.pop()} is the fastest on all of its sub-problems" if len(ids) == 1 else None

    def note(self, problem: ConvProblem) -> str:
        by: dict[str, list[str]] = {}
        for child, _ in self.kinds(problem):
            sizes = by.setdefault(self.child(child).algorithm.id, [])
            sizes += ["x".join(map(str, child.kernel))]
        return ", ".join(f"{' '.join(dict.fromkeys(sizes))} by {name}" for name, sizes in by.items())

    def prepare_cost(self, problem: ConvProblem, machine: Figures) -> float:
        return sum(count * self.child(f).prepare_s for f, count in self.kinds(problem))

    def error_bound(self, problem: ConvProblem) -> float:
        found = [self.child(f) for f, _ in self.kinds(problem)]
        return max(f.algorithm.error_bound(f.computed) for f in found)
