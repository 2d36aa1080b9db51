"""wgrad on the GPU by a forward algorithm that takes filters as large as y: x and dy change their roles.

Copies of x and dy, in another order, are its input and its filter; they come from the pool in every call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from convalgos.core.backward.swapped_roles import BySwappedRoles, swapped_roles
from convalgos.core.problem import ConvProblem
from convalgos.gpu.backward.data import GpuByForward
from convalgos.gpu.device import GpuMachine
from convalgos.gpu.launch.plan import GpuPlan


@dataclass(frozen=True)
class BackwardWeights(BySwappedRoles, GpuByForward):  # type: ignore[override]
    """A forward algorithm of a GPU, asked for the gradient of the filter."""

    def cost(self, problem: ConvProblem, machine: GpuMachine) -> float:
        forward = swapped_roles(problem).forward
        copies = 3 * machine.launch + machine.stream(2 * (problem.x_bytes + problem.y_bytes))
        return copies + self.inner.prepare_cost(forward, machine) + self.inner.cost(forward, machine)

    def plan(self, problem: ConvProblem) -> GpuPlan:
        return BackwardWeightsPlan(problem, self)


class BackwardWeightsPlan(GpuPlan):
    uncapturable = "dy is prepared as a filter in every run, by steps of which not all can be recorded"

    def __init__(self, problem: ConvProblem, algorithm: BackwardWeights):
        super().__init__(problem, algorithm, algorithm.workspace_bytes(problem))
        self._exchanged = swapped_roles(problem)
        plan = algorithm.child_plan(self._exchanged.forward)
        assert isinstance(plan, GpuPlan)
        self._plan = plan
        self.launches += plan.launches

    def prepare_filter(self, w: Any) -> Any:
        """dy itself."""
        return w

    def workspace(self) -> Any:
        """None: the copies come from the pool one after the other."""

    def run(self, x: Any, w: Any, bias: Any, activation: str | None, y: Any, workspace: Any) -> None:
        xp, bits = self.device.xp, np.dtype(f"u{self.problem.itemsize}")
        if self.problem.layout == "channels_last":
            x, w = xp.moveaxis(x, -1, 1), xp.moveaxis(w, -1, 1)
        given = xp.array(self._exchanged.input(x.view(bits), self.problem), order="C").view(self._dtype)
        dy = xp.array(self._exchanged.filter(w.view(bits)), order="C").view(self._dtype)
        result = xp.empty(self._exchanged.forward.y_shape, self._dtype)
        self._plan.run(given, self._plan.prepare_filter(dy), None, None, result, self._plan.workspace())
        y.view(bits)[...] = self._exchanged.result(result.view(bits))
