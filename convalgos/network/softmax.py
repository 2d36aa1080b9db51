"""The softmax over channels, as a step of a network."""

from __future__ import annotations

from dataclasses import dataclass

from convalgos.core.arguments import Shape
from convalgos.network.graph import Shapes, Step


@dataclass(frozen=True, eq=False)
class Softmax(Step):
    """exp(x) over the sum of it over the channels of a pixel, or the logarithm of that."""

    logs: bool = False

    def output_shape(self, shapes: Shapes) -> Shape:
        return shapes[self.inputs[0]]
