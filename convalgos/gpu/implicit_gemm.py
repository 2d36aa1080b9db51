"""Implicit GEMM on tensor cores: float16 and bfloat16, TF32, TF32 in three products, float64, int8, signs.

The product of `gpu.direct`, in fragments of 16 x 8 sums that a warp computes with one mma instruction, in the
arithmetic that `gemm.mma` tells of. Reads and writes both layouts without a transpose. Wins on dense layers
of these types. float64 needs a GPU whose tensor cores are faster at it than its CUDA cores: an A100 or H100;
on a B200 both are as fast.

`mma.sync` runs on every architecture from 8.0 on. On 10.0 it stands in for `tcgen05`, which no kernel of this
library uses yet. Nothing here has run on hardware.

Source: NVIDIA's PTX ISA, mma.sync.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, NamedTuple

import numpy as np

from convalgos.core.algorithm import error_of_sums
from convalgos.core.problem import LAYOUTS, ConvProblem
from convalgos.gpu.compile.module import ELEMENTS, INTEGER_ELEMENTS, Build
from convalgos.gpu.device import GpuMachine, current
from convalgos.gpu.gemm.mma import COPIED, GATHERED, LOADS, MATHS, STEP_BYTES, TensorCores, is_copied
from convalgos.gpu.gemm.signs import PACK_SIGNS, SignsPlan, of_bytes, pack_threads
from convalgos.gpu.gemm.tap_table import tap_table, why_not_counted
from convalgos.gpu.gemm.tiles import tile_count
from convalgos.gpu.gemm.two_of_four import FOUR, check_two_of_four, held_taps, is_two_of_four
from convalgos.gpu.launch.algorithm import exact_sums
from convalgos.gpu.launch.grid import COUNTED, GRID_X, NO_BIAS, ceil_div, waves
from convalgos.gpu.launch.integer_plan import IntegerGpuPlan
from convalgos.gpu.launch.kernel_records import record_of
from convalgos.gpu.launch.plan import GpuPlan
from convalgos.gpu.launch.split_k import parts_bytes, splits_of

# --- shapes ----------------------------------------------------------------------------------


class ImplicitGemmTile(NamedTuple):
    """Pixels and filters of a block."""

    pixels: int
    filters: int

    @property
    def threads(self) -> int:
        return 128 if self == (64, 64) else 256

    def shared_bytes(self, itemsize: int) -> int:
        """Two stages of rows, each off the banks of the row before: by four words of a fragment."""
        return 2 * (self.pixels + self.filters) * (STEP_BYTES + 4 * max(4, itemsize))


IMPLICIT_GEMM_TILES = (ImplicitGemmTile(128, 128), ImplicitGemmTile(128, 64), ImplicitGemmTile(64, 64))
IMPLICIT_GEMM_PARAMS = np.dtype(
    [(name, np.int32) for name in ("filter_tiles", "taps", "filters_padded", "splits")]
)


MACROS = {"binary": {"X_LAST": 1}, "sparse_half": {"SPARSE": 1}}  # that few builds have
SPARSE_GAIN = 1.6  # times as fast as `half`: half as many products, but x is read as before; an estimate


def step_taps(problem: ConvProblem) -> int:
    """Taps of a step."""
    return STEP_BYTES // problem.itemsize


def tap_steps(problem: ConvProblem) -> int:
    return ceil_div(problem.gemm_k, step_taps(problem))


def implicit_gemm_build(math_: str, dtype: str, tile: ImplicitGemmTile, layout: str, copied: bool) -> Build:
    return Build.of(
        "implicit_gemm.cu",
        **(INTEGER_ELEMENTS if math_ in ("int8", "binary") else {"element_t": ELEMENTS[dtype]}),
        MATH=MATHS[math_],
        TILE_P=tile.pixels,
        TILE_F=tile.filters,
        CHANNELS_LAST=int(layout == "channels_last"),
        VECTOR=int(copied),
        **MACROS.get(math_, {}),
    )


# --- the figures for the selector --------------------------------------------------------------


@dataclass(frozen=True)
class ImplicitGemm(TensorCores):
    family: ClassVar[str] = "gpu.implicit_gemm"

    @property
    def variant(self) -> str:
        return self.math

    @property
    def skips_zeros(self) -> bool:  # type: ignore[override]  # of an instance
        return self.math == "sparse_half"

    def builds(self) -> Iterable[Build]:
        if self.math == "binary":
            for layout, tile in product(LAYOUTS, self.tiles(*LOADS[-1])):
                yield implicit_gemm_build(self.math, "int8", tile, layout, True)
            yield PACK_SIGNS
            return
        loads = [load for load in LOADS if self.math != "sparse_half" or load != LOADS[1]]
        for dtype in self.dtypes[:1] if self.math == "int8" else self.dtypes:  # unsigned ones by the same
            for layout, copied in loads:
                for tile in self.tiles(layout, copied):
                    yield implicit_gemm_build(self.math, dtype, tile, layout, copied)

    def tiles(self, layout: str, copied: bool) -> tuple[ImplicitGemmTile, ...]:
        """Few channels that do not lie in whole 16 bytes are rare channels last: one tile serves them."""
        if layout == "channels_last" and not copied:
            return (IMPLICIT_GEMM_TILES[1],)
        if self.math == "binary":  # mostly bound by memory
            return (IMPLICIT_GEMM_TILES[1],)
        if self.math == "sparse_half":
            return (IMPLICIT_GEMM_TILES[0 if copied else 1],)
        if self.math == "int8":  # gathered singly, loads take the time, not the products
            return IMPLICIT_GEMM_TILES[::2] if copied else (IMPLICIT_GEMM_TILES[1],)
        return IMPLICIT_GEMM_TILES[1:] if self.math in ("3xtf32", "double") else IMPLICIT_GEMM_TILES

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := super().why_not(problem):
            return reason
        if self.math == "sparse_half" and not is_two_of_four(problem.pattern):
            return f"takes filters of pattern 2:4, not {problem.pattern}"
        if problem.is_empty:
            return None
        if self.math == "sparse_half" and problem.w_shape[1] % FOUR:
            return f"takes multiples of {FOUR} input channels in a group, not {problem.w_shape[1]}"
        if self.math == "sparse_half" and problem.layout == "channels_last" and problem.w_shape[1] % 8:
            return f"takes multiples of 8 input channels in a group channels last, not {problem.w_shape[1]}"
        machine = current().figures
        if self.math == "binary" and pack_threads(problem) >= COUNTED:
            return f"numbers the 16 bytes of packed channels, but there are {COUNTED} or more"
        tile, _ = self.geometry(problem, machine)
        shared = tile.shared_bytes(problem.itemsize)
        if shared > machine.block_shared_bytes:
            return f"needs {shared} bytes of shared memory in a block, more than the device has"
        if tile_count(problem, tile) > GRID_X:
            return "needs more blocks than a launch may have"
        return why_not_counted(problem)

    def read(self, problem: ConvProblem) -> ConvProblem:
        """The problem of the arrays that the product reads: of signs those of their bytes."""
        return of_bytes(problem) if self.math == "binary" else problem

    def bytes_of_x(self, problem: ConvProblem) -> int:
        """Of x, where the kernel does not read it as it comes."""
        return of_bytes(problem).x_bytes if self.math == "binary" else 0

    def geometry(self, problem: ConvProblem, machine: GpuMachine) -> tuple[ImplicitGemmTile, int]:
        """The tile, and the parts of the sum, that are the fastest by prediction."""
        problem = self.read(problem)
        tiles = self.tiles(problem.layout, is_copied(problem, problem.w_shape[1]))
        most = machine.block_shared_bytes
        fitting = [t for t in tiles if t.shared_bytes(problem.itemsize) <= most] or tiles[-1:]
        allowed = splits_of(tap_steps(problem))
        return min(product(fitting, allowed), key=lambda g: self._seconds(problem, g[0], g[1], machine))

    def _seconds(
        self, problem: ConvProblem, tile: ImplicitGemmTile, splits: int, machine: GpuMachine
    ) -> float:
        busy = max(waves(tile_count(problem, tile) * splits, machine), 1)
        taps = step_taps(problem) * (ceil_div(tap_steps(problem), splits) + 3)
        per_tap = {"binary": 8, "sparse_half": 1 / SPARSE_GAIN}.get(self.math, 1)
        flops = 2 * tile.pixels * tile.filters * taps * per_tap
        # In float64, products take longer than gathering.
        hidden = is_copied(problem, problem.w_shape[1]) or self.math == "double"
        share = (COPIED if hidden else GATHERED) * (1 if tile.filters == 128 else 0.85)
        rate = self.rate(share, machine)
        again = ceil_div(problem.gemm_n, tile.filters) - 1  # times that x is read once more, from L2
        moved = machine.stream(problem.bytes) + again * problem.x_bytes / (3 * machine.bandwidth)
        parts = machine.stream(2 * parts_bytes(problem, splits)) if splits > 1 else 0.0
        return max(busy * flops / rate, moved) + parts + (splits > 1) * machine.launch

    def cost(self, problem: ConvProblem, machine: GpuMachine) -> float:
        read = self.read(problem)
        seconds = self._seconds(read, *self.geometry(problem, machine), machine) + machine.launch
        if self.math == "binary":
            seconds += machine.launch + machine.stream(problem.x_bytes + read.x_bytes)
        return seconds

    def workspace_bytes(self, problem: ConvProblem) -> int:
        """The parts of a split sum, in the type of sums."""
        if problem.is_empty:
            return 0
        _, splits = self.geometry(problem, current().figures)
        return self.bytes_of_x(problem) + parts_bytes(problem, splits)

    def error_bound(self, problem: ConvProblem) -> float:
        if self.math == "double":
            return error_of_sums(problem)
        if problem.sums_integers:
            return exact_sums(problem)
        # Sums of gemm_k products: a random walk, at twice the error of rounding: tensor cores cut sums off.
        sums = 2**-23 * (8 * math.sqrt(max(1, problem.gemm_k)) + 8)
        return sums + self.rounding(problem)

    def plan(self, problem: ConvProblem) -> GpuPlan:
        plans = {
            "int8": ImplicitGemmIntegers,
            "binary": ImplicitGemmBinary,
            "sparse_half": ImplicitGemmSparse,
        }
        made = plans.get(self.math, ImplicitGemmPlan)
        return made(problem, self, *self.geometry(problem, current().figures))


# --- the plan ----------------------------------------------------------------------------------


class ImplicitGemmPlan(GpuPlan):
    adds_residual = True

    def __init__(self, problem: ConvProblem, algorithm: ImplicitGemm, tile: ImplicitGemmTile, splits: int):
        outputs, read = math.prod(problem.y_shape), algorithm.read(problem)
        super().__init__(problem, algorithm, algorithm.bytes_of_x(problem) + parts_bytes(problem, splits))
        self._read = read
        self._padded = ceil_div(problem.gemm_n, tile.filters) * tile.filters
        self._filter_tiles = self._padded // tile.filters
        self._sparse = algorithm.math == "sparse_half"
        table = tap_table(read, step_taps(read), channels_inner=self._sparse or None)
        self._taps, self._params = self.summed(table, splits)
        self._splits = np.int32(splits)
        copied = is_copied(read, read.w_shape[1])
        module = implicit_gemm_build(algorithm.math, read.dtype, tile, problem.layout, copied)
        grid, shared = (tile_count(problem, tile), splits), tile.shared_bytes(problem.itemsize)
        self._kernel = self.launch(module, "implicit_gemm", grid, tile.threads, shared)
        self._reduce = self.launch(module, "reduce", (ceil_div(outputs, 256),), 256) if splits > 1 else None

    def summed(self, table: np.ndarray, splits: int) -> tuple[Any, Any]:
        """What kernels are told of a sum over taps (taps, 4) in so many parts: the taps, the parameters."""
        sizes = {"filter_tiles": self._filter_tiles, "filters_padded": self._padded}
        params = {**sizes, "taps": len(table), "splits": splits}
        return self.device.table(table), self.by_value(record_of(IMPLICIT_GEMM_PARAMS, params))

    def prepare_filter(self, w: Any) -> Any:
        """(groups, filters_padded, taps), zeros beyond the filters and the taps."""
        return self.rows(w)

    def rows(self, w: Any) -> Any:
        """A filter as `prepare_filter` says."""
        p = self._read
        w = w.reshape(p.groups, p.gemm_n, p.w_shape[1], -1)  # (groups, K/groups, C/groups, T*R*S)
        w = w.transpose(0, 1, 3, 2) if self._sparse or p.layout == "channels_last" else w
        packed = self.device.xp.zeros((p.groups, self._padded, len(self._taps)), w.dtype)
        packed[:, : p.gemm_n, : p.gemm_k] = w.reshape(p.groups, p.gemm_n, p.gemm_k)
        return packed

    def run(self, x: Any, w: Any, bias: Any, activation: str | None, y: Any, workspace: Any) -> None:
        conv = self.conv[activation is not None]
        self.multiply(x, w, bias, y, workspace, conv, self._taps, self._params)

    def multiply(
        self, x: Any, w: Any, bias: Any, y: Any, workspace: Any, conv: Any, taps: Any, params: Any
    ) -> None:
        """Launch the kernels."""
        bias = NO_BIAS if bias is None else bias
        if self._reduce is None:
            self._kernel(x, w, bias, y, NO_BIAS, taps, conv, params)
        else:
            self._kernel(x, w, NO_BIAS, y, workspace, taps, conv, params)
            self._reduce(workspace, bias, y, conv, self._splits)


class ImplicitGemmIntegers(ImplicitGemmPlan, IntegerGpuPlan):
    adds_residual = False

    def __init__(self, problem: ConvProblem, algorithm: ImplicitGemm, tile: ImplicitGemmTile, splits: int):
        super().__init__(problem, algorithm, tile, splits)
        self._sums = {1: (self._taps, self._params)}  # by terms of the filter

    def prepare_filter(self, w: Any) -> Any:
        return IntegerGpuPlan.prepare_filter(self, w)

    def pack(self, terms: Sequence[Any]) -> tuple[Any, Any, Any]:
        """The filter (groups, filters_padded, taps), taps and parameters of all terms."""
        count = len(terms)
        if count not in self._sums:
            table = np.tile(tap_table(self.problem, step_taps(self.problem)), (count, 1))
            self._sums[count] = self.summed(table, int(self._splits))
        return self.device.xp.concatenate([self.rows(w) for w in terms], 2), *self._sums[count]

    def run(self, x: Any, w: Any, bias: Any, activation: Any, y: Any, workspace: Any) -> None:
        packed, *of_sums = w.packed
        self.multiply(x, packed, bias, y, workspace, self.record(w, activation), *of_sums)


class ImplicitGemmSparse(ImplicitGemmPlan):
    def prepare_filter(self, w: Any) -> Any:
        """(groups, filters_padded, taps / 2), and where the taps that are held were.

        Raises:
            ValueError: it is not of pattern 2:4; says where.
        """
        check_two_of_four(self.device, w, self._flips)
        return held_taps(self.device, self.rows(w))


class ImplicitGemmBinary(ImplicitGemmPlan, SignsPlan):
    adds_residual = False

    def __init__(self, problem: ConvProblem, algorithm: ImplicitGemm, tile: ImplicitGemmTile, splits: int):
        super().__init__(problem, algorithm, tile, splits)
        self._packers = {kind: self.packer(kind) for kind in ("int8", "float32", "uint64")}

    def prepare_filter(self, w: Any) -> Any:
        return SignsPlan.prepare_filter(self, w)

    def run(self, x: Any, w: Any, bias: Any, activation: Any, y: Any, workspace: Any) -> None:
        pack, record = self._packers[str(x.dtype)]
        pack(x, workspace, record)
        parts = workspace[self._read.x_bytes :]
        conv = self.record(w, activation)
        self.multiply(workspace, w.packed, bias, y, parts, conv, self._taps, self._params)


ALGORITHMS = tuple(ImplicitGemm(name) for name in MATHS)
