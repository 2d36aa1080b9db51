"""The output step of products of words: sums of a tile of pixels by filters to y, in either layout."""

from __future__ import annotations

from typing import Any

from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import requantise
from convalgos.cpu.vectors.integers import Integers, shorts_of, words_of
from convalgos.cpu.vectors.simd import Value, Vec, emitter
from convalgos.cpu.vectors.transpose import transpose

SUMS, SCALED, REQUANTISED, FLOATS, BRAIN, NATIVE_BRAIN = range(6)  # what becomes of sums
WRITTEN = {SUMS: 4, SCALED: 4, REQUANTISED: 1, FLOATS: 4, BRAIN: 2, NATIVE_BRAIN: 2}  # bytes


def output_form(sums_integers: bool, y_dtype: str, native: bool) -> int:
    """What becomes of sums for a type of y."""
    if sums_integers:
        return {"int32": SUMS, "float32": SCALED}.get(y_dtype, REQUANTISED)
    return FLOATS if y_dtype == "float32" else NATIVE_BRAIN if native else BRAIN


class _Filters:
    """What the sums of a vector of filters become: constants are loaded once for all pixels of a tile."""

    def __init__(self, v: Vec, form: int, zero: int, at: Any, given: dict[str, Any]):
        self.v, self.form, self.zero, word = v, form, zero, words_of(v)
        self.window = v.pointer(given["window"])
        if form >= FLOATS:
            self.bias, self.low = v.load(v.pointer(given["offset"]), at), v.lower_bound(given["relu"])
            return
        self.offset = word.load(v.pointer(given["offset"]), at)
        if zero:
            self.zero_point = word.load(v.pointer(given["zero_point"]), at)
        if form != SUMS:
            multiplier = v.load(v.pointer(given["multiplier"]), at)
            self.by = requantise.scaling(v, multiplier, given["step"])

    def finished(self, sums: Any, pixel: Any) -> Any:
        """Sums of a pixel as numbers of y, in words of integers. sums: words, whatever is in them."""
        v, word = self.v, words_of(self.v)
        if self.form >= FLOATS:
            value = v.fmax(v.fadd(v.b.bitcast(sums, v.type), self.bias), self.low)
            if self.form == FLOATS:
                return v.b.bitcast(value, word.type)
            short = shorts_of(v)
            brain = short.native_brain_of(value) if self.form == NATIVE_BRAIN else short.brain_of(value)
            return short.resized(brain, 4, False)
        total = word.add(sums, self.offset)
        if self.zero:
            window = word.load(self.window, v.imul(pixel, v.lanes))
            total = word.sub(total, word.mul(window, self.zero_point))
        if self.form == SUMS:
            return total
        if self.form == SCALED:
            value = v.fmax(requantise.scaled(v, total, self.by.multiplier), self.by.low)
            return v.b.bitcast(value, word.type)
        return requantise.requantised(v, total, self.by)


@emitter
def store_pixels(
    v: Vec, FORM: int, ZERO: int, VECTORS: int, sums: Value, count: Value, filters: Value, offset: Value,
    zero_point: Value, window: Value, multiplier: Value, step: Value, relu: Value, y: Value, y_pixel: Value,
) -> None:  # fmt: skip
    """Channels last: y[i][:filters] of the sums [i][VECTORS * lanes], for i < count; y_pixel: bytes."""
    word, out = words_of(v), Integers(v.b, v.lanes, WRITTEN[FORM])
    given = {"offset": offset, "zero_point": zero_point, "window": window, "multiplier": multiplier,
             "step": step, "relu": relu}  # fmt: skip
    source = v.pointer(sums)
    with v.choose(v.isub(filters, VECTORS * v.lanes)) as (whole, part):
        with whole:
            columns = [_Filters(v, FORM, ZERO, j * v.lanes, given) for j in range(VECTORS)]
            with v.loop(count) as i:
                at = v.pointer(v.iadd(y, v.imul(i, y_pixel)))
                for j, column in enumerate(columns):
                    value = word.load(source, v.imul(v.iadd(v.imul(i, VECTORS), j), v.lanes))
                    out.store(word.resized(column.finished(value, i), out.size), at, j * v.lanes)
        with part, v.loop(VECTORS) as j:
            first = v.imul(j, v.lanes)
            column = _Filters(v, FORM, ZERO, first, given)
            room = out.mask(v.isub(filters, first))
            with v.loop(count) as i:
                at = v.pointer(v.iadd(y, v.imul(i, y_pixel)))
                value = word.load(source, v.iadd(v.imul(i, VECTORS * v.lanes), first))
                result = word.resized(column.finished(value, i), out.size)
                out.store_masked(result, at, first, room)


@emitter
def store_planes(
    v: Vec, FORM: int, ZERO: int, VECTORS: int, sums: Value, count: Value, filters: Value, offset: Value,
    zero_point: Value, window: Value, multiplier: Value, step: Value, relu: Value, y: Value, y_k: Value,
) -> None:  # fmt: skip
    """Channels first: y[k][:count] for k < filters, y_k bytes apart; count is at most `lanes`."""
    word, out = words_of(v), Integers(v.b, v.lanes, WRITTEN[FORM])
    given = {"offset": offset, "zero_point": zero_point, "window": window, "multiplier": multiplier,
             "step": step, "relu": relu}  # fmt: skip
    source, room = v.pointer(sums), out.mask(count)
    with v.loop(VECTORS) as j:
        first = v.imul(j, v.lanes)
        left = v.isub(filters, first)
        with v.unless_negative(v.isub(left, 1)):
            column = _Filters(v, FORM, ZERO, first, given)
            rows = []
            for i in range(v.lanes):
                value = word.load(source, v.iadd(first, i * VECTORS * v.lanes))
                rows.append(column.finished(value, v.integer(i)))
            last = v.isub(left, 1)
            turned = transpose(v, rows)
            for i in reversed(range(v.lanes)):  # rows beyond the last write to it first
                at = v.pointer(v.iadd(y, v.imul(v.iadd(first, v.imin(i, last)), y_k)))
                out.store_masked(word.resized(turned[i], out.size), at, 0, room)


@jit.specialise
def store_word_tile(FORM: int, ZERO: int, LANES: int, VECTORS: int, LAST: int) -> jit.Kernel:
    """The sums of a tile to y. y_step: bytes between pixels of y channels last, else between filters.

    ZERO: whether zero points of filters, times the sums of windows, are subtracted.
    """

    def store_word_tile(
        sums: int, count: int, filters: int, offset: int, zero_point: int, window: int, multiplier: int,
        step: int, relu: int, y: int, y_step: int,
    ) -> None:  # fmt: skip
        if LAST:
            store_pixels(
                4, LANES, FORM, ZERO, VECTORS, sums, count, filters, offset, zero_point, window, multiplier,
                step, relu, y, y_step,
            )  # fmt: skip
        else:
            store_planes(
                4, LANES, FORM, ZERO, VECTORS, sums, count, filters, offset, zero_point, window, multiplier,
                step, relu, y, y_step,
            )  # fmt: skip

    return store_word_tile
