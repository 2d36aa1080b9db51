"""Plans of convolutions whose filters are computed in each run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from convalgos.core.allocator import of_one_call
from convalgos.core.bound_run import BoundRun
from convalgos.core.epilogue import Activation
from convalgos.core.problem import ConvProblem
from convalgos.cpu.runtime.plan import KernelPlan, Packed
from convalgos.network.planned import PlanLimits
from convalgos.network.step_options import limits_of
from convalgos.select import choose


class DynamicConvolutionPlan:
    """Prepares the filter in each run, for which time the algorithm is chosen.

    Args:
        bias: one that is constant; a computed one is an input.
    """

    def __init__(
        self, problem: ConvProblem, limits: PlanLimits, bias: np.ndarray | None, activation: Activation | None
    ):
        held_to = replace(limits_of(limits), weights_constant=False)
        self.plan = choose.choose_plan(problem, "cpu", held_to)
        self.problem, self.algorithm = problem, self.plan.algorithm
        self._bias, self._activation = bias, activation

    def run(self, inputs: Sequence[np.ndarray], y: np.ndarray) -> None:
        """Write y."""
        x, w, *bias = inputs
        added = bias[0] if bias else self._bias
        self.plan(x, self.plan.prepare(w), bias=added, out=y, activation=self._activation)

    def bind(self, *arrays: np.ndarray) -> BoundRun:
        """A run on these very arrays, the inputs and y."""
        *inputs, y = arrays
        x, w, *bias = inputs
        filters = self.plan.prepare(np.zeros(w.shape, w.dtype))
        if bias or not isinstance(self.plan, KernelPlan) or not isinstance(filters.data, Packed):
            return BoundRun(lambda: self.run(inputs, y))
        plan, packed = self.plan, filters.data.array
        bound = plan.bind(x, filters, y, self._bias, self._activation)

        def run() -> None:
            with of_one_call():
                np.copyto(packed, plan.pack_filter(w))
            bound.run()

        return BoundRun(run, None, (filters, bound))
