"""wgrad as a split-K GEMM: what algorithms share that sum over all pixels of x and dy, as these lie.

Of a group, dw is the product of dy, as filters x pixels, and the patches of x, as pixels x taps. Often it has
few outputs and long sums, so the pixels are divided into as many parts as fill the device (`split_k`).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np

from convalgos.core.algorithm import Algorithm
from convalgos.core.problem import ConvProblem
from convalgos.gpu.compile.module import Build
from convalgos.gpu.device import GpuMachine, current
from convalgos.gpu.gemm.tap_table import tap_table, why_not_counted
from convalgos.gpu.launch.algorithm import GpuAlgorithm
from convalgos.gpu.launch.grid import GRID_X, GRID_YZ, ceil_div
from convalgos.gpu.launch.kernel_records import DIVISOR, record_of
from convalgos.gpu.launch.plan import PASS_BYTES, GpuPlan
from convalgos.gpu.launch.split_k import ADDERS, LEAST_STEPS, parts_bytes

MOST_WAVES = 8  # of blocks, up to which sums are cut
MANY_PARTS = 16  # from so many on, 8 threads add the parts of an element

# `Params` of split_k_weights.cuh.
SPLIT_K_PARAMS = np.dtype(
    [
        *((name, DIVISOR) for name in ("columns", "rows", "depth", "filter_tiles", "tap_tiles")),
        *((name, np.int32) for name in ("taps", "steps", "parts", "lanes")),
    ]
)


class WeightsTile(Protocol):
    """Filters and taps of a block."""

    @property
    def filters(self) -> int: ...
    @property
    def taps(self) -> int: ...
    @property
    def threads(self) -> int: ...
    @property
    def shared_bytes(self) -> int: ...  # dynamic


T = TypeVar("T", bound=WeightsTile)


def tile_counts(problem: ConvProblem, tile: WeightsTile) -> tuple[int, int]:
    """Tiles of a group along filters and along taps."""
    return ceil_div(problem.gemm_n, tile.filters), ceil_div(problem.gemm_k, tile.taps)


def blocks_of_part(problem: ConvProblem, tile: WeightsTile) -> int:
    """Of each part."""
    return math.prod(tile_counts(problem, tile)) * problem.groups


def read_again(problem: ConvProblem, tile: WeightsTile, machine: GpuMachine) -> float:
    """Seconds in which blocks read x and dy, mostly from L2, beyond the first time."""
    p = problem
    # Channels first, a tile has all taps of its channels, which find one another's inputs in L1.
    shared = max(1.0, math.prod(p.kernel) / math.prod(p.stride)) if p.layout == "channels_first" else 1.0
    row = min(tile.filters, p.gemm_n) + min(tile.taps, p.gemm_k) / shared
    loaded = p.itemsize * p.gemm_m * row * blocks_of_part(p, tile)
    return max(0.0, loaded - p.x_bytes - p.y_bytes) / (3 * machine.bandwidth)


@dataclass(frozen=True)
class SplitKWeights(GpuAlgorithm, Generic[T]):
    """Base of those algorithms."""

    most_bytes: int = field(default=PASS_BYTES, kw_only=True)  # of the parts of a sum
    directions: ClassVar[tuple[str, ...]] = ("backward_weights",)

    # --- for the implementor -----------------------------------------------------------------

    @abstractmethod
    def tiles(self, problem: ConvProblem) -> Sequence[T]:
        """Those to choose from."""

    @abstractmethod
    def step(self, problem: ConvProblem) -> int:
        """Pixels of a step."""

    @abstractmethod
    def summing(self, problem: ConvProblem, tile: T, parts: int, machine: GpuMachine) -> float:
        """Seconds to write dw, or all parts of it."""

    # --- what they share ---------------------------------------------------------------------

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := super().why_not(problem):
            return reason
        if problem.is_empty:
            return None
        tile, _ = self.geometry(problem, current().figures)
        most = current().figures.block_shared_bytes
        if tile.shared_bytes > most:
            return f"needs {tile.shared_bytes} bytes of shared memory in a block, more than the device has"
        if blocks_of_part(problem, tile) > GRID_X:
            return "needs more blocks than a launch may have"
        return why_not_counted(problem)

    def within(
        self, problem: ConvProblem, *, workspace_limit: int | None, deterministic: bool, strict_nan: bool
    ) -> Algorithm:
        return self if workspace_limit is None else replace(self, most_bytes=workspace_limit)

    def prepare_cost(self, problem: ConvProblem, machine: GpuMachine) -> float:
        return 0.0  # dy is read as it lies

    def cost(self, problem: ConvProblem, machine: GpuMachine) -> float:
        return self.seconds(problem, *self.geometry(problem, machine), machine) + machine.launch

    def seconds(self, problem: ConvProblem, tile: T, parts: int, machine: GpuMachine) -> float:
        """Of a run, less its first launch."""
        summing = self.summing(problem, tile, parts, machine)
        if parts == 1:
            return summing
        return summing + machine.launch + machine.stream(2 * parts_bytes(problem, parts))

    def geometry(self, problem: ConvProblem, machine: GpuMachine) -> tuple[T, int]:
        """The tile, and the parts of the sums, that are the fastest by prediction."""
        return _geometry(self, problem, machine)

    def workspace_bytes(self, problem: ConvProblem) -> int:
        if problem.is_empty:
            return 0
        return parts_bytes(problem, self.geometry(problem, current().figures)[1])

    def chain(self, problem: ConvProblem) -> tuple[int, int]:
        """(pixels that a part sums one after the other, parts)."""
        if problem.is_empty:
            return 1, 1
        parts = self.geometry(problem, current().figures)[1]
        return ceil_div(problem.gemm_m, parts), parts


@lru_cache(1024)  # a choice asks for it several times
def _geometry(algorithm: SplitKWeights[T], problem: ConvProblem, machine: GpuMachine) -> tuple[T, int]:
    steps = ceil_div(problem.gemm_m, algorithm.step(problem))
    fitting = algorithm.most_bytes // max(1, parts_bytes(problem, 2) // 2)
    most = min(steps // LEAST_STEPS, fitting, GRID_YZ)

    def choices() -> Iterator[tuple[float, int, T]]:
        for tile in algorithm.tiles(problem):
            of_a_part = blocks_of_part(problem, tile)
            full = {wave * machine.multiprocessors // of_a_part for wave in range(1, MOST_WAVES + 1)}
            for parts in sorted({1, *(min(n, most) for n in full if min(n, most) > 1)}):
                yield algorithm.seconds(problem, tile, parts, machine), parts, tile

    _, parts, tile = min(choices(), key=lambda choice: choice[:2])
    return tile, parts


# --- the plan ----------------------------------------------------------------------------------


class SplitKWeightsPlan(GpuPlan):
    """Runs a kernel (x, dy, dw, parts, taps, conv, params) on the blocks of all parts, then adds these up."""

    def __init__(
        self,
        problem: ConvProblem,
        algorithm: SplitKWeights[Any],
        module: Build,
        kernel: str,
        tile: WeightsTile,
        parts: int,
    ):
        super().__init__(problem, algorithm, parts_bytes(problem, parts))
        self._taps = self.device.table(tap_table(problem, tile.taps))  # (tap_tiles * tile.taps, 4)
        depth, rows, columns = problem.as_3d.spatial_out
        filter_tiles, tap_tiles = tile_counts(problem, tile)
        lanes = 8 if parts >= MANY_PARTS else 1
        params = {
            **{"columns": columns, "rows": rows, "depth": depth},
            **{"filter_tiles": filter_tiles, "tap_tiles": tap_tiles, "taps": problem.gemm_k},
            **{"steps": ceil_div(problem.gemm_m, algorithm.step(problem)), "parts": parts, "lanes": lanes},
        }
        self._params = self.by_value(record_of(SPLIT_K_PARAMS, params))
        grid = (blocks_of_part(problem, tile), parts)
        self._kernel = self.launch(module, kernel, grid, tile.threads, tile.shared_bytes)
        adding = ceil_div(math.prod(problem.w_shape), ADDERS // lanes)
        self._add = self.launch(module, "add_parts", (adding,), ADDERS) if parts > 1 else None

    def prepare_filter(self, w: Any) -> Any:
        """dy itself."""
        return self._vectors(w)

    def run(self, x: Any, w: Any, bias: Any, activation: str | None, y: Any, workspace: Any) -> None:
        conv = self.conv[False]
        self._kernel(x, w, y, workspace, self._taps, conv, self._params)
        if self._add is not None:
            self._add(workspace, y, conv, self._params)
