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
from itertools import product
from typing import ClassVar

import numpy as np

from convalgos.core.algorithm import Algorithm, error_of_sums
from convalgos.core.problem import ConvProblem
from convalgos.cpu.dwconv.padded_planes import bordered
from convalgos.cpu.layout.channel_vectors import copy_pixels, gather, place
from convalgos.cpu.layout.strided_rows import MOST_STRIDE, split_any_row, split_row, zero_row
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import CALL, KernelPlan, arguments, fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.simd import LINE, call, carray, pointer, zero_bytes
from convalgos.cpu.vectors.transpose import transpose

MEMORY = 0.8  # of the time in which x and dy are moved; an estimate for Zen 5

# --- kernels ---------------------------------------------------------------------------------

RECORD = arguments(
    "size lanes images channels tasks units unit multiplier taps row_taps tiles tap_tiles down across "
    "o p q block_o block_p block_q blocks_o blocks_p blocks_q depth height width stride_d stride_h stride_w "
    "pad_d pad_h pad_w slices rows pitch plane planes sums x_n x_c x_d x_h x_w y_n y_k y_o y_p y_q "
    "by_channel scratch_stride border_rows finish gather places fetch_x fetch_y"
)
TILE = fields("correlate row column")  # taps that are summed at a time: the kernel, the first row and column


@simd.emitter
def correlate_tile(
    v, ROWS, COLUMNS, dy, dy_row, dy_step, x, x_row, down, across,
    rows, whole, part, inside, sums, sums_row, ahead, fetch,
):  # fmt: skip
    """sums[r][s][:] += sum over i, j of dy[i][j][:] * x[i * x_row + j * lanes + down[r] + across[s]:].

    For r < ROWS, s < COLUMNS, i < rows, j < whole + part; of the last `part` vectors of dy, only `inside`
    lanes count. In each row `fetch` bytes from `ahead` on are asked into L2.
    """
    mask = v.mask(inside)
    read, base, to = v.pointer(dy), v.pointer(x), v.pointer(sums)
    starts = [v.at(base, v.table64(down, r)) for r in range(ROWS)]
    columns = [v.table64(across, s) for s in range(COLUMNS)]
    entries = [v.iadd(v.imul(sums_row, r), s * v.lanes) for r in range(ROWS) for s in range(COLUMNS)]
    totals = [v.register(v.load(to, entry)) for entry in entries]
    with v.loop(rows) as i:
        with v.loop(v.idiv(v.iadd(fetch, LINE - 1), LINE)) as line:
            v.prefetch(v.pointer(v.iadd(ahead, v.iadd(v.imul(i, fetch), v.imul(line, LINE)))))

        def add(j, load):
            value = load(v.iadd(v.imul(i, dy_row), v.imul(j, dy_step)))
            at = v.iadd(v.imul(i, x_row), v.imul(j, v.lanes))
            steps = [v.step(start, at) for start in starts]
            for (row, column), total in zip(product(steps, columns), totals, strict=True):
                total.set(v.fma(value, v.load(row, column), total.value))

        with v.loop(whole) as j:
            add(j, lambda at: v.load(read, at))
        with v.loop(part) as j:
            add(v.iadd(whole, j), lambda at: v.load_masked(read, at, mask))
    for entry, total in zip(entries, totals, strict=True):
        v.store(total.value, to, entry)


@simd.emitter
def add_lanes(v, sums, count, y):
    """y[t] = the sum of sums[t][:], in the order of its lanes, for t < count; reads whole squares."""
    with v.loop(v.idiv(v.iadd(count, v.lanes - 1), v.lanes)) as i:
        first = v.imul(i, v.lanes)
        read = v.at(v.pointer(sums), v.imul(first, v.lanes))
        total, *others = transpose(v, [v.load(read, t * v.lanes) for t in range(v.lanes)])
        for other in others:
            total = v.fadd(total, other)
        v.store_masked(total, v.pointer(y), first, v.mask(v.isub(count, first)))


@jit.specialise
def correlate(SIZE, LANES, ROWS, COLUMNS):
    """`correlate_tile`."""

    def correlate(
        dy, dy_row, dy_step, x, x_row, down, across, rows, whole, part, inside, sums, sums_row, ahead, fetch
    ):
        correlate_tile(
            SIZE, LANES, ROWS, COLUMNS, dy, dy_row, dy_step, x, x_row, down, across,
            rows, whole, part, inside, sums, sums_row, ahead, fetch,
        )  # fmt: skip

    return correlate


