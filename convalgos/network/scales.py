"""Factors and shifts of channels, such as batch norms, as depthwise convolutions, and merged into others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from convalgos.network.graph import Convolution, NetworkGraph, Step, TransposedConvolution


def scaled_channels(
    name: str, x: str, y: str, scale: np.ndarray, shift: np.ndarray, ndim: int
) -> Convolution:
    """y = x * scale + shift of each channel: a depthwise convolution of one tap.

    Args:
        scale, shift: (C,).
        ndim: spatial dimensions of x.
    """
    w = np.ascontiguousarray(scale, np.float32).reshape(-1, 1, *(1,) * ndim)  # (C, 1, 1, ...)
    ones, none = (1,) * ndim, ((0, 0),) * ndim
    return Convolution(name, (x,), y, w, np.asarray(shift, np.float32), ones, none, ones, len(w))


def with_scales(graph: NetworkGraph) -> NetworkGraph:
    """Convolutions whose output only `scaled_channels` reads take its factors into their filters."""
    readers = graph.readers()
    steps: dict[str, Step] = {}
    for step in graph.steps:
        before = steps.get(step.inputs[0]) if step.inputs else None
        if (
            before is not None
            and isinstance(step, Convolution)
            and isinstance(before, Convolution | TransposedConvolution)
            and _scales(step)
            and before.activation is None
            and len(before.inputs) == 1
            and len(readers[before.output]) == 1
            and before.output not in graph.outputs
        ):
            del steps[before.output]
            steps[step.output] = _scaled(before, step)
        else:
            steps[step.output] = step
    return replace(graph, steps=tuple(steps.values()))


def _scales(step: Convolution) -> bool:
    """Whether a convolution only scales and shifts channels."""
    pads = isinstance(step.padding, str) or any(map(any, step.padding))
    one_by_one = step.groups == step.w.size == len(step.w) and set(step.stride) <= {1}
    return one_by_one and not pads and len(step.inputs) == 1


def _scaled(step: Convolution | TransposedConvolution, by: Convolution) -> Step:
    """A convolution and the factors behind it in one, computed in float64."""
    scale = by.w.reshape(-1).astype(np.float64)  # (K,)
    shift = 0.0 if by.bias is None else by.bias.astype(np.float64)
    bias = shift + (0.0 if step.bias is None else step.bias.astype(np.float64)) * scale
    rest = (1,) * (step.w.ndim - 2)
    if isinstance(step, Convolution):
        w = step.w * scale.reshape(-1, 1, *rest)  # (K, C/groups, *kernel)
    else:
        groups, (c, k) = step.groups, step.w.shape[:2]
        of_each = np.repeat(scale.reshape(groups, 1, k), c // groups, 1)  # (groups, C/groups, K/groups)
        w = step.w * of_each.reshape(c, k, *rest)
    return replace(
        step, name=step.name, output=by.output, w=w.astype(np.float32), bias=bias.astype(np.float32),
        activation=by.activation,
    )  # fmt: skip
