"""Discover, filter, rank.

The one list of algorithms that selector, tests and benchmarks read comes from the `ALGORITHMS` of every
module in `convalgos.cpu` and `convalgos.gpu`. `rank` orders those that can serve a problem by the time that
a ranker predicts (the cost models, or one of your own by `register`), put right by what was measured before
on this problem or on a near one; ties are broken in a fixed order, so that picks repeat.
"""

from __future__ import annotations

import pkgutil
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any

from convalgos.core import machine as machine_figures
from convalgos.core import profiles
from convalgos.core.algorithm import Algorithm, CastPlan, Plan, Unsupported
from convalgos.core.arguments import DIRECTIONS
from convalgos.core.machine import Machine
from convalgos.core.near_names import did_you_mean
from convalgos.core.problem import ConvProblem
from convalgos.select.constraints import Constraints
from convalgos.select.estimate import cost, order, scaled
from convalgos.select.ranking import Candidate, Ranking, Rejection
from convalgos.select.wisdom_file import Store

DEVICES = ("cpu", "gpu")
VARIED = 1.15  # times the best prediction, up to which an exhaustive search tries a variant,
VARIED_GPU = 1.5  # or measuring on a GPU: of the plans of cuDNN, predictions only tell the order

# (problem, candidates, machine) -> predicted seconds of a run of each candidate, in their order
Ranker = Callable[[ConvProblem, Sequence[Candidate], Machine], Sequence[float]]


# --- what there is ---------------------------------------------------------------------------


@cache
def algorithms(device: str | None = None) -> tuple[Algorithm, ...]:
    """Every algorithm of the library, or of one device ("cpu", "gpu"), ordered by id."""
    found: list[Algorithm] = []
    for name in (device,) if device else DEVICES:
        package = import_module(f"convalgos.{name}")
        for info in sorted(pkgutil.iter_modules(package.__path__), key=lambda m: m.name):
            module = import_module(f"{package.__name__}.{info.name}")
            found += getattr(module, "ALGORITHMS", ())
    ids = [a.id for a in found]
    if twice := sorted({i for i in ids if ids.count(i) > 1}):
        raise RuntimeError(f"two algorithms have the id {', '.join(twice)}")
    return tuple(sorted(found, key=lambda a: a.id))


def algorithms_on(device: str, direction: str = "forward") -> tuple[Algorithm, ...]:
    """Those for "cpu" or for "cuda:N", in the form in which they compute a direction."""
    found = algorithms("cpu" if device == "cpu" else "gpu")
    return found if direction == "forward" else tuple(facing(a, direction) for a in found)


@cache
def facing(algorithm: Algorithm, direction: str) -> Algorithm:
    """The algorithm itself, or what computes a gradient by it where it only knows the way forward."""
    if direction in algorithm.directions or "forward" not in algorithm.directions:
        return algorithm
    if direction == "backward_weights" and not algorithm.exchanges:
        return algorithm
    package = import_module(f"convalgos.{algorithm.device}.{direction.replace('backward_', 'backward.')}")
    name = {"backward_data": "BackwardData", "backward_weights": "BackwardWeights"}[direction]
    return getattr(package, name)(algorithm)


def ways(problem: ConvProblem, device: str) -> tuple[Algorithm, ...]:
    """The algorithms in the form in which they compute a problem, and between reorders where that may pay."""
    found = algorithms_on(device, problem.direction)
    if device != "cpu" or problem.layout == "channels_first" or not _reordered().is_promising(problem):
        return found
    return found + _gaining(problem.direction)


@cache
def _gaining(direction: str) -> tuple[Algorithm, ...]:
    """Those of `between_reorders` that one layout may suit better than the other."""
    either = _reordered().EITHER
    return tuple(a for a in between_reorders(direction) if a.family not in either)


