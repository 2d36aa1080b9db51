"""Depthwise convolution by Gaussians, in the same time for every size of them: recursions forth and back.

Half of a window is nearly a sum of two or three pairs of complex exponentials, at any width of the Gaussian,
cut off as it is. Each is a state that is turned and shrunk at each element; what comes into the window is
added, and what leaves it, turned and shrunk as often, is subtracted. So an output costs 16 products for each
pair and axis, whatever the filter; lines are filtered side by side in the lanes of vectors. It is less exact
than its types: the weights that it stands for are off by `APART` of the sum of all. Wins on large Gaussians
where an error is allowed.

Source: Deriche 1993, "Recursively implementing the Gaussian and its derivatives", INRIA RR-1893; windows that
end as in Sugimoto and Kamata 2015, "Efficient constant-time Gaussian filtering with sliding DCT/DST-5".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from convalgos.core.algorithm import Algorithm
from convalgos.core.allocator import aligned_empty
from convalgos.core.boundaries import COPIES, ZERO
from convalgos.core.epilogue import finish
from convalgos.core.filter_patterns import GAUSSIAN, gaussian_sigmas
from convalgos.core.machine import Machine
from convalgos.core.plan import Plan, numpy_dtype
from convalgos.core.problem import ConvProblem
from convalgos.cpu.filtering.recursive_kernels import NUMBERS
from convalgos.cpu.filtering.recursive_windows import WindowRecursion, window_halves
from convalgos.cpu.runtime.array_pass import CompiledPass
from convalgos.cpu.runtime.plan import CALL
from convalgos.cpu.vectors import simd

APART = {2: 8.5e-4, 3: 1.4e-5}  # of the sum of the weights, by pairs: at most, of all widths and sizes
MARGIN = 2  # of outputs that are small by accident
# Cycles of a thread for a vector of a line: states of a pair, forth and back; and to bring it to and fro
TURNED, MOVED = 9.5, 16.0  # Zen 4

# --- shapes ----------------------------------------------------------------------------------


def _axes(p: ConvProblem) -> list[int]:
    """Dimensions along which there is something to do, the last one first."""
    found = [i for i in range(p.ndim) if p.kernel[i] > 1 or p.padding[i] != (0, 0)]
    return found[::-1] or [p.ndim - 1]


def _recursions(p: ConvProblem, pairs: int) -> list[WindowRecursion]:
    made, sizes = [], list(p.spatial)
    for axis in _axes(p):
        line, after = math.prod(sizes[:axis]), math.prod(sizes[axis + 1 :])
        made.append(
            WindowRecursion(
                numpy_dtype(p.dtype), pairs, (p.N * p.C * line, sizes[axis], after), line, p.C,
                p.kernel[axis], *p.padding[axis], p.boundary[axis],
            )
        )  # fmt: skip
        sizes[axis] = p.spatial_out[axis]
    return made


# --- plan ------------------------------------------------------------------------------------


class RecursivePlan(CompiledPass, Plan):
    def __init__(self, problem: ConvProblem, algorithm: Recursive):
        super().__init__(problem, algorithm, algorithm.workspace_bytes(problem))
        self._pairs, self._passes = algorithm.pairs, _recursions(problem, algorithm.pairs)

    def prepare_filter(self, w: np.ndarray) -> np.ndarray:
        """(passes, K, numbers): see `window_halves`. The weight of a filter goes with its first pass."""
        found = gaussian_sigmas(w)
        if found is None:
            raise ValueError("w is not of pattern 'gaussian': convalgos.filter_pattern(w) tells its pattern")
        peaks, sigmas = found  # (K, 1), (K, 1, dimensions)
        kernel, pairs = self.problem.kernel, self._pairs
        numbers = np.array([
            [window_halves(float(sigma), kernel[axis], pairs).numbers for sigma in sigmas[:, 0, axis]]
            for axis in _axes(self.problem)
        ])  # (passes, K, numbers)  # fmt: skip
        scaled = np.r_[[n for i in range(pairs) for n in (NUMBERS * i, NUMBERS * i + 1)], NUMBERS * pairs]
        numbers[0][:, scaled] *= peaks
        return numbers.astype(self._dtype)

    def new_workspace(self) -> tuple[np.ndarray, list[np.ndarray]]:
        """(scratch, what is filtered along some axes)."""
        scratch = aligned_empty(max(one.scratch_bytes for one in self._passes), np.uint8)
        return scratch, [aligned_empty(one.count, self._dtype) for one in self._passes[:-1]]

    def run(self, x: Any, w: Any, bias: Any, activation: Any, y: Any, workspace: Any) -> None:
        scratch, between = workspace
        for one, numbers, target in zip(self._passes, w, [*between, y], strict=True):
            one.run(x, target, numbers, scratch)
            x = target
        finish(y, bias, activation, self.problem)


@dataclass(frozen=True)
class Recursive(Algorithm):
    pairs: int

    family: ClassVar[str] = "cpu.recursive"
    patterns: ClassVar[tuple[str, ...]] = (GAUSSIAN,)
    boundaries: ClassVar[tuple[str, ...]] = (ZERO, *COPIES)
    approximates: ClassVar[bool] = True
    casts: ClassVar[bool] = False
    spreads_nan: ClassVar[bool] = True  # to the ends of the lines

    @property
    def variant(self) -> str:
        return f"pairs{self.pairs}"

    def why_not(self, problem: ConvProblem) -> str | None:
        return super().why_not(problem) or _unsuited(problem)

    def cost(self, problem: ConvProblem, machine: Machine) -> float:
        p, lanes = problem, simd.lanes(problem.itemsize)
        cycles, memory = 0.0, 0.0
        for one in _recursions(p, self.pairs):
            planes, _, after = one.shape
            vectors = planes * -(-one.places * after // lanes) * machine.threads / one.tasks
            cycles += (self.pairs * TURNED + MOVED) * vectors
            memory += float(machine.stream((math.prod(one.shape) + one.count) * p.itemsize, p.bytes))
        return CALL * 3 + float(machine.launch) + cycles / machine.paced_cycles + memory / 2

    def least(self, problem: ConvProblem, machine: Machine) -> float:
        p, lanes = problem, simd.lanes(problem.itemsize)
        if p.pattern != GAUSSIAN or _unsuited(p):
            return math.inf
        cycles = self.pairs * TURNED * (math.prod(p.y_shape) // lanes)
        return CALL + float(machine.launch) + cycles / machine.paced_cycles

    def workspace_bytes(self, problem: ConvProblem) -> int:
        if problem.is_empty:
            return 0
        passes = _recursions(problem, self.pairs)
        return max(one.scratch_bytes for one in passes) + problem.itemsize * sum(
            one.count for one in passes[:-1]
        )

    def error_bound(self, problem: ConvProblem) -> float:
        """Of the weights along all axes, and of states that gather roundings over a window."""
        apart = math.prod(1 + APART[self.pairs] for _ in _axes(problem)) - 1
        rounded = sum(4 * problem.eps * (4 + math.sqrt(problem.kernel[i])) for i in _axes(problem))
        return MARGIN * (apart + rounded)

    def plan(self, problem: ConvProblem) -> Plan:
        return RecursivePlan(problem, self)


def _unsuited(problem: ConvProblem) -> str | None:
    p = problem
    if p.w_shape[1] != 1 or p.K != p.C:
        return "filters every channel by itself, with one filter, and here a filter sums over several"
    if p.layout != "channels_first":
        return "reads lines of channels_first maps"
    if max(p.dilation) > 1 or max(p.stride) > 1:
        return "goes from element to element, without a stride or dilation"
    return None


ALGORITHMS = (Recursive(2), Recursive(3))
