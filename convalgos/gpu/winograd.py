"""Winograd's short convolutions on the GPU, F(2, 3) and F(4, 3), in strict float32.

F(m, 3) computes m outputs from m + 2 products per dimension, instead of 3 m: F(4x4, 3x3) needs 2.25 products
per output instead of 9. It serves kernels of three taps along the last two dimensions, or along the last.

`f4x3` does everything in one kernel: only x, the transformed filter and y touch memory. Where there are few
tiles, the sum over channels is split among blocks. `f4x3_gemm` writes the transformed x to memory and
multiplies it by a batched GEMM: with many channels and tiles, products are most of the work, and larger tiles
of them run faster. Wins on 3x3 of stride 1 wherever strict float32 is asked for; F(2, 3) only where maps are
too small for tiles of 4.

Source: Lavin and Gray 2016, arXiv:1509.09308; fused schedules as in Yan et al., PPoPP 2020. The matrices are
the exact ones of `core.cook_toom`, printed into the CUDA source.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any, ClassVar, NamedTuple

import numpy as np

from convalgos.core.cook_toom import amplification, cook_toom
from convalgos.core.problem import ConvProblem
from convalgos.gpu.compile.matrix_source import statements
from convalgos.gpu.compile.module import Build
from convalgos.gpu.device import GpuMachine, current
from convalgos.gpu.gemm.batched import BATCHED_BUILD, FOUR, BatchedGemm
from convalgos.gpu.launch.algorithm import GpuAlgorithm
from convalgos.gpu.launch.grid import COUNTED, GRID_X, GRID_YZ, NO_BIAS, ceil_div, waves
from convalgos.gpu.launch.kernel_records import DIVISOR, record_of
from convalgos.gpu.launch.plan import PASS_BYTES, GpuPlan
from convalgos.gpu.launch.split_k import parts_bytes, splits_of

TAPS = 3
BLOCK_TILES = BLOCK_FILTERS = 32  # of a block of the fused kernel, as in winograd.cu
CHANNELS = 8  # of one of its steps
# Fitted to a prototype with the same steps on an H200, 24 layers: seconds of a step of F(4x4, 3x3) at 1.98
# GHz with rows of x loaded in vectors; what it takes times that where they are not; steps that the start and
# the way back of a block take; the share of a copy's speed that the transforms around the products reach.
STEP = 2.73e-6
SINGLE_LOADS = 1.12
BLOCK_STEPS = 1.1
TRANSFORMS = 0.8

# --- shapes ----------------------------------------------------------------------------------

# `Params` of winograd.cu.
WINOGRAD_PARAMS = np.dtype(
    [
        *((n, DIVISOR) for n in ("columns", "rows", "depth", "y_channel", "filters_all")),
        *((n, DIVISOR) for n in ("fastest_of_x", "fastest_of_y")),
        *((n, np.int32) for n in ("tiles", "channels", "filters", "channel_blocks", "filter_blocks")),
        *((n, np.int32) for n in ("splits", "first", "count")),
    ]
)


class WinogradTiling(NamedTuple):
    """How the output is cut into tiles of m (x m)."""

    dims: int
    rows: int  # of tiles in a plane; in one dimension, all rows of the output
    columns: int
    tiles: int  # in all
    points: int


def transformed_dims(problem: ConvProblem) -> int:
    """How many of the last dimensions are transformed: 2, 1, or 0 where the problem does not fit."""
    p = problem.as_3d
    if p.kernel[0] != 1 or p.padding[0] != (0, 0):
        return 0
    if p.kernel[1:] == (TAPS, TAPS) and p.stride[1:] == (1, 1) == p.dilation[1:]:
        return 2
    alone = p.kernel[1:] == (1, TAPS) and p.padding[1] == (0, 0)
    return 1 if alone and p.stride[2] == p.dilation[2] == 1 else 0


def winograd_tiling(problem: ConvProblem, m: int) -> WinogradTiling:
    """The tiles of a problem that fits."""
    p, dims = problem.as_3d, transformed_dims(problem)
    rows = ceil_div(p.spatial_out[1], m) if dims == 2 else p.spatial_out[1]
    columns = ceil_div(p.spatial_out[2], m)
    return WinogradTiling(
        dims, rows, columns, p.N * p.spatial_out[0] * rows * columns, (m + TAPS - 1) ** dims
    )


def per_warp(points: int) -> int:
    """Points of a warp of the fused kernel: its sums fill a good part of the registers."""
    return {36: 3, 16: 2}.get(points, 1)


@cache
def winograd_build(m: int, dims: int, fused: bool, layout: str) -> Build:
    exact = cook_toom(m, TAPS)
    points = (m + TAPS - 1) ** dims
    return Build.of(
        "winograd.cu",
        FUSED=int(fused),
        M=m,
        ALPHA=m + TAPS - 1,
        DIMS=dims,
        PER_WARP=per_warp(points),
        CHANNELS_LAST=int(layout == "channels_last"),
        INPUT_TRANSFORM=statements(exact.BT, "d[{i} * STEP]", "d[{i} * STEP]"),
        OUTPUT_TRANSFORM=statements(exact.AT, "p[{i} * FROM]", "o[{i} * TO]"),
    )


def transformed_filter(xp: Any, w: Any, m: int, dims: int) -> Any:
    """(points, K, C/groups) float32 of a filter (K, C/groups, *kernel), rounded once."""
    g = xp.asarray(np.array(cook_toom(m, TAPS).G, dtype=np.float64))  # (alpha, 3)
    w = w.astype(np.float64).reshape(*w.shape[:2], *(TAPS,) * dims)
    # Not as products of matrices: those would need cuBLAS, which CuPy alone does not bring.
    u = sum(w[..., k, None] * g[:, k] for k in range(TAPS))  # the last dimension: (..., alpha)
    if dims == 2:
        u = sum(u[:, :, k, None] * g[:, k, None] for k in range(TAPS))  # (K, C/groups, alpha, alpha)
    u = u.reshape(*u.shape[:2], -1)
    return xp.ascontiguousarray(xp.moveaxis(u, -1, 0).astype(np.float32))


# --- the figures for the selector --------------------------------------------------------------


@dataclass(frozen=True)
class Winograd(GpuAlgorithm):
    m: int
    fused: bool = True
    family: ClassVar[str] = "gpu.winograd"
    dtypes: ClassVar[tuple[str, ...]] = ("float32",)
    capability: ClassVar[tuple[int, int]] = (8, 0)
    spreads_nan: ClassVar[bool] = True

    @property
    def variant(self) -> str:
        return f"f{self.m}x{TAPS}" + ("" if self.fused else "_gemm")

    def builds(self) -> Iterable[Build]:
        for dims, layout in product((1, 2), ("channels_first", "channels_last")):
            yield winograd_build(self.m, dims, self.fused, layout)
        if not self.fused:
            yield BATCHED_BUILD

    def spills(self, build: Build, arch: str) -> int:
        # F(4x4, 3x3): 96 sums and a patch of 36 nearly fill the 168 registers that 384 threads can have; a
        # few addresses are loaded again once a step.
        return 48 if self.fused and self.m == 4 else 0

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := super().why_not(problem):
            return reason
        if not transformed_dims(problem):
            return "takes kernels of three taps along the last one or two dimensions, stride 1, no dilation"
        if not self.fused:
            return None
        if problem.is_empty:
            return None
        tiles = winograd_tiling(problem, self.m)
        needed, found = shared_bytes(tiles.points), current().figures.block_shared_bytes
        if needed > found:
            return f"needs {needed} bytes of shared memory in a block, but the device has {found}"
        blocks = ceil_div(tiles.tiles, BLOCK_TILES), ceil_div(problem.gemm_n, BLOCK_FILTERS) * problem.groups
        return (
            "needs more blocks than a launch may have" if blocks[0] > GRID_YZ or blocks[1] > GRID_X else None
        )

    def cost(self, problem: ConvProblem, machine: GpuMachine) -> float:
        tiles = winograd_tiling(problem, self.m)
        if self.fused:
            splits = self.splits(problem, machine)
            return fused_seconds(problem, tiles, splits, machine) + machine.launch * (1 + (splits > 1))
        return self._gemm_seconds(problem, tiles, machine)

    def _gemm_seconds(self, problem: ConvProblem, tiles: WinogradTiling, machine: GpuMachine) -> float:
        count = self.tiles_of_a_pass(problem)
        passes = ceil_div(tiles.tiles, count)
        floats = 4 * tiles.points * tiles.tiles
        v, m = floats * problem.C, floats * problem.K
        size = min(v + m, PASS_BYTES)
        moved = machine.stream(problem.x_bytes + v, size) + machine.stream(m + problem.y_bytes, size)
        products = passes * products_of(problem, tiles, count).seconds(machine)
        return moved / TRANSFORMS + max(products, machine.stream(v + m, size)) + 3 * passes * machine.launch

    def workspace_bytes(self, problem: ConvProblem) -> int:
        if problem.is_empty:
            return 0
        if self.fused:
            return parts_bytes(problem, self.splits(problem, current().figures))
        tiles = winograd_tiling(problem, self.m)
        return 4 * tiles.points * (problem.C + problem.K) * self.tiles_of_a_pass(problem)

    def error_bound(self, problem: ConvProblem) -> float:
        # The sum of a point is a random walk, whose errors are as large as its own products; the constant
        # covers the largest of many outputs and the few operations of the transforms.
        dims = transformed_dims(problem)
        return 3 * problem.eps * amplification(self.m, TAPS) ** dims * math.sqrt(problem.w_shape[1] + 8)

    def splits(self, problem: ConvProblem, machine: GpuMachine) -> int:
        """Parts of the sum over channels: more blocks where there are too few, for more traffic."""
        tiles, steps = winograd_tiling(problem, self.m), ceil_div(problem.w_shape[1], CHANNELS)
        counted = math.prod(problem.y_shape) < COUNTED
        allowed = splits_of(steps) if counted else [1]
        return min(allowed, key=lambda s: fused_seconds(problem, tiles, s, machine))

    def tiles_of_a_pass(self, problem: ConvProblem) -> int:
        """As many as fit PASS_BYTES, in whole vectors."""
        tiles = winograd_tiling(problem, self.m)
        fitting = PASS_BYTES // (4 * tiles.points * (problem.C + problem.K))
        most = max(BLOCK_TILES, fitting // BLOCK_TILES * BLOCK_TILES)
        return ceil_div(min(tiles.tiles, most), FOUR) * FOUR

    def plan(self, problem: ConvProblem) -> GpuPlan:
        return FusedWinogradPlan(problem, self) if self.fused else GemmWinogradPlan(problem, self)


def products_of(problem: ConvProblem, tiles: WinogradTiling, count: int) -> BatchedGemm:
    """Those of the gemm form, for `count` tiles."""
    return BatchedGemm(tiles.points * problem.groups, problem.gemm_n, count, problem.w_shape[1])


def shared_bytes(points: int) -> int:
    """Of a block of the fused kernel, as laid out in winograd.cu."""
    stages = 2 * points * CHANNELS * (BLOCK_TILES + 4 + BLOCK_FILTERS)
    return 4 * max(stages, points * BLOCK_FILTERS * BLOCK_TILES)


def fused_seconds(problem: ConvProblem, tiles: WinogradTiling, splits: int, machine: GpuMachine) -> float:
    filter_blocks = ceil_div(problem.gemm_n, BLOCK_FILTERS) * problem.groups
    blocks = ceil_div(tiles.tiles, BLOCK_TILES) * filter_blocks * splits
    steps = ceil_div(ceil_div(problem.w_shape[1], CHANNELS), splits)
    resident = max(1, machine.sm_shared_bytes // shared_bytes(tiles.points))
    step = STEP * tiles.points / 36 * (1.98e9 / machine.clock)
    m = math.isqrt(tiles.points) - TAPS + 1 if tiles.dims == 2 else tiles.points - TAPS + 1
    width, (low, _) = problem.spatial[-1], problem.padding[-1]
    if problem.layout == "channels_last" or width % m or low % m != 1:
        step *= SINGLE_LOADS
    seconds = waves(blocks, machine) * (steps + BLOCK_STEPS) * step / min(resident, 1.25)
    u_bytes = 4 * tiles.points * problem.K * problem.w_shape[1]  # which all blocks ask for at the same time
    parts = machine.stream(2 * parts_bytes(problem, splits)) if splits > 1 else 0.0
    return max(seconds, machine.stream(problem.bytes)) + machine.stream(u_bytes) + parts


# --- the plan ----------------------------------------------------------------------------------


def winograd_params(problem: ConvProblem, tiles: WinogradTiling, **more: int) -> np.ndarray:
    values = {
        "columns": tiles.columns,
        "rows": tiles.rows,
        "depth": problem.as_3d.spatial_out[0],
        "y_channel": math.prod(problem.spatial_out),
        "filters_all": problem.K,
        "tiles": tiles.tiles,
        "channels": problem.w_shape[1],
        "filters": problem.gemm_n,
        "channel_blocks": ceil_div(problem.w_shape[1], CHANNELS),
        "filter_blocks": ceil_div(problem.gemm_n, BLOCK_FILTERS),
        **more,
    }
    return record_of(WINOGRAD_PARAMS, values)


class FusedWinogradPlan(GpuPlan):
    def __init__(self, problem: ConvProblem, algorithm: Winograd):
        super().__init__(problem, algorithm, algorithm.workspace_bytes(problem))
        self._m, self._tiles = algorithm.m, winograd_tiling(problem, algorithm.m)
        splits = algorithm.splits(problem, self.device.figures)
        points = self._tiles.points
        self._params = self.by_value(winograd_params(problem, self._tiles, splits=splits))
        module = winograd_build(algorithm.m, self._tiles.dims, True, problem.layout)
        grid = (
            ceil_div(problem.gemm_n, BLOCK_FILTERS) * problem.groups,
            ceil_div(self._tiles.tiles, BLOCK_TILES),
            splits,
        )
        threads = points // per_warp(points) * 32
        self._fused = self.launch(module, "fused", grid, threads, shared_bytes(points))
        outputs = math.prod(problem.y_shape)
        self._reduce = self.launch(module, "reduce", (ceil_div(outputs, 256),), 256) if splits > 1 else None

    def prepare_filter(self, w: Any) -> Any:
        """(groups, filter blocks, channel blocks, points, CHANNELS, FILTERS), zeros beyond both."""
        p, xp = self.problem, self.device.xp
        u = transformed_filter(xp, w, self._m, self._tiles.dims)  # (points, K, C/groups)
        filters, channels = ceil_div(p.gemm_n, BLOCK_FILTERS), ceil_div(p.w_shape[1], CHANNELS)
        padded = xp.zeros((len(u), p.groups, filters * BLOCK_FILTERS, channels * CHANNELS), np.float32)
        padded[:, :, : p.gemm_n, : p.w_shape[1]] = u.reshape(len(u), p.groups, p.gemm_n, p.w_shape[1])
        blocks = padded.reshape(len(u), p.groups, filters, BLOCK_FILTERS, channels, CHANNELS)
        return xp.ascontiguousarray(blocks.transpose(1, 2, 4, 0, 5, 3))

    def run(self, x: Any, w: Any, bias: Any, activation: str | None, y: Any, workspace: Any) -> None:
        bias, conv = NO_BIAS if bias is None else bias, self.conv[activation is not None]
        if self._reduce is None:
            self._fused(x, w, bias, y, conv, self._params)
        else:
            self._fused(x, w, NO_BIAS, workspace, conv, self._params)
            self._reduce(workspace, bias, y, conv, self._params)


class GemmWinogradPlan(GpuPlan):
    def __init__(self, problem: ConvProblem, algorithm: Winograd):
        super().__init__(problem, algorithm, algorithm.workspace_bytes(problem))
        self._m, self._tiles = algorithm.m, winograd_tiling(problem, algorithm.m)
        p, pass_tiles = problem, algorithm.tiles_of_a_pass(problem)
        last = p.layout == "channels_last"
        module = winograd_build(algorithm.m, self._tiles.dims, False, p.layout)
        whole = products_of(p, self._tiles, pass_tiles)
        side = whole.side(self.device.figures)
        self._padded = whole.padded(side)
        self._passes = []
        for first in range(0, self._tiles.tiles, pass_tiles):
            count = min(pass_tiles, ceil_div(self._tiles.tiles - first, FOUR) * FOUR)
            fastest = [ceil_div(n, 4) if last else count for n in (p.C, p.K)]
            slowest = [32 * ceil_div(count, 8) if last else n for n in (p.C, p.K)]
            blocks = [ceil_div(a * b, 128) for a, b in zip(fastest, slowest, strict=True)]
            places = {"fastest_of_x": fastest[0], "fastest_of_y": fastest[1]}
            params = self.by_value(winograd_params(p, self._tiles, first=first, count=count, **places))
            into = self.launch(module, "input", (blocks[0],), 128)
            gemm = products_of(p, self._tiles, count).launch(self, side)
            out = self.launch(module, "output", (blocks[1],), 128)
            self._passes.append((count, params, into, gemm, out))

    def prepare_filter(self, w: Any) -> Any:
        """(points, groups, depth, rows) for `BatchedGemm`: C/groups by K/groups, filled up with zeros."""
        p, xp = self.problem, self.device.xp
        u = transformed_filter(xp, w, self._m, self._tiles.dims)  # (points, K, C/groups)
        padded = xp.zeros((len(u), p.groups, *self._padded), np.float32)
        u = u.reshape(len(u), p.groups, p.gemm_n, p.w_shape[1])
        padded[:, :, : p.w_shape[1], : p.gemm_n] = u.transpose(0, 1, 3, 2)
        return padded

    def run(self, x: Any, w: Any, bias: Any, activation: str | None, y: Any, workspace: Any) -> None:
        p, points = self.problem, self._tiles.points
        bias, conv = NO_BIAS if bias is None else bias, self.conv[activation is not None]
        scratch = workspace.view(np.float32)
        for count, params, into, (gemm, sizes), out in self._passes:
            v = scratch[: points * p.C * count]  # (points, C, count)
            m = scratch[v.size : v.size + points * p.K * count]  # (points, K, count)
            into(x, v, conv, params)
            gemm(w, v, m, sizes)
            out(m, bias, y, conv, params)


ALGORITHMS = (Winograd(2), Winograd(4), Winograd(2, fused=False), Winograd(4, fused=False))
