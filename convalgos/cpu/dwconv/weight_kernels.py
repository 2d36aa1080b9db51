"""The kernels of the gradient of depthwise filters: padded planes of x, and dot products of them with dy.

1. `correlate_planes`, the driver, deals channels, or vectors of them, to the threads. Of each unit it takes
   all images and blocks of outputs in their order; units whose lines lie side by side take each block one
   after the other, while it is in L2.
2. A kernel of `plane_copies` copies the input of a block into planes with its border, one for each phase of
   the strides.
3. `correlate_taps` sums the products of dy with some taps at a time, which stay in registers over the whole
   block.
4. At the end of a unit its sums become dw: lanes are channels, or are added up by `sum_lanes`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from convalgos.core.boundaries import OUTSIDE
from convalgos.cpu.dwconv.plane_copies import DEPTHWISE_WEIGHTS_FIELDS
from convalgos.cpu.layout.strides import first_output
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.simd import Value, Vec, call, carray, pointer, zero_bytes
from convalgos.cpu.vectors.transpose import transpose

# Taps that are summed at a time: the kernel, the first row and column.
TAP_TILE = fields("correlate row column")


@simd.emitter
def correlate_tile(
    v: Vec, ROWS: int, COLUMNS: int, args: Value, tile: Value, dy: Value, x: Value, sums: Value,
    rows: Value, whole: Value, part: Value, inside: Value, ahead: Value, fetch: Value,
) -> None:  # fmt: skip
    """sums[r][s][:] += sum over i, j of dy[i][j][:] * x[i * x_row + j * lanes + down[r] + across[s]:].

    For r < ROWS, s < COLUMNS of a tile of taps (see `TAP_TILE`), i < rows, j < whole + part; of the last
    `part` vectors of dy, only `inside` lanes count. In each row `fetch` bytes from `ahead` on are asked into
    L2.
    """
    a, t = v.record(args, DEPTHWISE_WEIGHTS_FIELDS), v.record(tile, TAP_TILE)
    mask = v.mask(inside)
    read, base, to = v.pointer(dy), v.pointer(x), v.pointer(sums)
    x_row, sums_row = v.imul(a.pitch, a.unit), v.imul(a.row_taps, v.lanes)
    down, across = v.iadd(a.down, v.imul(t.row, 8)), v.iadd(a.across, v.imul(t.column, 8))
    starts = [v.at(base, v.table64(down, r)) for r in range(ROWS)]
    columns = [v.table64(across, s) for s in range(COLUMNS)]
    entries = [v.iadd(v.imul(sums_row, r), s * v.lanes) for r in range(ROWS) for s in range(COLUMNS)]
    totals = [v.register(v.load(to, entry)) for entry in entries]
    with v.loop(rows) as i:
        with v.loop(v.idiv(v.iadd(fetch, simd.LINE - 1), simd.LINE)) as line:
            v.prefetch(v.pointer(v.iadd(ahead, v.iadd(v.imul(i, fetch), v.imul(line, simd.LINE)))))

        def add(j: Value, load: Callable[[Value], Value], i: Value = i) -> None:
            value = load(v.iadd(v.imul(i, a.y_p), v.imul(j, a.y_step)))
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


@jit.specialise
def correlate_taps(SIZE: int, LANES: int, ROWS: int, COLUMNS: int) -> jit.Kernel:
    """`correlate_tile`."""

    def correlate_taps(
        args: int, tile: int, dy: int, x: int, sums: int, rows: int, whole: int, part: int, inside: int,
        ahead: int, fetch: int,
    ) -> None:  # fmt: skip
        correlate_tile(
            SIZE, LANES, ROWS, COLUMNS, args, tile, dy, x, sums, rows, whole, part, inside, ahead, fetch
        )

    return correlate_taps


@simd.emitter
def add_lanes(v: Vec, sums: Value, count: Value, y: Value) -> None:
    """y[t] = the sum of sums[t][:], in the order of its lanes, for t < count; reads whole squares."""
    with v.loop(v.idiv(v.iadd(count, v.lanes - 1), v.lanes)) as i:
        first = v.imul(i, v.lanes)
        read = v.at(v.pointer(sums), v.imul(first, v.lanes))
        total, *others = transpose(v, [v.load(read, t * v.lanes) for t in range(v.lanes)])
        for other in others:
            total = v.fadd(total, other)
        v.store_masked(total, v.pointer(y), first, v.mask(v.isub(count, first)))


@jit.specialise
def sum_lanes(SIZE: int, LANES: int) -> jit.Kernel:
    """The sums of a channel, in the place of `channel_vectors.place`."""

    def sum_lanes(
        sums: int, channel_stride: int, pixel_stride: int, channels: int, count: int, y: int
    ) -> None:
        add_lanes(SIZE, LANES, sums, count, y)

    return sum_lanes


class PlaneBlock(NamedTuple):
    """A block of outputs of some channels: its first output, and what it holds of each dimension."""

    o: Any
    p: Any
    q: Any
    slices: Any
    rows: Any
    columns: Any


@jit.helper
def plane_block(a: Any, block: int) -> PlaneBlock:
    """A block by its number; those at the ends of a map are cut short."""
    _, o, p, q = first_output(a, block)
    return PlaneBlock(o, p, q, min(a.block_o, a.o - o), min(a.block_p, a.p - p), min(a.block_q, a.q - q))


@jit.helper
def beginning(a: Any, c: int, n: int, block: int) -> tuple[int, int]:
    """Addresses of x and dy where a block of an image and channel begins, without its border."""
    _, o, p, q = first_output(a, block)
    x = n * a.x_n + c * a.x_c + o * a.stride_d * a.x_d + p * a.stride_h * a.x_h + q * a.stride_w * a.x_w
    dy = n * a.y_n + c * a.multiplier * a.y_k + o * a.y_o + p * a.y_p + q * a.y_q
    return a.x + x * a.size, a.w + dy * a.size


@jit.helper
def copy_planes(a: Any, args: int, b: PlaneBlock, x: int, channels: int, ahead: int, planes: int) -> None:
    """The input under a block into planes, with its border; `ahead`: that of the next block."""
    sources = carray(pointer(a.sources_d), 1, np.int64)
    h, w = b.p * a.stride_h - a.pad_h, b.q * a.stride_w - a.pad_w
    for i in range(a.slices):
        for phase in range(a.stride_d):
            d = sources[(b.o + i) * a.stride_d - a.pad_d + phase]
            there = 0 if d == OUTSIDE else 1
            place = phase * a.stride_h * a.stride_w * a.plane + i * a.rows * a.pitch * a.unit
            source, to = x + d * a.x_d * a.size, planes + place * a.size
            later = ahead + (i * a.stride_d + phase) * a.x_d * a.size
            call(a.border_rows, (args, source, channels, there, h, w, to, later))


@jit.helper
def correlate_block(
    a: Any, args: int, b: PlaneBlock, dy: int, lanes: int, planes: int, sums: int, ahead: int
) -> None:
    """Add the products of a block of dy, with all its filters, to the sums of all taps."""
    if a.by_channel:
        inside = lanes
        whole = b.columns if lanes == a.lanes else 0
        part = b.columns - whole
    else:
        whole = b.columns // a.lanes
        inside = b.columns - whole * a.lanes
        part = 1 if inside > 0 else 0
    tiles = carray(pointer(a.tiles), a.tap_tiles, TAP_TILE)
    for m in range(a.multiplier):
        for i in range(b.slices):
            from_ = dy + (m * a.y_k + i * a.y_o) * a.size
            place = planes + i * a.rows * a.pitch * a.unit * a.size
            for t in range(a.tap_tiles):
                tile = tiles[t]
                tap = tile.row * a.row_taps + tile.column
                call(
                    tile.correlate,
                    (
                        args, a.tiles + t * TAP_TILE.itemsize, from_, place,
                        sums + (m * a.taps + tap) * a.lanes * a.size, b.rows, whole, part, inside,
                        ahead + i * a.y_o * a.size, a.fetch_y if t == 0 else 0,
                    ),
                )  # fmt: skip


@jit.specialise
def correlate_planes() -> jit.Kernel:
    """Every task takes units of channels, with all filters of each; some take each block together."""

    def correlate_planes(args: int, task: int) -> None:
        a = carray(pointer(args), 1, DEPTHWISE_WEIGHTS_FIELDS)[0]
        planes = a.scratch + task * a.scratch_stride
        all_sums = planes + a.planes * a.size
        dense = all_sums + a.together * a.sums * a.size  # dy of a block
        blocks = a.blocks_o * a.blocks_p * a.blocks_q
        zero_bytes(planes, a.planes * a.size)  # what is read behind the last row stays 0
        last = a.units * (task + 1) // a.tasks
        for first in range(a.units * task // a.tasks, last, a.together):
            together = min(a.together, last - first)
            zero_bytes(all_sums, together * a.sums * a.size)
            for item in range(a.images * blocks):
                n, block = item // blocks, item % blocks
                for i in range(together):
                    c = (first + i) * a.unit
                    channels = min(a.unit, a.channels - c)
                    x = a.x + (n * a.x_n + c * a.x_c) * a.size
                    dy = a.w + (n * a.y_n + c * a.multiplier * a.y_k) * a.size
                    if block + 1 < blocks:
                        ahead_x, ahead_dy = beginning(a, c, n, block + 1)
                    elif n + 1 < a.images:
                        ahead_x, ahead_dy = beginning(a, c, n + 1, 0)
                    else:
                        ahead_x, ahead_dy = beginning(a, c + a.unit, 0, 0)
                    b = plane_block(a, block)
                    copy_planes(a, args, b, x, channels, ahead_x, planes)
                    from_dy, lanes = dy + (b.o * a.y_o + b.p * a.y_p + b.q * a.y_q) * a.size, channels
                    if a.gather:  # whole rows, and where there are several slices also whole ones
                        pixels = ((b.slices - 1) * a.p + b.rows) * a.q
                        begin = dy + (b.o * a.p + b.p) * a.q * a.size
                        call(a.gather, (begin, a.y_k, 1, channels, pixels, dense))
                        from_dy, lanes = dense, a.lanes
                    sums = all_sums + i * a.sums * a.size
                    correlate_block(a, args, b, from_dy, lanes, planes, sums, ahead_dy)
            for i in range(together):
                c, taps = (first + i) * a.unit, a.multiplier * a.taps
                channels, sums = min(a.unit, a.channels - c), all_sums + i * a.sums * a.size
                call(a.place_sums, (sums, taps, 1, channels, taps, a.y + c * taps * a.size))

    return correlate_planes
