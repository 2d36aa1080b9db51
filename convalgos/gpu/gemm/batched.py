"""Batched SGEMM: many small products in strict float32, on which transformed convolutions spend their time.

A kernel of our own instead of cuBLAS: CuPy takes 35 microseconds of the host to start a batched product,
keeps it out of captured graphs, and lets the environment round it to TF32. Both factors run along the side
that they share with the result, so that tiles go to shared memory as they are.

Source: register tiles as in Volkov and Demmel 2008; lanes over a tile as in Gray's "maxas" SGEMM.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from convalgos.gpu.compile.module import Build
from convalgos.gpu.device.machine import GpuMachine
from convalgos.gpu.launch.grid import GridLaunch, ceil_div, waves
from convalgos.gpu.launch.kernel_records import DIVISOR, record_of
from convalgos.gpu.launch.plan import GpuPlan

DEPTH = 8  # of a step, as in batched_gemm.cu
FOUR = 4  # columns are loaded and stored so many at a time
# By the side of a block's tile: threads of it, and what it reaches of the peak; steps, and shares of a wave
# of blocks, that start and end take. Estimates: a little less than cuBLAS was measured to reach on an H200.
SIDES = {128: (256, 0.82), 64: (64, 0.74)}
MORE_STEPS = 2.5
MORE_WAVES = 0.5
BATCHED_BUILD = Build.of("batched_gemm.cu")
# `Params` of batched_gemm.cu.
BATCHED_PARAMS = np.dtype(
    [
        *((name, DIVISOR) for name in ("row_blocks", "column_blocks")),
        *((name, np.int32) for name in ("rows", "columns", "depth", "rows_padded", "depth_padded")),
    ]
)


class BatchedGemm(NamedTuple):
    """m[b] = transposed(u[b]) @ v[b], u (batches, depth, rows), v (batches, depth, columns)."""

    batches: int
    rows: int
    columns: int  # a multiple of FOUR
    depth: int

    def side(self, machine: GpuMachine) -> int:
        """The side of a block's tile of m that is the fastest by prediction."""
        return min(SIDES, key=lambda side: self._seconds(side, machine))

    def seconds(self, machine: GpuMachine) -> float:
        return self._seconds(self.side(machine), machine)

    def padded(self, side: int) -> tuple[int, int]:
        """(depth, rows) of u, filled up with zeros."""
        return ceil_div(self.depth, DEPTH) * DEPTH, ceil_div(self.rows, side) * side

    def launch(self, plan: GpuPlan, side: int) -> tuple[GridLaunch, Any]:
        """The kernel, and the last of its arguments (u, v, m, params). u is (batches, *padded)."""
        depth, rows = self.padded(side)
        blocks = rows // side, ceil_div(self.columns, side)
        sizes = {"rows_padded": rows, "depth_padded": depth, "rows": self.rows, "columns": self.columns}
        params = {"row_blocks": blocks[0], "column_blocks": blocks[1], "depth": self.depth, **sizes}
        grid = (blocks[0] * blocks[1] * self.batches,)
        launch = plan.launch(BATCHED_BUILD, f"multiply_{side}", grid, SIDES[side][0])
        return launch, plan.by_value(record_of(BATCHED_PARAMS, params))

    def _seconds(self, side: int, machine: GpuMachine) -> float:
        threads, share = SIDES[side]
        blocks = self.batches * ceil_div(self.rows, side) * ceil_div(self.columns, side)
        flops = 2 * side * side * (self.depth + MORE_STEPS * DEPTH)
        rate = machine.peak("float32") / machine.multiprocessors * share
        at_least = 512 // threads / 2  # blocks that hide each other's waiting
        return max(waves(blocks, machine) + MORE_WAVES, at_least) * flops / rate
