"""Sums, differences, products and quotients of two arrays of which each spans what the other does not."""

from __future__ import annotations

import math
from itertools import takewhile

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.core.bound_run import BoundRun, check_bound
from convalgos.core.errors import Unsupported
from convalgos.cpu.elementwise.bound_steps import FLOAT, BoundStep, bound
from convalgos.cpu.elementwise.broadcasting import broadcast_of
from convalgos.cpu.elementwise.plan import OPERATIONS, TURNED, combined_run

ALIKE = 64  # parts that are combined one after the other, at most


class CrossingPlan(BoundStep):
    """y = a combined with b, of which one has the last dimensions of y, and is the same in the first ones,
    of which the other has all; in front of these there may be dimensions that both have.

    Args:
        operation: "add", "multiply", "subtract" or "divide".
        shapes: of a and b, of as many dimensions.

    Raises:
        Unsupported: they lie otherwise.

    Example:
        >>> a, b = np.float32([[1, 2, 3]]), np.float32([[10], [20]])
        >>> CrossingPlan("subtract", (a.shape, b.shape)).run((a, b), y := np.empty((2, 3), "f4"))
        >>> y.tolist()
        [[-9.0, -8.0, -7.0], [-19.0, -18.0, -17.0]]
    """

    def __init__(self, operation: str, shapes: tuple[Shape, Shape]):
        self._operation, self._shapes = OPERATIONS[operation], shapes
        y = self._y_shape = np.broadcast_shapes(*shapes)
        both = len([*takewhile(lambda sizes: sizes[0] == sizes[1] != 1, zip(*shapes, strict=True))])
        self._alike = math.prod(y[:both])
        a, b = (shape[both:] for shape in shapes)
        at = crossing(a, b)
        self._turned = at is None
        if self._turned:
            at, a, b = crossing(b, a), b, a
            self._operation = TURNED[self._operation]
        if at is None or self._alike > ALIKE:
            raise Unsupported(f"arrays {shapes} do not cross each other")
        whole, part = y[both + at :], b[at:]
        images = math.prod(y[both : both + at])
        self._images = (1, *whole), (images, *part), (images, *whole)
        self._cast = broadcast_of(whole, part)

    def bind(self, *arrays: np.ndarray) -> BoundRun:
        for name, array, shape in zip("aby", arrays, (*self._shapes, self._y_shape), strict=True):
            check_bound(name, array, shape, FLOAT, strided=False, written=name == "y")
        a, b, y = arrays
        a, b = (b, a) if self._turned else (a, b)
        parts = [of.reshape(self._alike, *shape) for of, shape in zip((a, b, y), self._images, strict=True)]
        runs = [combined_run(self._operation, None, each, self._cast) for each in zip(*parts, strict=True)]
        return bound([launch for run in runs for launch in run.launches or ()], runs)


def crossing(a: Shape, b: Shape) -> int | None:
    """How many of the first dimensions b has alone, where a has all of those behind; None where it has not.

    Example:
        >>> crossing((1, 1, 5, 3), (2, 4, 1, 3))
        2
    """
    if not all(m == n or 1 in (m, n) for m, n in zip(a, b, strict=True)):
        return None
    y = [n if m == 1 else m for m, n in zip(a, b, strict=True)]
    at = next((i for i, m in enumerate(a) if m != 1), len(a))
    return at if [*a[at:]] == y[at:] and [*b[:at]] == y[:at] else None
