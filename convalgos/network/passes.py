"""Fusions of a network's graph, each from a graph to an equal one of fewer steps."""

from __future__ import annotations

from dataclasses import replace

from convalgos.network.graph import (
    Convolution,
    Elementwise,
    NetworkGraph,
    Step,
    TransposedConvolution,
    View,
)
from convalgos.network.scales import with_scales


def fused(graph: NetworkGraph) -> NetworkGraph:
    """All fusions, in an order in which each finds what the ones before it made."""
    for fuse in (views_last, without_views, with_scales, with_activations, with_residuals, with_activations):
        graph = fuse(graph)
    return needed(graph)


def views_last(graph: NetworkGraph) -> NetworkGraph:
    """An activation of a view is computed before it, on what it is a view of."""
    makers = _only_read_by_the_next(graph)
    steps: dict[str, Step] = {}
    for step in graph.steps:
        view = makers.get(step.inputs[0]) if step.inputs else None
        alone = isinstance(step, Elementwise) and step.operation == "identity"
        if alone and isinstance(view, View):
            steps[view.output] = replace(step, inputs=view.inputs, output=view.output)
            steps[step.output] = replace(view, inputs=(view.output,), output=step.output)
        else:
            steps[step.output] = step
    return replace(graph, steps=tuple(steps.values()))


def with_activations(graph: NetworkGraph) -> NetworkGraph:
    """Activations that alone read the output of a step that has none become part of it."""
    makers = _only_read_by_the_next(graph)
    steps: dict[str, Step] = {}
    for step in graph.steps:
        alone = isinstance(step, Elementwise) and step.operation == "identity"
        of = makers.get(step.inputs[0]) if alone else None
        of = None if of is None else steps.get(of.output)
        if (
            of is not None
            and isinstance(step, Elementwise)
            and isinstance(of, FINISHED)
            and not of.activation
        ):
            del steps[of.output]
            steps[step.output] = replace(of, output=step.output, activation=step.activation)
        else:
            steps[step.output] = step
    return replace(graph, steps=tuple(steps.values()))


def with_residuals(graph: NetworkGraph) -> NetworkGraph:
    """Sums of two maps become part of the convolution that gives one of them, where nothing else reads it."""
    makers = _only_read_by_the_next(graph)
    order = {step.output: i for i, step in enumerate(graph.steps)}
    steps: dict[str, Step] = {}
    for step in graph.steps:
        steps[step.output] = step
        if not isinstance(step, Elementwise) or step.operation != "add" or step.inputs[0] == step.inputs[1]:
            continue
        for name in sorted(step.inputs, key=lambda name: -order.get(name, -1)):
            of = steps.get(name)
            if name in makers and isinstance(of, SUMMED) and not of.activation and len(of.inputs) == 1:
                other = step.inputs[step.inputs[0] == name]
                del steps[name], steps[step.output]
                steps[step.output] = replace(
                    of, inputs=(of.inputs[0], other), output=step.output, activation=step.activation
                )
                break
    return replace(graph, steps=tuple(steps.values()))


def without_views(graph: NetworkGraph) -> NetworkGraph:
    """A view of a view is one of what that is a view of, where both keep the batch."""
    views: dict[str, View] = {}
    steps: list[Step] = []
    for step in graph.steps:
        made = step
        if isinstance(step, View):
            first = views.get(step.inputs[0])
            if first is not None and step.shape[0] == 0 and 0 not in step.shape[1:]:
                made = replace(step, inputs=first.inputs)
            if step.shape[:1] == (0,):
                views[step.output] = made  # type: ignore[assignment]
        steps.append(made)
    return needed(replace(graph, steps=tuple(steps)))


def needed(graph: NetworkGraph) -> NetworkGraph:
    """Without steps that nothing reads."""
    wanted = set(graph.outputs)
    steps: list[Step] = []
    for step in reversed(graph.steps):
        if wanted & {*step.outputs}:
            wanted |= {*step.inputs}
            steps.append(step)
    return replace(graph, steps=tuple(reversed(steps)))


SUMMED = (Convolution, TransposedConvolution)
FINISHED = (*SUMMED, Elementwise)


def _only_read_by_the_next(graph: NetworkGraph) -> dict[str, Step]:
    """The steps whose output one step reads, and that is no output of the network, by it."""
    readers = graph.readers()
    return {
        step.output: step
        for step in graph.steps
        if len(readers[step.output]) == 1 and step.output not in graph.outputs
    }
