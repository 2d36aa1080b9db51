"""Which algorithms brought processes down, how long each is waited for, and which are no longer tried."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from convalgos.tools.gpu_check.steps import Begun, accused

LOSSES = 2  # of processes, after which an algorithm is barred from all that follows
SUSPECT = 5.0  # seconds that one is waited for after its first loss


@dataclass
class Quarantine:
    """Kept by the process that directs, over all phases.

    Attributes:
        scale: of all seconds: the tests are in more of a hurry.
    """

    scale: float = 1.0
    losses: dict[str, list[str]] = field(default_factory=dict)  # algorithm -> what was running, each time

    def patience(self, begun: Begun | None, more: float = 0.0, most: float = math.inf) -> float:
        """Seconds to wait for a step: of a suspect few; before any, `more`.

        Args:
            more: that a first step may take besides.
            most: that any may take.
        """
        if begun is None:
            return self.scale * more
        if accused(begun.algorithm) in self.losses:
            return self.scale * SUSPECT
        return self.scale * min(begun.patience + more, most if begun.algorithm else math.inf)

    def lost(self, begun: Begun, reason: str) -> None:
        """A process is lost."""
        if begun.algorithm:
            told = f"`{begun.case.problem}`, {reason}"
            self.losses.setdefault(accused(begun.algorithm), []).append(told)

    @property
    def barred(self) -> frozenset[str]:
        return frozenset(name for name, found in self.losses.items() if len(found) >= LOSSES)

    def told(self) -> Iterator[str]:
        """A line for each algorithm that is barred."""
        for name in sorted(self.barred):
            yield f"{name} is barred after {LOSSES} losses: {'; '.join(self.losses[name])}"
