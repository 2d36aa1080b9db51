"""Plans of problems as studies time them: arrays made, filter prepared, answer checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import convalgos as ca
from convalgos.core.plan import numpy_dtype
from convalgos.select import registry
from convalgos.select.measure.accuracy import AccuracyCheck
from convalgos.select.measure.timing import runner


@dataclass(frozen=True)
class TimedPlan:
    """A plan on arrays of its own, and a call that does what each run of it must."""

    problem: ca.ConvProblem
    algorithm: str
    call: Callable[[], object]
    y: np.ndarray = field(repr=False)
    check: AccuracyCheck = field(repr=False)
    bound: float

    def error(self) -> float:
        """Of the last call, relative to the largest output, against float64."""
        return self.check.error(self.y)


def timed_plan(
    problem: ca.ConvProblem,
    algorithm: str = "auto",
    *,
    arrays: tuple[np.ndarray, np.ndarray] | None = None,
    check: AccuracyCheck | None = None,
    **limits: Any,
) -> TimedPlan:
    """The plan of a problem, run once.

    Args:
        arrays: x and w, of problems whose channels come first; random ones by default.
        check: of these arrays, where several plans share it.
        limits: those of `ca.plan`.

    Raises:
        Unsupported: the algorithm, or none, serves the problem.
    """
    plan = ca.plan(problem, algorithm=algorithm, **limits)
    check = check or AccuracyCheck(problem, arrays=arrays, brief=True)
    y = np.empty(problem.array_shapes[2], numpy_dtype(problem.y_dtype))
    call = runner(plan, check.x, check.w, y)
    call()
    bound = registry.find_algorithm(plan.algorithm, problem).error_bound(problem)
    return TimedPlan(problem, plan.algorithm, call, y, check, bound)
