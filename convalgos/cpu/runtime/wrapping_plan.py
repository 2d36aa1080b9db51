"""Plans that run a plan of another problem, and bring arrays into its form, or the answer out of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from convalgos.core.algorithm import Algorithm
from convalgos.core.plan import Plan
from convalgos.core.prepared_filter import FilterForm
from convalgos.core.problem import ConvProblem
from convalgos.cpu.runtime.array_pass import CompiledPass


class WrappingPlan(CompiledPass, Plan):
    """Its filters, scratch and conversions are those of the inner plan, where a subclass says no more."""

    def __init__(self, problem: ConvProblem, algorithm: Algorithm, inner: Plan):
        super().__init__(problem, algorithm, algorithm.workspace_bytes(problem))
        self._inner: Any = inner
        self._where = inner._where

    def filter_form(self) -> FilterForm | ConvProblem:
        return FilterForm.of(self.problem, self._inner.filter_form())

    def prepare_filter(self, w: np.ndarray) -> Any:
        return self._inner.prepare_filter(w)

    def new_workspace(self) -> Any:
        return self._inner.new_workspace()

    def convert(self, source: np.ndarray, target: np.ndarray) -> None:
        self._inner.convert(source, target)
