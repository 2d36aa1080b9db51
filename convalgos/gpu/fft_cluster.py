"""FFT convolution of rows that no block holds, by clusters of blocks: for filters of up to 128k taps.

The four steps of `gpu.fft.steps` without its trips to memory. A tile of C rows of n points lies in the shared
memories of C blocks that run side by side:
1. Each block transforms its share of the columns, of C points, in registers, and sends the results to the
   blocks that hold their rows.
2. Each block transforms its row, multiplies it by the filter's spectrum, and transforms it back.
3. Columns are fetched from all blocks and transformed back.

Only x, the filter's spectrum and y pass through L2: 16 bytes for a point of a causal filter's tile, where
`gpu.fft.steps` moves 48. Wins on long causal depthwise filters whose tiles fit 8 blocks, the most that a
cluster has on every device.

Never run on hardware: only in an emulation of what NVIDIA documents. Costs are estimates.

Source: Bailey 1990, "FFTs in external or hierarchical memory" (four steps); NVIDIA's PTX ISA, mapa and
barrier.cluster; the rest as in `spectral.block_fft`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from convalgos.core.problem import ConvProblem
from convalgos.gpu.compile.module import Build
from convalgos.gpu.device import GpuMachine, current
from convalgos.gpu.launch.grid import NO_BIAS, GridLaunch, ceil_div
from convalgos.gpu.launch.kernel_records import conv_record
from convalgos.gpu.launch.plan import GpuPlan
from convalgos.gpu.spectral import transposed_io
from convalgos.gpu.spectral.block_fft import (
    CHAINS,
    PREPARE_BYTES,
    BlockTiling,
    Chain,
    block_tiling,
    filter_problem,
    instructions,
    resident,
    spread_filters,
)
from convalgos.gpu.spectral.long_rows import LongRowsFft

FINE = 128  # places that the first part of a table of factors tells apart, as in fft_cluster.cu
NEIGHBOURS = 16  # multiprocessors among which a cluster finds its blocks: those of a GPC; nominal
# Instructions of a point of a column beside its transform, there and back; counted in the code.
COLUMN_SLOTS = 24
UNTRIED = 1.1  # times the prediction: no device has run it, so it is taken where it is clearly better
WAITING = 4e-6  # seconds of a tile that its blocks wait for one another and for memory; estimate

# --- shapes ----------------------------------------------------------------------------------


class Cluster(NamedTuple):
    """Blocks that hold a tile, each a row of it."""

    blocks: int
    chain: Chain  # of a row

    @property
    def points(self) -> int:
        return self.blocks * self.chain.points

    def build(self) -> Build:
        return self.chain.build("fft_cluster.cu", weighted=False, CLUSTER=self.blocks)

    def factors(self) -> np.ndarray:
        """(2, FINE + row points / FINE) complex64: what the results of a column are multiplied by.

        Of result 0, and from each result to the next; at a column that is the product of two: those of its
        remainder and of its quotient by FINE. Computed in float64.
        """
        columns = self.chain.points
        places = np.concatenate([np.arange(FINE), np.arange(0, columns, FINE)])
        turns = np.outer([1 / 4, -1.0], places) / self.points  # the weight turns the other way
        table: np.ndarray = np.exp(2j * math.pi * turns).astype(np.complex64)
        return table


_of_points = {chain.points: chain for chain in CHAINS}
CLUSTERS = tuple(  # tiles of 64k, 128k and 256k reals
    Cluster(blocks, _of_points[points])
    for blocks, points in ((2, 16384), (4, 8192), (4, 16384), (8, 8192), (8, 16384))
)


class ClusterGeometry(NamedTuple):
    """How a problem is computed."""

    cluster: Cluster
    tiling: BlockTiling
    tiles: int

    @property
    def points(self) -> int:
        return self.cluster.points

    @property
    def blocks(self) -> int:
        return self.tiles * self.cluster.blocks


# --- the figures for the selector --------------------------------------------------------------


@dataclass(frozen=True)
class ClusterFft(LongRowsFft[ClusterGeometry]):
    cluster: Cluster | None = None  # the fastest by prediction
    variant: ClassVar[str] = "cluster"
    capability: ClassVar[tuple[int, int]] = (9, 0)
    longest: ClassVar[str] = "the longest tile of a cluster on this device"

    @property
    def is_fixed(self) -> bool:
        return self.cluster is not None

    def builds(self) -> Iterator[Build]:
        yield from (cluster.build() for cluster in CLUSTERS)
        yield from transposed_io.transpose_builds()

    def geometries(self, problem: ConvProblem, machine: GpuMachine) -> list[ClusterGeometry]:
        found = []
        for cluster in (self.cluster,) if self.cluster else CLUSTERS:
            tiling = block_tiling(problem, 1, 2 * cluster.points)
            if tiling is not None and resident(cluster.chain, machine):
                found.append(ClusterGeometry(cluster, tiling, tiling.count(problem)))
        return found

    def seconds(self, problem: ConvProblem, geometry: ClusterGeometry, machine: GpuMachine) -> float:
        return cluster_seconds(problem, geometry, machine)

    def cost(self, problem: ConvProblem, machine: GpuMachine) -> float:
        computed = self.seconds(problem, self.choice(problem, machine), machine)
        return UNTRIED * computed + machine.launch + transposed_io.transpose_seconds(problem, machine)

    def prepare_cost(self, problem: ConvProblem, machine: GpuMachine) -> float:
        points = self.choice(problem, machine).points
        return 6 * machine.launch + machine.stream(problem.w_bytes + 3 * 8 * problem.K * points)

    def workspace_bytes(self, problem: ConvProblem) -> int:
        return 0 if problem.is_empty else transposed_io.transposed_bytes(problem)

    def plan(self, problem: ConvProblem) -> ClusterPlan:
        return ClusterPlan(problem, self, self.choice(problem, current().figures))


def cluster_seconds(problem: ConvProblem, geometry: ClusterGeometry, machine: GpuMachine) -> float:
    """Rounds of clusters that run at once, bound by their instructions or by memory.

    Where a multiprocessor holds one block, it has nothing to do while that waits.
    """
    blocks, chain = geometry.cluster
    at_once = max(1, machine.multiprocessors // NEIGHBOURS * (NEIGHBOURS // blocks))
    rounds = ceil_div(geometry.tiles, at_once)
    slots = chain.slots() + 6 * math.log2(blocks) + COLUMN_SLOTS
    alone = chain.shared_bytes * 2 > machine.sm_shared_bytes or chain.resident == 1
    each = instructions(machine.multiprocessors * chain.points, slots, machine)
    computed = rounds * (each + WAITING * alone) + WAITING
    spectra = 8 * problem.K * geometry.cluster.points
    moved = machine.stream(problem.x_bytes + problem.y_bytes + spectra)
    again = (
        16 * geometry.tiles * geometry.cluster.points / (3 * machine.bandwidth)
    )  # x, spectra and y through L2
    return max(computed, moved, again)


# --- the plan ----------------------------------------------------------------------------------


class ClusterPlan(GpuPlan):
    def __init__(self, problem: ConvProblem, algorithm: ClusterFft, geometry: ClusterGeometry):
        super().__init__(problem, algorithm, algorithm.workspace_bytes(problem))
        p = problem.replace(layout="channels_first")
        self._geometry, self._planes = geometry, transposed_io.Planes(self)
        self._records = {relu: self.by_value(conv_record(p, relu)) for relu in (False, True)}
        self._tiling = self.by_value(geometry.tiling.record(p))
        self._columns = self.device.table(geometry.cluster.factors())
        self._tables = self.device.table(geometry.cluster.chain.tables(weighted=False))
        self._tiles = self._kernel(geometry.tiles)

    def _kernel(self, tiles: int) -> GridLaunch:
        blocks, chain = self._geometry.cluster
        module = self._geometry.cluster.build()
        return self.launch(module, "cluster_tiles", (tiles * blocks,), chain.threads, chain.shared_bytes)

    def prepare_filter(self, w: Any) -> Any:
        """(K, blocks, row points) complex64, in the order of the kernel's last stage."""
        xp, p, (blocks, chain) = self.device.xp, self.problem, self._geometry.cluster
        spectra = xp.empty((p.K, blocks, chain.points), np.complex64)
        most = max(1, PREPARE_BYTES // (8 * self._geometry.cluster.points))
        for first in range(0, p.K, most):
            some = w[first : first + most]
            given, tile = filter_problem(len(some), self._geometry.tiling)
            x = spread_filters(xp, some[:, 0], p, self._geometry.tiling)
            into = spectra[first : first + len(some)]
            record, tiling = conv_record(given, relu=False), tile.record(given)
            arrays = (x, into, NO_BIAS, NO_BIAS, self._columns, self._tables)
            self._kernel(len(some))(*arrays, record, tiling, np.int32(1))
        return spectra

    def run(self, x: Any, w: Any, bias: Any, activation: str | None, y: Any, workspace: Any) -> None:
        bias, conv = NO_BIAS if bias is None else bias, self._records[activation is not None]
        x, target = self._planes.begin(x, y, workspace)
        self._tiles(x, w, bias, target, self._columns, self._tables, conv, self._tiling, np.int32(0))
        self._planes.end(target, y)


ALGORITHMS = (ClusterFft(),)
