"""Depthwise convolution by filters whose weights are all alike: sums of windows of any size, once weighted.

Windows of a few rows are summed row by row; more rows by blocks, of which each begins with the end of one and
ends with the begin of the next (van Herk). Along the row, windows are made of windows. So the cost of an
output hardly depends on the size of the kernel, and as nothing is ever subtracted, sums do not drift however
long a row is, as running sums do. Both passes are over rows in the first cache. Wins on large boxes.

Source: van Herk 1992, "A fast algorithm for local minimum and maximum filters", whose blocks are summed here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from convalgos.core.algorithm import Algorithm, error_of_sums
from convalgos.core.allocator import aligned_empty
from convalgos.core.axis_windows import AxisWindow, windows_of_problem
from convalgos.core.boundaries import BOUNDARIES, ZERO
from convalgos.core.filter_patterns import BOX, box_weights
from convalgos.core.machine import Machine
from convalgos.core.plan import Plan, numpy_dtype
from convalgos.core.problem import ConvProblem
from convalgos.cpu.runtime.array_pass import CompiledPass
from convalgos.cpu.runtime.plan import CALL
from convalgos.cpu.sliding.plan import DIRECT, RowPhase, SlidingPlan, sliding_plan
from convalgos.cpu.sliding.reductions import LINED, WEIGHTED
from convalgos.cpu.sliding.steps import sliding_steps
from convalgos.cpu.vectors import simd

# Cycles of a thread for a vector: to begin one, of each vector that is added, and of blocks in all; Zen 4
VECTOR, ADDED, BLOCKED = 3.0, 1.0, 12.0
TAKEN = 2.0  # cycles for an element that a stride of columns leaves; Zen 4
ROW = 5e-8  # seconds to begin a row; Zen 4

# --- shapes ----------------------------------------------------------------------------------


def _phases(p: ConvProblem, dimension: int, axis: AxisWindow) -> list[tuple[AxisWindow | RowPhase, int]]:
    """The windows of rows along a dimension by the rows that they share, and the stride of each kind."""
    taps, stride, apart = (v[dimension] for v in (p.kernel, p.stride, p.dilation))
    outputs, shared = p.spatial_out[dimension], math.gcd(stride, apart)
    if apart == 1:
        return [(axis, stride)]
    found: list[tuple[AxisWindow | RowPhase, int]] = []
    for first in range(min(outputs, apart // shared)):  # of outputs, of which every apart // shared-th is one
        count, step = len(range(first, outputs, apart // shared)), stride // shared
        windows = (count - 1) * step + 1
        phase = RowPhase(axis, taps, windows, first * stride, apart, first, apart // shared, outputs)
        found.append((phase, step))
    return found


def _passes(p: ConvProblem) -> list[list[SlidingPlan]]:
    """Over depth, where there is one, and over planes; each of all phases of a dilation."""
    *leading, columns = windows_of_problem(p)
    last = p.layout == "channels_last"
    dtype, fill, made = numpy_dtype(p.dtype), p.fill_value, []
    planes, pixel = (p.N, p.C) if last else (p.N * p.C, 1)
    if p.ndim == 3:
        plane = AxisWindow(math.prod(p.spatial[1:]) * pixel)
        made.append([
            sliding_plan(dtype, WEIGHTED, planes, depth, plane, 1, fill, False, stride)
            for depth, stride in _phases(p, 0, leading[0])
        ])  # fmt: skip
        planes, fill = planes * p.spatial_out[0], fill * p.kernel[0]
    rows = _phases(p, p.ndim - 2, leading[-1]) if leading else [(AxisWindow(1), 1)]
    made.append([
        sliding_plan(
            dtype, LINED if last else WEIGHTED, planes, one, columns, pixel, fill, False, stride,
            p.dilation[-1], p.stride[-1],
        )
        for one, stride in rows
    ])  # fmt: skip
    return made


# --- plan ------------------------------------------------------------------------------------


class BoxSumsPlan(CompiledPass, Plan):
    def __init__(self, problem: ConvProblem, algorithm: BoxSums):
        super().__init__(problem, algorithm, algorithm.workspace_bytes(problem))
        self._passes = _passes(problem)

    def prepare_filter(self, w: np.ndarray) -> np.ndarray:
        """(K,): the weight of each filter."""
        weights = box_weights(w)
        if weights is None:
            raise ValueError("w is not of pattern 'box': the weights of a filter must all be alike")
        return weights[:, 0].astype(self._dtype)

    def new_workspace(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(weights and biases, scratch, what is summed over depth)."""
        p = self.problem
        repeats = p.spatial_out[0] if p.ndim == 3 and p.layout == "channels_first" else 1
        scratch = aligned_empty(_scratch_bytes(self._passes), np.uint8)
        return np.empty((p.C, repeats, 2), self._dtype), scratch, aligned_empty(_between(p), self._dtype)

    def run(self, x: Any, w: Any, bias: Any, activation: Any, y: Any, workspace: Any) -> None:
        numbers, scratch, between = workspace
        numbers[..., 0] = w[:, None]  # (C, depth, 2)
        numbers[..., 1] = 0 if bias is None else bias[:, None]
        if len(self._passes) == 2:
            one = np.array([[1, 0]], self._dtype)
            for each in self._passes[0]:
                each.run(x, between, one, scratch)
            x = between
        for each in self._passes[-1]:
            each.run(x, y, numbers.reshape(-1, 2), scratch)
        if activation == "relu":
            np.maximum(y, 0, out=y)


