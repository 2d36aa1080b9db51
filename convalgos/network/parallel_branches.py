"""Sums of convolutions of one map as one convolution, whose filter is the sum of theirs.

Networks are trained with such branches, a 3x3 kernel beside a 1x1 one and a batch norm alone, and exported
either way (RepVGG, Ding et al., arXiv:2101.03697; MobileOne, Vasu et al., arXiv:2206.04040).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeGuard

import numpy as np

from convalgos.core.arguments import Pads
from convalgos.core.boundaries import ZERO
from convalgos.network.channel_scaling import is_scale
from convalgos.network.graph import Convolution, Elementwise, NetworkGraph, Step
from convalgos.network.mapped_weights import let_go, put_in_file
from convalgos.network.read_once import read_once


def branches_joined(graph: NetworkGraph) -> NetworkGraph:
    """Sums of two convolutions of the same map, which nothing else reads, become one where a kernel holds the
    other's taps."""
    alone = read_once(graph)
    steps: dict[str, Step] = {}
    for step in graph.steps:
        steps[step.output] = step
        if not isinstance(step, Elementwise) or step.operation != "add" or len(step.inputs) != 2:
            continue
        if step.inputs[0] == step.inputs[1] or not all(name in alone for name in step.inputs):
            continue
        a, b = (steps[name] for name in step.inputs)
        if not _is_linear(a) or not _is_linear(b) or a.inputs != b.inputs:
            continue
        if (joined := _joined(a, b)) is not None:
            for part in (a, b):
                del steps[part.output]
                let_go(part.w)
            steps[step.output] = replace(joined, output=step.output, activation=step.activation)
    return replace(graph, steps=tuple(steps.values()))


def _is_linear(step: Step) -> TypeGuard[Convolution]:
    """Whether it is a convolution with zeros around the map, and nothing behind it."""
    if not isinstance(step, Convolution) or step.activation or len(step.inputs) != 1:
        return False
    return step.boundary == ZERO and not isinstance(step.padding, str)


def _joined(a: Convolution, b: Convolution) -> Convolution | None:
    """Their sum; None where neither kernel holds the taps of the other."""
    for of, more in ((a, b), (b, a)):
        of_groups = _of_groups(more, of)
        at = None if of_groups is None else _place(of, more)
        if of_groups is None or at is None:
            continue
        w = np.array(of.w)  # (K, C/groups, *kernel)
        w[:, :, *at] += of_groups
        bias = (np.zeros(len(w), np.float32) if c.bias is None else c.bias for c in (of, more))
        return replace(of, w=put_in_file(w), bias=sum(bias, np.zeros(len(w), np.float32)))
    return None


def _of_groups(more: Convolution, of: Convolution) -> np.ndarray | None:
    """The filter of a convolution as one of the groups of another; None where it mixes other channels."""
    if len(more.w) != len(of.w):
        return None
    if more.groups == of.groups:
        return more.w if more.w.shape[1] == of.w.shape[1] else None
    k, c = len(of.w), of.w.shape[1]
    if not is_scale(more) or k != c * of.groups:
        return None
    w = np.zeros((k, c, *more.w.shape[2:]), np.float32)
    w[np.arange(k), np.arange(k) % c] = more.w[:, 0]
    return w


def _place(of: Convolution, more: Convolution) -> tuple[slice, ...] | None:
    """Where the taps of one kernel lie in another with the same outputs; None where some do not."""
    if isinstance(of.padding, str) or isinstance(more.padding, str):
        return None
    found: list[slice] = []
    ones = (1,) * (of.w.ndim - 2)
    none = ((0, 0),) * len(ones)
    pads: Pads = of.padding or none
    own_pads: Pads = more.padding or none
    for i, (n, m) in enumerate(zip(of.w.shape[2:], more.w.shape[2:], strict=True)):
        dilation = (of.dilation or ones)[i]
        (low, high), (own_low, own_high) = pads[i], own_pads[i]
        strides = {(c.stride or ones)[i] for c in (of, more)}
        if len(strides) > 1 or (m > 1 and (more.dilation or ones)[i] != dilation):
            return None
        at, left = divmod(low - own_low, dilation)
        rest = high - own_high - (n - 1 - at - (m - 1)) * dilation  # of equal numbers of outputs
        if left or not 0 <= at <= n - m or rest:
            return None
        found.append(slice(at, at + m))
    return tuple(found)
