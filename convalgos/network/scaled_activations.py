"""Scales and shifts behind activations, the same for all channels, become part of what is activated.

Networks that learn one number to scale a map by, and one to add, have them there (PP-LCNetV3, PP-HGNetV2).
The convolutions that read such maps have zeros around them, which would have to be shifted as well, and so
cannot take them.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from convalgos.core.epilogue import Activation
from convalgos.network.channel_scaling import SUMMED, is_scale, scaled_convolution
from convalgos.network.graph import Convolution, Elementwise, NetworkGraph, Step
from convalgos.network.read_once import read_once


def with_scaled_activations(graph: NetworkGraph) -> NetworkGraph:
    """The graph with such scales in the steps whose output they alone read."""
    makers = read_once(graph)
    steps: dict[str, Step] = {}
    for step in graph.steps:
        steps[step.output] = step
        x = step.inputs[0] if step.inputs else ""
        if x in makers and is_scale(step):
            made = _activated_and_scaled(steps[x], step)
            if made is not None:
                del steps[x]
                steps[step.output] = replace(made, output=step.output)
    return replace(graph, steps=tuple(steps.values()))


def _activated_and_scaled(of: Step, by: Convolution) -> Step | None:
    """A step whose outputs are then scaled and shifted, as one; None where it cannot be."""
    shifts = np.zeros(1, np.float32) if by.bias is None else by.bias
    alike = by.w.size and (by.w == by.w.flat[0]).all() and (shifts == shifts[0]).all()
    if not isinstance(of, SUMMED | Elementwise) or of.activation is None or by.activation or not alike:
        return None
    (name, a, b), scale, shift = of.activation, float(by.w.flat[0]), float(shifts[0])
    if name == "hard_swish":
        return replace(of, activation=Activation(name, (1 + a) * scale - 1, b * scale + shift))
    limits = name in ("relu", "clip") and scale and len(of.inputs) == 1
    if not limits or not isinstance(of, SUMMED):
        return None
    ends = (0.0, math.inf) if name == "relu" else (a, b)
    low, high = sorted(end * scale + shift for end in ends)
    return replace(scaled_convolution(of, by), activation=Activation("clip", low, high))
