"""Filter, rank, pick.

`rank` orders the algorithms that can serve a problem by the time that a ranker predicts, put right by what
was measured before on this problem or on a near one; ties are broken in a fixed order, so that picks repeat.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from convalgos.core.algorithm import Algorithm
from convalgos.core.errors import Unsupported
from convalgos.core.machine import Machine
from convalgos.core.plan import NOT_CHOSEN, Choice, Plan
from convalgos.core.problem import ConvProblem
from convalgos.core.wrapped_plans import CastPlan
from convalgos.select import devices, estimate, ranker, registry
from convalgos.select.constraints import Constraints
from convalgos.select.ranking import Candidate, Ranking, Rejection

VARIED = 1.15  # times the best prediction, up to which an exhaustive search tries a variant,
VARIED_GPU = 1.5  # or measuring on a GPU: of the plans of cuDNN, predictions only tell the order


def rank(
    problem: ConvProblem,
    device: str = "cpu",
    constraints: Constraints | None = None,
    *,
    selector: str | None = None,
    measured_only: bool = False,
    exhaustive: bool = False,
) -> Ranking:
    """Order all candidates for a problem by time, and collect the reasons of the others.

    Args:
        constraints: limits on the choice; none by default.
        selector: the name of a ranker, whose predictions alone then count. By default those of the cost
            models do, and what was measured.
        measured_only: leave out what was not measured on this very problem.
        exhaustive: rank the variants, too, that are predicted to take at most VARIED times the best, on a
            GPU VARIED_GPU times. Those that were measured are ranked in any case.
    """
    constraints = constraints or Constraints()
    constraints.check_names(
        registry.algorithms(), registry.between_reorders(problem.direction) if device == "cpu" else ()
    )
    with devices.working_on(device):
        return _ranked(problem, device, constraints, selector, measured_only, exhaustive)


def _ranked(
    problem: ConvProblem,
    device: str,
    constraints: Constraints,
    selector: str | None,
    measured_only: bool,
    exhaustive: bool,
) -> Ranking:
    machine = devices.figures(device)
    nominal = device == "cpu" and machine.is_nominal
    candidates, rejected = survey(problem, device, machine, constraints)
    if selector is not None:
        predicted = ranker.predict(ranker.find_ranker(selector), problem, candidates, machine)
        candidates = [replace(c, seconds=s, predicted=s) for c, s in zip(candidates, predicted, strict=True)]
        return replace(estimate.order(problem, candidates, rejected, constraints), nominal=nominal)
    entry, near = devices.store(device).lookup(problem), None
    known = any(m.failure is None for m in entry.values())
    if not known and not measured_only and (found := devices.store(device).near(problem)):
        near, entry_near = found
        candidates = estimate.scaled(candidates, near, entry_near, machine)
    if exhaustive or entry.keys() - {a.id for a in registry.ways(problem, device)}:
        reach = VARIED if device == "cpu" else VARIED_GPU
        limit = reach * min((c.seconds for c in candidates), default=0.0) if exhaustive else 0.0
        there = {c.id for c in candidates}
        more = [c for c in varied(problem, device, machine) if c.id not in there]
        candidates += [c for c in more if c.id in entry or c.seconds <= limit]
    ranking = estimate.order(problem, candidates, rejected, constraints, entry, near, measured_only)
    return replace(ranking, nominal=nominal)


def survey(
    problem: ConvProblem,
    device: str,
    machine: Any,
    constraints: Constraints | None = None,
    wanted: Callable[[Algorithm], bool] = lambda algorithm: True,
) -> tuple[list[Candidate], list[Rejection]]:
    """The algorithms that can serve a problem, with what their models say, and the others with the reason.

    Args:
        constraints: limits that those keep which can; the others are not left out here.
        wanted: which of the algorithms are asked at all.
    """
    candidates: list[Candidate] = []
    rejected: list[Rejection] = []
    plain = len(registry.algorithms_on(device, problem.direction))
    for i, algorithm in enumerate(registry.ways(problem, device)):
        if not wanted(algorithm):
            continue
        computed = algorithm.computed(problem)
        algorithm = within(algorithm, computed, constraints)
        if reason := algorithm.why_not(computed):
            if i < plain:  # that it cannot serve between reorders is for the same reason
                elsewhere = not {problem.direction, "forward"} & set(algorithm.directions)
                rejected.append(Rejection(algorithm.id, reason, elsewhere))
            continue
        candidates.append(_candidate(algorithm, problem, machine, device))
    return candidates, rejected


def varied(
    problem: ConvProblem,
    device: str,
    machine: Any,
    wanted: Callable[[Algorithm], bool] = lambda algorithm: True,
) -> list[Candidate]:
    """The variants of the algorithms that can serve a problem, in the order of their predictions.

    Args:
        wanted: which of the algorithms are asked for theirs.
    """
    found = [_candidate(v, problem, machine, device) for v in registry.variants(problem, device, wanted)]
    return sorted(found, key=lambda c: (c.seconds, c.id))


def _candidate(algorithm: Algorithm, problem: ConvProblem, machine: Machine, device: str) -> Candidate:
    computed, seconds = algorithm.computed(problem), estimate.cost(algorithm, problem, machine)
    prepare = 0.0 if problem.is_empty else algorithm.prepare_cost(computed, machine)

    def note() -> str:
        with devices.working_on(device):
            return algorithm.note(computed)

    limits = needs(algorithm, problem)
    return Candidate(algorithm, seconds, *limits, predicted=seconds, prepare=prepare, note=note)


def pick(problem: ConvProblem, device: str = "cpu", constraints: Constraints | None = None) -> Plan:
    """The plan of the candidate that ranks first.

    Raises:
        Unsupported: no algorithm can serve the problem within the limits; lists each reason.
    """
    return explained(rank(problem, device, constraints), device)


def explained(ranking: Ranking, device: str = "cpu") -> Plan:
    """The plan of the first candidate, which can say why it was picked."""
    problem = ranking.problem
    if not ranking.candidates:
        reasons = "; ".join(f"{r.id}: {r.why_not}" for r in ranking.rejected)
        raise Unsupported(f"no algorithm can serve {problem}: {reasons or 'there is none'}")
    first, *others = ranking.candidates
    smaller = tuple(c for c in others if c.workspace_bytes < first.workspace_bytes)
    choice = Choice(
        explanation=lambda: str(ranking),
        next_plan=(lambda: explained(replace(ranking, candidates=smaller), device)) if smaller else None,
    )
    try:
        return planned(first.algorithm, problem, device, choice)
    except Unsupported as error:  # found only now, as that the kernel of a library is wrong
        reason = Rejection(first.id, str(error))
    return explained(replace(ranking, candidates=tuple(others), rejected=(*ranking.rejected, reason)), device)


def serve(
    algorithm: Algorithm, problem: ConvProblem, constraints: Constraints | None = None, device: str = "cpu"
) -> Plan:
    """The plan of a forced algorithm, or `Unsupported` with the reason."""
    if device != "cpu" and algorithm.device == "cpu":
        raise Unsupported(f"{algorithm.id} cannot serve {problem}: it runs on the CPU, not on {device}")
    direction = problem.direction
    if direction not in algorithm.directions:
        others = ", ".join(
            a.id for a in registry.algorithms_on(device, direction) if direction in a.directions
        )
        raise Unsupported(
            f"{algorithm.id} cannot serve {problem}: it has no {direction}; these have: {others}"
        )
    with devices.working_on(device):
        algorithm = within(algorithm, algorithm.computed(problem), constraints)
        plan = algorithm.serve(problem, Choice(f"{algorithm.id} was asked for by name\n{problem}"))
        broken = (constraints or Constraints()).violations(algorithm, *needs(algorithm, problem))
    if broken:
        raise Unsupported(f"{algorithm.id} cannot serve {problem}: {'; '.join(broken.values())}")
    return plan


def planned(algorithm: Algorithm, problem: ConvProblem, device: str, choice: Choice = NOT_CHOSEN) -> Plan:
    """The plan of an algorithm, made for a device."""
    with devices.working_on(device):
        return algorithm.serve(problem, choice)


def within(algorithm: Algorithm, computed: ConvProblem, constraints: Constraints | None) -> Algorithm:
    """The algorithm in the setting that keeps the limits."""
    if constraints is None or not constraints.active:
        return algorithm
    return algorithm.within(
        computed,
        workspace_limit=constraints.workspace_limit,
        deterministic=constraints.deterministic,
        strict_nan=constraints.strict_nan,
    )


def keeps(algorithm: Algorithm, problem: ConvProblem, constraints: Constraints) -> bool:
    """Whether an algorithm is within the limits on a problem."""
    if not constraints.active:
        return True
    return not constraints.violations(algorithm, *needs(algorithm, problem))


def needs(algorithm: Algorithm, problem: ConvProblem) -> tuple[int, float]:
    """(bytes of workspace, error bound), those of converting 16-bit data among them."""
    computed = algorithm.computed(problem)
    workspace_bytes, error_bound = algorithm.workspace_bytes(computed), algorithm.error_bound(computed)
    if computed.dtype == problem.dtype:
        return workspace_bytes, error_bound
    return workspace_bytes + CastPlan.converted_bytes(problem), error_bound + problem.eps
