"""The reference: the definition of convolution in float64, written to be read.

It judges every other algorithm in every test, and never wins. `reference` sums whole planes, one kernel
element at a time; `reference_backward_data` and `reference_backward_weights` go the same way back.
`reference_at` sums single outputs, for problems too large to compute whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

import numpy as np

from convalgos.core.algorithm import Algorithm
from convalgos.core.boundaries import BOUNDARIES, folded, padded, source_indices, valid
from convalgos.core.element_types import INTEGERS
from convalgos.core.epilogue import finish
from convalgos.core.integer_plan import IntegerFilter, IntegerPlan, finish_sums, from_zero_point
from convalgos.core.layouts import LAYOUTS, laid
from convalgos.core.machine import Machine
from convalgos.core.plan import Plan, flipped
from convalgos.core.problem import DIRECTIONS, ConvProblem

CALL = 1e-4  # seconds of the NumPy calls for a kernel element of a group,
COPIED = 4e-9  # and to convert and pad an element of x or y, in memory that is new; Zen 5, Sapphire Rapids
BEYOND = {"float16": 65520.0, "bfloat16": 2.0**128 * (1 - 2.0**-9)}  # from here on values round to infinity


def reference(
    problem: ConvProblem, x: np.ndarray, w: np.ndarray, bias: np.ndarray | None = None
) -> np.ndarray:
    """y in float64, logical (N, K, *spatial_out), from logical x (N, C, *spatial) and w, unflipped."""
    p = problem
    if p.mode == "convolution":
        w = flipped(w)
    x = padded(p, x.astype(np.float64))  # (N, C, *padded)
    w = w.astype(np.float64)
    y = np.zeros((p.N, p.groups, p.gemm_n, *p.spatial_out))
    for g in range(p.groups):
        channels = x[:, g * p.w_shape[1] : (g + 1) * p.w_shape[1]]  # (N, C/g, *padded)
        filters = np.moveaxis(w[g * p.gemm_n : (g + 1) * p.gemm_n], (0, 1), (-2, -1))  # (*kernel, K/g, C/g)
        for tap in product(*map(range, p.kernel)):
            window = channels[:, :, *_window(p, tap)]  # (N, C/g, *spatial_out)
            weight = filters[tap]  # (K/g, C/g)
            y[:, g] += np.moveaxis(np.tensordot(weight, window, (1, 1)), 1, 0)
    y = y.reshape(p.y_shape)
    return y if bias is None else y + bias.reshape(-1, *(1,) * p.ndim)


def reference_backward_data(
    problem: ConvProblem, dy: np.ndarray, w: np.ndarray, bias: np.ndarray | None = None
) -> np.ndarray:
    """dx in float64, logical (N, C, *spatial), from logical dy (N, K, *spatial_out) and w, unflipped."""
    p = problem
    if p.mode == "convolution":
        w = flipped(w)
    w = w.astype(np.float64)
    dy = dy.astype(np.float64).reshape(p.N, p.groups, p.gemm_n, *p.spatial_out)
    sizes = tuple(size + low + high for size, (low, high) in zip(p.spatial, p.padding, strict=True))
    dx = np.zeros((p.N, p.C, *sizes))
    for g in range(p.groups):
        channels = dx[:, g * p.w_shape[1] : (g + 1) * p.w_shape[1]]  # (N, C/g, *padded)
        filters = np.moveaxis(w[g * p.gemm_n : (g + 1) * p.gemm_n], (0, 1), (-1, -2))  # (*kernel, C/g, K/g)
        for tap in product(*map(range, p.kernel)):
            window = channels[:, :, *_window(p, tap)]  # (N, C/g, *spatial_out)
            window += np.moveaxis(np.tensordot(filters[tap], dy[:, g], (1, 1)), 1, 0)
    dx = folded(p, dx)  # (N, C, *spatial)
    return dx if bias is None else dx + bias.reshape(-1, *(1,) * p.ndim)


def reference_backward_weights(problem: ConvProblem, x: np.ndarray, dy: np.ndarray) -> np.ndarray:
    """dw in float64 (K, C/groups, *kernel), from logical x (N, C, *spatial) and dy (N, K, *spatial_out)."""
    p = problem
    x = padded(p, x.astype(np.float64))  # (N, C, *padded)
    dy = dy.astype(np.float64).reshape(p.N, p.groups, p.gemm_n, *p.spatial_out)
    dw = np.zeros((*p.kernel, p.groups, p.gemm_n, p.w_shape[1]))
    summed = (0, *range(2, 2 + p.ndim))  # images and outputs
    for g in range(p.groups):
        channels = x[:, g * p.w_shape[1] : (g + 1) * p.w_shape[1]]  # (N, C/g, *padded)
        for tap in product(*map(range, p.kernel)):
            window = channels[:, :, *_window(p, tap)]  # (N, C/g, *spatial_out)
            dw[(*tap, g)] = np.tensordot(dy[:, g], window, (summed, summed))  # (K/g, C/g)
    dw = np.moveaxis(dw.reshape(*p.kernel, p.K, p.w_shape[1]), (-2, -1), (0, 1))
    return flipped(dw) if p.mode == "convolution" else dw


def reference_at(problem: ConvProblem, x: np.ndarray, w: np.ndarray, where: np.ndarray) -> np.ndarray:
    """y in float64 at single outputs; `where` is (count, 2 + ndim) of logical (n, k, *position)."""
    p = problem
    if p.mode == "convolution":
        w = flipped(w)
    y = np.zeros(len(where))
    for i, (n, k, *position) in enumerate(where.tolist()):
        first = k // p.gemm_n * p.w_shape[1]  # first input channel of the group of filter k
        inside_x, inside_w = [slice(first, first + p.w_shape[1])], [slice(None)]
        for at, size, r, step, d, (low, _) in zip(
            position, p.spatial, p.kernel, p.stride, p.dilation, p.padding, strict=True
        ):
            start = at * step - low  # the input element under kernel element 0
            t0 = max(0, -(start // d))  # kernel elements t0 to t1 meet the input, the others padding
            t1 = max(t0, min(r, (size - 1 - start) // d + 1))
            inside_x.append(slice(start + t0 * d, start + t1 * d, d))
            inside_w.append(slice(t0, t1))
        window = x[(n, *inside_x)].astype(np.float64)
        y[i] = np.sum(window * w[(k, *inside_w)].astype(np.float64))
    return y


def backward_data_at(problem: ConvProblem, dy: np.ndarray, w: np.ndarray, where: np.ndarray) -> np.ndarray:
    """dx in float64 at single places; `where` is (count, 2 + ndim) of logical (n, c, *position)."""
    p = problem
    if p.mode == "convolution":
        w = flipped(w)
    dx = np.zeros(len(where))
    for i, (n, c, *position) in enumerate(where.tolist()):
        group, channel = divmod(c, p.w_shape[1])
        filters = np.arange(group * p.gemm_n, (group + 1) * p.gemm_n)
        inside_w, inside_dy = [filters, [channel]], [[n], filters]
        for at, size, r, step, d, (low, _) in zip(
            position, p.spatial_out, p.kernel, p.stride, p.dilation, p.padding, strict=True
        ):
            taps = [t for t in range(r) if (at + low - t * d) % step == 0]
            taps = [t for t in taps if 0 <= at + low - t * d < size * step]
            inside_w.append(taps)
            inside_dy.append([(at + low - t * d) // step for t in taps])
        window = dy[np.ix_(*inside_dy)].astype(np.float64)[0]  # (K/g, *taps)
        dx[i] = np.sum(window * w[np.ix_(*inside_w)].astype(np.float64)[:, 0])
    return dx


def backward_weights_at(problem: ConvProblem, x: np.ndarray, dy: np.ndarray, where: np.ndarray) -> np.ndarray:
    """dw in float64 at single places; `where` is (count, 2 + ndim) of (k, c, *tap)."""
    p = problem
    dw = np.zeros(len(where))
    for i, (k, c, *tap) in enumerate(where.tolist()):
        if p.mode == "convolution":
            tap = [r - 1 - t for r, t in zip(p.kernel, tap, strict=True)]
        channel = k // p.gemm_n * p.w_shape[1] + c
        inside_x, inside_dy = [slice(None), channel], [slice(None), k]
        for t, size, out, step, d, (low, _) in zip(
            tap, p.spatial, p.spatial_out, p.stride, p.dilation, p.padding, strict=True
        ):
            start = t * d - low  # the input element of this tap under output 0
            first = max(0, -(start // step))  # outputs first to end meet the input, the others padding
            end = max(first, min(out, (size - 1 - start) // step + 1))
            inside_x.append(
                slice(start + first * step, start + (end - 1) * step + 1 if end > first else 0, step)
            )
            inside_dy.append(slice(first, end))
        if all(s.stop > s.start for s in inside_dy[2:]):
            dw[i] = np.sum(x[*inside_x].astype(np.float64) * dy[*inside_dy].astype(np.float64))
    return dw


def answer(problem: ConvProblem, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The float64 answer in any direction, from logical arrays in the order of `problem.arrays`."""
    return _WHOLE[problem.direction](problem, first, second)


