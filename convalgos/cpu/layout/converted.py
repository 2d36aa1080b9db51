"""An algorithm of the CPU in another number format than the problem's, behind a conversion of x.

Floats of 32 bits are computed as bfloat16 or float16, with float32 sums and y; or as integers of 8 bits: x
over its own range in each call, the filter over that of each of its filters. The errors of the formats are
stated for well-scaled data; only a choice that was given `precisions` looks here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any, ClassVar

import numpy as np

from convalgos.core.algorithm import Algorithm
from convalgos.core.allocator import aligned_empty
from convalgos.core.element_types import EXPLICIT_BITS, ITEM_BYTES
from convalgos.core.epilogue import finish
from convalgos.core.integer_plan import IntegerFilter
from convalgos.core.machine import Machine
from convalgos.core.plan import Plan, numpy_dtype
from convalgos.core.problem import ConvProblem
from convalgos.core.quantization import OutputStep
from convalgos.cpu.runtime import half, quantise
from convalgos.cpu.runtime.wrapping_plan import WrappingPlan

NAME = "as_"  # the last word of the ids begins so
SIGMAS = 6  # standard deviations of the largest of 10^8 errors
LARGEST = 2.0**30  # of a bias in units of the sums
W_LEVELS = 127  # of a filter, on either side of 0


@lru_cache(256)
def converted_problem(problem: ConvProblem, precision: str) -> ConvProblem:
    """The problem of what is computed in the place of a float32 one."""
    if precision == "int8":
        return problem.replace(dtype="uint8", w_dtype="int8", y_dtype="float32", scales="per_channel")
    return problem.replace(dtype=precision, y_dtype="float32")


def format_error(problem: ConvProblem, precision: str) -> float:
    """What rounding x and w to a format adds to the error of y, for data that are normally distributed.

    Each product errs by both roundings; k of them add up as a random walk, as the products themselves do. So
    the error of a sum over its usual size is that of one product, whatever k is. The bound is relative to the
    largest of the sums, which of many is a multiple of their usual size.
    """
    if precision == "int8":
        of_x = 2 * _largest(math.prod(problem.x_shape)) / quantise.LEVELS
        of_w = _largest(problem.gemm_k) / W_LEVELS
    else:
        # a step of numbers from 1 to 2, of which there are as many in each part of their logarithm
        of_x = of_w = 0.74 * 2.0 ** -EXPLICIT_BITS[precision]
    error = math.hypot(of_x, of_w) / math.sqrt(12)  # standard deviation, of even errors within a step
    return SIGMAS * error / _least_largest(math.prod(problem.y_shape))


def _largest(count: int) -> float:
    """Standard deviations that the largest of so many normal numbers is away, about."""
    return math.sqrt(2 * math.log(max(2, count))) + 0.5


def _least_largest(count: int) -> float:
    """Standard deviations that the largest of so many normal numbers is away but once in a million times."""
    within = 10 ** (-6 / max(1, count))  # the chance of each to be nearer
    return max(1.0, NormalDist().inv_cdf((1 + within) / 2)) if within < 1 else SIGMAS


@dataclass(frozen=True)
class Converted(Algorithm):
    """`inner`, which computes the problem's twin in another format."""

    inner: Algorithm
    precision: str
    dtypes: ClassVar[tuple[str, ...]] = ("float32",)

    @property
    def family(self) -> str:  # type: ignore[override]
        return self.inner.family

    @property
    def variant(self) -> str:
        return ".".join(filter(None, (self.inner.variant, NAME + self.precision)))

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        more = ("ml_dtypes",) if self.precision == "bfloat16" else ()
        return tuple(dict.fromkeys((*self.inner.needs, "llvmlite", *more)))

    @property
    def spreads_nan(self) -> bool:  # type: ignore[override]
        """A NaN or an infinity leaves no range to quantise over: all of y is NaN."""
        return self.inner.spreads_nan or self.precision == "int8"

    @property
    def equal_bits(self) -> bool:  # type: ignore[override]
        return self.inner.equal_bits

    @property
    def approximates(self) -> bool:  # type: ignore[override]
        return self.inner.approximates

    def twin(self, problem: ConvProblem) -> ConvProblem:
        """What `inner` computes."""
        return self.inner.computed(converted_problem(problem, self.precision))

    def why_not(self, problem: ConvProblem) -> str | None:
        return super().why_not(problem) or self.inner.why_not(self.twin(problem))

    def cost(self, problem: ConvProblem, machine: Machine) -> float:
        written = math.prod(problem.x_shape) * ITEM_BYTES[self.twin(problem).dtype]
        passes = 2 if self.precision == "int8" else 1
        moved = machine.launch * passes + machine.stream(passes * problem.x_bytes + written)
        return moved + self.inner.cost(self.twin(problem), machine)

    def prepare_cost(self, problem: ConvProblem, machine: Machine) -> float:
        return super().prepare_cost(problem, machine) + self.inner.prepare_cost(self.twin(problem), machine)

    def filter_bytes(self, problem: ConvProblem) -> int:
        return self.inner.filter_bytes(self.twin(problem))

    def workspace_bytes(self, problem: ConvProblem) -> int:
        twin = self.twin(problem)
        return twin.x_bytes + self.inner.workspace_bytes(twin)

    def error_bound(self, problem: ConvProblem) -> float:
        return format_error(problem, self.precision) + self.inner.error_bound(self.twin(problem))

    def note(self, problem: ConvProblem) -> str:
        return f"in {self.precision}"

    def plan(self, problem: ConvProblem) -> Plan:
        kind = QuantisingPlan if self.precision == "int8" else RoundingPlan
        return kind(problem, self)


