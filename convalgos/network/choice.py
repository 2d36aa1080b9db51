"""A network planned: layouts and algorithms of all steps chosen at once, and the memory laid out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from convalgos.api.planning import plan
from convalgos.core.errors import Unsupported
from convalgos.cpu.layout.reorder import reorder_seconds
from convalgos.cpu.runtime.threads import plan_threads
from convalgos.network.arena import with_places
from convalgos.network.attention import Rearrangement
from convalgos.network.compared import compared
from convalgos.network.graph import NetworkGraph, Shapes, Step
from convalgos.network.joined_means import with_means
from convalgos.network.joining import joined
from convalgos.network.later import Later
from convalgos.network.layout_choice import LayoutChoice, LayoutProblem
from convalgos.network.planned import LayoutChange, PlanLimits, Planned, PlannedStep
from convalgos.network.pooled_convolutions import with_pooled_convolutions
from convalgos.network.replanning import replanned
from convalgos.network.scaled_convolutions import with_scaled_convolutions
from convalgos.network.step_layouts import FIRST
from convalgos.network.step_options import GROWTH, StepOption, StepOptions, limits_of
from convalgos.network.step_plans import plan_of, reorder_of
from convalgos.select import choose, devices

PRICES = 1e-3, 1e9  # of errors, over the seconds of a run without a limit
ADDRESSED = 1 << 45  # elements of float32 that a process can have
PRICE_STEP = 1.2  # to which the price is found


def plan_network(
    graph: NetworkGraph,
    shapes: Shapes,
    limits: PlanLimits,
    known: Sequence[tuple[Planned, LayoutChoice]] = (),
    growth: float = GROWTH,
) -> tuple[Planned, LayoutChoice]:
    """The plan of a network for shapes of its inputs, and the layouts that were chosen.

    Args:
        known: what this gave for other shapes within these limits, in layouts that were chosen for these.
            Where one is of nearly as much work, its layouts are taken, and its algorithms and steps where
            they serve.
        growth: of the work, up to which it is nearly as much.

    Raises:
        ValueError: the shapes do not go together. Unsupported: a step cannot be computed within the limits.
    """
    like, choice = _nearest(graph, shapes, known, growth), None
    if like is not None and limits.effort == "estimate":
        planned = replanned(*like, graph, shapes, limits, growth)
        if planned is not None:
            return planned, _of_other_shapes(like, graph, planned, limits, growth)
    every = graph.shapes_of(shapes)
    _check_sizes(every)
    options = StepOptions(graph, every, limits, growth)
    if like is not None:
        with suppress(Unsupported):  # in the layouts of the other shapes; mostly it goes on in others
            choice = options_in(like[1], options, like[0].shapes)
    if choice is None:
        choice = choose_layouts(graph, layout_problem(graph, every, options), limits)
    if limits.effort != "estimate":
        choice = measured_in_layouts(graph, every, limits, choice)
    return planned_by(graph, every, limits, choice), choice


def _check_sizes(shapes: Shapes) -> None:
    """ValueError where a value is larger than memory can be, as damaged models have them."""
    for name, shape in shapes.items():
        if math.prod(shape) >= ADDRESSED:
            raise ValueError(f"the network has {name!r} of shape {shape}, which is more than addresses reach")


def planned_by(graph: NetworkGraph, shapes: Shapes, limits: PlanLimits, choice: LayoutChoice) -> Planned:
    """The plan of a network whose values have these shapes, in the layouts that were chosen."""
    planned = _Assembly(graph, shapes, limits, choice).planned()
    planned = joined(with_scaled_convolutions(planned, graph), graph, limits)
    planned = with_pooled_convolutions(with_means(planned, graph), graph)
    return with_places(planned, graph)


def layout_problem(graph: NetworkGraph, shapes: Shapes, options: StepOptions) -> LayoutProblem:
    """The choice of layouts for a network whose values have these shapes."""
    machine = devices.figures("cpu")

    def conversion(name: str, source: str, target: str) -> float:
        return reorder_seconds(shapes[name], options.itemsize(name), source, target, machine)

    return LayoutProblem(graph, {step: options.of(step) for step in graph.steps}, conversion)


def choose_layouts(graph: NetworkGraph, problem: LayoutProblem, limits: PlanLimits) -> LayoutChoice:
    """The best choice within the limits, and never worse than any layout alone.

    Where errors are limited, they have a price in seconds: the lowest that keeps the limit, but for a factor.

    Raises:
        Unsupported: the error of every choice is over the limit.
    """
    found = _best_at(problem, 0.0)
    limit = limits.max_rel_error
    if limit is None or worst_error(graph, found) <= limit:
        return found
    low, high = (found.seconds * price for price in PRICES)
    found = _best_at(problem, high)
    if (least := worst_error(graph, found)) > limit:
        raise Unsupported(f"max_rel_error={limit:g}: the bounds of its convolutions add up to {least:.2g}")
    while high > PRICE_STEP * low:
        middle = math.sqrt(low * high)
        other = _best_at(problem, middle)
        if worst_error(graph, other) <= limit:
            found, high = other, middle
        else:
            low = middle
    return found


def worst_error(graph: NetworkGraph, choice: LayoutChoice) -> float:
    """Error bounds of convolutions, added up along the path where they are the most."""
    errors = dict.fromkeys(graph.inputs, 0.0)
    for step in graph.steps:
        reached = max((errors[name] for name in step.inputs), default=0.0) + choice.options[step].error_bound
        errors |= dict.fromkeys(step.outputs, reached)
    return max((errors[name] for name in graph.outputs), default=0.0)


def _best_at(problem: LayoutProblem, error_price: float) -> LayoutChoice:
    found = problem.solve(error_price)
    if not found.exact:
        known = [problem.in_layout(layout) for layout in problem.layouts()]
        found = problem.solve(error_price, [*known, found], branches=0)  # a second search found no more
    return found


def options_in(like: LayoutChoice, options: StepOptions, before: Shapes) -> LayoutChoice:
    """The same layouts, for other shapes than those before."""
    found = {step: options.one_of(step, option, before) for step, option in like.options.items()}
    seconds = sum(option.seconds for option in found.values())
    return replace(like, options=found, seconds=seconds, exact=False, of_other_shapes=True)


def _of_other_shapes(
    like: tuple[Planned, LayoutChoice], graph: NetworkGraph, planned: Planned, limits: PlanLimits,
    growth: float,
) -> LayoutChoice:  # fmt: skip
    """The choice by which a plan was made like another one."""
    known, choice = like

    def found() -> Mapping[Step, StepOption]:
        shapes = graph.shapes_of({name: planned.shapes[name] for name in graph.inputs})
        return options_in(choice, StepOptions(graph, shapes, limits, growth), known.shapes).options

    return replace(choice, options=Later(found), seconds=planned.seconds, exact=False, of_other_shapes=True)


def _nearest(
    graph: NetworkGraph, shapes: Shapes, known: Sequence[tuple[Planned, LayoutChoice]], growth: float
) -> tuple[Planned, LayoutChoice] | None:
    """The plan that was made for the most similar work, where that is within a growth."""
    known = [of for of in known if not of[0].has_empty_layers]
    work = graph.input_elements(shapes)
    others = [graph.input_elements(plan.shapes) for plan, _ in known]
    factors = [max(work, other) / max(1, min(work, other)) for other in others]
    best = min(range(len(known)), key=factors.__getitem__, default=None)
    return None if best is None or factors[best] > growth else known[best]


def measured_in_layouts(
    graph: NetworkGraph, shapes: Shapes, limits: PlanLimits, choice: LayoutChoice
) -> LayoutChoice:
    """The same layouts, with what is measured fastest in them; it is remembered as wisdom."""
    chosen = ((step, option.candidate) for step, option in choice.options.items())
    equal = compared(graph)
    every = dict.fromkeys((c.problem, c.precision, step in equal) for step, c in chosen if c is not None)
    for problem, precision, equal_bits in every:
        own = limits_of(limits, precision, equal_bits)
        plan(
            problem, effort=limits.effort, workspace_limit=own.workspace_limit, precisions=own.precisions,
            equal_bits=equal_bits,
        )  # fmt: skip
    return options_in(choice, StepOptions(graph, shapes, limits), shapes)


class _Assembly:
    """The steps of a plan in order, those that change layouts among them."""

    def __init__(self, graph: NetworkGraph, shapes: Shapes, limits: PlanLimits, choice: LayoutChoice):
        self._graph, self._limits, self._choice = graph, limits, choice
        self._shapes, self._dtypes = dict(shapes), dict(graph.dtypes)
        self._layouts = dict.fromkeys(graph.inputs, FIRST)
        self._steps: list[PlannedStep] = []
        self._machine = devices.figures("cpu")
        self._plans: dict[Any, Any] = {}  # of convolutions and moves that the network has several times
        self._compared = compared(graph)

    def planned(self) -> Planned:
        for name in self._graph.inputs:
            self._change_for_output(name)
        for step in self._graph.steps:
            self._add(step, self._choice.options[step])
            for name in step.outputs:
                self._change_for_output(name)
        return Planned(tuple(self._steps), self._shapes, self._layouts, self._dtypes, threads=plan_threads())

    def _add(self, step: Step, option: StepOption) -> None:
        inputs = tuple(map(self._in_layout, step.inputs, option.reads))
        output = self._name(step.output, option.writes)
        before = step
        if (inputs, output) != (step.inputs, step.output):
            step = replace(step, inputs=inputs, output=output)
            if output not in self._shapes:  # one number has the shape ()
                self._shapes[output] = step.output_shape(self._shapes)
            self._copy_dtype(before.output, output)
        self._layouts |= dict.fromkeys(step.outputs, option.writes)
        plan, seconds = self._plan(step, option, before in self._compared)
        self._steps.append(PlannedStep(step, option.reads, option.writes, plan, seconds))

    def _plan(self, step: Step, option: StepOption, equal_bits: bool) -> tuple[Any, float]:
        """The plan of a step in the layouts of an option, and its seconds."""
        if option.candidate is None:
            dtype = self._dtypes.get(next(iter(step.inputs), ""), "float32")
            of_step: Any = step
            if isinstance(step, Rearrangement):  # tables of moves take long to make
                of_step = step.moves, self._shapes[step.inputs[0]], dtype
            if of_step not in self._plans:
                self._plans[of_step] = plan_of(step, self._shapes, option.writes, dtype, self._limits)
            return self._plans[of_step], option.seconds
        candidate = option.candidate
        key = candidate.id, candidate.problem, equal_bits
        if key not in self._plans:
            limits = limits_of(self._limits, candidate.precision, equal_bits)
            self._plans[key] = choose.plan_candidate(candidate, limits)
        return self._plans[key], option.seconds

    def _name(self, value: str, layout: str) -> str:
        """What a value is called in a layout: an output of the network lies channels first in the end."""
        own = FIRST if value in self._graph.outputs else self._choice.written.get(value, layout)
        return value if layout == own else f"{value}:{layout}"

    def _in_layout(self, value: str, layout: str) -> str:
        """The name of a value in a layout, into which it is changed where it was not yet."""
        name, source = self._name(value, layout), self._choice.written[value]
        if name in self._layouts:
            return name
        shape = self._shapes[value]
        itemsize = np.dtype(self._dtypes.get(value, "float32")).itemsize
        plan = reorder_of(shape, source, layout, itemsize)
        seconds = reorder_seconds(shape, itemsize, source, layout, self._machine)
        step = LayoutChange(f"{value} to {layout}", (self._name(value, source),), name, source, layout)
        self._shapes[name], self._layouts[name] = shape, layout
        self._copy_dtype(value, name)
        self._steps.append(PlannedStep(step, (source,), layout, plan, seconds))
        return name

    def _copy_dtype(self, value: str, name: str) -> None:
        """A value has its type under another name."""
        if value in self._dtypes:
            self._dtypes[name] = self._dtypes[value]

    def _change_for_output(self, value: str) -> None:
        if value in self._graph.outputs:
            self._in_layout(value, FIRST)
