"""A planned network, run: each step by its plan, on arrays that lie as planning says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.core.arguments import Shape
from convalgos.core.layouts import array_shape
from convalgos.cpu.layout.reorder import Reorder
from convalgos.cpu.pooling.plan import PoolPlan
from convalgos.network.filters import Filters
from convalgos.network.graph import Convolution, Foreign, NetworkGraph, TransposedConvolution
from convalgos.network.planned import Planned, PlannedStep


class Executor:
    """Runs a plan on inputs. Any number of threads may call it at a time."""

    def __init__(self, graph: NetworkGraph, planned: Planned, filters: Filters):
        self.graph = graph
        self.planned = planned
        self._filters = filters

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs of the network, new arrays.

        Args:
            inputs: in the order of the graph's, C-contiguous, of the shapes that were planned for.
        """
        values = dict(zip(self.graph.inputs, inputs, strict=True))
        for i, planned_step in enumerate(self.planned.steps):
            self._run_step(i, planned_step, values)
        given = {id(x) for x in inputs}
        found = [np.ascontiguousarray(values[name]) for name in self.graph.outputs]
        return [y.copy() if id(y) in given or not y.flags.owndata else y for y in found]

    def _run_step(self, i: int, planned_step: PlannedStep, values: dict[str, np.ndarray]) -> None:
        step, plan = planned_step.step, planned_step.plan
        x = [values[name] for name in step.inputs]
        if plan is None:
            values[step.output] = x[0].reshape(self._array_shape(step.output))
            return
        y = [self._new(name) for name in step.outputs]
        if isinstance(step, Convolution | TransposedConvolution):
            residual = x[1] if len(x) > 1 else None
            plan(
                x[0],
                self._filters[i],
                bias=step.bias,
                activation=step.activation,
                residual=residual,
                out=y[0],
            )
        elif isinstance(step, Foreign):
            plan.run(x, y)
        elif isinstance(plan, PoolPlan):
            plan.run(x[0], y[0])
        elif isinstance(plan, Reorder):
            plan(x[0], y[0])
        else:
            plan.run(x, y[0])
        values |= dict(zip(step.outputs, y, strict=True))

    def _new(self, name: str) -> Any:
        """An uninitialised array for a value."""
        shape = self._array_shape(name)
        dtype = np.dtype(self.graph.dtypes.get(name, "float32"))
        return aligned_empty(math.prod(shape), dtype).reshape(shape)

    def _array_shape(self, name: str) -> Shape:
        return array_shape(self.planned.layouts.get(name, "channels_first"), self.planned.shapes[name])
