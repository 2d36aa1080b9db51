"""The gradient of a maximum in two steps: maxima are found with their places, and dy is added there.

What lies between is of as many images or planes at a time as stay in the cache.
"""

from __future__ import annotations

import math

import numpy as np

from convalgos.core.pool_problem import PoolProblem
from convalgos.cpu.pooling.carried_plan import CarriedPlan, has_carried_plan
from convalgos.cpu.pooling.maxima import PLACE
from convalgos.cpu.pooling.maxima_plan import BLOCK_VECTORS, MOST_ELEMENTS, MaximaPlan
from convalgos.cpu.pooling.phase_plan import PhasePlan, has_phases
from convalgos.cpu.pooling.places_plan import PlacesPlan
from convalgos.cpu.pooling.runs import in_full_precision, widened
from convalgos.cpu.pooling.slice_plan import has_slices, maxima_of
from convalgos.cpu.pooling.unit_groups import UnitGroups
from convalgos.cpu.runtime import half, jit
from convalgos.cpu.vectors import simd


def has_found_plan(problem: PoolProblem) -> bool:
    """Whether these steps are faster than `MaximaPlan.gradient`: where maxima are found by slices.

    With channels last that takes a block of channels of an image at a time, which may be too few for all
    threads, and adds to as many places of each pixel at a time.
    """
    each = problem.x_shape[1] if problem.layout == "channels_last" else 1
    if problem.itemsize == 1 or math.prod(problem.x_shape[2:]) * each > MOST_ELEMENTS:
        return False
    several = each > BLOCK_VECTORS * simd.lanes(problem.itemsize) or problem.x_shape[0] < jit.thread_count()
    return has_slices(problem) or (problem.layout == "channels_last" and several)


class FoundPlan:
    """dx of dy and x, where `has_found_plan`."""

    def __init__(self, problem: PoolProblem):
        problem = in_full_precision(problem)
        self._compute = np.dtype(problem.dtype)
        units = problem.x_shape[0] * (problem.x_shape[1] if problem.layout == "channels_first" else 1)
        each = math.prod(problem.y_shape) // units * (self._compute.itemsize + PLACE)
        self._groups = UnitGroups(problem, each)
        self._steps = {
            units: (maxima_of(part), PlacesPlan(part)) for units, part in self._groups.problems.items()
        }

    def gradient(self, x: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
        """Write dx; all `as_laid`."""
        wide = dx if dx.dtype == self._compute else np.empty(dx.shape, self._compute)
        given = [a if a.dtype == self._compute else widened(a) for a in (x, dy)]
        for units, (of_x, of_dy, of_dx) in self._groups.each(*given, wide):
            maxima, scattering = self._steps[units]
            y, places = np.empty(of_dy.shape, self._compute), np.empty(of_dy.shape, np.int64)
            maxima.find(of_x, y, places)
            scattering.run(of_dy, of_dx, places)
        if wide is not dx:
            half.convert(wide, dx)


def gradient_of_maxima(problem: PoolProblem) -> MaximaPlan | PhasePlan | CarriedPlan | FoundPlan:
    """The plan of a maximum's gradient where there is no `GradientPlan`."""
    if has_carried_plan(problem):
        return CarriedPlan(problem)
    if has_phases(in_full_precision(problem)):
        return PhasePlan(problem)
    return FoundPlan(problem) if has_found_plan(problem) else MaximaPlan(problem)
