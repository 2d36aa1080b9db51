"""Bringing x to words: the channels of a pixel side by side, in 32-bit words, behind borders of padding.

What is done to the elements on the way is one of: nothing; uint8 of int8, by adding 128; 16 bits of either;
float32 of 16 bits. Channels last, a pixel is copied; channels first, squares of words by pixels are
transposed in registers, and float32, of which each is a word, stay in planes.
"""

from __future__ import annotations

from typing import Any

from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors.integers import Integers, widened_halves, words_of
from convalgos.cpu.vectors.simd import Value, Vec, copy_bytes, emitter, zero_bytes
from convalgos.cpu.vectors.transpose import interleaved, transpose

BYTES, FLIPPED, SIGNED, UNSIGNED, SHORTS, HALVES, BRAINS = range(7)  # what is done to the elements
READ = (1, 1, 1, 1, 2, 2, 2)  # bytes of an element of x
FLIP = 0x80808080 - (1 << 32)  # 128 in each byte of a word
MADE = (1, 1, 2, 2, 2, 4, 4)  # and in a word


def words_form(x_dtype: str, item_bytes: int, flips: str) -> int:
    """What is done to elements of a type for words of `item_bytes` each."""
    if item_bytes == 4:
        return HALVES if x_dtype == "float16" else BRAINS
    if x_dtype == "bfloat16":
        return SHORTS
    if item_bytes == 2:
        return SIGNED if x_dtype == "int8" else UNSIGNED
    return FLIPPED if x_dtype == flips else BYTES


@emitter
def convert_pixels(
    v: Vec, FORM: int, x: Value, x_pixel: Value, channels: Value, count: Value, y: Value, words: Value
) -> None:
    """`count` pixels of `channels` elements, x_pixel bytes apart, to pixels of `words` words.

    What of a pixel lies behind the channels becomes 0.
    """
    made = v.lanes * 4 // MADE[FORM]  # elements of a vector
    short, word = Integers(v.b, made, READ[FORM]), words_of(v)
    source, target = v.pointer(x), v.pointer(y)
    whole = v.idiv(channels, made)
    with v.loop(whole) as j, v.loop(count) as i:
        at = _behind(v, source, v.iadd(v.imul(i, x_pixel), v.imul(j, made * READ[FORM])))
        value = _converted(v, FORM, short, short.load(at))
        word.store(value, target, v.iadd(v.imul(i, words), v.imul(j, v.lanes)))
    rest = v.isub(words, v.imul(whole, v.lanes))
    with v.loop(v.idiv(v.iadd(rest, v.lanes - 1), v.lanes)) as j:
        first = v.iadd(whole, j)
        inside = short.mask(v.isub(channels, v.imul(first, made)))
        room = word.mask(v.isub(words, v.imul(first, v.lanes)))
        with v.loop(count) as i:
            at = _behind(v, source, v.iadd(v.imul(i, x_pixel), v.imul(first, made * READ[FORM])))
            value = _converted(v, FORM, short, short.load_masked(at, 0, inside))
            word.store_masked(value, target, v.iadd(v.imul(i, words), v.imul(first, v.lanes)), room)


