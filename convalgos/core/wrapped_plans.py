"""Plans that `Algorithm.serve` makes around, or in the place of, those of an algorithm itself.

They convert data of 16 and 8 bits, read arrays in other shapes where that is the same memory, and answer
problems that have nothing to sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from convalgos.core.allocator import aligned_empty
from convalgos.core.bound_run import BoundRun
from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.epilogue import Activation, ActivationLike, finish
from convalgos.core.errors import Unsupported
from convalgos.core.machine import Machine
from convalgos.core.plan import Named, Plan, QuickCall
from convalgos.core.prepared_filter import FilterForm, PreparedFilter
from convalgos.core.problem import ConvProblem

CONVERSION, CONVERSION_SHARED = 1.5e-6, 5.5e-6  # seconds to begin one, alone and on all threads,
SHARED = 1 << 12  # which are asked from so many elements on,
CONVERTED = 6.5e9  # and elements that a thread then converts in a second; Xeon (Granite Rapids)


class EmptyPlan(Plan):
    """A problem with a zero-sized dimension: y is empty, or every element is an empty sum plus the bias."""

    def prepare_filter(self, w: np.ndarray) -> None:
        return None

    def run(
        self, x: np.ndarray, w: None, bias: np.ndarray | None, activation: str | None, y: np.ndarray,
        workspace: None,
    ) -> None:  # fmt: skip
        y.fill(0)
        finish(y, bias, activation, self.problem)


class CastPlan(Plan):
    """Data of 16 or 8 bits around a plan of float32: x and w are widened first, y is rounded last."""

    def __init__(self, problem: ConvProblem, algorithm: Named, inner: Plan):
        super().__init__(problem, algorithm, inner.workspace_bytes + self.converted_bytes(problem))
        self._inner = inner

    @property
    def computing(self) -> Plan:
        return self._inner.computing

    @staticmethod
    def converted_bytes(problem: ConvProblem) -> int:
        """Bytes of the float32 copies of what is read first, and of what is written in 16 bits."""
        first, _, result = problem.array_shapes
        return 4 * (math.prod(first) + math.prod(result) * (problem.y_dtype != "float32"))

    @staticmethod
    def converting_seconds(problem: ConvProblem, machine: Machine) -> float:
        """Predicted time to widen what is read first, and to round what is written in 16 bits, on the CPU."""
        first, _, result = problem.array_shapes
        arrays = [first] if problem.y_dtype == "float32" else [first, result]
        counts = [math.prod(shape) for shape in arrays]
        begun = sum(CONVERSION if count < SHARED else CONVERSION_SHARED for count in counts)
        return begun + sum(counts) / (CONVERTED * machine.threads)

    def filter_form(self) -> FilterForm:
        return FilterForm.of(self.problem, self._inner.filter_form())

    def prepare_filter(self, w: np.ndarray) -> Any:
        return self._inner.prepare_filter(self._wide(w, np.empty(w.shape, np.float32)))

    def new_workspace(self) -> tuple[Any, ...]:
        """(workspace of the plan, x or dy in float32, y or its gradient in float32 where it is not)."""
        wide_y = self._y_shape if self._y_dtype != np.float32 else (0,)
        made = (
            aligned_empty(math.prod(shape), np.float32).reshape(shape) for shape in (self._x_shape, wide_y)
        )
        return self._inner.new_workspace(), *made

    def run(
        self, x: np.ndarray, w: Any, bias: np.ndarray | None, activation: str | None, y: np.ndarray,
        workspace: tuple[Any, ...],
    ) -> None:  # fmt: skip
        inner_workspace, wide_x, wide_y = workspace
        bias = None if bias is None else bias.astype(np.float32)
        result = y if y.dtype == np.float32 else wide_y
        self._inner.run(self._wide(x, wide_x), w, bias, activation, result, inner_workspace)
        if result is not y:
            self._inner.convert(wide_y, y)

    def add_and_activate(self, y: Any, residual: Any, activation: Activation | None) -> None:
        self._inner.add_and_activate(y, residual, activation)

    def _wide(self, array: np.ndarray, wide: np.ndarray) -> np.ndarray:
        self._inner.convert(array, wide)
        return wide


def _reread(name: str, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The same memory in another shape."""
    view = array.reshape(shape)
    if not np.may_share_memory(view, array):
        raise Unsupported(f"{name} has strides {array.strides}, but is read as {shape}, as a whole array")
    return view


class RereadPlan(Plan):
    """A plan for another problem of the same memory: arrays are only reshaped."""

    def __init__(self, problem: ConvProblem, algorithm: Named, inner: Plan):
        super().__init__(problem, algorithm, inner.workspace_bytes)
        self._inner = inner
        self._shapes = inner.problem.array_shapes
        self._where = inner._where
        self.scratch_bytes, self.strided_batch = inner.scratch_bytes, inner.strided_batch

    @property
    def computing(self) -> Plan:
        return self._inner.computing

    def filter_form(self) -> FilterForm:
        return FilterForm.of(self.problem, self._inner.filter_form())

    @cached_attribute
    def _quick(self) -> QuickCall | None:  # type: ignore[override]
        return self._inner.quick_call(self.problem)

    def prepare_filter(self, w: np.ndarray) -> Any:
        return self._inner.prepare_filter(w.reshape(self._shapes[1]))

    def new_workspace(self) -> Any:
        return self._inner.new_workspace()

    def convert(self, source: np.ndarray, target: np.ndarray) -> None:
        self._inner.convert(source, target)

    def run_finished(
        self, x: np.ndarray, w: Any, bias: Any, residual: Any, activation: Activation | None, y: np.ndarray,
        workspace: Any,
    ) -> None:  # fmt: skip
        first, _, result = self._shapes
        residual = None if residual is None else residual.reshape(result)
        self._inner.run_finished(
            x.reshape(first), w, bias, residual, activation, y.reshape(result), workspace
        )

    def bind(
        self, x: np.ndarray, w: ArrayLike | PreparedFilter, y: np.ndarray, bias: np.ndarray | None = None,
        activation: ActivationLike = None, residual: np.ndarray | None = None,
        scratch: np.ndarray | None = None,
    ) -> BoundRun:  # fmt: skip
        self._check_bound(x, y, residual)
        w = self._own_filter(w)
        first, _, result = self._shapes
        if residual is not None:
            residual = _reread("residual", residual, result)
        x, y = _reread("x", x, first), _reread("y", y, result)
        return self._inner.bind(
            x, PreparedFilter(self._inner._key, w.data, w.read), y, bias, activation, residual, scratch
        )

    def bound_again(
        self, settings: Any, x: Sequence[int], y: Sequence[int], scratch: int, told: bool
    ) -> BoundRun | None:
        return self._inner.bound_again(settings, x, y, scratch, told)

    def run(
        self, x: np.ndarray, w: Any, bias: np.ndarray | None, activation: str | None, y: np.ndarray,
        workspace: Any,
    ) -> None:  # fmt: skip
        first, _, result = self._shapes
        self._inner.run(x.reshape(first), w, bias, activation, y.reshape(result), workspace)
