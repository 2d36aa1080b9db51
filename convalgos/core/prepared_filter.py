"""A filter in the form that a plan runs on, and what it was prepared for."""

from __future__ import annotations

from typing import Any, NamedTuple

from convalgos.core.problem import ConvProblem


class FilterKey(NamedTuple):
    """What a filter was prepared for: it serves plans of the same key."""

    algorithm: str
    problem: ConvProblem
    device: str = "cpu"

    def __str__(self) -> str:
        return f"{self.algorithm} on {self.problem}" + ("" if self.device == "cpu" else f" on {self.device}")


class PreparedFilter:
    """A filter in the form that one plan runs on; `Plan.prepare` makes it. For backward_weights it is dy."""

    __slots__ = ("data", "key")

    def __init__(self, key: FilterKey, data: Any):
        self.key = key
        self.data = data
