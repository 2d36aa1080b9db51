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
    return _is_scale_with_residual(step) and len(step.inputs) == 1


def _is_scale_with_residual(step: Step) -> TypeGuard[Convolution]:
    """Whether a step is y = scale * x + shift, or that plus a residual."""
    if not isinstance(step, Convolution):
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
    """Scales, shifts and residuals of channels that are part of no convolution go by elements, where that is
    one step, and by as many as it takes where maps have one pixel.

    Kernels of convolutions take up to 0.5 ms for 256 images of 128 channels of one pixel, these 5 us.

    Args:
        maps: values that are maps of one pixel.
    """
    steps = [made for step in graph.steps for made in _elementwise(step, step.output in maps)]
    return replace(graph, steps=tuple(steps))


def _elementwise(step: Step, of_one_pixel: bool) -> list[Step]:
    if not _is_scale_with_residual(step) or not step.w.size:
        return [step]
    scale = step.w.reshape(-1)  # (C,)
    shift = np.zeros_like(scale) if step.bias is None else step.bias
    operands: list[tuple[str, np.ndarray | str]] = []
    if (scale != 1).any():
        operands.append(("multiply", scale))
    if shift.any():
        operands.append(("shift", shift))
    operands += [("add", residual) for residual in step.inputs[1:]]
    if len(operands) > 1 and not of_one_pixel:
        return [step]
    return _one_by_one(step, operands or [("multiply", scale)])


def _one_by_one(step: Convolution, operands: list[tuple[str, np.ndarray | str]]) -> list[Step]:
    """What a convolution of each pixel by itself computes, an operation a step."""
    made: list[Step] = []
    x = step.inputs[0]
    for i, (operation, operand) in enumerate(operands):
        last = i == len(operands) - 1
        y, activation = (step.output, step.activation) if last else (f"{step.output}/{operation}", None)
        if isinstance(operand, str):
            # Kernels may be told where their first input lies: a residual can be an input of the network.
            inputs = (operand, x) if made else (x, operand)
            made.append(Elementwise(step.name, inputs, y, operation, activation))
        else:
            numbers = np.ascontiguousarray(operand, np.float32).reshape(1, -1, *(1,) * (step.w.ndim - 2))
            made.append(Elementwise(step.name, (x,), y, operation, activation, numbers))
        x = y
    return made
