"""Attention, and moves of elements that are more than views, as steps of a network."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.core.moves import Move, broadcast_together, moved_shape, shape_after
from convalgos.network.graph import Shapes, Step


@dataclass(frozen=True, eq=False)
class Rearrangement(Step):
    """Its input after moves; see `core.moves`."""

    moves: tuple[Move, ...] = ()

    def output_shape(self, shapes: Shapes) -> Shape:
        return moved_shape(shapes[self.inputs[0]], self.moves)


@dataclass(frozen=True, eq=False)
class Product(Step):
    """scale a b of matrices in the last two dimensions; inputs: (a, b), or a where b is constant, after moves
    of each; those of the output stand last."""

    moves: tuple[tuple[Move, ...], ...] = ((), (), ())
    scale: float = 1.0
    constant: np.ndarray | None = None

    def operands(self, shapes: Shapes) -> list[Shape]:
        """The shapes of a and b before their moves."""
        known = () if self.constant is None else (self.constant.shape,)
        return [*(shapes[name] for name in self.inputs), *known]

    def sizes(self, shapes: Shapes) -> tuple[int, int, int, int]:
        """(products, rows, depth, width)."""
        *lead, rows, depth, width = self._sizes(shapes)
        return math.prod(lead), rows, depth, width

    def output_shape(self, shapes: Shapes) -> Shape:
        *lead, rows, _, width = self._sizes(shapes)
        return moved_shape((*lead, rows, width), self.moves[2])

    def _sizes(self, shapes: Shapes) -> Shape:
        """(..., rows, depth, width)."""
        a, b = (moved_shape(x, own) for x, own in zip(self.operands(shapes), self.moves[:2], strict=True))
        if min(len(a), len(b)) < 2 or a[-1] != b[-2]:
            raise ValueError(f"a {a} and b {b} do not go together")
        return (*broadcast_together(a[:-2], b[:-2]), a[-2], a[-1], b[-1])


@dataclass(frozen=True, eq=False)
class Attention(Step):
    """softmax(scale q k + biases) v over the last dimension; inputs: (q, k, v, *biases).

    q is (..., rows, depth), k (..., depth, keys), v (..., keys, width) after the moves of each; those of the
    output stand last. A bias is added to the scores (..., rows, keys) in a view of them, () for as they are.
    Some are constant, and None stands there for the next of the inputs.
    """

    moves: tuple[tuple[Move, ...], ...] = ((), (), (), ())
    scale: float = 1.0
    views: tuple[Shape, ...] = ()
    constants: tuple[np.ndarray | None, ...] = ()

    def operands(self, shapes: Shapes) -> list[Shape]:
        """The shapes of q, k and v."""
        return [
            shape_after(shapes[name], own) for name, own in zip(self.inputs[:3], self.moves[:3], strict=True)
        ]

    def sizes(self, shapes: Shapes) -> tuple[int, int, int, int, int]:
        """(heads of all images, rows, depth, keys, width)."""
        q, k, v = self.operands(shapes)
        heads = math.prod(broadcast_together(q[:-2], k[:-2], v[:-2]))
        return heads, q[-2], q[-1], v[-2], v[-1]

    def output_shape(self, shapes: Shapes) -> Shape:
        q, k, v = self.operands(shapes)
        if min(map(len, (q, k, v))) < 2 or q[-1] != k[-2] or k[-1] != v[-2]:
            raise ValueError(f"q {q}, k {k} and v {v} do not go together")
        lead = broadcast_together(q[:-2], k[:-2], v[:-2])
        return shape_after((*lead, q[-2], v[-1]), self.moves[3])
