"""Depthwise convolutions joined with the ones around them, where that is predicted to be faster.

What an expansion writes is several times what it reads: joined, it stays in the caches of a core, and no
thread waits for the others in between.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from convalgos.core.machine import Machine
from convalgos.core.profiles import units_are_narrow
from convalgos.cpu.runtime.threads import plan_threads
from convalgos.cpu.separable.band_cut import band_cut, separable_seconds
from convalgos.cpu.separable.block import SeparableBlock, reads_planes, why_not_joined
from convalgos.cpu.separable.plan import SeparablePlan
from convalgos.network.graph import Convolution, NetworkGraph
from convalgos.network.planned import (
    JoinedConvolutions,
    PlanLimits,
    Planned,
    PlannedStep,
    moving_values,
    readers_of,
)
from convalgos.select import devices

MOVED = 2 * 4  # bytes of an element that one step writes and the next one reads
# Seconds that a depthwise layer in a step of its own takes beyond what is predicted, as its threads find its
# map in the caches of each other and end apart, by whether units are narrow: Zen 4, two threads, MobileNetV2,
# V3 and MnasNet. Not measured on others.
APART = {False: 0.0, True: 5e-6}

Chain = tuple[PlannedStep | None, PlannedStep, PlannedStep | None]  # as of a `SeparableBlock`


def joined(planned: Planned, graph: NetworkGraph, limits: PlanLimits) -> Planned:
    """A plan in which convolutions are joined, before its values have places."""
    if "float32" not in limits.precisions:
        return planned
    machine = devices.figures("cpu")
    steps: dict[PlannedStep, PlannedStep | None] = {step: step for step in planned.steps}
    plans: dict[SeparableBlock, SeparablePlan] = {}  # of those that the network has several times
    neighbours = _Neighbours(planned, graph)
    for step in planned.steps:
        found: list[tuple[float, Chain, SeparableBlock]] = []  # with the seconds that each saves
        for chain in neighbours.chains(step):
            free = all(part is None or steps[part] is part for part in chain)  # and in no joined step
            block = _block(chain, limits) if free else None
            if block is not None:
                alone = _seconds_alone(chain, planned, machine)
                found.append((alone - separable_seconds(block, machine), chain, block))
        saved, chain, block = max(found, key=lambda f: f[0], default=(0.0, (None, step, None), None))
        if block is not None and saved > 0:
            plan = plans[block] = plans.get(block) or SeparablePlan(block)
            *others, last = (part for part in chain if part)
            steps |= dict.fromkeys(others)
            seconds = separable_seconds(block, machine)
            steps[last] = _joined([*others, last], plan, seconds)  # where all that it reads is there
    return replace(planned, steps=tuple(step for step in steps.values() if step is not None))


def _seconds_alone(chain: Chain, planned: Planned, machine: Machine) -> float:
    """Of steps one after the other. What one of them writes mostly another core reads, out of the last cache;
    their own predictions are of maps that their cores hold already."""
    *others, last = (part for part in chain if part)
    between = sum(math.prod(planned.shapes[part.step.output]) for part in others)
    apart = APART[units_are_narrow()] if plan_threads() > 1 else 0.0
    return sum(part.seconds for part in (*others, last)) + machine.stream(MOVED * between) + apart


class _Neighbours:
    """The steps that write what a step reads, and read what it writes, where nothing else needs it."""

    def __init__(self, planned: Planned, graph: NetworkGraph):
        self._outside = moving_values(planned.steps, graph)
        self._makers = {name: step for step in planned.steps for name in step.step.outputs}
        self._readers = readers_of(planned.steps)

    def chains(self, step: PlannedStep) -> Iterator[Chain]:
        """A convolution with what may be joined to it; nothing of other steps."""
        if not self._is_inside(step) or len(step.step.inputs) > 1:
            return
        readers = self._readers.get(step.step.output, [])
        before = self._makers.get(step.step.inputs[0])
        if before is not None and not self._may_be_first(before):
            before = None
        behind = readers[0] if len(readers) == 1 and self._is_inside(readers[0]) else None
        if behind is not None and behind.step.inputs[0] != step.step.output:
            behind = None  # it adds what this step writes
        for first in {before, None}:
            for last in {behind, None}:
                yield first, step, last

    def _is_inside(self, step: PlannedStep) -> bool:
        """Whether it is a convolution of values that stay inside of the network."""
        names = {*step.step.inputs, *step.step.outputs}
        return isinstance(step.step, Convolution) and not self._outside & names

    def _may_be_first(self, step: PlannedStep) -> bool:
        """Whether it is a convolution of one map whose output one step reads; the map may be an input of the
        network where the joined step may be told where it lies."""
        name = step.step.output
        if len(step.step.inputs) > 1 or len(self._readers.get(name, [])) > 1 or name in self._outside:
            return False
        return isinstance(step.step, Convolution) and (
            self._is_inside(step) or reads_planes(step.plan.problem)
        )


def _block(chain: Chain, limits: PlanLimits) -> SeparableBlock | None:
    """What a chain computes, where there is a kernel for it within the limits."""
    if any(part.plan.problem.dtype != "float32" for part in chain if part):
        return None
    first, deep, last = chain
    expansion, projection = (None if part is None else part.plan.problem for part in (first, last))
    block = SeparableBlock(expansion, deep.plan.problem, projection)
    if why_not_joined(block):
        return None
    scratch = plan_threads() * band_cut(block).scratch_bytes
    return None if limits.workspace_limit is not None and scratch > limits.workspace_limit else block


def _joined(parts: list[PlannedStep], plan: SeparablePlan, seconds: float) -> PlannedStep:
    """The step of a chain."""
    first, last = parts[0], parts[-1]
    inputs, reads = (*first.step.inputs, *last.step.inputs[1:]), (*first.reads, *last.reads[1:])
    steps = tuple(part.step for part in parts if isinstance(part.step, Convolution))
    step = JoinedConvolutions(last.step.name, inputs, last.step.output, steps)
    return PlannedStep(step, reads, last.writes, plan, seconds)