def _scratch_bytes(passes: list[list[SlidingPlan]]) -> int:
    return max(each.scratch_bytes for phases in passes for each in phases)


def _between(p: ConvProblem) -> int:
    """Elements that are summed over depth only."""
    return p.N * p.C * p.spatial_out[0] * math.prod(p.spatial[1:]) if p.ndim == 3 else 0


@dataclass(frozen=True)
class BoxSums(Algorithm):
    family: ClassVar[str] = "cpu.box"
    patterns: ClassVar[tuple[str, ...]] = (BOX,)
    boundaries: ClassVar[tuple[str, ...]] = BOUNDARIES

    def why_not(self, problem: ConvProblem) -> str | None:
        return super().why_not(problem) or _unsuited(problem)

    def knows_border(self, problem: ConvProblem) -> bool:
        """Where zeros and a fill value meet in a corner, there are windows of both."""
        kinds = {b for b, pads in zip(problem.boundary, problem.padding, strict=True) if max(pads) > 0}
        return super().knows_border(problem) and not {ZERO, "constant"} <= kinds

    def cost(self, problem: ConvProblem, machine: Machine) -> float:
        p = problem
        lanes = simd.lanes(p.itemsize)
        *leading, columns = windows_of_problem(p)
        lines, width = (p.N, p.C * columns.size) if p.layout == "channels_last" else (p.N * p.C, columns.size)
        cycles, phases = 0.0, 1  # of a vector of the rows that are reduced
        for slide, taps, apart in zip(leading, p.kernel, p.dilation, strict=False):
            lines *= slide.outputs
            cycles += BLOCKED if taps > DIRECT else VECTOR + ADDED * taps
            phases *= apart
        steps = sliding_steps(p.kernel[-1], 1, True)
        cycles += VECTOR + sum(VECTOR / 2 + ADDED * int(step["taps"]) for step in steps)
        cycles += TAKEN * lanes / p.stride[-1] if p.stride[-1] > 1 else 0.0
        vectors = lines * (-(-width // lanes) + 1)
        per_second = machine.peak(p.dtype) / (4 * lanes)  # cycles, of all threads
        memory = machine.stream(p.x_bytes + p.y_bytes + 2 * _between(p) * p.itemsize, p.bytes)
        begun = CALL + phases * (CALL + machine.launch)
        return begun + vectors * cycles / per_second + lines * ROW + memory / 2

    def least(self, problem: ConvProblem, machine: Machine) -> float:
        if problem.pattern != BOX or _unsuited(problem):
            return math.inf
        return CALL + machine.launch + machine.stream(problem.x_bytes + problem.y_bytes, problem.bytes)

    def workspace_bytes(self, problem: ConvProblem) -> int:
        if problem.is_empty:
            return 0
        return _scratch_bytes(_passes(problem)) + _between(problem) * problem.itemsize

    def error_bound(self, problem: ConvProblem) -> float:
        return error_of_sums(problem)

    def plan(self, problem: ConvProblem) -> Plan:
        return BoxSumsPlan(problem, self)


def _unsuited(problem: ConvProblem) -> str | None:
    p = problem
    if p.w_shape[1] != 1 or p.K != p.C:
        return "sums every channel by itself, with one weight, and here a filter sums over several"
    return None


ALGORITHMS = (BoxSums(),)
