"""What algorithms on boxes of tiles declare alike: all follows from the schedule of a problem."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from convalgos.core.algorithm import PREPARE_CALL, Algorithm
from convalgos.core.machine import Machine
from convalgos.core.pool_problem import PoolProblem
from convalgos.core.problem import ConvProblem
from convalgos.cpu.tiled import search
from convalgos.cpu.tiled.cost import BoxSchedule


class TiledAlgorithm(Algorithm):
    """Tiles of any transform."""

    least_prepare: ClassVar[float] = 2 * PREPARE_CALL

    @abstractmethod
    def _schedule(self, problem: ConvProblem) -> BoxSchedule:
        """The boxes of a problem that it serves, which is not empty."""

    def cost(self, problem: ConvProblem, machine: Machine) -> float:
        return machine.launch if problem.is_empty else self._schedule(problem).seconds(machine)

    def prepare_cost(self, problem: ConvProblem, machine: Machine) -> float:
        return 0.0 if problem.is_empty else self._schedule(problem).prepare_seconds(machine)

    def filter_bytes(self, problem: ConvProblem) -> int:
        return 0 if problem.is_empty else problem.groups * self._schedule(problem).u_bytes

    def workspace_bytes(self, problem: ConvProblem) -> int:
        return 0 if problem.is_empty else self._schedule(problem).scratch_bytes


@dataclass(frozen=True)
class BoxAlgorithm(TiledAlgorithm):
    """F(m, r) in one or both dimensions of a plane."""

    m: int
    r: int = 3

    filter_waits: ClassVar[float] = 1.3  # threads that share a map read all filters each

    @property
    def variant(self) -> str:
        return f"f{self.m}x{self.r}"

    def pools(self, problem: ConvProblem, pooling: PoolProblem) -> bool:
        """Whether its plans have a `pooled` one, which pools outputs as they are finished."""
        return False

    def granule(self, problem: ConvProblem) -> tuple[int, ...]:
        return search.in_one_box(BoxSchedule, problem, self.m, self.r, 1).granule[3 - problem.ndim :]
