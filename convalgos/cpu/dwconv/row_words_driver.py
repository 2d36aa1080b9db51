"""The driver of `cpu.depthwise.words`: blocks of channels, their pixels with padding, and their sums."""

from __future__ import annotations

from typing import Any

from convalgos.cpu.dwconv.row_words import CHANNEL_SUM_FIELDS
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import arguments, fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.integers import Integers, words_of
from convalgos.cpu.vectors.simd import Value, Vec, call, carray, pointer

ROW_WORD_FIELDS = arguments(
    "tasks images blocks channels bands band_count size_y x_image y_image x_c x_pixel y_k y_pixel sums "
    "turn_in turn_out slices slice_step depth height width columns pad_left pad flip pitch slice_pitch "
    "row_stride row_dilation stride dilation kernel_columns words outputs scratch_bytes w_block parts "
    "multiplier step sum"
)
# The first slice and row of x; how many rows of y, and of x under them; the first output.
WORD_BAND = fields("slice row rows under y")


@simd.emitter
def place_byte_pixels(
    v: Vec, x: Value, x_pixel: Value, count: Value, channels: Value, flip: Value, target: Value
) -> None:
    """target[n] = a vector of some channels of pixels of x, changed by `flip`."""
    bytes_ = Integers(v.b, 4 * v.lanes, 1)
    source, to = bytes_.pointer(x), bytes_.pointer(target)
    changed = v.b.bitcast(words_of(v).spread(flip), bytes_.type)
    inside = bytes_.mask(channels)
    with v.choose(v.isub(channels, bytes_.lanes)) as (whole, part):
        with whole, v.loop(count) as n:
            value = bytes_.load(source, v.imul(n, x_pixel))
            bytes_.store(bytes_.bit_xor(value, changed), to, v.imul(n, bytes_.lanes))
        with part, v.loop(count) as n:
            value = bytes_.load_masked(source, v.imul(n, x_pixel), inside)
            bytes_.store(bytes_.bit_xor(value, changed), to, v.imul(n, bytes_.lanes))


@simd.emitter
def fill_byte_pixels(v: Vec, value: Value, count: Value, target: Value) -> None:
    """Vectors of a byte that `value` has four of."""
    words = words_of(v)
    filled = words.spread(value)
    with v.loop(count) as n:
        words.store(filled, v.pointer(target), v.imul(n, v.lanes))


@jit.helper
def place_block(LANES: int, a: Any, band: Any, x: int, channels: int, target: int) -> None:
    """The pixels of a band of a block of channels, with padding: [slice][row][column][byte]."""
    empty = a.pad ^ a.flip
    low = a.pad_left
    count = max(0, min(a.columns - low, a.width))
    for t in range(a.slices):
        z = band.slice + t * a.slice_step
        for i in range(band.under):
            h = band.row + i
            to = target + t * a.slice_pitch + i * a.pitch
            if z >= 0 and z < a.depth and h >= 0 and h < a.height and count > 0:
                row = x + (z * a.height + h) * a.width * a.x_pixel
                fill_byte_pixels(4, LANES, empty, low, to)
                at = to + low * 4 * LANES
                if a.turn_in:
                    call(a.turn_in, (row, a.x_c, channels, count, a.flip, at, 4 * LANES))
                else:
                    place_byte_pixels(4, LANES, row, a.x_pixel, count, channels, a.flip, at)
                fill_byte_pixels(4, LANES, empty, a.columns - low - count, at + count * 4 * LANES)
            else:
                fill_byte_pixels(4, LANES, empty, a.columns, to)


@jit.specialise
def sum_row_words(LANES: int) -> jit.Kernel:
    """Images x blocks of channels x bands, dealt to the tasks in equal runs. The last block overlaps."""

    def sum_row_words(args: int, task: int) -> None:
        a = carray(pointer(args), 1, ROW_WORD_FIELDS)[0]
        scratch = a.scratch + task * a.scratch_bytes
        sums = carray(pointer(scratch), 1, CHANNEL_SUM_FIELDS)[0]
        target = scratch + 512
        sums.x, sums.tap_row, sums.row_step = target, a.row_dilation * a.pitch, a.row_stride * a.pitch
        sums.slice_step, sums.slices, sums.words, sums.parts = a.slice_pitch, a.slices, a.words, a.parts
        sums.taps, sums.stride, sums.dilation = a.kernel_columns, a.stride, a.dilation
        sums.step, sums.columns = a.step, a.outputs
        bands = carray(pointer(a.bands), a.band_count, WORD_BAND)
        units = a.blocks * a.band_count
        total = a.images * units
        for unit in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            image = unit // units
            block = (unit - image * units) // a.band_count
            band = bands[unit - image * units - block * a.band_count]
            channel = max(0, min(block * 4 * LANES, a.channels - 4 * LANES))
            channels = min(4 * LANES, a.channels - channel)
            place_block(LANES, a, band, a.x + image * a.x_image + channel * a.x_c, channels, target)
            of_band = a.y + (image * a.y_image + channel * a.y_k + band.y * a.y_pixel) * a.size_y
            sums.w = a.w + block * a.parts * a.w_block
            sums.start, sums.multiplier = a.bias + 4 * channel, a.multiplier + 4 * channel
            sums.rows, sums.channels = band.rows, channels
            sums.y = scratch + a.sums if a.turn_out else of_band
            sums.y_pixel = 4 * LANES if a.turn_out else a.y_pixel
            sums.y_row = a.outputs * sums.y_pixel
            call(a.sum, (scratch,))
            if a.turn_out:
                call(
                    a.turn_out,
                    (
                        scratch + a.sums, 4 * LANES * a.size_y, band.rows * a.outputs, channels, 0,
                        of_band, a.y_k * a.size_y,
                    ),
                )  # fmt: skip

    return sum_row_words
