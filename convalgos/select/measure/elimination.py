"""Successive elimination: which of a few candidates is the fastest, by the times of a program's calls.

1. In the order of the predictions each candidate runs BURST calls. The first brings its filter and scratch
   into the caches, and may take COLD times as long as the next. Who takes DROP times the best is out at once.
2. The others run on in rounds. After each, those behind the best by more than CLEAR are dropped.
3. It ends when one is left, or with the first round that ends after CALLS calls: the fastest so far is it.

Candidates are compared by their fastest calls, as other programs only add to a time: on recorded tables that
leaves half of the regret that medians of as few calls do. A call that others disturbed is made again, after
those that are due; after MOST_CALLS it ends in any case.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from convalgos.core.interference import Samples

MOST_TIED = 4  # candidates: the first round of so many fits into ten calls
BURST = 2  # calls of a candidate in a row
COLD = 2.0
DROP = 1.5
CLEAR = (1.15, 1.05)  # after the first round, and after later ones
CALLS = 10
MOST_CALLS = 24


class Elimination:
    """The candidates, their samples, and whose turn it is. It reads no clock and takes no lock.

    Example:
        >>> tied = Elimination(("a", "b"))
        >>> for seconds in (3e-4, 2e-4, 9e-4):
        ...     tied.add(tied.turn, seconds)
        >>> tied.settled, tied.leader, tied.dropped
        (True, 'a', {'b': '4.50x the time of a'})
    """

    def __init__(self, names: Sequence[str]):
        self.calls = 0
        self.samples = {name: Samples() for name in names}
        self.dropped: dict[str, str] = {}  # name -> why
        self._running = list(names)
        self._rounds = 0
        self._turns: deque[str] = deque()
        if len(names) > 1:
            self._begin_round()

    @property
    def running(self) -> tuple[str, ...]:
        """Those that are not dropped."""
        return tuple(self._running)

    @property
    def settled(self) -> bool:
        return not self._turns

    @property
    def turn(self) -> str:
        """Whose turn the next call is: asked twice before `add`, the same."""
        return self._turns[0] if self._turns else self.leader

    @property
    def leader(self) -> str:
        """The fastest so far; the first, where no call was made."""
        return min(self._running, key=self.best)

    def best(self, name: str) -> float:
        """Seconds of the fastest call of a candidate; infinite before its first."""
        samples = self.samples[name]
        return samples.best if samples.quiet or samples.disturbed else math.inf

    def add(self, name: str, seconds: float, disturbed: bool = False) -> None:
        """Count a call of a candidate."""
        if self.settled or name in self.dropped:
            return
        self.calls += 1
        self.samples[name].add(seconds, disturbed)
        if name in self._turns:
            self._turns.remove(name)
            if disturbed:
                self._turns.append(name)
        slowest = DROP * (COLD if len(self.samples[name].quiet) == 1 else 1.0)
        if not disturbed and self.best(name) > slowest * self._best():
            self._drop_slow(name)
        if self.calls >= MOST_CALLS:
            self._turns.clear()
        elif not self._turns and len(self._running) > 1:
            self._end_round()

    def fail(self, name: str, reason: str) -> None:
        """Drop a candidate that raised an error, unless it is the last."""
        if name in self._running and len(self._running) > 1:
            self._drop(name, reason)
            if not self._turns and len(self._running) > 1:
                self._end_round()

    def _best(self) -> float:
        return min(map(self.best, self._running))

    def _begin_round(self) -> None:
        """Every second round runs backwards: no one always follows the same one."""
        order = self._running[:: -1 if self._rounds % 2 else 1]
        self._turns.extend(name for name in order for _ in range(BURST))

    def _end_round(self) -> None:
        clear = CLEAR[min(self._rounds, len(CLEAR) - 1)]
        self._rounds += 1
        for name in self.running:
            if self.best(name) > clear * self._best():
                self._drop_slow(name)
        if len(self._running) > 1 and self.calls < CALLS:
            self._begin_round()

    def _drop_slow(self, name: str) -> None:
        leader = self.leader
        self._drop(name, f"{self.best(name) / self.best(leader):.2f}x the time of {leader}")

    def _drop(self, name: str, reason: str) -> None:
        self._running.remove(name)
        self.dropped[name] = reason
        self._turns = deque(turn for turn in self._turns if turn != name and len(self._running) > 1)
