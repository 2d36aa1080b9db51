"""One factor of all elements, which a filter takes: of what made them, or of what reads them, past views."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from convalgos.network.attention import Product
from convalgos.network.channel_scaling import SUMMED, channel_scaling, is_scale, scaled_convolution
from convalgos.network.graph import Convolution, NetworkGraph, Step, Transpose, View
from convalgos.network.mapped_weights import scaled_weights
from convalgos.network.pixel_moves import PixelMove
from convalgos.network.read_once import read_once

VIEWS = View | Transpose | PixelMove  # what moves elements and changes none


def only_factor(step: Step) -> float | None:
    """The number that a scale multiplies all channels with, if it does nothing else."""
    if not is_scale(step) or not step.w.size or step.activation:
        return None
    alike = (step.w == step.w.flat[0]).all() and (step.bias is None or not step.bias.any())
    return float(step.w.flat[0]) if alike else None


def with_factors_in_filters(graph: NetworkGraph) -> NetworkGraph:
    """Without factors of all elements that a convolution or product before or behind them can take."""
    steps = {step.output: step for step in graph.steps}
    order = [step.output for step in graph.steps]
    for name in order:
        factor = only_factor(steps[name])
        if factor is not None:
            now = replace(graph, steps=tuple(steps.values()))
            taken = _by_what_made_it(now, name, factor) or _by_what_reads_it(now, name, factor)
            if taken is not None:
                scale = steps.pop(name)
                steps = {
                    output: _reading(taken if output == taken.output else step, name, scale.inputs[0])
                    for output, step in steps.items()
                }
    return replace(graph, steps=tuple(steps.values()))


def _reading(step: Step, name: str, instead: str) -> Step:
    """A step that reads another value in the place of one."""
    if name not in step.inputs:
        return step
    return replace(step, inputs=tuple(instead if n == name else n for n in step.inputs))


def _by_what_made_it(graph: NetworkGraph, name: str, factor: float) -> Step | None:
    """The step of which the scaled values are views, times the factor; nothing else reads what is between."""
    if name in graph.outputs:  # which is then computed where it lies
        return None
    makers, steps = read_once(graph), {step.output: step for step in graph.steps}
    of = steps[name].inputs[0]
    while of in makers and isinstance(makers[of], VIEWS):
        of = makers[of].inputs[0]
    step = makers.get(of)
    if isinstance(step, Product):
        return replace(step, scale=step.scale * factor)
    if not isinstance(step, SUMMED) or step.activation or len(step.inputs) > 1:
        return None
    channels = len(step.w) if isinstance(step, Convolution) else step.w.shape[1] * step.groups
    numbers = np.full(channels, factor, np.float32)
    return scaled_convolution(
        step, channel_scaling(step.name, of, of, numbers, np.zeros_like(numbers), step.w.ndim - 2)
    )


def _by_what_reads_it(graph: NetworkGraph, name: str, factor: float) -> Step | None:
    """The convolution that alone reads the scaled values, or views of them, with its filter times the factor.

    Zeros around a map, and its own elements, may be scaled with it.
    """
    readers = graph.readers()
    while name not in graph.outputs and len(readers[name]) == 1 and isinstance(readers[name][0], VIEWS):
        name = readers[name][0].output
    step = readers[name][0] if len(readers[name]) == 1 and name not in graph.outputs else None
    if not isinstance(step, Convolution) or step.inputs[0] != name or name in step.inputs[1:]:
        return None
    if step.fill_value:
        return None
    return replace(step, w=scaled_weights(step.w, np.full((1,) * step.w.ndim, factor, np.float32)))
