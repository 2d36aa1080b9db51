"""Algorithms whose kernels can leave gaps between their outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod

from convalgos.core.plan import Plan
from convalgos.core.problem import ConvProblem, Shape


class SpreadOutputs(ABC):
    """Mixed into algorithms that can write some of the pixels of a larger map, a step apart.

    `cpu/backward` has them write the phases of a gradient where they lie.
    """

    @abstractmethod
    def spreads(self, problem: ConvProblem) -> bool:
        """Whether the outputs of a problem may be such pixels."""

    @abstractmethod
    def plan_spread(self, problem: ConvProblem, spatial: Shape, step: Shape) -> Plan:
        """A plan of such a problem, for y[:, a::step, ...] of maps of some sizes."""
