"""Every candidate of one layer timed for a table, in about a second.

1. Each candidate that is not predicted to be hopeless is run, its result checked, and a few samples are
   taken. One that is much slower than the best by then is stopped.
2. The others are timed in two halves that repeat each other: one sample at a time, in turns. Those near the
   best get many samples, the others few. The noise is what the halves differ by.
3. Where other programs took part, or the halves do not agree, both are timed again.

A race (`select.measure.race`) looks for the fastest and `find` (`select.measure.table`) for the time of each;
here the times of those that may be the fastest are to be told from noise, on very many layers.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from types import MappingProxyType

from convalgos.core.interference import LEAST, LONG, Samples
from convalgos.core.plan import result_dtype
from convalgos.select.measure.accuracy import AccuracyCheck
from convalgos.select.measure.backends import Backend, Call
from convalgos.select.measure.table import HOPELESS, SLOW
from convalgos.select.measure.timing import Progress, silent
from convalgos.select.measure.trial import start
from convalgos.select.measured import Measured
from convalgos.select.ranking import Candidate
from convalgos.tools.bench.suites import Layer
from convalgos.tools.evaluate.recorded_tables import RecordedLayer
from convalgos.tools.record.cores import a_core_each

NEAR = 1.5  # times the best: candidates that get many samples
MANY, ENOUGH, FEW = 8, 4, 2  # samples of a half: of one that is near and BRIEF, near, and not near
BRIEF = 1e-3  # seconds of a call of which many samples cost little
FIRST = 3  # samples of a first run
COLD = 2.0  # times as long as the next ones a first call may take, ...
SHORT = 0.02  # ... and one of fewer seconds even longer; longer ones need no call to warm up
READY = 2e-4  # seconds of untimed calls before a sample, which bring the data into the caches
AGREE = 1.15  # times the other half's median, for one that is near
TRIES = 3  # of both halves
PAUSE = 0.3  # seconds before the next try, in which other programs may get done


@dataclass
class _Timed:
    """A candidate, or a call of another library, while it is timed."""

    name: str
    call: Call
    best: float  # seconds
    spins: bool  # threads of its library go on spinning after a call
    counts: bool = True  # as the best; what others take is no measure for ours
    halves: tuple[Samples, Samples] = field(default_factory=lambda: (Samples(), Samples()))


def time_layer(
    layer: Layer,
    candidates: Sequence[Candidate],
    check: AccuracyCheck,
    *,
    others: Mapping[str, Call] = MappingProxyType({}),
    progress: Progress = silent,
) -> RecordedLayer:
    """Time all candidates of a layer.

    Args:
        candidates: with the times that their models predict.
        check: of the layer's problem. The candidates run on its backend, and its arrays.
        others: calls of other libraries, warmed up, to be timed in the same rounds.
        progress: called before every step.
    """
    first_runs = _FirstRuns(candidates, check, progress)
    running = first_runs.running()
    for name, call in others.items():
        running.append(_Timed(name, call, check.backend.seconds(call), spins=True, counts=False))
    with a_core_each():
        rounds = _best_of_tries(running, check.backend, progress)
    times = {name: Measured((seconds,)) for name, seconds in first_runs.stopped.items()}
    times |= {t.name: Measured(rounds.samples[t.name]) for t in running if t.counts}
    return RecordedLayer(
        layer.suite,
        layer.name,
        layer.problem,
        layer.count,
        times,
        stopped=tuple(first_runs.stopped),
        disturbed=tuple(rounds.disturbed),
        hopeless=tuple(first_runs.hopeless),
        failed=first_runs.failed,
        peers={t.name: Measured(rounds.samples[t.name]) for t in running if not t.counts},
    )


class _FirstRuns:
    """Runs candidates for the first time, those last whose threads would disturb the next one."""

    def __init__(self, candidates: Sequence[Candidate], check: AccuracyCheck, progress: Progress):
        self._check, self._backend = check, check.backend
        self._tried: list[_Timed] = []
        self._best = float("inf")
        self.stopped: dict[str, float] = {}  # id -> seconds
        self.hopeless: list[str] = []
        self.failed: dict[str, str] = {}  # id -> why
        y = self._backend.empty(check.problem.array_shapes[2], result_dtype(check.problem))
        self._arrays = self._backend.put(check.x), self._backend.put(check.w), y
        ordered = sorted(candidates, key=lambda c: (c.predicted_s, c.id))
        self._first = ordered[0].id if ordered else ""  # what is picked unmeasured, timed however slow
        for turn, candidate in enumerate(sorted(ordered, key=lambda c: c.algorithm.spins)):
            progress(candidate.id, turn / len(ordered) / 2)
            if candidate.predicted_s > HOPELESS * ordered[0].predicted_s:
                self.hopeless.append(candidate.id)
                continue
            try:
                self._run(candidate)
            except MemoryError:  # that there is no room now says nothing of the next time
                self.hopeless.append(candidate.id)
            except Exception as error:  # one that is broken must not hide what is known of the others
                self.failed[candidate.id] = f"{type(error).__name__}: {error}"
                if self._backend.lost():
                    break

    def running(self) -> list[_Timed]:
        """Those that are timed in rounds; the others are stopped."""
        for t in self._tried:
            if self._is_slow(t.name, t.best):
                self.stopped[t.name] = t.best
        return [t for t in self._tried if t.name not in self.stopped]

    def _is_slow(self, name: str, seconds: float) -> bool:
        return seconds > SLOW * self._best and name != self._first

    def _run(self, candidate: Candidate) -> None:
        trial = start(candidate, self._check.problem, self._arrays, self._backend)
        assert trial.call is not None
        self._backend.ready(trial.call)
        self._backend.spoil(self._arrays[2])
        first = self._backend.sample(trial.call, trial.samples)
        error = self._check.error(self._arrays[2])
        if not error <= candidate.error_bound:
            self.failed[candidate.id] = (
                f"its error was {error:.1e}, over its bound {candidate.error_bound:.1e}"
            )
        elif first > SHORT and self._is_slow(candidate.id, first / COLD):
            self.stopped[candidate.id] = first
        else:
            for _ in range(FIRST):
                if self._backend.sample(trial.call, trial.samples) >= LONG:
                    break
            self._best = min(self._best, trial.best)
            self._tried.append(_Timed(trial.id, trial.call, trial.best, candidate.algorithm.spins))
        if candidate.algorithm.spins:
            time.sleep(self._backend.idle)


@dataclass(frozen=True)
class _Rounds:
    """What two halves tell."""

    samples: dict[str, tuple[float, ...]]
    disturbed: list[str]
    settled: bool  # those near the best are not disturbed


def _best_of_tries(running: Sequence[_Timed], backend: Backend, progress: Progress) -> _Rounds:
    """The try of which the fewest are disturbed, and the last where none of those near the best are."""
    found: list[_Rounds] = []
    for turn in range(TRIES):
        if turn:
            time.sleep(PAUSE)
        progress("again" if turn else "rounds", 0.5 + turn / TRIES / 2)
        found.append(_rounds(running, backend))
        if found[-1].settled:
            return found[-1]
    return min(found, key=lambda f: len(f.disturbed))


def _rounds(running: Sequence[_Timed], backend: Backend) -> _Rounds:
    """Both halves, one after the other."""
    for t in running:
        t.halves = Samples(), Samples()
    for half in range(2):
        _time_half(running, half, backend)
    best = _best(running)
    disturbed = [t for t in running if not _agree(t, _wanted(t, best), t.best <= NEAR * best)]
    return _Rounds(
        {t.name: _alternating(*t.halves) for t in running},
        [t.name for t in disturbed],
        all(t.best > NEAR * best or not t.counts for t in disturbed),
    )


def _time_half(running: Sequence[_Timed], half: int, backend: Backend) -> None:
    """Samples in turns, one each, until all have as many undisturbed ones as they want; spinning ones last.

    Where others disturb, there are as many turns again at most.
    """

    def sample(t: _Timed) -> None:
        t.best = min(t.best, backend.sample(t.call, t.halves[half]))

    def is_open(t: _Timed) -> bool:
        return len(t.halves[half].quiet) < _wanted(t, _best(running))

    calm = [t for t in running if not t.spins]
    _repeat(calm[:1], backend.warm_up, backend)
    for turn in range(2 * MANY):
        for t in calm if turn % 2 == 0 else reversed(calm):
            if is_open(t):
                _make_ready(t, backend)
                sample(t)
        if not any(map(is_open, calm)):
            break
    for t in running:
        if t.spins:
            _make_ready(t, backend)
            for _ in range(2 * MANY):
                if not is_open(t):
                    break
                sample(t)
            time.sleep(backend.idle)


def _best(running: Sequence[_Timed]) -> float:
    return min((t.best for t in running if t.counts), default=0.0)


def _wanted(t: _Timed, best: float) -> int:
    """Undisturbed samples of a half; of a long call each is an average of its own."""
    if t.best >= LONG:
        return FEW if t.best <= NEAR * best else 1
    if t.best > NEAR * best and t.counts:
        return FEW
    return MANY if t.best < BRIEF else ENOUGH


def _agree(t: _Timed, wanted: int, near: bool) -> bool:
    """Whether samples are enough, and agree with one another; of what is near the best the halves, too."""
    a, b = (half.quiet for half in t.halves)
    if min(len(a), len(b)) < wanted:
        return False
    low, high = sorted((median(a), median(b)))
    both = t.halves[0] + t.halves[1]
    return (both.believable or len(both.quiet) < LEAST) and (not near or high <= AGREE * low)


def _alternating(a: Samples, b: Samples) -> tuple[float, ...]:
    """As many samples of each half, in turns; where one has none that are undisturbed, what there is."""
    pairs = list(zip(a.quiet, b.quiet, strict=False))
    return tuple(s for pair in pairs for s in pair) or (a + b).all


def _make_ready(t: _Timed, backend: Backend) -> None:
    if t.best < SHORT:
        _repeat([t], READY, backend)


def _repeat(timed: Sequence[_Timed], seconds: float, backend: Backend) -> None:
    """Untimed calls for so long, at least one."""
    until = time.perf_counter() + seconds
    for t in timed:
        backend.seconds(t.call)
        while time.perf_counter() < until:
            backend.seconds(t.call)