@cache
def between_reorders(direction: str) -> tuple[Algorithm, ...]:
    """The algorithms of the CPU that compute a direction, each in the other layout; but not the reference."""
    found = (a for a in algorithms_on("cpu", direction) if direction in a.directions)
    return tuple(_reordered().Reordered(a) for a in found if a.family != "cpu.reference")


@cache
def _reordered() -> Any:
    """How an algorithm runs in the other layout, imported where one is asked for: it compiles kernels."""
    return import_module("convalgos.cpu.layout.reordered")


def find_algorithm(algorithm_id: str, problem: ConvProblem | None = None) -> Algorithm:
    """The algorithm of an id, or the variant of one that is worth a try on a problem.

    Args:
        problem: in the form in which it computes its direction; forward by default.

    Raises:
        ValueError: there is none; the message suggests the nearest.
    """
    for algorithm in algorithms():
        if algorithm.id == algorithm_id:
            return algorithm if problem is None else facing(algorithm, problem.direction)
    for direction in DIRECTIONS if problem is None else (problem.direction,):
        for algorithm in between_reorders(direction):
            if algorithm.id == algorithm_id:
                return algorithm
    if problem is not None and isinstance(algorithm_id, str):
        for algorithm in variants(problem, algorithm_id.partition(".")[0]):
            if algorithm.id == algorithm_id:
                return algorithm
    known = [a.id for a in algorithms()]
    raise ValueError(
        f"algorithm={algorithm_id!r} must be 'auto' or one of the {len(known)} ids that "
        f"`convalgos algorithms` and ca.algorithms() list{did_you_mean(algorithm_id, known)}"
    )


def variants(
    problem: ConvProblem, device: str, wanted: Callable[[Algorithm], bool] = lambda algorithm: True
) -> list[Algorithm]:
    """Settings of the algorithms that are not listed, but worth a try on a problem, ordered by id.

    Args:
        wanted: which of the algorithms are asked for theirs.
    """
    listed = {a.id for a in ways(problem, device)}
    found: dict[str, Algorithm] = {}
    for algorithm in algorithms_on(device, problem.direction):
        computed = algorithm.computed(problem)
        if wanted(algorithm) and algorithm.why_not(computed) is None:
            found |= {v.id: v for v in algorithm.variants(computed) if v.why_not(computed) is None}
    return [found[i] for i in sorted(found.keys() - listed)]


@cache
def current_machine() -> Machine:
    """The figures of this machine: those that were measured, or nominal ones; nothing is timed here.

    CONVALGOS_PROFILE names shipped ones to take instead.
    """
    from convalgos.cpu.runtime import calibrate  # imports llvmlite

    threads = calibrate.thread_count()
    return (
        profiles.chosen(threads)
        or machine_figures.load(threads)
        or _unkept.get(threads)
        or profiles.nominal(threads)
    )


_unkept: dict[int, Machine] = {}  # by threads, what this process measured, and may not be able to keep


def measured_machine() -> Machine:
    """`current_machine`, measured in two seconds where it never was: for what takes its time anyway.

    Later choices go by what was measured.
    """
    from convalgos.cpu.runtime import calibrate

    if not current_machine().is_nominal:
        return current_machine()
    threads = calibrate.thread_count()
    found = calibrate.measure(threads)
    if machine_figures.doubts(found):
        found, _ = calibrate.repeated(threads)
    if doubts := machine_figures.doubts(found):
        found = replace(found, source="measured beside other programs")
        told = f"{'; '.join(doubts)}; convalgos tune --machine measures again"
        warnings.warn(f"other programs disturbed the measuring of this machine: {told}", stacklevel=2)
    machine_figures.save(found)
    _unkept[threads] = found
    current_machine.cache_clear()
    return found


def figures(device: str) -> Any:
    """The figures of "cpu" (a `Machine`) or of "cuda:N" (a `GpuMachine`), as cost models read them."""
    return current_machine() if device == "cpu" else _gpu().named(device).figures


