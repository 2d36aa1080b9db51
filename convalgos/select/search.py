"""Branch and bound: the fastest candidate by the cost models, without asking for the cost of all.

What can tell a lower bound of its cost waits in a queue, and what has the lowest one is looked at first:

1. a family, whose algorithms then tell a bound of their own;
2. an algorithm whose cost takes a search, which then tells a closer bound;
3. any other, and what has told its closer bound: it is asked for its cost.

This ends where the lowest bound is over the best cost found. So nothing is asked whose bound is over the
cost of what is picked.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush
from itertools import count
from typing import Any

from convalgos.core.algorithm import PREPARE_CALL, Algorithm
from convalgos.core.element_types import SHORT_FLOATS
from convalgos.core.problem import ConvProblem
from convalgos.select import devices, estimate, registry
from convalgos.select.constraints import Constraints, keeps, within
from convalgos.select.ranking import Candidate

FAMILY, SEARCHES, READY = range(3)  # what waits in the queue


def search(
    problem: ConvProblem,
    device: str,
    constraints: Constraints,
    *,
    slack: float = 1.0,
    per_output: bool = False,
) -> list[Candidate]:
    """The fastest candidate by the cost models, and those that are slower by `slack` at most, fastest first.

    Args:
        per_output: compare the seconds for each output that is computed, in vain or not: by these the
            candidates of one shape are those of the shapes around it, whose tiles may fit better or worse.
    """
    machine, share = devices.figures(device), constraints.prepare_share()
    as_it_is = problem.dtype not in SHORT_FLOATS and problem.reread is problem
    queue: list[tuple[float, int, int, Any]] = []  # (bound, turn, what it is, itself)
    turns = count()

    def wait(algorithms: tuple[Algorithm, ...], forms: tuple[ConvProblem, ...]) -> None:
        for algorithm in algorithms:
            least = algorithm.least(forms[-1], machine)
            if len(forms) > 1:
                least = min(least, algorithm.least(forms[0], machine))
            least += share * least_prepare(algorithm)
            if least < math.inf and (outputs := outputs_computed(algorithm, problem) if per_output else 1):
                what = SEARCHES if algorithm.searches else READY
                heappush(queue, (least / outputs, next(turns), what, (algorithm, outputs)))

    for family in (f for f in registry.ways_by_family(problem, device) if constraints.admits(f[0], problem)):
        if not family[0].takes((forms := (problem,) if as_it_is else family[0].forms(problem))[-1]):
            continue
        if len(family) == 1 or per_output:
            wait(family, forms)
            continue
        least = min([family[0].least_of_all(form, machine) for form in forms])
        if least < math.inf:
            least += share * min([least_prepare(a) for a in family]) if share else 0.0
            heappush(queue, (least, next(turns), FAMILY, (family, forms)))

    found: list[tuple[float, str, Any]] = []  # (by what they are compared, id, the rest of a candidate)
    best = math.inf
    while queue and queue[0][0] <= slack * best:
        bound, turn, what, waiting = heappop(queue)
        if what == FAMILY:
            wait(*waiting)
            continue
        algorithm, outputs = waiting
        computed = problem if as_it_is else algorithm.computed(problem)
        if what == SEARCHES:
            closer = algorithm.closely(computed, machine) + share * least_prepare(algorithm)
            heappush(queue, (max(bound, closer / outputs), turn, READY, waiting))
            continue
        algorithm = within(algorithm, computed, constraints)
        if algorithm.why_not(computed) is not None or not keeps(algorithm, problem, constraints):
            continue
        seconds = estimate.cost_of(algorithm, problem, computed, machine)
        if seconds > slack * best * outputs:
            continue
        prepare = algorithm.prepare_cost(computed, machine)
        total = seconds + share * prepare
        found.append((total / outputs, algorithm.id, (algorithm, computed, seconds, total, prepare)))
        best = min(best, total / outputs)
    close = [rest for compared, _, rest in sorted(found) if compared <= slack * best]
    return [Candidate(algorithm, problem, *rest) for algorithm, *rest in close]


def least_prepare(algorithm: Algorithm) -> float:
    """Seconds that it takes at least to prepare any filter."""
    usual = type(algorithm).prepare_cost is Algorithm.prepare_cost
    return PREPARE_CALL if usual else algorithm.least_prepare


def outputs_computed(algorithm: Algorithm, problem: ConvProblem) -> int:
    """What `filled_outputs` counts of an algorithm; 0 where it cannot serve."""
    computed = algorithm.computed(problem)
    return 0 if algorithm.why_not(computed) else filled_outputs(problem, algorithm.granule(computed))


def filled_outputs(problem: ConvProblem, granule: tuple[int, ...]) -> int:
    """Outputs of all images for one filter, the map filled up to whole tiles.

    Args:
        granule: of the problem, or of what it is reread as.
    """
    count = problem.N
    sizes = (problem if len(granule) == problem.ndim else problem.reread).spatial_out
    for n, g in zip(sizes, granule, strict=True):
        count *= -(-n // g) * g
    return count
