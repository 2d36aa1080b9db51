"""Means of whole maps, as of squeeze and excitation, by the depthwise convolutions that write these."""

from __future__ import annotations

from dataclasses import replace

from convalgos.core.layouts import BLOCKS
from convalgos.cpu.separable.block import SeparableBlock, why_not_joined
from convalgos.cpu.separable.plan import SeparablePlan
from convalgos.network.graph import Convolution, NetworkGraph, Pooling
from convalgos.network.planned import JoinedConvolutions, Planned, PlannedStep, moving_values


def with_means(planned: Planned, graph: NetworkGraph) -> Planned:
    """A plan in which depthwise convolutions give the means of what they write, too."""
    outside = moving_values(planned.steps, graph)
    steps = {planned_step.step.output: planned_step for planned_step in planned.steps}
    plans: dict[SeparableBlock, SeparablePlan] = {}  # of those that the network has several times
    for planned_step in planned.steps:
        if not _is_global_mean(planned_step, planned):
            continue
        maker = steps.get(planned_step.step.inputs[0])
        if maker is None or outside & {*maker.step.outputs, planned_step.step.output}:
            continue
        if outside & {*maker.step.inputs} and not getattr(maker.plan, "told", False):
            continue
        block = _block(maker)
        if block is None or why_not_joined(block, mean=True):
            continue
        plan = plans[block] = plans.get(block) or SeparablePlan(block, mean=True)
        step = maker.step
        parts = (step,) if isinstance(step, Convolution) else getattr(step, "parts", ())
        made = JoinedConvolutions(step.name, step.inputs, step.output, parts, planned_step.step.output)
        steps[step.output] = replace(maker, step=made, plan=plan)
        del steps[planned_step.step.output]
    return replace(planned, steps=tuple(steps.values()))


def _is_global_mean(planned_step: PlannedStep, planned: Planned) -> bool:
    """Whether a step is the mean of whole maps, in blocks of channels."""
    step = planned_step.step
    if not isinstance(step, Pooling) or step.reduction != "mean" or planned_step.writes not in BLOCKS:
        return False
    x = planned.shapes[step.inputs[0]]
    whole = step.kernel is None or (tuple(step.kernel) == x[2:] and not any(map(any, step.padding)))
    return (
        whole and planned.shapes[step.output][2:] == (1, 1) and planned_step.reads == (planned_step.writes,)
    )


def _block(maker: PlannedStep) -> SeparableBlock | None:
    """What a step computes, if that is a depthwise convolution in the end, without a residual or a mean."""
    step, plan = maker.step, maker.plan
    if isinstance(step, JoinedConvolutions) and not step.mean and len(step.inputs) == 1:
        block: SeparableBlock = plan.block
        return block
    if isinstance(step, Convolution) and plan.algorithm == "cpu.depthwise.channels" and len(step.inputs) == 1:
        return SeparableBlock(None, plan.problem, None)
    return None
