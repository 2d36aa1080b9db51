"""The output step of products of words: sums of a tile of pixels by filters to y, in either layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import requantise
from convalgos.cpu.vectors.integers import Integers, rounded_halves, shorts_of, words_of
from convalgos.cpu.vectors.lanes import store_lanes
from convalgos.cpu.vectors.packing import woven_bytes
from convalgos.cpu.vectors.simd import Value, Vec, emitter
from convalgos.cpu.vectors.transpose import transpose, transpose_few

SUMS, SCALED, REQUANTISED, SHIFTED, FLOATS, BRAIN, NATIVE_BRAIN, HALF = range(8)  # of sums
WRITTEN = (4, 4, 1, 1, 4, 2, 2, 2)  # bytes of a number of y
PACKED_UNSIGNED, PACKED_SIGNED = range(8, 10)  # REQUANTISED, channels last, four vectors of sums at once


def output_form(sums_integers: bool, y_dtype: str, native: bool) -> int:
    """What becomes of sums for a type of y; of REQUANTISED, SHIFTED where zero points are added first."""
    if sums_integers:
        return {"int32": SUMS, "float32": SCALED}.get(y_dtype, REQUANTISED)
    if y_dtype in ("float32", "float16"):
        return FLOATS if y_dtype == "float32" else HALF
    return NATIVE_BRAIN if native else BRAIN


def forms_of(x_dtype: str) -> tuple[int, ...]:
    """All that may become of the sums of a type of x."""
    floats = {"float16": (FLOATS, HALF), "bfloat16": (FLOATS, BRAIN, NATIVE_BRAIN)}
    return floats.get(x_dtype, (SUMS, SCALED, REQUANTISED, SHIFTED))


class _Filters:
    """What the sums of a vector of filters become: constants are loaded once for all pixels of some tiles."""

    def __init__(self, v: Vec, form: int, zero: int, at: Any, given: dict[str, Any]):
        self.v, self.form, self.zero = v, form, zero
        self.window = v.pointer(given["window"])
        if form >= FLOATS:
            self.low = v.lower_bound(given["relu"])
            return
        if zero:
            self.zero_point = words_of(v).load(v.pointer(given["zero_point"]), at)
        if form != SUMS:
            multiplier, step = v.load(v.pointer(given["multiplier"]), at), given["step"]
            self.by = requantise.scaling(v, multiplier, step, form == SHIFTED)
            self.low = v.broadcast(v.pointer(step), 1)

    def finished(self, sums: Any, pixel: Any) -> Any:
        """Sums of a pixel as numbers of y, in words of integers. sums: words, whatever is in them."""
        v, word = self.v, words_of(self.v)
        if self.form >= FLOATS:
            value = self._activated(sums)
            if self.form == FLOATS:
                return v.b.bitcast(value, word.type)
            if self.form == NATIVE_BRAIN:
                halves = shorts_of(v).native_brain_of(value)
            else:
                halves = rounded_halves(v, self.form == BRAIN, value)
            return shorts_of(v).resized(halves, 4, False)
        if self.zero:
            window = word.load(self.window, v.imul(pixel, v.lanes))
            sums = word.sub(sums, word.mul(window, self.zero_point))
        if self.form == SUMS:
            return sums
        if self.form == SCALED:
            return requantise.scaled_words(v, sums, self.by.multiplier, self.low)
        return requantise.requantised(v, sums, self.by)

    def packed(self, sums: Sequence[Any], pixels: Sequence[Any]) -> Any:
        """Sums of as many pixels as fill a word, as words of their numbers of y, the first lowest."""
        word = words_of(self.v)
        if self.form == NATIVE_BRAIN:
            return word.native_brain_pairs(*map(self._activated, sums))
        size = WRITTEN[self.form]
        total = word.zero()
        for i, (value, pixel) in enumerate(zip(sums, pixels, strict=True)):
            part = self.finished(value, pixel)
            if size < 4 and i < 4 // size - 1:  # the last one's bits beyond its size are shifted out
                part = word.bit_and(part, word.const((1 << 8 * size) - 1))
            total = word.bit_or(total, word.left(part, 8 * size * i))
        return total

    def _activated(self, sums: Any) -> Any:
        return self.v.fmax(self.v.b.bitcast(sums, self.v.type), self.low)


@emitter
def store_pixels(
    v: Vec, FORM: int, ZERO: int, VECTORS: int, sums: Value, tile: Value, tiles: Value, table: Value,
    count: Value, filters: Value, zero_point: Value, window: Value, multiplier: Value, step: Value,
    relu: Value, y: Value, y_pixel: Value,
) -> None:  # fmt: skip
    """Channels last: y[t + i][:filters] of the sums [t][i][VECTORS * lanes], i < count; y_pixel: bytes."""
    word, out = words_of(v), Integers(v.b, v.lanes, WRITTEN[FORM])
    given = {"zero_point": zero_point, "window": window, "multiplier": multiplier, "step": step, "relu": relu}
    source = v.pointer(sums)

    def store(columns: list[_Filters], firsts: list[Any], room: Any) -> None:
        with v.loop(tiles) as t:
            begin = v.iadd(y, v.table64(table, v.iadd(v.imul(t, 2), 1)))
            with v.loop(count) as i:
                pixel = v.iadd(v.imul(t, tile), i)
                at = v.pointer(v.iadd(begin, v.imul(i, y_pixel)))
                for column, first in zip(columns, firsts, strict=True):
                    value = word.load(source, v.iadd(v.imul(pixel, VECTORS * v.lanes), first))
                    result = word.resized(column.finished(value, pixel), out.size)
                    store_lanes(out, result, at, first, room)

    with v.choose(v.isub(filters, VECTORS * v.lanes)) as (whole, part):
        with whole:
            firsts = [j * v.lanes for j in range(VECTORS)]
            store([_Filters(v, FORM, ZERO, first, given) for first in firsts], firsts, None)
        with part, v.loop(VECTORS) as j:
            first = v.imul(j, v.lanes)
            room = out.mask(v.isub(filters, first))
            store([_Filters(v, FORM, ZERO, first, given)], [first], room)


@emitter
def store_packed_pixels(
    v: Vec, SIGNED: int, VECTORS: int, sums: Value, tile: Value, tiles: Value, table: Value, count: Value,
    filters: Value, multiplier: Value, step: Value, y: Value, y_pixel: Value,
) -> None:  # fmt: skip
    """`store_pixels` of requantised sums: the vectors of a pixel become bytes by packing.

    Scaled sums stay in words, nothing is added to them (`requantise.stays_in_words`), and the processor has
    the instructions of `packing`.
    """
    word, line = words_of(v), Integers(v.b, 4 * v.lanes, 1)
    by, source = requantise.narrowing(v, step, bool(SIGNED), True), v.pointer(sums)
    chosen = [
        min(j, VECTORS - 1) for j in range(4)
    ]  # beyond the last one its bytes again, which are not stored
    multipliers = [v.load(v.pointer(multiplier), j * v.lanes) for j in chosen]
    room = line.mask(v.imin(filters, VECTORS * v.lanes))
    with v.loop(tiles) as t:
        begin = v.iadd(y, v.table64(table, v.iadd(v.imul(t, 2), 1)))
        with v.loop(count) as i:
            pixel = v.imul(v.iadd(v.imul(t, tile), i), VECTORS * v.lanes)
            values = [word.load(source, v.iadd(pixel, j * v.lanes)) for j in chosen]
            low, high = (
                requantise.narrowed_shorts(v, values[n : n + 2], multipliers[n : n + 2], by) for n in (0, 2)
            )
            found = woven_bytes(v, requantise.narrowed(v, low, high, by))
            line.store_masked(found, v.pointer(v.iadd(begin, v.imul(i, y_pixel))), 0, room)


@emitter
def store_planes(
    v: Vec, FORM: int, ZERO: int, VECTORS: int, sums: Value, tile: Value, tiles: Value, table: Value,
    count: Value, filters: Value, zero_point: Value, window: Value, multiplier: Value, step: Value,
    relu: Value, y: Value, y_k: Value,
) -> None:  # fmt: skip
    """Channels first: y[k][t:t+count] for k < filters, y_k bytes apart; count is at most `lanes`.

    Pixels that fill a word are packed into words, and these are transposed in registers. Tiles that follow
    each other in y are, as many as fill a vector: planes a power of 2 apart share few sets of the first
    cache, from which half a line would be gone before the other half is written.
    """
    word, out = words_of(v), Integers(v.b, v.lanes, WRITTEN[FORM])
    each = 4 // out.size  # pixels of a word, and tiles of a vector
    line = Integers(v.b, each * v.lanes, out.size)
    given = {"zero_point": zero_point, "window": window, "multiplier": multiplier, "step": step, "relu": relu}
    source, room = v.pointer(sums), out.mask(count)

    def place(t: Any) -> Any:
        return v.table64(table, v.iadd(v.imul(t, 2), 1))

    packed, of_tile = word.buffer(v.lanes), v.lanes // each  # (words of a row of pixels, filters)
    with v.loop(VECTORS) as j:
        first = v.imul(j, v.lanes)
        left = v.isub(filters, first)
        with v.unless_negative(v.isub(left, 1)):
            column, last = _Filters(v, FORM, ZERO, first, given), v.isub(left, 1)
            planes = v.iadd(y, v.imul(first, y_k))
            full = v.imin(v.isub(left, v.lanes), v.isub(count, v.lanes))
            with v.loop(v.idiv(v.iadd(tiles, each - 1), each)) as group:
                t = v.imul(group, each)
                some = v.imin(each, v.isub(tiles, t))
                with v.loop(some) as e:
                    for i in range(of_tile):
                        begin = v.imul(v.iadd(t, e), tile)
                        pixels = [v.iadd(begin, i * each + k) for k in range(each)]
                        values = [
                            word.load(source, v.iadd(v.imul(p, VECTORS * v.lanes), first)) for p in pixels
                        ]
                        at = v.imul(v.iadd(v.imul(e, of_tile), i), v.lanes)
                        word.store(column.packed(values, pixels), packed, at)
                begin = place(t)
                expected = v.iadd(begin, (each - 1) * v.lanes * out.size)
                apart = v.isub(expected, place(v.isub(v.iadd(t, some), 1)))
                joined = v.imin(v.imin(full, v.isub(some, each)), v.isub(0, v.b.mul(apart, apart)))
                with v.choose(joined) as (whole, part):
                    with whole:
                        at = v.iadd(planes, begin)
                        rows = [word.load(packed, i * v.lanes) for i in range(v.lanes)]
                        for row in transpose(word, rows):
                            line.store(v.b.bitcast(row, line.type), v.pointer(at))
                            at = v.after(v.iadd(at, y_k))
                    with part, v.loop(some) as e:
                        at, from_ = v.iadd(planes, place(v.iadd(t, e))), v.imul(e, of_tile * v.lanes)
                        rows = [word.load(packed, v.iadd(from_, i * v.lanes)) for i in range(of_tile)]
                        turned = transpose_few(word, rows)
                        for i in reversed(range(v.lanes)):  # rows beyond the last write to it first
                            row = v.pointer(v.iadd(at, v.imul(v.imin(i, last), y_k)))
                            out.store_masked(v.b.bitcast(turned[i], out.type), row, 0, room)


@jit.specialise
def store_word_tile(FORM: int, ZERO: int, LANES: int, VECTORS: int, LAST: int) -> jit.Kernel:
    """The sums of tiles to y. y_step: bytes between pixels of y channels last, else between filters.

    ZERO: whether zero points of filters, times the sums of windows, are subtracted.
    """

    def store_word_tile(
        sums: int, tile: int, tiles: int, table: int, count: int, filters: int, zero_point: int, window: int,
        multiplier: int, step: int, relu: int, y: int, y_step: int,
    ) -> None:  # fmt: skip
        if FORM >= PACKED_UNSIGNED:
            store_packed_pixels(
                4, LANES, FORM == PACKED_SIGNED, VECTORS, sums, tile, tiles, table, count, filters,
                multiplier, step, y, y_step,
            )  # fmt: skip
        elif LAST:
            store_pixels(
                4, LANES, FORM, ZERO, VECTORS, sums, tile, tiles, table, count, filters, zero_point, window,
                multiplier, step, relu, y, y_step,
            )  # fmt: skip
        else:
            store_planes(
                4, LANES, FORM, ZERO, VECTORS, sums, tile, tiles, table, count, filters, zero_point, window,
                multiplier, step, relu, y, y_step,
            )  # fmt: skip

    return store_word_tile
