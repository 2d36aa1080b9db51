"""Depthwise sums of bytes with channels in the lanes: four rows of a kernel in each word.

A task brings the words of a band of rows, interleaved, to its scratch, and every kernel column that meets one
multiplies it. Two vectors of words of some pixels are summed at a time: they stay in registers over the whole
kernel, and become one of 16 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from convalgos.cpu.dwconv.channel_taps import meetings
from convalgos.cpu.dwconv.window_sums import SCALED, SIGNED, SUMS, UNSIGNED, added_product, word_operands
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import arguments, fields
from convalgos.cpu.vectors import requantise, simd
from convalgos.cpu.vectors.integers import Integers, words_of
from convalgos.cpu.vectors.packing import interleaved_bytes, lane_quads, quads
from convalgos.cpu.vectors.simd import Value, Vec, call, carray, pointer

# A band of a block of channels. Offsets count bytes of scratch, and elements of y. `places` tells of the rows
# of outputs; of the kernel, `offsets` of the words of some rows of it, `count` of them.
CHANNEL_SUM_FIELDS = fields(
    "x w places offsets count w_step taps stride dilation start multiplier step rows columns y y_row y_pixel "
    "channels"
)
ROW_PLACE = fields("x w")  # of a row of outputs: its first words, and its weights
# columns, stride and dilation of rows that have code of their own
USUAL = ((1, 1, 1), (3, 1, 1), (3, 2, 1), (5, 1, 1), (5, 2, 1), (7, 1, 1))
PIXELS = (7, 4, 1)  # of a row, that are summed at a time


@simd.emitter
def add_channel_words(
    v: Vec, PIXELS: int, TAPS: int, STRIDE: int, DILATION: int, WAY: int, KIND: int, PLAIN: int, args: Value
) -> None:
    """All outputs of a band (see `CHANNEL_SUM_FIELDS`), PIXELS of a row at a time; the last overlap.

    TAPS, STRIDE and DILATION are those of a row, or 0 for any. PLAIN: see `requantise.narrowing`.
    """
    a = v.record(args, CHANNEL_SUM_FIELDS)
    words, bytes_ = words_of(v), Integers(v.b, 4 * v.lanes, 1)
    starts = _by_channel(words, v.pointer(a.start), a.channels)
    finish = _Finish(v, KIND, PLAIN, a)
    pixel, weight = 4 * bytes_.lanes, bytes_.lanes * (2 - WAY) * 4

    def add(sums: dict[int, list[Any]], x: Value, w: Value) -> None:
        """The products of a row of words at x with a row of weights."""
        for i, of_vector in sums.items():
            for column, pairs in meetings(PIXELS, TAPS, STRIDE, DILATION).items():
                value = words.load(bytes_.at(x, column * pixel + i * bytes_.lanes))
                operands = word_operands(words, value, WAY)
                for output, tap in pairs:
                    add_one(of_vector[output], operands, w, tap, i)

    def add_any(sums: dict[int, list[Any]], x: Value, w: Value) -> None:
        with v.loop(a.taps) as s:
            of_tap = bytes_.at(x, v.imul(s, v.imul(a.dilation, pixel)))
            near = bytes_.at(w, v.imul(s, weight))
            for i, of_vector in sums.items():
                for output, total in enumerate(of_vector):
                    at = bytes_.at(of_tap, v.iadd(v.imul(a.stride, output * pixel), i * bytes_.lanes))
                    add_one(total, word_operands(words, words.load(at), WAY), near, 0, i)

    def add_one(total: Any, operands: Sequence[Any], w: Value, tap: int, i: int) -> None:
        near = bytes_.at(w, tap * weight + i * weight // 4)
        weights = [words.load(near, part * v.lanes) for part in range(2 - WAY)]
        total.set(added_product(words, total.value, operands, weights, WAY))

    with v.loop(a.rows) as p, v.loop(v.idiv(v.iadd(a.columns, PIXELS - 1), PIXELS)) as tile:
        place = v.record(v.iadd(a.places, v.imul(p, ROW_PLACE.itemsize)), ROW_PLACE)
        q = v.imin(v.imul(tile, PIXELS), v.isub(a.columns, PIXELS))
        x = v.pointer(v.iadd(v.iadd(a.x, place.x), v.imul(q, v.imul(a.stride, pixel))))
        w = v.pointer(v.iadd(a.w, place.w))
        halves = []
        for half in ((0, 1), (2, 3)):
            sums = {i: [words.register(starts[i]) for _ in range(PIXELS)] for i in half}
            with v.loop(a.count) as n:
                line = bytes_.at(x, v.table64(a.offsets, n))
                (add if TAPS else add_any)(sums, line, bytes_.at(w, v.imul(n, a.w_step)))
            found = {i: [total.value for total in sums[i]] for i in half}
            halves.append([finish.half(half, [found[i][output] for i in half]) for output in range(PIXELS)])
        to = v.iadd(v.imul(p, a.y_row), v.imul(q, a.y_pixel))
        for output, (low, high) in enumerate(zip(*halves, strict=True)):
            finish.store(v.iadd(to, v.imul(a.y_pixel, output)), low, high)


def _by_channel(words: Integers, table: Value, channels: Value) -> list[Any]:
    """Words of a table in the order of `interleaved_bytes`; those beyond some channels are 0."""
    loaded = [
        words.load_masked(table, first, words.mask(words.isub(channels, first)))
        for first in range(0, 4 * words.lanes, words.lanes)
    ]
    return lane_quads(words, loaded)


class _Finish:
    """Writes the code that finishes and stores the sums of a pixel."""

    def __init__(self, v: Vec, kind: int, plain: int, a: Any):
        self.v, self.kind, self.a = v, kind, a
        if kind == SUMS:
            return
        loaded = _by_channel(words_of(v), v.pointer(a.multiplier), a.channels)
        self.multipliers = [v.b.bitcast(m, v.type) for m in loaded]
        if kind == SCALED:
            self.low = v.broadcast(v.pointer(a.step), 1)
        else:
            self.by = requantise.narrowing(v, a.step, kind == SIGNED, bool(plain))

    def half(self, numbers: Sequence[int], sums: Sequence[Any]) -> Any:
        """Two vectors of a pixel: one of 16 bits, or what is stored of them."""
        v, multipliers = self.v, [] if self.kind == SUMS else [self.multipliers[i] for i in numbers]
        if self.kind == SUMS:
            return sums
        if self.kind == SCALED:
            return [
                requantise.scaled_words(v, s, m, self.low) for s, m in zip(sums, multipliers, strict=True)
            ]
        return requantise.narrowed_shorts(v, sums, multipliers, self.by)

    def store(self, to: Value, low: Any, high: Any) -> None:
        v, a, words = self.v, self.a, words_of(self.v)
        if self.kind in (SIGNED, UNSIGNED):
            bytes_ = Integers(v.b, 4 * v.lanes, 1)
            value = requantise.narrowed(v, low, high, self.by)
            with v.choose(v.isub(a.channels, bytes_.lanes)) as (whole, part):
                with whole:
                    bytes_.store(value, bytes_.pointer(a.y), to)
                with part:
                    bytes_.store_masked(value, v.pointer(a.y), to, bytes_.mask(a.channels))
            return
        for i, value in enumerate(quads(words, [*low, *high])):
            inside = words.mask(v.isub(a.channels, i * v.lanes))
            words.store_masked(value, v.pointer(a.y), v.iadd(to, i * v.lanes), inside)


@jit.specialise
def sums_of_channel_words(
    LANES: int, PIXELS: int, TAPS: int, STRIDE: int, DILATION: int, WAY: int, KIND: int, PLAIN: int
) -> jit.Kernel:
    """`add_channel_words`."""

    def sums_of_channel_words(args: int) -> None:
        add_channel_words(4, LANES, PIXELS, TAPS, STRIDE, DILATION, WAY, KIND, PLAIN, args)

    return sums_of_channel_words


# Four rows of pixels, each of which is `step` bytes from the next; `count` of them go to `target` as words.
PIXEL_ROWS = fields("row_0 step_0 row_1 step_1 row_2 step_2 row_3 step_3 count channels flip target")


@simd.emitter
def interleave_pixels(v: Vec, FLIP: int, args: Value) -> None:
    """Pixels of four rows (see `PIXEL_ROWS`) as words, each byte of them changed by `flip` with FLIP."""
    a, bytes_, words = v.record(args, PIXEL_ROWS), Integers(v.b, 4 * v.lanes, 1), words_of(v)
    rows = [(getattr(a, f"row_{i}"), getattr(a, f"step_{i}")) for i in range(4)]
    changed, inside, to = words.spread(a.flip), bytes_.mask(a.channels), v.pointer(a.target)

    def place(masked: bool) -> None:
        with v.loop(a.count) as n:
            pixels = [v.pointer(v.iadd(row, v.imul(n, step))) for row, step in rows]
            loaded = [bytes_.load_masked(p, 0, inside) if masked else bytes_.load(p) for p in pixels]
            for i, word in enumerate(interleaved_bytes(v, loaded)):
                changed_word = words.bit_xor(word, changed) if FLIP else word
                words.store(changed_word, words.at(to, v.imul(n, bytes_.lanes)), i * v.lanes)

    with v.choose(v.isub(a.channels, bytes_.lanes)) as (whole, part):
        with whole:
            place(False)
        with part:
            place(True)


@jit.specialise
def words_of_rows(LANES: int, FLIP: int) -> jit.Kernel:
    """`interleave_pixels`."""

    def words_of_rows(args: int) -> None:
        interleave_pixels(4, LANES, FLIP, args)

    return words_of_rows


# --- blocks of channels, dealt to tasks ----------------------------------------------------------

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
