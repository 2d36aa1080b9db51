"""The public calls about plans: to choose one, to measure candidates, to explain a choice, to forget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from convalgos.api.types import Device, Effort, Names, OnMiss
from convalgos.core import allocator, arguments, plan_cache, profiles, recent_filters, workspaces
from convalgos.core.algorithm import Algorithm
from convalgos.core.errors import Unsupported
from convalgos.core.machine import memory_bytes
from convalgos.core.plan import Plan
from convalgos.core.problem import ConvProblem
from convalgos.select import choose, devices, registry, shape_buckets
from convalgos.select.constraints import Constraints
from convalgos.select.measured import Entry
from convalgos.select.ranking import Ranking

if TYPE_CHECKING:
    from convalgos.select.measure.table import Table

MOST_MEMORIES = 4  # times the memory of the machine that the arrays of a plan may take
EFFORTS = ("estimate", "adapt", "measure", "exhaustive")
ON_MISS = ("estimate", "error")


def plan(
    problem: ConvProblem,
    device: Device = "cpu",
    algorithm: str = "auto",
    *,
    effort: Effort = "estimate",
    workspace_limit: int | None = None,
    max_rel_error: float | None = None,
    deterministic: bool = False,
    time_budget: float | None = None,
    allow: Names = None,
    deny: Names = None,
    strict_nan: bool = False,
    expected_calls: int | None = None,
    weights_constant: bool = True,
    on_miss: OnMiss = "estimate",
    selector: str | None = None,
    precisions: Names = None,
    equal_bits: bool = False,
) -> Plan:
    """Choose an algorithm for a problem and build everything that does not depend on the data.

    Args:
        device: "cpu", "cuda:N", or "cuda" for CuPy's current device.
        algorithm: "auto", or an id from `algorithms()`.
        effort: "estimate" times nothing: it goes by what was measured before on this problem or a near one,
            else by the cost models. "adapt" times the plan's own first calls, about ten, spread over the
            candidates that the models cannot tell apart; then it settles on the fastest. Every answer is
            right, but bits may differ until then. "measure" times the candidates that may be the fastest, in
            about twenty times a run, unless that was done before; on a GPU, which goes on working after a
            call, "adapt" does the same. "exhaustive" times and checks them all, and other
            settings of the best. What is measured is remembered (`convalgos.wisdom`).
        workspace_limit: bytes of scratch that a call may take.
        max_rel_error: largest acceptable error bound, relative to max|y|.
        deterministic: same bits on every run, which effort="adapt" cannot promise. Every CPU algorithm is;
            the argument is for the GPU.
        time_budget: seconds that measuring may take, compiling included.
        allow, deny: families or ids to choose from, or not to: "cpu.winograd", ["cpu.fft", "cpu.direct"].
        strict_nan: a NaN in x reaches only the outputs under whose filter it lies: no Winograd, no FFT.
        expected_calls: how often the plan will run, where that is not often: each run then counts its share
            of preparing the filter, and measuring takes no longer than the runs.
        weights_constant: False where the filter is another in each call, and is prepared each time.
        on_miss: what to do where this problem was not measured before: "estimate", or "error", which replays
            only what is known and says what that is.
        selector: the name of a ranker from `select.register`, whose predictions then decide alone.
        precisions: number formats to choose from for a float32 problem on the CPU: some of "float32",
            "bfloat16", "float16", "int8". What is fastest is picked, conversions of x in each call counted,
            within `max_rel_error`; x and y stay float32. None: float32 alone.
        equal_bits: filters that are equal give outputs of equal bits: no Strassen, no BLAS. For channels that
            are compared with each other, as by an argmax.

    Raises:
        ValueError: an argument is invalid. Unsupported: nothing can serve the problem; says why.

    Example:
        >>> import convalgos as ca
        >>> ca.plan(ca.ConvProblem.parse("n1 c8 h8 w8 k8 r1 s1")).problem.gemm_k
        8
    """
    device = _check(problem, device)
    for name, value, valid in (("effort", effort, EFFORTS), ("on_miss", on_miss, ON_MISS)):
        arguments.one_of(name, value, valid)
    if time_budget is not None:
        arguments.check_number("time_budget", time_budget, 0)
    if not isinstance(selector, str | None):
        raise ValueError(f"selector={arguments.shown(selector)} must be None or the name of a ranker")
    if on_miss == "error" and (effort != "estimate" or selector is not None):
        raise ValueError("on_miss='error' replays what is known: it goes with effort='estimate', no selector")
    if effort == "adapt" and deterministic:
        raise ValueError(
            "deterministic=True does not go with effort='adapt', whose first calls run several algorithms, "
            "each with bits of its own; effort='measure' goes with it"
        )
    constraints = Constraints(
        workspace_limit, max_rel_error, deterministic, strict_nan, allow, deny, expected_calls,
        weights_constant, precisions, equal_bits,
    )  # fmt: skip
    _check_precisions(problem, device, constraints)
    if algorithm != "auto":
        made = choose.serve(registry.find_algorithm(algorithm, problem), problem, constraints, device)
    elif on_miss == "error":
        made = replay(problem, device, constraints)
    elif effort == "adapt" and device == "cpu" and not problem.is_empty:
        from convalgos.select.measure.adapting_plan import adaptive_plan

        made = adaptive_plan(problem, constraints, selector)
    elif effort != "estimate" and not problem.is_empty:
        made = _measured(problem, device, constraints, effort, time_budget, selector)
    else:
        made = choose.choose_plan(problem, device, constraints, selector)
    return made


def find(
    problem: ConvProblem,
    *,
    device: Device = "cpu",
    effort: Effort = "exhaustive",
    time_budget: float | None = None,
    **limits: Any,
) -> Table:
    """Time every candidate on a problem, and remember the result (`convalgos.wisdom`).

    Args:
        device: "cpu", "cuda:N", or "cuda" for CuPy's current device. On a GPU the times are its own, of calls
            whose data are in L2 where they fit, and the wisdom is that of GPUs of its kind.
        effort: "exhaustive" times every candidate that is not hopeless, and other settings of the best,
            checks each result against float64 and takes its time; "measure" races the promising ones, as
            `plan` does, and checks them more briefly. Wrong results and times that other programs disturbed
            are not used, which a RuntimeWarning says.
        time_budget: seconds that it may take. Without one the machine is measured first, where it never was.
        limits: those of `plan`: workspace_limit, max_rel_error, deterministic, allow, deny, strict_nan,
            precisions, equal_bits.

    Returns:
        A table, fastest first: id, median seconds with spread, workspace, error against float64, or the
        reason why not. It prints as text; `table.rows` are the entries.

    Raises:
        ValueError, TypeError: an argument is invalid; the message names it.

    Example:
        >>> import convalgos as ca
        >>> table = ca.find(ca.ConvProblem.parse("n1 c4 h9 w9 k4 r3 s3 p1"))
        >>> table.rows[0].median_s > 0
        True
    """
    from convalgos.select.measure import accuracy, race, remembered
    from convalgos.select.measure.backends import backend
    from convalgos.select.measure.table import known_table, time_candidates

    device, constraints = _check(problem, device), Constraints(**limits)
    if effort not in EFFORTS[2:]:
        raise ValueError(f"effort={effort!r} must be one of {', '.join(map(repr, EFFORTS[2:]))}")
    _check_precisions(problem, device, constraints)
    if time_budget is None:
        devices.measured_figures(device)
    ranking = choose.rank(problem, device, constraints, exhaustive=_tries_variants(effort, device))
    if effort == "exhaustive":
        check = accuracy.AccuracyCheck(problem, backend(device))
        table = time_candidates(ranking, time_budget=time_budget, check=check)
        remember(problem, remembered.of_table(table), device)
        return table
    found = race.race(problem, ranking.candidates, time_budget=time_budget, backend=backend(device))
    remember(problem, found, device)
    return known_table(ranking, found)


def explain(
    problem: ConvProblem,
    *,
    device: Device = "cpu",
    selector: str | None = None,
    exhaustive: bool = False,
    **limits: Any,
) -> Ranking:
    """The ranking as the selector sees it: `candidates`, the pick first, and `rejected`. Prints as text.

    It gives the predicted and, where there is one, the measured time of each candidate, the reason of each
    rejection, the margin of the first over the second, which candidates are tied (`Ranking.tied`: the models
    cannot tell them from the first), and what each limit costs: the time of the pick over that of the pick
    without this limit.

    Args:
        exhaustive: with the other settings that an exhaustive search would try, as each plan of cuDNN.
        selector, limits: those of `plan`: workspace_limit, max_rel_error, deterministic, allow, deny,
            strict_nan, expected_calls, weights_constant, precisions, equal_bits.

    Raises:
        ValueError, TypeError: an argument is invalid; the message names it.

    Example:
        >>> import convalgos as ca
        >>> ranking = ca.explain(ca.ConvProblem.parse("n1 c4 h9 w9 k4 r3 s3 p1"), deny=["cpu.direct"])
        >>> {r.id: r.why_not for r in ranking.rejected}["cpu.direct"]
        'is denied by deny=cpu.direct'
    """
    device, constraints = _check(problem, device, runs=False), Constraints(**limits)
    _check_precisions(problem, device, constraints)
    return choose.rank(problem, device, constraints, selector=selector, exhaustive=exhaustive)


def replay(problem: ConvProblem, device: str, constraints: Constraints) -> Plan:
    """The plan of what was measured fastest on this very problem.

    Raises:
        Unsupported: nothing was measured, or nothing within the limits; says what is known.
    """
    ranking = choose.rank(problem, device, constraints, measured_only=True)
    if ranking.candidates:
        return choose.explained(ranking, device)
    store = devices.store(device)
    known = store.lookup(problem)
    if known:
        out = "; ".join(f"{r.id}: {r.why_not}" for r in ranking.rejected if r.id in known)
        told = f"of the {len(known)} candidates that were measured none may be used: {out}"
    else:
        told = f"it was not measured on this machine, of which {len(store.entries())} problems are known"
        if near := store.near(problem):
            told += f", the most similar being {near[0]}"
        told += "; ca.plan(problem, effort='measure') measures it"
    raise Unsupported(f"on_miss='error' and {problem}: {told}")


def algorithms() -> tuple[Algorithm, ...]:
    """Every algorithm, ordered by id: the one list that selector, tests and benchmarks read.

    Each has `why_not(problem)`, `cost(problem, machine)`, `workspace_bytes(problem)`, `error_bound(problem)`
    and `plan(problem)`.

    Example:
        >>> import convalgos as ca
        >>> problem = ca.ConvProblem.parse("n1 c4 h9 w9 k4 r5 s5")
        >>> {a.id: a.why_not(problem) for a in ca.algorithms()}["cpu.winograd.f4x3"]
        'needs 3 taps in one dimension of the plane, and 3 or 1 in the other; kernel 5x5 has 5 by 5'
    """
    return registry.algorithms()


# --- inside ----------------------------------------------------------------------------------


def _check(problem: Any, device: str, runs: bool = True) -> str:
    """The device's full name: "cuda" is another one for another thread, or later."""
    if not isinstance(problem, ConvProblem):
        raise TypeError(f"problem={arguments.shown(problem)} must be a ConvProblem")
    if not isinstance(device, str):
        raise ValueError(f"device={arguments.shown(device)} must be 'cpu', 'cuda' or 'cuda:N'")
    if device == "cpu":
        if runs:
            _check_room(problem)
        return device
    if runs and device in profiles.of_gpus():
        raise Unsupported(f"device={device!r} is known by its figures only, for ca.explain")
    from convalgos.gpu import device as gpu

    return gpu.named(device).name


