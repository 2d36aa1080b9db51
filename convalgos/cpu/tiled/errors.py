"""How far tiles through bilinear transforms may err."""

from __future__ import annotations

import math

from convalgos.core.algorithm import room_for_few
from convalgos.core.problem import ConvProblem


def error_of_tiles(problem: ConvProblem, eps: float, growth: float, summed: float) -> float:
    """An error bound, relative to max|y|.

    The sum of a point is a random walk, whose errors are as large as its own products; the constants cover
    the largest of many outputs and the few operations of the transforms.

    Args:
        eps: of the type in which points are summed.
        growth: of errors by the transforms, of all dimensions that go through one.
        summed: products of a point.
    """
    return 3 * eps * growth * math.sqrt(summed + 8) * room_for_few(problem)
