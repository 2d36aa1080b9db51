"""effort="measure": time the few candidates that may be the fastest, in about twenty times a run.

Candidates run in the order of their predictions. The first result of each is checked against float64, at some
of its places where it is large. One that takes twice the incumbent's time is abandoned after a call; the rest
are timed in turns, and leave as soon as they are clearly behind. What was learned of each, also of the
abandoned, is for the wisdom, but for times that other programs had part in: these are taken again, and if
that does not help, they are forgotten.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from convalgos.core.interference import LEAST, Samples
from convalgos.core.plan import numpy_dtype
from convalgos.core.problem import ConvProblem
from convalgos.core.version import __version__
from convalgos.measure import timing
from convalgos.measure.accuracy import AccuracyCheck
from convalgos.measure.backends import CPU, Backend
from convalgos.measure.timing import Progress, silent
from convalgos.select.measured import Entry, Measured
from convalgos.select.ranking import Candidate

WITHIN = 1.5  # times the best prediction; slower ones cannot win unless a model is wrong by as much
ABANDON = 2.0  # times the incumbent, after which a candidate is not run again
COLD = 2.0  # a first call may take this much longer than the next ones
CLEAR = 1.2  # times the best, behind which a candidate leaves a later round
RUNS = 14  # of the best candidate, or `Backend.least`: no turn begins after that; that makes about twenty

FIRST = 3  # candidates that are run in any case, where no budget is given
ROUNDS = 5
BURST = 3  # samples of a turn, after a call that brings its data into the caches: one may be disturbed
RETRIES = 6  # of a sample that other programs disturbed, in a turn,
PATIENCE = 1.0  # and seconds, beside those of RUNS, that disturbed runs may take in all
PAUSE = 0.01  # seconds after one, in which others may get done
DOUBTFUL, SLACK = 5.0, 1e-4  # times the prediction, and seconds more, over which too few samples say nothing
PERIOD = 16381  # elements; a prime
SPINNERS = 1.15  # times the best prediction, within which candidates that leave threads spinning take part


@dataclass
class _Runner:
    candidate: Candidate
    call: Callable[[], object] | None  # None once it has left: it lets go of its workspace
    prepare: float
    error: float = math.nan
    samples: Samples = field(default_factory=Samples)

    @property
    def best(self) -> float:
        return self.samples.best


def race(
    problem: ConvProblem,
    candidates: Sequence[Candidate],
    *,
    within: float = WITHIN,
    time_budget: float | None = None,
    runs_budget: float | None = None,
    backend: Backend = CPU,
    progress: Progress = silent,
) -> Entry:
    """Time candidates, the most promising first.

    Args:
        candidates: in the order of their predictions.
        within: leave out candidates predicted slower than this multiple of the best.
        time_budget: seconds of all that is done here, compiling too; by default RUNS runs of the best,
            preparing filters included but not compiling. The first candidate is always timed.
        runs_budget: seconds of runs, at most.
        backend: where they run.
        progress: called before every step.

    Returns:
        What is known of each candidate that was run: its samples, or how it failed.
    """
    start, spent, lost = time.perf_counter(), 0.0, 0.0
    host = cheap_arrays(problem)
    x, w = map(backend.put, host)
    y = backend.empty(problem.array_shapes[2], x.dtype)
    check: AccuracyCheck | None = None  # made when there is something to check
    field_, found = _starters(candidates, within), {}
    runners: list[_Runner] = []

    def late() -> bool:
        return time_budget is not None and time.perf_counter() - start >= time_budget

    def run(runner: _Runner, samples: Samples) -> float:
        nonlocal spent, lost
        began, before = time.perf_counter(), len(samples.disturbed)
        assert runner.call is not None
        took = backend.sample(runner.call, samples)
        passed = time.perf_counter() - began
        if len(samples.disturbed) > before:
            lost += passed
        else:
            spent += passed
        return took

    def more(runner: _Runner, count: int) -> None:
        """So many more undisturbed samples, if other programs let us have them."""
        samples, tries = runner.samples, count + RETRIES
        wanted = len(samples.quiet) + count
        while len(samples.quiet) < wanted and tries:
            tries -= 1
            before = len(samples.disturbed)
            run(runner, samples)
            if len(samples.disturbed) > before:
                if late() or lost > PATIENCE + RUNS * runner.best:
                    return
                time.sleep(PAUSE)

    def burst(runner: _Runner, fresh: bool) -> None:
        """Samples of a turn, after a call that brings its data into the caches; `fresh`: in place of all."""
        run(runner, Samples())
        known, runner.samples = runner.samples, Samples()
        more(runner, BURST)
        if not (fresh and runner.samples.quiet):
            runner.samples = known + runner.samples

    def leave(runner: _Runner) -> None:
        """Its last word: samples that are too few, or do not agree, are taken again."""
        for _ in range(2):
            if runner.samples.believable or late():
                break
            if runner.samples.enough:  # which do not agree: twice as many hardly do so by chance
                runner.samples = Samples()
                more(runner, 2 * LEAST)
            else:
                more(runner, LEAST - len(runner.samples.quiet))
        runner.call = None

    def left(more: float = 0.0) -> bool:
        """Whether there is time, for so many seconds more; what is known by now says how much there is."""
        if late():
            return False
        if runs_budget is not None and spent >= runs_budget:
            return False
        best = min((r.best for r in runners), default=float("inf"))
        limit = max(backend.least, RUNS * best)
        return time_budget is not None or spent + more < limit or (len(runners) < FIRST and more < limit)

    for turn, candidate in enumerate(field_):
        if runners and not left(candidate.prepare):
            continue
        progress(candidate.id, turn / len(field_) / 2)
        try:
            with backend.working():
                plan = candidate.algorithm.serve(problem)
            began = time.perf_counter()
            prepared = plan.prepare(w)
            backend.wait()
            call = lambda plan=plan, prepared=prepared: plan(x, prepared, out=y)  # noqa: E731
            runner = _Runner(candidate, call, time.perf_counter() - began)
            spent += runner.prepare
            backend.ready(call)
            backend.spoil(y)
            incumbent = min((r.best for r in runners), default=float("inf"))
            first = run(runner, cold := Samples())
            check = check or AccuracyCheck(problem, backend, host, brief=True)
            runner.error = check.error(y)
            if not runner.error <= candidate.error_bound:
                found[candidate.id] = timing.wrong_result(
                    problem, candidate.id, runner.error, candidate.error_bound
                )
                continue
            if first > COLD * ABANDON * incumbent and cold.quiet:
                runner.samples = cold
            else:
                more(runner, 1)
            if runner.best > COLD * ABANDON * incumbent:
                leave(runner)
        except MemoryError:
            continue  # that there was no room now says nothing of the next time
        except Exception as error:  # one that is broken must not keep the others from being known
            found[candidate.id] = timing.failure(f"{type(error).__name__}: {error}")
            if backend.lost():
                break
            continue
        runners.append(runner)
    _rounds(runners, burst, leave, left, progress, idle=backend.idle if time_budget is not None else 0.0)
    kept = {r.candidate.id for r in runners if _tells(r)}
    for r in runners:
        if r.candidate.id in kept:
            found[r.candidate.id] = Measured(
                samples_s=tuple(r.samples.quiet),
                workspace_bytes=r.candidate.workspace_bytes,
                error=r.error,
                prepare_s=r.prepare,
                version=__version__,
            )
    timing.warn_of_disturbed(problem, [r.candidate.id for r in runners if r.candidate.id not in kept])
    return found


def _tells(runner: _Runner) -> bool:
    """Whether its samples may be remembered; too few, as where time is short, must be near the prediction."""
    samples = runner.samples
    if samples.enough:
        return samples.believable
    predicted = runner.candidate.predicted or runner.candidate.seconds
    return bool(samples.quiet) and samples.best <= DOUBTFUL * predicted + SLACK


def open_questions(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Of a ranking's candidates those to race: all but the measured, with the best of these to compare with.

    None, where the FIRST that a race would run were measured before.
    """
    first = sorted((c for c in candidates if not c.algorithm.spins), key=lambda c: c.predicted or 0.0)[:FIRST]
    limit = WITHIN * (first[0].predicted or 0.0) if first else 0.0
    if all(c.measured is not None or (c.predicted or 0.0) > limit for c in first):
        return [] if any(c.measured is not None for c in candidates) else list(candidates)
    measured = [c for c in candidates if c.measured is not None]
    return measured[:1] + [c for c in candidates if c.measured is None]