@emitter
def convert_few_neighbours(v: Vec, FORM: int, CHANNELS: int, x: Value, y: Value) -> None:
    """A vector of pixels of CHANNELS elements, side by side in x, to pixels of one or two whole words."""
    each = 4 // MADE[FORM]
    of_pixel = -(-CHANNELS // each) * each  # elements, with those behind the channels, which become 0
    pixels = v.lanes * each // of_pixel
    read, made = Integers(v.b, pixels * CHANNELS, READ[FORM]), Integers(v.b, v.lanes * each, READ[FORM])
    order = [i * CHANNELS + c if c < CHANNELS else read.lanes for i in range(pixels) for c in range(of_pixel)]
    spaced = v.shuffle(read.load(v.pointer(x)), read.zero(), order)
    words_of(v).store(_converted(v, FORM, made, spaced), v.pointer(y))


def _converted(v: Vec, form: int, short: Integers, value: Any) -> Any:
    """Elements of x as a vector of words."""
    if form == FLIPPED:
        value = short.bit_xor(value, short.const(-128))
    if form in (SIGNED, UNSIGNED):
        value = short.resized(value, 2, form == SIGNED)
    if form in (HALVES, BRAINS):
        value = widened_halves(v, form == BRAINS, value)
    return v.b.bitcast(value, words_of(v).type)


@emitter
def convert_square(
    v: Vec,
    FORM: int,
    x: Value,
    x_c: Value,
    channels: Value,
    pixels: Value,
    y: Value,
    words: Value,
    pixel: Value,
) -> None:
    """Up to `lanes` pixels of planes x_c bytes apart to up to `lanes` words of each, `pixel` words apart.

    channels, words: that are left of x and of a pixel, from these addresses on; words without a channel
    become 0. All `lanes` pixels are written.
    """
    left = v.isub(channels, v.lanes * 4 // MADE[FORM])
    with v.choose(v.imin(left, v.isub(pixels, v.lanes))) as (whole, part):
        with whole:
            _square(v, FORM, x, x_c, None, None, y, None, pixel)
        with part:
            _square(v, FORM, x, x_c, channels, pixels, y, words, pixel)


def _square(
    v: Vec, form: int, x: Any, x_c: Any, channels: Any, pixels: Any, y: Any, words: Any, pixel: Any
) -> None:
    word = words_of(v)
    read = [_word_of_pixels(v, form, x, x_c, k, channels, pixels) for k in range(v.lanes)]
    for i, row in enumerate(transpose(v, read)):
        at = word.at(v.pointer(y), v.imul(pixel, i))
        if words is None:
            word.store(row, at)
        else:
            word.store_masked(row, at, 0, word.mask(words))


def _word_of_pixels(v: Vec, form: int, x: Any, x_c: Any, k: int, channels: Any, pixels: Any) -> Any:
    """The k-th word of `lanes` pixels; 0 for channels that are not there, and for pixels where given."""
    word, short = words_of(v), Integers(v.b, v.lanes, READ[form])
    each = 4 // MADE[form]  # elements of a word
    total = word.zero()
    for e in range(each):
        if channels is None:
            value = short.load(v.pointer(v.iadd(x, v.imul(x_c, k * each + e))))
        else:
            channel = v.imax(v.imin(v.isub(channels, 1), k * each + e), 0)
            at = v.pointer(v.iadd(x, v.imul(x_c, channel)))
            there = v.b.icmp_signed("<", v.integer(k * each + e), channels)
            value = short.load(at) if pixels is None else short.load_masked(at, 0, short.mask(pixels))
            value = v.b.select(there, value, short.zero())
        wide = short.resized(value, 4, form == SIGNED)
        if form == SIGNED and e == 0:
            wide = word.bit_and(wide, word.const(0xFFFF))
        total = word.bit_or(total, word.left(wide, 32 // each * e))
    return word.bit_xor(total, word.const(FLIP)) if form == FLIPPED else total


@emitter
def convert_few(v: Vec, FORM: int, WORDS: int, x: Value, x_c: Value, channels: Value, y: Value) -> None:
    """`lanes` pixels of planes x_c bytes apart to WORDS words of each: 1, 2 or 4."""
    word, to = words_of(v), v.pointer(y)
    rows = [_word_of_pixels(v, FORM, x, x_c, k, channels, None) for k in range(WORDS)]
    for i, vector in enumerate(interleaved(word, rows)):
        word.store(vector, to, i * v.lanes)


@emitter
def fill_words(v: Vec, y: Value, count: Value, value: Value) -> None:
    """y[:count] = value, of words."""
    word = words_of(v)
    target, filled = v.pointer(y), words_of(v).spread(value)
    whole = v.idiv(count, v.lanes)
    with v.loop(whole) as i:
        word.store(filled, target, v.imul(i, v.lanes))
    done = v.imul(whole, v.lanes)
    word.store_masked(filled, target, done, word.mask(v.isub(count, done)))


@emitter
def pick_pixels(v: Vec, x: Value, x_step: Value, count: Value, y: Value, y_step: Value, words: Value) -> None:
    """y[i * y_step][:words] = x[i * x_step][:words] for i < count; steps are in words."""
    word = words_of(v)
    source, target = v.pointer(x), v.pointer(y)
    with v.loop(v.idiv(v.iadd(words, v.lanes - 1), v.lanes)) as j:
        first = v.imul(j, v.lanes)
        room = word.mask(v.isub(words, first))
        with v.loop(count) as i:
            value = word.load_masked(source, v.iadd(v.imul(i, x_step), first), room)
            word.store_masked(value, target, v.iadd(v.imul(i, y_step), first), room)


@jit.specialise
def row_converter(FORM: int, LANES: int, LAST: int) -> jit.Kernel:
    """A row of pixels of x to words. x: its first element; x_c, x_pixel: bytes between channels, pixels."""

    def convert_last(
        x: int, x_c: int, x_pixel: int, channels: int, count: int, y: int, words: int, plain: int
    ) -> None:
        each = 4 // MADE[FORM]
        least = (channels + each - 1) // each
        dense = x_pixel == channels * READ[FORM] and words == least
        if plain:
            copy_bytes(y, x, count * x_pixel)
        elif dense and channels % each == 0:  # pixels are neighbours on both sides
            convert_pixels(4, LANES, FORM, x, x_pixel, channels * count, 1, y, words * count)
        elif each > 1 and dense and channels < 4 and count >= LANES // least:
            for i in range(0, count, LANES // least):
                first = min(i, count - LANES // least)
                from_, to = x + first * x_pixel, y + first * words * 4
                if channels == 1:
                    convert_few_neighbours(4, LANES, FORM, 1, from_, to)
                elif channels == 2:
                    convert_few_neighbours(4, LANES, FORM, 2, from_, to)
                else:
                    convert_few_neighbours(4, LANES, FORM, 3, from_, to)
        else:
            convert_pixels(4, LANES, FORM, x, x_pixel, channels, count, y, words)

    def convert_first(
        x: int, x_c: int, x_pixel: int, channels: int, count: int, y: int, words: int, plain: int
    ) -> None:
        each = 4 // MADE[FORM]
        if count >= LANES and (words == 1 or words == 2 or words == 4):
            for i in range(0, count, LANES):
                first = min(i, count - LANES)
                from_, to = x + first * x_pixel, y + first * words * 4
                if words == 1:
                    convert_few(4, LANES, FORM, 1, from_, x_c, channels, to)
                elif words == 2:
                    convert_few(4, LANES, FORM, 2, from_, x_c, channels, to)
                else:
                    convert_few(4, LANES, FORM, 4, from_, x_c, channels, to)
            return
        for k in range(0, words, LANES):
            at = x + min(k * each, channels - 1) * x_c
            for i in range(0, count, LANES):
                first = min(i, max(0, count - LANES))  # whole vectors again, rather than a part of one
                convert_square(
                    4, LANES, FORM, at + first * x_pixel, x_c, channels - k * each, count - first,
                    y + (first * words + k) * 4, words - k, words,
                )  # fmt: skip

    return convert_last if LAST else convert_first


@emitter
def widen_run(v: Vec, FORM: int, x: Value, count: Value, y: Value) -> None:
    """y[:count] = x[:count], float32 of 16 bits; count is at least 1."""
    short, source, target = Integers(v.b, v.lanes, 2), v.pointer(x), v.pointer(y)
    whole = v.idiv(count, v.lanes)
    with v.loop(whole) as i:
        at = v.imul(i, v.lanes)
        v.store(widened_halves(v, FORM == BRAINS, short.load(source, at)), target, at)
    done = v.imul(whole, v.lanes)
    with v.unless_negative(v.isub(v.isub(count, done), 1)), v.choose(v.isub(whole, 1)) as (some, none):
        with some:  # a whole vector again, rather than a part of one
            at = v.isub(count, v.lanes)
            v.store(widened_halves(v, FORM == BRAINS, short.load(source, at)), target, at)
        with none:
            halves = short.load_masked(source, 0, short.mask(count))
            v.store_masked(widened_halves(v, FORM == BRAINS, halves), target, 0, words_of(v).mask(count))


@jit.specialise
def row_widener(FORM: int, LANES: int) -> jit.Kernel:
    """Rows of some channels, channels first, to rows of float32 in planes, behind borders of zeros.

    x: of the first element inside; x_c, y_c: bytes between channels. Of `count` elements of a row, `inside`
    lie in x, behind `before` of the border.
    """

    def widen_rows(
        x: int, x_c: int, channels: int, before: int, inside: int, count: int, y: int, y_c: int
    ) -> None:
        after = count - before - inside
        for c in range(channels):
            row = y + c * y_c
            if before:
                zero_bytes(row, before * 4)
            if inside:
                widen_run(4, LANES, FORM, x + c * x_c, inside, row + before * 4)
            if after:
                zero_bytes(row + (before + inside) * 4, after * 4)

    return widen_rows


@jit.specialise
def pixel_picker(LANES: int) -> jit.Kernel:
    def pick(x: int, x_step: int, count: int, y: int, y_step: int, words: int) -> None:
        pick_pixels(4, LANES, x, x_step, count, y, y_step, words)

    return pick


@jit.specialise
def word_filler(LANES: int) -> jit.Kernel:
    def fill(y: int, count: int, value: int) -> None:
        fill_words(4, LANES, y, count, value)

    return fill


def _behind(v: Vec, pointer: Any, offset: Any) -> Any:
    return Integers(v.b, 1, 1).at(pointer, offset)
