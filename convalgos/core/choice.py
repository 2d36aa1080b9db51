"""How the planner came to a plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Choice(NamedTuple):
    """How the planner came to a plan; `Algorithm.serve` hands it on to the plan that it makes."""

    explanation: str | Callable[[], str] = ""  # why this algorithm, or what tells it when asked
    next_plan: Callable[[], Any] | None = None  # makes a `Plan` of less workspace, where there is one
    watched: bool = True  # whether its runs are those of a program, which `capture` counts


NOT_CHOSEN = Choice(watched=False)  # of plans that no planner chose, such as those that are timed
