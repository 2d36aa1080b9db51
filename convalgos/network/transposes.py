"""Transposes of a network moved behind what does not care for them, so that they meet and cancel out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from convalgos.network.graph import Elementwise, NetworkGraph, Step, Transpose, View
from convalgos.network.same_values import reading_same


def transposes_last(graph: NetworkGraph) -> NetworkGraph:
    """Elementwise steps of transposed maps are of the maps; a transpose back again is none, nor is a view.

    Steps that nothing reads any more are left for `passes.needed`.
    """
    made: dict[str, Transpose] = {}  # by output
    views: dict[str, View] = {}  # by output, too
    same: dict[str, str] = {}  # value -> the one that it was before two of them
    steps: list[Step] = []
    for given in graph.steps:
        step = reading_same(given, same)
        before = made.get(step.inputs[0]) if step.inputs else None
        if isinstance(step, Transpose):
            if before is not None and _inverse(before) == step.order:
                same[step.output] = before.inputs[0]
            made[step.output] = step
        elif isinstance(step, View):
            if (seen := views.get(step.inputs[0])) is not None and seen.back and seen.back == step.shape:
                same[step.output] = seen.inputs[0]
            views[step.output] = step
        elif isinstance(step, Elementwise) and len({*_orders(step, made)}) == 1:
            steps += _on_maps(step, made)
            made[step.output] = step = Transpose(
                step.name, (steps[-1].output,), step.output, _orders(step, made)[0]
            )
        steps.append(step)
    return replace(graph, steps=tuple(steps))


def _orders(step: Step, made: dict[str, Transpose]) -> list[tuple[int, ...]]:
    """The orders of the transposes whose outputs a step reads."""
    return [made[name].order for name in step.inputs if name in made]


def _on_maps(step: Elementwise, made: dict[str, Transpose]) -> list[Step]:
    """An elementwise step before the transpose that its inputs, or one of them, come from."""
    output = f"{step.output}/maps"
    first = next(made[name] for name in step.inputs if name in made)
    inputs: list[str] = []
    steps: list[Step] = []
    for i, name in enumerate(step.inputs):
        if name in made:
            inputs.append(made[name].inputs[0])
        else:
            inputs.append(f"{output}/{i}")
            steps.append(Transpose(step.name, (name,), inputs[-1], _inverse(first)))
    constant = None if step.constant is None else step.constant.transpose(_inverse(first))
    return [*steps, replace(step, inputs=tuple(inputs), output=output, constant=constant)]


def _inverse(step: Transpose) -> tuple[int, ...]:
    """The order of the transpose back."""
    return tuple(int(i) for i in np.argsort(step.order))
