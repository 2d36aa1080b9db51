"""What a call of `pooling` asks for of windows, and the plans of it over arrays of one shape.

Planning takes longer than the pooling of a small map, so all is found again by what callers write.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from convalgos.api.empty_windows import empty_windows, mark_nowhere, write_gradient
from convalgos.core.arguments import is_sequence, shown
from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.element_types import dtype_name
from convalgos.core.pool_problem import PoolProblem
from convalgos.core.setting import Setting, setting
from convalgos.cpu.pooling.found_plan import gradient_of_maxima
from convalgos.cpu.pooling.gradient_plan import GradientPlan, has_gradient_plan
from convalgos.cpu.pooling.maxima_plan import MaximaPlan
from convalgos.cpu.pooling.phase_plan import PhasePlan
from convalgos.cpu.pooling.places_plan import PlacesPlan, has_places_plan
from convalgos.cpu.pooling.plan import PoolPlan
from convalgos.cpu.pooling.slice_plan import SlicePlan, maxima_of

KINDS = 256  # of windows whose arguments are known to be valid
_problems: dict[Hashable, PoolProblem] = {}  # one of each kind, layout, dtype and number of dimensions


class PoolKind(NamedTuple):
    """The arguments of a call, as they were given."""

    kernel: Any
    stride: Any
    padding: Any
    dilation: Any
    ceil_mode: bool
    reduction: str
    count_padding: bool = True

    def problem(self, shape: tuple[int, ...], layout: str, dtype: str) -> PoolProblem:
        """The problem of an x of a logical shape (N, C, *spatial); kept for the next call."""
        of_memory = (
            (shape[0], *shape[2:], shape[1]) if layout == "channels_last" and len(shape) > 1 else shape
        )
        return self.planned(of_memory, layout, dtype).problem

    def planned(self, shape: tuple[int, ...], layout: str, dtype: np.dtype | str) -> PlannedPool:
        """The problem of an x of a shape in memory with its plans, for as many threads as there are now."""
        try:
            return _planned(self, shape, layout, dtype, setting())
        except TypeError:
            pass  # an argument without a hash, or one that is refused
        hashable = self._replace(**{n: _tuples(v) for n, v in self._asdict().items()})
        return _planned(hashable, shape, layout, dtype, setting())


class PlannedPool:
    """A problem of pooling and its plans on the CPU, each made when it is first asked for."""

    def __init__(self, problem: PoolProblem):
        self.problem, self.y_shape = problem, problem.y_shape
        self.y_laid = problem.laid(problem.y_shape)

    @cached_attribute
    def pool(self) -> PoolPlan:
        return PoolPlan(self.problem)

    @cached_attribute
    def maxima(self) -> MaximaPlan | PhasePlan | SlicePlan:
        return maxima_of(self.problem)

    def find(self, x: np.ndarray, y: np.ndarray, places: np.ndarray) -> None:
        """Write the maxima, and where they lie."""
        self.maxima.find(x, y, places)
        if self._empty is not None:
            mark_nowhere(places, self.problem, self._empty)

    @cached_attribute
    def _empty(self) -> np.ndarray | None:
        return empty_windows(self.problem)

    def _gradient_of_places(self, dy: np.ndarray, dx: np.ndarray, x: np.ndarray) -> None:
        """`of_maxima` where windows meet no element, which kernels would look for beyond x."""
        assert self._empty is not None
        places = np.empty(self.y_laid, np.int64)
        self.maxima.find(x, np.empty(self.y_laid, x.dtype), places)
        write_gradient(dy, dx, places, self.problem, self._empty)

    @cached_attribute
    def gradient(self) -> GradientPlan | None:
        """None where that has no kernels for the windows."""
        return GradientPlan(self._within) if has_gradient_plan(self._within) else None

    @cached_attribute
    def of_maxima(self) -> Callable[[np.ndarray, np.ndarray, np.ndarray], None]:
        """Of (dy, dx, x): writes dx, a maximum's gradient."""
        if self._empty is not None:
            return self._gradient_of_places
        if self.gradient is not None:
            return self.gradient.run
        plan = gradient_of_maxima(self._within)
        return lambda dy, dx, x: plan.gradient(x, dy, dx)

    @cached_attribute
    def _within(self) -> PoolProblem:
        """The problem, or that of its slices where each has its own windows: a gradient is the same."""
        return self.problem.of_slices() if self.problem.within_slices else self.problem

    @cached_attribute
    def of_places(self) -> Callable[..., None] | None:
        """Of (dy, dx, x, places): writes dx by the places of maxima; None where these are found again."""
        if self._empty is not None:
            return None
        plan = PlacesPlan(self.problem) if has_places_plan(self.problem) else None
        return None if plan is None else lambda dy, dx, _, places: plan.run(dy, dx, places)


def _tuples(value: Any) -> Any:
    """What has a hash: lists as tuples, and of what has none, its text, which is refused then."""
    if is_sequence(value):
        return tuple(map(_tuples, value))
    return value if isinstance(value, Hashable) else shown(value)


@lru_cache(1024)
def _planned(
    kind: PoolKind, shape: tuple[int, ...], layout: str, dtype: np.dtype | str, made_for: Setting
) -> PlannedPool:
    logical = (shape[0], shape[-1], *shape[1:-1]) if layout == "channels_last" and len(shape) > 1 else shape
    given = kind, layout, dtype, len(shape)
    known = _problems.get(given)
    if known is not None and (problem := known.of_shape(logical)) is not None:
        return PlannedPool(problem)
    problem = PoolProblem.of(
        logical, kind.kernel, stride=kind.stride, padding=kind.padding, dilation=kind.dilation,
        ceil_mode=kind.ceil_mode, reduction=kind.reduction, count_padding=kind.count_padding, layout=layout,
        dtype=dtype_name(dtype),
    )  # fmt: skip
    if kind.kernel is not None and not isinstance(kind.padding, str):  # the same of all shapes
        if len(_problems) >= KINDS:
            _problems.clear()
        _problems[given] = problem
    return PlannedPool(problem)
