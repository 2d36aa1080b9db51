"""The gradient of the filter (wgrad) by a forward algorithm that takes a filter as large as y.

`BackwardWeights` takes the place of such an algorithm where the direction is backward_weights. Copies of x
and dy with batch and channels swapped are its input and its filter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from convalgos.core.backward.swapped_roles import BySwappedRoles, swapped_roles
from convalgos.core.machine import Machine
from convalgos.core.plan import Plan
from convalgos.core.problem import ConvProblem

COPIED = 2.0  # times the bytes of x and dy at the bandwidth of the memory: NumPy copies them on one thread


@dataclass(frozen=True)
class BackwardWeights(BySwappedRoles):
    """A forward algorithm of the CPU, asked for the gradient of the filter."""

    def cost(self, problem: ConvProblem, machine: Machine) -> float:
        forward = swapped_roles(problem).forward
        copies = COPIED * machine.stream(2 * (problem.x_bytes + problem.y_bytes))
        return copies + self.inner.prepare_cost(forward, machine) + self.inner.cost(forward, machine)

    def plan(self, problem: ConvProblem) -> Plan:
        return BackwardWeightsPlan(problem, self)


class BackwardWeightsPlan(Plan):
    def __init__(self, problem: ConvProblem, algorithm: BackwardWeights) -> None:
        super().__init__(problem, algorithm, algorithm.workspace_bytes(problem))
        self._exchanged = swapped_roles(problem)
        self._plan = algorithm.child_plan(self._exchanged.forward)

    def prepare_filter(self, w: np.ndarray) -> np.ndarray:
        """dy itself."""
        return w

    def new_workspace(self) -> Any:
        return self._plan.new_workspace(), np.empty(self._exchanged.forward.y_shape, self._dtype)

    def run(
        self, x: np.ndarray, w: Any, bias: np.ndarray | None, activation: str | None, y: np.ndarray,
        workspace: Any,
    ) -> None:  # fmt: skip
        inner, result = workspace
        if self.problem.layout == "channels_last":
            x, w = np.moveaxis(x, -1, 1), np.moveaxis(w, -1, 1)
        given = np.ascontiguousarray(self._exchanged.input(x, self.problem))
        prepared = self._plan.prepare_filter(np.ascontiguousarray(self._exchanged.filter(w)))
        self._plan.run(given, prepared, None, None, result, inner)
        y[...] = self._exchanged.result(result)
