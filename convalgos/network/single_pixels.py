"""Vectors (N, C) between fully connected layers, which are maps of one pixel, are kept as such maps.

Batch norms and residual sums next to these layers can then become part of them.
"""

from __future__ import annotations

from dataclasses import replace

from convalgos.network.channel_scaling import is_scale
from convalgos.network.graph import Convolution, Elementwise, NetworkGraph, Step, View
from convalgos.network.same_values import reading_same

PIXELS = (0, -1, 1, 1)  # the view of (N, C) as maps


def vectors_as_maps(graph: NetworkGraph) -> NetworkGraph:
    """Views of such maps as vectors and back are none next to scales, and sums of such vectors are of maps.

    The views that nothing reads then are still there. Those between two layers stay: behind them inputs are
    plain rows, which products read as they lie.
    """
    readers, scales = graph.readers(), {step.output for step in graph.steps if is_scale(step)}
    maps: set[str] = set()  # values (N, C, 1, 1)
    map_of: dict[str, str] = {}  # of vectors, and of values that are a map again
    steps: list[Step] = []
    for step in graph.steps:
        known_maps = {name: map_of[name] for name in step.inputs if name in maps and name in map_of}
        step = reading_same(step, known_maps)
        source = map_of.get(step.inputs[0]) if step.inputs else None
        if isinstance(step, View) and step.shape == PIXELS:
            known = step.inputs[0] if step.inputs[0] in maps else source
            maps.add(step.output)
            next_to_scale = known in scales or all(map(is_scale, readers[step.output]))
            if known is not None and next_to_scale:
                map_of[step.output] = known
        elif isinstance(step, View) and len(step.shape) == 2 and step.shape[0] == 0:
            if step.inputs[0] in maps:
                map_of[step.output] = step.inputs[0]
        elif _combines_vectors(step) and any(name in map_of for name in step.inputs):
            steps += _on_maps(step, maps, map_of)
            continue
        elif _gives_maps(step, maps):
            maps.add(step.output)
        steps.append(step)
    return replace(graph, steps=tuple(steps))


def one_pixel_maps(graph: NetworkGraph) -> set[str]:
    """Values that are known to be maps (N, C, 1, 1)."""
    maps: set[str] = set()
    for step in graph.steps:
        if (isinstance(step, View) and step.shape == PIXELS) or _gives_maps(step, maps):
            maps.add(step.output)
    return maps


def _combines_vectors(step: Step) -> bool:
    """Whether a step combines two arrays of one shape."""
    return isinstance(step, Elementwise) and len(step.inputs) == 2 and not step.broadcasts


def _on_maps(step: Step, maps: set[str], map_of: dict[str, str]) -> list[Step]:
    """A step of vectors, some of which are known as maps, as one of maps."""
    steps: list[Step] = []
    for name in dict.fromkeys(step.inputs):
        if name not in map_of:
            map_of[name] = f"{name}/map of {step.output}"
            steps.append(View(step.name, (name,), map_of[name], PIXELS))
    y = f"{step.output}/map"
    map_of[step.output] = y
    maps.update(map(map_of.__getitem__, (*step.inputs, step.output)))
    of_maps = replace(step, inputs=tuple(map_of[name] for name in step.inputs), output=y)
    return [*steps, of_maps, View(step.name, (y,), step.output, (0, -1))]


def _gives_maps(step: Step, maps: set[str]) -> bool:
    """Whether a step of maps of one pixel gives such maps."""
    if not step.inputs or any(name not in maps for name in step.inputs):
        return False
    if isinstance(step, Convolution):
        ones = {*step.w.shape[2:], *step.stride} == {1}
        return ones and not isinstance(step.padding, str) and not any(map(any, step.padding))
    if isinstance(step, Elementwise):
        return step.constant is None or step.constant.shape[2:] == (1, 1)
    return False
