"""Plans of 8-bit integers on a GPU: filters in signed terms, and zero points and scales for kernels.

Most kernels multiply int8 alone. Of unsigned x they flip the highest bit, which takes 128 from every element
and from its zero point. A filter less its zero points need not fit 8 bits: it is then the sum of two or three
terms that do, over which the kernels sum up as over further taps. So w's zero points cost nothing where they
are 0, or 128 of unsigned elements.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from convalgos.core.epilogue import RELU, Activation
from convalgos.core.integer_plan import PLAIN
from convalgos.core.prepared_filter import PreparedFilter
from convalgos.core.problem import ConvProblem
from convalgos.core.quantization import Quantization
from convalgos.gpu.launch.fallback import GpuFilter
from convalgos.gpu.launch.kernel_records import POINTERS, quantized_record
from convalgos.gpu.launch.plan import GpuPlan

NO_KERNELS = "an empty problem has no kernels to record"
OUTPUTS = {"int32": 0, "float32": 1, "int8": 2, "uint8": 2}  # as kernels know types of y


@dataclass(frozen=True)
class QuantizedFilter:
    """A filter in the form of a plan, and the arrays on the device that the records for kernels point to."""

    packed: Any  # what `IntegerGpuPlan.pack` made
    quantization: Quantization
    offset: Any  # int32 (K,)
    multiplier: Any  # float32 (K,)
    pads: Any  # (16,) padding
    patterns: Any = None  # of signs: (pixels of an image,) int32, which row of `borders` is added to sums
    borders: Any = None  # (rows, K) int32
    records: dict[Any, Any] = field(default_factory=dict)


class IntegerSumsPlan(GpuPlan):
    """A plan whose kernels sum up in int32 and end with the output step. Filters are `QuantizedFilter`s."""

    flips: ClassVar[bool] = True  # the highest bit of unsigned x, for kernels that multiply int8 alone

    @property
    def _flipped(self) -> bool:
        return self.flips and self.problem.dtype == "uint8"

    def record(self, w: QuantizedFilter, activation: Any, problem: ConvProblem | None = None) -> Any:
        """What kernels take by value.

        Args:
            activation: None, an `Activation`, or "relu" for that which the kernels were built with.
            problem: whose sizes it has, where these are not the plan's.
        """
        key = activation, problem
        if key not in w.records:
            w.records[key] = self.by_value(self._record(w, activation, problem or self.problem))
        return w.records[key]

    def _record(self, w: QuantizedFilter, activation: Any, problem: ConvProblem) -> np.ndarray:
        given = w.quantization
        step = given.output(self.problem, activation if isinstance(activation, Activation) else None)
        limits = {} if step is None else {n: getattr(step, n) for n in ("before", "low", "high", "after")}
        return quantized_record(
            problem,
            relu=activation is not None,
            **{name: self._address(getattr(w, name)) for name in POINTERS},
            filler=(int(given.x_zero_point) & 0xFF) * 0x01010101,
            flip=0x80808080 if self._flipped else 0,
            output=OUTPUTS[self.problem.y_dtype],
            **limits,
        )

    def _address(self, array: Any) -> int:
        return 0 if array is None else self.device.address(array)

    # --- the output step ---------------------------------------------------------------------

    def _check_output_step(self, bias: Any, activation: Any, residual: Any) -> None:
        super()._check_output_step(bias, activation, residual)
        if residual is not None:
            raise ValueError(f"residual={type(residual).__name__} must be None in a problem of integers")
        if self.problem.y_dtype != "float32":
            PLAIN.output(self.problem, activation)  # which refuses what is no limit

    def _compute(self, x: Any, w: Any, bias: Any, activation: Any, residual: Any, y: Any) -> None:
        if self.problem.y_dtype == "float32" and activation not in (None, RELU):
            super()._compute(x, w, bias, activation, residual, y)  # built into the kernels
        else:
            self.run(x, w, bias, activation, y, self.workspace())


class IntegerGpuPlan(IntegerSumsPlan):
    """A plan of integers. Subclasses implement `pack` and `run`, whose w is a `QuantizedFilter`."""

    @abstractmethod
    def pack(self, terms: Sequence[Any]) -> Any:
        """The filter as the kernels read it, from int8 arrays (K, C/groups, *kernel) whose sum it is."""

    def prepare(self, w: Any, quantization: Quantization | None = None) -> PreparedFilter:
        checked = (quantization or PLAIN).checked(self.problem)
        with self.device.active(), self.device.stream_of(w):
            w = self.device.xp.array(self._checked(self._w_name, w, self._w_shape), order="C")
            return GpuFilter(self._key, self._quantized(self._turned(w), checked), None)

    def prepare_filter(self, w: Any) -> QuantizedFilter:
        return self._quantized(w, PLAIN)

    def _quantized(self, w: Any, quantization: Quantization) -> QuantizedFilter:
        p, table = self.problem, self.device.table
        zero_point = np.broadcast_to(np.asarray(quantization.w_zero_point, np.int32), p.K)
        wide = w.astype(np.int32)
        if zero_point.any():
            wide = wide - table(np.array(zero_point)).reshape(-1, *(1,) * (w.ndim - 1))
        of_w = wide.reshape(p.K, -1).sum(1, dtype=np.int64)
        x_zero_point = int(quantization.x_zero_point) - 128 * self._flipped
        step = quantization.output(p, None)
        multiplier = np.ones(p.K, np.float32) if step is None else step.multiplier
        terms = signed_terms(self.device.xp, wide, terms_needed(p.w_dtype, zero_point))
        return QuantizedFilter(
            self.pack(terms),
            quantization,
            (of_w * -x_zero_point).astype(np.int32),
            table(multiplier),
            table(np.full(16, quantization.x_zero_point, p.dtype)),
        )


class EmptySumsPlan(IntegerGpuPlan):
    """A problem with nothing to sum: every sum is the bias, whatever is beyond the border."""

    uncapturable = NO_KERNELS
    fuses = False

    def pack(self, terms: Sequence[Any]) -> None:
        return None

    def _quantized(self, w: Any, quantization: Quantization) -> QuantizedFilter:
        return QuantizedFilter(None, quantization, None, None, None)

    def run(self, x: Any, w: Any, bias: Any, activation: Any, y: Any, workspace: Any) -> None:
        p, xp = self.problem, self.device.xp
        channels = 1 if p.layout == "channels_first" else y.ndim - 1
        over = [1] * y.ndim
        over[channels] = p.K
        sums = xp.zeros(p.K, np.int32) if bias is None else bias
        wanted = RELU if activation == "relu" else activation
        step = w.quantization.output(p, wanted)
        if step is not None:
            y[...] = step.apply(sums.reshape(over), self._y_dtype, channels, xp)
        else:
            y[...] = sums.reshape(over) if wanted is None else xp.maximum(sums, 0).reshape(over)


def terms_needed(dtype: str, zero_point: np.ndarray) -> int:
    """How many int8 a filter of this type, less its zero points, is the sum of, whatever it holds."""
    limits = np.iinfo(dtype)
    low, high = limits.min - int(zero_point.max(initial=0)), limits.max - int(zero_point.min(initial=255))
    return max(-(low // 128), -(-high // 127), 1)


def signed_terms(xp: Any, wide: Any, count: int) -> list[Any]:
    """int8 arrays whose sum is an int32 array."""
    terms: list[Any] = []
    for _ in range(count):
        terms.append(xp.clip(wide, -128, 127).astype(np.int8))
        wide = wide - terms[-1]
    return terms
