"""Plans of problems of integers: what is known of scales and zero points is made ready with the filter."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from convalgos.core import epilogue
from convalgos.core.bound_run import BoundRun, checked_scratch
from convalgos.core.epilogue import Activation, ActivationLike
from convalgos.core.laid_arrays import as_laid
from convalgos.core.plan import Named, Plan, flipped
from convalgos.core.prepared_filter import PreparedFilter
from convalgos.core.problem import ConvProblem
from convalgos.core.quantization import OutputStep, Quantization

PLAIN = Quantization()


class IntegerFilter(NamedTuple):
    """A filter as kernels of integers read it."""

    packed: Any  # what `IntegerPlan.pack` made
    pad: int  # x's zero point: what padding holds
    offset: np.ndarray  # int32 (K,), added to the sums
    w_zero_point: np.ndarray | None  # int32 (K,), times the sum of a window of x: subtracted
    output: OutputStep | None  # of this call; None where y is the sums
    steps: dict[Activation | None, OutputStep | None]  # those that were asked for
    quantization: Quantization
    ready: dict[Activation | None, Any]  # what a plan's calls keep of them

    def activated(
        self, problem: ConvProblem, activation: Activation | None, bias: np.ndarray | None = None
    ) -> IntegerFilter:
        """With the output step of an activation, and a bias (K,) of int32 added to the sums."""
        if activation not in self.steps:
            self.steps[activation] = self.quantization.output(problem, activation)
        offset = self.offset if bias is None else self.offset + bias
        return self._replace(output=self.steps[activation], offset=offset)


def from_zero_point(w: np.ndarray, zero_point: np.ndarray | None, dtype: type) -> np.ndarray:
    """A filter (K, ...) in a type that holds what it is beyond the zero point (K,) of each."""
    wide: np.ndarray = w.astype(dtype)
    if zero_point is not None:
        wide -= zero_point.reshape(-1, *(1,) * (w.ndim - 1))
    return wide


class IntegerPlan(Plan):
    """A plan of integers. Subclasses implement `pack` and `run_integers`."""

    # --- for the implementor -----------------------------------------------------------------

    @abstractmethod
    def pack(self, w: np.ndarray, w_zero_point: np.ndarray | None) -> Any:
        """The filter (K, C/groups, *kernel), `as_laid` and flipped already, as the kernels read it.

        w_zero_point: int32 (K,), or None; kernels that subtract it from the filter itself do so here.
        """

    @abstractmethod
    def run_integers(self, x: np.ndarray, w: IntegerFilter, y: np.ndarray, workspace: Any) -> None:
        """Write all of y: sums x * w over windows padded with `w.pad`, `w.offset` and the zero point's part,
        then the output step.

        x, y: `as_laid`, in the problem's layout. `w.offset` has the bias in it, `w.output` the activation.
        """

    def bind_integers(
        self, x: np.ndarray, w: IntegerFilter, y: np.ndarray, scratch: np.ndarray | None
    ) -> BoundRun | None:
        """`run_integers` on these very arrays, again and again; None where there is nothing to gain.

        scratch: `scratch_bytes` on a cache line, that hold anything, or None.
        """
        return None

    def filter_sums(self, w: np.ndarray) -> np.ndarray:
        """The sums of the filters' elements, (K,). w: (K, C/groups, *kernel)."""
        sums: np.ndarray = w.sum(tuple(range(1, w.ndim)), dtype=np.int64)
        return sums

    # --- a call ------------------------------------------------------------------------------

    def filter_form(self) -> ConvProblem:
        """Sums of filters, which padding changes, are part of what is prepared."""
        return self.problem

    def prepare_filter(self, w: np.ndarray) -> IntegerFilter:
        return self._integer_filter(w, PLAIN)

    def run(
        self, x: np.ndarray, w: IntegerFilter, bias: np.ndarray | None, activation: Any, y: np.ndarray,
        workspace: Any,
    ) -> None:  # fmt: skip
        """activation: None, or an `Activation`, as `_output_step` hands it on."""
        if bias is not None or activation is not None:
            w = w.activated(self.problem, activation, bias)
        self.run_integers(x, w, y, workspace)
        if activation is not None and w.output is None:
            np.maximum(y, 0, out=y)

    def bind(
        self, x: np.ndarray, w: ArrayLike | PreparedFilter, y: np.ndarray, bias: np.ndarray | None = None,
        activation: ActivationLike = None, residual: np.ndarray | None = None,
        scratch: np.ndarray | None = None,
    ) -> BoundRun:  # fmt: skip
        self._check_bound(x, y, residual)
        added, fused, _, rest = self._output_step(bias, activation, residual)
        own = self._own_filter(w)
        if rest is None and (fused is None or self.problem.y_dtype != "int32"):
            given = own.data.activated(self.problem, fused, added)
            bound = self.bind_integers(x, given, y, checked_scratch(scratch, self.scratch_bytes or 0))
            if bound is not None:
                return bound
        return super().bind(x, own, y, bias, activation, residual, scratch)

    def _output_step(
        self, bias: Any, activation: ActivationLike, residual: Any
    ) -> tuple[np.ndarray | None, Any, None, Activation | None]:
        if residual is not None:
            raise ValueError(f"residual={type(residual).__name__} must be None in a problem of integers")
        bias, _, _, _ = super()._output_step(bias, None, None)
        wanted = epilogue.activation_of(activation)
        if self.problem.y_dtype == "float32" and wanted not in (None, epilogue.RELU):
            return bias, None, None, wanted
        return bias, wanted, None, None

    def _in_own_form(self, w: np.ndarray, quantization: Quantization | None = None) -> PreparedFilter:
        checked = (quantization or PLAIN).checked(self.problem)
        w = flipped(w) if self._flips else w
        return PreparedFilter(self._key, self._integer_filter(as_laid(w), checked))

    def _integer_filter(self, w: np.ndarray, quantization: Quantization) -> IntegerFilter:
        p, zero_point = self.problem, quantization.w_zero_points(self.problem)
        pad, packed = int(quantization.x_zero_point), self.pack(w, zero_point)
        offset = quantization.offset(p, self.filter_sums(w)) if pad else np.zeros(p.K, np.int32)
        output = quantization.output(p, None)
        return IntegerFilter(packed, pad, offset, zero_point, output, {None: output}, quantization, {})


