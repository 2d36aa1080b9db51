"""Kernels of lines that are filtered in blocks, by way of coarse grids: see `coarse_lines`.

Blocks are filtered some at a time: to the grid, along it and back, while all of that is in the first caches.
Elements are read where they lie if they are of the type of the sums and none lies beyond an end, and written
there if a whole tile of blocks is; else by way of copies that convert them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from convalgos.cpu.filtering.line_borders import copy_pixel
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import microkernel, simd
from convalgos.cpu.vectors.microkernel import REGISTER_TILES
from convalgos.cpu.vectors.simd import call, carray, copy_bytes, pointer, zero_bytes

STEPS = 8  # of a block
BEYOND = STEPS + 3  # places that a block is interpolated from, and steps that its places are sums of
VECTORS = 2  # of outputs side by side: a register tile of them fits everywhere
TALLEST = 4  # rows of a tile of outputs: as many sums as keep busy, and few blocks too many; Zen 4
FEWEST = 2  # rows of four vectors, where these have two lanes
# x and y are (lines, size), of elements of x_bytes and y_bytes. `down` (BEYOND * step, STEPS), `along`
# (STEPS + 2 * half, STEPS) and `up` (panels, BEYOND, panel), whose panels begin at `columns`, are matrices.
# `ends` has the sources of `low` elements before a line, and then of those behind it. `load` and `store`
# convert elements, or are 0. A task filters `chunk` blocks of a line at a time; the others are bytes from
# `scratch` to copies of elements as they are, of a tile's elements, sums of the grid, what is filtered along
# it, and a tile's outputs.
BLOCK_FIELDS = fields(
    "x y scratch scratch_bytes tasks lines size step half blocks chunk down along up columns panels ends low "
    "filling load store x_bytes y_bytes elements_at sums_at filtered_at outputs_at"
)


def block_tiles(size: int) -> tuple[int, int, int, int, int, int]:
    """(lanes, vectors, rows) of the tile that sums to a grid of STEPS columns, and of that of outputs, for
    elements of some bytes."""
    wide = simd.lanes(size)
    tiles = REGISTER_TILES[wide * size]
    lanes = min(wide, STEPS)
    vectors = STEPS // lanes
    return lanes, vectors, tiles.get(vectors, FEWEST), wide, VECTORS, min(tiles[VECTORS], TALLEST)


@jit.helper
def gather_ends(a: Any, SIZE: int, x: int, target: int, at: int, count: int, scratch: int) -> None:
    """Elements beyond an end as those of sums, by the numbers of their sources from ends[at] on; below 0 is
    what fills."""
    sources = carray(pointer(a.ends + at * 8), count, np.int64)
    if a.load == 0:
        for i in range(count):
            source = a.filling if sources[i] < 0 else x + sources[i] * SIZE
            copy_pixel(target + i * SIZE, source, 1, SIZE)
        return
    if a.x_bytes == 1:  # a loop for each: sizes that are known only when it runs take three times as long
        for i in range(count):
            copy_pixel(scratch + i, a.filling if sources[i] < 0 else x + sources[i], 1, 1)
    else:
        for i in range(count):
            copy_pixel(scratch + i * 2, a.filling if sources[i] < 0 else x + sources[i] * 2, 1, 2)
    call(a.load, (scratch, target, count))


@jit.helper
def bring_elements(a: Any, SIZE: int, x: int, first: int, count: int, scratch: int) -> None:
    """Elements of a line from a number on, some beyond its ends, as those of sums."""
    target = scratch + a.elements_at
    before = min(max(-first, 0), count)
    behind = min(max(first + count - a.size, 0), count)
    if before > 0:
        gather_ends(a, SIZE, x, target, first + a.low, before, scratch)
    within = count - before - behind
    if within > 0:
        source, to = x + (first + before) * a.x_bytes, target + before * SIZE
        if a.load != 0:
            call(a.load, (source, to, within))
        else:
            copy_bytes(to, source, within * SIZE)
    if behind > 0:
        last = first + count - behind
        gather_ends(a, SIZE, x, target + (count - behind) * SIZE, a.low + last - a.size, behind, scratch)


@jit.specialise
def filter_blocks(
    SIZE: int, LANES: int, VECTORS: int, ROWS: int, WIDE: int, PANEL: int, TALL: int
) -> jit.Kernel:
    """The chunks of a task, by tiles of `block_tiles`: ROWS by VECTORS of LANES, TALL by PANEL of WIDE."""

    def filter_blocks(args: int, task: int) -> None:
        a = carray(pointer(args), 1, BLOCK_FIELDS)[0]
        scratch = a.scratch + task * a.scratch_bytes
        sums, filtered, outputs = scratch + a.sums_at, scratch + a.filtered_at, scratch + a.outputs_at
        zero_bytes(sums, a.outputs_at - a.sums_at)  # what is not filled is multiplied, too
        columns = carray(pointer(a.columns), a.panels, np.int64)
        block = STEPS * a.step
        parts = -(-a.blocks // a.chunk)
        units = a.lines * parts
        for unit in range(units * task // a.tasks, units * (task + 1) // a.tasks):
            line, begin = unit // parts, unit % parts * a.chunk
            count = min(a.chunk, a.blocks - begin)
            x, y = a.x + line * a.size * a.x_bytes, a.y + line * a.size * a.y_bytes
            rows = count + (2 + 2 * a.half + STEPS) // STEPS  # of sums; 3 + 2 * half places more than outputs
            for row in range(0, rows, ROWS):
                first = ((begin + row) * STEPS - 3 - a.half) * a.step
                whole = (ROWS - 1) * block + BEYOND * a.step
                source = scratch + a.elements_at
                if a.load == 0 and first >= 0 and first + whole <= a.size:
                    source = x + first * SIZE
                else:
                    spanned = whole - max(0, row + ROWS - rows) * block
                    bring_elements(a, SIZE, x, first, spanned, scratch)
                    zero_bytes(source + spanned * SIZE, (whole - spanned) * SIZE)
                microkernel.gemm_tile(
                    SIZE, LANES, ROWS, VECTORS, 0, source, block, a.down, BEYOND * a.step,
                    sums + row * STEPS * SIZE, STEPS,
                )  # fmt: skip
            for row in range(0, count + 1, ROWS):
                at = row * STEPS * SIZE
                microkernel.gemm_tile(
                    SIZE, LANES, ROWS, VECTORS, 0, sums + at, STEPS, a.along, STEPS + 2 * a.half,
                    filtered + at, STEPS,
                )  # fmt: skip
            for row in range(0, count, TALL):
                at = (begin + row) * block
                target = y + at * a.y_bytes
                is_whole = a.store == 0 and row + TALL <= count and at + TALL * block <= a.size
                into = target if is_whole else outputs
                near = filtered + row * STEPS * SIZE
                for panel in range(a.panels):
                    matrix = a.up + panel * BEYOND * PANEL * WIDE * SIZE
                    to = into + columns[panel] * SIZE
                    microkernel.gemm_tile(SIZE, WIDE, TALL, PANEL, 0, near, STEPS, matrix, BEYOND, to, block)
                written = min(min(TALL, count - row) * block, a.size - at)
                if a.store != 0:
                    call(a.store, (outputs, target, written))
                elif not is_whole:
                    copy_bytes(target, outputs, written * SIZE)

    return filter_blocks
