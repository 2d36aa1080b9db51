"""wgrad of depthwise layers on the GPU: each tap is a sum over all pixels of dy times x, shifted.

Only loads can be shared. The floor is to read x and dy once, N*C*(HW + PQ) elements; dw is tiny. There are
two forms:

strips   kernels of up to 7x7 at stride 1 or 2, and rows of up to 8 taps. A thread keeps all taps in registers
         while it goes down a strip of columns, and loads each row of x and of dy once.
staged   other kernels. Rows go to shared memory, and each thread has a small tile of the taps. Bound by
         arithmetic.

A filter of few images has few pixels for each thread, and a GPU wants 100,000 threads. So strips are divided
into bands of rows, and blocks share the pixels of a filter (`dwconv.pixel_parts`). The cost model weighs
bands and parts against the rows that bands read twice, the waiting for loads, and the start of the kernel
that adds parts up. For the depthwise layers of MobileNetV2, 32 images in float32, channels first, it predicts
on an H200 (x and dy at 4.3 TB/s and one launch are the floor): 31 us for 27 on 32 channels of 112x112, 52 for
48 on 96 of 112x112 at stride 2, 34 for 30 on 144 of 56x56, 17 for 12 on 192 of 28x28. What lies in L2, from
14x14 on, takes 6 to 9 us, a few launches. Wins wherever there is one input channel for each filter.

Source: own; the definition, with sums in registers. Strides and dilations are taken apart into phases, as the
polyphase filters of Bellanger, Bonnerot and Coudreuse 1976 are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any, ClassVar

import numpy as np

from convalgos.core.algorithm import error_of_sums
from convalgos.core.problem import DTYPES, ConvProblem
from convalgos.gpu.compile.module import ELEMENTS, Build
from convalgos.gpu.device import GpuMachine, current
from convalgos.gpu.dwconv.launch_forms import (
    DECODE,
    NUMBERED_BELOW,
    RESERVED_SHARED,
    WARP,
    LaunchForm,
    macro,
)
from convalgos.gpu.dwconv.pixel_parts import adders, halvings, parts_to_try, timed
from convalgos.gpu.launch.algorithm import GpuAlgorithm
from convalgos.gpu.launch.grid import ceil_div
from convalgos.gpu.launch.kernel_records import DIVISOR
from convalgos.gpu.launch.plan import GpuPlan
from convalgos.gpu.launch.split_k import ADDERS, parts_bytes

STRIPS = (
    ((1, 8), 1),
    *(((r, r), s) for r in (3, 5, 7) for s in (1, 2)),
)  # (taps, stride) of the form `strips`
STRIP_THREADS = 128  # of a block, at most
STRIP_BLOCKS = {3: 5, 8: 5, 5: 4, 7: 3}  # of them that share the registers, by columns of taps
LAST_COLUMNS = 4  # of a strip, channels last
LAST_LANES = 64  # filters of a block, channels last, at most
STAGED_TAPS = ((4, 8), (3, 4), (1, 8))  # taps of a thread of the form `staged`
STAGED_THREADS = 256
BATCH = 4  # sums of a thread that go through shared memory together, as in depthwise_weights.cuh
MOST_SHARED = 100 << 10  # bytes of a block: two share a multiprocessor
SEGMENTS = (64, 256, 1024)  # outputs of a row that are staged together, about
STAGE = 25  # instructions of a warp for 32 elements brought to shared memory; estimate

# --- shapes ----------------------------------------------------------------------------------

# `Params` of depthwise_weights.cu.
STRIPS_PARAMS = np.dtype(
    [
        *((name, np.int32) for name in ("items", "rows", "groups", "spare")),
        *((name, DIVISOR) for name in ("lanes", "parts", "t", "columns", "bands", "depth", "multiplier")),
    ]
)
# `Params` of depthwise_weights_staged.cu.
STAGED_PARAMS = np.dtype(
    [
        *((n, np.int32) for n in ("items", "rows", "run", "groups", "down", "height", "step", "spare")),
        *((n, DIVISOR) for n in ("e", "f", "blocks_s", "blocks_r", "t", "parts", "lanes", "across")),
        *((n, DIVISOR) for n in ("segments", "bands", "depth", "pitch", "columns", "runs", "multiplier")),
    ]
)


def strips_build(dtype: str, taps: tuple[int, int], stride: int, last: bool) -> Build:
    (height, width), columns = taps, LAST_COLUMNS if last else 16 // DTYPES[dtype]
    columns *= 2 if height == 1 else 1  # single rows: more of each is on its way
    macros = {"HEIGHT": height, "WIDTH": width, "STRIDE": stride, "TX": columns, "CHANNELS_LAST": int(last)}
    return Build.of("depthwise_weights.cu", element_t=ELEMENTS[dtype], **macros)


def staged_weights_build(dtype: str, tile: tuple[int, int]) -> Build:
    return Build.of("depthwise_weights_staged.cu", element_t=ELEMENTS[dtype], TR=tile[0], TS=tile[1])


def strip_of(p: ConvProblem) -> tuple[tuple[int, int], int] | None:
    """The taps and the stride of the form `strips` that hold a kernel with the least waste, if any do."""
    (_, r, s), (_, stride, step) = p.kernel, p.stride
    if (p.dilation[1] > 1 and r > 1) or (p.dilation[2] > 1 and s > 1):
        return None
    stride = step if r == p.spatial_out[1] == 1 else stride  # a single row, of which strides tell nothing
    fitting = [(t, by) for t, by in STRIPS if r <= t[0] and s <= t[1] and by == stride == step]
    return min(fitting, key=lambda f: math.prod(f[0]), default=None)


# --- the figures for the selector --------------------------------------------------------------


@dataclass(frozen=True)
class DepthwiseWeights(GpuAlgorithm):
    family: ClassVar[str] = "gpu.depthwise"
    directions: ClassVar[tuple[str, ...]] = ("backward_weights",)
    spreads_nan: ClassVar[bool] = True  # of x, to taps that do not meet it: by zeros beyond the rows of dy

    @property
    def variant(self) -> str:
        return "weights"

    def builds(self) -> Iterable[Build]:
        for dtype in self.dtypes:
            yield from (staged_weights_build(dtype, tile) for tile in STAGED_TAPS)
            if dtype != "float64":  # whose sums would fill the registers twice
                yield from (strips_build(dtype, *s, last) for s, last in product(STRIPS, (False, True)))

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := super().why_not(problem):
            return reason
        if problem.groups != problem.C:
            return f"takes one input channel per group, not {problem.w_shape[1]}"
        if problem.is_empty or fastest_weights_form(problem, current().figures):
            return None
        return "needs more threads than a launch may have, or counts beyond 32 bits"

    def cost(self, problem: ConvProblem, machine: GpuMachine) -> float:
        return _form(problem, machine).seconds + machine.launch

    def prepare_cost(self, problem: ConvProblem, machine: GpuMachine) -> float:
        return 0.0  # dy is taken as it is

    def workspace_bytes(self, problem: ConvProblem) -> int:
        """The sums of each part."""
        if problem.is_empty:
            return 0
        return parts_bytes(problem, _form(problem, current().figures).params["parts"])

    def error_bound(self, problem: ConvProblem) -> float:
        """Sums are float32 for all types but float64; 16-bit results are rounded once more."""
        if problem.itemsize > 2:
            return error_of_sums(problem)
        return error_of_sums(problem.replace(dtype="float32")) + problem.eps

    def plan(self, problem: ConvProblem) -> GpuPlan:
        return DepthwiseWeightsPlan(problem, self, _form(problem, current().figures))


@lru_cache(1024)
def fastest_weights_form(problem: ConvProblem, machine: GpuMachine) -> LaunchForm | None:
    """Of hundreds of forms; asked for again by each step from `why_not` to `plan`."""
    return min(depthwise_weights_forms(problem, machine), key=lambda f: f.seconds, default=None)


def _form(problem: ConvProblem, machine: GpuMachine) -> LaunchForm:
    """The fastest form of a problem that is served."""
    form = fastest_weights_form(problem, machine)
    assert form is not None, problem
    return form


def depthwise_weights_forms(problem: ConvProblem, machine: GpuMachine) -> Iterator[LaunchForm]:
    """Every form that serves a problem, with its geometry."""
    p = problem.as_3d
    if p.N * math.prod(p.spatial_out) >= NUMBERED_BELOW:
        return
    found = _strips(p, machine) if strip_of(p) and p.dtype != "float64" else iter(())
    yield from (f for f in found if f.blocks < NUMBERED_BELOW)
    yield from (f for tile in STAGED_TAPS for f in _staged(p, tile, machine) if f.blocks < NUMBERED_BELOW)


# Strips: the threads of a filter share its strips, bands and images.


def _strips(p: ConvProblem, machine: GpuMachine) -> Iterator[LaunchForm]:
    last, strip = p.layout == "channels_last", strip_of(p)
    assert strip is not None, p
    taps, stride = strip
    build = strips_build(p.dtype, taps, stride, last)
    lanes = ceil_div(p.K, ceil_div(p.K, LAST_LANES)) if last else 1
    sizes = [STRIP_THREADS] if last else [WARP, 2 * WARP, STRIP_THREADS]
    columns = ceil_div(p.spatial_out[2], macro(build, "TX"))
    for rows, threads in product(halvings(p.spatial_out[1]), sizes):
        groups, bands = threads // lanes, ceil_div(p.spatial_out[1], rows)
        items, blocks = p.N * p.spatial_out[0] * bands * columns, ceil_div(p.K, lanes) * p.kernel[0]
        resident = STRIP_BLOCKS[max(taps)] * STRIP_THREADS // threads
        for parts in parts_to_try(ceil_div(items, groups), blocks, resident, machine):
            params = {
                **{"items": items, "rows": rows, "groups": groups, "lanes": lanes, "parts": parts},
                **{"t": p.kernel[0], "columns": columns, "bands": bands, "depth": p.spatial_out[0]},
                **{"multiplier": p.gemm_n},
            }
            form = LaunchForm(build, "strips", blocks * parts, lanes * groups, 0, params, 0.0)
            arithmetic, arrivals = _of_strips(p, form)
            again = p.kernel[0] * ((rows + taps[0] // stride) / rows + (p.gemm_n - 1) / 2) - 1
            yield timed(p, form, arithmetic, arrivals, resident, again, machine)


def _of_strips(p: ConvProblem, form: LaunchForm) -> tuple[float, float]:
    """(instructions, waits) of a thread of the form `strips`."""
    height, width, stride, tx = (macro(form.build, name) for name in ("HEIGHT", "WIDTH", "STRIDE", "TX"))
    last, taps, params = p.layout == "channels_last", height * width, form.params
    span, depth = (tx - 1) * stride + width, ceil_div(height, stride)
    unlike = p.spatial[2] | p.spatial_out[2] | (p.padding[2][0] - (width - 1) // 2)
    vector = 1 if last else next(v for v in (16 // p.itemsize, 2, 1) if unlike % v == 0)
    loads = stride * (ceil_div(span, vector) + (vector > 1)) + tx // vector
    widened = (p.itemsize == 2) * (stride * span + tx)
    row = tx * taps + 4 * loads + widened + (depth - 1) * tx + 12
    items = ceil_div(params["items"], params["parts"] * params["groups"])
    many = height == 1 or taps > 25 or stride * tx > (4 if last else 8)
    ahead = 1 if many else 2  # rows that are loaded together
    steps = items * ceil_div(params["rows"] + depth - 1, ahead)
    shared = ceil_div(taps, 1 if last else WARP)  # sums of a thread in the end
    shuffled = 0 if last else 4 * (taps + 5)
    together = shuffled + shared * (20 + (params["groups"] if last else form.threads // WARP))
    return steps * ahead * row + items * DECODE + together + DECODE, steps


# Staged: a block has a tile of the taps, and goes through the rows of a filter with all of its threads.


def _staged(p: ConvProblem, tile: tuple[int, int], machine: GpuMachine) -> Iterator[LaunchForm]:
    (tr, ts), common = tile, math.gcd(p.stride[2], p.dilation[2])
    e, f = p.stride[2] // common, p.dilation[2] // common
    tiles_r, tiles_s = ceil_div(p.kernel[1], tr), ceil_div(ceil_div(p.kernel[2], e), ts)
    outputs = ceil_div(p.spatial_out[2], f)  # of a phase of a row
    across = ceil_div(tiles_s, ceil_div(tiles_s, STAGED_THREADS // 4))
    down = ceil_div(tiles_r, ceil_div(tiles_r, STAGED_THREADS // across))
    tiles = {"e": e, "f": f, "across": across, "down": down, "lanes": across * down}
    tiles |= {"blocks_s": ceil_div(tiles_s, across), "blocks_r": ceil_div(tiles_r, down)}
    for segments in sorted({ceil_div(outputs, size) for size in SEGMENTS}):
        for rows, threads in product(halvings(p.spatial_out[1]), (STAGED_THREADS // 2, STAGED_THREADS)):
            if groups := threads // (across * down):
                runs = min(ceil_div(groups, rows), ceil_div(ceil_div(outputs, segments), 4))
                run = ceil_div(ceil_div(outputs, segments * runs), 4) * 4
                params = {**tiles, "groups": groups, "rows": rows, "runs": runs, "run": run}
                yield from _staged_forms(p, tile, params, threads, machine)


def _staged_forms(
    p: ConvProblem, tile: tuple[int, int], params: dict[str, int], threads: int, machine: GpuMachine
) -> Iterator[LaunchForm]:
    """Those of a geometry, with few or many parts.

    params: tiles of taps, groups, rows and runs of a block.
    """
    (tr, ts), (_, row_stride, stride), (_, row_dilation, dilation) = tile, p.stride, p.dilation
    width = max(4, p.itemsize)  # of a sum, and of elements in shared memory
    columns, step = params["run"] * params["runs"], math.lcm(stride, dilation)
    pitch = columns + params["across"] * ts
    height = (params["rows"] - 1) * row_stride + (params["down"] * tr - 1) * row_dilation + 1
    segments = ceil_div(ceil_div(p.spatial_out[2], params["f"]), columns)
    bands = ceil_div(p.spatial_out[1], params["rows"])
    held = height * pitch + params["rows"] * columns
    shared = width * max(held, BATCH * threads)
    farthest = max(
        (segments * columns + params["blocks_s"] * params["across"] * ts + 2) * step + sum(p.padding[2]),
        bands * params["rows"] * row_stride + params["blocks_r"] * params["down"] * tr * row_dilation,
    )
    if shared > min(MOST_SHARED, machine.block_shared_bytes) or farthest >= NUMBERED_BELOW:
        return
    items = p.N * p.spatial_out[0] * params["f"] * bands * segments
    blocks = p.K * p.kernel[0] * params["e"] * params["blocks_s"] * params["blocks_r"]
    resident = min(
        machine.sm_shared_bytes // (shared + RESERVED_SHARED),
        machine.sm_registers // (threads * (32 + tr * (2 * ts + 4)) * width // 4),
        machine.sm_threads // threads,
    )
    slide = tr * (4 * ts + 2 + ts // 2) + 5  # instructions for four outputs
    runs = ceil_div(params["rows"] * params["runs"], params["groups"])
    of_item = runs * (params["run"] // 4 * slide + tr * ts // 2 + 25) + DECODE
    of_item += STAGE * ceil_div(held, threads)
    sector = 32 // p.itemsize if p.layout == "channels_last" else 1  # what comes from L2 with an element
    rereads = pitch / columns * height / (params["rows"] * row_stride) * sector
    again = blocks / p.K * p.gemm_n * rereads - 1
    params = {
        **{**params, "items": items, "height": height, "step": step, "t": p.kernel[0], "segments": segments},
        **{"bands": bands, "depth": p.spatial_out[0], "pitch": pitch, "columns": columns},
        **{"multiplier": p.gemm_n},
    }
    build = staged_weights_build(p.dtype, tile)
    for parts in parts_to_try(items, blocks, max(1, resident), machine):
        form = LaunchForm(build, "staged", blocks * parts, threads, shared, {**params, "parts": parts}, 0.0)
        mine = ceil_div(items, parts)
        arithmetic = mine * of_item + tr * ts * (12 + params["groups"]) + DECODE
        yield timed(p, form, arithmetic, 2 * mine, max(1, resident), again, machine)


# --- the plan ----------------------------------------------------------------------------------


class DepthwiseWeightsPlan(GpuPlan):
    def __init__(self, problem: ConvProblem, algorithm: DepthwiseWeights, form: LaunchForm):
        self._parts = form.params["parts"]
        super().__init__(problem, algorithm, parts_bytes(problem, self._parts))
        self._params = self.by_value(form.record(STRIPS_PARAMS if form.kernel == "strips" else STAGED_PARAMS))
        self._kernel = self.launch(form.build, form.kernel, (form.blocks,), form.threads, form.shared_bytes)
        self._size = math.prod(problem.w_shape)
        if self._parts > 1:
            self._lanes = adders(self._parts)
            grid = (ceil_div(self._size, ADDERS // self._lanes),)
            self._add = self.launch(form.build, "add_parts", grid, ADDERS)

    def prepare_filter(self, w: Any) -> Any:
        """dy itself, where vectors of it can be loaded."""
        return self._vectors(w)

    def run(self, x: Any, w: Any, bias: Any, activation: str | None, y: Any, workspace: Any) -> None:
        self._kernel(x, w, y, workspace, self.conv[False], self._params)
        if self._parts > 1:
            self._add(workspace, y, np.int64(self._size), np.int32(self._parts), np.int32(self._lanes))


ALGORITHMS = (DepthwiseWeights(),)