def _check_precisions(problem: ConvProblem, device: str, constraints: Constraints) -> None:
    """Formats are chosen from where a conversion stands in front: of float32, forward, on the CPU."""
    wanted = constraints.precisions
    if wanted is None or set(wanted) == {problem.dtype}:
        return
    if problem.dtype != "float32" or problem.direction != "forward" or device != "cpu":
        raise ValueError(
            f"precisions={wanted} must be None, or a choice for a float32 problem, forward, on the CPU: not "
            f"for {problem} on {device}"
        )


def _check_room(problem: ConvProblem) -> None:
    """Arrays may lie in files larger than memory, but not in such that planning alone would take hours."""
    room = memory_bytes()
    if room is not None and problem.bytes > MOST_MEMORIES * room:
        needed, there = (f"{nbytes / 2**30:,.1f} GiB" for nbytes in (problem.bytes, room))
        names = ", ".join(problem.arrays)
        raise Unsupported(f"{problem}: {names} take {needed}, and this machine has {there} of memory")


def _measured(
    problem: ConvProblem,
    device: str,
    constraints: Constraints,
    effort: str,
    time_budget: float | None,
    selector: str | None,
) -> Plan:
    """The plan of what is measured fastest, measuring what is not known yet."""
    from convalgos.select.measure import accuracy, race, remembered
    from convalgos.select.measure.backends import backend
    from convalgos.select.measure.table import time_candidates

    exhaustive = _tries_variants(effort, device) and selector is None
    ranking = choose.rank(problem, device, constraints, selector=selector, exhaustive=exhaustive)
    if effort == "exhaustive":
        check = accuracy.AccuracyCheck(problem, backend(device))
        table = time_candidates(ranking, within=float("inf"), time_budget=time_budget, check=check)
        found = remembered.of_table(table)
    else:
        best = ranking.candidates[0].estimate_s if ranking.candidates else 0.0
        calls = constraints.expected_calls
        found = race.race(
            problem,
            race.open_questions(ranking.candidates),
            time_budget=time_budget,
            runs_budget=None if calls is None else calls * best,
            backend=backend(device),
        )
    remember(problem, found, device)
    decided = choose.rank(problem, device, constraints, measured_only=True)
    if not decided.candidates:  # all that was tried has failed: the rest, without them
        decided = choose.rank(problem, device, constraints, selector=selector)
    return choose.explained(decided, device)


def _tries_variants(effort: str, device: str) -> bool:
    """Whether measuring tries other settings, too: on a GPU always, as cuDNN's can only be measured."""
    return effort == "exhaustive" or device != "cpu"


def remember(problem: ConvProblem, found: Entry, device: Device = "cpu") -> None:
    """Add to the wisdom what was measured, and let `conv` choose by it."""
    if found:
        devices.store(device).record(problem, found)
        forget_plans()


def forget_plans() -> None:
    """Let go of all that is kept for later calls of `conv` and its kin, so that they choose and plan anew.

    The memory goes back to the system: plans, their tables and workspaces, and that of results which were
    dropped. What was measured, and compiled kernels, stay. Of plans and workspaces the least recently used go
    by themselves where they take more than a sixteenth of the memory, or than CONVALGOS_KEPT_BYTES says.

    Example:
        >>> import convalgos as ca
        >>> ca.forget_plans()
    """
    plan_cache.forget_all_plans()
    shape_buckets.forget_choices()
    recent_filters.forget_recent()
    workspaces.release_workspaces()
    allocator.release_arrays()
