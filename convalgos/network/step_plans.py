"""The plan of a step of a network that is no convolution, in the layout that was chosen for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from convalgos.core.epilogue import add_and_activate
from convalgos.cpu.pooling.plan import PoolPlan
from convalgos.network.graph import (
    Concatenation,
    Elementwise,
    Foreign,
    Pooling,
    Shapes,
    Step,
    Upsampling,
    View,
)


def plan_of(step: Step, shapes: Shapes, layout: str) -> Any:
    """The plan of a step that is no convolution, whose maps lie in one layout; None of a view."""
    if isinstance(step, Pooling):
        problem = step.problem(shapes[step.inputs[0]])
        return PoolPlan(replace(problem, layout=layout, y_layout=layout))
    if isinstance(step, Foreign):
        return step.region
    if isinstance(step, View):
        return None
    return NumpyStep(step, layout)


class NumpyStep:
    """An elementwise step, a concatenation or an upsampling, of maps that lie in one layout, by NumPy."""

    def __init__(self, step: Step, layout: str):
        self.step = step
        self._last = layout == "channels_last"

    def run(self, inputs: Sequence[np.ndarray], y: np.ndarray) -> None:
        """Write y."""
        step = self.step
        if isinstance(step, Concatenation):
            np.concatenate(inputs, axis=-1 if self._last else 1, out=y)
        elif isinstance(step, Upsampling):
            x = inputs[0]
            for axis, factor in enumerate(step.factors, 1 if self._last else 2):
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
