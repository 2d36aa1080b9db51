"""Predicted cycles of sparse filters, of all threads, and the cut that takes the fewest."""

from __future__ import annotations

from itertools import product

from convalgos.core.filter_patterns import pattern_of
from convalgos.core.machine import vector_bytes
from convalgos.core.problem import ConvProblem
from convalgos.cpu.layout import strided_rows
from convalgos.cpu.runtime.threads import cached_by_threads
from convalgos.cpu.spconv.blocking import MOST_VECTORS, SparseBlocking, row_parts, sparse_blocking
from convalgos.cpu.vectors import simd

DENSE = 0.82  # of the peak, reached by dense sums in registers; as below
# Cycles of a thread, calibrated on a Xeon (Granite Rapids) with AVX-512.
ALIGNED, CROSSING = 0.72, 1.06  # to load a vector of pixels and to multiply it,
SHARED = 0.5  # and for each further filter that shares it
LISTED = 1.0  # to read an offset and its weights
LIST = 5.0  # to begin and to end a list
SUMS = 2.3  # to load a vector of sums from the second cache, and to store it again
STORE = 6.3  # to bring a vector of sums to y
COPY = 5.5  # to copy a vector of the input


@cached_by_threads(256)
def best_blocking(problem: ConvProblem) -> SparseBlocking:
    """The cut that takes the fewest cycles: with or without a copy of the input for each column, and with
    whole or shorter rows."""
    sharing = sharing_filters(problem)
    forms = (True,) if problem.kernel[-1] == 1 or problem.stride[-1] > 1 else (True, False)
    cuts = (
        sparse_blocking(problem, sharing, shifted, parts)
        for shifted, parts in product(forms, row_parts(problem))
    )
    return min(cuts, key=sparse_cycles)


def sharing_filters(problem: ConvProblem) -> int:
    """Filters that a tile takes together: those of a block of zeros, where that is known."""
    kind, filters, *_ = pattern_of(problem.pattern)
    most = min(filters, problem.gemm_n) if kind == "block" else 1
    return max(n for n in MOST_VECTORS[vector_bytes()] if n <= most and filters % n == 0)


def sparse_cycles(cut: SparseBlocking) -> float:
    """Of all threads together."""
    p = cut.problem
    vectors = cut.runs * cut.vectors
    listed = p.density * p.gemm_k * cut.tiles  # of a group
    aligned = cut.shifted and cut.pitch % cut.lanes == 0
    load = (ALIGNED if aligned else CROSSING) + SHARED * (cut.sharing - 1)
    sums = listed * (vectors * load + cut.runs * LISTED)
    lists = cut.tiles * cut.chunks * (cut.runs * LIST + cut.sharing * vectors * SUMS)
    planes = p.w_shape[1] * p.kernel[0] * cut.copies * len(cut.phases) * cut.parts
    row = -(-cut.pitch // cut.lanes)
    copied = planes * (strided_rows.PLANE_CYCLES + cut.rows * row * COPY)
    blocks = p.N * p.groups * cut.blocks[0] * cut.blocks[1] * cut.blocks[2]
    return blocks * (sums + lists + copied + p.gemm_n * vectors * STORE)


def break_even(problem: ConvProblem) -> float:
    """The density at which sparse sums take as long as dense ones; at most 1."""
    p = problem.with_valid(layout="channels_first")
    low, high = 0.1, 0.5
    few, many = (sparse_cycles(best_blocking(p.with_valid(density=d))) for d in (low, high))
    dense = p.flops / (4 * simd.lanes(p.itemsize)) / DENSE
    return min(1.0, max(0.0, low + (dense - few) * (high - low) / (many - few)))
