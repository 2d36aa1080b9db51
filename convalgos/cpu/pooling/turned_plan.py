"""The gradient of a maximum of few channels that lie side by side, taken of arrays with channels first.

Vectors of so few channels would be almost empty; to turn the arrays takes less.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from convalgos.core.laid_arrays import as_laid, copy_into
from convalgos.core.pool_problem import PoolProblem
from convalgos.cpu.pooling.found_plan import FoundPlan, has_found_plan
from convalgos.cpu.pooling.gradient_plan import GradientPlan, has_gradient_plan
from convalgos.cpu.pooling.maxima_plan import MaximaPlan
from convalgos.cpu.pooling.phase_plan import PhasePlan, has_phases
from convalgos.cpu.pooling.runs import in_full_precision
from convalgos.cpu.vectors import simd

FEW = 4  # channels of vectors that are almost empty, of 16 lanes
FEWEST = 2.5  # windows over each pixel, in the mean, from which on arrays are turned


def has_few_channels(problem: PoolProblem) -> bool:
    """Whether a problem's arrays are turned."""
    few = FEW * simd.lanes(max(4, problem.itemsize)) / 16
    pixels, outputs = (math.prod(shape[2:]) for shape in (problem.x_shape, problem.y_shape))
    return (
        problem.reduction == "max"
        and problem.layout == "channels_last"
        and problem.itemsize > 1
        and 1 < problem.x_shape[1] <= few
        and outputs * math.prod(problem.kernel) >= FEWEST * pixels
    )


def gradient_of_maxima(problem: PoolProblem) -> MaximaPlan | PhasePlan | FoundPlan:
    """The plan of a maximum's gradient where there is no `GradientPlan`."""
    if has_phases(in_full_precision(problem)):
        return PhasePlan(problem)
    return FoundPlan(problem) if has_found_plan(problem) else MaximaPlan(problem)


class TurnedPlan:
    """dx of dy and x, where `has_few_channels`."""

    def __init__(self, problem: PoolProblem):
        turned = replace(problem, layout="channels_first", y_layout="channels_first")
        self._gradient = GradientPlan(turned) if has_gradient_plan(turned) else None
        self._of_maxima = None if self._gradient else gradient_of_maxima(turned)

    def run(self, dy: np.ndarray, dx: np.ndarray, x: np.ndarray | None = None) -> None:
        """Write dx; all `as_laid`."""
        assert x is not None, "a maximum has a gradient where x is"
        given, of_x = (as_laid(np.moveaxis(array, -1, 1)) for array in (dy, x))
        target = np.empty(of_x.shape, of_x.dtype)
        if self._gradient is not None:
            self._gradient.run(given, target, of_x)
        elif self._of_maxima is not None:
            self._of_maxima.gradient(of_x, given, target)
        copy_into(np.moveaxis(dx, -1, 1), target)
