"""Every candidate of a problem checked and timed, as `convalgos find` shows it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from convalgos.core.interference import LEAST, LONG
from convalgos.core.plan import result_dtype
from convalgos.core.problem import ConvProblem
from convalgos.core.tabular import Tabular, count, microseconds
from convalgos.select.measure.accuracy import AccuracyCheck
from convalgos.select.measure.backends import Backend
from convalgos.select.measure.timing import Progress, Timing, interleave, silent, spread_told
from convalgos.select.measure.trial import Trial, start
from convalgos.select.measured import Entry
from convalgos.select.ranking import Candidate, Ranking, Rejection, worth_telling

HOPELESS = 50.0  # candidates predicted this many times slower than the best are not timed ...
HARMLESS = 0.5  # ... unless a call is predicted to take no more than these seconds
SLOW = 3.0  # candidates this many times slower than the best when first run are not timed again


@dataclass(frozen=True)
class Row:
    """One measured candidate. `error`: max|y - float64 answer|, relative as `Algorithm.error_bound` is."""

    algorithm: str
    timing: Timing
    workspace_bytes: int
    error: float
    error_bound: float
    prepare_s: float | None = None  # to prepare the filter
    host_s: float | None = None  # for which a call keeps the host, where it does not wait for the device

    @property
    def median_s(self) -> float:
        return self.timing.median

    @property
    def samples_s(self) -> tuple[float, ...]:
        return self.timing.samples

    @property
    def spread(self) -> float:
        return self.timing.spread

    @property
    def believable(self) -> bool:
        """Its time; see `Timing`."""
        return self.timing.believable

    @property
    def wrong(self) -> bool:
        return not self.error <= self.error_bound


@dataclass(frozen=True)
class Table(Tabular):
    """Every candidate of a problem, fastest first, and the reasons of those that are not among them."""

    problem: ConvProblem
    rows: tuple[Row, ...]
    rejected: tuple[Rejection, ...]
    failed: tuple[Rejection, ...] = ()  # those that raised an error, which they never should
    others: dict[str, Timing] = field(default_factory=dict)  # calls timed in the same rounds

    def __repr__(self) -> str:
        rest = (
            f"{count(len(self.rows), 'candidate')}, {len(self.rejected)} rejected, {len(self.failed)} failed"
        )
        if not self.rows:
            return f"<Table of {self.problem}: nothing was measured; {rest}>"
        first = self.rows[0]
        rate = self.problem.flops / first.median_s / 1e9
        return (
            f"<Table of {self.problem}: {first.algorithm} is the fastest, {microseconds(first.median_s)}, "
            f"{rate:.1f} GFLOP/s, error {first.error:.1e}; {rest}>"
        )

    def to_dict(self) -> dict[str, Any]:
        """All of it as `json.dumps` takes it; an error is None where it is not known or not finite."""
        return {
            "problem": str(self.problem),
            "flops": self.problem.flops,
            "candidates": [
                r | {"samples_s": list(row.samples_s)}
                for r, row in zip(self._frame_rows(), self.rows, strict=True)
            ],
            "rejected": [{"algorithm": r.id, "why_not": r.why_not} for r in self.rejected],
            "failed": [{"algorithm": r.id, "why_not": r.why_not} for r in self.failed],
            "others": {
                name: {"median_s": t.median, "samples_s": list(t.samples)} for name, t in self.others.items()
            },
        }

    def _frame_rows(self) -> list[dict[str, Any]]:
        return [
            {
                "algorithm": r.algorithm,
                "median_s": r.median_s,
                "spread": r.spread if len(r.samples_s) > 1 else None,
                "gflops_per_s": self.problem.flops / r.median_s / 1e9,
                "prepare_s": r.prepare_s,
                "host_s": r.host_s,
                "workspace_bytes": r.workspace_bytes,
                "error": r.error if math.isfinite(r.error) else None,
                "error_bound": r.error_bound,
            }
            for r in self.rows
        ]

    def __str__(self) -> str:
        lines = [
            str(self.problem),
            f"  {'algorithm':24s} {'median':>13s} {'spread':>8s} {'GFLOP/s':>9s} {'workspace':>12s} "
            f"{'error':>9s}",
        ]
        for r in self.rows:
            lines.append(
                f"  {r.algorithm:24s} {r.median_s * 1e6:10.1f} us {spread_told(r.samples_s):>8s} "
                f"{self.problem.flops / r.median_s / 1e9:9.1f} {r.workspace_bytes / 1e6:9.2f} MB "
                f"{r.error:9.1e}"
            )
        told, others = worth_telling(self.rejected)
        lines += [f"  {r.id:24s} no: {r.why_not}" for r in told]
        lines += [f"  {others}"] if others else []
        lines += [f"  {r.id:24s} FAILED: {r.why_not}" for r in self.failed]
        return "\n".join(lines)


def time_candidates(
    ranking: Ranking,
    *,
    within: float = HOPELESS,
    harmless: float = HARMLESS,
    time_budget: float | None = None,
    rounds: int = 3,
    check: AccuracyCheck | None = None,
    others: Mapping[str, Callable[[], object]] = MappingProxyType({}),
    progress: Progress = silent,
) -> Table:
    """Time and check every candidate of a ranking.

    1. Each is run for the first time, its result checked, and a few samples taken.
    2. Those that are not SLOW are timed in rounds, interleaved with `others`.
    3. The rows are ordered by their medians.

    Args:
        within: leave out candidates predicted slower than this multiple of the best prediction,
        harmless: unless they are predicted to take no more than these seconds.
        time_budget: seconds; candidates are run in the order of their predictions until it is spent. The
            first is always timed.
        rounds: of interleaved timing; a candidate that is SLOW when first run is not timed again, except
            the first of the ranking.
        check: of this problem, where the caller has one already. The candidates run on its backend.
        others: calls of other libraries, warmed up, to be timed in the same rounds.
        progress: called before every step.
    """
    check = check or AccuracyCheck(ranking.problem)
    backend = check.backend
    deadline = math.inf if time_budget is None else time.perf_counter() + time_budget
    first_runs = _FirstRuns(ranking, check, worth_timing(ranking, within, harmless), deadline, time_budget)
    first_runs.run(progress)
    calls = {t.id: t.call for t in first_runs.trials if t.call is not None}
    if time_budget is not None:
        firsts = [t.best for t in first_runs.trials if t.call is not None]
        rounds = max(1, min(rounds, _rounds_until(deadline, firsts, backend)))
    for trial in first_runs.trials:
        trial.call = None
    timings = interleave(
        calls | dict(others),
        rounds=rounds,
        backend=backend,
        deadline=deadline,
        progress=lambda what, done: progress(what, 0.5 + done / 2),
    )
    hosts = {name: backend.host_seconds(call) for name, call in calls.items()}
    rows = [_row(t, timings.get(t.id), hosts.get(t.id)) for t in first_runs.trials]
    return Table(
        ranking.problem,
        _fastest_first(rows),
        tuple(first_runs.rejected),
        tuple(first_runs.failed),
        {name: timings[name] for name in others},
    )


def worth_timing(ranking: Ranking, within: float = HOPELESS, harmless: float = HARMLESS) -> set[str]:
    """The candidates that a table times."""
    predicted = {c.id: c.predicted_s for c in ranking.candidates}
    tolerable = max(harmless, within * min(predicted.values(), default=0.0))
    return {name for name, seconds in predicted.items() if seconds <= tolerable}


def known_table(ranking: Ranking, found: Entry) -> Table:
    """The table of what was measured by a race."""
    bounds = {c.id: c.error_bound for c in ranking.candidates}
    rows = [
        Row(
            name,
            Timing(m.samples_s),
            m.workspace_bytes,
            math.nan if m.error is None else m.error,
            bounds[name],
            m.prepare_s,
        )
        for name, m in found.items()
        if m.failure is None
    ]
    least = ranking.candidates[0].estimate_s if ranking.candidates else 0.0
    failed = tuple(Rejection(name, m.failure) for name, m in found.items() if m.failure is not None)
    rest = tuple(
        Rejection(c.id, f"not timed, or disturbed: predicted {c.estimate_s:.2g} s, {least:.2g} best")
        for c in ranking.candidates
        if c.id not in found
    )
    return Table(ranking.problem, _fastest_first(rows), ranking.rejected + rest, failed)


class _FirstRuns:
    """Runs candidates for the first time, one after the other, until a deadline."""

    def __init__(
        self,
        ranking: Ranking,
        check: AccuracyCheck,
        tolerable: set[str],
        deadline: float,
        time_budget: float | None,
    ):
        self._ranking, self._check, self._tolerable = ranking, check, tolerable
        self._deadline, self._time_budget = deadline, time_budget
        self._least = min((c.predicted_s for c in ranking.candidates), default=0.0)
        self.trials: list[Trial] = []
        self.rejected = list(ranking.rejected)
        self.failed: list[Rejection] = []

    def run(self, progress: Progress) -> None:
        check, backend, candidates = self._check, self._check.backend, self._ranking.candidates
        problem = check.problem
        y = backend.empty(problem.array_shapes[2], result_dtype(problem))  # of all, one after the other
        arrays = backend.put(check.x), backend.put(check.w), y
        time.sleep(backend.idle)
        for turn, candidate in enumerate(candidates):
            progress(candidate.id, turn / len(candidates) / 2)
            if reason := self._left_out(candidate):
                self.rejected.append(Rejection(candidate.id, reason))
                continue
            try:
                self.trials.append(_first_run(candidate, check, arrays))
            except MemoryError as error:  # that there is no room now says nothing of the next time
                self.rejected.append(Rejection(candidate.id, f"not timed: no memory ({error})"))
            except Exception as error:  # one that is broken must not hide what is known of the others
                self.failed.append(Rejection(candidate.id, f"{type(error).__name__}: {error}"))
                if backend.lost():
                    break
            self._let_go_of_the_slow()

    def _left_out(self, candidate: Candidate) -> str:
        """Why a candidate is not run, or nothing."""
        if self.trials and time.perf_counter() > self._deadline:
            return f"not timed: time_budget={self._time_budget} s was spent"
        if candidate.id not in self._tolerable:
            return f"not timed: predicted {candidate.predicted_s:.2g} s, {self._least:.2g} best"
        return ""

    def _let_go_of_the_slow(self) -> None:
        """Their workspaces are free for the next ones. The first of the ranking stays."""
        slow = SLOW * min((t.best for t in self.trials), default=0.0)
        for trial in self.trials:
            if trial.best > slow and trial.candidate is not self._ranking.candidates[0]:
                trial.call = None


def _first_run(candidate: Candidate, check: AccuracyCheck, arrays: tuple[Any, Any, Any]) -> Trial:
    """A candidate run and checked, on arrays of the check's backend."""
    backend = check.backend
    trial = start(candidate, check.problem, arrays, backend, prepares=2)
    assert trial.call is not None
    backend.spoil(arrays[2])
    trial.call()
    trial.error = check.error(arrays[2])
    for _ in range(2 * LEAST):
        backend.sample(trial.call, trial.samples)
        if trial.samples.enough or trial.best >= LONG:
            break
    return trial


def _rounds_until(deadline: float, firsts: list[float], backend: Backend) -> int:
    """How many rounds of calls that took these seconds there is time for."""
    per_round = sum(4 * first + backend.idle + backend.warm_up for first in firsts) or 1.0
    return int((deadline - time.perf_counter()) / per_round)


def _row(trial: Trial, timing: Timing | None, host_s: float | None) -> Row:
    """What was found of a candidate; of one that was not timed in rounds the fastest of its first runs."""
    c = trial.candidate
    timing = timing or Timing((trial.best,), trial.samples.believable)
    return Row(c.id, timing, c.workspace_bytes, trial.error, c.error_bound, trial.prepare_s, host_s)


def _fastest_first(rows: list[Row]) -> tuple[Row, ...]:
    return tuple(sorted(rows, key=lambda r: (r.median_s, r.algorithm)))
