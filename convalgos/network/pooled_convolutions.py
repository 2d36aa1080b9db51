"""Maxima of windows of a map, by the convolution that writes it: it pools its outputs as they are finished.

Nothing else may read the map, which is then neither written nor read again.
"""

from __future__ import annotations

import math
from dataclasses import fields, replace

from convalgos.core.machine import Machine
from convalgos.core.pool_problem import PoolProblem
from convalgos.cpu.pooling.cost import pooling_seconds
from convalgos.cpu.tiled.box_algorithm import BoxAlgorithm
from convalgos.cpu.tiled.box_plan import BoxPlan
from convalgos.network.graph import Convolution, NetworkGraph, Pooling
from convalgos.network.planned import Planned, PlannedStep, PooledConvolution, readers_of
from convalgos.select.ranking import Candidate

# Those that pool, of plans that a network has several times; None where one cannot.
Plans = dict[tuple[BoxPlan, PoolProblem], BoxPlan | None]

RISING = "relu", "clip"  # activations that never fall: the largest of what they give is that of the largest


def poolings(graph: NetworkGraph) -> dict[str, Pooling]:
    """The poolings that alone read what a convolution writes and may pool itself, by this value."""
    readers, found = graph.readers(), {}
    for step in graph.steps:
        if isinstance(step, Convolution) and may_be_pooled(step) and step.output not in graph.outputs:
            (first, *others) = readers[step.output] or (None,)
            if isinstance(first, Pooling) and not others:
                found[step.output] = first
    return found


def may_be_pooled(step: Convolution) -> bool:
    """Whether its activation may be that of what is pooled: nothing is added, and it never falls."""
    activation = step.activation
    falls = activation is not None and activation.name not in RISING
    if activation is not None and activation.name == "leaky_relu":
        falls = activation.a < 0
    return len(step.inputs) == 1 and not falls


def pooling_saves(candidate: Candidate, pooling: PoolProblem, machine: Machine) -> float:
    """Seconds that a convolution and the pooling behind it take less where one does both; 0 where it cannot.

    Args:
        pooling: in the layout that the convolution writes.
    """
    algorithm, problem = candidate.algorithm, candidate.problem
    if not isinstance(algorithm, BoxAlgorithm) or candidate.computed is not problem:
        return 0.0
    if not algorithm.pools(problem, pooling):
        return 0.0
    unwritten = math.prod(pooling.array_shapes[0]) - math.prod(pooling.array_shapes[1])
    return pooling_seconds(pooling, machine) + machine.stream_near(unwritten * pooling.itemsize)


def with_pooled_convolutions(planned: Planned, graph: NetworkGraph) -> Planned:
    """A plan in which convolutions pool what they write, where their kernels can."""
    readers = readers_of(planned.steps)
    plans: Plans = {}
    steps: list[PlannedStep] = []
    pooled: set[PlannedStep] = set()  # those that convolutions before them do
    for planned_step in planned.steps:
        behind = readers.get(planned_step.step.output, [])
        if planned_step in pooled:
            continue
        if len(behind) == 1 and planned_step.step.output not in graph.outputs:
            made = _with_pooling(planned_step, behind[0], planned, plans)
            if made is not None:
                pooled.add(behind[0])
                planned_step = made
        steps.append(planned_step)
    return replace(planned, steps=tuple(steps))


def _with_pooling(
    maker: PlannedStep, behind: PlannedStep, planned: Planned, plans: Plans
) -> PlannedStep | None:
    """A convolution and the pooling behind it as one step; None where they stay two."""
    step, pooling, plan = maker.step, behind.step, maker.plan
    if not isinstance(step, Convolution) or not isinstance(pooling, Pooling) or not isinstance(plan, BoxPlan):
        return None
    if not may_be_pooled(step):
        return None
    key = plan, pooling.problem(planned.shapes[step.output])
    if key not in plans:
        plans[key] = plan.pooled(key[1])
    if plans[key] is None:
        return None
    own = {field.name: getattr(step, field.name) for field in fields(step)} | {"output": pooling.output}
    made = PooledConvolution(**own, pooling=pooling, unwritten=step.output)
    return PlannedStep(made, maker.reads, behind.writes, plans[key], maker.seconds + behind.seconds)