@jit.specialise
def border_rows(SIZE, LANES, STRIDE):
    """Rows of a slice from (h, w) on, and zeros outside of it, to phases of rows and columns.

    `there` tells whether there is such a slice; `ahead` is asked into L2. STRIDE 0 is any stride along the
    row: a few elements at a time.
    """

    def border_rows(args, x, channels, there, h, w, target, ahead):
        a = carray(pointer(args), 1, RECORD)[0]
        stride, pitch, plane, height, x_h, down = a.stride_w, a.pitch, a.plane, a.height, a.x_h, a.stride_h
        rows, fetch = a.rows, a.fetch_x
        before = max(0, -w)
        inside = min(a.width - w, pitch * stride) - before
        there = there if inside > 0 else 0
        source = x + (w + before) * SIZE
        for i in range(rows):
            simd.fetch_bytes(SIZE, LANES, 0, ahead + i * fetch, fetch)
            for j in range(down):  # row by row, as they lie in memory
                to = target + (j * stride * plane + i * pitch) * SIZE
                row = h + i * down + j
                if there == 0 or row < 0 or row >= height:
                    for phase in range(stride):
                        zero_row(SIZE, LANES, to + phase * plane * SIZE, pitch)
                elif STRIDE:
                    from_ = source + row * x_h * SIZE
                    split_row(SIZE, LANES, STRIDE, STRIDE, from_, before, inside, to, pitch, plane)
                else:
                    from_ = source + row * x_h * SIZE
                    split_any_row(from_, before, inside, to, pitch, plane, stride, stride, SIZE)

    return border_rows


