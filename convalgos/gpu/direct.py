"""Direct convolution on the GPU: an implicit GEMM on CUDA cores, for every problem and element type.

The convolution of a group is a product of gemm_m pixels x gemm_k taps by gemm_k taps x gemm_n filters. A
block of threads computes a tile of it from shared memory, each thread a small tile in registers. The matrix
of patches is never stored: a table gives, for each tap, its offset in x and its place in the kernel. Sums are
float32 for all types but float64, so results are as exact as the element type allows. 8-bit integers are
multiplied four taps at a time (dp4a), and summed exactly.

It always serves, and cuDNN is verified against it. It wins on strided layers, on shapes too odd for the
others, and in strict float32 on 1x1.

Source: Chetlur et al. 2014, arXiv:1410.0759 (implicit precomputed GEMM); register tiles as in Volkov and
Demmel 2008.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, NamedTuple

import numpy as np

from convalgos.core.element_types import DTYPES, INTEGERS
from convalgos.core.problem import LAYOUTS, ConvProblem
from convalgos.gpu.compile.module import ELEMENTS, INTEGER_ELEMENTS, Build
from convalgos.gpu.device import GpuMachine, current
from convalgos.gpu.gemm.tap_table import tap_table, why_not_counted
from convalgos.gpu.gemm.tiles import ARITHMETIC, tile_count
from convalgos.gpu.launch.algorithm import GpuAlgorithm, exact_sums
from convalgos.gpu.launch.grid import GRID_X, NO_BIAS, ceil_div, waves
from convalgos.gpu.launch.integer_plan import IntegerGpuPlan
from convalgos.gpu.launch.kernel_records import DIVISOR, record_of
from convalgos.gpu.launch.plan import GpuPlan

TILE_K = 8  # taps of a step, or of integers words of four, as in direct.cu
WORD = 4

# --- shapes ----------------------------------------------------------------------------------


class DirectTile(NamedTuple):
    """Pixels and filters of a block, and of a thread."""

    pixels: int
    filters: int
    thread_pixels: int
    thread_filters: int

    @property
    def threads(self) -> int:
        return self.pixels // self.thread_pixels * (self.filters // self.thread_filters)


# The float64 sums of large tiles would not fit the registers.
LARGE = tuple(DirectTile(*n) for n in ((128, 128, 8, 8), (128, 64, 8, 4)))
INTEGER = tuple(DirectTile(*n) for n in ((128, 64, 8, 4), (128, 16, 4, 2)))
SMALL = tuple(DirectTile(*n) for n in ((64, 64, 4, 4), (128, 16, 4, 2), (256, 4, 4, 1)))

# `Params` of direct.cu.
DIRECT_PARAMS = np.dtype(
    [
        *((name, DIVISOR) for name in ("filter_tiles", "groups", "columns", "rows", "depth")),
        *((name, np.int32) for name in ("taps", "filters_padded")),
    ]
)


def direct_tiles(dtype: str) -> tuple[DirectTile, ...]:
    if dtype in INTEGERS:
        return INTEGER
    return SMALL if dtype == "float64" else LARGE + SMALL


def taps_of_step(problem: ConvProblem) -> int:
    """Taps of a step: four 8-bit ones lie in a word."""
    return TILE_K * (WORD if problem.sums_integers else 1)


def in_words(problem: ConvProblem) -> bool:
    """Whether the taps of a word lie together in x."""
    return problem.layout == "channels_last" and problem.w_shape[1] % WORD == 0


def direct_build(tile: DirectTile, dtype: str, layout: str, words: bool = False) -> Build:
    """words: of integers, whether the taps of a word lie together in x."""
    element: dict[str, str | int] = {"element_t": ELEMENTS.get(dtype, "")}
    return Build.of(
        "direct.cu",
        **(INTEGER_ELEMENTS | {"VECTOR": int(words)} if dtype in INTEGERS else element),
        TILE_M=tile.pixels,
        TILE_N=tile.filters,
        THREAD_M=tile.thread_pixels,
        THREAD_N=tile.thread_filters,
        CHANNELS_LAST=int(layout == "channels_last"),
    )


# --- the figures for the selector --------------------------------------------------------------


@dataclass(frozen=True)
class Direct(GpuAlgorithm):
    family: ClassVar[str] = "gpu.direct"
    dtypes: ClassVar[tuple[str, ...]] = (*DTYPES, *INTEGERS)

    def builds(self) -> Iterable[Build]:
        for dtype, layout in product(DTYPES, LAYOUTS):
            yield from (direct_build(tile, dtype, layout) for tile in direct_tiles(dtype))
        for layout, words in ((LAYOUTS[0], False), (LAYOUTS[1], False), (LAYOUTS[1], True)):
            yield from (direct_build(tile, "int8", layout, words) for tile in INTEGER)

    def spills(self, build: Build, arch: str) -> int:
        # 64 sums and the taps on their way fill 128 registers, with which two blocks share a multiprocessor.
        large = dict(build.macros)["TILE_N"] == 128 and dict(build.macros)["THREAD_N"] == 8
        return 32 if large and arch != "sm_90a" else 0

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := super().why_not(problem):
            return reason
        if not problem.is_empty and tile_count(problem, self.tile(problem, current().figures)) > GRID_X:
            return "needs more blocks than a launch may have"
        return why_not_counted(problem)

    def cost(self, problem: ConvProblem, machine: GpuMachine) -> float:
        tile = self.tile(problem, machine)
        return _compute(problem, tile, machine) + machine.launch

    def error_bound(self, problem: ConvProblem) -> float:
        if problem.sums_integers:
            return exact_sums(problem)
        # sums of gemm_k products in order: errors grow like a random walk, so 4 sqrt(k) eps covers them
        eps = np.finfo("float64" if problem.dtype == "float64" else "float32").eps
        return (
            float(eps) * (4 * math.sqrt(max(1, problem.gemm_k)) + 2) + (problem.itemsize == 2) * problem.eps
        )

    def tile(self, problem: ConvProblem, machine: GpuMachine) -> DirectTile:
        """The fastest by prediction."""
        return min(direct_tiles(problem.dtype), key=lambda tile: _compute(problem, tile, machine))

    def plan(self, problem: ConvProblem) -> GpuPlan:
        tile = self.tile(problem, current().figures)
        return (DirectIntegers if problem.sums_integers else DirectPlan)(problem, self, tile)


def _compute(problem: ConvProblem, tile: DirectTile, machine: GpuMachine) -> float:
    """Seconds of the busiest multiprocessor, or of memory."""
    taps = ceil_div(problem.gemm_k, taps_of_step(problem)) * taps_of_step(problem)
    rate = machine.peak(problem.dtype) / machine.multiprocessors
    # Each product needs a share of a load from shared memory, and the tap and the bounds of its x.
    reuse = 1 + 1.5 * (1 / tile.thread_pixels + 1 / tile.thread_filters)
    each = WORD if problem.sums_integers and not in_words(problem) else 1  # loads of a word
    reuse += 10 * each * tile.threads / (tile.pixels * tile.filters)
    at_least = 2 if tile.pixels * tile.filters < 128 * 128 else 1  # blocks to hide latency
    busy = max(waves(tile_count(problem, tile), machine), at_least)
    arithmetic = busy * tile.pixels * tile.filters * (taps + 16) * 2 * reuse / (rate * ARITHMETIC)
    again = ceil_div(problem.gemm_n, tile.filters)  # how often x is read, mostly from L2
    return max(arithmetic, machine.stream(problem.bytes) + machine.stream((again - 1) * problem.x_bytes) / 3)


# --- the plan ----------------------------------------------------------------------------------


def padded_filters(problem: ConvProblem, tile: DirectTile) -> int:
    """Filters of a group, filled up to whole tiles."""
    return ceil_div(problem.gemm_n, tile.filters) * tile.filters


def direct_params(problem: ConvProblem, tile: DirectTile, taps: int) -> np.ndarray:
    """(1,) DIRECT_PARAMS"""
    padded = padded_filters(problem, tile)
    depth, rows, columns = problem.as_3d.spatial_out
    params = {
        "filter_tiles": padded // tile.filters,
        "groups": problem.groups,
        **{"columns": columns, "rows": rows, "depth": depth},
        **{"taps": taps, "filters_padded": padded},
    }
    return record_of(DIRECT_PARAMS, params)


class DirectPlan(GpuPlan):
    def __init__(self, problem: ConvProblem, algorithm: Direct, tile: DirectTile):
        super().__init__(problem, algorithm)
        table = tap_table(problem, TILE_K)  # (taps, 4)
        self._padded = padded_filters(problem, tile)
        self._taps = self.device.table(table)
        self._params = self.by_value(direct_params(problem, tile, len(table)))
        module = direct_build(tile, problem.dtype, problem.layout)
        self._kernel = self.launch(module, "direct", (tile_count(problem, tile),), tile.threads)

    def prepare_filter(self, w: Any) -> Any:
        """(groups, taps, filters_padded), zeros beyond the filters and the taps."""
        p = self.problem
        w = w.reshape(p.groups, p.gemm_n, p.w_shape[1], -1)  # (groups, K/groups, C/groups, T*R*S)
        order = (0, 3, 2, 1) if p.layout == "channels_last" else (0, 2, 3, 1)
        packed = self.device.xp.zeros((p.groups, len(self._taps), self._padded), w.dtype)
        packed[:, : p.gemm_k, : p.gemm_n] = w.transpose(order).reshape(p.groups, p.gemm_k, p.gemm_n)
        return packed

    def run(self, x: Any, w: Any, bias: Any, activation: str | None, y: Any, workspace: Any) -> None:
        bias = NO_BIAS if bias is None else bias
        self._kernel(x, w, bias, y, self._taps, self.conv[activation is not None], self._params)


class DirectIntegers(IntegerGpuPlan):
    def __init__(self, problem: ConvProblem, algorithm: Direct, tile: DirectTile):
        super().__init__(problem, algorithm)
        self._table = tap_table(problem, taps_of_step(problem))  # (taps, 4)
        self._tile = tile
        self._sums: dict[int, tuple[Any, Any]] = {}  # by terms of the filter
        module = direct_build(tile, "int8", problem.layout, in_words(problem))
        self._kernel = self.launch(module, "direct", (tile_count(problem, tile),), tile.threads)

    def pack(self, terms: Sequence[Any]) -> tuple[Any, Any, Any]:
        """The filter, taps and parameters of all terms.

        The filter is (groups, taps / 4, filters_padded, 4), zeros beyond the filters and the taps of a term.
        """
        p, count, padded = self.problem, len(terms), padded_filters(self.problem, self._tile)
        if count not in self._sums:
            table = np.tile(self._table, (count, 1))
            params = self.by_value(direct_params(p, self._tile, len(table)))
            self._sums[count] = self.device.table(table), params
        order = (0, 3, 2, 1) if p.layout == "channels_last" else (0, 2, 3, 1)
        packed = self.device.xp.zeros((p.groups, count, len(self._table), padded), np.int8)
        for i, w in enumerate(terms):
            w = w.reshape(p.groups, p.gemm_n, p.w_shape[1], -1)  # (groups, K/groups, C/groups, T*R*S)
            packed[:, i, : p.gemm_k, : p.gemm_n] = w.transpose(order).reshape(p.groups, p.gemm_k, p.gemm_n)
        words = packed.reshape(p.groups, -1, WORD, padded).transpose(0, 1, 3, 2)
        return self.device.xp.ascontiguousarray(words), *self._sums[count]

    def run(self, x: Any, w: Any, bias: Any, activation: Any, y: Any, workspace: Any) -> None:
        packed, taps, params = w.packed
        bias = NO_BIAS if bias is None else bias
        self._kernel(x, packed, bias, y, taps, self.record(w, activation), params)


ALGORITHMS = (Direct(),)
