"""Timing: candidates interleaved in rounds, so that a drifting machine is fair to all of them.

Between two candidates the process idles, because threads of one library may spin for tens of milliseconds
after its call and would take the cores of the next; then each burst is warmed up before it is timed.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from types import MappingProxyType
from typing import Any

import numpy as np

from convalgos.core.interference import LEAST, LONG, Samples
from convalgos.core.plan import Plan
from convalgos.core.problem import ConvProblem
from convalgos.core.tabular import Tabular, count, microseconds
from convalgos.core.version import __version__
from convalgos.measure.accuracy import AccuracyCheck
from convalgos.measure.backends import CPU, Backend
from convalgos.select.measured import Entry, Measured, relative_spread
from convalgos.select.ranking import Candidate, Ranking, Rejection, worth_telling

HOPELESS = 50.0  # candidates predicted this many times slower than the best are not timed ...
HARMLESS = 0.5  # ... unless a call is predicted to take no more than these seconds
UNBOUNDED = 1e30  # stands for an error that is not finite, where it is kept
LONG_CALL = 0.3  # seconds; so long a call needs no warm-up, and is timed once where others are in a burst
SINGLE_CALL = 2.0  # seconds; so long a call is timed once in all
SLOW = 3.0  # candidates this many times slower than the best when first run are not timed again

Progress = Callable[[str, float], None]  # what is done next, and the share that is done


def silent(what: str, done: float) -> None:
    """Progress that nobody watches."""


@dataclass(frozen=True)
class Timing:
    """Seconds of single calls."""

    samples: tuple[float, ...]
    believable: bool = True  # not disturbed by other programs, and agreeing with one another

    @property
    def median(self) -> float:
        return median(self.samples)

    @property
    def spread(self) -> float:
        """(third quartile - first quartile) / median."""
        low, high = self.quartiles
        return (high - low) / self.median

    @property
    def quartiles(self) -> tuple[float, float]:
        """The first and the third."""
        low, high = np.quantile(self.samples, (0.25, 0.75))
        return float(low), float(high)


def interleave(
    calls: dict[str, Callable[[], object]],
    *,
    rounds: int = 3,
    burst: int = 3,
    backend: Backend = CPU,
    deadline: float = math.inf,
    progress: Progress = silent,
) -> dict[str, Timing]:
    """Time every call `rounds` times in turn, `burst` samples each, and again as often where others disturb.

    Args:
        backend: of the calls. It says for how long to sleep before a burst, and then to repeat the call
            untimed (at least once). A call longer than LONG_CALL is its own warm-up: it is timed, once, and
            one longer than SINGLE_CALL in the first round only.
        deadline: of `time.perf_counter`, after which nothing is timed once more.
        progress: called before every burst.
    """
    samples = {name: Samples() for name in calls}

    def time_once(name: str, call: Callable[[], object]) -> None:
        known = samples[name]
        time.sleep(backend.idle)
        until = time.perf_counter() + backend.warm_up
        first = backend.sample(call, trial := Samples())
        if first > LONG_CALL:
            known.add(first, bool(trial.disturbed))
            return
        while time.perf_counter() < until:
            backend.seconds(call)
        for _ in range(burst):
            backend.sample(call, known)

    for turn, (name, call) in enumerate(_turns(calls, rounds)):
        progress(name, turn / (rounds * len(calls)))
        if turn >= len(calls) and samples[name].best > SINGLE_CALL:
            continue
        time_once(name, call)
    for name, call in _turns(calls, rounds):  # once more, as often at most, what was disturbed
        known = samples[name]
        if not known.believable and known.best <= SINGLE_CALL and time.perf_counter() < deadline:
            progress(name, 1.0)
            if known.enough:
                samples[name] = Samples()  # that did not agree
            time_once(name, call)
    return {name: timing(known) for name, known in samples.items()}


def timing(samples: Samples) -> Timing:
    """What samples tell together."""
    return Timing(samples.all, samples.believable)


@dataclass(frozen=True)
class Row:
    """One measured candidate. `error`: max|y - float64 answer|, relative as `Algorithm.error_bound` is."""

    algorithm: str
    median_s: float
    spread: float
    workspace_bytes: int
    error: float
    error_bound: float
    samples_s: tuple[float, ...]
    prepare_s: float | None = None  # to prepare the filter
    host_s: float | None = None  # for which a call keeps the host, where it does not wait for the device
    believable: bool = True  # its time; see `Timing`

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


def table(
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
    deadline = time.perf_counter() + (float("inf") if time_budget is None else time_budget)
    predicted = _predicted(ranking)
    least = min(predicted.values(), default=0.0)
    tolerable = worth_timing(ranking, within, harmless)
    backend = check.backend
    x, w = backend.put(check.x), backend.put(check.w)
    y = backend.empty(check.problem.array_shapes[2], check.x.dtype)  # of all, one after the other
    trials: list[_Trial] = []
    rejected, failed = list(ranking.rejected), []
    time.sleep(backend.idle)
    for turn, candidate in enumerate(ranking.candidates):
        progress(candidate.id, turn / len(ranking.candidates) / 2)
        if trials and time.perf_counter() > deadline:
            reason = f"not timed: time_budget={time_budget} s was spent"
            rejected.append(Rejection(candidate.id, reason))
        elif candidate.id not in tolerable:
            reason = f"not timed: predicted {predicted[candidate.id]:.2g} s, {least:.2g} best"
            rejected.append(Rejection(candidate.id, reason))
        else:
            try:
                trials.append(_try(candidate, check, x, w, y))
            except MemoryError as error:  # that there is no room now says nothing of the next time
                rejected.append(Rejection(candidate.id, f"not timed: no memory ({error})"))
            except Exception as error:  # one that is broken must not hide what is known of the others
                failed.append(Rejection(candidate.id, f"{type(error).__name__}: {error}"))
                if backend.lost():
                    break
        slow = SLOW * min((t.first for t in trials), default=0.0)
        trials = [
            t if t.first <= slow or t.candidate is ranking.candidates[0] else replace(t, call=None)
            for t in trials  # lets go of the workspaces of the slow ones
        ]
    calls = {t.candidate.id: t.call for t in trials if t.call is not None}
    trials = [replace(t, call=None) for t in trials]
    if time_budget is not None:
        pause = backend.idle + backend.warm_up
        per_round = sum(4 * t.first + pause for t in trials if t.candidate.id in calls) or 1.0
        rounds = max(1, min(rounds, int((deadline - time.perf_counter()) / per_round)))
    timings = interleave(
        calls | dict(others),
        rounds=rounds,
        backend=backend,
        deadline=deadline,
        progress=lambda what, done: progress(what, 0.5 + done / 2),
    )
    hosts = {name: backend.host_seconds(call) for name, call in calls.items()}
    rows = [replace(t.row(timings.get(t.candidate.id)), host_s=hosts.get(t.candidate.id)) for t in trials]
    rows.sort(key=lambda r: (r.median_s, r.algorithm))
    other_timings = {name: timings[name] for name in others}
    return Table(ranking.problem, tuple(rows), tuple(rejected), tuple(failed), other_timings)


def worth_timing(ranking: Ranking, within: float = HOPELESS, harmless: float = HARMLESS) -> set[str]:
    """The candidates that a table times."""
    predicted = _predicted(ranking)
    tolerable = max(harmless, within * min(predicted.values(), default=0.0))
    return {name for name, seconds in predicted.items() if seconds <= tolerable}


def _predicted(ranking: Ranking) -> dict[str, float]:
    return {c.id: c.seconds if c.predicted is None else c.predicted for c in ranking.candidates}


@dataclass(frozen=True)
class _Trial:
    """A candidate after its first run: what it runs, the seconds it took, the error of its result."""

    candidate: Candidate
    call: Any
    samples: Samples
    error: float
    prepare: float

    @property
    def first(self) -> float:
        return self.samples.best

    def row(self, found: Timing | None) -> Row:
        c, t = self.candidate, found or Timing((self.first,), self.samples.believable)
        return Row(
            c.id,
            t.median,
            t.spread,
            c.workspace_bytes,
            self.error,
            c.error_bound,
            t.samples,
            self.prepare,
            believable=t.believable,
        )


def _try(candidate: Candidate, check: AccuracyCheck, x: Any, w: Any, y: Any) -> _Trial:
    """Run a candidate for the first time, on arrays of the backend of the check."""
    backend, problem = check.backend, check.problem
    with backend.working():
        plan = candidate.algorithm.serve(problem)
    prepare = min(_prepare_seconds(plan, w, backend) for _ in range(2))
    call = runner(plan, x, w, y)
    backend.spoil(y)
    call()
    error = check.error(y)
    samples = Samples()
    for _ in range(2 * LEAST):
        backend.sample(call, samples)
        if samples.enough or samples.best >= LONG:
            break
    return _Trial(candidate, call, samples, error, prepare)


def _prepare_seconds(plan: Plan, w: Any, backend: Backend) -> float:
    start = time.perf_counter()
    plan.prepare(w)
    backend.wait()
    return time.perf_counter() - start


def entry(found: Table) -> Entry:
    """What a table tells, to be remembered: of a wrong result that it is, of a disturbed time nothing."""
    known = {
        r.algorithm: Measured(
            samples_s=r.samples_s,
            workspace_bytes=r.workspace_bytes,
            error=r.error,
            prepare_s=r.prepare_s,
            version=__version__,
        )
        for r in found.rows
        if r.believable and not r.wrong
    }
    wrong = {
        r.algorithm: wrong_result(found.problem, r.algorithm, r.error, r.error_bound)
        for r in found.rows
        if r.wrong
    }
    warn_of_disturbed(found.problem, [r.algorithm for r in found.rows if not (r.believable or r.wrong)])
    return known | wrong | {f.id: failure(f.why_not) for f in found.failed}


def wrong_result(problem: ConvProblem, algorithm: str, error: float, bound: float) -> Measured:
    """What is remembered of a candidate that gave a wrong result, which is said at once, too."""
    reason = f"its error was {error:.1e}, over its bound {bound:.1e}"
    warnings.warn(f"{algorithm} is wrong on {problem}: {reason}; not used", RuntimeWarning, stacklevel=3)
    return replace(failure(reason), error=min(error, UNBOUNDED) if error == error else UNBOUNDED)


def warn_of_disturbed(problem: ConvProblem, algorithms: list[str]) -> None:
    """That times of candidates are not remembered."""
    if algorithms:
        told = f"{problem}: other programs ran meanwhile; not remembered: {', '.join(algorithms)}"
        warnings.warn(told, RuntimeWarning, stacklevel=3)


def spread_told(samples: tuple[float, ...]) -> str:
    """The spread of samples; one alone has none."""
    return "1 sample" if len(samples) == 1 else f"{relative_spread(samples):.1%}"


def known_table(ranking: Ranking, found: Entry) -> Table:
    """The table of what was measured by a race."""
    bounds = {c.id: c.error_bound for c in ranking.candidates}
    rows = [
        Row(
            name,
            m.median_s,
            m.spread,
            m.workspace_bytes,
            math.nan if m.error is None else m.error,
            bounds[name],
            m.samples_s,
            m.prepare_s,
        )
        for name, m in found.items()
        if m.failure is None
    ]
    rows.sort(key=lambda r: (r.median_s, r.algorithm))
    least = ranking.candidates[0].seconds if ranking.candidates else 0.0
    failed = tuple(Rejection(name, m.failure) for name, m in found.items() if m.failure is not None)
    rest = tuple(
        Rejection(
            c.id,
            f"not timed, or disturbed: predicted {c.seconds:.2g} s, {least:.2g} best",
        )
        for c in ranking.candidates
        if c.id not in found
    )
    return Table(ranking.problem, tuple(rows), ranking.rejected + rest, failed)


def failure(reason: str) -> Measured:
    """What is remembered of a candidate that raised an error."""
    return Measured(failure=reason, version=__version__)


def runner(plan: Plan, x: np.ndarray, w: np.ndarray, y: np.ndarray) -> Callable[[], object]:
    """A call that does only what `plan.run` must: filter prepared, output allocated."""
    prepared = plan.prepare(w)
    return lambda: plan(x, prepared, out=y)


def _turns(calls: dict[str, Callable[[], object]], rounds: int) -> Iterator[tuple[str, Callable]]:
    for turn in range(rounds):  # every second round runs backwards: no one always follows the same one
        yield from calls.items() if turn % 2 == 0 else reversed(calls.items())