def measured_figures(device: str) -> Any:
    """`figures`, which of the CPU are measured where they never were."""
    return measured_machine() if device == "cpu" else figures(device)


def working_on(device: str) -> AbstractContextManager[Any]:
    """Within it, the GPU algorithms look at, compile for and run on this device."""
    return nullcontext() if device == "cpu" else _gpu().use(_gpu().named(device))


def _gpu() -> Any:
    """What there is of GPUs, imported where one is asked for."""
    from convalgos.gpu import device

    return device


def store(device: str = "cpu") -> Store:
    """What was measured on this machine with as many threads as now, or on GPUs of one kind."""
    if device != "cpu":
        return store_of(figures(device).fingerprint)
    from convalgos.cpu.runtime import calibrate  # imports llvmlite

    return _cpu_store(calibrate.thread_count())


@cache
def _cpu_store(threads: int) -> Store:
    return Store(machine_figures.fingerprint(threads))


@cache
def store_of(fingerprint: str) -> Store:
    """What was measured on another machine, or on GPUs of a kind."""
    return Store(fingerprint)


# --- rankers ---------------------------------------------------------------------------------


def analytic(problem: ConvProblem, candidates: Sequence[Candidate], machine: Machine) -> list[float]:
    """The ranker that is used where no other is asked for: the cost model of each algorithm."""
    return [c.seconds if c.predicted is None else c.predicted for c in candidates]


_rankers: dict[str, Ranker] = {"analytic": analytic}


def register(name: str, ranker: Ranker) -> None:
    """Make a ranker known by a name, for `selector=` of `plan` and `explain`, and for `select evaluate`.

    Args:
        ranker: called with (problem, candidates, machine), it returns the predicted seconds of a run of each
            candidate, in their order. `candidate.predicted` is what the cost model says. One that has a
            method `fit(tables)` is fitted to the tables of other networks before it is evaluated.

    Raises:
        ValueError: the name is not a word, or is the built-in one. TypeError: the ranker cannot be called.

    Example:
        >>> import convalgos as ca
        >>> def shy(problem, candidates, machine):
        ...     return [c.predicted * (2 if "winograd" in c.id else 1) for c in candidates]
        >>> ca.select.register("shy", shy)
        >>> problem = ca.ConvProblem.parse("n1 c8 h9 w9 k8 r3 s3")
        >>> ca.plan(problem, selector="shy").algorithm in {a.id for a in ca.algorithms()}
        True
    """
    if not isinstance(name, str) or not name.isidentifier() or name == "analytic":
        raise ValueError(f"name={name!r} must be a word, other than 'analytic'")
    if not callable(ranker):
        raise TypeError(f"ranker={ranker!r} must be callable with (problem, candidates, machine)")
    _rankers[name] = ranker


def rankers() -> tuple[str, ...]:
    """The names of all rankers."""
    return tuple(_rankers)


def find_ranker(name: str) -> Ranker:
    """A ranker by its name.

    Raises:
        ValueError: there is none; the message lists those there are.
    """
    if name not in _rankers:
        raise ValueError(f"selector={name!r} must be one of {', '.join(sorted(_rankers))}")
    return _rankers[name]


def predict(
    ranker: Ranker, problem: ConvProblem, candidates: Sequence[Candidate], machine: Machine
) -> list[float]:
    """What a ranker says, checked."""
    seconds = [float(s) for s in ranker(problem, candidates, machine)]
    if len(seconds) != len(candidates) or not all(s >= 0 for s in seconds):
        raise ValueError(f"a ranker must give a number of seconds for each of {len(candidates)} candidates")
    return seconds


# --- choosing --------------------------------------------------------------------------------


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
    constraints.check_names(algorithms(), between_reorders(problem.direction) if device == "cpu" else ())
    with working_on(device):
        return _ranked(problem, device, constraints, selector, measured_only, exhaustive)


