"""Depthwise convolution on the GPU, in 1, 2 and 3 dimensions: each filter sees one channel.

No operand is shared by several filters, so there is no GEMM to make of it. Short kernels are bound by memory:
threads load whole vectors of rows straight from global memory, where the halo of a neighbour hits L1. Large
kernels are bound by arithmetic: planes go to shared memory, and a window of registers slides along each row.
Channels last, neighbouring threads take neighbouring channels. Each of these forms is a program of its own,
depthwise_{form}.cu. Wins wherever it serves, up to kernels so large that an FFT needs fewer products.

Source: own; the trade-off is that of Zhang, Lo and Lu 2020, arXiv:1912.08787 (depthwise on ARM) and of
Ding et al. 2022, arXiv:2203.06717 (31x31 kernels).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any, ClassVar

import numpy as np

from convalgos.core.problem import DTYPES, ConvProblem
from convalgos.gpu.compile.module import ELEMENTS, Build
from convalgos.gpu.device import GpuMachine, current
from convalgos.gpu.dwconv.launch_forms import (
    DECODE,
    NUMBERED_BELOW,
    RESERVED_SHARED,
    WARP,
    LaunchForm,
    issue_seconds,
    macro,
)
from convalgos.gpu.launch.algorithm import GpuAlgorithm
from convalgos.gpu.launch.grid import NO_BIAS, ceil_div
from convalgos.gpu.launch.kernel_records import DIVISOR
from convalgos.gpu.launch.plan import GpuPlan

SQUARE = (3, 5, 7)  # kernels of the forms `rows` and `last`
LINE_TAPS = 8  # at most, of the form `line`
LINE_ITEMS = 2  # vectors of one of its threads
LINE_OUTPUTS = 8  # pixels of one of its threads, channels last
STRIDES = (1, 2)
STAGED_TILES = ((8, 8), (8, 7), (8, 4), (8, 1))  # (TX, TY)
LAST_TILE = (8, 2)
LAST_VECTOR = 2  # channels of a thread: weights are loaded once for many of its outputs
PLAIN_COLUMNS = 4  # outputs of a thread of the form `plain`
ROW_PAD = 4  # taps of a row of weights are filled up to a multiple of it
# Of a block of the kernels that use no shared memory, as in their sources.
THREADS = {
    "rows": 64,
    "vectors": 128,
    "strips": 128,
    "lanes": 128,
    "channels": 128,
    "last": 128,
    "plain": 128,
}
STAGED_THREADS = 256  # at most
STAGE = 35  # instructions of a warp for 32 elements brought to shared memory
STRAIGHT_THREADS = 512  # that share a multiprocessor's registers, of the forms without shared memory
STAGED_WAIT = 2e-6  # seconds until x is in place; fitted to prototypes on an H200, 7x7 to 31x31

# --- shapes ----------------------------------------------------------------------------------

# `Params` of depthwise_forward.cuh.
DEPTHWISE_PARAMS = np.dtype(
    [
        *((n, np.int32) for n in ("threads", "planes", "block_x", "block_y", "pitch", "height")),
        *((n, np.int32) for n in ("filters", "last")),
        *((n, DIVISOR) for n in ("columns", "rows", "depth", "k", "images", "multiplier")),
        *((n, DIVISOR) for n in ("group", "across", "chunks", "tile_rows", "weights")),
    ]
)


def form_build(form: str, dtype: str, **macros: int) -> Build:
    """A program of its own for each form, depthwise_{form}.cu."""
    return Build.of(f"depthwise_{form}.cu", element_t=ELEMENTS[dtype], **macros)


def rows_build(dtype: str, kernel: int, stride: int) -> Build:
    tx, ty = 16 // DTYPES[dtype], 4 // stride
    return form_build("rows", dtype, KERNEL=kernel, TX=tx, TY=ty, STRIDE=stride)


def last_build(dtype: str, kernel: int, stride: int) -> Build:
    (tx, ty), vector = LAST_TILE, LAST_VECTOR
    return form_build("last", dtype, KERNEL=kernel, TX=tx, TY=ty, STRIDE=stride, VECTOR=vector)


def staged_build(dtype: str, tile: tuple[int, int], stride: int) -> Build:
    return form_build("staged", dtype, TX=tile[0], TY=tile[1], STRIDE=stride)


def plain_build(dtype: str, vector: int) -> Build:
    return form_build("plain", dtype, VECTOR=vector)


def even(p: ConvProblem) -> bool:
    """Whether strides are 1 or 2, the same in the last two dimensions, and there is no dilation in them."""
    same: bool = p.stride[1] == p.stride[2] <= 2 and p.dilation[1:] == (1, 1)
    return same


def is_line(p: ConvProblem) -> bool:
    """Whether rows of y come from one row of x each, through few taps and in steps of 1."""
    alone = p.kernel[:2] == (1, 1) and p.stride[:2] == (1, 1) and p.padding[:2] == ((0, 0), (0, 0))
    return alone and p.kernel[2] <= LINE_TAPS and p.stride[2] == p.dilation[2] == 1


# --- the figures for the selector --------------------------------------------------------------


@dataclass(frozen=True)
class Depthwise(GpuAlgorithm):
    family: ClassVar[str] = "gpu.depthwise"
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "float16", "bfloat16")

    def builds(self) -> Iterable[Build]:
        for dtype in self.dtypes:
            for kernel, stride in product(SQUARE, STRIDES):
                yield rows_build(dtype, kernel, stride)
                yield last_build(dtype, kernel, stride)
            for tile, stride in product(STAGED_TILES, STRIDES):
                yield staged_build(dtype, tile, stride)
            yield form_build("line", dtype)
            for vector in (LAST_VECTOR, 1):
                yield plain_build(dtype, vector)

    def spills(self, build: Build, arch: str) -> int:
        # 49 weights and the rows of x on their way nearly fill the registers; a few addresses are loaded
        # again. On sm_100a so much is on its way even of 5x5.
        taps = macro(build, "KERNEL") if build.source == "depthwise_rows.cu" else 0
        if arch == "sm_100a":
            return 128 if taps >= 5 else 0
        return 48 if taps >= 7 else 0

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := super().why_not(problem):
            return reason
        if problem.groups != problem.C:
            return f"takes one input channel per group, not {problem.w_shape[1]}"
        if problem.is_empty or fastest_form(problem, current().figures):
            return None
        return "needs more threads than a launch may have"

    def cost(self, problem: ConvProblem, machine: GpuMachine) -> float:
        return self.form(problem, machine).seconds + machine.launch

    def error_bound(self, problem: ConvProblem) -> float:
        # sums of gemm_k products in order: errors grow like a random walk, so 4 sqrt(k) eps covers them
        eps = float(np.finfo(np.float32).eps) * (4 * math.sqrt(max(1, problem.gemm_k)) + 2)
        return eps + (problem.itemsize == 2) * problem.eps

    def form(self, problem: ConvProblem, machine: GpuMachine) -> LaunchForm:
        """The fastest by prediction, of a problem that is served."""
        form = fastest_form(problem, machine)
        assert form is not None, problem
        return form

    def plan(self, problem: ConvProblem) -> GpuPlan:
        return DepthwisePlan(problem, self, self.form(problem, current().figures))


def depthwise_forms(problem: ConvProblem, machine: GpuMachine) -> Iterator[LaunchForm]:
    """Every form that serves a problem, with its geometry; `staged` in many."""
    p = problem.as_3d
    last, whole = p.layout == "channels_last", 16 // p.itemsize
    if p.N * p.K + STAGED_THREADS >= NUMBERED_BELOW:
        return
    found = []
    square = p.kernel[1] == p.kernel[2] in SQUARE and even(p)
    if last and square and p.K == p.C and p.C % LAST_VECTOR == 0:
        found.append(_last(p, machine))
    if not last and square:
        found.append(_rows(p, machine))
    if last and is_line(p) and p.K == p.C and p.C % (8 // p.itemsize) == 0:
        found.append(_line(p, "channels", machine))
    if not last and is_line(p):
        of_x, of_y = (n % whole == 0 for n in (p.spatial[2], p.spatial_out[2]))
        found.append(_line(p, "vectors" if of_x and of_y else "strips" if of_x else "lanes", machine))
    if not last and (even(p) or _flat(p)):
        found += (f for tile in STAGED_TILES for f in _staged(p, tile, machine))
    found.append(_plain(p, machine))
    yield from (f for f in found if f.blocks * f.threads < NUMBERED_BELOW)


@lru_cache(1024)
def fastest_form(problem: ConvProblem, machine: GpuMachine) -> LaunchForm | None:
    """Of hundreds of forms; asked for again by each step from `why_not` to `plan`."""
    return min(depthwise_forms(problem, machine), key=lambda f: f.seconds, default=None)


def _flat(p: ConvProblem) -> bool:
    """A single row, of which only the last dimension counts."""
    return p.spatial[1] == p.kernel[1] == p.spatial_out[1] == 1 and p.stride[2] <= 2 and p.dilation[2] == 1


def _straight(
    p: ConvProblem, build: Build, kernel: str, machine: GpuMachine, instructions: float, **params: int
) -> LaunchForm:
    """A form without shared memory; kernels find a thread's place from its number, by division."""
    shape = {"rows": p.spatial_out[1], "depth": p.spatial_out[0], "k": p.K, "multiplier": p.K // p.C} | params
    units = p.N * math.prod(shape[name] for name in ("columns", "rows", "depth", "k"))
    threads = THREADS[kernel]
    warps = threads // WARP
    of_block = {"vectors": threads * LINE_ITEMS, "strips": warps, "lanes": warps}.get(kernel, threads)
    blocks = ceil_div(units, of_block)
    arithmetic = issue_seconds(blocks, threads, instructions, STRAIGHT_THREADS // threads, machine)
    seconds = max(arithmetic, machine.stream(p.bytes))
    return LaunchForm(build, kernel, blocks, threads, 0, {**shape, "threads": units}, seconds)


def _rows(p: ConvProblem, machine: GpuMachine) -> LaunchForm:
    kernel, stride = p.kernel[2], p.stride[2]
    build = rows_build(p.dtype, kernel, stride)
    tx, ty = macro(build, "TX"), macro(build, "TY")
    whole = p.spatial[2] % tx == 0 and p.padding[2][0] == kernel // 2
    span, rows = (tx - 1) * stride + kernel, (ty - 1) * stride + kernel
    loads = rows * (4 * (span / tx + 1 if whole else span) + (p.itemsize == 2) * span)
    instructions = p.kernel[0] * (tx * ty * kernel**2 + loads + 2 * kernel**2) + 4 * tx * ty + DECODE
    columns, rows = ceil_div(p.spatial_out[2], tx), ceil_div(p.spatial_out[1], ty)
    return _straight(p, build, "rows", machine, instructions, columns=columns, rows=rows)


def _line(p: ConvProblem, kernel: str, machine: GpuMachine) -> LaunchForm:
    whole, taps = 16 // p.itemsize, p.kernel[2]
    rows, out = math.prod(p.spatial_out[:2]), p.spatial_out[2]
    if kernel == "channels":
        of_thread = 8 // p.itemsize
        instructions = LINE_OUTPUTS * (of_thread * (taps + 5) + 10) + DECODE
        shape = {"columns": ceil_div(out, LINE_OUTPUTS), "rows": rows, "depth": 1, "k": p.K // of_thread}
        return _straight(p, form_build("line", p.dtype), kernel, machine, instructions, **shape)
    columns = ceil_div(out, whole if kernel == "vectors" else WARP * whole)
    instructions = whole * (6 * taps + 8 if kernel == "lanes" else taps + 8) + 40
    instructions = (LINE_ITEMS if kernel == "vectors" else 1) * instructions + DECODE
    shape = {"columns": columns, "rows": rows, "depth": 1}
    return _straight(p, form_build("line", p.dtype), kernel, machine, instructions, **shape)


def _last(p: ConvProblem, machine: GpuMachine) -> LaunchForm:
    kernel, stride, ((tx, ty), vector) = p.kernel[2], p.stride[2], (LAST_TILE, LAST_VECTOR)
    span, rows = (tx - 1) * stride + kernel, (ty - 1) * stride + kernel
    loads = rows * span * (4 + vector * (p.itemsize == 2)) + 2 * ty * kernel**2
    products = tx * ty * vector * kernel**2
    instructions = p.kernel[0] * (products + loads) + 4 * vector * tx * ty + DECODE
    columns, rows = ceil_div(p.spatial_out[2], tx), ceil_div(p.spatial_out[1], ty)
    shape = {"columns": columns, "rows": rows, "k": p.K // vector}
    return _straight(p, last_build(p.dtype, kernel, stride), "last", machine, instructions, **shape)


def _plain(p: ConvProblem, machine: GpuMachine) -> LaunchForm:
    last = p.layout == "channels_last"
    vector = LAST_VECTOR if last and p.K == p.C and p.C % LAST_VECTOR == 0 else 1
    instructions = p.gemm_k * PLAIN_COLUMNS * (8 + 2 * vector) + DECODE
    columns = ceil_div(p.spatial_out[2], PLAIN_COLUMNS)
    shape = {"columns": columns, "k": p.K // vector, "last": int(last)}
    return _straight(p, plain_build(p.dtype, vector), "plain", machine, instructions, **shape)


def _staged(p: ConvProblem, tile: tuple[int, int], machine: GpuMachine) -> Iterator[LaunchForm]:
    """Blocks of several widths, heights and numbers of planes."""
    columns, rows = ceil_div(p.spatial_out[2], tile[0]), ceil_div(p.spatial_out[1], tile[1])
    widths = {ceil_div(columns, n) for n in (1, 2, 4)} | {min(columns, 64)}
    heights = {ceil_div(rows, n) for n in (1, 2, 3, 4, 8)} | {1}
    for block_x, block_y in product(sorted(widths), sorted(heights)):
        most = min(p.N * p.K, STAGED_THREADS // (block_x * block_y))  # none, where a block is too large
        for count in sorted({c for c in (1, 2, 4, 8, most) if 0 < c <= most}):
            of_rows = block_x * count
            for group in sorted({of_rows, ceil_div(of_rows, WARP) * WARP}):
                if group * block_y <= STAGED_THREADS:
                    form = _staged_form(p, tile, (block_x, block_y, count, group), machine)
                    if form.shared_bytes <= machine.block_shared_bytes:
                        yield form


def _staged_form(
    p: ConvProblem, tile: tuple[int, int], block: tuple[int, ...], machine: GpuMachine
) -> LaunchForm:
    """block: threads along a row and a column, planes, and the distance of threads of the next rows."""
    (tx, ty), (block_x, block_y, count, group) = tile, block
    stride, (t, r, s), planes = p.stride[2], p.kernel, p.N * p.K
    blocks_x, blocks_y = ceil_div(p.spatial_out[2], block_x * tx), ceil_div(p.spatial_out[1], block_y * ty)
    held, taps = (ceil_div(n, ROW_PAD) * ROW_PAD for n in ((tx - 1) * stride, s))
    height = min(p.spatial[1], (block_y * ty - 1) * stride + r)
    pitch = (block_x - 1) * tx * stride + held + taps
    filters = 1 if p.N % count == 0 else count  # all planes of a block are images of one filter
    threads = ceil_div(group * block_y, WARP) * WARP
    shared = 4 * (count * height * pitch + filters * r * taps)
    blocks = blocks_x * blocks_y * p.spatial_out[0] * ceil_div(planes, count)

    # A warp goes through a row of x where any of its threads does, and a row of x feeds up to r of ty rows.
    spread = ceil_div(WARP, group) * ty * stride
    low, reach = p.padding[1][0], (ty - 1) * stride + r
    seen = [
        max(0, min(reach, low - first + p.spatial[1]) - max(0, low - first - spread + ty * stride))
        for first in range(0, block_y * blocks_y * ty * stride, spread)
    ]
    visited = sum(seen) / len(seen)
    met = ty * r / reach  # of the rows of outputs, by an average row
    per_row = taps // 4 * (met * (4 * tx + 2) + held + 6) + held // 4 + 8
    chunks = ceil_div(pitch, WARP)
    loaded = STAGE * ceil_div(count * height * chunks, threads // WARP)
    resident = min(
        machine.sm_shared_bytes // (shared + RESERVED_SHARED),
        machine.sm_registers // (threads * (48 + tx * ty * 5 // 4)),
        machine.sm_threads // threads,
    )
    instructions = t * (visited * per_row + loaded) + 4 * tx * ty + DECODE
    seconds = issue_seconds(blocks, threads, instructions, max(1, resident), machine) + STAGED_WAIT
    params = {
        **{"columns": blocks_x, "rows": blocks_y, "depth": p.spatial_out[0], "images": p.N},
        **{"multiplier": p.K // p.C, "threads": planes, "planes": count, "filters": filters},
        **{"block_x": block_x, "block_y": block_y, "across": block_x, "group": group},
        **{"pitch": pitch, "chunks": chunks, "height": height, "tile_rows": height, "weights": r * taps // 4},
    }
    build = staged_build(p.dtype, tile, stride)
    return LaunchForm(build, "staged", blocks, threads, shared, params, max(seconds, machine.stream(p.bytes)))


# --- the plan ----------------------------------------------------------------------------------


class DepthwisePlan(GpuPlan):
    def __init__(self, problem: ConvProblem, algorithm: Depthwise, form: LaunchForm):
        super().__init__(problem, algorithm)
        self._params = self.by_value(form.record(DEPTHWISE_PARAMS))
        self._kernel = self.launch(form.build, form.kernel, (form.blocks,), form.threads, form.shared_bytes)

    def prepare_filter(self, w: Any) -> Any:
        """float32, (K, T, R, taps of whole vectors), or channels last (T, R, S, K)."""
        xp, p = self.device.xp, self.problem.as_3d
        w = w.reshape(p.K, *p.kernel).astype(np.float32)
        if p.layout == "channels_last":
            return xp.ascontiguousarray(w.transpose(1, 2, 3, 0))
        padded = xp.zeros((p.K, *p.kernel[:2], ceil_div(p.kernel[2], ROW_PAD) * ROW_PAD), np.float32)
        padded[..., : p.kernel[2]] = w
        return padded

    def run(self, x: Any, w: Any, bias: Any, activation: str | None, y: Any, workspace: Any) -> None:
        bias = NO_BIAS if bias is None else bias
        self._kernel(x, w, bias, y, self.conv[activation is not None], self._params)


ALGORITHMS = (Depthwise(),)
