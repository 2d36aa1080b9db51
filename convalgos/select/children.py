"""The planner of sub-problems, which `registry` hands to the algorithms that are made of them.

Each sub-problem is chosen for as a caller's problem is: by what was measured on it, or as for a near shape,
else by the cost models, within the limits of the choice that asks. What is found is cached, so that it is
searched for once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import itemgetter
from typing import Any

from convalgos.core.planner import ChildPick
from convalgos.core.problem import ConvProblem
from convalgos.select import devices, registry
from convalgos.select.choose import fastest, rank
from convalgos.select.constraints import Constraints, covers
from convalgos.select.estimate import cost


@dataclass(frozen=True)
class ChildPlanner:
    """A `core.planner.Planner`. One with a state plans by what was known then, one without by what is now."""

    device: str  # "cpu", or "gpu" for the one that is worked on
    constraints: Constraints = field(default_factory=Constraints)
    state: Any = None  # device, threads, profile, figures and wisdom: `_now`

    @property
    def deterministic(self) -> bool:
        return self.constraints.deterministic or all(a.deterministic for a in _others(self.device))

    @property
    def spreads_nan(self) -> bool:
        return not self.constraints.strict_nan

    @property
    def equal_bits(self) -> bool:
        return self.constraints.equal_bits

    def best(self, problem: ConvProblem) -> ChildPick | None:
        return _best(self._with_state(), problem)

    def least(self, problem: ConvProblem) -> float:
        return _least(self._with_state(), problem)

    def under(self, constraints: Constraints | None, composite: str) -> ChildPlanner:
        limits = constraints or Constraints()
        if limits.allow is not None:
            limits = replace(limits, allow=[a for a in limits.allow if not covers(a, composite)] or None)
        return replace(self, constraints=limits)._with_state()

    def limited(self, workspace_bytes: int) -> ChildPlanner:
        return replace(self, constraints=replace(self.constraints, workspace_limit=workspace_bytes))

    def _with_state(self) -> ChildPlanner:
        return self if self.state is not None else replace(self, state=_now(self.device))


def _now(kind: str) -> tuple[Any, ...]:
    device = devices.current_device(kind)
    return (*devices.choice_key(device), devices.store(device).known().changes)


def _others(kind: str) -> tuple[Any, ...]:
    """The algorithms that may be found."""
    return tuple(a for a in registry.algorithms(kind) if "forward" in a.directions)


@lru_cache(1024)
def _best(planner: ChildPlanner, problem: ConvProblem) -> ChildPick | None:
    device, limits = planner.state[0], planner.constraints
    known = devices.store(device).known()
    if device != "cpu" or known.lookup(problem):
        found = rank(problem, device, limits).candidates
        if not found:
            return None
        run_s = found[0].estimate_s - limits.prepare_share() * found[0].prepare_s
        return ChildPick(found[0].algorithm, problem, run_s, found[0].prepare_s)
    algorithm, _ = fastest(problem, device, limits, known)
    if algorithm is None:
        return None
    machine = devices.figures(device)
    prepare_s = algorithm.prepare_cost(algorithm.computed(problem), machine)
    return ChildPick(algorithm, problem, cost(algorithm, problem, machine), prepare_s)


@lru_cache(1024)
def _least(planner: ChildPlanner, problem: ConvProblem) -> float:
    device = planner.state[0]
    if devices.store(device).known().lookup(problem):  # a time that was measured keeps no bound of a model
        found = _best(planner, problem)
        return math.inf if found is None else found.run_s
    machine = devices.figures(device)
    bounds = [
        (family[0].least_of_all(form, machine) if len(family) > 1 else 0.0, family, form)
        for family in registry.ways_by_family(problem, device)
        for form in family[0].forms(problem)
        if family[0].takes(form)
    ]
    least = math.inf
    for of_all, family, form in sorted(bounds, key=itemgetter(0)):
        if of_all < least:
            least = min(least, *(a.least(form, machine) for a in family))
    return least
