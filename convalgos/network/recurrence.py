"""Recurrent layers, as a step of a network."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.network.graph import Shapes, Step


@dataclass(frozen=True, eq=False)
class Recurrence(Step):
    """The states (times, directions, images, hidden) of a recurrent layer; see `RecurrentPlan`.

    inputs: what x adds to the gates (times, images, directions * gates * hidden), and the first state and
    cells (directions, images, hidden) that are given.
    """

    weights: np.ndarray = field(default_factory=lambda: np.zeros((1, 0, 0), np.float32))
    gates: int = 1
    bias: np.ndarray | None = None  # (directions, hidden), of a GRU
    turned: bool = False
    given: tuple[bool, bool] = (False, False)
    with_cells: bool = False  # behind the last time, of an LSTM
    rectified: bool = False  # the states of a plain layer, in the place of their hyperbolic tangents
    reset_first: bool = False  # the share of a GRU is taken of the state, and not of the sum

    def sizes(self, shapes: Shapes) -> tuple[int, int, int, int, int]:
        """(times, images, directions, gates, hidden)."""
        directions, _, hidden = self.weights.shape
        return (*shapes[self.inputs[0]][:2], directions, self.gates, hidden)

    def output_shape(self, shapes: Shapes) -> Shape:
        times, images, width = shapes[self.inputs[0]]
        directions, rows, hidden = self.weights.shape
        if width != directions * rows:
            raise ValueError(f"gates of {width} do not go with weights of {self.weights.shape}")
        for name in self.inputs[1:]:
            if shapes[name] != (directions, images, hidden):
                wanted = directions, images, hidden
                raise ValueError(f"a first state has the shape {shapes[name]}, and must have {wanted}")
        return (times + self.with_cells, directions, images, hidden)
