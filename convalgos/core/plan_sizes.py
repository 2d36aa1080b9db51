"""What a plan has of the sizes of its maps, and plans for other sizes that share all else."""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.core.prepared_filter import FilterKey
from convalgos.core.problem import ConvProblem
from convalgos.core.problem_views import on_map
from convalgos.core.workspaces import OwnWorkspaces

SIZES = "problem", "_x_shape", "_w_shape", "_y_shape", "_y_count", "_aligns"  # what `_set_sizes` sets
ALIGNED = 1 << 16  # bytes of a y from which on the alignment is worth its microsecond


class _OfSizes:
    """An attribute that the sizes of the maps give: of a plan on a later map they are looked at for the first
    of these that is asked for."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, plan: Any, owner: type | None = None) -> Any:
        if plan is None:
            return self
        plan._set_sizes(on_map(*plan._on_map_of))
        return plan.__dict__[self._name]


def _of_sizes() -> Any:
    return _OfSizes()


class PlanSizes(OwnWorkspaces):
    """What `_set_sizes` sets; it is looked at late in plans `_on_later_map`."""

    problem: ConvProblem = _of_sizes()
    _x_shape: Shape = _of_sizes()
    _w_shape: Shape = _of_sizes()
    _y_shape: Shape = _of_sizes()
    _y_count: int = _of_sizes()
    _aligns: bool = _of_sizes()
    _y_dtype: np.dtype
    _key: FilterKey
    _on_map_of: tuple[ConvProblem, Shape]  # a problem of the layer, and the shape of another x

    def _set_sizes(self, problem: ConvProblem) -> None:
        """Set what depends on the sizes of the maps."""
        self.problem = problem
        self._x_shape, self._w_shape, self._y_shape = self._array_shapes(problem)
        self._y_count = math.prod(self._y_shape)
        self._aligns = self._y_count * self._y_dtype.itemsize >= ALIGNED

    def _array_shapes(self, problem: ConvProblem) -> tuple[Shape, Shape, Shape]:
        """Of what is read first, of the filter, and of what is written."""
        return problem.array_shapes

    def _on_maps(self, problem: ConvProblem, workspace_bytes: int) -> Self:
        """This plan with what the contract has of other sizes of its maps; prepared filters serve both."""
        made = self._with_workspace(workspace_bytes)
        made._set_sizes(problem)
        return made

    def _on_later_map(self, x_shape: Shape) -> Self:
        """Likewise, without a workspace: its problem, of zeros around maps, is made when it is asked for."""
        made = self._with_workspace(0)
        for name in SIZES:
            made.__dict__.pop(name, None)
        made._on_map_of = self.problem, x_shape
        return made

    def _with_workspace(self, workspace_bytes: int) -> Self:
        made: Self = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__)
        made.__dict__.pop("_quick", None)  # found when it is first asked for, as `_key` is
        made._key = self._key
        made._set_workspace(workspace_bytes)
        return made
