"""Timing: candidates interleaved in rounds, so that a drifting machine is fair to all of them.

Between two candidates the process idles, because threads of one library may spin for tens of milliseconds
after its call and would take the cores of the next; then each burst is warmed up before it is timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from convalgos.algorithm import Plan, numpy_dtype
from convalgos.cpu.reference import reference, reference_at
from convalgos.problem import ConvProblem
from convalgos.select import Ranking, Rejection

WHOLE_REFERENCE_FLOPS = 2e10  # above it, and with long filters, y is checked at SAMPLED_OUTPUTS places
WHOLE_REFERENCE_TAPS = 2048
SAMPLED_OUTPUTS = 512


@dataclass(frozen=True)
class Timing:
    """Seconds of single calls."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.samples)

    @property
    def spread(self) -> float:
        """(third quartile - first quartile) / median."""
        low, high = np.quantile(self.samples, (0.25, 0.75))
        return float((high - low) / self.median)


def interleave(
    calls: dict[str, Callable[[], object]],
    *,
    rounds: int = 3,
    burst: int = 3,
    warm_up: float = 0.02,
    idle: float = 0.03,
    progress: Callable[[], None] = lambda: None,
) -> dict[str, Timing]:
    """Time every call `rounds` times in turn, `burst` samples each.

    Args:
        warm_up: seconds for which a call is repeated, untimed, before a burst (at least one call).
        idle: seconds of sleep before that.
        progress: called after every burst.
    """
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for name, call in _turns(calls, rounds):
        time.sleep(idle)
        until = time.perf_counter() + warm_up
        call()
        while time.perf_counter() < until:
            call()
        for _ in range(burst):
            start = time.perf_counter()
            call()
            samples[name].append(time.perf_counter() - start)
        progress()
    return {name: Timing(tuple(s)) for name, s in samples.items()}


@dataclass(frozen=True)
class Row:
    """One measured candidate. `error`: max|y - float64 answer| / max|float64 answer|."""

    algorithm: str
    median_s: float
    spread: float
    workspace_bytes: int
    error: float
    error_bound: float
    samples_s: tuple[float, ...]


@dataclass(frozen=True)
class Table:
    """Every candidate of a problem, fastest first, and the reasons of those that cannot serve it."""

    problem: ConvProblem
    rows: tuple[Row, ...]
    rejected: tuple[Rejection, ...]

    def __str__(self) -> str:
        lines = [
            str(self.problem),
            f"  {'algorithm':24s} {'median':>13s} {'spread':>8s} {'GFLOP/s':>9s} {'workspace':>12s} "
            f"{'error':>9s}",
        ]
        for r in self.rows:
            lines.append(
                f"  {r.algorithm:24s} {r.median_s * 1e6:10.1f} us {r.spread:8.1%} "
                f"{self.problem.flops / r.median_s / 1e9:9.1f} {r.workspace_bytes / 1e6:9.2f} MB "
                f"{r.error:9.1e}"
            )
        lines += [f"  {r.id:24s} no: {r.why_not}" for r in self.rejected]
        return "\n".join(lines)


class Judge:
    """Knows the float64 answer of a problem on its `random_arrays`, whole or at sampled outputs."""

    def __init__(self, problem: ConvProblem):
        self.problem = problem
        self.x, self.w = random_arrays(problem)
        x = np.moveaxis(self.x, -1, 1) if problem.layout == "channels_last" else self.x
        taps = problem.gemm_k // max(1, problem.w_shape[1])
        if problem.flops <= WHOLE_REFERENCE_FLOPS and taps * problem.groups <= WHOLE_REFERENCE_TAPS:
            self._where = None
            self._answer = reference(problem, x, self.w)
        else:
            rng = np.random.default_rng(1)
            self._where = np.stack(
                [rng.integers(0, size, SAMPLED_OUTPUTS) for size in problem.y_shape], axis=1
            )
            self._answer = reference_at(problem, x, self.w, self._where)

    def error(self, y: np.ndarray) -> float:
        """max|y - answer| / max|answer|; infinite where y is not a number."""
        if self.problem.layout == "channels_last":
            y = np.moveaxis(y, -1, 1)
        if self._where is not None:
            y = y[tuple(self._where.T)]
        if not self._answer.size:
            return 0.0
        worst = float(np.max(np.abs(y - self._answer)))
        scale = float(np.max(np.abs(self._answer))) or 1.0
        return worst / scale if np.isfinite(worst) else float("inf")


