"""effort="measure": time the few candidates that may be the fastest, in about twenty times a run.

1. Every candidate runs once, in the order of the predictions. Its result is compared with float64, at sampled
   elements where it is large. A candidate that takes twice the best time so far is abandoned.
2. The others are timed in rounds. One that is clearly slower than the best leaves.
3. The samples of every candidate go to the wisdom, also those of the abandoned. A sample that other programs
   disturbed is taken again; if all are disturbed, nothing is remembered of the candidate.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

from convalgos.core.interference import LEAST, Samples
from convalgos.core.plan import result_dtype
from convalgos.core.problem import ConvProblem
from convalgos.select.measure import remembered
from convalgos.select.measure.accuracy import AccuracyCheck, repeating_arrays
from convalgos.select.measure.backends import CPU, Backend
from convalgos.select.measure.timing import Progress, silent
from convalgos.select.measure.trial import Trial, start
from convalgos.select.measured import Entry
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
SPINNERS = 1.15  # times the best prediction, within which candidates that leave threads spinning take part


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
    running = _Race(problem, backend, time_budget, runs_budget)
    running.first_runs(starters(candidates, within), progress)
    running.rounds(progress)
    return running.result()


class _Race:
    """The candidates of a problem while they are timed, and the time that is left for it."""

    def __init__(
        self, problem: ConvProblem, backend: Backend, time_budget: float | None, runs_budget: float | None
    ):
        self._problem, self._backend = problem, backend
        self._time_budget, self._runs_budget = time_budget, runs_budget
        self._start = time.perf_counter()
        self._spent = 0.0  # seconds of undisturbed runs, and of preparing filters
        self._lost = 0.0  # seconds of runs that other programs disturbed
        self._host = repeating_arrays(problem)
        x, w = map(backend.put, self._host)
        self._arrays = x, w, backend.empty(problem.array_shapes[2], result_dtype(problem))
        self._check: AccuracyCheck | None = None  # made when there is something to check
        self._trials: list[Trial] = []  # those that gave a right result
        self._found: Entry = {}

    def first_runs(self, candidates: Sequence[Candidate], progress: Progress) -> None:
        """Each candidate that there is time for, once; the slow ones leave."""
        for turn, candidate in enumerate(candidates):
            if self._trials and not self._is_time_left(candidate.prepare_s):
                continue
            progress(candidate.id, turn / len(candidates) / 2)
            try:
                self._first_run(candidate)
            except MemoryError:
                continue  # that there was no room now says nothing of the next time
            except Exception as error:  # one that is broken must not keep the others from being known
                self._found[candidate.id] = remembered.of_failure(f"{type(error).__name__}: {error}")
                if self._backend.lost():
                    break

    def rounds(self, progress: Progress) -> None:
        """Time the others in turns, forwards and backwards, while it is open which is the fastest."""
        for turn in range(ROUNDS):
            running = self._running()
            best = min((t.best for t in running), default=0.0)
            for trial in running:
                if trial.best > (ABANDON if turn == 0 else CLEAR) * best:
                    self._leave(trial)
            running = self._running()
            if len(running) < 2 and turn:
                break
            for trial in running if turn % 2 == 0 else running[::-1]:
                if not self._is_time_left():
                    return
                progress(trial.id, 0.5 + turn / ROUNDS / 2)
                if self._time_budget is not None and any(t.candidate.algorithm.spins for t in running):
                    time.sleep(self._backend.idle)
                self._burst(trial, fresh=turn == 0)

    def result(self) -> Entry:
        """What is remembered of each candidate that was run."""
        for trial in self._running():
            self._leave(trial)
        disturbed = []
        for trial in self._trials:
            if _tells(trial):
                self._found[trial.id] = remembered.of_trial(trial)
            else:
                disturbed.append(trial.id)
        remembered.warn_of_disturbed(self._problem, disturbed)
        return self._found

    def _running(self) -> list[Trial]:
        return [t for t in self._trials if t.call is not None]

    def _first_run(self, candidate: Candidate) -> None:
        trial = start(candidate, self._problem, self._arrays, self._backend)
        assert trial.call is not None
        self._spent += trial.prepare_s
        self._backend.ready(trial.call)
        y = self._arrays[2]
        self._backend.spoil(y)
        hopeless = COLD * ABANDON * self._best()
        first = self._sample(trial, cold := Samples())
        self._check = self._check or AccuracyCheck(self._problem, self._backend, self._host, brief=True)
        trial.error = self._check.error(y)
        if not trial.error <= candidate.error_bound:
            self._found[candidate.id] = remembered.of_wrong_result(
                self._problem, candidate.id, trial.error, candidate.error_bound
            )
            return
        if first > hopeless and cold.quiet:
            trial.samples = cold
        else:
            self._more(trial, 1)
        if trial.best > hopeless:
            self._leave(trial)
        self._trials.append(trial)

    def _best(self) -> float:
        return min((t.best for t in self._trials), default=math.inf)

    def _sample(self, trial: Trial, samples: Samples) -> float:
        """Seconds of a run, which are added to the samples."""
        began, before = time.perf_counter(), len(samples.disturbed)
        assert trial.call is not None
        took = self._backend.sample(trial.call, samples)
        passed = time.perf_counter() - began
        if len(samples.disturbed) > before:
            self._lost += passed
        else:
            self._spent += passed
        return took

    def _more(self, trial: Trial, count: int) -> None:
        """So many more undisturbed samples, if other programs let us have them."""
        samples, tries = trial.samples, count + RETRIES
        wanted = len(samples.quiet) + count
        while len(samples.quiet) < wanted and tries:
            tries -= 1
            before = len(samples.disturbed)
            self._sample(trial, samples)
            if len(samples.disturbed) > before:
                if self._is_late() or self._lost > PATIENCE + RUNS * trial.best:
                    return
                time.sleep(PAUSE)

    def _burst(self, trial: Trial, fresh: bool) -> None:
        """Samples of a turn, after a call that brings its data into the caches; `fresh`: in place of all."""
        self._sample(trial, Samples())
        known, trial.samples = trial.samples, Samples()
        self._more(trial, BURST)
        if not (fresh and trial.samples.quiet):
            trial.samples = known + trial.samples

    def _leave(self, trial: Trial) -> None:
        """Its last word: samples that are too few, or do not agree, are taken again."""
        for _ in range(2):
            if trial.samples.believable or self._is_late():
                break
            if trial.samples.enough:  # which do not agree: twice as many hardly do so by chance
                trial.samples = Samples()
                self._more(trial, 2 * LEAST)
            else:
                self._more(trial, LEAST - len(trial.samples.quiet))
        trial.call = None

    def _is_late(self) -> bool:
        return self._time_budget is not None and time.perf_counter() - self._start >= self._time_budget

    def _is_time_left(self, more: float = 0.0) -> bool:
        """Whether there is time, for so many seconds more; what is known by now says how much there is."""
        if self._is_late():
            return False
        if self._runs_budget is not None and self._spent >= self._runs_budget:
            return False
        limit = max(self._backend.least, RUNS * self._best())
        if self._time_budget is not None or self._spent + more < limit:
            return True
        return len(self._trials) < FIRST and more < limit


def _tells(trial: Trial) -> bool:
    """Whether its samples may be remembered; too few, as where time is short, must be near the prediction."""
    samples = trial.samples
    if samples.enough:
        return samples.believable
    return bool(samples.quiet) and samples.best <= DOUBTFUL * trial.candidate.predicted_s + SLACK


def open_questions(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Of a ranking's candidates those to race: all but the measured, with the best of these to compare with.

    None, where the FIRST that a race would run were measured before. What adapted is timed again.
    """
    candidates = [replace(c, measured_s=None) if c.adapted else c for c in candidates]
    first = sorted((c for c in candidates if not c.algorithm.spins), key=lambda c: c.predicted_s)[:FIRST]
    limit = WITHIN * first[0].predicted_s if first else 0.0
    if all(c.measured_s is not None or c.predicted_s > limit for c in first):
        return [] if any(c.measured_s is not None for c in candidates) else list(candidates)
    measured = [c for c in candidates if c.measured_s is not None]
    return measured[:1] + [c for c in candidates if c.measured_s is None]


def starters(candidates: Sequence[Candidate], within: float) -> list[Candidate]:
    """Those worth a run; the ones that disturb whoever runs next come last, and only if they promise much.

    Args:
        within: times the best prediction.
    """
    best = min((c.estimate_s for c in candidates), default=0.0)
    calm = [c for c in candidates if not c.algorithm.spins and c.estimate_s <= within * best]
    others = [c for c in candidates if c.algorithm.spins and c.estimate_s <= min(within, SPINNERS) * best]
    return calm + others
