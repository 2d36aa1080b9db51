"""Views of arrays after moves, also where a view on the way is none by itself: a later one may undo it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from convalgos.core.moves import Move, viewed_shape

Part = tuple[int, int]  # (size, bytes from one element to the next)
Dimension = list[Part]  # of which it is made, the outer ones first; of no parts where its size is 1


def view_of(x: np.ndarray, moves: Sequence[Move]) -> np.ndarray | None:
    """The view of an array after moves, or None where there is none, or nothing in it.

    Args:
        x: C-contiguous where there are moves.

    Example:
        >>> x = np.arange(24).reshape(2, 2, 6)
        >>> moves = [("slice", 2, 0, 4, 1), ("view", (2, 4, 2)), ("view", (4, 2, 2))]
        >>> view_of(x, moves[:2]) is None, view_of(x, moves)[1].tolist()
        (True, [[6, 7], [8, 9]])
    """
    if not moves or not x.size:
        return x if x.size else None
    dims: list[Dimension] = [[(n, step)] if n > 1 else [] for n, step in zip(x.shape, x.strides, strict=True)]
    offset = 0
    for kind, *given in moves:
        if kind == "transpose":
            dims = [dims[axis] for axis in given[0]]
        elif kind == "view":
            found = _regrouped(dims, viewed_shape(tuple(map(_size, dims)), given[0]))
            if found is None:
                return None
            dims = found
        elif kind in ("index", "slice"):
            axis, *place = given
            dim = _joined(dims[axis])
            if dim is None:
                return None
            taken = range(_size(dim))[place[0] if kind == "index" else slice(*place)]
            step = dim[0][1] if dim else 0
            if isinstance(taken, int):
                offset += taken * step
                del dims[axis]
                continue
            if not taken:
                return None
            offset += taken.start * step
            dims[axis] = [(len(taken), taken.step * step)] if len(taken) > 1 else []
        else:
            return None
    joined = [_joined(dim) for dim in dims]
    if None in joined:
        return None
    whole = [dim[0] if dim else (1, 0) for dim in joined if dim is not None]
    return np.ndarray([n for n, _ in whole], x.dtype, x, offset, [step for _, step in whole])


def _size(dim: Dimension) -> int:
    return math.prod(n for n, _ in dim)


def _joined(dim: Dimension) -> Dimension | None:
    """The same as one part, or of none; None where its elements do not lie evenly."""
    found: Dimension = []
    for n, step in dim:
        if found and found[-1][1] != n * step:
            return None
        found = [(found[-1][0] * n if found else n, step)]
    return found


def _regrouped(dims: Sequence[Dimension], shape: Sequence[int]) -> list[Dimension] | None:
    """Dimensions of this shape of the same parts, or of parts of these."""
    parts = [part for dim in dims for part in dim][::-1]  # the outer ones last
    found: list[Dimension] = []
    for size in shape:
        dim: Dimension = []
        while size > 1:
            n, step = parts.pop()
            outer = math.gcd(n, size)
            if outer < min(n, size):
                return None
            dim.append((outer, step * (n // outer)))
            if outer < n:
                parts.append((n // outer, step))
            size //= outer
        found.append(dim)
    return found