class ConvertedPlan(WrappingPlan):
    """x in another format, and the plan that computes it."""

    def __init__(self, problem: ConvProblem, algorithm: Converted):
        short = converted_problem(problem, algorithm.precision)
        super().__init__(problem, algorithm, algorithm.inner.serve(short))
        self._format = numpy_dtype(short.dtype)

    def new_workspace(self) -> tuple[Any, np.ndarray]:
        """(workspace of the plan, x in its format)."""
        short = aligned_empty(math.prod(self._x_shape), self._format).reshape(self._x_shape)
        return self._inner.new_workspace(), short


class RoundingPlan(ConvertedPlan):
    """x and w rounded to floats of 16 bits."""

    def prepare_filter(self, w: np.ndarray) -> Any:
        short = np.empty(w.shape, self._format)
        half.convert(w, short)
        return self._inner.prepare_filter(short)

    def run(
        self, x: np.ndarray, w: Any, bias: np.ndarray | None, activation: str | None, y: np.ndarray,
        workspace: tuple[Any, np.ndarray],
    ) -> None:  # fmt: skip
        scratch, short = workspace
        half.convert(x, short)
        self._inner.run(short, w, bias, activation, y, scratch)


class QuantisingPlan(ConvertedPlan):
    """x as uint8 over its range in this call, w as int8 over that of each filter."""

    def prepare_filter(self, w: np.ndarray) -> tuple[IntegerFilter, np.ndarray, np.ndarray]:
        """(w as the plan has it, scale of each filter, sum of each filter of integers)."""
        flat = w.reshape(self.problem.K, -1)  # (K, C/groups*R*S)
        scale = np.abs(flat).max(1, initial=0) / np.float32(W_LEVELS)
        scale[scale == 0] = 1
        with np.errstate(invalid="ignore"):  # a filter with NaN has a scale of NaN, and so have its outputs
            short = np.rint(flat / scale[:, None]).astype(np.int8)
        made = self._inner.prepare_filter(short.reshape(w.shape))
        return made, scale, short.sum(1, dtype=np.int32)

    def run(
        self, x: np.ndarray, w: tuple[IntegerFilter, np.ndarray, np.ndarray], bias: np.ndarray | None,
        activation: str | None, y: np.ndarray, workspace: tuple[Any, np.ndarray],
    ) -> None:  # fmt: skip
        (scratch, short), (filters, of_w, sums) = workspace, w
        found = quantise.quantise(x, short)
        if found is None:
            y.fill(np.nan)
            return
        multiplier = of_w * np.float32(found.scale)
        offset = -found.zero_point * sums
        in_units = None if bias is None else bias / multiplier
        late = in_units is not None and not bool((np.abs(in_units) < LARGEST).all())
        if in_units is not None and not late:
            offset = offset + np.rint(in_units).astype(np.int32)
        low = 0.0 if activation and not late else -np.inf
        step = OutputStep(multiplier, 0.0, low, np.inf, 0)
        filters = filters._replace(pad=found.zero_point, offset=offset, output=step)
        self._inner.run_integers(short, filters, y, scratch)
        if late:
            finish(y, bias, activation, self.problem)
