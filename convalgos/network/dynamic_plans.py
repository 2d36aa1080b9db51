"""Plans of convolutions whose filters are computed in each run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from convalgos.core.allocator import of_one_call
from convalgos.core.bound_run import BoundRun
from convalgos.core.epilogue import Activation
from convalgos.core.plan import Plan
from convalgos.core.prepared_filter import PreparedFilter
from convalgos.core.problem import ConvProblem
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import KernelPlan, Packed
from convalgos.cpu.runtime.recorded_packing import RecordedPacking, recorded_packing
from convalgos.network.planned import PlanLimits
from convalgos.network.step_options import limits_of
from convalgos.select import choose

# Predicted is the preparing of a filter that comes from memory. One that was computed just before, packed by
# a launch, took 1/5 to 1/8 of that (Xeon, AVX-512).
PACKINGS = 5
BETWEEN = 1e-4  # seconds that preparing in Python takes longer than predicted between kernels of all threads
SLACK = 2.0  # times the best prediction, for those that are looked at


class DynamicConvolutionPlan:
    """Packs the filter in each run, for which time the algorithm is chosen.

    Args:
        bias: one that is constant; a computed one is an input.
    """

    def __init__(
        self, problem: ConvProblem, limits: PlanLimits, bias: np.ndarray | None, activation: Activation | None
    ):
        self.plan = _chosen(problem, limits)
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
        if not isinstance(plan, KernelPlan) or (packing := _packing_of(plan, w)) is None:
            return None
        packed = Packed(packing.packed, jit.data_address()(packing.packed))
        filters = PreparedFilter(plan._key, packed)
        bound = plan.bind(x, filters, y, self._bias, self._activation)
        if bound.launches is None:
            return None
        return jit.bound_run((*packing.launches, *bound.launches), packing, bound, w)


def _chosen(problem: ConvProblem, limits: PlanLimits) -> Plan:
    """The plan that is the fastest with its filter packed in each run."""
    held_to = replace(limits_of(limits), expected_calls=PACKINGS)
    best, least, none = None, math.inf, np.zeros(problem.w_shape, np.float32)
    for candidate in choose.close_candidates(problem, "cpu", held_to, SLACK):
        if candidate.estimate_s >= least:
            break
        plan = choose.plan_candidate(candidate, held_to)
        if isinstance(plan, KernelPlan) and _packing_of(plan, none) is not None:
            return plan
        seconds = candidate.estimate_s + candidate.prepare_s + BETWEEN
        if seconds < least:
            best, least = plan, seconds
    return best or choose.choose_plan(problem, "cpu", replace(held_to, weights_constant=False))


def _packing_of(plan: KernelPlan, w: np.ndarray) -> RecordedPacking | None:
    """What packs w as it lies, by launches alone."""
    if plan.problem.mode == "convolution" or not w.flags.c_contiguous:
        return None
    return RecordedPacking(w, ()) if plan.reads_filter else recorded_packing(plan.pack_filter, w)
