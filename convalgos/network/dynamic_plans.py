"""Plans of convolutions whose filters are computed in each run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from convalgos.core.allocator import of_one_call
from convalgos.core.bound_run import BoundRun
from convalgos.core.problem import ConvProblem
from convalgos.cpu.runtime.plan import KernelPlan, Packed
from convalgos.network.planned import PlanLimits
from convalgos.network.step_options import limits_of
from convalgos.select import choose


class DynamicConvolutionPlan:
    """Prepares the filter in each run, for which time the algorithm is chosen."""

    def __init__(self, problem: ConvProblem):
        limits = replace(limits_of(PlanLimits()), weights_constant=False)
        self.plan = choose.choose_plan(problem, "cpu", limits)
        self.problem, self.algorithm = problem, self.plan.algorithm

    def run(self, inputs: Sequence[np.ndarray], y: np.ndarray) -> None:
        """Write y."""
        x, w, *bias = inputs
        self.plan(x, self.plan.prepare(w), bias=bias[0] if bias else None, out=y)

    def bind(self, *arrays: np.ndarray) -> BoundRun:
        """A run on these very arrays, the inputs and y."""
        *inputs, y = arrays
        x, w, *bias = inputs
        filters = self.plan.prepare(np.zeros(w.shape, w.dtype))
        if bias or not isinstance(self.plan, KernelPlan) or not isinstance(filters.data, Packed):
            return BoundRun(lambda: self.run(inputs, y))
        plan, packed, bound = self.plan, filters.data.array, self.plan.bind(x, filters, y)

        def run() -> None:
            with of_one_call():
                np.copyto(packed, plan.pack_filter(w))
            bound.run()

        return BoundRun(run, None, (filters, bound))