@jit.specialise
def border_pixels(SIZE, LANES):
    """`border_rows` of vectors of channels, of which lanes beyond `channels` become 0; asks for nothing."""

    def border_pixels(args, x, channels, there, h, w, target, ahead):
        a = carray(pointer(args), 1, RECORD)[0]
        pitch, plane, height, x_h, down = a.pitch, a.plane, a.height, a.x_h, a.stride_h
        rows, stride, step = a.rows, a.stride_w, a.stride_w * a.x_w
        for phase in range(stride):
            first = w + phase  # column of the first place, then of the first one inside
            low = min(pitch, (max(0, -first) + stride - 1) // stride)
            count = max(0, min(pitch, (a.width - first + stride - 1) // stride) - low)
            source = x + (first + low * stride) * a.x_w * SIZE
            for i in range(rows):
                for j in range(down):
                    to = target + ((j * stride + phase) * plane + i * pitch * LANES) * SIZE
                    row = h + i * down + j
                    if there == 0 or row < 0 or row >= height:
                        zero_row(SIZE, LANES, to, pitch * LANES)
                    else:
                        zero_row(SIZE, LANES, to, low * LANES)
                        place = to + low * LANES * SIZE
                        copy_pixels(SIZE, LANES, source + row * x_h * SIZE, step, channels, count, place)
                        zero_row(SIZE, LANES, place + count * LANES * SIZE, (pitch - low - count) * LANES)

    return border_pixels


@simd.emitter
def border_square(v, WHOLE, x, x_stride, channels, columns, places, target):
    """target[places[j]:][i] = x[i][j] for i < channels <= lanes, j < columns <= lanes; WHOLE: both are lanes.

    Lanes beyond the channels hold some value or other.
    """
    to, row, read = v.pointer(target), v.step(v.pointer(x), 0), []
    inside = v.mask(columns)
    for i in range(v.lanes):
        if WHOLE:
            row = v.step(row, x_stride) if i else row
            read.append(v.load(row))
        else:
            read.append(v.load_masked(row, v.imul(v.imin(i, v.isub(channels, 1)), x_stride), inside))
    pixels = transpose(v, read)
    for j in reversed(range(v.lanes)):  # those beyond the last go to its place first, and it goes there last
        entry = j if WHOLE else v.imin(j, v.isub(columns, 1))
        v.store(pixels[j], to, v.table64(places, entry))


@jit.specialise
def border_squares(SIZE, LANES):
    """`border_pixels` of whole rows with channels first: squares are turned, and put where they belong."""

    def border_squares(args, x, channels, there, h, w, target, ahead):
        a = carray(pointer(args), 1, RECORD)[0]
        width, plane, pitch, down, x_c, places = a.width, a.plane, a.pitch, a.stride_h, a.x_c, a.places
        band = a.rows * down
        first = min(max(0, -h), band)  # of the rows that there are
        end = max(first, min(band, a.height - h)) if there else first
        for i in range(band):
            if i < first or i >= end:
                for phase in range(a.stride_w):
                    row = (i % down * a.stride_w + phase) * plane + i // down * pitch * LANES
                    zero_row(SIZE, LANES, target + row * SIZE, pitch * LANES)
        source = x + h * width * SIZE
        for start in range(first * width, end * width, LANES):
            count = min(LANES, (end - first) * width)
            at = min(start, end * width - count)  # the last square overlaps the one before
            table = places + at * 8
            if count == LANES and channels == LANES:
                border_square(SIZE, LANES, 1, source + at * SIZE, x_c, channels, count, table, target)
            else:
                border_square(SIZE, LANES, 0, source + at * SIZE, x_c, channels, count, table, target)

    return border_squares


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
        tiles = carray(pointer(a.tiles), a.tap_tiles, TILE)
        xs = a.scratch + task * a.scratch_stride
        sums = xs + a.planes * a.size
        dense = sums + a.sums * a.size  # dy of a block
        vector = a.lanes * a.size
        blocks = a.blocks_o * a.blocks_p * a.blocks_q
        zero_bytes(xs, a.planes * a.size)  # what is read behind the last row stays 0
        for unit in range(a.units * task // a.tasks, a.units * (task + 1) // a.tasks):
            c = unit * a.unit
            channels = min(a.unit, a.channels - c)
            zero_bytes(sums, a.sums * a.size)
            for n in range(a.images):
                x = a.x + (n * a.x_n + c * a.x_c) * a.size
                dy = a.w + (n * a.y_n + c * a.multiplier * a.y_k) * a.size
                for block in range(blocks):
                    o, p, q = place_of(a, block)
                    if block + 1 < blocks:
                        ahead_x, ahead_dy = beginning(a, c, n, block + 1)
                    elif n + 1 < a.images:
                        ahead_x, ahead_dy = beginning(a, c, n + 1, 0)
                    else:
                        ahead_x, ahead_dy = beginning(a, c + a.unit, 0, 0)
                    for i in range(a.slices):
                        for phase in range(a.stride_d):
                            d = (o + i) * a.stride_d - a.pad_d + phase
                            there = 1 if d >= 0 and d < a.depth else 0
                            h, w = p * a.stride_h - a.pad_h, q * a.stride_w - a.pad_w
                            place = phase * a.stride_h * a.stride_w * a.plane + i * a.rows * a.pitch * a.unit
                            source = x + d * a.x_d * a.size
                            ahead = ahead_x + (i * a.stride_d + phase) * a.x_d * a.size
                            to = xs + place * a.size
                            call(a.border_rows, (args, source, channels, there, h, w, to, ahead))
                    slices, rows, columns = (
                        min(a.block_o, a.o - o),
                        min(a.block_p, a.p - p),
                        min(a.block_q, a.q - q),
                    )
                    from_dy, lanes = dy + (o * a.y_o + p * a.y_p + q * a.y_q) * a.size, channels
                    if a.gather:  # whole rows, and where there are several slices also whole ones
                        pixels = ((slices - 1) * a.p + rows) * a.q
                        call(a.gather, (dy + (o * a.p + p) * a.q * a.size, a.y_k, 1, channels, pixels, dense))
                        from_dy, lanes = dense, a.lanes
                    if a.by_channel:
                        inside = lanes
                        whole = columns if lanes == a.lanes else 0
                        part = columns - whole
                    else:
                        whole = columns // a.lanes
                        inside = columns - whole * a.lanes
                        part = 1 if inside > 0 else 0
                    for m in range(a.multiplier):
                        for i in range(slices):
                            from_ = from_dy + (m * a.y_k + i * a.y_o) * a.size
                            place = xs + i * a.rows * a.pitch * a.unit * a.size
                            for t in range(a.tap_tiles):
                                tile = tiles[t]
                                tap = tile.row * a.row_taps + tile.column
                                call(
                                    tile.correlate,
                                    (
                                        from_, a.y_p, a.y_q if a.by_channel else a.lanes,
                                        place, a.pitch * a.unit, a.down + 8 * tile.row,
                                        a.across + 8 * tile.column, rows, whole, part, inside,
                                        sums + (m * a.taps + tap) * vector, a.row_taps * a.lanes,
                                        ahead_dy + i * a.y_o * a.size, a.fetch_y if t == 0 else 0,
                                    ),
                                )  # fmt: skip
            taps = a.multiplier * a.taps
            call(a.finish, (sums, taps, 1, channels, taps, a.y + c * taps * a.size))

    return driver


@jit.helper
def place_of(a, block):
    """The first output of a block."""
    q = block % a.blocks_q * a.block_q
    p = block // a.blocks_q % a.blocks_p * a.block_p
    return block // (a.blocks_q * a.blocks_p) * a.block_o, p, q


@jit.helper
def beginning(a, c, n, block):
    """Addresses of x and dy where a block of an image and channel begins, without its border."""
    o, p, q = place_of(a, block)
    x = n * a.x_n + c * a.x_c + o * a.stride_d * a.x_d + p * a.stride_h * a.x_h + q * a.stride_w * a.x_w
    dy = n * a.y_n + c * a.multiplier * a.y_k + o * a.y_o + p * a.y_p + q * a.y_q
    return a.x + x * a.size, a.w + dy * a.size


# --- plan ------------------------------------------------------------------------------------


class DepthwiseWeightsPlan(KernelPlan):
    def __init__(self, problem: ConvProblem, algorithm: DepthwiseWeights):
        cut = bordered(problem)
        p = cut.problem
        size, lanes = p.itemsize, simd.lanes(p.itemsize)
        tasks = min(jit.thread_count(), cut.units)
        taps = math.prod(p.kernel)
        slices, rows, pitch = cut.sizes
        down, across = cut.offsets()
        tiles = np.array(
            [(correlate(size, lanes, len(r), len(c)), r.start, c.start) for r, c in cut.tap_tiles], TILE
        )
        in_phases = p.stride[2] if p.stride[2] <= MOST_STRIDE else 0
        last = p.layout == "channels_last"
        if not cut.by_channel:
            border = border_rows(size, lanes, in_phases)
        else:
            border = border_pixels(size, lanes) if last else border_squares(size, lanes)
        values: dict[str, int | np.ndarray] = {
            "size": size, "lanes": lanes, "images": p.N, "channels": p.C, "tasks": tasks, "units": cut.units,
            "unit": cut.lanes, "multiplier": p.gemm_n, "taps": taps, "row_taps": p.kernel[2],
            "tiles": tiles, "tap_tiles": len(tiles), "down": down, "across": across,
            "slices": slices, "rows": rows, "pitch": pitch, "plane": cut.plane, "planes": cut.planes,
            "sums": cut.sums, "scratch_stride": cut.task_bytes,
            "by_channel": int(cut.by_channel), "places": cut.places() if cut.is_gathered else 0,
            "border_rows": border, "fetch_x": cut.fetch[0], "fetch_y": cut.fetch[1],
            "finish": place(size, lanes) if cut.by_channel else sum_lanes(size, lanes),
            "gather": gather(size, lanes) if cut.is_gathered else 0,
        }  # fmt: skip
        for axis, n, block, blocks in zip("opq", p.spatial_out, cut.block, cut.blocks, strict=True):
            values |= {axis: n, f"block_{axis}": block, f"blocks_{axis}": blocks}
        values |= dict(zip(("depth", "height", "width"), p.spatial, strict=True))
        for axis, stride, pad in zip("dhw", p.stride, p.padding, strict=True):
            values |= {f"stride_{axis}": stride, f"pad_{axis}": pad[0]}
        for names, channels, (d, h, w), turned in (
            ("x_n x_c x_d x_h x_w", p.C, p.spatial, 1),
            ("y_n y_k y_o y_p y_q", p.K, p.spatial_out, cut.lanes),
        ):
            between = (
                channels if last else turned
            )  # elements between pixels; dy is read where it was gathered
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
        seconds = (
            cut.imbalance(machine.threads) * cut.cycles * 4 * lanes / machine.peak(p.dtype)
        )  # a cycle is two vectors of sums
        return CALL + machine.launch + seconds + MEMORY * machine.stream(p.x_bytes + p.y_bytes)

    def prepare_cost(self, problem, machine):
        return 1e-9  # dy is taken as it is

    def workspace_bytes(self, problem):
        if problem.is_empty:
            return 0
        cut = bordered(problem)
        return min(jit.thread_count(), cut.units) * cut.task_bytes

    def error_bound(self, problem):
        return error_of_sums(problem)

    def plan(self, problem):
        return DepthwiseWeightsPlan(problem, self)


ALGORITHMS = (DepthwiseWeights(),)
