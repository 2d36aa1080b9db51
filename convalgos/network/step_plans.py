"""The plan of one step of a network, in given layouts, by the planner of its kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from convalgos.api.planning import plan
from convalgos.core.epilogue import add_and_activate
from convalgos.cpu.pooling.plan import PoolPlan
from convalgos.network.graph import (
    Concatenation,
    Convolution,
    Elementwise,
    Foreign,
    NetworkGraph,
    Pooling,
    Shapes,
    Step,
    TransposedConvolution,
    Upsampling,
    View,
)
from convalgos.network.planned import PlanLimits, Planned, PlannedStep

FIRST = "channels_first"


def plan_of(step: Step, shapes: Shapes, limits: PlanLimits) -> Any:
    """The plan of a step whose maps all lie channels first; None of a view, which computes nothing."""
    x_shape = shapes[step.inputs[0]] if step.inputs else ()
    if isinstance(step, Convolution | TransposedConvolution):
        formats = None if limits.precisions == ("float32",) else limits.precisions
        return plan(
            step.problem(x_shape), effort=limits.effort, workspace_limit=limits.workspace_limit,
            max_rel_error=limits.max_rel_error, precisions=formats,
        )  # fmt: skip
    if isinstance(step, Pooling):
        return PoolPlan(step.problem(x_shape))
    if isinstance(step, Foreign):
        return step.region
    if isinstance(step, View):
        return None
    return NumpyStep(step)


def channels_first_plan(graph: NetworkGraph, shapes: Shapes, limits: PlanLimits) -> Planned:
    """Every step by the best plan of its own, all maps channels first, each value in its own array."""
    every = graph.shapes_of(shapes)
    steps = [
        PlannedStep(step, (FIRST,) * len(step.inputs), FIRST, plan_of(step, every, limits), 0.0)
        for step in graph.steps
    ]
    return Planned(tuple(steps), every)


class NumpyStep:
    """An elementwise step, a concatenation or an upsampling of maps that lie channels first, by NumPy."""

    def __init__(self, step: Step):
        self.step = step

    def run(self, inputs: Sequence[np.ndarray], y: np.ndarray) -> None:
        """Write y."""
        step = self.step
        if isinstance(step, Concatenation):
            np.concatenate(inputs, axis=1, out=y)
        elif isinstance(step, Upsampling):
            x = inputs[0]
            for axis, factor in enumerate(step.factors, 2):
                x = np.repeat(x, factor, axis)
            y[...] = x
        elif isinstance(step, Elementwise):
            a, *b = inputs
            if step.operation == "identity":
                y[...] = a
            else:
                (np.add if step.operation == "add" else np.multiply)(a, b[0], out=y)
            if step.activation is not None:
                add_and_activate(y, None, step.activation)
        else:
            raise TypeError(f"step {step.name!r} of {type(step).__name__} has no plan")
