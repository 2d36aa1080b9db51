"""Sums of products of windows of bytes: outputs of a band of a map, for some filters at a time.

A word of a vector holds four neighbouring bytes of a row, which meet four columns of a kernel: one
instruction adds their four products. A vector that begins at any byte has windows at every fourth one, and
those at four neighbouring bytes have them all; of a stride of 2 two of these are enough, and of 4 one. Rows
lie one behind the other, and are summed as one long row; sums of windows that lie in two are not stored. Of
kernels of one column a word holds four rows instead, which are interleaved in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import requantise, simd
from convalgos.cpu.vectors.integers import Integers, bytes_of, words_of
from convalgos.cpu.vectors.packing import compressed, in_order, interleaved_bytes, quads, woven_bytes
from convalgos.cpu.vectors.simd import Value, Vec, copy_bytes

SUMS, SCALED, SIGNED, UNSIGNED = range(4)  # what is stored: int32, float32, int8, uint8
LINES = 0  # in the place of a step: words of four rows
PAIRS, VNNI = 0, 1  # how a word is multiplied: as two pairs of 16 bits, or by one instruction

# What a band's sums read. Offsets count bytes of x, and elements of y. `tiles` of vectors; `blocks` of stored
# vectors and their `runs`.
SUM_FIELDS = fields(
    "x taps offsets w start multiplier step tiles blocks runs y y_filter groups x_step w_step k_step y_step"
)
# Of a stored vector: its runs, or lanes of it that are `kept` and are put side by side: the first is at `to`
# in y, and as many `bits` are set as there are.
STORE_BLOCK = fields("first count kept to bits")
STORE_RUN = fields("to first count bits")  # lanes of it that lie side by side in y: lane 0 would be at `to`


@simd.emitter
def add_window_tiles(
    v: Vec, FILTERS: int, VECTORS: int, STEP: int, WAY: int, KIND: int, COMPRESS: int, PLAIN: int, args: Value
) -> None:
    """All tiles of a band of some groups, of VECTORS vectors of outputs, for FILTERS filters of each.

    From one group to the next are `x_step` and `w_step` bytes, `k_step` filters and `y_step` elements. STEP:
    1, 2 or 4 bytes from one window to the next, or LINES, of which each tap has four offsets. PLAIN: see
    `requantise.narrowing`.
    """
    a = v.record(args, SUM_FIELDS)
    words, bytes_ = words_of(v), bytes_of(v)
    by = requantise.narrowing(v, a.step, KIND == SIGNED, bool(PLAIN)) if KIND in (SIGNED, UNSIGNED) else None
    with v.loop(a.groups) as group:
        x = bytes_.at(v.pointer(a.x), v.imul(group, a.x_step))
        w = bytes_.at(v.pointer(a.w), v.imul(group, a.w_step))
        k = v.imul(group, a.k_step)
        starts = [words.broadcast(v.pointer(a.start), v.iadd(k, f)) for f in range(FILTERS)]
        store = _Store(v, (KIND, STEP, COMPRESS), a, group, by)
        multiplier = v.at(v.pointer(a.multiplier), k)
        multipliers = [v.broadcast(multiplier, f) if KIND != SUMS else None for f in range(FILTERS)]
        with v.loop(a.tiles) as tile:
            base = bytes_.at(x, v.imul(tile, VECTORS * v.lanes * max(STEP, 1)))
            sums = [[words.register(start) for _ in range(VECTORS)] for start in starts]
            with v.loop(a.taps) as t:
                near = v.at(w, v.imul(t, FILTERS * (2 - WAY)))
                if STEP == LINES:
                    found = _lines(
                        v, base, [v.table64(a.offsets, v.iadd(v.imul(t, 4), i)) for i in range(4)], VECTORS
                    )
                else:
                    at = bytes_.at(base, v.table64(a.offsets, t))
                    found = [_windows(words, at, i, STEP) for i in range(VECTORS)]
                values = [word_operands(words, value, WAY) for value in found]
                for f, of_filter in enumerate(sums):
                    weights = [words.broadcast(near, f * (2 - WAY) + part) for part in range(2 - WAY)]
                    for value, total in zip(values, of_filter, strict=True):
                        total.set(added_product(words, total.value, value, weights, WAY))
            for f, of_filter in enumerate(sums):
                store(tile, f, multipliers[f], [total.value for total in of_filter])


def _windows(words: Integers, x: Any, vector: int, step: int) -> Any:
    """The windows of one vector of a tile."""
    number, phase = divmod(vector, 4 // step)
    value = words.b.load(bytes_of(words).at(x, number * 4 * words.lanes + phase * step), typ=words.type)
    value.align = 1
    return value


def _lines(v: Vec, x: Any, offsets: Sequence[Value], vectors: int) -> list[Any]:
    """Words of four rows, of as many pixels as some vectors have words."""
    bytes_, found = Integers(v.b, 4 * v.lanes, 1), []
    for block in range(vectors // 4):
        rows = [bytes_.load(bytes_.at(x, offset), block * bytes_.lanes) for offset in offsets]
        found += interleaved_bytes(v, rows)
    return found


def word_operands(words: Integers, value: Any, way: int) -> list[Any]:
    """A word of four bytes as it is multiplied: as it is, or its even and its odd bytes as 16 bits each."""
    if way == VNNI:
        return [value]
    return [words.bit_and(value, words.const(0x00FF00FF)), _odd_bytes(words, value)]


def _odd_bytes(words: Integers, value: Any) -> Any:
    shorts = Integers(words.b, 2 * words.lanes, 2)
    return words.b.bitcast(shorts.right(words.b.bitcast(value, shorts.type), 8, False), words.type)


def added_product(words: Integers, total: Any, value: Sequence[Any], weights: Sequence[Any], way: int) -> Any:
    if way == VNNI:
        return words.dot4(total, value[0], weights[0])
    for x, w in zip(value, weights, strict=True):
        total = words.dot2(total, x, w, False)
    return total


class _Store:
    """Writes the code that stores the sums of a tile of a filter."""

    def __init__(self, v: Vec, form: tuple[int, int, int], a: Any, group: Value, by: Any):
        self.v, self.a, self.by = v, a, by
        self.kind, self.step, self.compress = form
        of_bytes = self.kind in (SIGNED, UNSIGNED)
        self.elements = Integers(v.b, 4 * v.lanes, 1) if of_bytes else words_of(v)
        self.y = self.elements.at(v.pointer(a.y), v.imul(group, a.y_step))

    def __call__(self, tile: Value, f: int, multiplier: Any, sums: Sequence[Any]) -> None:
        v, a = self.v, self.a
        to = self.elements.at(self.y, v.imul(a.y_filter, f))
        values = [
            value for i in range(0, len(sums), 4) for value in self._finished(multiplier, sums[i : i + 4])
        ]
        for i, value in enumerate(values):
            at = v.imul(v.iadd(v.imul(tile, len(values)), i), STORE_BLOCK.itemsize)
            block = v.record(v.iadd(a.blocks, at), STORE_BLOCK)
            if self.compress:
                kept = compressed(self.elements, value, self.elements.lanes_of(block.kept))
                self.elements.store_masked(kept, to, block.to, self.elements.lanes_of(block.bits))
                continue
            with v.loop(block.count) as n:
                at = v.imul(v.iadd(block.first, n), STORE_RUN.itemsize)
                self._store_run(self.elements, value, to, v.record(v.iadd(a.runs, at), STORE_RUN))

    def _finished(self, multiplier: Any, sums: Sequence[Any]) -> list[Any]:
        """What is stored of four vectors: one of bytes, or four."""
        v, words = self.v, words_of(self.v)
        if self.kind in (SIGNED, UNSIGNED):
            low, high = (
                requantise.narrowed_shorts(v, pair, [multiplier] * 2, self.by)
                for pair in (sums[:2], sums[2:])
            )
            packed = requantise.narrowed(v, low, high, self.by)
            return [packed if self.step == LINES else woven_bytes(v, packed, self.step)]
        if self.kind == SCALED:
            low = v.broadcast(v.pointer(self.a.step), 1)
            sums = [requantise.scaled_words(v, s, multiplier, low) for s in sums]
        return quads(words, sums) if self.step == LINES else in_order(words, sums, self.step)

    def _store_run(self, kind: Integers, value: Any, to: Any, run: Any) -> None:
        v = self.v
        if kind.size == 1 and v.lanes < 16:  # without stores of some bytes of a vector
            space = kind.buffer(1)
            kind.store(value, space)
            source = v.iadd(v.b.ptrtoint(space, v.integer(0).type), run.first)
            target = v.b.ptrtoint(kind.at(to, v.iadd(run.to, run.first)), v.integer(0).type)
            copy_bytes.write(v.b, target, source, run.count)
        else:
            kind.store_masked(value, to, run.to, kind.lanes_of(run.bits))


@jit.specialise
def sums_of_windows(
    LANES: int, FILTERS: int, VECTORS: int, STEP: int, WAY: int, KIND: int, COMPRESS: int, PLAIN: int
) -> jit.Kernel:
    """`add_window_tiles`."""

    def sums_of_windows(args: int) -> None:
        add_window_tiles(4, LANES, FILTERS, VECTORS, STEP, WAY, KIND, COMPRESS, PLAIN, args)

    return sums_of_windows
