"""Algorithms of the CPU on maps extended by their border."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from convalgos.core.algorithm import Figures
from convalgos.core.allocator import aligned_empty
from convalgos.core.borders.bordered import Bordered
from convalgos.core.borders.extended import extended
from convalgos.core.epilogue import Activation, finish
from convalgos.core.errors import missing
from convalgos.core.integer_plan import IntegerFilter, IntegerPlan
from convalgos.core.plan import Plan, numpy_dtype
from convalgos.core.problem import ConvProblem
from convalgos.core.quantization import Quantization
from convalgos.cpu.borders.extension import Extension
from convalgos.cpu.borders.folding import Folding
from convalgos.cpu.borders.gradient_plans import AddedBorderPlan, FoldedPlan
from convalgos.cpu.borders.gradient_ways import TOLD, Way, folded_bytes, gradient_way, without_border
from convalgos.cpu.borders.outer_sums import OuterTables, outer_seconds
from convalgos.cpu.runtime.wrapping_plan import WrappingPlan

FOLDED = 4.0, 1.5  # times what a copy takes, to fold a gradient, channels first and last; Zen 4


@dataclass(frozen=True)
class CpuBordered(Bordered):
    """An algorithm of the CPU where something else than zeros lies beyond the edges."""

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(dict.fromkeys((*self.inner.needs, "llvmlite")))

    def why_not(self, problem: ConvProblem) -> str | None:
        return missing("llvmlite") or super().why_not(problem)

    def way(self, problem: ConvProblem) -> Way:
        return gradient_way(self.inner, problem)

    def alone(self, problem: ConvProblem) -> ConvProblem:
        """With zeros around the map, where what comes from beyond its edges is added to its gradient."""
        return without_border(problem) if self.way(problem) is Way.ADDED else super().alone(problem)

    def told_of_border(self, problem: ConvProblem) -> str:
        return TOLD.get(self.way(problem)) or super().told_of_border(problem)

    def copying(self, problem: ConvProblem, machine: Figures) -> float:
        way = self.way(problem)
        if way is Way.EXTENDED:
            folds = FOLDED[problem.layout == "channels_last"] if problem.direction == "backward_data" else 1.0
            return folds * super().copying(problem, machine)
        return 0.0 if way is Way.FOLDED else outer_seconds(problem, machine)

    def workspace_bytes(self, problem: ConvProblem) -> int:
        if problem.is_empty or (way := self.way(problem)) is Way.EXTENDED:
            return super().workspace_bytes(problem)
        if way is Way.FOLDED:
            return folded_bytes(self.inner, problem)
        return self.inner.workspace_bytes(self.alone(problem)) + OuterTables.of(problem).scratch_bytes

    def plan(self, problem: ConvProblem) -> Plan:
        if (way := self.way(problem)) is Way.FOLDED:
            return FoldedPlan(problem, self)
        inner = self.child_plan(self.alone(problem))
        if way is Way.ADDED:
            return AddedBorderPlan(problem, self, inner)
        kind = BorderedIntegerPlan if isinstance(inner, IntegerPlan) else BorderedPlan
        return kind(problem, self, inner)


class ExtendedMap:
    """An extended map in scratch, of one run at a time."""

    def __init__(self, problem: ConvProblem):
        alone = extended(problem).problem
        shape, dtype = alone.array_shape(alone.x_shape), numpy_dtype(problem.dtype)
        self.array = aligned_empty(int(np.prod(shape)), dtype).reshape(shape)
        folds = problem.direction == "backward_data"
        self._pass = Folding(problem, self.array) if folds else Extension(problem, self.array)

    def filled(self, x: np.ndarray) -> np.ndarray:
        """The map with its border."""
        self._pass(x)
        return self.array

    def fold(self, dx: np.ndarray) -> None:
        """The gradient of the map, of that in `array`."""
        self._pass(dx)


class BorderedPlan(WrappingPlan):
    def __init__(self, problem: ConvProblem, algorithm: CpuBordered, inner: Plan):
        super().__init__(problem, algorithm, inner)
        self._folds = problem.direction == "backward_data"

    def new_workspace(self) -> tuple[Any, ExtendedMap]:
        return self._inner.new_workspace(), ExtendedMap(self.problem)

    def run(
        self, x: np.ndarray, w: Any, bias: np.ndarray | None, activation: str | None, y: np.ndarray,
        workspace: Any,
    ) -> None:  # fmt: skip
        inner_workspace, around = workspace
        if not self._folds:
            self._inner.run(around.filled(x), w, bias, activation, y, inner_workspace)
            return
        self._inner.run(x, w, None, None, around.array, inner_workspace)
        around.fold(y)
        finish(y, bias, activation, self.problem)

    def run_finished(
        self, x: np.ndarray, w: Any, bias: Any, residual: Any, activation: Activation | None, y: np.ndarray,
        workspace: Any,
    ) -> None:  # fmt: skip
        if self._folds:
            super().run_finished(x, w, bias, residual, activation, y, workspace)
            return
        inner_workspace, around = workspace
        self._inner.run_finished(around.filled(x), w, bias, residual, activation, y, inner_workspace)


class BorderedIntegerPlan(IntegerPlan):
    def __init__(self, problem: ConvProblem, algorithm: CpuBordered, inner: IntegerPlan):
        super().__init__(problem, algorithm, algorithm.workspace_bytes(problem))
        self._inner = inner

    def new_workspace(self) -> tuple[Any, ExtendedMap]:
        return self._inner.new_workspace(), ExtendedMap(self.problem)

    def pack(self, w: np.ndarray, w_zero_point: np.ndarray | None) -> Any:
        return self._inner.pack(w, w_zero_point)

    def _integer_filter(self, w: np.ndarray, quantization: Quantization) -> IntegerFilter:
        return self._inner._integer_filter(w, quantization)

    def run(
        self, x: np.ndarray, w: IntegerFilter, bias: np.ndarray | None, activation: Any, y: np.ndarray,
        workspace: Any,
    ) -> None:  # fmt: skip
        inner_workspace, around = workspace
        self._inner.run(around.filled(x), w, bias, activation, y, inner_workspace)

    def run_integers(self, x: np.ndarray, w: IntegerFilter, y: np.ndarray, workspace: Any) -> None:
        inner_workspace, around = workspace
        self._inner.run_integers(around.filled(x), w, y, inner_workspace)
