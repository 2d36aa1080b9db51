"""Scales and shifts of channels, such as batch norms, as convolutions, which passes make part of others."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from typing import TypeGuard

import numpy as np

from convalgos.network.graph import (
    Convolution,
    Elementwise,
    NetworkGraph,
    Step,
    TransposedConvolution,
)
from convalgos.network.mapped_weights import scaled_weights

SUMMED = Convolution | TransposedConvolution  # of which each output is a sum with weights of its own


def channel_scaling(
    name: str, x: str, y: str, scale: np.ndarray, shift: np.ndarray, ndim: int
) -> Convolution:
    """y = scale * x + shift, with numbers (C,) of each channel: a convolution of each channel by itself."""
    w = np.ascontiguousarray(scale, np.float32).reshape(-1, 1, *(1,) * ndim)  # (C, 1, 1, ...)
    bias = np.ascontiguousarray(shift, np.float32)
    return Convolution(name, (x,), y, w, bias, (1,) * ndim, ((0, 0),) * ndim, (1,) * ndim, len(w))


def is_scale(step: Step) -> TypeGuard[Convolution]:
    """Whether a step is y = scale * x + shift, with numbers of each channel."""
    if not isinstance(step, Convolution) or len(step.inputs) > 1:
        return False
    alone = step.groups == len(step.w) and step.w.size == len(step.w)
    return alone and set(step.stride) <= {1} and set(step.padding) <= {(0, 0)}


def scaled_convolution(of: SUMMED, by: Convolution) -> SUMMED:
    """A convolution whose outputs are then scaled and shifted, and what follows that, as one."""
    scale = by.w.reshape(-1)  # (K,)
    ones = (1,) * (of.w.ndim - 2)
    if isinstance(of, Convolution):
        of_w = scale.reshape(-1, 1, *ones)
    else:  # (C, K/groups, *kernel): a channel of x goes to the outputs of its group
        of_group = scale.reshape(of.groups, -1).repeat(len(of.w) // of.groups, 0)  # (C, K/groups)
        of_w = of_group.reshape(*of.w.shape[:2], *ones)
    bias = np.zeros(len(scale), np.float32) if of.bias is None else of.bias * scale
    shift = 0 if by.bias is None else by.bias
    w = scaled_weights(of.w, of_w)
    return replace(of, output=by.output, w=w, bias=bias + shift, activation=by.activation)


def scales_elementwise(graph: NetworkGraph, maps: Container[str]) -> NetworkGraph:
    """Scales, or shifts, of channels that are part of no convolution go by elements; both do so in two steps
    where maps have one pixel.

    Kernels of convolutions take up to 0.5 ms for 256 images of 128 channels of one pixel, these 5 us.

    Args:
        maps: values that are maps of one pixel.
    """
    steps = [made for step in graph.steps for made in _elementwise(step, step.output in maps)]
    return replace(graph, steps=tuple(steps))


def _elementwise(step: Step, of_one_pixel: bool) -> list[Step]:
    if not is_scale(step) or not step.w.size:
        return [step]
    scale = step.w.reshape(-1)  # (C,)
    shift = np.zeros_like(scale) if step.bias is None else step.bias
    scales, shifts = bool((scale != 1).any()), bool(shift.any())
    if scales and shifts and not of_one_pixel:
        return [step]

    def combined(operation: str, x: str, y: str, numbers: np.ndarray) -> Elementwise:
        constant = np.ascontiguousarray(numbers, np.float32).reshape(1, -1, *(1,) * (step.w.ndim - 2))
        return Elementwise(step.name, (x,), y, operation, constant=constant)

    x, y = step.inputs[0], step.output
    if scales and shifts:
        scaled = f"{y}/scaled"
        made = [combined("multiply", x, scaled, scale), combined("shift", scaled, y, shift)]
    else:
        made = [combined("shift", x, y, shift) if shifts else combined("multiply", x, y, scale)]
    return [*made[:-1], replace(made[-1], activation=step.activation)]