def answer_at(problem: ConvProblem, first: np.ndarray, second: np.ndarray, where: np.ndarray) -> np.ndarray:
    """`answer` at single places of the result."""
    at = _AT[problem.direction]
    if problem.is_zero_padded:
        return at(problem, first, second, where)
    if problem.direction != "backward_data":
        return at(valid(problem), padded(problem, first), second, where)
    dx = np.zeros(len(where))
    for i, (n, c, *position) in enumerate(where.tolist()):
        axes = zip(position, problem.boundary, problem.spatial, problem.padding, strict=True)
        copies = [np.flatnonzero(source_indices(name, size, *pads) == at) for at, name, size, pads in axes]
        places = np.array([(n, c, *place) for place in product(*copies)])  # of one element in the padded map
        dx[i] = backward_data_at(valid(problem), first, second, places).sum()
    return dx


def deviation(dtype: str, found: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """|found - exact| in float64; NaN where something is not a number.

    Infinity counts as the least value that a type of 16 bits rounds to it, and so does what lies beyond.
    """
    found = np.asarray(found, np.float64)
    if beyond := BEYOND.get(dtype):
        found, exact = np.clip(found, -beyond, beyond), np.clip(exact, -beyond, beyond)
    deviations: np.ndarray = np.abs(found - exact)
    return deviations


def error_scale(problem: ConvProblem, first: np.ndarray, second: np.ndarray, y: np.ndarray) -> float:
    """What errors of a result are relative to, and `Algorithm.error_bound` bounds: the size of its sums.

    max|y|, or where that is larger the root mean square of sums of as many products of such data. Products
    are rounded at their own size: where there are few outputs they may all be small by accident, as terms
    cancel or ReLU makes all of them zero, and no bound relative to max|y| alone could hold.

    Args:
        first, second: what the problem reads, as `answer` takes it.
        y: the float64 answer, with its bias and before ReLU.
    """
    if problem.is_empty:
        return float(np.abs(y).max(initial=0))
    squares = 1.0  # of the elements, in the mean
    for array in (first, second):
        axes = range(array.ndim)
        squares *= np.einsum(array, axes, array, axes, (), dtype=np.float64) / array.size
    return max(math.sqrt(problem.reduction * squares), float(np.abs(y).max(initial=0)))


_WHOLE: dict[str, Callable[..., np.ndarray]] = {
    "forward": reference,
    "backward_data": reference_backward_data,
    "backward_weights": reference_backward_weights,
}
_AT: dict[str, Callable[..., np.ndarray]] = {
    "forward": reference_at,
    "backward_data": backward_data_at,
    "backward_weights": backward_weights_at,
}


def _window(p: ConvProblem, tap: tuple[int, ...]) -> tuple[slice, ...]:
    """Where kernel element `tap` meets the padded input, for every output."""
    return tuple(
        slice(t * d, t * d + (size - 1) * step + 1 if size else t * d, step)
        for t, d, step, size in zip(tap, p.dilation, p.stride, p.spatial_out, strict=True)
    )


@dataclass(frozen=True)
class Reference(Algorithm):
    family: ClassVar[str] = "cpu.reference"
    reads = writes = LAYOUTS
    boundaries = BOUNDARIES
    mixes_layouts = True
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "float64", "int8", "uint8", "binary")
    directions: ClassVar[tuple[str, ...]] = DIRECTIONS
    needs: ClassVar[tuple[str, ...]] = ()
    equal_bits: ClassVar[bool] = False  # NumPy's BLAS sums what lies at an edge in another order

    def least(self, problem: ConvProblem, machine: Machine) -> float:
        # a hundredth of the peak, and copies of whole arrays, also where a stride passes most of them over
        elements = math.prod(problem.x_shape) + math.prod(problem.y_shape)
        return 100 * problem.flops / machine.peak("float64") + COPIED * elements

    def cost(self, problem: ConvProblem, machine: Machine) -> float:
        taps = problem.gemm_k // max(1, problem.w_shape[1]) * problem.groups
        return self.least(problem, machine) + CALL * taps

    def workspace_bytes(self, problem: ConvProblem) -> int:
        return 8 * (math.prod(problem.x_shape) + 2 * math.prod(problem.y_shape))

    def error_bound(self, problem: ConvProblem) -> float:
        if problem.sums_integers:
            return 2 * problem.eps  # of the output step, in float32
        sums = 2.0**-52 * math.sqrt(max(1, problem.reduction))  # in float64, in any order
        return 2 * problem.eps + sums  # and one rounding at the end

    def plan(self, problem: ConvProblem) -> Plan:
        kind = IntegerReferencePlan if problem.dtype in INTEGERS else ReferencePlan
        return kind(problem, self, self.workspace_bytes(problem))


