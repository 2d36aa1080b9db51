"""Maxima of windows with their places: within slices of the first dimension, then over these."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from convalgos.core.allocator import aligned_empty, whole_lines
from convalgos.core.layouts import PLAIN
from convalgos.core.pool_problem import PoolProblem
from convalgos.cpu.pooling.maxima import PLACE
from convalgos.cpu.pooling.maxima_plan import MaximaPlan
from convalgos.cpu.pooling.phase_plan import PhasePlan, has_phases
from convalgos.cpu.pooling.reductions import COLUMN
from convalgos.cpu.pooling.runs import Computed, KernelRuns, in_full_precision, widened
from convalgos.cpu.pooling.slice_maxima import SLICE_FIELDS, slice_maxima
from convalgos.cpu.pooling.unit_groups import UnitGroups
from convalgos.cpu.runtime import half

# Times the steps that an output takes in slices, from which on it takes them so: what lies between is
# written and read, and with channels first slices are found faster
WORTH = {"channels_first": 1.2, "channels_last": 3.0}
FEWEST_TAPS = 9  # of a window


def has_slices(problem: PoolProblem) -> bool:
    """Whether maxima of a problem are found within slices first: of floats, where that saves many steps."""
    if problem.layout not in PLAIN or problem.itemsize == 1 or len(problem.kernel) < 2:
        return False
    taps, depth = math.prod(problem.kernel), problem.kernel[0]
    slices = min(problem.stride[0], depth)  # an output's own
    fewer = taps >= WORTH[problem.layout] * (taps // depth * slices + depth)
    if problem.layout == "channels_first" and not has_phases(in_full_precision(problem).of_slices()):
        return False
    return fewer and taps >= FEWEST_TAPS


def maxima_of(problem: PoolProblem) -> MaximaPlan | PhasePlan | SlicePlan:
    """The plan that finds maxima of a problem fastest."""
    if has_phases(problem):
        return PhasePlan(problem)
    return SlicePlan(problem) if has_slices(problem) else MaximaPlan(problem)


class SlicePlan:
    """Maxima of a problem's windows with their places, where `has_slices`."""

    def __init__(self, problem: PoolProblem):
        problem = in_full_precision(problem)
        self._compute = np.dtype(problem.dtype)
        units = problem.x_shape[0] * (problem.x_shape[1] if problem.layout == "channels_first" else 1)
        each = math.prod(problem.of_slices().y_shape) // units
        self._groups = UnitGroups(problem, each * (self._compute.itemsize + PLACE))
        self._steps = {units: _Steps(part) for units, part in self._groups.problems.items()}

    def find(self, x: np.ndarray, y: np.ndarray, places: np.ndarray) -> None:
        """Write y and the place of each maximum, int64, of the shape of y; all `as_laid`."""
        if not places.size:
            return
        given = x if x.dtype == self._compute else widened(x)
        wide = y if y.dtype == self._compute else np.empty(y.shape, self._compute)
        for units, arrays in self._groups.each(given, wide, places):
            self._steps[units].find(*arrays)
        if wide is not y:
            half.convert(wide, y)


class _Steps:
    """Both steps for some images, or planes."""

    def __init__(self, problem: PoolProblem):
        within, depth = problem.of_slices(), problem.windows[0]
        self._within = maxima_of(within)
        of = Computed(problem)
        size, lanes, _ = of.kinds
        self._compute, self._elements = np.dtype(problem.dtype), math.prod(within.y_shape)
        self._found = whole_lines(self._elements * size)
        planes = problem.x_shape[0] * (problem.x_shape[1] if problem.layout == "channels_first" else 1)
        windows = np.zeros(len(depth.first), COLUMN)
        windows["first"], windows["taps"] = depth.first, depth.taps
        values: dict[str, Any] = {
            "planes": planes, "slices": depth.size, "windows": windows, "outputs": len(windows),
            "inner": self._elements // (planes * depth.size), "dilation": depth.dilation,
            "found": self._found, "slice_index": math.prod(problem.x_shape[3:]),
        }  # fmt: skip
        kernel, tasks = slice_maxima(size, lanes), of.tasks(planes * len(windows))
        self._over = KernelRuns(SLICE_FIELDS, values | of.sizes, kernel, tasks, ("x", "y", "places"))

    def find(self, x: np.ndarray, y: np.ndarray, places: np.ndarray) -> None:
        between = aligned_empty(self._found + self._elements * PLACE, np.uint8)
        maxima = between[: self._elements * self._compute.itemsize].view(self._compute)
        self._within.find(x, maxima, between[self._found :].view(np.int64))
        self._over.launch(between, y, places)
