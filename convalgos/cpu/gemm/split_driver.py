"""The driver of products of float32 that are split into three bfloat16, on matrix tiles.

Blocks of outputs, and parts of the filters, are dealt to the tasks. The input of a block is split once, with
its zero border; then tiles of positions by panels of filters are summed, and finished into y.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from convalgos.cpu.gemm.split_blocks import (
    SPLIT_ARGUMENTS,
    SplitBlock,
    dealt_blocks,
    fetches_filters,
    filter_panel,
    finish_split_tile,
    input_columns,
    input_row,
    split_block,
    zero_border,
)
from convalgos.cpu.gemm.split_terms import ENTRY_BYTES, ENTRY_LINES, TILE_BYTES, write_terms
from convalgos.cpu.gemm.split_tiles import PRODUCTS, SPLIT_AFTER
from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import matrix_tiles
from convalgos.cpu.vectors.simd import call, carray, pointer

STEPS = len(PRODUCTS)  # of an entry, with each of which lines are fetched
SPLIT_TURNS = len(SPLIT_AFTER)


@jit.specialise
def sum_split() -> Callable[..., None]:
    """Parts of the filters x blocks, in this order, dealt to the tasks in equal runs. For each:

    1. the input of the block is split, unless that was done beside the products of the block before;
    2. panels of filters are summed and finished.
    """

    def sum_split(args: int, task: int) -> None:
        a = carray(pointer(args), 1, SPLIT_ARGUMENTS)[0]
        matrix_tiles.load_configuration(4, 16, a.configuration)
        scratch = a.scratch + task * a.scratch_stride
        blocks, first, last = dealt_blocks(a, task)
        split, side = -1, 0
        for item in range(first, last):
            block, part = item % blocks, item // blocks
            place = split_block(a, block)
            if block != split:
                read_terms(a, place, scratch + side)
                split = block
            following, soon = (item + 1) % blocks, 0
            if a.run and item + 1 < last and following != block:
                soon = first_pixel(a, split_block(a, following))
            pixels = split_block(a, following).columns
            # filters are fetched meanwhile where they are not in L2 yet, or what is split next
            filters = fetches_filters(a, block, item == first)
            other = side
            if soon and a.ahead_bytes and pixels >= SPLIT_TURNS:
                other, split = a.ahead_bytes - side, following
            begin, end = a.panels * part // a.parts, a.panels * (part + 1) // a.parts
            for panel in range(begin, end):
                sum_split_panel(
                    a, place, panel, scratch, side, filters, soon, scratch + other, pixels, panel - begin,
                    end - begin,
                )  # fmt: skip
            side = other
        matrix_tiles.release_tiles(4, 16)

    return sum_split


@jit.helper
def first_pixel(a: Any, b: SplitBlock) -> Any:
    """Where the input of a block begins, if there is no border."""
    return a.x + (b.n * a.x_n + b.p * a.stride_h * a.x_h + b.q * a.stride_w * a.x_w) * 4


@jit.helper
def read_terms(a: Any, b: SplitBlock, scratch: int) -> None:
    """The input of a block in three terms, with its border."""
    left, before, there = input_columns(a, b)
    blocks = (a.channels + 31) // 32
    for c in range(blocks):
        low, high = min(16, a.channels - 32 * c), max(0, a.channels - 32 * c - 16)
        for n in range(b.images):
            x = a.x + ((b.n + n) * a.x_n + 2 * c * a.x_block) * 4
            for j in range(a.phases * a.phase_rows):
                slot, row = input_row(a, b, n, j)
                to = scratch + c * a.plane_bytes + slot * a.pitch * 64
                inside = there if 0 <= row < a.height else 0
                zero_border(a, before, inside, to)
                if inside > 0:
                    from_ = x + (row * a.x_h + (left + before * a.step_w) * a.x_w) * 4
                    write_terms(
                        4, 16, from_, a.x_block, a.step_w * a.x_w, there, low, high, to + before * 64, 64,
                        a.term_bytes,
                    )  # fmt: skip


@jit.helper
def sum_split_panel(
    a: Any, b: SplitBlock, panel: int, scratch: int, side: int, filters: int, soon: int, other: int,
    pixels: int, turn: int, turns: int,
) -> None:  # fmt: skip
    """y of a block for a panel of filters, in passes over some of the entries.

    side: bytes from scratch on to the split input. With `filters` each call fetches a part of those of the
    next pass or panel; of the input from `soon` on it splits a part to `other`, or fetches it where `other`
    is the input of this block. There are `turns` panels of which this is number `turn`.
    """
    first, width, end, tiles, pairs = filter_panel(a, b, panel)
    kernel = carray(pointer(a.kernels), 4, np.int64)
    w, x, sums = a.w + first * a.entries * ENTRY_BYTES, scratch + side, scratch + a.sums_at
    x_tile, sums_tile = a.tile * a.position_bytes, TILE_BYTES * width
    lines, second, step, split = 0, 0, 0, 0
    if soon and other != x:
        split = (pixels + SPLIT_TURNS * turns * pairs - 1) // (SPLIT_TURNS * turns * pairs)
    if filters:
        lines = (width * ENTRY_LINES + 2 * STEPS * pairs - 1) // (2 * STEPS * pairs)
        second, step = STEPS * lines * 64, 2 * STEPS * lines * 64  # each call fetches lines behind each other
    elif soon and other == x:
        lines = (a.run + STEPS * turns * pairs - 1) // (STEPS * turns * pairs)
        second, step = a.x_block * 4, 2 * a.x_block * 4
    entry = 0
    while entry < a.entries:
        count = min(a.passes, a.entries - entry)
        weights = w + entry * width * ENTRY_BYTES
        ahead, part = weights + count * width * ENTRY_BYTES, count * step
        if soon and filters == 0:
            part = STEPS * lines * 64
            ahead = soon + entry * step + turn * pairs * part
        for i in range(0, tiles, 2):
            together, pixel = min(2, tiles - i), (turn * pairs + i // 2) * split * SPLIT_TURNS
            pixel = min(pixel, pixels - split * SPLIT_TURNS)  # the last ones are split again
            at = sums if count == a.entries else sums + i * sums_tile
            call(
                kernel[2 * (together - 1) + width - 1],
                (
                    x + i * x_tile, x_tile, a.position_bytes, a.term_bytes, a.offsets + entry * 8,
                    count, weights, 1 if entry else 0, at, sums_tile, ahead + i // 2 * part, second, step,
                    lines, soon + entry * 2 * a.x_block * 4 + pixel * 64, 64, a.x_block * 4,
                    2 * a.x_block * 4, split, other + entry * a.plane_bytes + pixel * 64, a.plane_bytes,
                ),
            )  # fmt: skip
            if entry + count == a.entries:
                for tile in range(i, i + together):
                    from_, to = tile * a.tile, min((tile + 1) * a.tile, end)
                    finish_split_tile(a, b, first, width, from_, to, at + (tile - i) * sums_tile)
        entry += count
