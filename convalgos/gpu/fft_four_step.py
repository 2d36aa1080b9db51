"""FFT convolution of rows that no block holds, in four steps: for filters of up to a million taps.

A transform of 32 n points is computed as
1. columns: n transforms of 32 points, in the registers of threads;
2. a twiddle factor for each point;
3. rows: 32 transforms of n points, each within a block (n points lie in its shared memory);
4. the product with the filter's spectrum, while rows are in shared memory.
Then the same way back. Points pass through memory twice: rows read what columns wrote, and columns read back
what rows wrote. Passes over some tiles at a time keep the points in L2.

The alternative, a filter in partitions that each fit a block, needs the spectra of all partitions of x, read
once for every later output: more bytes than this from four partitions on.

Source: Bailey 1990, "FFTs in external or hierarchical memory" (four steps); the rest as in
`spectral.block_fft`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from convalgos.core.problem import ConvProblem
from convalgos.gpu.compile.module import Build
from convalgos.gpu.device import GpuMachine, current
from convalgos.gpu.launch.grid import NO_BIAS, GridLaunch, ceil_div
from convalgos.gpu.launch.kernel_records import conv_record
from convalgos.gpu.launch.plan import PASS_BYTES, GpuPlan
from convalgos.gpu.spectral import transposed_io
from convalgos.gpu.spectral.block_fft import (
    CHAINS,
    BlockTiling,
    Chain,
    block_seconds,
    block_tiling,
    cosines,
    factors,
    filter_problem,
    instructions,
    resident,
    spread_filters,
)
from convalgos.gpu.spectral.long_rows import LongRowsFft

RADIX = 32  # points of a column
COLUMN_THREADS = 128  # of a block, as in fft_four_step.cu
COLUMN_SLOTS = 40  # instructions of a point of a column, reading x or writing y with it; counted in the code
CACHED = 0.4  # of L2 that points may fill and stay; estimate

# --- shapes ----------------------------------------------------------------------------------


class FourStepGeometry(NamedTuple):
    """How a problem is computed: its rows, tiles, and the tiles of a pass."""

    chain: Chain
    tiling: BlockTiling
    total: int  # tiles
    per_pass: int

    @property
    def points(self) -> int:
        return RADIX * self.chain.points

    @property
    def tile_bytes(self) -> int:
        """Of the points of a tile."""
        return 8 * self.points

    @property
    def blocks(self) -> int:
        return self.per_pass * max(RADIX, self.chain.points // COLUMN_THREADS)

    @property
    def passes(self) -> int:
        return ceil_div(self.total, self.per_pass)


def columns_build() -> Build:
    return Build.of("fft_four_step.cu", RADIX=RADIX, COSINES=cosines())


def step_rows_build(chain: Chain) -> Build:
    return chain.build("fft_four_step_rows.cu", weighted=False)


# --- the figures for the selector --------------------------------------------------------------


@dataclass(frozen=True)
class FourStepFft(LongRowsFft[FourStepGeometry]):
    chain: Chain | None = None  # of a row; the fastest by prediction
    variant: ClassVar[str] = "steps"
    capability: ClassVar[tuple[int, int]] = (8, 0)
    longest: ClassVar[str] = "the longest tile"

    @property
    def is_fixed(self) -> bool:
        return self.chain is not None

    def builds(self) -> Iterator[Build]:
        yield columns_build()
        yield from (step_rows_build(chain) for chain in CHAINS)
        yield from transposed_io.transpose_builds()

    def geometries(self, problem: ConvProblem, machine: GpuMachine) -> list[FourStepGeometry]:
        found = []
        for chain in (self.chain,) if self.chain else CHAINS:
            tiling = block_tiling(problem, 1, 2 * RADIX * chain.points)
            if tiling is None or not resident(chain, machine):
                continue
            count, tile = tiling.count(problem), 8 * RADIX * chain.points
            for limit in (PASS_BYTES, min(PASS_BYTES, int(cached_bytes(machine)))):
                found.append(FourStepGeometry(chain, tiling, count, min(count, max(1, limit // tile))))
        return found

    def seconds(self, problem: ConvProblem, geometry: FourStepGeometry, machine: GpuMachine) -> float:
        return four_step_seconds(problem, geometry, machine)

    def cost(self, problem: ConvProblem, machine: GpuMachine) -> float:
        computed = self.seconds(problem, self.choice(problem, machine), machine)
        return computed + transposed_io.transpose_seconds(problem, machine)

    def prepare_cost(self, problem: ConvProblem, machine: GpuMachine) -> float:
        spectra = problem.K * self.choice(problem, machine).tile_bytes
        return 9 * machine.launch + machine.stream(problem.w_bytes + 5 * spectra)

    def workspace_bytes(self, problem: ConvProblem) -> int:
        if problem.is_empty:
            return 0
        geometry = self.choice(problem, current().figures)
        return transposed_io.transposed_bytes(problem) + geometry.per_pass * geometry.tile_bytes

    def plan(self, problem: ConvProblem) -> FourStepPlan:
        return FourStepPlan(problem, self, self.choice(problem, current().figures))


def cached_bytes(machine: GpuMachine) -> float:
    """Of points that stay in L2 from one kernel to the next."""
    return machine.constant("fft_four_step.CACHED", CACHED) * machine.l2_bytes


def four_step_seconds(problem: ConvProblem, geometry: FourStepGeometry, machine: GpuMachine) -> float:
    """Three kernels for each pass, bound by their instructions or by memory.

    Each kernel begins where the one before it ended, so that L2 has a part of its points still.
    """
    p, share = problem, 1 / geometry.passes
    points = geometry.per_pass * geometry.tile_bytes
    spectra = p.K * geometry.tile_bytes * share
    columns = instructions(geometry.per_pass * RADIX * geometry.chain.points, COLUMN_SLOTS, machine)
    kept = min(points, cached_bytes(machine))
    through = machine.stream(points - kept, points) + machine.stream(kept, 0)
    read = max(columns, machine.stream(p.x_bytes * share) + through)
    write = max(columns, machine.stream(p.y_bytes * share) + through)
    slots = geometry.chain.slots()
    rows = max(
        block_seconds(RADIX * geometry.per_pass, geometry.chain, slots, machine),
        machine.stream(spectra) + 2 * through,
    )
    return geometry.passes * (read + rows + write + 3 * machine.launch)


# --- the plan ----------------------------------------------------------------------------------


class FourStepPlan(GpuPlan):
    def __init__(self, problem: ConvProblem, algorithm: FourStepFft, geometry: FourStepGeometry):
        super().__init__(problem, algorithm, algorithm.workspace_bytes(problem))
        p = problem.replace(layout="channels_first")
        self._geometry, self._planes = geometry, transposed_io.Planes(self)
        self._records = {relu: self.by_value(conv_record(p, relu)) for relu in (False, True)}
        self._tiling = self.by_value(geometry.tiling.record(p))
        self._column_table, self._row_tables = self.device.tables(
            factors(RADIX, geometry.chain.points, weighted=True), geometry.chain.tables(weighted=False)
        )
        self._columns, self._rows = np.int32(geometry.chain.points), np.int32(RADIX)
        self._passes = [
            (np.int32(first), self._kernels(min(geometry.per_pass, geometry.total - first)))
            for first in range(0, geometry.total, geometry.per_pass)
        ]

    def _kernels(self, tiles: int) -> tuple[GridLaunch, GridLaunch, GridLaunch]:
        """Columns in, rows and columns out of so many tiles."""
        chain, module = self._geometry.chain, columns_build()
        blocks = tiles * chain.points // COLUMN_THREADS
        return (
            self.launch(module, "columns_in", (blocks,), COLUMN_THREADS),
            self.launch(step_rows_build(chain), "rows", (tiles * RADIX,), chain.threads, chain.shared_bytes),
            self.launch(module, "columns_out", (blocks,), COLUMN_THREADS),
        )

    def prepare_filter(self, w: Any) -> Any:
        """(K, RADIX, row points) complex64, in the order of the kernels."""
        xp, p, geometry = self.device.xp, self.problem, self._geometry
        spectra = xp.empty((p.K, RADIX, geometry.chain.points), np.complex64)
        most = max(1, PASS_BYTES // geometry.tile_bytes)
        for first in range(0, p.K, most):
            some = w[first : first + most]
            given, tile = filter_problem(len(some), geometry.tiling)
            x = spread_filters(xp, some[:, 0], p, geometry.tiling)
            points, into = xp.empty_like(spectra[: len(some)]), spectra[first : first + len(some)]
            columns_in, rows, _ = self._kernels(len(some))
            record, tiling, start = conv_record(given, relu=False), tile.record(given), np.int32(0)
            columns_in(x, points, self._column_table, self._columns, start, record, tiling)
            rows(points, into, self._row_tables, self._rows, np.int32(1), start, np.int32(1))
        return spectra

    def run(self, x: Any, w: Any, bias: Any, activation: str | None, y: Any, workspace: Any) -> None:
        bias, conv = NO_BIAS if bias is None else bias, self._records[activation is not None]
        x, target = self._planes.begin(x, y, workspace)
        points, of_filter = workspace[self._planes.bytes :], np.int32(self._geometry.total // self.problem.K)
        for first, (columns_in, rows, columns_out) in self._passes:
            columns_in(x, points, self._column_table, self._columns, first, conv, self._tiling)
            rows(points, w, self._row_tables, self._rows, of_filter, first, np.int32(0))
            columns_out(points, bias, target, self._column_table, self._columns, first, conv, self._tiling)
        self._planes.end(target, y)


ALGORITHMS = (FourStepFft(),)
