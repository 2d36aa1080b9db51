"""Depthwise convolution of 8-bit integers on the GPU: four taps of a row in one instruction (dp4a).

A thread computes four neighbouring outputs of a row, from words of four neighbouring inputs: so they lie
channels first, and channels last words of four channels are turned. Sums are exact. Any kernel, stride and
dilation, both layouts; short kernels are bound by the loads.

Never run on hardware: costs are counts of instructions.

Source: NVIDIA's PTX ISA, dp4a and prmt.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from convalgos.core.element_types import INTEGERS
from convalgos.core.problem import ConvProblem
from convalgos.gpu.compile.module import INTEGER_ELEMENTS, Build
from convalgos.gpu.device import GpuMachine
from convalgos.gpu.dwconv.launch_forms import DECODE, NUMBERED_BELOW, issue_seconds
from convalgos.gpu.launch.algorithm import GpuAlgorithm, exact_sums
from convalgos.gpu.launch.grid import NO_BIAS, ceil_div
from convalgos.gpu.launch.integer_plan import IntegerGpuPlan
from convalgos.gpu.launch.kernel_records import DIVISOR, record_of
from convalgos.gpu.launch.plan import GpuPlan

THREADS, OUTPUTS = 128, 4  # of a block, and of a thread, as in depthwise_dp4a.cu
RESIDENT = 4  # blocks of a multiprocessor
WORD = 4  # taps, or channels
ELEMENT, TURN = 6, 8  # instructions to load an element with its test, and to turn four words; counted
EPILOGUE = 14  # for an output

# `Params` of depthwise_dp4a.cu.
DP4A_PARAMS = np.dtype(
    [
        *((name, np.int32) for name in ("threads", "terms", "words", "last")),
        *((name, DIVISOR) for name in ("columns", "rows", "depth", "k", "multiplier")),
    ]
)


def channels_of(problem: ConvProblem) -> int:
    """Neighbouring channels of a thread."""
    turned = problem.layout == "channels_last" and problem.K == problem.C and problem.C % WORD == 0
    return WORD if turned else 1


def dp4a_threads(problem: ConvProblem) -> int:
    p = problem.as_3d
    columns = ceil_div(p.spatial_out[2], OUTPUTS)
    return p.N * math.prod(p.spatial_out[:2]) * columns * (p.K // channels_of(problem))


def dp4a_build(channels: int) -> Build:
    return Build.of("depthwise_dp4a.cu", **INTEGER_ELEMENTS, CHANNELS=channels)


# --- the figures for the selector --------------------------------------------------------------


@dataclass(frozen=True)
class DepthwiseDp4a(GpuAlgorithm):
    family: ClassVar[str] = "gpu.depthwise.dp4a"
    dtypes: ClassVar[tuple[str, ...]] = INTEGERS

    def builds(self) -> Iterable[Build]:
        return map(dp4a_build, (1, WORD))

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := super().why_not(problem):
            return reason
        if problem.groups != problem.C:
            return f"takes one input channel per group, not {problem.w_shape[1]}"
        if dp4a_threads(problem) >= NUMBERED_BELOW:
            return "needs more threads than a launch may have"
        return None

    def cost(self, problem: ConvProblem, machine: GpuMachine) -> float:
        p, channels = problem.as_3d, channels_of(problem)
        stride, words = p.stride[2], ceil_div(p.kernel[2], WORD)
        slides = stride <= 2 and p.dilation[2] == 1
        loaded = words + ceil_div((OUTPUTS - 1) * stride, WORD) if slides else words * OUTPUTS
        whole = channels == 1 and slides and p.layout == "channels_first" and p.spatial[2] % WORD == 0
        load = ELEMENT + 2 if whole else WORD * ELEMENT + (TURN if channels == WORD else WORD)
        row = loaded * load + words * channels * OUTPUTS * 2  # a window cut out and multiplied
        instructions = math.prod(p.kernel[:2]) * row + channels * OUTPUTS * EPILOGUE + DECODE
        blocks = ceil_div(dp4a_threads(problem), THREADS)
        issued = issue_seconds(blocks, THREADS, instructions, RESIDENT, machine)
        return max(issued, machine.stream(problem.bytes)) + machine.launch

    def error_bound(self, problem: ConvProblem) -> float:
        return exact_sums(problem)

    def plan(self, problem: ConvProblem) -> GpuPlan:
        return DepthwiseDp4aPlan(problem, self)


# --- the plan ----------------------------------------------------------------------------------


class DepthwiseDp4aPlan(IntegerGpuPlan):
    def __init__(self, problem: ConvProblem, algorithm: DepthwiseDp4a):
        super().__init__(problem, algorithm)
        self._params: dict[int, Any] = {}  # by terms of the filter
        blocks = ceil_div(dp4a_threads(problem), THREADS)
        build = dp4a_build(channels_of(problem))
        self._kernel = self.launch(build, "depthwise_dp4a", (blocks,), THREADS)

    def pack(self, terms: Sequence[Any]) -> tuple[Any, Any]:
        """The filter (terms, T, R, words of a row, K, 4), zeros beyond the row; parameters."""
        p, xp = self.problem.as_3d, self.device.xp
        words = ceil_div(p.kernel[2], WORD)
        if len(terms) not in self._params:
            depth, rows, columns = p.spatial_out
            params = {
                **{"threads": dp4a_threads(self.problem), "terms": len(terms), "words": words},
                **{"last": int(p.layout == "channels_last"), "columns": ceil_div(columns, OUTPUTS)},
                **{"rows": rows, "depth": depth},
                **{"k": p.K // channels_of(self.problem), "multiplier": p.K // p.C},
            }
            self._params[len(terms)] = self.by_value(record_of(DP4A_PARAMS, params))
        padded = xp.zeros((len(terms), p.K, *p.kernel[:2], words * WORD), np.int8)
        for i, w in enumerate(terms):
            padded[i, ..., : p.kernel[2]] = w.reshape(p.K, *p.kernel)
        fours = padded.reshape(len(terms), p.K, *p.kernel[:2], words, WORD)
        return xp.ascontiguousarray(fours.transpose(0, 2, 3, 4, 1, 5)), self._params[len(terms)]

    def run(self, x: Any, w: Any, bias: Any, activation: Any, y: Any, workspace: Any) -> None:
        bias = NO_BIAS if bias is None else bias
        packed, params = w.packed
        self._kernel(x, packed, bias, y, self.record(w, activation), params)


ALGORITHMS = (DepthwiseDp4a(),)
