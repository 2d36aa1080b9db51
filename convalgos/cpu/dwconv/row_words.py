"""Depthwise sums of bytes with channels in the lanes: four rows of a kernel in each word.

Pixels of four rows are interleaved to words of their bytes, which every kernel column that meets them
multiplies: a row of outputs stays in registers over the whole kernel.
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
from convalgos.cpu.vectors.packing import interleaved_bytes, packed_in_order, quads
from convalgos.cpu.vectors.simd import Register, Value, Vec

# A band of a block of channels. Offsets count bytes of x, whose pixels are vectors, and elements of y.
CHANNEL_SUM_FIELDS = fields(
    "x row_step tap_row slice_step w parts slices words taps stride dilation start multiplier step rows "
    "columns y y_row y_pixel channels"
)
# columns, stride and dilation of rows that have code of their own
USUAL = ((3, 1, 1), (3, 2, 1), (5, 1, 1), (5, 2, 1), (7, 1, 1))
PIXELS = (4, 2, 1)  # of a row, that are summed at a time


@simd.emitter
def add_channel_words(
    v: Vec, PIXELS: int, TAPS: int, STRIDE: int, DILATION: int, WAY: int, KIND: int, args: Value
) -> None:
    """All outputs of a band (see `CHANNEL_SUM_FIELDS`), PIXELS of a row at a time; the last overlap.

    TAPS, STRIDE and DILATION are those of a row, or 0 for any.
    """
    a = v.record(args, CHANNEL_SUM_FIELDS)
    words, bytes_ = words_of(v), Integers(v.b, 4 * v.lanes, 1)
    starts = _by_channel(words, v.pointer(a.start), a.channels)
    finish = _Finish(v, KIND, a)
    pixel, weight = bytes_.lanes, bytes_.lanes * (2 - WAY) * 4

    def add(sums: Sequence[Sequence[Register]], x: Value, w: Value, pairs: Sequence[tuple[int, int]]) -> None:
        """The products of a pixel of four rows with the taps of the outputs that it meets."""
        rows = [bytes_.load(bytes_.at(x, v.imul(a.tap_row, b))) for b in range(4)]
        values = [word_operands(words, value, WAY) for value in interleaved_bytes(v, rows)]
        for output, tap in pairs:
            for i, value in enumerate(values):
                near = bytes_.at(w, tap * weight + i * weight // 4)
                weights = [words.load(near, part * v.lanes) for part in range(2 - WAY)]
                total = sums[output][i]
                total.set(added_product(words, total.value, value, weights, WAY))

    with v.loop(a.rows) as p, v.loop(v.idiv(v.iadd(a.columns, PIXELS - 1), PIXELS)) as tile:
        q = v.imin(v.imul(tile, PIXELS), v.isub(a.columns, PIXELS))
        x = bytes_.at(v.pointer(a.x), v.iadd(v.imul(p, a.row_step), v.imul(q, v.imul(a.stride, pixel))))
        sums = [[words.register(start) for start in starts] for _ in range(PIXELS)]
        with v.loop(a.parts) as part, v.loop(a.slices) as t, v.loop(a.words) as j:
            number = v.iadd(v.imul(v.iadd(v.imul(part, a.slices), t), a.words), j)
            w = bytes_.at(v.pointer(a.w), v.imul(number, v.imul(a.taps, weight)))
            line = bytes_.at(x, v.iadd(v.imul(t, a.slice_step), v.imul(j, v.imul(a.tap_row, 4))))
            if TAPS:
                for column, pairs in meetings(PIXELS, TAPS, STRIDE, DILATION).items():
                    add(sums, bytes_.at(line, column * pixel), w, pairs)
            else:
                with v.loop(a.taps) as s:
                    of_tap = bytes_.at(line, v.imul(s, v.imul(a.dilation, pixel)))
                    for output in range(PIXELS):
                        at = bytes_.at(of_tap, v.imul(a.stride, output * pixel))
                        add(sums, at, bytes_.at(w, v.imul(s, weight)), [(output, 0)])
        to = v.iadd(v.imul(p, a.y_row), v.imul(q, a.y_pixel))
        for output in range(PIXELS):
            finish(v.iadd(to, v.imul(a.y_pixel, output)), [total.value for total in sums[output]])


def _by_channel(words: Integers, table: Value, channels: Value) -> list[Any]:
    """Words of a table in the order of `interleaved_bytes`; those beyond some channels are 0."""
    found, four = [], Integers(words.b, 4, 4)
    for i in range(4):
        pieces = []
        for block in range(words.lanes // 4):
            first = 16 * block + 4 * i
            pieces.append(four.load_masked(table, first, four.mask(words.isub(channels, first))))
        while len(pieces) > 1:
            count = 2 * pieces[0].type.count
            pieces = [
                words.shuffle(a, b, range(count)) for a, b in zip(pieces[::2], pieces[1::2], strict=True)
            ]
        found.append(pieces[0])
    return found


class _Finish:
    """Writes the code that stores the sums of a pixel."""

    def __init__(self, v: Vec, kind: int, a: Any):
        self.v, self.kind, self.a = v, kind, a
        self.scaling: list[Any] = []
        if kind != SUMS:
            multiplier = v.pointer(a.multiplier)
            limits = requantise.scaling(v, None, a.step)
            loaded = _by_channel(words_of(v), multiplier, a.channels)
            self.scaling = [limits._replace(multiplier=v.b.bitcast(m, v.type)) for m in loaded]

    def __call__(self, to: Value, sums: Sequence[Any]) -> None:
        v, a, kind, words = self.v, self.a, self.kind, words_of(self.v)
        if kind in (SIGNED, UNSIGNED):
            bytes_ = Integers(v.b, 4 * v.lanes, 1)
            numbers = [requantise.requantised(v, s, by) for s, by in zip(sums, self.scaling, strict=True)]
            value = packed_in_order(v, numbers, kind == SIGNED)
            with v.choose(v.isub(a.channels, bytes_.lanes)) as (whole, part):
                with whole:
                    bytes_.store(value, bytes_.pointer(a.y), to)
                with part:
                    bytes_.store_masked(value, v.pointer(a.y), to, bytes_.mask(a.channels))
            return
        if kind == SCALED:
            low = v.broadcast(v.pointer(a.step), 1)
            sums = [
                requantise.scaled_words(v, s, by.multiplier, low)
                for s, by in zip(sums, self.scaling, strict=True)
            ]
        for i, value in enumerate(quads(words, sums)):
            inside = words.mask(v.isub(a.channels, i * v.lanes))
            words.store_masked(value, v.pointer(a.y), v.iadd(to, i * v.lanes), inside)


@jit.specialise
def sums_of_channel_words(
    LANES: int, PIXELS: int, TAPS: int, STRIDE: int, DILATION: int, WAY: int, KIND: int
) -> jit.Kernel:
    """`add_channel_words`."""

    def sums_of_channel_words(args: int) -> None:
        add_channel_words(4, LANES, PIXELS, TAPS, STRIDE, DILATION, WAY, KIND, args)

    return sums_of_channel_words
