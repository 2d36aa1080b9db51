"""Moves of the elements of an array, each plain data: views of it where they can be, and copies else.

("view", shape), where 0 keeps a size and -1 takes the rest; ("transpose", order); ("index", axis, i) takes
one element, and the dimension is gone; ("slice", axis, start, stop, step) as Python's; ("roll", axis, shift)
as NumPy's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from convalgos.core.arguments import Shape

Move = tuple[Any, ...]


def viewed_shape(x: Shape, shape: Shape) -> Shape:
    """The shape of a view of an array of shape x: 0 keeps a size, -1 takes the rest.

    Raises:
        ValueError: it has another number of elements.
    """
    kept = [i for i, n in enumerate(shape) if n == 0]
    rest = math.prod(n for i, n in enumerate(x) if i not in kept)  # also of maps without elements
    given = math.prod(n for n in shape if n > 0)
    beyond = kept[-1:] >= [len(x)]
    empty = not beyond and any(x[i] == 0 for i in kept)  # in whatever shape
    if beyond or (not empty and (rest % given or (rest != given and -1 not in shape))):
        raise ValueError(f"an array of shape {x} cannot be seen in the shape {shape}")
    return tuple(x[i] if n == 0 else rest // given if n < 0 else n for i, n in enumerate(shape))


def moved(x: np.ndarray, moves: Sequence[Move]) -> np.ndarray:
    """x after these moves, in order.

    Example:
        >>> x = np.arange(6).reshape(2, 3)
        >>> moved(x, [("roll", 1, 1), ("transpose", (1, 0)), ("index", 1, 0)]).tolist()
        [2, 0, 1]

    Raises:
        ValueError: the array does not have what is moved.
    """
    for kind, *given in moves:
        if kind == "view":
            x = x.reshape(viewed_shape(x.shape, given[0]))
        elif kind == "transpose":
            x = x.transpose(given[0])
        elif kind == "roll":
            x = np.roll(x, given[1], given[0])
        else:
            axis, *place = given
            if axis >= x.ndim or (kind == "index" and not -x.shape[axis] <= place[0] < x.shape[axis]):
                raise ValueError(f"an array of shape {x.shape} has nothing at {place} of dimension {axis}")
            x = x[(slice(None),) * axis + ((place[0] if kind == "index" else slice(*place)),)]
    return x


def moved_shape(shape: Shape, moves: Sequence[Move]) -> Shape:
    """The shape of an array of this shape after these moves."""
    for move in moves:
        if move[0] == "view":
            shape = viewed_shape(shape, move[1])
        elif move[0] == "transpose" and sorted(move[1]) == list(range(len(shape))):
            shape = tuple([shape[axis] for axis in move[1]])
        elif move[0] == "index" and 0 <= move[1] < len(shape) and 0 <= move[2] < shape[move[1]]:
            shape = (*shape[: move[1]], *shape[move[1] + 1 :])
        elif move[0] == "slice" and 0 <= move[1] < len(shape):
            axis, *place = move[1:]
            left = len(range(*slice(*place).indices(shape[axis])))
            shape = (*shape[:axis], left, *shape[axis + 1 :])
        elif move[0] != "roll":
            nothing = np.broadcast_to(np.int8(0), shape)
            shape = moved(nothing, [move]).shape
    return shape


def broadcast_together(*shapes: Shape) -> Shape:
    """`np.broadcast_shapes`, at once where they are the same.

    Example:
        >>> broadcast_together((2, 3), (2, 3)), broadcast_together((2, 1), (3,))
        ((2, 3), (2, 3))
    """
    first = shapes[0]
    return first if all(shape == first for shape in shapes) else np.broadcast_shapes(*shapes)


shape_after = lru_cache(1024)(moved_shape)  # of shapes that are asked for again, with moves that are tuples


def of_whole_rows(shape: Shape, moves: Sequence[Move]) -> list[Move] | None:
    """The moves of an array whose last dimension is one element, for all of it; None where they part it.

    Example:
        >>> of_whole_rows((2, 3, 96), [("view", (6, 96)), ("roll", 0, 1)])
        [('view', (6, 1)), ('roll', 0, 1)]
    """
    found: list[Move] = []
    size = shape[-1]
    for move in moves:
        last = len(shape) - 1
        kind, *given = move
        if kind == "transpose" and given[0][-1] != last:
            return None
        if kind in ("index", "slice", "roll") and not 0 <= given[0] < last:
            return None
        shape = moved_shape(shape, [move])
        if shape[-1:] != (size,):
            return None
        if kind == "view":  # where there is nothing, 0 would keep another size
            seen = [n or told for n, told in zip(shape[:-1], given[0], strict=False)]
            move = kind, (*seen, 1)
        found.append(move)
    return found


def unmoved(y: np.ndarray, shape: Shape, moves: Sequence[Move]) -> np.ndarray | None:
    """The view of y, which is an array of a shape after moves, as that array; None where there is none.

    Of moves that keep all elements: views and transposes.
    """
    shapes = [shape]
    for move in moves:
        shapes.append(moved_shape(shapes[-1], [move]))
    for (kind, *given), before in zip(reversed(moves), reversed(shapes[:-1]), strict=True):
        if kind == "transpose":
            y = y.transpose(np.argsort(given[0]))
        elif kind == "view":
            other = y.reshape(before)
            if not np.may_share_memory(other, y):
                return None
            y = other
        else:
            return None
    return y


def scaled_size(size: int, scale: float) -> int:
    """A size times a scale, rounded down, as ONNX Runtime finds it: in float32, where 12 times 5/3 is 20."""
    return int(np.float32(size) * np.float32(scale))
