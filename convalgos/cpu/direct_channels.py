"""The gradient of a 1x1 filter (wgrad) in channels_last, in tiles of channels by channels.

dw[k][c] = sum over pixels of dy[pixel][k] * x[pixel][c]: the channels of a pixel lie side by side in both, so
a tile of dw is the sum of outer products of a few values of dy and some vectors of x, in registers over a
block of pixels. The panel of x of a block is copied into the first cache, for all rows of dy, which are read
where they lie; lines of the next block are fetched meanwhile, some with each tile. x and dy swap places
where vectors of K are fuller. Wins on 1x1 layers of many pixels; `cpu.direct.outer`, which sums all pixels
at once, wins where there are few.

The pixels are cut into parts, whose sums are added up in their order. Their number depends on the problem
and not on the machine, so the bits of dw do not depend on the number of threads.

Source: the outer-product form of Goto and van de Geijn, "Anatomy of high-performance matrix multiplication"
(2008), its panel-panel product.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from convalgos.core.algorithm import Algorithm, error_of_sums
from convalgos.core.allocator import aligned_zeros
from convalgos.core.machine import Machine
from convalgos.core.plan import Plan
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm import panels
from convalgos.cpu.gemm.outer_blocking import OuterBlocking, outer_blocking
from convalgos.cpu.gemm.outer_driver import CHANNEL_ARGUMENTS, store_channels, sum_channels
from convalgos.cpu.gemm.outer_tiles import pack_channels, sum_outer_tiles
from convalgos.cpu.gemm.tile_sums import add_tile
from convalgos.cpu.layout.strides import map_strides
from convalgos.cpu.runtime.plan import CALL, KernelPlan
from convalgos.cpu.runtime.threads import plan_threads
from convalgos.cpu.vectors import simd

IN_PLACE = 1  # tiles of rows, at most, for which a panel of x need not be copied
# Xeon (Sapphire Rapids)
RUN = 3e-6  # seconds of Python in a run of its own
MOVED = 0.6  # of the time in which x and dy come, which the sums do not hide,
STORED = 1.4  # and times that in which the sums of all parts begin as zeros and go to dw

# --- plan ------------------------------------------------------------------------------------


class DirectChannelsPlan(KernelPlan):
    reads_filter = True

    def __init__(self, problem: ConvProblem, algorithm: Algorithm):
        cut = outer_blocking(problem)
        tasks = min(plan_threads(), cut.units)
        scratch = tasks * cut.packed_bytes + cut.sums_bytes
        steps = [(sum_channels(), tasks), (store_channels(), tasks)]
        super().__init__(problem, algorithm, CHANNEL_ARGUMENTS, _fields(cut, tasks), steps, scratch)
        self._exchanged = cut.exchanged
        self._zeros = aligned_zeros(cut.panel, self._dtype)  # what `store_run` adds

    def pack_filter(self, w: np.ndarray) -> np.ndarray:
        """dy itself, which the kernel reads where it lies."""
        return w

    def _set_run(self, x: np.ndarray, w: Any, bias: Any, relu: bool, y: np.ndarray, workspace: Any) -> Any:
        given = super()._set_run(x, w, bias, relu, y, workspace)
        given.bias = self._address(self._zeros)
        if self._exchanged:
            given.x, given.w = given.w, given.x
        return given


def _fields(cut: OuterBlocking, tasks: int) -> dict[str, int | np.ndarray]:
    """The record of the driver."""
    p, vectors, narrow = cut.problem, cut.vectors, cut.vectors_of // cut.panels
    size, lanes = p.itemsize, simd.lanes(p.itemsize)
    x_n, _, x_d, x_h, x_w = map_strides(p.layout, p.C, p.spatial)
    o, p_rows, q = p.spatial_out
    if p.is_plain_product:  # pixels follow one another, from image to image
        x_n, x_d, x_h, o, p_rows, q, x_w = 0, 0, 0, 1, 1, p.gemm_m, p.C
    dw_row, dw_column = (1, p.gemm_n) if cut.exchanged else (p.gemm_k, 1)
    return {
        "size": size, "lanes": lanes, "pixels": p.gemm_m, "block": cut.block, "parts": cut.parts,
        "groups": p.groups, "row_blocks": cut.row_blocks, "panel_blocks": cut.panel_blocks,
        "filters": p.gemm_n, "columns": cut.columns, "padded": cut.padded, "vectors": cut.vectors_of,
        "panels": cut.panels, "widest": vectors * lanes,
        "k": p.K, "o": o, "p": p_rows, "q": q, "x_n": x_n, "x_d": x_d * p.stride[0],
        "x_h": x_h * p.stride[1], "x_w": x_w * p.stride[2], "dw_group": p.gemm_n * p.gemm_k,
        "dw_row": dw_row, "dw_column": dw_column, "tasks": tasks, "packed_bytes": cut.packed_bytes,
        "spread": cut.spread, "row_tiles": cut.row_tiles,
        "in_place": int(p.is_plain_product and cut.row_tiles <= IN_PLACE),
        "sum_tiles": sum_outer_tiles(size, lanes, cut.rows, vectors),
        "sum_narrow": sum_outer_tiles(size, lanes, cut.rows, narrow),
        "pack": pack_channels(size, lanes, vectors), "pack_narrow": pack_channels(size, lanes, narrow),
        "add_tile": add_tile(size, lanes), "store_run": panels.store_run(size, lanes),
    }  # fmt: skip


# --- the figures for the selector --------------------------------------------------------------


@dataclass(frozen=True)
class DirectChannels(Algorithm):
    family: ClassVar[str] = "cpu.direct"
    directions: ClassVar[tuple[str, ...]] = ("backward_weights",)

    @property
    def variant(self) -> str:
        return "channels"

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := super().why_not(problem):
            return reason
        if not problem.is_pointwise or any(pad != (0, 0) for pad in problem.padding):
            return "sums outer products of pixels, which a 1x1 filter without padding has"
        if problem.layout == "channels_first" and math.prod(problem.spatial) > 1:
            return "takes rows of channels: those of channels_last, or of maps of one pixel"
        return None

    def cost(self, problem: ConvProblem, machine: Machine) -> float:
        cut = outer_blocking(problem)
        p, threads = cut.problem, machine.threads
        balance = -(-cut.units // threads) * threads / cut.units
        sums = cut.cycles * 4 * simd.lanes(p.itemsize) / machine.peak(p.dtype)
        read = p.gemm_m * (p.C + p.K) * p.itemsize
        moved = machine.stream(read, read)
        cleared = cut.sums_bytes * 2 + p.w_bytes
        stored = STORED * machine.stream(cleared, cleared)
        return RUN + CALL + 2 * machine.launch + balance * sums + MOVED * moved + stored

    def least(self, problem: ConvProblem, machine: Machine) -> float:
        if problem.is_empty:
            return 0.0
        return CALL + machine.launch + problem.flops / machine.peak(problem.dtype)

    def prepare_cost(self, problem: ConvProblem, machine: Machine) -> float:
        return 1e-9  # dy is taken as it is

    def workspace_bytes(self, problem: ConvProblem) -> int:
        if problem.is_empty:
            return 0
        cut = outer_blocking(problem)
        return min(plan_threads(), cut.units) * cut.packed_bytes + cut.sums_bytes

    def error_bound(self, problem: ConvProblem) -> float:
        return error_of_sums(problem)

    def plan(self, problem: ConvProblem) -> Plan:
        return DirectChannelsPlan(problem, self)


ALGORITHMS = (DirectChannels(),)
