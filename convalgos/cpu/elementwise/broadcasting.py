"""How one array is broadcast over another: groups of rows, which all read the same elements, or one."""

from __future__ import annotations

from typing import NamedTuple

from convalgos.core.arguments import Shape
from convalgos.core.errors import Unsupported


class Broadcast(NamedTuple):
    """An image (groups, rows, elements), the step of b between groups, and whether b has whole rows."""

    groups: int
    rows: int
    elements: int
    b_group: int
    by_element: bool


def broadcast_of(image: Shape, b: Shape) -> Broadcast:
    """How an image of b lies under one of y; both contiguous, and of as many dimensions.

    Raises:
        Unsupported: it is broadcast along dimensions that are further apart.

    Example:
        >>> broadcast_of((3, 8, 9), (3, 1, 1))  # a number for each map, channels first
        Broadcast(groups=3, rows=1, elements=72, b_group=1, by_element=False)
        >>> broadcast_of((8, 9, 3), (1, 1, 3))  # and channels last
        Broadcast(groups=1, rows=72, elements=3, b_group=0, by_element=True)
    """
    if any(own not in (1, size) for size, own in zip(image, b, strict=True)):
        raise Unsupported(f"an array of images {b} is not broadcast over {image}")
    merged = broadcast_steps(image, b)[::-1]  # from the last dimension on
    count, element_step = merged[0] if merged else (1, 1)
    further = merged[1:]
    rows = further.pop(0)[0] if further and further[0][1] == 0 and element_step else 1
    groups, b_group = further.pop(0) if further else (1, 0)
    if further or element_step > 1:
        raise Unsupported(f"an array of images {b} is broadcast over {image} along too many dimensions")
    return Broadcast(groups, rows, count, b_group, bool(element_step))


def broadcast_steps(y: Shape, x: Shape) -> list[tuple[int, int]]:
    """(size, elements of x from one to the next) of the fewest dimensions as which x is broadcast to y.

    Example:
        >>> broadcast_steps((2, 3, 4), (2, 3, 4))
        [(24, 1)]
        >>> broadcast_steps((2, 3, 4), (3, 1))
        [(2, 0), (3, 1), (4, 0)]
        >>> broadcast_steps((2, 3, 4), ())
        [(24, 0)]
    """
    found: list[tuple[int, int]] = []  # from the last on
    behind = 1  # elements of x behind a dimension
    for size, own in zip(y[::-1], (*x[::-1], *(1,) * (len(y) - len(x))), strict=True):
        step = 0 if own == 1 else behind
        behind *= own
        if size == 1:
            continue
        if found and step == found[-1][0] * found[-1][1]:
            found[-1] = found[-1][0] * size, found[-1][1]
        else:
            found.append((size, step))
    return found[::-1]
