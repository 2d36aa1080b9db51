"""The gradient of depthwise filters on the GPU: each tap is a sum over all pixels of dy times x, shifted.

There is nothing to share but the loads. The least that a GPU can do is to read x and dy once, N*C*(HW + PQ)
elements; dw is tiny. For kernels of up to 7x7 at stride 1 or 2, and for rows of up to 8 taps, a thread keeps
all taps in registers while it goes down a strip of columns, and loads each row of x and of dy once. For other
kernels rows go to shared memory, and threads share the taps, a small tile to each: bound by arithmetic. Wins
wherever there is one input channel for each filter.

A filter of few images has few pixels to each thread, and a GPU wants 100,000 threads; so strips are cut
into bands of rows, and blocks share the pixels of a filter. Each part has sums of its own, and one more
kernel adds them up in their order: the bits are the same in every run. The cost model weighs bands and
parts against the rows that bands read twice, the waiting for loads, and the start of that kernel. For the
depthwise layers of MobileNetV2, 32 images in float32, channels first, it predicts on an H200 (x and dy at
4.3 TB/s and one launch are the floor): 31 us for 27 on 32 channels of 112x112, 52 for 48 on 96 of 112x112
at stride 2, 34 for 30 on 144 of 56x56, 17 for 12 on 192 of 28x28; what lies in L2, from 14x14 on, takes 6
to 9 us, a few launches.

Source: own; the definition, with sums in registers. Strides and dilations are taken apart into phases, as the
polyphase filters of Bellanger, Bonnerot and Coudreuse 1976 are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import ClassVar

import numpy as np

from convalgos.core.algorithm import error_of_sums
from convalgos.core.problem import DTYPES, ConvProblem
from convalgos.gpu.compile.module import ELEMENTS, Build
from convalgos.gpu.device import GpuMachine, current
from convalgos.gpu.dwconv.launch_forms import (
    COUNTED,
    DECODE,
    RESERVED_SHARED,
    WARP,
    Form,
    issue_seconds,
    macro,
)
from convalgos.gpu.launch.kernel_records import DIVISOR
from convalgos.gpu.launch.plan import GpuAlgorithm, GpuPlan, ceil_div, waves

STRIPS = (
    ((1, 8), 1),
    *(((r, r), s) for r in (3, 5, 7) for s in (1, 2)),
)  # (taps, stride) of the form `strips`
STRIP_THREADS = 128  # of a block, at most
STRIP_BLOCKS = {3: 5, 8: 5, 5: 4, 7: 3}  # of them that share the registers, by columns of taps
LAST_COLUMNS = 4  # of a strip, channels last
LAST_LANES = 64  # filters of a block, channels last, at most
TILES = ((4, 8), (3, 4), (1, 8))  # taps of a thread of the form `staged`
STAGED_THREADS = 256
BATCH = 4  # sums of a thread that go through shared memory together, as in depthwise_weights.cuh
MOST_SHARED = 100 << 10  # bytes of a block: two share a multiprocessor
SEGMENTS = (64, 256, 1024)  # outputs of a row that are staged together, about
ADDERS = 256  # threads of a block that adds parts
# Estimates: instructions of a warp for 32 elements brought to shared memory, and seconds until loads that
# were started together have arrived.
STAGE = 25
ARRIVAL = 0.7e-6

# --- shapes ----------------------------------------------------------------------------------

STRIPS_CUT = np.dtype(
    [
        *((name, np.int32) for name in ("items", "rows", "groups", "spare")),
        *((name, DIVISOR) for name in ("lanes", "parts", "t", "columns", "bands", "depth", "multiplier")),
    ]
)
STAGED_NUMBERS = ("items", "rows", "run", "groups", "down", "height", "step", "spare")
STAGED_DIVISORS = (
    *("e", "f", "blocks_s", "blocks_r", "t", "parts", "lanes", "across"),
    *("segments", "bands", "depth", "pitch", "columns", "runs", "multiplier"),
)
STAGED_CUT = np.dtype(
    [*((name, np.int32) for name in STAGED_NUMBERS), *((name, DIVISOR) for name in STAGED_DIVISORS)]
)


def strips_build(dtype: str, taps: tuple[int, int], stride: int, last: bool) -> Build:
    (height, width), columns = taps, LAST_COLUMNS if last else 16 // DTYPES[dtype]
    columns *= 2 if height == 1 else 1  # single rows: more of each is on its way
    macros = {"HEIGHT": height, "WIDTH": width, "STRIDE": stride, "TX": columns, "CHANNELS_LAST": int(last)}
    return Build.of("depthwise_weights.cu", element_t=ELEMENTS[dtype], **macros)


def staged_build(dtype: str, tile: tuple[int, int]) -> Build:
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
    def variant(self):
        return "weights"

    def builds(self):
        for dtype in self.dtypes:
            yield from (staged_build(dtype, tile) for tile in TILES)
            if dtype != "float64":  # whose sums would fill the registers twice
                yield from (strips_build(dtype, *s, last) for s, last in product(STRIPS, (False, True)))

    def why_not(self, problem):
        if reason := super().why_not(problem):
            return reason
        if problem.groups != problem.C:
            return f"takes one input channel per group, not {problem.w_shape[1]}"
        if problem.is_empty or fastest(problem, current().figures):
            return None
        return "needs more threads than a launch may have, or counts beyond 32 bits"

    def cost(self, problem, machine):
        return fastest(problem, machine).seconds + machine.launch

    def prepare_cost(self, problem, machine):
        return 0.0  # dy is taken as it is

    def workspace_bytes(self, problem):
        """The sums of each part."""
        if problem.is_empty:
            return 0
        count = fastest(problem, current().figures).cut["parts"]
        return count * _sums_bytes(problem) if count > 1 else 0

    def error_bound(self, problem):
        """Sums are float32 for all types but float64; 16-bit results are rounded once more."""
        if problem.itemsize > 2:
            return error_of_sums(problem)
        return error_of_sums(problem.replace(dtype="float32")) + problem.eps

    def plan(self, problem):
        return DepthwiseWeightsPlan(problem, self, fastest(problem, current().figures))


def _sums_bytes(problem: ConvProblem) -> int:
    """Of one part of dw: sums are float32 for all types but float64."""
    return math.prod(problem.w_shape) * max(4, problem.itemsize)


@lru_cache(1024)
def fastest(problem: ConvProblem, machine: GpuMachine) -> Form | None:
    """Of hundreds of forms; asked for again by each step from `why_not` to `plan`."""
    return min(forms(problem, machine), key=lambda f: f.seconds, default=None)


def forms(problem: ConvProblem, machine: GpuMachine) -> Iterator[Form]:
    """Every form that serves a problem, with its geometry."""
    p = problem.as_3d
    if p.N * math.prod(p.spatial_out) >= COUNTED:
        return
    found = _strips(p, machine) if strip_of(p) and p.dtype != "float64" else iter(())
    yield from (f for f in found if f.blocks < COUNTED)
    yield from (f for tile in TILES for f in _staged(p, tile, machine) if f.blocks < COUNTED)


def _adders(parts: int) -> int:
    """Threads that share the parts of an element."""
    return 1 if parts < 16 else 8 if parts < 128 else 32


def _halves(most: int) -> list[int]:
    """Ways to cut something into pieces: whole, in halves, quarters, ... and one by one."""
    return [*(ceil_div(most, 1 << i) for i in range((most - 1).bit_length())), 1]


def _parts(items: int, blocks: int, resident: int, machine: GpuMachine) -> list[int]:
    """How many blocks may share the items of a filter: one, as many as run together, and more."""
    fill = ceil_div(machine.multiprocessors * resident, blocks)
    return sorted({min(items, n) for n in (1, fill // 2, fill, 2 * fill, 4 * fill) if n})


def _timed(
    p: ConvProblem,
    form: Form,
    arithmetic: float,
    arrivals: float,
    resident: int,
    again: float,
    machine: GpuMachine,
) -> Form:
    """The form with its seconds.

    arithmetic: instructions of a thread. arrivals: times that it waits for loads. again: how often x and dy
    are read from L2, beside the once that they come from memory.
    """
    count, read, sums = form.cut["parts"], p.x_bytes + p.y_bytes, _sums_bytes(p)
    threads = ceil_div(form.threads, WARP) * WARP
    issued = issue_seconds(form.blocks, threads, arithmetic, resident, machine)
    waited = ceil_div(waves(form.blocks, machine), resident) * arrivals * ARRIVAL
    moved = machine.stream(read) + machine.stream(again * read) / 3
    # Four parts are on their way to an adder together.
    added = machine.launch + machine.stream(2 * count * sums) + count / _adders(count) / 4 * ARRIVAL
    return form._replace(seconds=max(issued, waited, moved) + (added if count > 1 else 0.0))


# Strips: the threads of a filter share its strips, bands and images.


def _strips(p: ConvProblem, machine: GpuMachine) -> Iterator[Form]:
    last, (taps, stride) = p.layout == "channels_last", strip_of(p)  # type: ignore[misc]
    build = strips_build(p.dtype, taps, stride, last)
    lanes = ceil_div(p.K, ceil_div(p.K, LAST_LANES)) if last else 1
    sizes = [STRIP_THREADS] if last else [WARP, 2 * WARP, STRIP_THREADS]
    columns = ceil_div(p.spatial_out[2], macro(build, "TX"))
    for rows, threads in product(_halves(p.spatial_out[1]), sizes):
        groups, bands = threads // lanes, ceil_div(p.spatial_out[1], rows)
        items, blocks = p.N * p.spatial_out[0] * bands * columns, ceil_div(p.K, lanes) * p.kernel[0]
        resident = STRIP_BLOCKS[max(taps)] * STRIP_THREADS // threads
        for parts in _parts(ceil_div(items, groups), blocks, resident, machine):
            cut = {
                **{"items": items, "rows": rows, "groups": groups, "lanes": lanes, "parts": parts},
                **{"t": p.kernel[0], "columns": columns, "bands": bands, "depth": p.spatial_out[0]},
                **{"multiplier": p.gemm_n},
            }
            form = Form(build, "strips", blocks * parts, lanes * groups, 0, cut, 0.0)
            arithmetic, arrivals = _of_strips(p, form)
            again = p.kernel[0] * ((rows + taps[0] // stride) / rows + (p.gemm_n - 1) / 2) - 1
            yield _timed(p, form, arithmetic, arrivals, resident, again, machine)


def _of_strips(p: ConvProblem, form: Form) -> tuple[float, float]:
    """(instructions, waits) of a thread of the form `strips`."""
    height, width, stride, tx = (macro(form.build, name) for name in ("HEIGHT", "WIDTH", "STRIDE", "TX"))
    last, taps, cut = p.layout == "channels_last", height * width, form.cut
    span, depth = (tx - 1) * stride + width, ceil_div(height, stride)
    unlike = p.spatial[2] | p.spatial_out[2] | (p.padding[2][0] - (width - 1) // 2)
    vector = 1 if last else next(v for v in (16 // p.itemsize, 2, 1) if unlike % v == 0)
    loads = stride * (ceil_div(span, vector) + (vector > 1)) + tx // vector
    widened = (p.itemsize == 2) * (stride * span + tx)
    row = tx * taps + 4 * loads + widened + (depth - 1) * tx + 12
    items = ceil_div(cut["items"], cut["parts"] * cut["groups"])
    many = height == 1 or taps > 25 or stride * tx > (4 if last else 8)
    ahead = 1 if many else 2  # rows that are loaded together
    steps = items * ceil_div(cut["rows"] + depth - 1, ahead)
    shared = ceil_div(taps, 1 if last else WARP)  # sums of a thread in the end
    shuffled = 0 if last else 4 * (taps + 5)
    together = shuffled + shared * (20 + (cut["groups"] if last else form.threads // WARP))
    return steps * ahead * row + items * DECODE + together + DECODE, steps


# Staged: a block has a tile of the taps, and goes through the rows of a filter with all of its threads.


def _staged(p: ConvProblem, tile: tuple[int, int], machine: GpuMachine) -> Iterator[Form]:
    (tr, ts), common = tile, math.gcd(p.stride[2], p.dilation[2])
    e, f = p.stride[2] // common, p.dilation[2] // common
    tiles_r, tiles_s = ceil_div(p.kernel[1], tr), ceil_div(ceil_div(p.kernel[2], e), ts)
    outputs = ceil_div(p.spatial_out[2], f)  # of a phase of a row
    across = ceil_div(tiles_s, ceil_div(tiles_s, STAGED_THREADS // 4))
    down = ceil_div(tiles_r, ceil_div(tiles_r, STAGED_THREADS // across))
    tiles = {"e": e, "f": f, "across": across, "down": down, "lanes": across * down}
    tiles |= {"blocks_s": ceil_div(tiles_s, across), "blocks_r": ceil_div(tiles_r, down)}
    for segments in sorted({ceil_div(outputs, size) for size in SEGMENTS}):
        for rows, threads in product(_halves(p.spatial_out[1]), (STAGED_THREADS // 2, STAGED_THREADS)):
            if groups := threads // (across * down):
                runs = min(ceil_div(groups, rows), ceil_div(ceil_div(outputs, segments), 4))
                run = ceil_div(ceil_div(outputs, segments * runs), 4) * 4
                cut = {**tiles, "groups": groups, "rows": rows, "runs": runs, "run": run}
                yield from _staged_forms(p, tile, cut, threads, machine)


def _staged_forms(
    p: ConvProblem, tile: tuple[int, int], cut: dict[str, int], threads: int, machine: GpuMachine
) -> Iterator[Form]:
    """Those of a geometry, with few or many parts. cut: tiles of taps, groups, rows and runs of a block."""
    (tr, ts), (_, row_stride, stride), (_, row_dilation, dilation) = tile, p.stride, p.dilation
    width = max(4, p.itemsize)  # of a sum, and of elements in shared memory
    columns, step = cut["run"] * cut["runs"], math.lcm(stride, dilation)
    pitch = columns + cut["across"] * ts
    height = (cut["rows"] - 1) * row_stride + (cut["down"] * tr - 1) * row_dilation + 1
    segments = ceil_div(ceil_div(p.spatial_out[2], cut["f"]), columns)
    bands = ceil_div(p.spatial_out[1], cut["rows"])
    held = height * pitch + cut["rows"] * columns
    shared = width * max(held, BATCH * threads)
    farthest = max(
        (segments * columns + cut["blocks_s"] * cut["across"] * ts + 2) * step + sum(p.padding[2]),
        bands * cut["rows"] * row_stride + cut["blocks_r"] * cut["down"] * tr * row_dilation,
    )
    if shared > min(MOST_SHARED, machine.block_shared_bytes) or farthest >= COUNTED:
        return
    items = p.N * p.spatial_out[0] * cut["f"] * bands * segments
    blocks = p.K * p.kernel[0] * cut["e"] * cut["blocks_s"] * cut["blocks_r"]
    resident = min(
        machine.sm_shared_bytes // (shared + RESERVED_SHARED),
        machine.sm_registers // (threads * (32 + tr * (2 * ts + 4)) * width // 4),
        machine.sm_threads // threads,
    )
    slide = tr * (4 * ts + 2 + ts // 2) + 5  # instructions for four outputs
    runs = ceil_div(cut["rows"] * cut["runs"], cut["groups"])
    of_item = runs * (cut["run"] // 4 * slide + tr * ts // 2 + 25) + STAGE * ceil_div(held, threads) + DECODE
    sector = 32 // p.itemsize if p.layout == "channels_last" else 1  # what comes from L2 with an element
    rereads = pitch / columns * height / (cut["rows"] * row_stride) * sector
    again = blocks / p.K * p.gemm_n * rereads - 1
    cut = {
        **{**cut, "items": items, "height": height, "step": step, "t": p.kernel[0], "segments": segments},
        **{"bands": bands, "depth": p.spatial_out[0], "pitch": pitch, "columns": columns},
        **{"multiplier": p.gemm_n},
    }
    build = staged_build(p.dtype, tile)
    for parts in _parts(items, blocks, max(1, resident), machine):
        form = Form(build, "staged", blocks * parts, threads, shared, {**cut, "parts": parts}, 0.0)
        mine = ceil_div(items, parts)
        arithmetic = mine * of_item + tr * ts * (12 + cut["groups"]) + DECODE
        yield _timed(p, form, arithmetic, 2 * mine, max(1, resident), again, machine)


# --- the plan ----------------------------------------------------------------------------------


class DepthwiseWeightsPlan(GpuPlan):
    def __init__(self, problem: ConvProblem, algorithm: DepthwiseWeights, form: Form):
        self._parts = form.cut["parts"]
        super().__init__(problem, algorithm, self._parts * _sums_bytes(problem) if self._parts > 1 else 0)
        self._cut = self.by_value(form.record(STRIPS_CUT if form.kernel == "strips" else STAGED_CUT))
        self._kernel = self.launch(form.build, form.kernel, (form.blocks,), form.threads, form.shared_bytes)
        self._size = math.prod(problem.w_shape)
        if self._parts > 1:
            self._lanes = _adders(self._parts)
            grid = (ceil_div(self._size, ADDERS // self._lanes),)
            self._add = self.launch(form.build, "add_parts", grid, ADDERS)

    def prepare_filter(self, w):
        """dy itself, where vectors of it can be loaded."""
        return self._vectors(w)

    def run(self, x, w, bias, activation, y, workspace):
        self._kernel(x, w, y, workspace, self.conv[False], self._cut)
        if self._parts > 1:
            self._add(workspace, y, np.int64(self._size), np.int32(self._parts), np.int32(self._lanes))


ALGORITHMS = (DepthwiseWeights(),)
