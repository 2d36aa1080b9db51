"""What runs of a plan have in common with those of plans of the same steps for other sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from convalgos.cpu.layout.reorder import Reorder
from convalgos.cpu.runtime.plan import KernelPlan
from convalgos.network.graph import Convolution, NetworkGraph
from convalgos.network.known_values import known_steps, may_be_known
from convalgos.network.planned import Planned, PlannedStep, moving_values
from convalgos.network.softmax import Softmax
from convalgos.network.step_options import CONVOLUTIONS


class RunStructure:
    """Which values move or are known, which steps are bound, and by what settings they are bound again."""

    def __init__(self, planned: Planned, graph: NetworkGraph):
        steps = planned.steps
        self._kinds = _kinds(steps)
        self.moving = moving_values(steps, graph)
        self.lies_in = _outputs_shown(planned, graph, self.moving)
        self.moving |= {*self.lies_in}
        self.lies_in |= _views_of_arguments(steps, graph)
        self.written = {name for planned_step in steps for name in planned_step.step.outputs}
        self._may_be_known = any(may_be_known(planned_step) for planned_step in steps)
        known = self.known_steps(planned)
        self.known_names = {planned_step.step.output for planned_step in known}
        self.order = [i for i in planned.alike if steps[i].step.output not in self.known_names]
        self.moves = [not self.moving.isdisjoint((*s.step.inputs, *s.step.outputs)) for s in steps]
        self.settings: dict[int, Any] = {}  # of the runs of steps, by their numbers

    def is_of(self, planned: Planned) -> bool:
        """Whether another plan of the same steps, whose values share memory alike, has this one, too."""
        if _kinds(planned.steps) != self._kinds:
            return False
        return {s.step.output for s in self.known_steps(planned)} == self.known_names

    def known_steps(self, planned: Planned) -> tuple[PlannedStep, ...]:
        """Those of a plan whose outputs are known when the sizes of the inputs are."""
        return known_steps(planned, self.moving) if self._may_be_known else ()


def can_be_told(planned_step: PlannedStep) -> bool:
    """Whether its kernels may read words that say where its arrays lie."""
    plan = planned_step.plan
    return (
        plan is None
        or isinstance(planned_step.step, CONVOLUTIONS)
        or isinstance(plan, Reorder)
        or getattr(plan, "told", False)
    )


def _kinds(steps: Sequence[PlannedStep]) -> list[type]:
    return [type(planned_step.plan) for planned_step in steps]


def _views_of_arguments(steps: Sequence[PlannedStep], graph: NetworkGraph) -> dict[str, str]:
    """Values that are views of an input or of an output, each with this."""
    found: dict[str, str] = {}
    arguments = {*graph.inputs, *graph.outputs}
    for step in (planned_step.step for planned_step in steps if planned_step.plan is None):
        name = found.get(step.inputs[0], step.inputs[0])
        if name in arguments and step.output not in graph.outputs:
            found[step.output] = name
    return found


def _outputs_shown(planned: Planned, graph: NetworkGraph, moving: set[str]) -> dict[str, str]:
    """Values of which an output is a view, and those of products that a softmax writes an output over: they
    are computed where it lies. Each with the output.

    What has slices that other steps write, or is one, stays in the arena with these.
    """
    found: dict[str, str] = {}
    steps, slices = planned.steps, planned.sharing.slices if planned.sharing else {}
    kept = moving | {*slices} | {whole for whole, _ in slices.values()}
    reads = Counter(name for planned_step in steps for name in planned_step.step.inputs)
    told = {s.step.output for s in steps if can_be_told(s)} - kept
    products = {s.step.output for s in steps if _is_told_alone(s)}
    for planned_step in reversed(steps):
        step = planned_step.step
        if planned_step.plan is None:
            may_lie_there = told
        elif isinstance(step, Softmax):
            may_lie_there = told & products
        else:
            continue
        name, output = step.inputs[0], found.get(step.output, step.output)
        if output in graph.outputs and name in may_lie_there and reads[name] == 1:
            found[name] = output
    return found


def _is_told_alone(planned_step: PlannedStep) -> bool:
    """Whether it is a convolution whose kernels are all that writes y, wherever it lies."""
    step = planned_step.step
    plain = isinstance(step, Convolution) and step.activation is None and len(step.inputs) == 1
    return plain and isinstance(planned_step.plan, KernelPlan)
