"""Means of windows of what a 1x1 convolution writes are taken of what it reads, and it then has fewer pixels.

Both are linear and neither mixes what the other does: the mean of the sums over channels is the sum of the
means. In the transitions of DenseNet (Huang et al., arXiv:1608.06993) three of four pixels are left out.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TypeGuard

from convalgos.network.graph import Convolution, NetworkGraph, Pooling, Step


def with_means_ahead(graph: NetworkGraph) -> NetworkGraph:
    """A mean that alone reads what a 1x1 convolution writes goes before it, where it leaves fewer pixels."""
    readers = graph.readers()
    turned: dict[str, tuple[Convolution, Pooling]] = {}  # by the value between them
    for step in graph.steps:
        behind = readers[step.output]
        if len(behind) != 1 or step.output in graph.outputs or not _mixes_channels_only(step):
            continue
        if isinstance(mean := behind[0], Pooling) and _is_plain_mean(mean):
            turned[step.output] = step, mean
    steps: list[Step] = []
    for step in graph.steps:
        if step.output in turned:
            step = replace(turned[step.output][1], inputs=step.inputs, output=step.output)
        elif step.inputs and step.inputs[0] in turned:
            step = replace(turned[step.inputs[0]][0], inputs=step.inputs, output=step.output)
        steps.append(step)
    return replace(graph, steps=tuple(steps))


def _mixes_channels_only(step: Step) -> TypeGuard[Convolution]:
    """Whether each output pixel is a linear function of the pixel at its place, and of nothing else."""
    if not isinstance(step, Convolution) or step.activation is not None or len(step.inputs) != 1:
        return False
    alone = math.prod(step.w.shape[2:]) == 1 and set(step.stride) <= {1}
    return alone and not isinstance(step.padding, str) and not any(map(any, step.padding))


def _is_plain_mean(step: Pooling) -> bool:
    """Whether every window lies inside of the map, and there are fewer of them than pixels."""
    if step.reduction != "mean" or step.ceil_mode or isinstance(step.padding, str):
        return False
    fewer = step.kernel is None or math.prod(step.stride or step.kernel) > 1
    return fewer and not any(any(pads) if isinstance(pads, tuple) else pads for pads in step.padding)
