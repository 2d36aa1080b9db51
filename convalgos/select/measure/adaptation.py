"""What plans of effort="adapt" share: candidates that take turns in a program's calls, and their times."""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from convalgos.core.forks import guarded
from convalgos.core.plan import Plan
from convalgos.core.prepared_filter import FilterKey
from convalgos.core.tabular import count
from convalgos.core.version import __version__
from convalgos.select.measure import remembered
from convalgos.select.measure.elimination import CALLS, Elimination
from convalgos.select.measured import Entry, Measured
from convalgos.select.ranking import Candidate, Ranking
from convalgos.select.wisdom_file import Store

lock = guarded(threading.Lock())  # of all adaptations: it is held for a few microseconds
_numbers = itertools.count(1)


class Tried:
    """A candidate that is tried, its plan, and what was measured of it."""

    def __init__(self, candidate: Candidate, plan: Plan):
        self.candidate = candidate
        self.plan = plan
        self.prepare_s: float | None = None  # the fastest
        self.runs_s: list[float] = []  # undisturbed

    def measured(self) -> Measured | None:
        """What is remembered: of each two calls in a row the faster one, as the first warms up."""
        if not self.runs_s:
            return None
        samples = sorted(self.runs_s)[: -(-len(self.runs_s) // 2)]
        return Measured(
            tuple(samples), self.candidate.workspace_bytes, None, self.prepare_s,
            version=__version__, adapted=True,
        )  # fmt: skip


class Follower(Protocol):
    """A plan that follows an adaptation."""

    def settle(self, plan: Plan) -> None:
        """Call this plan from now on."""


class Turn(NamedTuple):
    """A call that is about to run."""

    tried: Tried
    number: int  # of the calls that began, by which overlaps are told
    alone: bool


class Adaptation:
    """What the adapting plans of a problem share: the candidates, their times, and what they settled on."""

    def __init__(self, ranking: Ranking, tried: dict[str, Tried], share: float, store: Store):
        self.problem = ranking.problem
        self.key = FilterKey(f"plan {next(_numbers)} of effort='adapt'", ranking.problem)
        self._ranking = ranking
        self._tried = tried
        self._share = share  # of preparing the filter that a run pays
        self._store = store
        self._elimination = Elimination(tuple(tried))
        self._failures: Entry = {}
        self._plans: weakref.WeakSet[Follower] = weakref.WeakSet()  # which share this
        self._settled: Tried | None = None
        self._began = self._busy = 0  # calls, ever and now,
        self._process = os.getpid()  # of this process

    @property
    def first(self) -> Tried:
        """Whose turn comes first."""
        return next(iter(self._tried.values()))

    @property
    def workspace_bytes(self) -> int:
        """The most that a call takes."""
        return max(t.plan.workspace_bytes for t in self._tried.values())

    def join(self, plan: Follower) -> None:
        """Let a plan share this; it is told when this settles."""
        with lock:
            self._plans.add(plan)
            if self._settled is not None:
                plan.settle(self._settled.plan)

    # --- a call ------------------------------------------------------------------------------

    def begin(self, failed: Mapping[str, Exception]) -> Turn | None:
        """Whose turn it is, of those that did not fail in this call; None where all have."""
        with lock:
            if self._process != os.getpid():  # calls that other threads had begun are not in a child
                self._process, self._busy = os.getpid(), 0
            state = self._elimination
            turns = (state.turn,) if self._settled else (state.turn, *state.running)
            name = next((name for name in turns if name not in failed), None)
            if name is None:
                return None
            self._began += 1
            self._busy += 1
            return Turn(self._tried[name], self._began, self._busy == 1)

    def end(self, turn: Turn, sample: tuple[float, bool] | None) -> None:
        """Count a call by its seconds and whether other programs disturbed it; None where it did not end."""
        with lock:
            self._busy -= 1
            if sample is None or self._settled:
                return
            tried, (seconds, disturbed) = turn.tried, sample
            disturbed = disturbed or not turn.alone or self._began != turn.number
            if not disturbed:
                tried.runs_s.append(seconds)
            pays = self._share * (tried.prepare_s or 0.0)
            self._elimination.add(tried.candidate.id, seconds + pays, disturbed)
            settled = self._settle()
        if settled:
            self._remember()

    def fail(self, failed: Mapping[str, Exception]) -> None:
        """Drop candidates that raised errors in a call that another one served."""
        with lock:
            if self._settled:
                return
            for name, error in failed.items():
                reason = f"{type(error).__name__}: {error}"
                self._elimination.fail(name, reason)
                if not isinstance(error, MemoryError):  # which says nothing of the next time
                    self._failures[name] = remembered.of_failure(reason, adapted=True)
            settled = self._settle()
        if settled:
            self._remember()

    def _settle(self) -> bool:
        """Whether this settles now."""
        if not self._elimination.settled:
            return False
        self._settled = self._tried[self._elimination.leader]
        for plan in self._plans:
            plan.settle(self._settled.plan)
        return True

    def _remember(self) -> None:
        """Write down what was measured, once it has settled, and let go of the other plans."""
        measured = {name: t.measured() for name, t in self._tried.items() if name not in self._failures}
        found = {name: m for name, m in measured.items() if m is not None}
        leader = self._elimination.leader
        if leader in found:  # else nothing is known but disturbed times
            self._store.record(self.problem, found | self._failures)
        self._tried = {leader: self._tried[leader]}

    # --- what it tells -----------------------------------------------------------------------

    def progress(self) -> str:
        """How far it is, in a few words."""
        state = self._elimination
        if self._settled:
            return f"settled on {state.leader} after {count(state.calls, 'call')}"
        return f"adapting, {state.calls} of about {CALLS} calls, {len(state.running)} candidates left"

    def told(self) -> str:
        """How far it is, the calls of each candidate, and the ranking that they are from."""
        with lock:
            state = self._elimination
            lines = [f"{self.progress()}; microseconds of the calls:"]
            for name, samples in state.samples.items():
                mark = "->" if name == state.leader and state.calls else "  "
                times = " ".join(f"{1e6 * s:.1f}" for s in samples.all) or "none"
                why = f"; dropped: {state.dropped[name]}" if name in state.dropped else ""
                lines.append(f"{mark}{name:24s} {times}{why}")
        return "\n".join([*lines, str(self._ranking)])
