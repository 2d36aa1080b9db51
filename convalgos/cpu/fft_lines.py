"""Long filters of lines, each channel with its own: blocks transformed in the vectors of our own kernels.

A line is cut into blocks that overlap by the filter (overlap-save). Each block is read, transformed,
multiplied by the filter's spectrum, transformed back and written before the next one
(`spectral.line_kernels`), so that x is read and y written once, and all between stays in the first caches.
Wins on FIR filters and long depthwise filters from some dozen taps on; maps whose kernels have taps along
rows only are lines, too.

Source: Stockham 1966, "High-speed convolution and correlation"; of the transforms `line_kernels` tells it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, NamedTuple

import numpy as np

from convalgos.core.algorithm import Algorithm
from convalgos.core.allocator import aligned_empty, whole_lines
from convalgos.core.machine import Machine, cache_sizes
from convalgos.core.plan import Plan
from convalgos.core.problem import ConvProblem
from convalgos.cpu.layout.strides import map_strides
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import CALL, KernelPlan
from convalgos.cpu.runtime.threads import plan_threads
from convalgos.cpu.spectral import line_kernels
from convalgos.cpu.spectral.errors import error_of_transforms
from convalgos.cpu.spectral.line_roots import roots_of_lines
from convalgos.cpu.vectors import simd

LONGEST = 1 << 18  # elements of a block
# Cycles of a thread; Zen 4 with AVX-512
LEVEL = 2.2  # of a vector of a block in each level, there and back,
ENDS = 6.0  # and to read it, to multiply it and to write it
BLOCK = 300  # around a block
SLOWER = (1.2, 1.2, 1.1)  # where a block leaves L1 with roots and filter, by itself, and where all leave L2
SPECTRUM_CALL, SPECTRUM_ELEMENT = 3e-5, 2e-9  # seconds to transform any filter, and each of its elements

# --- shapes --------------------------------------------------------------------------------------


class LineCut(NamedTuple):
    """Lines of a problem in blocks of n elements, which begin `step` apart."""

    n: int
    step: int
    blocks: int  # of a line
    lines: int
    cycles: float  # of all blocks


def shortest(itemsize: int) -> int:
    """Elements of the shortest block: a complex number for each place of a square of vectors."""
    return 2 * simd.lanes(itemsize) ** 2


@lru_cache(1024)
def line_cut(problem: ConvProblem, length: int) -> LineCut | None:
    """Blocks of a length, or of the one of the least time for 0; None where the filter is too long."""
    p = problem
    lanes = simd.lanes(p.itemsize)
    lines = p.N * p.C * math.prod(p.spatial[:-1])
    best = None
    n = length or shortest(p.itemsize)
    while n <= (length or LONGEST):
        step = min(n - p.kernel_extent[-1] + 1, p.spatial_out[-1])
        if step > 0:
            blocks = -(-p.spatial_out[-1] // step)
            cycles = lines * blocks * _block_cycles(n, lanes, p.itemsize)
            if best is None or cycles < best.cycles:
                best = LineCut(n, step, blocks, lines, cycles)
        n *= 2
    return best


def _block_cycles(n: int, lanes: int, size: int) -> float:
    l1, l2, _ = cache_sizes()
    cycles = BLOCK + n / lanes * (LEVEL * math.log2(n / 2) + ENDS)
    for slower, held, cache in zip(SLOWER, (3, 1, 3), (l1, l1, l2), strict=True):
        cycles *= slower if held * n * size >= cache else 1
    return cycles


def _tasks(cut: LineCut) -> int:
    """Threads that share the blocks of all lines."""
    return min(plan_threads(), cut.lines * cut.blocks)


def _part_bytes(n: int, itemsize: int) -> int:
    """From real to imaginary parts of a block in scratch: a line lies between, against set conflicts."""
    return whole_lines(n // 2 * itemsize) + simd.LINE


# --- plan ----------------------------------------------------------------------------------------


class FftLinesPlan(KernelPlan):
    """Blocks of all lines, each through all its steps in the scratch of a thread."""

    finishes = strided_batch = True

    def __init__(self, problem: ConvProblem, algorithm: Algorithm, cut: LineCut):
        p, size, lanes = problem, problem.itemsize, simd.lanes(problem.itemsize)
        self._cut, self.outputs_together = cut, cut.step
        self._roots = roots_of_lines(cut.n, lanes, p.dtype)
        tasks = _tasks(cut)
        threed = p.as_3d
        x_strides = map_strides(p.layout, p.C, threed.spatial)
        y_strides = map_strides(p.layout, p.K, threed.spatial_out)
        own = self._block_values(p, tasks)
        values: dict[str, int | np.ndarray] = {
            **own, "lines": cut.lines, "blocks": cut.blocks, "rows": math.prod(p.spatial[:-1]),
            "step": cut.step,
            "size": p.spatial[-1], "out": p.spatial_out[-1], "low": p.padding[-1][0], "x_n": x_strides[0],
            "x_c": x_strides[1], "x_h": p.spatial[-1], "y_n": y_strides[0], "y_k": y_strides[1],
            "y_h": p.spatial_out[-1], "prepares": 0,
        }  # fmt: skip
        self._kernel = line_kernels.filter_line_blocks(size, lanes)
        scratch = tasks * own["lane_bytes"]
        steps = [(self._kernel, tasks)]
        super().__init__(problem, algorithm, line_kernels.LINE_ARGUMENTS, values, steps, scratch)
        self._of_filters = np.zeros(1, line_kernels.LINE_ARGUMENTS)  # but for the arrays
        of_filters = self._block_values(p, min(jit.thread_count(), p.K)) | {
            "lines": p.K, "blocks": 1, "rows": 1, "size": cut.n, "x_c": cut.n, "prepares": 1,
        }  # fmt: skip
        for name, value in of_filters.items():
            self._of_filters[name] = value

    def pack_filter(self, w: np.ndarray) -> np.ndarray:
        """(C, tiles, lanes, 2, lanes): spectra, divided by the number of their elements.

        As products turn the other way round, tap t lies at -t, which is n - t with the other sign.
        """
        p, n = self.problem, self._cut.n
        lines = np.zeros((p.K, n), w.dtype)
        step, last = p.dilation[-1], p.dilation[-1] * (p.kernel[-1] - 1)
        taps = w.reshape(p.K, -1) * w.dtype.type(2 / n)
        lines[:, n - last :: step] = -taps[:, :0:-1]
        lines[:, 0] = taps[:, 0]
        packed = aligned_empty(p.K * n, w.dtype)
        record = self._of_filters.copy()
        tasks = int(record["tasks"][0])
        scratch = aligned_empty(tasks * int(record["lane_bytes"][0]), np.uint8)
        for name, array in (("x", lines), ("y", packed), ("scratch", scratch)):
            record[name] = array.ctypes.data
        jit.launch(self._kernel, record.ctypes.data, tasks)
        return packed

    def _block_values(self, p: ConvProblem, tasks: int) -> dict[str, int]:
        """What blocks of x and of filters share."""
        n = self._cut.n
        return {
            "tasks": tasks, "n": n, "channels": p.C, "roots": self._roots[0].ctypes.data,
            "tile_roots": self._roots[1].ctypes.data, "w_channel": n, "imaginary": _part_bytes(n, p.itemsize),
            "lane_bytes": 2 * _part_bytes(n, p.itemsize),
        }  # fmt: skip


# --- algorithm -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class FftLines(Algorithm):
    """Blocks of `length`, or of the length that is estimated best."""

    family: ClassVar[str] = "cpu.fft_lines"
    least_prepare: ClassVar[float] = SPECTRUM_CALL
    spreads_nan: ClassVar[bool] = True
    length: int = 0

    @property
    def variant(self) -> str:
        return f"n{self.length}" if self.length else ""

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := super().why_not(problem):
            return reason
        p = problem
        if p.layout != "channels_first":
            return "reads rows of channels_first only"
        if p.w_shape[1] > 1 or p.K != p.C:
            return "filters every channel by itself, with one filter"
        if p.is_pointwise:
            return "sums products of several taps: one needs no transform, which would round"
        if max(p.stride) > 1:
            return f"computes every output, not with stride {p.stride}"
        if max(p.kernel[:-1], default=1) > 1 or any(map(any, p.padding[:-1])):
            return "filters along rows only, without padding between them"
        if 0 < self.length < shortest(p.itemsize):
            return f"has blocks of {shortest(p.itemsize)} elements and more here, not of {self.length}"
        if p.is_empty or line_cut(p, self.length):
            return None
        return f"takes kernels that span up to {self.length or LONGEST} elements, not {p.kernel_extent[-1]}"

    def variants(self, problem: ConvProblem) -> Iterator[Algorithm]:
        if self.length or problem.is_empty or self.why_not(problem):
            return
        n = self._cut(problem).n
        others = (replace(self, length=length) for length in (n // 2, 2 * n))
        yield from (other for other in others if other.why_not(problem) is None)

    def _cut(self, problem: ConvProblem) -> LineCut:
        cut = line_cut(problem, self.length)
        assert cut is not None
        return cut

    def cost(self, problem: ConvProblem, machine: Machine) -> float:
        cut = self._cut(problem)
        units = cut.lines * cut.blocks
        share = -(-units // machine.threads) / units
        lanes = machine.vector_bytes // problem.itemsize
        cycles = machine.peak(problem.dtype) / (4 * lanes) / machine.threads
        # a cached store reads its line first, which shows where y is too large for the caches
        stores = 2 if problem.y_bytes > machine.l3_bytes / 2 else 1
        memory = machine.stream(problem.x_bytes + stores * problem.y_bytes, problem.bytes)
        return CALL + machine.launch + share * cut.cycles / cycles + memory

    def least(self, problem: ConvProblem, machine: Machine) -> float:
        p = problem
        if p.is_empty:
            return 0.0
        if p.w_shape[1] > 1 or p.K != p.C or max(p.stride) > 1 or max(p.kernel[:-1], default=1) > 1:
            return math.inf
        return CALL + machine.stream(p.x_bytes + p.y_bytes)

    def prepare_cost(self, problem: ConvProblem, machine: Machine) -> float:
        return SPECTRUM_CALL + problem.K * self._cut(problem).n * SPECTRUM_ELEMENT

    def filter_bytes(self, problem: ConvProblem) -> int:
        return 0 if problem.is_empty else problem.K * self._cut(problem).n * problem.itemsize

    def block_starts(self, problem: ConvProblem) -> tuple[int, ...]:
        if problem.is_empty:
            return self.granule(problem)
        cut = self._cut(problem)
        return (*self.granule(problem)[:-1], cut.step if cut.blocks > 1 else 1)

    def for_parts(self, problem: ConvProblem) -> Algorithm:
        return self if problem.is_empty else replace(self, length=self._cut(problem).n)

    def workspace_bytes(self, problem: ConvProblem) -> int:
        if problem.is_empty:
            return 0
        cut = self._cut(problem)
        return _tasks(cut) * 2 * _part_bytes(cut.n, problem.itemsize)

    def error_bound(self, problem: ConvProblem) -> float:
        # complex numbers of half as many elements
        return error_of_transforms(problem, 1 if problem.is_empty else self._cut(problem).n)

    def plan(self, problem: ConvProblem) -> Plan:
        return FftLinesPlan(problem, self, self._cut(problem))


ALGORITHMS = (FftLines(),)
