"""FFT convolution within a block: a tile is transformed, multiplied and transformed back by one kernel.

Only x, the spectra of the filter and y touch memory, where a library's transforms would write and read
spectra and padded copies of both. Tiles are rows of up to 32768 reals for kernels of one row, else planes of
up to 128 x 256. They overlap by the kernel (overlap-save). A few channels are summed within the block. Stride
picks from the positions of stride 1, dilation spreads the filter. Wins on depthwise filters of hundreds of
taps: long causal ones, FIR filters, kernels of 31x31 and larger.

Source: the fusion is that of FlashFFTConv (Fu et al. 2023, arXiv:2311.05908), here in float32 on CUDA cores;
transforms and tiles as in `spectral.block_fft`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np

from convalgos.core.problem import ConvProblem
from convalgos.gpu.compile.module import Build
from convalgos.gpu.device import GpuMachine, current
from convalgos.gpu.launch.algorithm import GpuAlgorithm
from convalgos.gpu.launch.grid import GRID_X, NO_BIAS, GridLaunch
from convalgos.gpu.launch.kernel_records import conv_record
from convalgos.gpu.launch.plan import GpuPlan
from convalgos.gpu.spectral import transposed_io
from convalgos.gpu.spectral.block_fft import (
    CHAINS,
    PLANE_CHAINS,
    PREPARE_BYTES,
    BlockTiling,
    Chain,
    block_bytes,
    block_seconds,
    block_tiling,
    filter_problem,
    resident,
    spectral_error,
    spread_filters,
)

CHANNELS = 8  # of a group, at most

# --- shapes ----------------------------------------------------------------------------------


class FusedGeometry(NamedTuple):
    """How a problem is computed: a tile to a block."""

    chain: Chain
    tiling: BlockTiling
    blocks: int
    seconds: float  # predicted, of the kernel alone


def fused_build(chain: Chain) -> Build:
    return chain.build("fft_fused.cu", weighted=True)


# --- the figures for the selector --------------------------------------------------------------


@dataclass(frozen=True)
class FusedFft(GpuAlgorithm):
    chain: Chain | None = None  # the fastest by prediction
    family: ClassVar[str] = "gpu.fft"
    variant: ClassVar[str] = "fused"
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "float16", "bfloat16")
    capability: ClassVar[tuple[int, int]] = (8, 0)
    spreads_nan: ClassVar[bool] = True

    def builds(self) -> Iterable[Build]:
        yield from (fused_build(chain) for chain in CHAINS + PLANE_CHAINS)
        yield from transposed_io.transpose_builds()

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := super().why_not(problem):
            return reason
        if problem.as_3d.kernel[0] > 1:
            return "transforms at most the last two dimensions"
        if problem.w_shape[1] > CHANNELS:
            return (
                f"transforms the channels of a group again for each filter: at most {CHANNELS}, "
                f"not {problem.w_shape[1]}"
            )
        if problem.is_empty:
            return None
        machine = current().figures
        least = min(block_bytes(c, problem.w_shape[1]) for c in tried(problem, self.chain))
        if least > machine.block_shared_bytes:
            return f"needs {least} bytes of shared memory, but a block has {machine.block_shared_bytes}"
        found = fused_geometries(problem, self.chain, machine)
        if not found:
            reach = "x".join(map(str, problem.kernel_extent))
            return f"the kernel reaches over {reach}, more than the largest tile of a block"
        fewest = min(geometry.blocks for geometry in found)
        most = max(fewest, transposed_io.transpose_blocks(problem))
        return "needs more blocks than a launch may have" if most > GRID_X else None

    def choice(self, problem: ConvProblem, machine: GpuMachine) -> FusedGeometry:
        """The fastest by prediction, of a problem that is served."""
        found = fused_geometries(problem, self.chain, machine)
        return next(geometry for geometry in found if geometry.blocks <= GRID_X)

    def cost(self, problem: ConvProblem, machine: GpuMachine) -> float:
        computed = self.choice(problem, machine).seconds
        return computed + machine.launch + transposed_io.transpose_seconds(problem, machine)

    def prepare_cost(self, problem: ConvProblem, machine: GpuMachine) -> float:
        chain = self.choice(problem, machine).chain
        spectra = 8 * problem.K * problem.w_shape[1] * chain.points
        return 6 * machine.launch + machine.stream(problem.w_bytes + 3 * spectra)

    def workspace_bytes(self, problem: ConvProblem) -> int:
        return 0 if problem.is_empty else transposed_io.transposed_bytes(problem)

    def error_bound(self, problem: ConvProblem) -> float:
        points = 1 if problem.is_empty else self.choice(problem, current().figures).chain.points
        return spectral_error(points) + (problem.itemsize == 2) * problem.eps

    def plan(self, problem: ConvProblem) -> GpuPlan:
        return FusedFftPlan(problem, self)


def tried(problem: ConvProblem, chain: Chain | None) -> tuple[Chain, ...]:
    """A chain that is asked for, or those for kernels of one row or of several."""
    known = CHAINS if problem.as_3d.kernel[1] == 1 else PLANE_CHAINS
    return (chain,) if chain else known


@lru_cache(512)
def fused_geometries(
    problem: ConvProblem, chain: Chain | None, machine: GpuMachine
) -> tuple[FusedGeometry, ...]:
    """All that a device can run, of all chains or of one; the fastest by prediction first."""
    found = []
    for one in tried(problem, chain):
        tiling = block_tiling(problem, one.height, one.reals)
        if tiling and resident(one, machine, problem.w_shape[1]):
            seconds = tiles_seconds(problem, one, tiling, machine)
            found.append(FusedGeometry(one, tiling, tiling.count(problem), seconds))
    return tuple(sorted(found, key=lambda geometry: geometry.seconds))


def tiles_seconds(problem: ConvProblem, chain: Chain, tiling: BlockTiling, machine: GpuMachine) -> float:
    """Instructions, or memory: x and y once, spectra once from memory and once for each tile from L2."""
    tiles, channels = tiling.count(problem), problem.w_shape[1]
    spectra = 8 * problem.K * channels * chain.points
    moved = machine.stream(problem.x_bytes + problem.y_bytes + spectra)
    again = 12 * tiles * channels * chain.points / (3 * machine.bandwidth)
    slots = chain.slots() * (channels + 1) / 2  # each channel there, their sum back
    return max(block_seconds(tiles, chain, slots, machine), moved, again)


# --- the plan ----------------------------------------------------------------------------------


class FusedFftPlan(GpuPlan):
    def __init__(self, problem: ConvProblem, algorithm: FusedFft):
        super().__init__(problem, algorithm, algorithm.workspace_bytes(problem))
        p = problem.replace(layout="channels_first")
        self._chain, self._tiling, blocks, _ = algorithm.choice(problem, self.device.figures)
        self._planes = transposed_io.Planes(self)
        self._records = {relu: self.by_value(conv_record(p, relu)) for relu in (False, True)}
        self._params = self.by_value(self._tiling.record(p))
        self._tables = self.device.table(self._chain.tables(weighted=True))
        self._tiles = self._kernel(blocks, p.w_shape[1])

    def _kernel(self, blocks: int, channels: int) -> GridLaunch:
        chain = self._chain
        shared = block_bytes(chain, channels)
        return self.launch(fused_build(chain), "tiles", (blocks,), chain.threads, shared)

    def prepare_filter(self, w: Any) -> Any:
        """(K * C/groups, points) complex64, in the order of the kernel's last stage."""
        xp, p, chain = self.device.xp, self.problem, self._chain
        w = w.reshape(-1, *w.shape[2:])
        spectra = xp.empty((len(w), chain.points), np.complex64)
        most = max(1, PREPARE_BYTES // (8 * chain.points))
        for first in range(0, len(w), most):
            some = w[first : first + most]
            given, tile = filter_problem(len(some), self._tiling)
            x = spread_filters(xp, some, p, self._tiling)
            into = spectra[first : first + len(some)]
            record, tiling = conv_record(given, relu=False), tile.record(given)
            self._kernel(len(some), 1)(x, into, NO_BIAS, NO_BIAS, self._tables, record, tiling, np.int32(1))
        return spectra

    def run(self, x: Any, w: Any, bias: Any, activation: str | None, y: Any, workspace: Any) -> None:
        bias, conv = NO_BIAS if bias is None else bias, self._records[activation is not None]
        x, target = self._planes.begin(x, y, workspace)
        self._tiles(x, w, bias, target, self._tables, conv, self._params, np.int32(0))
        self._planes.end(target, y)


ALGORITHMS = (FusedFft(),)
