"""Plans of gradients of the input whose border is folded by kernels, or added behind them."""

from __future__ import annotations

from typing import Any

import numpy as np

from convalgos.core.borders.extended import extended
from convalgos.core.epilogue import finish
from convalgos.core.prepared_filter import FilterForm
from convalgos.core.problem import ConvProblem
from convalgos.cpu.backward.subproblems import filters_of
from convalgos.cpu.borders.outer_sums import OuterRun, OuterSums, packed_taps
from convalgos.cpu.runtime.wrapping_plan import WrappingPlan


class FoldedPlan(WrappingPlan):
    """A gradient of the map with its border, which the kernels of a forward algorithm fold onto the map."""

    def __init__(self, problem: ConvProblem, algorithm: Any):
        """
        Args:
            algorithm: `CpuBordered`.
        """
        backward = algorithm.inner
        (self._whole,) = backward.subproblems(extended(problem).problem)
        super().__init__(problem, algorithm, backward.inner.plan_folded(self._whole.forward, problem))

    def filter_form(self) -> FilterForm:
        return FilterForm.of(self.problem, self._inner.filter_form(), "folded")

    def prepare_filter(self, w: np.ndarray) -> Any:
        (rotated,) = filters_of((self._whole,), w, self.problem.groups, (self._inner.takes_views,))
        return self._inner.prepare_filter(rotated)

    def run(
        self, x: np.ndarray, w: Any, bias: np.ndarray | None, activation: str | None, y: np.ndarray,
        workspace: Any,
    ) -> None:  # fmt: skip
        self._inner.run(x, w, None, None, y, workspace)
        finish(y, bias, activation, self.problem)


class AddedBorderPlan(WrappingPlan):
    """A gradient of the map with zeros around it, to which what comes from beyond its edges is added."""

    def __init__(self, problem: ConvProblem, algorithm: Any, inner: Any):
        """
        Args:
            inner: the plan of the gradient with zeros.
        """
        super().__init__(problem, algorithm, inner)
        self._outer = OuterSums(problem)

    def filter_form(self) -> FilterForm:
        return FilterForm.of(self.problem, self._inner.filter_form(), "added")

    def prepare_filter(self, w: np.ndarray) -> Any:
        return self._inner.prepare_filter(w), packed_taps(w)

    def new_workspace(self) -> tuple[Any, OuterRun]:
        return self._inner.new_workspace(), OuterRun(self._outer)

    def run(
        self, x: np.ndarray, w: Any, bias: np.ndarray | None, activation: str | None, y: np.ndarray,
        workspace: Any,
    ) -> None:  # fmt: skip
        (inner_workspace, outer), (filters, taps) = workspace, w
        self._inner.run(x, filters, None, None, y, inner_workspace)
        outer.add(x, taps, y)
        finish(y, bias, activation, self.problem)
