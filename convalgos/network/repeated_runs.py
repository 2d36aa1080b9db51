"""The compiled run of a network whose last calls had inputs of the same shapes."""

from __future__ import annotations

from collections.abc import Callable

from convalgos.network.known_run import KnownRun
from convalgos.network.network_plan import NetworkPlan


class RepeatedRuns:
    """Threads may use it at once: what they bring last stays."""

    def __init__(self) -> None:
        self.run: KnownRun | None = None  # what is asked first: inputs by name as the last calls had them
        self.plan: NetworkPlan | None = None  # for which it was made, or sought
        self._last: NetworkPlan | None = None  # of the last call that was not by it

    def note(self, plan: NetworkPlan, is_right: Callable[[], bool]) -> None:
        """Let the next calls run by what is compiled for a plan that comes twice in a row.

        Args:
            is_right: whether calls still run by the plan: another thread may bring a better one meanwhile.
        """
        if plan is not self._last:
            self._last, self.plan, self.run = plan, None, None
        elif plan is not self.plan:
            self.plan, self.run = plan, plan.known_run()
            if not is_right():
                self.run = None

    def forget(self) -> None:
        """Other plans are what calls run by."""
        self._last = self.plan = self.run = None