def table(
    ranking: Ranking,
    *,
    within: float = float("inf"),
    time_budget: float | None = None,
    rounds: int = 3,
    progress: Callable[[], None] = lambda: None,
) -> Table:
    """Time and check every candidate of a ranking.

    Args:
        within: leave out candidates predicted slower than this multiple of the best prediction.
        time_budget: seconds; candidates are run in the order of their predictions until it is spent. The
            first is always timed.
        rounds: of interleaved timing; a candidate 3x slower than the best after one call is timed once.
    """
    judge = Judge(ranking.problem)
    best_guess = ranking.candidates[0].seconds if ranking.candidates else 0.0
    deadline = time.perf_counter() + (float("inf") if time_budget is None else time_budget)
    runs: dict[str, Callable[[], object]] = {}
    first: dict[str, float] = {}
    errors: dict[str, float] = {}
    rejected = list(ranking.rejected)
    for candidate in ranking.candidates:
        if runs and time.perf_counter() > deadline:
            rejected.append(Rejection(candidate.id, f"not timed: time_budget={time_budget} s was spent"))
            continue
        if candidate.seconds > within * best_guess:
            slower = candidate.seconds / best_guess
            rejected.append(Rejection(candidate.id, f"not timed: predicted {slower:.0f}x slower"))
            continue
        y = np.full(ranking.problem.array_shape(ranking.problem.y_shape), np.nan, judge.x.dtype)
        run = runner(candidate.algorithm.serve(ranking.problem), judge.x, judge.w, y)
        run()
        errors[candidate.id] = judge.error(y)
        start = time.perf_counter()
        run()
        first[candidate.id] = time.perf_counter() - start
        runs[candidate.id] = run
        progress()
    hopeful = {i: run for i, run in runs.items() if first[i] <= 3 * min(first.values())}
    if time_budget is not None:
        per_round = 4 * sum(first[i] for i in hopeful) + 0.05 * len(hopeful)
        rounds = max(1, min(rounds, int((deadline - time.perf_counter()) / max(per_round, 1e-9))))
    timings = {i: Timing((first[i],)) for i in runs} | interleave(hopeful, rounds=rounds, progress=progress)
    by_id = {c.id: c for c in ranking.candidates}
    rows = [
        Row(i, t.median, t.spread, by_id[i].workspace_bytes, errors[i], by_id[i].error_bound, t.samples)
        for i, t in timings.items()
    ]
    rows.sort(key=lambda r: (r.median_s, r.algorithm))
    return Table(ranking.problem, tuple(rows), tuple(rejected))


def measured(ranking: Ranking, *, within: float, time_budget: float | None) -> Ranking:
    """The same ranking, ordered by measured instead of predicted time."""
    if len(ranking.candidates) < 2:
        return ranking
    found = table(ranking, within=within, time_budget=time_budget)
    by_id = {c.id: c for c in ranking.candidates}
    candidates = tuple(replace(by_id[r.algorithm], seconds=r.median_s) for r in found.rows)
    return Ranking(ranking.problem, candidates, found.rejected, "measured")


def random_arrays(problem: ConvProblem, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(x, w) of a problem: standard normal x in its layout, and w scaled so that y is of order 1."""
    rng = np.random.default_rng(seed)
    wide = np.float64 if problem.dtype == "float64" else np.float32
    x = rng.standard_normal(problem.array_shape(problem.x_shape), wide)
    w = rng.standard_normal(problem.w_shape, wide) / wide(np.sqrt(max(1, problem.gemm_k)))
    dtype = numpy_dtype(problem.dtype)
    return x.astype(dtype, copy=False), w.astype(dtype, copy=False)


def runner(plan: Plan, x: np.ndarray, w: np.ndarray, y: np.ndarray) -> Callable[[], object]:
    """A call that does only what `plan.run` must: filter prepared, output allocated."""
    prepared = plan.prepare(w)
    return lambda: plan(x, prepared, out=y)


def _turns(calls: dict[str, Callable[[], object]], rounds: int) -> Iterator[tuple[str, Callable]]:
    for turn in range(rounds):  # every second round runs backwards: no one always follows the same one
        yield from calls.items() if turn % 2 == 0 else reversed(calls.items())
