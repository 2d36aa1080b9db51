"""Survey, rank, pick.

`rank` orders all algorithms that can serve a problem by the time that a ranker predicts, put right by what
was measured before on this problem or on a near one; ties are broken in a fixed order, so that picks repeat.
`choose_plan` takes the steps from a problem to its plan, most of which need not rank them all.
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
from convalgos.select import devices, estimate, ranker, registry, shape_buckets
from convalgos.select.constraints import Constraints, keeps, needs, within
from convalgos.select.measured import Known, family
from convalgos.select.ranking import Candidate, Ranking, Rejection
from convalgos.select.search import search

VARIED = 1.15  # times the best prediction, up to which an exhaustive search tries a variant,
VARIED_GPU = 1.5  # or measuring on a GPU: of the plans of cuDNN, predictions only tell the order


def choose_plan(
    problem: ConvProblem, device: str, constraints: Constraints, selector: str | None = None
) -> Plan:
    """The plan of what suits a problem best, by the first of these steps that tells:

    1. All candidates are ranked (`rank`) where one was measured on this very problem, where a ranker was
       asked for, on a GPU, and of an empty problem.
    2. Where a near shape of the layer was measured: its candidates, scaled to this one.
    3. Where this very shape of the layer was chosen for before: the same again.
    4. Where EXACT other shapes of the layer were: the candidates of the bucket of this shape, scaled.
    5. What steps 2 to 4 say is asked whether it can serve this very shape, within the limits.
    6. The fastest by the cost models is searched for (`search`), and remembered for the shape.
    7. Nothing serves: `rank` says why not.

    Args:
        selector: the name of a ranker, whose predictions alone then count.

    Raises:
        Unsupported: nothing can serve the problem within the limits; lists each reason.
    """
    known = devices.store(device).known()
    if selector is not None or _is_ranked(problem, device, constraints, known):
        return explained(rank(problem, device, constraints, selector=selector), device)
    algorithm, other = fastest(problem, device, constraints, known)
    if algorithm is None:
        return pick(problem, device, constraints)
    choice = _explanation(problem, constraints, algorithm, other)
    return algorithm.built(problem, algorithm.computed(problem), choice)


def close_candidates(
    problem: ConvProblem, device: str, constraints: Constraints, slack: float
) -> list[Candidate]:
    """Those that are expected to take no more than `slack` times the seconds of the best, fastest first."""
    if _is_ranked(problem, device, constraints, devices.store(device).known()):
        found = rank(problem, device, constraints).candidates
        return [c for c in found if c.estimate_s <= slack * found[0].estimate_s]
    return search(problem, device, constraints, slack=slack)


def plan_candidate(candidate: Candidate, constraints: Constraints, known: Plan | None = None) -> Plan:
    """The plan of a candidate, which is known to serve within the limits, or of what else is found to.

    Args:
        known: the algorithm's plan for other sizes of the maps, as which it is cut.
    """
    problem, device = candidate.problem, candidate.device
    told = Choice(lambda: str(rank(problem, device, constraints)))
    try:
        return _built(candidate, told, known)
    except Unsupported:  # found only now, as that the kernel of a library is wrong
        return choose_plan(problem, device, constraints)


def plan_like(algorithm: Algorithm, problem: ConvProblem, constraints: Constraints, known: Plan) -> Plan:
    """The plan of an algorithm for other sizes of the maps than those of its known plan.

    Where the padding, the taps that the maps reach, or the layouts that are computed in are others as well,
    it is another layer, planned anew, as it is where one of both sums nothing.

    Raises:
        Unsupported: it does not serve these sizes within the limits.
    """
    computed, before = algorithm.computed(problem), known.problem
    same = problem.w_shape == before.w_shape and problem.padding == before.padding
    same = same and not (problem.is_empty or before.is_empty)
    if same:  # maps of one pixel are computed channels last
        of_known = known.computing.problem
        same = (computed.layout, computed.y_layout) == (of_known.layout, of_known.y_layout)
    reason = algorithm.why_not_on_maps(computed) if same else algorithm.why_not(computed)
    if reason or not keeps(algorithm, problem, constraints):
        raise Unsupported(f"{algorithm.id} cannot serve {problem}: {reason or constraints}")
    told = Choice(lambda: str(rank(problem, "cpu", constraints)))
    return algorithm.built(problem, computed, told, known if same else None)


def _is_ranked(problem: ConvProblem, device: str, constraints: Constraints, known: Known) -> bool:
    """Whether all candidates are ranked: step 1 of `choose_plan`."""
    whole = device != "cpu" or problem.is_empty or constraints.precisions is not None
    return whole or bool(known.lookup(problem))


def fastest(
    problem: ConvProblem, device: str, constraints: Constraints, known: Known
) -> tuple[Algorithm | None, ConvProblem]:
    """Steps 2 to 6 of `choose_plan`: an algorithm that serves the problem, and the shape that it suits."""
    layer = shape_buckets.layer_of(family(problem), devices.choice_key(device), constraints)
    kept, other = _kept(problem, device, constraints, known, layer)
    if kept is not None:
        serves = kept.why_not(kept.computed(problem)) is None
        if serves and keeps(kept, problem, constraints):
            return kept, other
    found = search(problem, device, constraints)
    if found and kept is None and len(layer.chosen) < shape_buckets.EXACT:
        layer.chosen[shape_buckets.place_of(problem)] = found[0].algorithm
    return (found[0].algorithm if found else None), problem


def _kept(
    problem: ConvProblem, device: str, constraints: Constraints, known: Known, layer: shape_buckets.KnownLayer
) -> tuple[Algorithm | None, ConvProblem]:
    """Steps 2 to 4 of `choose_plan`: an algorithm, where they tell, and the shape that it suits."""
    if near := known.near(problem):
        at = shape_buckets.place_of(near[0])
    else:
        at = shape_buckets.place_of(problem)
        if at in layer.chosen:
            return layer.chosen[at], problem
        if len(layer.chosen) < shape_buckets.EXACT:
            return None, problem
        at = shape_buckets.on_grid(at)

    def candidates(other: ConvProblem) -> list[Candidate]:
        if known.lookup(other):
            return list(rank(other, device, constraints).candidates)
        return search(other, device, constraints, slack=shape_buckets.CLOSE, per_output=True)

    found = shape_buckets.bucket_of(layer, at, known.changes, candidates)
    return (None, problem) if found is None else (found.fastest_on(problem), found.problem)


def _explanation(
    problem: ConvProblem, constraints: Constraints, algorithm: Algorithm, other: ConvProblem
) -> Choice:
    """What a plan of steps 2 to 6 tells of the choice; it is found when it is asked for.

    Args:
        other: the shape that the algorithm was picked for.
    """

    def told() -> str:
        ranking = str(rank(problem, "cpu", constraints))
        if other == problem:
            return ranking
        return f"{algorithm.id} by what suits {other}, scaled\n{ranking}"

    return Choice(told)


def _built(candidate: Candidate, choice: Choice, known: Plan | None = None) -> Plan:
    """The plan of a candidate, which is known to serve."""
    with devices.working_on(candidate.device):
        return candidate.algorithm.built(candidate.problem, candidate.computed, choice, known)


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
        pairs = zip(candidates, predicted, strict=True)
        candidates = [replace(c, predicted_s=s, estimate_s=s) for c, s in pairs]
        return replace(estimate.order(problem, candidates, rejected, constraints), nominal=nominal)
    store = devices.store(device).known()
    entry, near = store.lookup(problem), None
    corrections: dict[str, float] = {}
    measured = any(m.failure is None for m in entry.values())
    if not measured and not measured_only and (found := store.near(problem)):
        near, entry_near = found
        corrections = estimate.near_corrections(candidates, near, entry_near, machine)
    if exhaustive or entry.keys() - {a.id for a in registry.ways(problem, device)}:
        reach = VARIED if device == "cpu" else VARIED_GPU
        runs = [c.predicted_s * corrections.get(c.id, 1.0) for c in candidates]
        limit = reach * min(runs, default=0.0) if exhaustive else 0.0
        there = {c.id for c in candidates}
        more = [c for c in varied(problem, device, machine) if c.id not in there]
        candidates += [c for c in more if c.id in entry or c.predicted_s <= limit]
    ranking = estimate.order(
        problem, candidates, rejected, constraints,
        entry=entry, near=near, corrections=corrections, measured_only=measured_only,
    )  # fmt: skip
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
    plain = registry.plain_ways(problem, device)
    precisions = None if constraints is None else constraints.precisions
    for way in registry.ways_in(problem, device, precisions):
        if not wanted(way):
            continue
        computed = way.computed(problem)
        algorithm = within(way, computed, constraints)
        if reason := algorithm.why_not(computed):
            if way in plain:  # that it cannot serve between reorders is for the same reason
                elsewhere = not {problem.direction, "forward"} & set(algorithm.directions)
                elsewhere = elsewhere or not algorithm.takes(computed)
                rejected.append(Rejection(algorithm.id, reason, elsewhere))
            continue
        candidates.append(_candidate(algorithm, problem, computed, machine, device))
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
    found = [
        _candidate(v, problem, v.computed(problem), machine, device)
        for v in registry.variants(problem, device, wanted)
    ]
    return sorted(found, key=lambda c: (c.predicted_s, c.id))


def _candidate(
    algorithm: Algorithm, problem: ConvProblem, computed: ConvProblem, machine: Machine, device: str
) -> Candidate:
    seconds = estimate.cost(algorithm, problem, machine)
    prepare = 0.0 if problem.is_empty else algorithm.prepare_cost(computed, machine)
    return Candidate(algorithm, problem, computed, seconds, seconds, prepare, device=device)


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
        return _built(first, choice)
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
        made = algorithm.serve(problem, Choice(f"{algorithm.id} was asked for by name\n{problem}"))
        broken = (constraints or Constraints()).violations(algorithm, *needs(algorithm, problem))
    if broken:
        raise Unsupported(f"{algorithm.id} cannot serve {problem}: {'; '.join(broken.values())}")
    return made


def planned(algorithm: Algorithm, problem: ConvProblem, device: str, choice: Choice = NOT_CHOSEN) -> Plan:
    """The plan of an algorithm, made for a device."""
    with devices.working_on(device):
        return algorithm.serve(problem, choice)
