"""Norms over groups of channels, and of each channel by itself, as a step of a network."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.core.epilogue import Activation
from convalgos.network.graph import Shapes, Step


@dataclass(frozen=True, eq=False)
class GroupNormalization(Step):
    """Each group of channels of an image less its mean, over its deviation; scaled, shifted, activated.

    As many groups as channels are a norm of instances.
    """

    groups: int = 1
    scale: np.ndarray | None = None  # (C,)
    shift: np.ndarray | None = None
    epsilon: float = 1e-5
    activation: Activation | None = None

    def output_shape(self, shapes: Shapes) -> Shape:
        x = shapes[self.inputs[0]]
        if x[1] % self.groups:
            raise ValueError(f"{x[1]} channels do not make {self.groups} groups")
        return x
