"""Branch and bound: the fastest candidate by the cost models, without asking for the cost of all.

Each algorithm tells a lower bound of its cost, found in less time. They are asked for their costs in the
order of these, and no more where the bound is over the best cost found. Those whose cost takes a search are
asked last, and for a closer bound before.
"""

from __future__ import annotations

import math

from convalgos.core.algorithm import HALF_DTYPES
from convalgos.core.problem import ConvProblem
from convalgos.select import devices, estimate, registry
from convalgos.select.constraints import Constraints, keeps, within
from convalgos.select.ranking import Candidate


def search(
    problem: ConvProblem,
    device: str,
    constraints: Constraints,
    *,
    slack: float = 1.0,
    per_output: bool = False,
) -> list[Candidate]:
    """The fastest candidate by the cost models and those that were looked at on the way, fastest first.

    Args:
        slack: look at what may be slower than the best by this factor, too.
        per_output: compare the seconds for each output that is computed, in vain or not: by these the
            candidates of one shape are those of the shapes around it, whose tiles may fit better or worse.
    """
    machine, share = devices.figures(device), constraints.prepare_share()
    replaced = problem.dtype in HALF_DTYPES or problem.reread is not problem
    bounds = []
    for turn, algorithm in enumerate(registry.ways(problem, device)):
        computed = algorithm.computed(problem) if replaced else problem
        least = algorithm.least(computed, machine)
        if least < math.inf:
            outputs = filled_outputs(problem, algorithm.granule(computed)) if per_output else 1
            bounds.append((algorithm.searches, least / outputs, turn, algorithm, computed, outputs))
    bounds.sort()
    found: list[tuple[float, Candidate]] = []
    best = math.inf
    for searches, least, _, algorithm, computed, outputs in bounds:
        if least > slack * best:
            continue
        if searches and algorithm.closely(computed, machine) > slack * best * outputs:
            continue
        algorithm = within(algorithm, computed, constraints)
        if algorithm.why_not(computed) is not None or not keeps(algorithm, problem, constraints):
            continue
        seconds = estimate.cost(algorithm, problem, machine)
        prepare = algorithm.prepare_cost(computed, machine)
        total = seconds + share * prepare
        found.append((total / outputs, Candidate(algorithm, problem, computed, seconds, total, prepare)))
        best = min(best, total / outputs)
    found.sort(key=lambda f: (f[0], f[1].id))
    return [candidate for _, candidate in found]


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
