"""The driver of products of float32 that are split into three digits of eight bits, on matrix tiles.

Blocks of outputs, and parts of the filters, are dealt to the tasks as in `split_driver`. The input of a block
is split once, after its largest numbers were found: of each pixel where the kernel has one tap, else of all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from convalgos.cpu.gemm import digit_tiles
from convalgos.cpu.gemm.digit_terms import (
    HEAD,
    SPREAD,
    bring_together,
    find_spread,
    find_units,
    largest_of_pixels,
    scales_at,
    write_digits,
)
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
from convalgos.cpu.gemm.split_terms import ENTRY_BYTES, ENTRY_LINES, TERMS, TILE_BYTES
from convalgos.cpu.gemm.streamed_digits import FEW, ONE, PASS, lift_digits
from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import matrix_tiles
from convalgos.cpu.vectors.simd import call, carray, pointer

STEPS = digit_tiles.PRODUCTS  # of an entry, with each of which lines are fetched


@jit.specialise
def sum_digits() -> Callable[..., None]:
    """Parts of the filters x blocks, in this order, dealt to the tasks in equal runs. For each the input of
    the block is split, and panels of filters are summed and finished."""

    def sum_digits(args: int, task: int) -> None:
        a = carray(pointer(args), 1, SPLIT_ARGUMENTS)[0]
        matrix_tiles.load_configuration(4, 16, a.configuration)
        scratch = a.scratch + task * a.scratch_stride
        blocks, first, last = dealt_blocks(a, task)
        split = -1
        for item in range(first, last):
            block, part = item % blocks, item // blocks
            place = split_block(a, block)
            if block != split:
                read_digits(a, place, scratch)
                if a.streamed == ONE:
                    lift_digits(scratch, TERMS * a.term_bytes // 4)
                split = block
            filters = fetches_filters(a, block, item == first)
            for panel in range(a.panels * part // a.parts, a.panels * (part + 1) // a.parts):
                if a.streamed:
                    stream_digit_panel(a, place, panel, scratch)
                else:
                    sum_digit_panel(a, place, panel, scratch, filters)
        matrix_tiles.release_tiles(4, 16)

    return sum_digits


@jit.helper
def read_digits(a: Any, b: SplitBlock, scratch: int) -> None:
    """The units of the input of a block, and its digits, with its border."""
    left, before, there = input_columns(a, b)
    slots, pixel = a.phases * a.images * a.phase_rows, a.step_w * a.x_w
    vectors = (a.channels + 15) // 16
    head, scales = scratch + a.units_at, scales_at(filter_units(a, a.vectors) + (a.vectors + 7) // 8 * 64)
    units = carray(pointer(head + HEAD), slots * a.pitch, np.int32)
    for i in range(slots * a.pitch):
        units[i] = 0
    squares = carray(pointer(head), 8, np.int64)
    for i in range(8):
        squares[i] = 0
    for turn in range(2):
        for n in range(b.images):
            for j in range(a.phases * a.phase_rows):
                slot, row = input_row(a, b, n, j)
                inside = there if 0 <= row < a.height else 0
                x = a.x + ((b.n + n) * a.x_n + row * a.x_h + (left + before * a.step_w) * a.x_w) * 4
                own = head + HEAD + (slot * a.pitch + before) * 4
                if turn == 0 and inside > 0:
                    last = a.channels - 16 * (vectors - 1)
                    largest_of_pixels(4, 16, x, pixel, there, vectors, a.x_block, last, scales, own, 0, head)
                elif turn:
                    for c in range((a.channels + 63) // 64):
                        to = scratch + c * a.plane_bytes + slot * a.pitch * 64
                        zero_border(a, before, inside, to)
                        if inside > 0:
                            write_digits(
                                4, 16, x + c * a.x_block * 16, pixel, there, a.x_block, a.channels - 64 * c,
                                scales + c * 256 if scales else 0, 0, own, 1, to + before * 64,
                                a.term_bytes, 64,
                            )  # fmt: skip
        if turn == 0:
            if a.entries > (a.channels + 63) // 64:
                share_largest(units, slots * a.pitch)
            find_units(4, 16, head + HEAD, slots * a.pitch)
            find_spread(4, 16, head + HEAD, slots * a.pitch, head, a.channels, head + 64)


@jit.helper
def share_largest(found: Any, count: int) -> None:
    """One largest size for all pixels, where sums have the products of several."""
    largest = 0
    for i in range(count):
        largest = max(largest, found[i])
    for i in range(count):
        found[i] = largest


@jit.helper
def sum_digit_panel(a: Any, b: SplitBlock, panel: int, scratch: int, filters: int) -> None:
    """y of a block for a panel of filters, in passes over some of the entries.

    With `filters` each call fetches a part of those of the next pass or panel.
    """
    first, width, end, tiles, pairs = filter_panel(a, b, panel)
    kernel = carray(pointer(a.kernels), 4, np.int64)
    w, sums, units = a.w + first * a.entries * ENTRY_BYTES, scratch + a.sums_at, scratch + a.units_at + HEAD
    x_tile, sums_tile, lines = a.tile * a.position_bytes, TILE_BYTES * width, 0
    if filters:
        lines = (width * ENTRY_LINES + 2 * STEPS * pairs - 1) // (2 * STEPS * pairs)
    second, step = STEPS * lines * 64, 2 * STEPS * lines * 64  # each call fetches lines behind each other
    least, entry = needs_least(a, first, width, scratch), 0
    while entry < a.entries:
        count = min(a.passes, a.entries - entry)
        weights = w + entry * width * ENTRY_BYTES
        ahead, part = weights + count * width * ENTRY_BYTES, count * step
        for i in range(0, tiles, 2):
            together = min(2, tiles - i)
            at = sums if count == a.entries else sums + i * sums_tile
            call(
                kernel[2 * (together - 1) + width - 1],
                (
                    scratch + i * x_tile, x_tile, a.position_bytes, a.term_bytes, a.offsets + entry * 8,
                    count, weights, 1 if entry else 0, at, sums_tile, a.group_bytes, ahead + i // 2 * part,
                    second, step, lines, least,
                ),
            )  # fmt: skip
            if entry + count == a.entries:
                for tile in range(i, i + together):
                    from_, to = tile * a.tile, min((tile + 1) * a.tile, end)
                    own = at + (tile - i) * sums_tile
                    bring_together(
                        width, own, a.group_bytes, to - from_, units + from_ * 4, filter_units(a, first), own,
                        16 * width, least,
                    )  # fmt: skip
                    finish_split_tile(a, b, first, width, from_, to, own)
        entry += count


@jit.helper
def stream_digit_panel(a: Any, b: SplitBlock, panel: int, scratch: int) -> None:
    """y of a block of one tile for a panel of filters, which are read once, one byte after the other."""
    first, width, end, _, _ = filter_panel(a, b, panel)
    kernel = carray(pointer(a.kernels), 8, np.int64)
    w, sums, units = a.w + first * a.entries * ENTRY_BYTES, scratch + a.sums_at, scratch + a.units_at + HEAD
    least = needs_least(a, first, width, scratch)
    chunk, entry = PASS if least and a.streamed == FEW else a.entries, 0
    while entry < a.entries:
        count = min(chunk, a.entries - entry)
        call(
            kernel[2 * (a.streamed + 1) + width - 1],
            (
                scratch, a.position_bytes, a.term_bytes, a.offsets + entry * 8, count,
                w + entry * width * ENTRY_BYTES, 1 if entry else 0, sums, a.group_bytes, least,
            ),
        )  # fmt: skip
        entry += count
    bring_together(width, sums, a.group_bytes, end, units, filter_units(a, first), sums, 16 * width, least)
    finish_split_tile(a, b, first, width, 0, end, sums)


@jit.helper
def filter_units(a: Any, first: int) -> Any:
    """Where the units of the vectors of filters from `first` on lie."""
    return a.w + a.vectors * a.entries * ENTRY_BYTES + first * 64


@jit.helper
def needs_least(a: Any, first: int, width: int, scratch: int) -> Any:
    """Whether the products of the last group are summed: where numbers of a block and a panel spread much."""
    spreads = carray(pointer(a.w + a.vectors * (a.entries * ENTRY_BYTES + 64)), a.vectors, np.int64)
    spread = carray(pointer(scratch + a.units_at + 64), 1, np.int64)[0]
    return 1 if spread * max(spreads[first], spreads[first + width - 1]) > SPREAD else 0
