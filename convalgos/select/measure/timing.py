"""Timing: calls are timed in turns, in rounds, so that a machine whose speed drifts is fair to all of them.

Between two calls the process sleeps: threads of some libraries spin for tens of milliseconds after a call,
and would take the cores from the next one. Then the call is repeated untimed, as a warm-up, before its burst.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

from convalgos.core.interference import Samples
from convalgos.core.plan import Plan
from convalgos.select.measure.backends import CPU, Backend, Call
from convalgos.select.measured import quartiles, relative_spread

LONG_CALL = 0.3  # seconds; so long a call needs no warm-up, and is timed once where others are in a burst
SINGLE_CALL = 2.0  # seconds; so long a call is timed once in all

Progress = Callable[[str, float], None]  # what is done next, and the share that is done


def silent(what: str, done: float) -> None:
    """Progress that nobody watches."""


@dataclass(frozen=True)
class Timing:
    """Seconds of single calls."""

    samples: tuple[float, ...]
    believable: bool = True  # not disturbed by other programs, and agreeing with one another

    @classmethod
    def of(cls, samples: Samples) -> Timing:
        """What samples tell together."""
        return cls(samples.all, samples.believable)

    @property
    def median(self) -> float:
        return median(self.samples)

    @property
    def spread(self) -> float:
        """(third quartile - first quartile) / median."""
        return relative_spread(self.samples)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The first and the third."""
        return quartiles(self.samples)


def interleave(
    calls: dict[str, Call],
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

    def time_once(name: str, call: Call) -> None:
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
    return {name: Timing.of(known) for name, known in samples.items()}


def runner(plan: Plan, x: Any, w: Any, y: Any) -> Call:
    """A call that does only what `plan.run` must: filter prepared, output allocated."""
    prepared = plan.prepare(w)
    return lambda: plan(x, prepared, out=y)


def spread_told(samples: tuple[float, ...]) -> str:
    """The spread of samples; one alone has none."""
    return "1 sample" if len(samples) == 1 else f"{relative_spread(samples):.1%}"


def _turns(calls: dict[str, Call], rounds: int) -> Iterator[tuple[str, Call]]:
    for turn in range(rounds):  # every second round runs backwards: no one always follows the same one
        yield from calls.items() if turn % 2 == 0 else reversed(calls.items())
