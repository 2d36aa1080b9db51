"""The gradient of depthwise filters: each tap is a dot product of dy with x, shifted.

A block of x is copied with its zero border, strides as phases, so that every tap meets dy at an offset of its
own, whatever row it is; then some taps at a time are summed over all rows of dy. Where maps are small or
channels lie last, vectors are channels, and maps with channels first are brought into that order; otherwise
vectors are neighbours in a row. Each channel is summed by one thread over all images in their order: the bits
do not depend on how many there are. Wins wherever there is one input channel for each filter.

Source: the definition; planes with a border as in Chellapilla et al. 2006, section 3, for one channel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from convalgos.algorithm import Algorithm
from convalgos.cpu import jit, simd
from convalgos.cpu.bordered import bordered
from convalgos.cpu.kernel_plan import CALL, KernelPlan, arguments
from convalgos.cpu.phases import split_row, zero_row
from convalgos.cpu.simd import call, carray, pointer, zero_bytes
from convalgos.cpu.squares import transpose
from convalgos.cpu.tiles import copy_pixels, gather, place
from convalgos.problem import ConvProblem

MOST_STRIDE = 4  # along rows, that is split with vectors
MEMORY = 0.8  # of the time in which x and dy are moved; an estimate for Zen 5

# --- kernels ---------------------------------------------------------------------------------

RECORD = arguments(
    "size lanes images channels tasks units unit multiplier taps tap_tiles o p q block_o block_p block_q "
    "blocks_o blocks_p blocks_q depth height width stride_d stride_h stride_w pad_d pad_h pad_w "
    "slices rows pitch plane planes sums offsets x_n x_c x_d x_h x_w y_n y_k y_o y_p y_q by_channel "
    "scratch_stride border_rows correlate finish gather x_pixels"
)


@simd.emitter
def correlate_tile(v, TAPS, dy, dy_row, dy_step, x, x_row, offsets, rows, whole, part, inside, sums):
    """sums[t][:] += sum over i, j of dy[i * dy_row + j * dy_step:] * x[i * x_row + j * lanes + offsets[t]:].

    For t < TAPS, i < rows, j < whole + part; of the last `part` vectors of dy, only `inside` lanes count.
    """
    mask = v.mask(inside)
    read, base, to = v.pointer(dy), v.pointer(x), v.pointer(sums)
    taps = [v.at(base, v.table64(offsets, t)) for t in range(TAPS)]
    totals = [v.register(v.load(to, t * v.lanes)) for t in range(TAPS)]
    with v.loop(rows) as i:

        def add(j, load):
            value = load(v.plus(v.mul(i, dy_row), v.mul(j, dy_step)))
            at = v.plus(v.mul(i, x_row), v.mul(j, v.lanes))
            for tap, total in zip(taps, totals, strict=True):
                total.set(v.fma(value, v.load(tap, at), total.value))

        with v.loop(whole) as j:
            add(j, lambda at: v.load(read, at))
        with v.loop(part) as j:
            add(v.plus(whole, j), lambda at: v.load_masked(read, at, mask))
    for t, total in enumerate(totals):
        v.store(total.value, to, t * v.lanes)


@simd.emitter
def add_lanes(v, sums, count, y):
    """y[t] = the sum of sums[t][:], in the order of its lanes, for t < count; reads whole squares."""
    with v.loop(v.quotient(v.plus(count, v.lanes - 1), v.lanes)) as i:
        first = v.mul(i, v.lanes)
        read = v.at(v.pointer(sums), v.mul(first, v.lanes))
        total, *others = transpose(v, [v.load(read, t * v.lanes) for t in range(v.lanes)])
        for other in others:
            total = v.add(total, other)
        v.store_masked(total, v.pointer(y), first, v.mask(v.minus(count, first)))


@jit.specialise
def correlate(SIZE, LANES, TAPS):
    """All taps of a block, in tiles of TAPS and TAPS - 1."""
    FEWER = max(TAPS - 1, 1)

    def correlate(dy, dy_row, dy_step, x, x_row, offsets, taps, tiles, rows, whole, part, inside, sums):
        for tile in range(tiles):
            first = taps * tile // tiles
            to, table = sums + first * LANES * SIZE, offsets + first * 8
            if taps * (tile + 1) // tiles - first == TAPS:
                correlate_tile(
                    SIZE, LANES, TAPS, dy, dy_row, dy_step, x, x_row, table, rows, whole, part, inside, to
                )
            else:
                correlate_tile(
                    SIZE, LANES, FEWER, dy, dy_row, dy_step, x, x_row, table, rows, whole, part, inside, to
                )

    return correlate


@jit.specialise
def border_rows(SIZE, LANES, STRIDE):
    """Rows h, h + stride, ... of a slice from column w on, and zeros outside of it, to phases of columns.

    `there` tells whether there is such a slice. STRIDE 0 is any stride: a few elements at a time.
    """

    def border_rows(args, x, channels, there, h, w, target):
        a = carray(pointer(args), 1, RECORD)[0]
        stride, pitch, plane, height, x_h, down = a.stride_w, a.pitch, a.plane, a.height, a.x_h, a.stride_h
        before = max(0, -w)
        inside = min(a.width - w, pitch * stride) - before
        there = there if inside > 0 else 0
        source = x + (h * x_h + w + before) * SIZE
        for i in range(a.rows):
            to = target + i * pitch * SIZE
            if there == 0 or h + i * down < 0 or h + i * down >= height:
                for phase in range(stride):
                    zero_row(SIZE, LANES, to + phase * plane * SIZE, pitch)
            elif STRIDE:
                row = source + i * down * x_h * SIZE
                split_row(SIZE, LANES, STRIDE, STRIDE, row, before, inside, to, pitch, plane)
            else:
                row = source + (i * down * x_h - before) * SIZE
                for phase in range(stride):
                    place = to + phase * plane * SIZE
                    zero_row(SIZE, LANES, place, pitch)
                    low = (max(0, before - phase) + stride - 1) // stride
                    for j in range(low, (before + inside - 1 - phase) // stride + 1):
                        simd.copy_bytes(place + j * SIZE, row + (phase + j * stride) * SIZE, SIZE)

    return border_rows


@jit.specialise
def border_pixels(SIZE, LANES):
    """`border_rows` of vectors of channels, of which lanes beyond `channels` become 0."""

    def border_pixels(args, x, channels, there, h, w, target):
        a = carray(pointer(args), 1, RECORD)[0]
        pitch, plane, height, x_h, down = a.pitch, a.plane, a.height, a.x_h, a.stride_h
        rows, step = a.rows, a.stride_w * a.x_w
        for phase in range(a.stride_w):
            first = w + phase  # column of the first place, then of the first one inside
            low = min(pitch, (max(0, -first) + a.stride_w - 1) // a.stride_w)
            count = max(0, min(pitch, (a.width - first + a.stride_w - 1) // a.stride_w) - low)
            source = x + (h * x_h + (first + low * a.stride_w) * a.x_w) * SIZE
            for i in range(rows):
                to = target + (phase * plane + i * pitch * LANES) * SIZE
                if there == 0 or h + i * down < 0 or h + i * down >= height:
                    zero_row(SIZE, LANES, to, pitch * LANES)
                else:
                    zero_row(SIZE, LANES, to, low * LANES)
                    row, place = source + i * down * x_h * SIZE, to + low * LANES * SIZE
                    copy_pixels(SIZE, LANES, row, step, channels, count, place)
                    zero_row(SIZE, LANES, place + count * LANES * SIZE, (pitch - low - count) * LANES)

    return border_pixels


@jit.specialise
def sum_lanes(SIZE, LANES):
    """The sums of a channel, in the place of `tiles.place`."""

    def sum_lanes(sums, channel_stride, pixel_stride, channels, count, y):
        add_lanes(SIZE, LANES, sums, count, y)

    return sum_lanes


@jit.specialise
def driver():
    """Every task takes units of channels, with all filters of each."""

    def driver(args, task):
        a = carray(pointer(args), 1, RECORD)[0]
        xs = a.scratch + task * a.scratch_stride
        sums = xs + a.planes * a.size
        dense = sums + a.sums * a.size  # x of an image, then dy
        vector = a.lanes * a.size
        zero_bytes(xs, a.planes * a.size)  # what is read behind the last row stays 0
        for unit in range(a.units * task // a.tasks, a.units * (task + 1) // a.tasks):
            c = unit * a.unit
            channels = min(a.unit, a.channels - c)
            zero_bytes(sums, a.sums * a.size)
            for n in range(a.images):
                x = a.x + (n * a.x_n + c * a.x_c) * a.size
                dy = a.w + (n * a.y_n + c * a.multiplier * a.y_k) * a.size
                lanes = channels
                if a.gather:  # lanes beyond the last channel become 0
                    to = dense + a.x_pixels * vector
                    call(a.gather, (x, a.x_c, 1, channels, a.depth * a.height * a.width, dense))
                    call(a.gather, (dy, a.y_k, 1, channels, a.o * a.p * a.q, to))
                    x, dy, lanes = dense, to, a.lanes
                for block in range(a.blocks_o * a.blocks_p * a.blocks_q):
                    q = block % a.blocks_q * a.block_q
                    p = block // a.blocks_q % a.blocks_p * a.block_p
                    o = block // (a.blocks_q * a.blocks_p) * a.block_o
                    for phase in range(a.stride_d * a.stride_h):
                        for i in range(a.slices):
                            d = (o + i) * a.stride_d - a.pad_d + phase // a.stride_h
                            there = 1 if d >= 0 and d < a.depth else 0
                            h = p * a.stride_h - a.pad_h + phase % a.stride_h
                            w = q * a.stride_w - a.pad_w
                            place = phase * a.stride_w * a.plane + i * a.rows * a.pitch * a.unit
                            call(
                                a.border_rows,
                                (args, x + d * a.x_d * a.size, lanes, there, h, w, xs + place * a.size),
                            )
                    columns = min(a.block_q, a.q - q)
                    if a.by_channel:
                        inside = lanes
                        whole = columns if lanes == a.lanes else 0
                        part = columns - whole
                    else:
                        whole = columns // a.lanes
                        inside = columns - whole * a.lanes
                        part = 1 if inside > 0 else 0
                    for m in range(a.multiplier):
                        for i in range(min(a.block_o, a.o - o)):
                            from_ = m * a.y_k + (o + i) * a.y_o + p * a.y_p + q * a.y_q
                            call(
                                a.correlate,
                                (
                                    dy + from_ * a.size, a.y_p, a.y_q if a.by_channel else a.lanes,
                                    xs + i * a.rows * a.pitch * a.unit * a.size, a.pitch * a.unit,
                                    a.offsets, a.taps, a.tap_tiles, min(a.block_p, a.p - p),
                                    whole, part, inside, sums + m * a.taps * vector,
                                ),
                            )  # fmt: skip
            taps = a.multiplier * a.taps
            call(a.finish, (sums, taps, 1, channels, taps, a.y + c * taps * a.size))

    return driver


# --- plan ------------------------------------------------------------------------------------


class DepthwiseWeightsPlan(KernelPlan):
    def __init__(self, problem: ConvProblem, algorithm: DepthwiseWeights):
        cut = bordered(problem)
        p = cut.problem
        size, lanes = p.itemsize, simd.lanes(p.itemsize)
        tasks = min(jit.thread_count(), cut.units)
        taps = math.prod(p.kernel)
        slices, rows, pitch = cut.sizes
        in_phases = p.stride[2] if p.stride[2] <= MOST_STRIDE else 0
        border = border_pixels(size, lanes) if cut.by_channel else border_rows(size, lanes, in_phases)
        values: dict[str, int | np.ndarray] = {
            "size": size, "lanes": lanes, "images": p.N, "channels": p.C, "tasks": tasks, "units": cut.units,
            "unit": cut.lanes, "multiplier": p.gemm_n, "taps": taps, "tap_tiles": cut.tap_tiles,
            "slices": slices, "rows": rows, "pitch": pitch, "plane": cut.plane, "planes": cut.planes,
            "sums": cut.sums, "offsets": cut.offsets(), "scratch_stride": cut.task_bytes,
            "by_channel": int(cut.by_channel), "x_pixels": cut.gathered[0],
            "border_rows": border, "correlate": correlate(size, lanes, -(-taps // cut.tap_tiles)),
            "finish": place(size, lanes) if cut.by_channel else sum_lanes(size, lanes),
            "gather": gather(size, lanes) if cut.is_gathered else 0,
        }  # fmt: skip
        for axis, n, block, blocks in zip("opq", p.spatial_out, cut.block, cut.blocks, strict=True):
            values |= {axis: n, f"block_{axis}": block, f"blocks_{axis}": blocks}
        values |= dict(zip(("depth", "height", "width"), p.spatial, strict=True))
        for axis, stride, pad in zip("dhw", p.stride, p.padding, strict=True):
            values |= {f"stride_{axis}": stride, f"pad_{axis}": pad[0]}
        last = p.layout == "channels_last"
        for names, channels, (d, h, w) in (("x_n x_c x_d x_h x_w", p.C, p.spatial),
                                           ("y_n y_k y_o y_p y_q", p.K, p.spatial_out)):  # fmt: skip
            between = channels if last else cut.lanes  # pixels, as x and dy are read for the planes
            steps = (1 if last else d * h * w, h * w * between, w * between, between)
            values |= dict(zip(names.split(), (channels * d * h * w, *steps), strict=True))
        super().__init__(problem, algorithm, RECORD, values, [(driver(), tasks)], tasks * cut.task_bytes)

    def pack_filter(self, w):
        """dy itself."""
        return w


# --- the figures for the selector --------------------------------------------------------------


@dataclass(frozen=True)
class DepthwiseWeights(Algorithm):
    family: ClassVar[str] = "cpu.depthwise"
    directions: ClassVar[tuple[str, ...]] = ("backward_weights",)
    spreads_nan: ClassVar[bool] = True  # of x, to taps that do not meet it: by zeros instead of parts of dy

    @property
    def variant(self):
        return "weights"

    def why_not(self, problem):
        if reason := super().why_not(problem):
            return reason
        if problem.w_shape[1] != 1:
            return f"needs one input channel in each group, but there are {problem.w_shape[1]}"
        if problem.layout == "channels_last" and problem.gemm_n != 1:
            return f"needs one filter in each group channels last, but there are {problem.gemm_n}"
        return None

    def cost(self, problem, machine):
        cut = bordered(problem)
        p, lanes = cut.problem, simd.lanes(problem.itemsize)
        balance = -(-cut.units // machine.threads) * machine.threads / cut.units
        seconds = balance * cut.cycles * 4 * lanes / machine.peak(p.dtype)  # a cycle is two vectors of sums
        return CALL + machine.launch + seconds + MEMORY * machine.stream(p.x_bytes + p.y_bytes)

    def prepare_cost(self, problem, machine):
        return 1e-9  # dy is taken as it is

    def workspace_bytes(self, problem):
        if problem.is_empty:
            return 0
        cut = bordered(problem)
        return min(jit.thread_count(), cut.units) * cut.task_bytes

    def error_bound(self, problem):
        return float(np.finfo(problem.dtype).eps) * (4 * math.sqrt(max(1, problem.reduction)) + 2)

    def plan(self, problem):
        return DepthwiseWeightsPlan(problem, self)


ALGORITHMS = (DepthwiseWeights(),)
