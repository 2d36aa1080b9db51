"""Plans of convolutions whose filters are computed in each run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from convalgos.core.allocator import of_one_call
from convalgos.core.bound_run import BoundRun
from convalgos.core.epilogue import Activation
from convalgos.core.prepared_filter import PreparedFilter
from convalgos.core.problem import ConvProblem
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import KernelPlan, Packed
from convalgos.cpu.runtime.recorded_packing import RecordedPacking, recorded_packing
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
        if not bias and (found := self._launched(x, w, y)) is not None:
            return found
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

    def _launched(self, x: np.ndarray, w: np.ndarray, y: np.ndarray) -> BoundRun | None:
        """A run that is launches alone: of the kernel that packs w, and of the convolution."""
        plan = self.plan
        if not isinstance(plan, KernelPlan) or self.problem.mode == "convolution":
            return None
        if not w.flags.c_contiguous:
            return None
        packing = RecordedPacking(w, ()) if plan.reads_filter else recorded_packing(plan.pack_filter, w)
        if packing is None:
            return None
        key, address = plan.prepare(np.zeros(w.shape, w.dtype)).key, jit.data_address()(packing.packed)
        filters = PreparedFilter(key, Packed(packing.packed, address))
        bound = plan.bind(x, filters, y, self._bias, self._activation)
        if bound.launches is None:
            return None
        return jit.bound_run((*packing.launches, *bound.launches), packing, bound, w)
