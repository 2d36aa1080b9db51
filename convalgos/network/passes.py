"""Fusions of a network's graph, each from a graph to an equal one of fewer steps."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np

from convalgos.network.absorbed_moves import moves_absorbed
from convalgos.network.attention import Product
from convalgos.network.channel_scaling import (
    SUMMED,
    channel_scaling,
    is_scale,
    scaled_convolution,
    scales_elementwise,
)
from convalgos.network.constants_joined import constants_joined
from convalgos.network.dynamic_convolutions import DynamicConvolution
from convalgos.network.graph import (
    Convolution,
    Elementwise,
    LayerNormalization,
    NetworkGraph,
    Step,
    View,
)
from convalgos.network.group_norms import GroupNormalization
from convalgos.network.mapped_weights import scaled_weights
from convalgos.network.means_ahead import with_means_ahead
from convalgos.network.parallel_branches import branches_joined
from convalgos.network.pixel_moves import orders_in_filters
from convalgos.network.read_once import read_once
from convalgos.network.same_values import reading_same
from convalgos.network.scaled_activations import with_scaled_activations
from convalgos.network.selections import selections_joined
from convalgos.network.single_pixels import one_pixel_maps, vectors_as_maps
from convalgos.network.transposes import transposes_last
from convalgos.network.uniform_scales import VIEWS, only_factor, with_factors_in_filters

Norm = TypeVar("Norm", LayerNormalization, GroupNormalization)


def fused(graph: NetworkGraph) -> NetworkGraph:
    """All fusions, in an order in which each finds what the ones before it made."""
    graph = needed(constants_joined(transposes_last(with_factors_in_filters(graph))))
    graph = needed(vectors_as_maps(without_views(views_last(graph))))
    for fuse in (with_scales, branches_joined, with_activations):
        graph = fuse(graph)
    graph = with_activations(with_residuals(graph))
    graph = selections_joined(with_means_ahead(with_norms_ahead(with_scales_ahead(graph))))
    graph = needed(moves_absorbed(with_scaled_activations(needed(graph))))
    graph = orders_in_filters(graph)
    return scales_elementwise(graph, one_pixel_maps(graph))


def views_last(graph: NetworkGraph) -> NetworkGraph:
    """An activation of moved elements, or of moves of moves, is computed before them, on what they move.

    So is a scale of channels of a convolution that a view keeps.
    """
    makers = read_once(graph)
    steps: dict[str, Step] = {}
    for step in graph.steps:
        steps[step.output] = last = step
        while last.inputs and last.inputs[0] in makers and isinstance(view := steps[last.inputs[0]], VIEWS):
            before = _before_view(last, view, steps.get(view.inputs[0]))
            if before is None:
                break
            steps[view.output] = before
            steps[last.output] = replace(view, inputs=(view.output,), output=last.output)
            last = before
    return replace(graph, steps=tuple(steps.values()))


def _before_view(step: Step, view: Step, of: Step | None) -> Step | None:
    """A step of a view of what another computes as one on what that views, under its name; else None."""
    if isinstance(step, Elementwise) and step.operation == "identity":
        return replace(step, inputs=view.inputs, output=view.output)
    if not is_scale(step) or not isinstance(view, View) or not isinstance(of, SUMMED):
        return None
    channels = of.w.shape[0] if isinstance(of, Convolution) else of.w.shape[1] * of.groups
    if channels != len(step.w) or view.shape[0] != 0 or view.shape[1] not in (0, channels):
        return None
    ones = (1,) * (of.w.ndim - 2)
    return replace(
        step, inputs=view.inputs, output=view.output, w=step.w.reshape(-1, 1, *ones), stride=ones,
        padding=((0, 0),) * len(ones), dilation=ones,
    )  # fmt: skip


def with_scales(graph: NetworkGraph) -> NetworkGraph:
    """Scales and shifts of the channels of a convolution become part of its filter and bias.

    Those of a norm become its own, and one factor of all channels that of a product of matrices.
    """
    makers = read_once(graph)
    steps: dict[str, Step] = {}
    for step in graph.steps:
        of = steps.get(step.inputs[0]) if step.inputs and step.inputs[0] in makers else None
        if not is_scale(step):
            steps[step.output] = step
        elif isinstance(of, SUMMED) and not of.activation and len(of.inputs) == 1:
            del steps[of.output]
            steps[step.output] = scaled_convolution(of, step)
        elif isinstance(of, GroupNormalization) and not of.activation:
            del steps[of.output]
            steps[step.output] = replace(_scaled_norm(of, step), activation=step.activation)
        elif isinstance(of, LayerNormalization) and not step.activation:
            del steps[of.output]
            steps[step.output] = _scaled_norm(of, step)
        elif isinstance(of, Product) and (factor := only_factor(step)) is not None:
            del steps[of.output]
            steps[step.output] = replace(of, output=step.output, scale=of.scale * factor)
        else:
            steps[step.output] = step
    return replace(graph, steps=tuple(steps.values()))


def _scaled_norm(of: Norm, by: Convolution) -> Norm:
    """A norm whose outputs are then scaled and shifted, as one."""
    scale = by.w.reshape(-1)  # (C,)
    shift = np.zeros(len(scale), np.float32) if by.bias is None else by.bias
    own = np.ones(len(scale), np.float32) if of.scale is None else of.scale
    shift = shift if of.shift is None else of.shift * scale + shift
    return replace(of, output=by.output, scale=own * scale, shift=shift)


def with_activations(graph: NetworkGraph) -> NetworkGraph:
    """Activations that alone read the output of a step that has none become part of it."""
    makers = read_once(graph)
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
    makers = read_once(graph)
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
    """A view of a view is one of what that is a view of, where both keep the batch; what reads one in the
    very shape reads what that is of."""
    views: dict[str, View] = {}
    same: dict[str, str] = {}
    steps: list[Step] = []
    for given in graph.steps:
        step = made = reading_same(given, same)
        if isinstance(step, View):
            if step.back == step.shape and not any(step.shape):
                same[step.output] = step.inputs[0]
            first = views.get(step.inputs[0])
            if first is not None and step.shape[0] == 0 and 0 not in step.shape[1:]:
                made = replace(step, inputs=first.inputs, back=())  # of another shape
            if step.shape[:1] == (0,):
                views[step.output] = made  # type: ignore[assignment]
        steps.append(made)
    return needed(replace(graph, steps=tuple(steps)))


def with_scales_ahead(graph: NetworkGraph) -> NetworkGraph:
    """Scales and shifts that only convolutions without padding read become part of these.

    Around a padded map lie zeros, which would have to be shifted as well.
    """
    readers = graph.readers()
    scales = {
        step.output: step
        for step in graph.steps
        if is_scale(step) and not step.activation
        and step.output not in graph.outputs and readers[step.output]
        and all(_takes_scale(reader, step.output) for reader in readers[step.output])
    }  # fmt: skip
    steps = [
        _behind_scale(step, scales[step.inputs[0]]) if step.inputs and step.inputs[0] in scales else step
        for step in graph.steps
    ]
    return replace(graph, steps=tuple(steps))


def with_norms_ahead(graph: NetworkGraph) -> NetworkGraph:
    """Scales and shifts of norms that only convolutions without padding read become part of these."""
    readers = graph.readers()
    scales = {
        step.output: _scale_of(step, step.scale, step.shift)
        for step in graph.steps
        if isinstance(step, LayerNormalization) and step.scale is not None
        and step.output not in graph.outputs and readers[step.output]
        and all(_takes_scale(reader, step.output) for reader in readers[step.output])
    }  # fmt: skip
    steps: list[Step] = []
    for step in graph.steps:
        if step.output in scales:
            step = replace(step, scale=None, shift=None)  # type: ignore[call-arg]
        elif step.inputs and step.inputs[0] in scales:
            step = _behind_scale(step, scales[step.inputs[0]])
        steps.append(step)
    return replace(graph, steps=tuple(steps))


def _scale_of(norm: Step, scale: np.ndarray, shift: np.ndarray | None) -> Step:
    """The scale and the shift of a norm as a step on what it writes."""
    shift = np.zeros_like(scale) if shift is None else shift
    return channel_scaling(norm.name, norm.output, norm.output, scale, shift, 1)


def _takes_scale(step: Step, x: str) -> bool:
    if not isinstance(step, Convolution) or x in step.inputs[1:]:
        return False
    return not isinstance(step.padding, str) and not any(map(any, step.padding))


def _behind_scale(step: Step, scaling: Step) -> Step:
    """A convolution of a scaled map as one of the map itself."""
    assert isinstance(step, Convolution) and isinstance(scaling, Convolution)
    k, c = len(step.w) // step.groups, step.w.shape[1]
    bias = np.zeros(len(step.w)) if step.bias is None else step.bias.astype(np.float64)
    if scaling.bias is not None and scaling.bias.any():
        shift = scaling.bias.astype(np.float64).reshape(step.groups, 1, -1, 1)
        taps = step.w.astype(np.float64).reshape(step.groups, k, c, -1)  # (groups, K/groups, C/groups, taps)
        bias = bias + (taps * shift).sum((2, 3)).reshape(-1)
    of_w = scaling.w.reshape(step.groups, c)
    if step.groups > 1:
        of_w = of_w.repeat(k, 0)  # (K, C/groups)
    w = scaled_weights(step.w, of_w.reshape(*of_w.shape, *(1,) * (step.w.ndim - 2)))
    return replace(step, inputs=(scaling.inputs[0], *step.inputs[1:]), w=w, bias=bias.astype(np.float32))


def needed(graph: NetworkGraph) -> NetworkGraph:
    """Without steps that nothing reads."""
    wanted = set(graph.outputs)
    steps: list[Step] = []
    for step in reversed(graph.steps):
        if wanted & {*step.outputs}:
            wanted |= {*step.inputs}
            steps.append(step)
    return replace(graph, steps=tuple(reversed(steps)))


FINISHED = SUMMED | Elementwise | GroupNormalization | DynamicConvolution
