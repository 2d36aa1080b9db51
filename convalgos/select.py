"""Discover, filter, rank, explain.

The one list of algorithms that selector, tests and benchmarks read comes from the `ALGORITHMS` of every
module in `convalgos.cpu` and `convalgos.gpu`. `rank` orders those that can serve a problem by predicted
time; ties are broken by id, so that picks repeat.
"""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass
from functools import cache
from importlib import import_module

from convalgos import machine as machine_figures
from convalgos.algorithm import Algorithm, CastPlan, Plan, Unsupported
from convalgos.machine import Machine
from convalgos.problem import ConvProblem

DEVICES = ("cpu", "gpu")


@dataclass(frozen=True)
class Candidate:
    """An algorithm that can serve a problem."""

    algorithm: Algorithm
    seconds: float  # predicted, or measured where the selector was asked to measure
    workspace_bytes: int
    error_bound: float

    @property
    def id(self) -> str:
        return self.algorithm.id


@dataclass(frozen=True)
class Rejection:
    """An algorithm that cannot, and why not."""

    id: str
    why_not: str


@dataclass(frozen=True)
class Ranking:
    """What the selector sees: candidates from fastest to slowest, and the rejected with their reasons."""

    problem: ConvProblem
    candidates: tuple[Candidate, ...]
    rejected: tuple[Rejection, ...]
    basis: str = "predicted"  # or "measured"

    def __str__(self) -> str:
        p = self.problem
        lines = [
            f"{p}",
            f"  y {p.y_shape}, {p.flops / 1e9:.3g} GFLOP, {p.bytes / 1e6:.3g} MB, "
            f"GEMM view {p.gemm_m} x {p.gemm_n} x {p.gemm_k} x {p.groups} groups",
            f"  {'algorithm':24s} {self.basis + ' time':>16s} {'workspace':>12s} {'error bound':>12s}",
        ]
        for rank, c in enumerate(self.candidates):
            mark = "->" if rank == 0 else "  "
            lines.append(
                f"{mark}{c.id:24s} {c.seconds * 1e6:13.1f} us {c.workspace_bytes / 1e6:9.2f} MB "
                f"{c.error_bound:12.1e}"
            )
        lines += [f"  {r.id:24s} no: {r.why_not}" for r in self.rejected]
        return "\n".join(lines)


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


def find_algorithm(algorithm_id: str) -> Algorithm:
    """The algorithm of an id.

    Raises:
        ValueError: there is none; the message lists those there are.
    """
    for algorithm in algorithms():
        if algorithm.id == algorithm_id:
            return algorithm
    known = ", ".join(a.id for a in algorithms())
    raise ValueError(f"algorithm={algorithm_id!r} must be 'auto' or one of {known}")


@cache
def current_machine() -> Machine:
    """The figures of this machine, measured in about two seconds the first time ever."""
    from convalgos.cpu import calibrate

    threads = calibrate.thread_count()
    stored = machine_figures.load(threads)
    if stored is None:
        stored = calibrate.measure(threads)
        machine_figures.save(stored)
    return stored


def rank(
    problem: ConvProblem,
    device: str = "cpu",
    *,
    workspace_limit: int | None = None,
    max_rel_error: float | None = None,
) -> Ranking:
    """Order all candidates for a problem by predicted time, and collect the reasons of the others."""
    machine = current_machine()
    candidates: list[Candidate] = []
    rejected: list[Rejection] = []
    for algorithm in algorithms(device):
        computed = algorithm.computed(problem)
        reason = algorithm.why_not(computed)
        if reason is None:
            seconds = 0.0 if problem.is_empty else algorithm.cost(computed, machine)
            candidate = Candidate(algorithm, seconds, *_needs(algorithm, problem))
            reason = _over_limit(
                candidate.workspace_bytes, candidate.error_bound, workspace_limit, max_rel_error
            )
        if reason is None:
            candidates.append(candidate)
        else:
            rejected.append(Rejection(algorithm.id, reason))
    candidates.sort(key=lambda c: (c.seconds, c.id))
    return Ranking(problem, tuple(candidates), tuple(rejected))


def pick(
    problem: ConvProblem,
    device: str = "cpu",
    *,
    workspace_limit: int | None = None,
    max_rel_error: float | None = None,
) -> Plan:
    """The plan of the candidate that ranks first.

    Raises:
        Unsupported: no algorithm can serve the problem within the limits; lists each reason.
    """
    return explained(rank(problem, device, workspace_limit=workspace_limit, max_rel_error=max_rel_error))


def explained(ranking: Ranking) -> Plan:
    """The plan of the first candidate, which can say why it was picked."""
    problem = ranking.problem
    if not ranking.candidates:
        reasons = "; ".join(f"{r.id}: {r.why_not}" for r in ranking.rejected)
        raise Unsupported(f"no algorithm can serve {problem}: {reasons or 'there is none'}")
    plan = ranking.candidates[0].algorithm.serve(problem)
    plan.explanation = str(ranking)
    return plan


def serve(
    algorithm: Algorithm,
    problem: ConvProblem,
    *,
    workspace_limit: int | None = None,
    max_rel_error: float | None = None,
) -> Plan:
    """The plan of a forced algorithm, or `Unsupported` with the reason."""
    plan = algorithm.serve(problem)
    if reason := _over_limit(*_needs(algorithm, problem), workspace_limit, max_rel_error):
        raise Unsupported(f"{algorithm.id} cannot serve {problem}: {reason}")
    plan.explanation = f"{algorithm.id} was asked for by name\n{problem}"
    return plan


def _needs(algorithm: Algorithm, problem: ConvProblem) -> tuple[int, float]:
    """(bytes of workspace, error bound), those of converting 16-bit data among them."""
    computed = algorithm.computed(problem)
    workspace_bytes, error_bound = algorithm.workspace_bytes(computed), algorithm.error_bound(computed)
    if computed is problem:
        return workspace_bytes, error_bound
    return workspace_bytes + CastPlan.converted_bytes(problem), error_bound + problem.eps


def _over_limit(
    workspace_bytes: int, error_bound: float, workspace_limit: int | None, max_rel_error: float | None
) -> str | None:
    if workspace_limit is not None and workspace_bytes > workspace_limit:
        return f"needs {workspace_bytes} bytes of workspace, over workspace_limit={workspace_limit}"
    if max_rel_error is not None and error_bound > max_rel_error:
        return f"its error bound {error_bound:.1e} is over max_rel_error={max_rel_error:.1e}"
    return None
