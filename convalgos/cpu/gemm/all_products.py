"""What published ways of making all products of a convolution have in common, beside the direct one.

They sum the same products by the same micro-kernel, and lay out or read again more than direct convolution
does. So one lower bound serves them all, and a choice that has found something faster asks none of them.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache
from typing import ClassVar

from convalgos.core.algorithm import Algorithm, error_of_sums
from convalgos.core.machine import Machine, vector_bytes
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm import panels
from convalgos.cpu.runtime.plan import CALL
from convalgos.cpu.vectors import microkernel

# Times the sums of `panels`; Xeon (Granite Rapids)
SUMS = 1.15
LEAST_SUMS = 1.04  # of those that lay out nothing, channels last


class AllProducts(Algorithm):
    """Each of the products, summed by the micro-kernel in some other order than the direct one."""

    bounded_with: ClassVar[str] = "all products"

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := super().why_not(problem):
            return reason
        if problem.is_plain_product:
            return "a plain product, which cpu.direct computes in the same way"
        if problem.gemm_n == 1:
            return "shares what it reads among the filters of a group, of which this layer has one"
        return None

    def least(self, problem: ConvProblem, machine: Machine) -> float:
        return sums_seconds(problem, machine, SUMS)

    def least_of_all(self, problem: ConvProblem, machine: Machine) -> float:
        p = problem
        if p.is_plain_product or p.gemm_n == 1:
            return math.inf
        slower = LEAST_SUMS if p.layout == "channels_last" else SUMS
        return CALL + machine.launch + slower * least_sums(p, machine) + memory_seconds(p, machine)

    def error_bound(self, problem: ConvProblem) -> float:
        return error_of_sums(problem)


@lru_cache(64)
def sums_seconds(problem: ConvProblem, machine: Machine, slower: float) -> float:
    """Seconds of all sums in panels, `slower` times those of `panels`, and to read x and write y."""
    p = problem
    return CALL + machine.launch + slower * panels.product_seconds(p, machine) + memory_seconds(p, machine)


def least_sums(problem: ConvProblem, machine: Machine) -> float:
    """A lower bound of `panels.product_seconds`: with every register and lane in use."""
    p = problem
    flops = (panels.SUMS + panels.WAITS / _registers()) * p.flops
    outputs = panels.OUTPUT_CYCLES * p.gemm_m * p.K * p.itemsize / machine.vector_bytes
    return flops / machine.peak(p.dtype) + outputs / machine.cycles


@cache
def _registers() -> int:
    """Of sums, of the largest tile."""
    return max(rows * vectors for vectors, rows in microkernel.REGISTER_TILES[vector_bytes()].items())


def memory_seconds(problem: ConvProblem, machine: Machine) -> float:
    """Seconds to read x, and to read and write y."""
    p = problem
    return machine.stream(p.x_bytes + 2 * p.y_bytes, p.x_bytes + p.y_bytes)
