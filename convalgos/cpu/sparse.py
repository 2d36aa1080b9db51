"""Direct convolution by the non-zero weights of a sparse filter, and by nothing else.

For each filter the positions and values of its non-zero weights stand in a list, and one pass over the list
adds each weight times a row of pixels to sums that stay in registers. Every product has a load of its own,
which in a dense tile many filters share: so the input lies in the first cache, chunk by chunk, with all
pixels of a tap on whole cache lines (`spconv.blocking`). Filters of "blockRxC" patterns share positions, and
with them the loads. Wins where few weights are left; `explain` tells from which density on.

Source: Park et al. 2017, "Faster CNNs with direct sparse convolutions and guided pruning", arXiv:1608.01409
(SkimCaffe).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from convalgos.core.algorithm import Algorithm, error_of_sums
from convalgos.core.allocator import aligned_zeros
from convalgos.core.machine import Machine
from convalgos.core.plan import Plan
from convalgos.core.problem import ConvProblem
from convalgos.cpu.layout import streaming, strided_rows
from convalgos.cpu.layout.reordered import Reordered
from convalgos.cpu.runtime.plan import CALL, KernelPlan
from convalgos.cpu.runtime.threads import plan_threads
from convalgos.cpu.spconv import kernels
from convalgos.cpu.spconv.cost import best_blocking, break_even, sparse_cycles
from convalgos.cpu.spconv.filters import pack_lists

PACKING = 0.4e9  # elements of a filter in a second whose zeros are left out; Xeon (Granite Rapids)


class SparsePlan(KernelPlan):
    finishes = strided_batch = True

    def __init__(self, problem: ConvProblem, algorithm: Sparse):
        cut = best_blocking(problem)
        p = cut.problem
        size, lanes, tasks = p.itemsize, cut.lanes, plan_threads()
        pixels, pixels_in = math.prod(p.spatial_out), math.prod(p.spatial)
        values: dict[str, int | np.ndarray] = {
            "size": size, "n": p.N, "channels": p.w_shape[1], "filters": p.gemm_n, "groups": p.groups,
            "parts": cut.parts, "tiles": cut.tiles, "sharing": cut.sharing, "chunk": cut.chunk,
            "chunks": cut.chunks, "tasks": tasks, "x_n": p.C * pixels_in, "x_c": pixels_in,
            "dilation_d": p.dilation[0], "dilation_w": p.dilation[2], "taps_d": p.kernel[0],
            "copies": cut.copies, "reach_h": p.kernel_extent[1], "reach_w": p.kernel_extent[2],
            "beside": 0 if cut.shifted else p.kernel_extent[2] - 1,
            "phases": np.array(cut.phases, np.int64), "phase_count": len(cut.phases), "pitch": cut.pitch,
            "copied": cut.rows, "plane": cut.plane, "channel": cut.channel, "runs": cut.runs,
            "run": -(-cut.pitch // lanes) * lanes, "sums_row": cut.sums_row,
            "input_bytes": cut.input_elements * size, "scratch_stride": cut.scratch_bytes,
            "stream": int(streaming.outgrows_caches(problem.y_bytes, streaming.STREAMED_PIXELS, own=True)),
            "y_n": p.K * pixels, "y_k": pixels, "block_o": 1, "block_p": cut.block[0],
            "block_q": cut.block[1], "copy_rows": strided_rows.row_copier(size, lanes, p.stride[2], 1),
            "store_rows": kernels.store_rows(size, lanes),
            "sum_sparse_tiles": kernels.sum_sparse_tiles(size, lanes, cut.sharing, cut.vectors),
        }  # fmt: skip
        for axis, blocks, out in zip("opq", cut.blocks, p.spatial_out, strict=True):
            values |= {f"blocks_{axis}": blocks, axis: out}
        values |= dict(zip(("depth", "height", "width"), p.spatial, strict=True))
        for axis, stride, pad in zip("dhw", p.stride, p.padding, strict=True):
            values |= {f"stride_{axis}": stride, f"pad_{axis}": pad[0]}
        steps = [(kernels.sum_sparse(), tasks)]
        super().__init__(problem, algorithm, kernels.ARGUMENTS, values, steps, tasks * cut.scratch_bytes)
        self._cut = cut

    def _new_scratch(self) -> np.ndarray:
        """Zeroed: vectors are summed beyond the ends of rows too, and would be slow on denormal numbers."""
        return aligned_zeros(self.scratch_bytes or 0, np.uint8)

    def pack_filter(self, w: np.ndarray) -> np.ndarray:
        return pack_lists(w, self._cut)


@dataclass(frozen=True)
class Sparse(Algorithm):
    family: ClassVar[str] = "cpu.sparse"
    skips_zeros: ClassVar[bool] = True

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := super().why_not(problem):
            return reason
        if problem.density == 1:
            return "leaves out zeros of the filter, and the problem tells of none: give it a density below 1"
        return None

    def cost(self, problem: ConvProblem, machine: Machine) -> float:
        if problem.layout == "channels_last":
            return InPlanes(self).cost(problem, machine)
        cut = best_blocking(problem)
        p = cut.problem
        items = p.N * p.groups * math.prod(cut.blocks) * cut.parts
        balance = -(-items // machine.threads) * machine.threads / items
        computed = balance * sparse_cycles(cut) * 4 * cut.lanes / machine.peak(p.dtype)
        beyond = problem.x_bytes + problem.y_bytes > machine.l3_bytes
        return CALL + machine.launch + computed + beyond * problem.bytes / machine.bandwidth

    def least(self, problem: ConvProblem, machine: Machine) -> float:
        if problem.density == 1:
            return math.inf
        return CALL + machine.launch + problem.density * problem.flops / machine.peak(problem.dtype)

    def note(self, problem: ConvProblem) -> str:
        return f"faster than dense sums below a density of {break_even(problem):.2f}"

    def prepare_cost(self, problem: ConvProblem, machine: Machine) -> float:
        return super().prepare_cost(problem, machine) + math.prod(problem.w_shape) / PACKING

    def filter_bytes(self, problem: ConvProblem) -> int:
        """A weight and its offset for each non-zero one."""
        return int(problem.density * math.prod(problem.w_shape) * (problem.itemsize + 4))

    def workspace_bytes(self, problem: ConvProblem) -> int:
        if problem.is_empty:
            return 0
        if problem.layout == "channels_last":
            return InPlanes(self).workspace_bytes(problem)
        return plan_threads() * best_blocking(problem).scratch_bytes

    def error_bound(self, problem: ConvProblem) -> float:
        return error_of_sums(problem)

    def plan(self, problem: ConvProblem) -> Plan:
        if problem.layout == "channels_last":
            return InPlanes(self).plan(problem)
        return SparsePlan(problem, self)


@dataclass(frozen=True)
class InPlanes(Reordered):
    """How it serves channels_last: between two reorders, under its own id."""

    @property
    def variant(self) -> str:
        return self.inner.variant


ALGORITHMS = (Sparse(),)