def _starters(candidates: Sequence[Candidate], within: float) -> list[Candidate]:
    """Those worth a run; the ones that disturb whoever runs next come last, and only if they promise much."""
    best = min((c.seconds for c in candidates), default=0.0)
    calm = [c for c in candidates if not c.algorithm.spins and c.seconds <= within * best]
    others = [c for c in candidates if c.algorithm.spins and c.seconds <= min(within, SPINNERS) * best]
    return calm + others


def _rounds(
    runners: list[_Runner],
    burst: Callable[[_Runner, bool], None],
    leave: Callable[[_Runner], None],
    left: Callable[[], bool],
    progress: Progress,
    idle: float,
) -> None:
    """Time the runners in turns, forwards and backwards, for as long as it is open which is the fastest."""
    running = [r for r in runners if r.call is not None]
    for turn in range(ROUNDS):
        best = min((r.best for r in running), default=0.0)
        behind = ABANDON if turn == 0 else CLEAR
        for r in running:
            if r.best > behind * best:
                leave(r)
        running = [r for r in running if r.call is not None]
        if len(running) < 2 and turn:
            break
        for r in running if turn % 2 == 0 else running[::-1]:
            if not left():
                break
            progress(r.candidate.id, 0.5 + turn / ROUNDS / 2)
            if idle and any(other.candidate.algorithm.spins for other in running):
                time.sleep(idle)
            burst(r, turn == 0)
        else:
            continue
        break
    for r in running:
        leave(r)


def cheap_arrays(problem: ConvProblem) -> tuple[np.ndarray, np.ndarray]:
    """What a run of the problem reads, made at the speed of a copy, of numbers like any other.

    They repeat after a prime number of elements, so that no two rows, channels or images are the same; the
    second are scaled for results of order 1.
    """
    values = np.random.default_rng(0).standard_normal((2, PERIOD), np.float32)
    values[1] /= np.sqrt(max(1, problem.reduction))
    first, second, _ = problem.array_shapes
    x, w = values.astype(numpy_dtype(problem.dtype))
    return np.resize(x, first), np.resize(w, second)