def _ranked(
    problem: ConvProblem,
    device: str,
    constraints: Constraints,
    selector: str | None,
    measured_only: bool,
    exhaustive: bool,
) -> Ranking:
    machine = figures(device)
    nominal = device == "cpu" and machine.is_nominal
    candidates, rejected = survey(problem, device, machine, constraints)
    if selector is not None:
        predicted = predict(find_ranker(selector), problem, candidates, machine)
        candidates = [replace(c, seconds=s, predicted=s) for c, s in zip(candidates, predicted, strict=True)]
        return replace(order(problem, candidates, rejected, constraints), nominal=nominal)
    entry, near = store(device).lookup(problem), None
    known = any(m.failure is None for m in entry.values())
    if not known and not measured_only and (found := store(device).near(problem)):
        near, entry_near = found
        candidates = scaled(candidates, near, entry_near, machine)
    if exhaustive or entry.keys() - {a.id for a in ways(problem, device)}:
        reach = VARIED if device == "cpu" else VARIED_GPU
        limit = reach * min((c.seconds for c in candidates), default=0.0) if exhaustive else 0.0
        there = {c.id for c in candidates}
        more = [c for c in varied(problem, device, machine) if c.id not in there]
        candidates += [c for c in more if c.id in entry or c.seconds <= limit]
    ranking = order(problem, candidates, rejected, constraints, entry, near, measured_only)
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
    plain = len(algorithms_on(device, problem.direction))
    for i, algorithm in enumerate(ways(problem, device)):
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
    found = [_candidate(v, problem, machine, device) for v in variants(problem, device, wanted)]
    return sorted(found, key=lambda c: (c.seconds, c.id))


def _candidate(algorithm: Algorithm, problem: ConvProblem, machine: Machine, device: str) -> Candidate:
    computed, seconds = algorithm.computed(problem), cost(algorithm, problem, machine)
    prepare = 0.0 if problem.is_empty else algorithm.prepare_cost(computed, machine)

    def note() -> str:
        with working_on(device):
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
    try:
        plan = planned(first.algorithm, problem, device)
    except Unsupported as error:  # found only now, as that the kernel of a library is wrong
        reason = Rejection(first.id, str(error))
        rest = replace(ranking, candidates=tuple(others), rejected=(*ranking.rejected, reason))
        return explained(rest, device)
    plan.explanation = lambda: str(ranking)
    smaller = tuple(c for c in others if c.workspace_bytes < first.workspace_bytes)
    if smaller:
        rest = replace(ranking, candidates=smaller)
        plan.next_plan = lambda: explained(rest, device)
    return plan


def serve(
    algorithm: Algorithm, problem: ConvProblem, constraints: Constraints | None = None, device: str = "cpu"
) -> Plan:
    """The plan of a forced algorithm, or `Unsupported` with the reason."""
    if device != "cpu" and algorithm.device == "cpu":
        raise Unsupported(f"{algorithm.id} cannot serve {problem}: it runs on the CPU, not on {device}")
    direction = problem.direction
    if direction not in algorithm.directions:
        others = ", ".join(a.id for a in algorithms_on(device, direction) if direction in a.directions)
        raise Unsupported(
            f"{algorithm.id} cannot serve {problem}: it has no {direction}; these have: {others}"
        )
    with working_on(device):
        algorithm = within(algorithm, algorithm.computed(problem), constraints)
        plan = algorithm.serve(problem)
        broken = (constraints or Constraints()).violations(algorithm, *needs(algorithm, problem))
    if broken:
        raise Unsupported(f"{algorithm.id} cannot serve {problem}: {'; '.join(broken.values())}")
    plan.explanation = f"{algorithm.id} was asked for by name\n{problem}"
    return plan


def planned(algorithm: Algorithm, problem: ConvProblem, device: str) -> Plan:
    """The plan of an algorithm, made for a device."""
    with working_on(device):
        return algorithm.serve(problem)


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
