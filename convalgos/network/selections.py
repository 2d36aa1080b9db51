"""Selections of channels of selections, and of maps put side by side, as those of the maps themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from convalgos.network.graph import (
    ChannelSelection,
    Concatenation,
    Convolution,
    Elementwise,
    NetworkGraph,
    Pooling,
    Step,
)

ALIKE = (Elementwise, Pooling)  # whose output has as many channels as their first input


def selections_joined(graph: NetworkGraph) -> NetworkGraph:
    """Selections read maps that are computed; what nothing reads any more is left for `passes.needed`."""
    channels = _channels(graph)
    parts: dict[str, tuple[tuple[str, ...], np.ndarray]] = {}  # value -> maps, and its channels among theirs
    steps: list[Step] = []
    for given in graph.steps:
        step = given
        known = all(name in channels for name in step.inputs)
        if known and isinstance(step, Concatenation):
            parts[step.output] = _of_maps(step.inputs, np.arange(channels[step.output]), parts, channels)
        elif known and isinstance(step, ChannelSelection) and step.order is not None:
            maps, order = _of_maps(step.inputs, step.order, parts, channels)
            maps = maps or step.inputs[:1]  # whose shape is that of no channels, too
            parts[step.output] = maps, order
            step = replace(step, inputs=maps, order=order)
        steps.append(step)
    return replace(graph, steps=tuple(steps))


def _of_maps(
    inputs: tuple[str, ...],
    order: np.ndarray,
    parts: Mapping[str, tuple[tuple[str, ...], np.ndarray]],
    channels: Mapping[str, int],
) -> tuple[tuple[str, ...], np.ndarray]:
    """The maps that some channels of inputs come from, and which of theirs these are."""
    names: list[str] = []  # of each channel of the inputs: the map that it is of,
    places: list[int] = []  # and which it is there
    for name in inputs:
        maps, own = parts.get(name, ((name,), np.arange(channels[name])))
        where = [(m, c) for m in maps for c in range(channels[m])]
        names += [where[i][0] for i in own]
        places += [where[i][1] for i in own]
    used = tuple(dict.fromkeys(names[i] for i in order))
    begins = dict(zip(used, np.cumsum([0, *(channels[m] for m in used)]), strict=False))
    return used, np.array([begins[names[i]] + places[i] for i in order], np.int64)


def _channels(graph: NetworkGraph) -> dict[str, int]:
    """The channels of maps, as far as the steps tell."""
    found: dict[str, int] = {}
    for name, shape in graph.shapes.items():
        if len(shape) > 1 and isinstance(shape[1], int):
            found[name] = shape[1]
    for step in graph.steps:
        if isinstance(step, Convolution):
            found[step.output] = len(step.w)
        elif isinstance(step, ChannelSelection) and step.order is not None:
            found[step.output] = len(step.order)
        elif isinstance(step, Concatenation) and all(name in found for name in step.inputs):
            found[step.output] = sum(found[name] for name in step.inputs)
        elif isinstance(step, ALIKE) and step.inputs[0] in found:
            found[step.output] = found[step.inputs[0]]
    return found
