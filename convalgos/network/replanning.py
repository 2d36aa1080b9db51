"""A plan of a network for other shapes of its inputs, made from one that it has.

The steps, their order, their layouts and what is joined stay. Each step is planned again for its own sizes,
and keeps its plan where these are the same; nothing is searched for.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from convalgos.core.errors import Unsupported
from convalgos.cpu.gemm.scaled_plan import ScaledPlan, takes_scale
from convalgos.cpu.runtime.threads import plan_threads
from convalgos.cpu.separable.block import why_not_joined
from convalgos.cpu.separable.plan import SeparablePlan
from convalgos.network.arena import with_places
from convalgos.network.graph import NetworkGraph, Pooling, Shapes, Step
from convalgos.network.layout_choice import LayoutChoice
from convalgos.network.planned import (
    JoinedConvolutions,
    LayoutChange,
    PlanLimits,
    Planned,
    PlannedStep,
    ScaledConvolution,
)
from convalgos.network.step_options import CONVOLUTIONS, StepOption, limits_of
from convalgos.network.step_plans import plan_of, reorder_of
from convalgos.select import choose


def replanned(
    known: Planned, graph: NetworkGraph, shapes: Shapes, choice: LayoutChoice, limits: PlanLimits
) -> Planned | None:
    """The plan for values of these shapes; None where other steps are needed than in the one that is known.

    Args:
        known: in the layouts of the choice.
        choice: for these shapes.
    """
    if known.threads != plan_threads():
        return None
    try:
        steps = _Replanning(known, graph, shapes, choice, limits).steps()
    except Unsupported:  # what was joined cannot be, in these sizes
        return None
    return with_places(steps, graph)


class _Replanning:
    def __init__(
        self, known: Planned, graph: NetworkGraph, shapes: Shapes, choice: LayoutChoice, limits: PlanLimits
    ):
        self._known, self._limits = known, limits
        self._shapes = {**shapes}
        self._options = {step.output: option for step, option in choice.options.items()}
        self._graph_steps = {name: step for step in graph.steps for name in step.outputs}
        self._plans: dict[Any, Any] = {}  # of convolutions that the network has several times

    def steps(self) -> Planned:
        """The plan, before its values have places.

        Raises:
            Unsupported: a step cannot be computed as in the plan that is known.
        """
        for name, layout in self._known.layouts.items():
            if name not in self._shapes:
                self._shapes[name] = self._shapes[name.removesuffix(f":{layout}")]
        steps = tuple(self._step(planned_step) for planned_step in self._known.steps)
        return replace(self._known, steps=steps, shapes=self._shapes)

    def _step(self, known: PlannedStep) -> PlannedStep:
        step = known.step
        plan: Any
        if isinstance(step, JoinedConvolutions):
            plan, seconds = self._joined(step, known.plan), sum(self._option(p).seconds for p in step.parts)
        elif isinstance(step, ScaledConvolution):
            inner, seconds = self._convolution(step.convolution, known.plan.plan), self._option(step).seconds
            if not takes_scale(inner) or self._shapes[step.inputs[1]] != (*inner.problem.x_shape[:2], 1, 1):
                raise Unsupported("its kernels cannot scale what it reads")
            plan = known.plan if inner is known.plan.plan else ScaledPlan(inner)
        elif isinstance(step, CONVOLUTIONS):
            plan, seconds = self._convolution(step, known.plan), self._option(step).seconds
        elif isinstance(step, LayoutChange):
            itemsize = np.dtype(self._dtype(step)).itemsize
            plan = reorder_of(self._shapes[step.inputs[0]], step.source, step.target, itemsize)
            seconds = known.seconds
        else:
            same = all(self._shapes[n] == self._known.shapes[n] for n in (*step.inputs, *step.outputs))
            plan = known.plan if same else plan_of(step, self._shapes, known.writes, self._dtype(step))
            seconds = self._option(step).seconds
        return known if plan is known.plan else PlannedStep(step, known.reads, known.writes, plan, seconds)

    def _dtype(self, step: Step) -> str:
        """Of what a step reads."""
        return self._known.dtypes.get(next(iter(step.inputs), ""), "float32")

    def _option(self, step: Step) -> StepOption:
        """What was chosen for a step: its output may have another name in another layout."""
        name = step.output
        return self._options[name if name in self._options else name.rpartition(":")[0]]

    def _convolution(self, step: Step, known: Any) -> Any:
        """The plan of a convolution, like the one for other sizes."""
        candidate = self._option(step).candidate
        assert candidate is not None
        if known.algorithm != candidate.id:
            raise Unsupported(f"{known.algorithm} does not serve {candidate.problem}")
        if known.problem == candidate.problem:
            return known
        found = self._plans.get(candidate.problem)
        if found is None:
            limits = limits_of(self._limits, candidate.precision)
            found = self._plans[candidate.problem] = choose.plan_candidate(candidate, limits, known)
        return found

    def _joined(self, step: JoinedConvolutions, known: SeparablePlan) -> SeparablePlan:
        candidates = (self._option(part).candidate for part in step.parts)
        found = [candidate.problem for candidate in candidates if candidate is not None]
        block = known.block._replace(**dict(zip(known.block.parts, found, strict=True)))
        if block == known.block:
            return known
        if step.mean:
            pooling = self._graph_steps.get(step.mean) or self._graph_steps[step.mean.rpartition(":")[0]]
            whole = isinstance(pooling, Pooling) and pooling.kernel in (None, block.depthwise.spatial_out)
            if not whole:
                raise Unsupported("the mean is not that of whole maps")
        key = block, bool(step.mean)
        if key not in self._plans:
            if reason := why_not_joined(block, bool(step.mean)):
                raise Unsupported(f"a step {reason}")
            plan = SeparablePlan(block, bool(step.mean), known)
            limit = self._limits.workspace_limit
            if limit is not None and plan.scratch_bytes > limit:
                raise Unsupported(f"joined, it needs {plan.scratch_bytes} bytes of workspace")
            self._plans[key] = plan
        found_plan: SeparablePlan = self._plans[key]
        return found_plan