class ReferencePlan(Plan):
    def prepare_filter(self, w: np.ndarray) -> Any:
        return w.copy()

    def run(
        self, x: np.ndarray, w: Any, bias: np.ndarray | None, activation: str | None, y: np.ndarray,
        workspace: Any,
    ) -> None:  # fmt: skip
        p = self.problem.replace(mode="cross_correlation")  # w is flipped already
        with np.errstate(over="ignore"):  # beyond the type lies infinity
            exact = answer(p, p.logical(0, x), p.logical(1, w))
            if p.direction == "backward_weights":
                y[...] = exact
                return
            y[...] = laid(exact, p.layout if p.direction == "backward_data" else p.y_layout)
        finish(y, bias, activation, p)


class IntegerReferencePlan(IntegerPlan):
    """Sums of up to 2**53 are exact in float64; they are wrapped to int32, as sums in int32 are."""

    def pack(self, w: np.ndarray, w_zero_point: np.ndarray | None) -> np.ndarray:
        return from_zero_point(w, w_zero_point, np.float64)

    def run_integers(self, x: np.ndarray, w: IntegerFilter, y: np.ndarray, workspace: Any) -> None:
        p = self.problem.replace(mode="cross_correlation")  # w is flipped already
        p = p.with_valid(fill_value=p.fill_value - w.pad)  # as x below
        x = p.logical(0, x).astype(np.float64) - w.pad  # (N, C, *spatial), padding is 0
        lifted = w.pad * w.packed.sum(tuple(range(1, p.ndim + 2)))  # (K,): what `pad` in the place of 0 adds
        exact = reference(p, x, w.packed, lifted)  # (N, K, *spatial_out)
        sums = exact.astype(np.int64).astype(np.int32)
        finish_sums(laid(sums, p.y_layout), w, y, p)


ALGORITHMS = (Reference(),)