class RereadIntegerPlan(IntegerPlan):
    """A plan for another problem of the same memory: arrays are only reshaped."""

    def __init__(self, problem: ConvProblem, algorithm: Named, inner: IntegerPlan):
        super().__init__(problem, algorithm, inner.workspace_bytes)
        self._inner = inner
        self._shapes = inner.problem.array_shapes
        self._quick, self._where = inner.quick_call(problem), inner._where

    def new_workspace(self) -> Any:
        return self._inner.new_workspace()

    def pack(self, w: np.ndarray, w_zero_point: np.ndarray | None) -> Any:
        return self._inner.pack(w.reshape(self._shapes[1]), w_zero_point)

    def run(
        self, x: np.ndarray, w: IntegerFilter, bias: np.ndarray | None, activation: Any, y: np.ndarray,
        workspace: Any,
    ) -> None:  # fmt: skip
        first, _, result = self._shapes
        self._inner.run(x.reshape(first), w, bias, activation, y.reshape(result), workspace)

    def run_integers(self, x: np.ndarray, w: IntegerFilter, y: np.ndarray, workspace: Any) -> None:
        first, _, result = self._shapes
        self._inner.run_integers(x.reshape(first), w, y.reshape(result), workspace)


class EmptyIntegerPlan(IntegerPlan):
    """A problem with nothing to sum: every sum is the bias."""

    def pack(self, w: np.ndarray, w_zero_point: np.ndarray | None) -> None:
        return None

    def run_integers(self, x: np.ndarray, w: IntegerFilter, y: np.ndarray, workspace: None) -> None:
        finish_sums(np.zeros(y.shape, np.int32), w, y, self.problem)

    def _integer_filter(self, w: np.ndarray, quantization: Quantization) -> IntegerFilter:
        made = super()._integer_filter(w, quantization)
        return made._replace(offset=np.zeros_like(made.offset))  # windows of padding only sum up to nothing


def finish_sums(sums: np.ndarray, w: IntegerFilter, y: np.ndarray, problem: ConvProblem) -> None:
    """The output step in NumPy: y of int32 sums, in y's order, to which the offset is still to be added."""
    channels = 1 if problem.layout == "channels_first" else y.ndim - 1
    over = [1] * y.ndim
    over[channels] = -1
    sums = sums + w.offset.reshape(over)
    y[...] = sums if w.output is None else w.output.apply(sums, y.dtype, channels)
