"""A candidate while it is measured: its call, its samples so far, the error of its first result."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

from convalgos.core.interference import Samples
from convalgos.core.problem import ConvProblem
from convalgos.select.measure.accuracy import usual_quantization
from convalgos.select.measure.backends import Backend, Call
from convalgos.select.ranking import Candidate


@dataclass
class Trial:
    """A candidate, its plan on given arrays, and what was found of it by now."""

    candidate: Candidate
    call: Call | None  # None once it is not timed any more: it lets go of its workspace
    prepare_s: float
    error: float = math.nan
    samples: Samples = field(default_factory=Samples)

    @property
    def id(self) -> str:
        return self.candidate.id

    @property
    def best(self) -> float:
        return self.samples.best


def start(
    candidate: Candidate,
    problem: ConvProblem,
    arrays: tuple[Any, Any, Any],
    backend: Backend,
    prepares: int = 1,
) -> Trial:
    """Plan a candidate and prepare its filter; nothing is run yet.

    Args:
        arrays: of the backend, that the plan reads first and second, and that it writes.
        prepares: how often the filter is prepared, of which the fastest counts.
    """
    x, w, y = arrays
    with backend.working():
        plan = candidate.algorithm.serve(problem)
    took, quantization = math.inf, usual_quantization(problem)
    for _ in range(prepares):
        began = time.perf_counter()
        prepared = plan.prepare(w, quantization)
        backend.wait()
        took = min(took, time.perf_counter() - began)
    return Trial(candidate, lambda: plan(x, prepared, out=y), took)
