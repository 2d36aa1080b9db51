"""The gradient of depthwise filters: each tap is a dot product of dy with x, shifted.

Where maps are small or channels lie last, vectors are channels, and a tap is a dot product along each row;
channels first, maps are brought into that order first. Otherwise a plane of x is copied with its zero border,
strides as phases, and dy beside it with rows of the same pitch and zeros between them: then every tap is one
dot product of two long vectors, at an offset of its own. Each channel is summed by one thread over all images
in their order: the bits do not depend on how many there are. Wins wherever there is one input channel for
each filter.

Source: the definition; flat planes as in Chellapilla et al. 2006, section 3, for one channel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from convalgos.algorithm import Algorithm
from convalgos.cpu import jit, simd
from convalgos.cpu.flat import flat
from convalgos.cpu.kernel_plan import CALL, KernelPlan, arguments
from convalgos.cpu.phases import split_row, zero_row
from convalgos.cpu.simd import call, carray, pointer, zero_bytes
from convalgos.cpu.tiles import gather
from convalgos.problem import ConvProblem

MOST_STRIDE = 4  # along rows, that is split with vectors
CHAINS = 4  # sums of a dot product, which hide each other's latency
BAND = 128  # outputs of the rows that all taps read before the next ones
MEMORY = 0.8  # of the time in which x and dy are moved; an estimate for Zen 5

# --- kernels ---------------------------------------------------------------------------------

RECORD = arguments(
    "size lanes images channels multiplier tasks units taps tap_tiles o p q block_o block_p block_q "
    "blocks_o blocks_p blocks_q depth height width stride_d stride_h stride_w pad_d pad_h pad_w "
    "slices rows pitch plane spare length offsets kernel_d kernel_h kernel_w dilation_d dilation_h "
    "dilation_w x_n x_c x_d x_h x_w y_n y_k y_o y_p y_q scratch_stride copy_row split_row correlate dot_rows "
    "filters band is_gathered x_pixels x_plane y_plane gather"
)


@simd.emitter
def correlate_tile(v, TAPS, dy, x, offsets, vectors, sums):
    """sums[t][:] += sum over i of dy[i][:] * x[i * lanes + offsets[t]:][:lanes], for t < TAPS."""
    read, base, to = v.pointer(dy), v.pointer(x), v.pointer(sums)
    rows = [v.at(base, v.table64(offsets, t)) for t in range(TAPS)]
    totals = [v.register(v.load(to, t * v.lanes)) for t in range(TAPS)]
    with v.loop(vectors) as i:
        at = v.mul(i, v.lanes)
        value = v.load(read, at)
        for row, total in zip(rows, totals, strict=True):
            total.set(v.fma(value, v.load(row, at), total.value))
    for t, total in enumerate(totals):
        v.store(total.value, to, t * v.lanes)


@simd.emitter
def dot_tile(v, CHAINS_, WHOLE, dy, dy_step, dy_row, x, x_step, x_row, count, rows, inside, sums):
    """sums[:] += sum over i < rows, j < count of dy[i * dy_row + j * dy_step:][:lanes] times the same of x.

    Only lanes inside are read.
    """
    mask = v.mask(inside)
    read, base, to = v.pointer(dy), v.pointer(x), v.pointer(sums)
    totals = [v.register(v.load(to) if chain == 0 else v.zero()) for chain in range(CHAINS_)]
    whole = v.quotient(count, CHAINS_)

    def load(from_, at):
        return v.load(from_, at) if WHOLE else v.load_masked(from_, at, mask)

    done = v.mul(whole, CHAINS_)
    with v.loop(rows) as row:
        of_dy, of_x = v.at(read, v.mul(row, dy_row)), v.at(base, v.mul(row, x_row))

        def add(total, j):
            value, other = load(of_dy, v.mul(j, dy_step)), load(of_x, v.mul(j, x_step))
            total.set(v.fma(value, other, total.value))

        with v.loop(whole) as i:
            for chain, total in enumerate(totals):
                add(total, v.plus(v.mul(i, CHAINS_), chain))
        with v.loop(v.minus(count, done)) as i:
            add(totals[0], v.plus(done, i))
    result = totals[0].value
    for total in totals[1:]:
        result = v.add(result, total.value)
    v.store(result, to)


@jit.specialise
def correlate(SIZE, LANES, TAPS):
    """All taps of a block, in tiles of TAPS and TAPS - 1."""
    FEWER = max(TAPS - 1, 1)

    def correlate(dy, x, offsets, taps, tiles, vectors, sums):
        for tile in range(tiles):
            first = taps * tile // tiles
            to, table = sums + first * LANES * SIZE, offsets + first * 8
            if taps * (tile + 1) // tiles - first == TAPS:
                correlate_tile(SIZE, LANES, TAPS, dy, x, table, vectors, to)
            else:
                correlate_tile(SIZE, LANES, FEWER, dy, x, table, vectors, to)

    return correlate


@jit.specialise
def copy_row(SIZE, LANES, STRIDE):
    """A row of `size` from `first` on, zeros outside of it, to STRIDE phases: `width` elements of each.

    STRIDE 0 is any stride: a few elements at a time.
    """

    def copy_row(row, size, first, stride, width, target, step):
        before = max(0, -first)
        inside = min(size - first, width * stride) - before
        if inside <= 0:
            for phase in range(stride):
                zero_row(SIZE, LANES, target + phase * step * SIZE, width)
        elif STRIDE:
            source = row + (first + before) * SIZE
            split_row(SIZE, LANES, STRIDE, STRIDE, source, before, inside, target, width, step)
        else:
            for phase in range(stride):
                to = target + phase * step * SIZE
                zero_row(SIZE, LANES, to, width)
                low = (max(0, before - phase) + stride - 1) // stride
                for i in range(low, (before + inside - 1 - phase) // stride + 1):
                    simd.copy_bytes(to + i * SIZE, row + (first + phase + i * stride) * SIZE, SIZE)

    return copy_row


@jit.specialise
def dot_rows(SIZE, LANES):
    """The dot products of a tap over rows of pixels, one for each channel."""

    def dot_rows(dy, dy_step, dy_row, x, x_step, x_row, count, rows, inside, sums):
        if inside == LANES:
            dot_tile(SIZE, LANES, CHAINS, 1, dy, dy_step, dy_row, x, x_step, x_row, count, rows, inside, sums)
        else:
            dot_tile(SIZE, LANES, CHAINS, 0, dy, dy_step, dy_row, x, x_step, x_row, count, rows, inside, sums)

    return dot_rows


@jit.helper
def inside_of(tap, stride, dilation, pad, size, size_out):
    """(first, end) outputs under which a tap meets the map."""
    start = tap * dilation - pad
    first = max(0, (-start + stride - 1) // stride)
    return first, max(first, min(size_out, (size - 1 - start) // stride + 1))


@jit.specialise
def planes_driver():
    """Channels first: every task takes input channels, with all filters of each."""

    def planes_driver(args, task):
        a = carray(pointer(args), 1, RECORD)[0]
        xs = a.scratch + task * a.scratch_stride
        dys = xs + a.stride_d * a.stride_h * a.stride_w * a.plane * a.size
        sums = dys + a.plane * a.size
        vector = a.lanes * a.size
        width = (
            (a.pitch + a.lanes - 1) // a.lanes * a.lanes
        )  # a row reaches into the next, which is next written
        for c in range(a.channels * task // a.tasks, a.channels * (task + 1) // a.tasks):
            zero_bytes(sums, a.multiplier * a.taps * vector)
            for n in range(a.images):
                for block in range(a.blocks_o * a.blocks_p * a.blocks_q):
                    q0 = block % a.blocks_q * a.block_q
                    p0 = block // a.blocks_q % a.blocks_p * a.block_p
                    o0 = block // (a.blocks_q * a.blocks_p) * a.block_o
                    for phase in range(a.stride_d * a.stride_h):
                        to = xs + phase * a.stride_w * a.plane * a.size
                        for i in range(a.slices):
                            d = (o0 + i) * a.stride_d - a.pad_d + phase // a.stride_h
                            for j in range(a.rows):
                                h = (p0 + j) * a.stride_h - a.pad_h + phase % a.stride_h
                                there = d >= 0 and d < a.depth and h >= 0 and h < a.height
                                row = a.x + (n * a.x_n + c * a.x_c + d * a.x_d + h * a.x_h) * a.size
                                size = a.width if there else 0
                                w0 = q0 * a.stride_w - a.pad_w
                                call(a.split_row, (row, size, w0, a.stride_w, width, to, a.plane))
                                to += a.pitch * a.size
                        for j in range(a.stride_w):
                            zero_bytes(to + j * a.plane * a.size, a.spare * a.size)
                    for m in range(a.multiplier):
                        to = dys
                        for i in range(a.block_o):
                            for j in range(a.rows if i < a.block_o - 1 else a.block_p):
                                there = o0 + i < a.o and j < a.block_p and p0 + j < a.p
                                at = n * a.y_n + (c * a.multiplier + m) * a.y_k + (o0 + i) * a.y_o
                                row = a.w + (at + (p0 + j) * a.y_p + q0) * a.size
                                size = min(a.block_q, a.q - q0) if there else 0
                                call(a.copy_row, (row, size, 0, 1, width, to, 0))
                                to += a.pitch * a.size
                        zero_bytes(to, a.spare * a.size)
                        vectors = (a.length + a.lanes - 1) // a.lanes
                        target = sums + m * a.taps * vector
                        call(a.correlate, (dys, xs, a.offsets, a.taps, a.tap_tiles, vectors, target))
            for t in range(a.multiplier * a.taps):
                add_lanes(a, sums + t * vector, a.y + (c * a.multiplier * a.taps + t) * a.size)

    return planes_driver


@jit.helper
def add_lanes(a, source, target):
    """target[0] = the sum of a vector, in the order of its lanes."""
    if a.size == 4:
        values, to = carray(pointer(source), a.lanes, np.float32), carray(pointer(target), 1, np.float32)
        total = values[0]
        for i in range(1, a.lanes):
            total += values[i]
        to[0] = total
    else:
        wide, at = carray(pointer(source), a.lanes, np.float64), carray(pointer(target), 1, np.float64)
        sum_ = wide[0]
        for i in range(1, a.lanes):
            sum_ += wide[i]
        at[0] = sum_


@jit.specialise
def pixels_driver():
    """One filter a channel: every task takes vectors of channels, from maps in that order."""

    def pixels_driver(args, task):
        a = carray(pointer(args), 1, RECORD)[0]
        vector = a.lanes * a.size
        sums = a.scratch + task * a.scratch_stride
        xs = sums + a.taps * vector
        dys = xs + a.x_pixels * vector
        for unit in range(a.units * task // a.tasks, a.units * (task + 1) // a.tasks):
            k = unit * a.lanes
            inside = min(a.lanes, a.filters - k)
            zero_bytes(sums, a.taps * vector)
            for n in range(a.images):
                x_image, dy_image = a.x + (n * a.x_n + k) * a.size, a.w + (n * a.y_n + k) * a.size
                lanes = inside
                if a.is_gathered:  # lanes beyond the last channel become 0
                    pixels = a.depth * a.height * a.width
                    source = a.x + (n * a.x_n + k * a.x_plane) * a.size
                    call(a.gather, (source, a.x_plane, 1, inside, pixels, xs))
                    source = a.w + (n * a.y_n + k * a.y_plane) * a.size
                    call(a.gather, (source, a.y_plane, 1, inside, a.o * a.p * a.q, dys))
                    x_image, dy_image, lanes = xs, dys, a.lanes
                for o in range(a.o):
                    for band in range(0, a.p, a.band):  # rows that stay in L1 while all taps read them
                        for t in range(a.kernel_d):
                            d = o * a.stride_d - a.pad_d + t * a.dilation_d
                            if d < 0 or d >= a.depth:
                                continue
                            for r in range(a.kernel_h):
                                p, rows = inside_of(r, a.stride_h, a.dilation_h, a.pad_h, a.height, a.p)
                                p, rows = max(p, band), min(rows, band + a.band) - max(p, band)
                                if rows <= 0:
                                    continue
                                h = p * a.stride_h - a.pad_h + r * a.dilation_h
                                for s in range(a.kernel_w):
                                    q, end = inside_of(s, a.stride_w, a.dilation_w, a.pad_w, a.width, a.q)
                                    w = q * a.stride_w - a.pad_w + s * a.dilation_w
                                    x = x_image + (d * a.x_d + h * a.x_h + w * a.x_w) * a.size
                                    dy = dy_image + (o * a.y_o + p * a.y_p + q * a.y_q) * a.size
                                    to = sums + ((t * a.kernel_h + r) * a.kernel_w + s) * vector
                                    call(
                                        a.dot_rows,
                                        (
                                            dy, a.y_q, a.y_p, x, a.stride_w * a.x_w, a.stride_h * a.x_h,
                                            end - q, rows, lanes, to,
                                        ),
                                    )  # fmt: skip
            for i in range(inside):
                for tap in range(a.taps):
                    from_ = sums + (tap * a.lanes + i) * a.size
                    simd.copy_bytes(a.y + ((k + i) * a.taps + tap) * a.size, from_, a.size)

    return pixels_driver


# --- plan ------------------------------------------------------------------------------------


class DepthwiseWeightsPlan(KernelPlan):
    def __init__(self, problem: ConvProblem, algorithm: DepthwiseWeights):
        cut = flat(problem)
        p = cut.problem
        size, lanes = p.itemsize, simd.lanes(p.itemsize)
        last = p.layout == "channels_last"
        tasks = min(jit.thread_count(), cut.units)
        taps = math.prod(p.kernel)
        slices, rows, pitch = cut.sizes
        values: dict[str, int | np.ndarray] = {
            "size": size, "lanes": lanes, "images": p.N, "channels": p.C, "multiplier": p.gemm_n,
            "filters": p.K, "tasks": tasks, "units": cut.units, "taps": taps, "tap_tiles": cut.tap_tiles,
            "slices": slices, "rows": rows, "pitch": pitch, "plane": cut.plane,
            "spare": cut.spare, "length": cut.length, "offsets": cut.offsets(),
            "scratch_stride": cut.task_bytes, "copy_row": copy_row(size, lanes, 1),
            "split_row": copy_row(size, lanes, p.stride[2] if p.stride[2] <= MOST_STRIDE else 0),
            "correlate": 0 if cut.by_channel else correlate(size, lanes, -(-taps // cut.tap_tiles)),
            "dot_rows": dot_rows(size, lanes) if cut.by_channel else 0,
            "gather": gather(size, lanes) if cut.is_gathered else 0, "is_gathered": int(cut.is_gathered),
            "band": max(1, BAND // max(1, p.spatial_out[2])),
            "x_pixels": cut.gathered[0],
            "x_plane": math.prod(p.spatial), "y_plane": math.prod(p.spatial_out),
        }  # fmt: skip
        for axis, n, block, blocks in zip("opq", p.spatial_out, cut.block, cut.blocks, strict=True):
            values |= {axis: n, f"block_{axis}": block, f"blocks_{axis}": blocks}
        values |= dict(zip(("depth", "height", "width"), p.spatial, strict=True))
        for axis, stride, dilation, kernel, pad in zip(
            "dhw", p.stride, p.dilation, p.kernel, p.padding, strict=True
        ):
            values |= {f"stride_{axis}": stride, f"dilation_{axis}": dilation, f"kernel_{axis}": kernel}
            values[f"pad_{axis}"] = pad[0]
        for names, channels, (d, h, w) in (("x_n x_c x_d x_h x_w", p.C, p.spatial),
                                           ("y_n y_k y_o y_p y_q", p.K, p.spatial_out)):  # fmt: skip
            between = channels if last else lanes  # pixels, where vectors are channels
            steps = (1, h * w * between, w * between, between) if cut.by_channel else (d * h * w, h * w, w, 1)
            values |= dict(zip(names.split(), (channels * d * h * w, *steps), strict=True))
        driver = pixels_driver() if cut.by_channel else planes_driver()
        super().__init__(problem, algorithm, RECORD, values, [(driver, tasks)], tasks * cut.task_bytes)

    def pack_filter(self, w):
        """dy itself."""
        return w


# --- the figures for the selector --------------------------------------------------------------


@dataclass(frozen=True)
class DepthwiseWeights(Algorithm):
    family: ClassVar[str] = "cpu.depthwise"
    directions: ClassVar[tuple[str, ...]] = ("backward_weights",)
    spreads_nan: ClassVar[bool] = True  # of x, to taps that do not meet it: by zeros between the rows of dy

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
        cut = flat(problem)
        p, lanes = cut.problem, simd.lanes(problem.itemsize)
        balance = -(-cut.units // machine.threads) * machine.threads / cut.units
        seconds = balance * cut.cycles * 4 * lanes / machine.peak(p.dtype)  # a cycle is two vectors of sums
        return CALL + machine.launch + seconds + MEMORY * machine.stream(p.x_bytes + p.y_bytes)

    def prepare_cost(self, problem, machine):
        return 1e-9  # dy is taken as it is

    def workspace_bytes(self, problem):
        if problem.is_empty:
            return 0
        cut = flat(problem)
        return min(jit.thread_count(), cut.units) * cut.task_bytes

    def error_bound(self, problem):
        return float(np.finfo(problem.dtype).eps) * (4 * math.sqrt(max(1, problem.reduction)) + 2)

    def plan(self, problem):
        return DepthwiseWeightsPlan(problem, self)


ALGORITHMS = (DepthwiseWeights(),)
