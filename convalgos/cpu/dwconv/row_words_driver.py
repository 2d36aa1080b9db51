"""The driver of `cpu.depthwise.words`: blocks of channels, their rows as words, and their sums."""

from __future__ import annotations

from typing import Any

import numpy as np

from convalgos.cpu.dwconv.row_words import CHANNEL_SUM_FIELDS, PIXEL_ROWS
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import arguments, fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.integers import words_of
from convalgos.cpu.vectors.simd import Value, Vec, call, carray, pointer

ROW_WORD_FIELDS = arguments(
    "tasks images blocks block tail channels bands band_count size_y x_image y_image x_c x_pixel y_k y_pixel "
    "x_slice x_row y_row "
    "turn_in turn_out pixels sums slices slice_step depth height width columns pad_left pad flip unit "
    "row_dilation group_pitch slice_pitch places offsets phases stride dilation kernel_columns words outputs "
    "scratch_bytes w_row parts multiplier step interleave sum interleave_tail sum_tail"
)
# The first slice of x; the row of x of the first word, and how many rows of words; the first row of x that is
# met, and how many are, within the map; rows of y, and the first of them.
WORD_BAND = fields("slice row groups first inside rows y")
ROWS_AT, PADDING_AT, WORDS_AT = 256, 384, 512  # in scratch: `PIXEL_ROWS`, a vector of padding, the words


@simd.emitter
def fill_vectors(v: Vec, value: Value, count: Value, target: Value) -> None:
    """Some vectors of a byte that `value` has four of."""
    words = words_of(v)
    filled = words.spread(value)
    with v.loop(count) as n:
        words.store(filled, v.pointer(target), v.imul(n, v.lanes))


@jit.helper
def place_row_words(
    LANES: int, a: Any, band: Any, x: int, block: int, channels: int, interleave: int, scratch: int
) -> None:
    """The words of a band of some channels, with padding: [slice][row of words][column][byte of a block][4].

    interleave: the kernel for blocks of this size.
    """
    empty = a.pad ^ a.flip
    count = max(0, min(a.columns - a.pad_left, a.width))
    rows = carray(pointer(scratch + ROWS_AT), 1, PIXEL_ROWS)[0]
    sources = carray(pointer(scratch + ROWS_AT), 8, np.int64)
    rows.count, rows.channels, rows.flip = count, block if a.turn_in else channels, a.flip
    for t in range(a.slices):
        z = band.slice + t * a.slice_step
        inside = band.inside if z >= 0 and z < a.depth and count > 0 else 0
        row, step, pixel = x + z * a.x_slice + band.first * a.x_row, a.x_row, a.x_pixel
        if a.turn_in and inside > 0:
            call(a.turn_in, (row, a.x_c, channels, inside * a.width, 0, scratch + a.pixels, block))
            row, step, pixel = scratch + a.pixels, a.width * block, block
        for g in range(band.groups):
            met = 0
            for i in range(4):
                h = band.row + g * a.unit + i * a.row_dilation - band.first
                here = h >= 0 and h < inside
                sources[2 * i] = row + h * step if here else scratch + PADDING_AT
                sources[2 * i + 1] = pixel if here else 0
                met += here
            to = scratch + WORDS_AT + t * a.slice_pitch + g * a.group_pitch
            if met:
                fill_vectors(4, LANES, empty, a.pad_left * block // LANES, to)
                rows.target = to + 4 * a.pad_left * block
                call(interleave, (scratch + ROWS_AT,))
                behind = (a.columns - a.pad_left - count) * block // LANES
                fill_vectors(4, LANES, empty, behind, rows.target + 4 * count * block)
            else:
                fill_vectors(4, LANES, empty, a.columns * block // LANES, to)


@jit.specialise
def sum_row_words(LANES: int) -> jit.Kernel:
    """Images x bands x blocks of channels, dealt to the tasks in equal runs. The last block overlaps, or is
    one of fewer channels.

    Two tasks would take the cache lines that they share from each other again and again. So blocks of
    channels_last, which are neighbours in a pixel, follow each other, and bands of channels_first.
    """

    def sum_row_words(args: int, task: int) -> None:
        a = carray(pointer(args), 1, ROW_WORD_FIELDS)[0]
        scratch = a.scratch + task * a.scratch_bytes
        fill_vectors(4, LANES, a.pad, 1, scratch + PADDING_AT)
        sums = carray(pointer(scratch), 1, CHANNEL_SUM_FIELDS)[0]
        sums.x, sums.places, sums.offsets = scratch + WORDS_AT, a.places, a.offsets
        sums.count, sums.w_step = a.parts * a.slices * a.words, a.phases * a.w_row
        sums.taps, sums.stride, sums.dilation = a.kernel_columns, a.stride, a.dilation
        sums.step, sums.columns = a.step, a.outputs
        bands = carray(pointer(a.bands), a.band_count, WORD_BAND)
        units = a.blocks * a.band_count
        total = a.images * units
        for unit in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            image = unit // units
            n = unit - image * units
            block = n // a.band_count if a.turn_in else n % a.blocks
            band = bands[n % a.band_count if a.turn_in else n // a.blocks]
            tail = a.tail > 0 and block == a.blocks - 1
            size = a.tail if tail else a.block
            channel = max(0, min(block * a.block, a.channels - size))
            channels = min(size, a.channels - channel)
            x = a.x + image * a.x_image + channel * a.x_c
            interleave = a.interleave_tail if tail else a.interleave
            place_row_words(LANES, a, band, x, size, channels, interleave, scratch)
            of_band = a.y + (image * a.y_image + channel * a.y_k + band.y * a.y_row) * a.size_y
            sums.w = a.w + block * sums.count * sums.w_step
            sums.start, sums.multiplier = a.bias + 4 * channel, a.multiplier + 4 * channel
            sums.rows, sums.channels = band.rows, channels
            sums.y = scratch + a.sums if a.turn_out else of_band
            sums.y_pixel = size if a.turn_out else a.y_pixel
            sums.y_row = a.outputs * size if a.turn_out else a.y_row
            call(a.sum_tail if tail else a.sum, (scratch,))
            if a.turn_out:
                call(
                    a.turn_out,
                    (
                        scratch + a.sums, size * a.size_y, band.rows * a.outputs, channels, 0,
                        of_band, a.y_k * a.size_y,
                    ),
                )  # fmt: skip

    return sum_row_words
