"""Exact convolution of bytes by number-theoretic transforms: long filters of one channel.

Each channel is a line of all its images, whose rows follow each other with their border, and the filter is a
line with rows as long. Lines are convolved in blocks by transforms modulo a prime, or two where that is too
small for the sums. No sum is rounded, and the work hardly depends on the size of the kernel: it wins from
some hundred taps in one dimension on, and from 40x40 in two.

Source: Pollard 1971, "The fast Fourier transform in a finite field"; see `spectral.integer_convolution`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from convalgos.core.algorithm import Algorithm
from convalgos.core.integer_plan import IntegerFilter, IntegerPlan, finish_sums, from_zero_point
from convalgos.core.layouts import laid
from convalgos.core.machine import Machine
from convalgos.core.plan import Plan
from convalgos.core.problem import ConvProblem
from convalgos.cpu.spectral import residues
from convalgos.cpu.spectral.integer_convolution import LONGEST_BLOCK, LineBlocks

LARGEST_BYTE, LARGEST_DIFFERENCE = 255, 255  # of x, and of the filter and its zero point
# Zen 4, two threads
BUTTERFLY = 20  # flops at the peak in the time of a level of an element modulo a prime
ELEMENT = 2e-10  # seconds to bring an element of x into a line, or one of y out of it
LAUNCHES = 1e-4  # seconds around the transforms of a filter
LEAST_LEVELS = 9  # of a block

# --- shapes --------------------------------------------------------------------------------------


class Line(NamedTuple):
    """A channel of all images as one line, and the filter as another."""

    padded: tuple[int, ...]  # (N, *spatial), with the border
    steps: tuple[int, ...]  # elements between neighbours, likewise
    results: int  # up to the last one that is wanted
    taps: int


def line_of(problem: ConvProblem) -> Line:
    """The line of a channel of a problem."""
    p = problem
    sizes = [size + low + high for size, (low, high) in zip(p.spatial, p.padding, strict=True)]
    padded = (p.N, *sizes)
    steps = tuple(math.prod(padded[i + 1 :]) for i in range(len(padded)))
    along = list(zip(steps[1:], p.spatial_out, p.stride, p.kernel_extent, strict=True))
    count = 1 + (p.N - 1) * steps[0] + sum((out - 1) * stride * step for step, out, stride, _ in along)
    return Line(padded, steps, count, 1 + sum((extent - 1) * step for step, _, _, extent in along))


# --- plan ----------------------------------------------------------------------------------------


class NttWorkspace:
    """x as one line with its border, the residues of its sums, and the sums, of one channel and filter."""

    def __init__(self, line: Line, blocks: LineBlocks, primes: int):
        self.x = np.zeros(max(blocks.reads, math.prod(line.padded)), np.int32)
        self.border = 0  # what x holds beyond the maps
        self.residues = blocks.scratch(primes)
        self.y = np.empty(blocks.writes, np.int32)


class NttPlan(IntegerPlan):
    """One filter after the other: blocks of its channel's line modulo the primes that its sums ask for."""

    def __init__(self, problem: ConvProblem, algorithm: Ntt, workspace_bytes: int):
        super().__init__(problem, algorithm, workspace_bytes)
        self._line = line_of(problem)
        self._blocks = LineBlocks(self._line.results, self._line.taps)
        self._inside = tuple(
            slice(low, low + size) for size, (low, _) in zip(problem.spatial, problem.padding, strict=True)
        )

    def new_workspace(self) -> NttWorkspace:
        return NttWorkspace(self._line, self._blocks, most_primes(self.problem))

    def pack(self, w: np.ndarray, w_zero_point: np.ndarray | None) -> list[list[np.ndarray]]:
        """The spectra of each filter, turned around as correlations ask for: modulo one prime or two."""
        wide = from_zero_point(w[:, 0], w_zero_point, np.int64)  # (K, *kernel)
        p, line = self.problem, self._line
        primes = residues.primes_for(LARGEST_BYTE * int(np.abs(wide).reshape(p.K, -1).sum(1).max()))
        taps = np.zeros((p.K, line.taps), np.int64)
        places = sum(  # (*kernel) of each tap in the line
            np.arange(k).reshape(-1, *(1,) * (p.ndim - 1 - i)) * (d * step)
            for i, (k, d, step) in enumerate(zip(p.kernel, p.dilation, line.steps[1:], strict=True))
        )
        taps[:, line.taps - 1 - np.ravel(places)] = wide.reshape(p.K, -1)
        return [self._blocks.factors(of_filter, primes) for of_filter in taps]

    def run_integers(self, x: np.ndarray, w: IntegerFilter, y: np.ndarray, workspace: NttWorkspace) -> None:
        p, line = self.problem, self._line
        if workspace.border != w.pad:
            workspace.x.fill(w.pad)
            workspace.border = w.pad
        images = workspace.x[: math.prod(line.padded)].reshape(line.padded)  # (N, *padded)
        x = p.logical(0, x)  # (N, C, *spatial)
        strides = [4 * line.steps[0], *(4 * n * by for n, by in zip(line.steps[1:], p.stride, strict=True))]
        found = np.ndarray((p.N, *p.spatial_out), np.int32, workspace.y, 0, strides)
        plain = w.output is None  # y is the sums
        sums = p.logical(2, y) if plain else np.empty(p.y_shape, np.int32)  # (N, K, *spatial_out)
        for k in range(p.K):
            if k % p.gemm_n == 0:
                images[:, *self._inside] = x[:, k // p.gemm_n]
            self._blocks.convolve(workspace.x, w.packed[k], workspace.y, workspace.residues)
            np.add(found, w.offset[k] if plain else 0, out=sums[:, k])
        if not plain:
            finish_sums(laid(sums, p.y_layout), w, y, p)


def most_primes(problem: ConvProblem) -> int:
    """Primes that tell the sums of any filter apart."""
    return residues.primes_for(LARGEST_BYTE * LARGEST_DIFFERENCE * problem.reduction)


# --- algorithm -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ntt(Algorithm):
    """Bytes, of which each filter reads one channel."""

    family: ClassVar[str] = "cpu.ntt"
    dtypes: ClassVar[tuple[str, ...]] = ("int8", "uint8")

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := super().why_not(problem):
            return reason
        if problem.is_empty:
            return None
        if problem.w_shape[1] > 1:
            return f"filters single channels; here {problem.w_shape[1]} are summed"
        if 2 * (taps := line_of(problem).taps) > LONGEST_BLOCK:
            return (
                f"takes filters of up to {LONGEST_BLOCK // 2} elements with rows as long as x's, not {taps}"
            )
        return None

    def cost(self, problem: ConvProblem, machine: Machine) -> float:
        line = line_of(problem)
        cut = LineBlocks(line.results, line.taps)
        primes = residues.primes_for(LARGEST_BYTE * LARGEST_DIFFERENCE // 4 * problem.reduction)  # mostly
        levels = cut.n * math.log2(cut.n) * -(-primes * cut.blocks // machine.threads)
        transforms = BUTTERFLY * levels * machine.threads / machine.peak("float32")
        moved = (problem.C + 2 * problem.K) * cut.reads * ELEMENT
        return problem.K * (LAUNCHES + transforms) + moved

    def least(self, problem: ConvProblem, machine: Machine) -> float:
        if problem.is_empty:
            return 0.0
        if problem.w_shape[1] > 1:
            return math.inf
        results = math.prod(problem.array_shapes[2])
        return results * (LEAST_LEVELS * BUTTERFLY / machine.peak("float32") + ELEMENT) + LAUNCHES

    def prepare_cost(self, problem: ConvProblem, machine: Machine) -> float:
        line = line_of(problem)
        cut = LineBlocks(line.results, line.taps)
        return problem.K * (LAUNCHES + 2 * BUTTERFLY * cut.n * math.log2(cut.n) / machine.peak("float32"))

    def filter_bytes(self, problem: ConvProblem) -> int:
        if problem.is_empty:
            return 0
        line = line_of(problem)
        return 8 * problem.K * most_primes(problem) * LineBlocks(line.results, line.taps).n

    def workspace_bytes(self, problem: ConvProblem) -> int:
        if problem.is_empty:
            return 0
        line = line_of(problem)
        cut = LineBlocks(line.results, line.taps)
        read = max(cut.reads, math.prod(line.padded))
        return 4 * (read + (1 + most_primes(problem)) * cut.writes + math.prod(problem.y_shape))

    def error_bound(self, problem: ConvProblem) -> float:
        return 2 * problem.eps  # of the output step, where y is float32

    def plan(self, problem: ConvProblem) -> Plan:
        return NttPlan(problem, self, self.workspace_bytes(problem))


ALGORITHMS = (Ntt(),)
