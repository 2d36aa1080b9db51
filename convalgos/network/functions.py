"""Functions of each element by itself that are no activations, as a step of a network."""

from __future__ import annotations

from dataclasses import dataclass

from convalgos.core.arguments import Shape
from convalgos.network.graph import Shapes, Step


@dataclass(frozen=True, eq=False)
class ElementFunction(Step):
    """function(x), one of those of `FunctionPlan`."""

    function: str = "abs"

    def output_shape(self, shapes: Shapes) -> Shape:
        return shapes[self.inputs[0]]
