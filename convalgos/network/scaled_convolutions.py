"""Products of maps with a number each, as of squeeze and excitation, computed by the convolution that reads
them: it scales its filters, and no map is written and read again."""

from __future__ import annotations

from dataclasses import replace

from convalgos.cpu.gemm.scaled_plan import ScaledPlan, scaling_seconds, takes_scale
from convalgos.network.graph import Convolution, Elementwise, NetworkGraph
from convalgos.network.planned import Planned, PlannedStep, ScaledConvolution, moving_values, readers_of
from convalgos.select import devices


def with_scaled_convolutions(planned: Planned, graph: NetworkGraph) -> Planned:
    """A plan in which convolutions scale what they read, where that is predicted to be faster."""
    readers = readers_of(planned.steps)
    outside = moving_values(planned.steps, graph)
    products: dict[str, PlannedStep] = {}  # by what they write, of those that are gone
    steps: list[PlannedStep] = []
    for planned_step in planned.steps:
        output, inputs = planned_step.step.output, planned_step.step.inputs
        read = readers.get(output, [])
        values = {*inputs, output}.union(*({*reader.step.inputs, *reader.step.outputs} for reader in read))
        inside = len(read) == 1 and not outside & values
        if inside and _is_scaling(planned_step, planned) and _scales(read[0], planned_step):
            products[output] = planned_step
            continue
        product = products.get(inputs[0]) if inputs else None
        steps.append(planned_step if product is None else _scaled(planned_step, product, planned))
    return replace(planned, steps=tuple(steps))


def _is_scaling(planned_step: PlannedStep, planned: Planned) -> bool:
    """Whether a step is the product of maps with a number each, and nothing else."""
    step = planned_step.step
    if not isinstance(step, Elementwise) or step.operation != "multiply" or step.activation:
        return False
    y = planned.shapes[step.output]
    per_map = (*y[:2], *(1,) * (len(y) - 2))
    return len(y) == 4 and sorted(planned.shapes[name] for name in step.inputs) == sorted((per_map, y))


def _scales(planned_step: PlannedStep, product: PlannedStep) -> bool:
    """Whether a step is a convolution that may well scale the product's maps itself."""
    step, plan = planned_step.step, planned_step.plan
    if not isinstance(step, Convolution) or not takes_scale(plan):
        return False
    read_once = step.inputs.count(product.step.output) == 1 and step.inputs[0] == product.step.output
    return read_once and scaling_seconds(plan.problem, devices.figures("cpu")) < product.seconds


def _scaled(planned_step: PlannedStep, product: PlannedStep, planned: Planned) -> PlannedStep:
    """A convolution of a product as one that scales."""
    step = planned_step.step
    assert isinstance(step, Convolution)
    shape = planned.shapes[product.step.output]
    x, scale = sorted(product.step.inputs, key=lambda name: planned.shapes[name] != shape)
    made = ScaledConvolution(step.name, (x, scale, *step.inputs[1:]), step.output, step)
    reads = (*product.reads, *planned_step.reads[1:])
    seconds = planned_step.seconds + scaling_seconds(planned_step.plan.problem, devices.figures("cpu"))
    return PlannedStep(made, reads, planned_step.writes, ScaledPlan(planned_step.plan), seconds)
