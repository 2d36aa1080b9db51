"""Fourier transforms of rows longer than a block holds, in four steps: for filters of up to a million taps.

A transform of 32 n points is n of 32 points in the registers of threads (columns), and 32 of n points within
blocks (rows), so that spectra are multiplied while rows are in shared memory. Points pass through memory
twice: columns write what rows read, rows write what columns read back. Filters in partitions that fit a block
would need the spectra of all partitions of x instead, read once for every later output: more bytes than this
from four partitions on. Passes over some tiles at a time keep the points in L2.

Source: Bailey 1990, "FFTs in external or hierarchical memory" (four steps); the rest as in `block_fft`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from convalgos.core.problem import ConvProblem
from convalgos.gpu.compile.module import Build
from convalgos.gpu.device import GpuMachine, current
from convalgos.gpu.launch.kernel_records import conv_record
from convalgos.gpu.launch.plan import GRID_X, NO_BIAS, GpuAlgorithm, GpuPlan, ceil_div
from convalgos.gpu.spectral import transposed_io
from convalgos.gpu.spectral.block_fft import (
    CHAINS,
    Chain,
    Tiling,
    cosines,
    factors,
    filter_problem,
    filter_tiles,
    instructions,
    resident,
    seconds,
    spectral_error,
    tiling,
    why_not_long_rows,
    why_not_short_rows,
)

RADIX = 32  # points of a column
COLUMN_THREADS = 128  # of a block, as in fft_four_step.cu
COLUMN_SLOTS = 40  # instructions of a point of a column, reading x or writing y with it; counted in the code
PASS_BYTES = 1 << 28  # of points, at most
CACHED = 0.4  # of L2 that points may fill and stay; estimate

# --- shapes ----------------------------------------------------------------------------------


class Steps(NamedTuple):
    """How a problem is computed: its rows, tiles, and the tiles of a pass."""

    chain: Chain
    tiling: Tiling
    total: int  # tiles
    per_pass: int

    @property
    def tile_bytes(self) -> int:
        """Of the points of a tile."""
        return 8 * RADIX * self.chain.points

    @property
    def passes(self) -> int:
        return ceil_div(self.total, self.per_pass)


def columns_build() -> Build:
    return Build.of("fft_four_step.cu", RADIX=RADIX, COSINES=cosines())


# --- the figures for the selector --------------------------------------------------------------


@dataclass(frozen=True)
class SteppedFft(GpuAlgorithm):
    chain: Chain | None = None  # of a row; the fastest by prediction
    family: ClassVar[str] = "gpu.fft"
    variant: ClassVar[str] = "steps"
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "float16", "bfloat16")
    capability: ClassVar[tuple[int, int]] = (8, 0)
    spreads_nan: ClassVar[bool] = True

    def builds(self):
        yield columns_build()
        yield from (chain.build("rows") for chain in CHAINS)
        yield from transposed_io.builds()

    def why_not(self, problem):
        if reason := super().why_not(problem) or why_not_long_rows(problem):
            return reason
        if problem.is_empty:
            return None
        machine = current().figures
        if self.chain is None and (reason := why_not_short_rows(problem, machine)):
            return reason
        if not self.ways(problem, machine):
            return f"the kernel reaches over {problem.kernel_extent[-1]}, more than the longest tile"
        return "needs more blocks than a launch may have" if transposed_io.blocks(problem) > GRID_X else None

    def ways(self, problem: ConvProblem, machine: GpuMachine) -> list[Steps]:
        """All that the device can run."""
        found = []
        for chain in (self.chain,) if self.chain else CHAINS:
            cut = tiling(problem, 1, 2 * RADIX * chain.points)
            if cut is None or not resident(chain, machine):
                continue
            count, tile = cut.count(problem), 8 * RADIX * chain.points
            for limit in (PASS_BYTES, min(PASS_BYTES, int(cached_bytes(machine)))):
                found.append(Steps(chain, cut, count, min(count, max(1, limit // tile))))
        return found

    def choice(self, problem: ConvProblem, machine: GpuMachine) -> Steps:
        """The fastest by prediction, of a problem that is served."""
        return min(self.ways(problem, machine), key=lambda way: steps_seconds(problem, way, machine))

    def cost(self, problem, machine):
        computed = steps_seconds(problem, self.choice(problem, machine), machine)
        return computed + transposed_io.seconds(problem, machine)

    def prepare_cost(self, problem, machine):
        way = self.choice(problem, machine)
        return 9 * machine.launch + machine.stream(problem.w_bytes + 5 * problem.K * way.tile_bytes)

    def workspace_bytes(self, problem):
        if problem.is_empty:
            return 0
        way = self.choice(problem, current().figures)
        return transposed_io.workspace_bytes(problem) + way.per_pass * way.tile_bytes

    def error_bound(self, problem):
        points = 1 if problem.is_empty else RADIX * self.choice(problem, current().figures).chain.points
        return spectral_error(points) + (problem.itemsize == 2) * problem.eps

    def plan(self, problem):
        return SteppedPlan(problem, self, self.choice(problem, current().figures))


def cached_bytes(machine: GpuMachine) -> float:
    """Of points that stay in L2 from one kernel to the next."""
    return machine.constant("fft_four_step.CACHED", CACHED) * machine.l2_bytes


def steps_seconds(problem: ConvProblem, way: Steps, machine: GpuMachine) -> float:
    """Three kernels for each pass, bound by their instructions or by memory.

    Each kernel begins where the one before it ended, so that L2 has a part of its points still.
    """
    p, share = problem, 1 / way.passes
    points = way.per_pass * way.tile_bytes
    spectra = p.K * way.tile_bytes * share
    columns = instructions(way.per_pass * RADIX * way.chain.points, COLUMN_SLOTS, machine)
    kept = min(points, cached_bytes(machine))
    through = machine.stream(points - kept, points) + machine.stream(kept, 0)
    read = max(columns, machine.stream(p.x_bytes * share) + through)
    write = max(columns, machine.stream(p.y_bytes * share) + through)
    slots = way.chain.slots()
    rows = max(
        seconds(RADIX * way.per_pass, way.chain, slots, machine), machine.stream(spectra) + 2 * through
    )
    return way.passes * (read + rows + write + 3 * machine.launch)


# --- the plan ----------------------------------------------------------------------------------


class SteppedPlan(GpuPlan):
    def __init__(self, problem: ConvProblem, algorithm: SteppedFft, way: Steps):
        super().__init__(problem, algorithm, algorithm.workspace_bytes(problem))
        p = problem.replace(layout="channels_first")
        self._way, self._planes = way, transposed_io.Planes(self)
        self._records = {relu: self.by_value(conv_record(p, relu)) for relu in (False, True)}
        self._cut = self.by_value(way.tiling.record(p))
        self._column_table, self._row_tables = self.device.tables(
            factors(RADIX, way.chain.points, weighted=True), way.chain.tables(weighted=False)
        )
        self._columns, self._rows = np.int32(way.chain.points), np.int32(RADIX)
        self._passes = [
            (np.int32(first), self._kernels(min(way.per_pass, way.total - first)))
            for first in range(0, way.total, way.per_pass)
        ]

    def _kernels(self, tiles: int):
        """Columns in, rows and columns out of so many tiles."""
        chain, module = self._way.chain, columns_build()
        blocks = tiles * chain.points // COLUMN_THREADS
        return (
            self.launch(module, "columns_in", (blocks,), COLUMN_THREADS),
            self.launch(chain.build("rows"), "rows", (tiles * RADIX,), chain.threads, chain.shared_bytes),
            self.launch(module, "columns_out", (blocks,), COLUMN_THREADS),
        )

    def prepare_filter(self, w):
        """(K, RADIX, row points) complex64, in the order of the kernels."""
        xp, p, way = self.device.xp, self.problem, self._way
        spectra = xp.empty((p.K, RADIX, way.chain.points), np.complex64)
        most = max(1, PASS_BYTES // way.tile_bytes)
        for first in range(0, p.K, most):
            some = w[first : first + most]
            given, tile = filter_problem(len(some), way.tiling)
            x = filter_tiles(xp, some[:, 0], p, way.tiling)
            points, into = xp.empty_like(spectra[: len(some)]), spectra[first : first + len(some)]
            columns_in, rows, _ = self._kernels(len(some))
            record, cut, start = conv_record(given, relu=False), tile.record(given), np.int32(0)
            columns_in(x, points, self._column_table, self._columns, start, record, cut)
            rows(points, into, self._row_tables, self._rows, np.int32(1), start, np.int32(1))
        return spectra

    def run(self, x, w, bias, activation, y, workspace):
        bias, conv = NO_BIAS if bias is None else bias, self._records[activation is not None]
        x, target = self._planes.begin(x, y, workspace)
        points, of_filter = workspace[self._planes.bytes :], np.int32(self._way.total // self.problem.K)
        for first, (columns_in, rows, columns_out) in self._passes:
            columns_in(x, points, self._column_table, self._columns, first, conv, self._cut)
            rows(points, w, self._row_tables, self._rows, of_filter, first, np.int32(0))
            columns_out(points, bias, target, self._column_table, self._columns, first, conv, self._cut)
        self._planes.end(target, y)


ALGORITHMS = (SteppedFft(),)
