"""Depthwise sums of bytes with channels in the lanes: four rows of a kernel in each word.

Words lie interleaved in scratch (`row_words_driver`), and every kernel column that meets one multiplies it.
Two vectors of words of some pixels are summed at a time: they stay in registers over the whole kernel, and
become one of 16 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from convalgos.cpu.dwconv.channel_taps import meetings
from convalgos.cpu.dwconv.window_sums import SCALED, SIGNED, SUMS, UNSIGNED, added_product, word_operands
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import requantise, simd
from convalgos.cpu.vectors.integers import Integers, words_of
from convalgos.cpu.vectors.packing import interleaved_bytes, lane_quads, quads
from convalgos.cpu.vectors.simd import Value, Vec

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
