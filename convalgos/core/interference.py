"""Whether other programs took part in what was timed, by what the system tells of this process.

While a call runs, at least one of its threads does: the process gets as much CPU time as passes on the clock,
or more. Where it gets less, its threads waited for a core that others had; and where one of them was taken
off its core before it was done, others ran there for a slice of the scheduler, some milliseconds. On two
cores with ten busy processes it found calls of 20 us that took 20 ms, all of them, and few of the others.
"""

from __future__ import annotations

import time
from statistics import median

try:
    import resource
except ImportError:  # not a Unix
    resource = None  # type: ignore[assignment]

LOST = 0.1  # of the time, without a core
SLICE = 1e-3  # seconds at least for which a thread is taken off its core
CLOCK = 5e-6  # seconds that the clocks themselves may differ
PRECISE = time.get_clock_info("process_time").resolution < CLOCK  # or nothing can be told

LEAST = 3  # samples of a short call that can agree
LONG = 0.05  # seconds of a call that tells something by itself: slices are little of it
AGREE = 1.5


class Meter:
    """Started when it is made: asked later, it tells whether other programs took part since then."""

    __slots__ = ("_cpu", "_switches", "_wall")

    def __init__(self) -> None:
        self._switches = _switches()
        self._cpu = time.process_time()
        self._wall = time.monotonic()

    def disturbed(self) -> bool:
        wall = time.monotonic() - self._wall
        lost = wall - (time.process_time() - self._cpu)
        taken = SLICE * (_switches() - self._switches)
        return PRECISE and max(lost, taken) > LOST * wall + CLOCK


def _switches() -> int:
    """How often threads of this process were taken off their cores."""
    return 0 if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


class Samples:
    """Seconds of single calls: those that nobody disturbed, and the others."""

    __slots__ = ("disturbed", "quiet")

    def __init__(self) -> None:
        self.quiet: list[float] = []
        self.disturbed: list[float] = []

    def add(self, seconds: float, disturbed: bool) -> None:
        (self.disturbed if disturbed else self.quiet).append(seconds)

    def __add__(self, more: Samples) -> Samples:
        both = Samples()
        both.quiet, both.disturbed = self.quiet + more.quiet, self.disturbed + more.disturbed
        return both

    @property
    def best(self) -> float:
        """By which calls are compared while they are timed: other programs only add to a time."""
        return min(self.quiet or self.disturbed)

    @property
    def all(self) -> tuple[float, ...]:
        """The undisturbed ones, or where there is none the others."""
        return tuple(self.quiet or self.disturbed)

    @property
    def enough(self) -> bool:
        """Whether there are as many as it takes to agree; of a long call each is an average of its own."""
        return len(self.quiet) >= LEAST or (bool(self.quiet) and min(self.quiet) >= LONG)

    @property
    def believable(self) -> bool:
        """Whether there are enough, and half of them within AGREE of the fastest."""
        return self.enough and median(self.quiet) <= AGREE * min(self.quiet)
