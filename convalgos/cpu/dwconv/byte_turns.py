"""Bytes of pixels turned into bytes of channels, and back: channels_last maps as rows of one channel."""

from __future__ import annotations

from typing import Any

from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import simd, transpose
from convalgos.cpu.vectors.integers import Integers, words_of
from convalgos.cpu.vectors.packing import in_order
from convalgos.cpu.vectors.simd import Value, Vec

ROWS = 16  # of bytes that are turned at once, by as many columns as vectors of words have lanes


@simd.emitter
def turn_byte_square(
    v: Vec, WHOLE: int, source: Value, source_row: Value, rows: Value, columns: Value, flip: Value,
    target: Value, target_row: Value,
) -> None:  # fmt: skip
    """target[j][i] = source[i][j] ^ flip for i < rows <= ROWS, j < columns <= lanes; of all, with WHOLE."""
    words, bytes_, piece = words_of(v), Integers(v.b, 4 * v.lanes, 1), Integers(v.b, ROWS, 1)
    narrow = Integers(v.b, v.lanes, 1)
    first, to = bytes_.pointer(source), bytes_.pointer(target)
    inside, kept = narrow.mask(columns), piece.mask(rows)
    lines = []
    for i in range(ROWS):
        row = v.integer(i) if WHOLE else v.imin(i, v.isub(rows, 1))
        line = bytes_.at(first, v.imul(row, source_row))
        lines.append(narrow.load(line) if WHOLE else narrow.load_masked(line, 0, inside))
    quarters = []
    for i in range(0, ROWS, 4):
        value = _joined(v, _joined(v, lines[i], lines[i + 1]), _joined(v, lines[i + 2], lines[i + 3]))
        order = [row * v.lanes + column for column in range(v.lanes) for row in range(4)]
        quarters.append(v.b.bitcast(v.shuffle(value, value, order), words.type))
    changed = words.spread(flip)
    turned = [v.b.bitcast(v.b.xor(q, changed), bytes_.type) for q in in_order(words, quarters, 1)]
    for j in reversed(range(v.lanes)):  # those beyond the last write to it first, and it writes last itself
        number, place = divmod(j, v.lanes // 4)
        part = v.shuffle(turned[number], turned[number], range(place * ROWS, (place + 1) * ROWS))
        row = v.integer(j) if WHOLE else v.imin(j, v.isub(columns, 1))
        line = bytes_.at(to, v.imul(row, target_row))
        if WHOLE:
            piece.store(part, line)
        else:
            piece.store_masked(part, line, 0, kept)


def _joined(v: Vec, a: Any, b: Any) -> Any:
    return v.shuffle(a, b, range(2 * a.type.count))


@simd.emitter
def turn_wide_square(
    v: Vec, source: Value, source_row: Value, flip: Value, target: Value, target_row: Value
) -> None:
    """`turn_byte_square` of ROWS rows and as many columns as vectors have bytes.

    Each 16 bytes are squares of their own: bytes of two rows by turns, of the first and the ninth and so on,
    four times.
    """
    words, bytes_, piece = words_of(v), Integers(v.b, 4 * v.lanes, 1), Integers(v.b, ROWS, 1)
    first, to = bytes_.pointer(source), bytes_.pointer(target)
    changed = v.b.bitcast(words.spread(flip), bytes_.type)
    lines = [
        bytes_.bit_xor(bytes_.load(bytes_.at(first, v.imul(i, source_row))), changed) for i in range(ROWS)
    ]
    half = ROWS // 2
    orders = [
        [
            block + low + i + side * bytes_.lanes
            for block in range(0, bytes_.lanes, ROWS)
            for i in range(half)
            for side in (0, 1)
        ]
        for low in (0, half)
    ]
    for _ in range(ROWS.bit_length() - 1):
        lines = [v.shuffle(lines[i], lines[i + half], order) for i in range(half) for order in orders]
    for j, line in enumerate(lines):
        for block in range(0, bytes_.lanes, ROWS):
            part = v.shuffle(line, line, range(block, block + ROWS))
            piece.store(part, bytes_.at(to, v.imul(block + j, target_row)))


@jit.helper
def turn_wide_blocks(
    LANES: int, source: int, source_row: int, rows: int, columns: int, flip: int, target: int, target_row: int
) -> None:
    """Of at least one; the last ones overlap those before."""
    for j in range(0, columns, 4 * LANES):
        for i in range(0, rows, ROWS):
            at_i, at_j = min(i, rows - ROWS), min(j, columns - 4 * LANES)
            turn_wide_square(
                4, LANES, source + at_i * source_row + at_j, source_row, flip,
                target + at_j * target_row + at_i, target_row,
            )  # fmt: skip


@jit.specialise
def turn_bytes(LANES: int) -> jit.Kernel:
    """target[j][i] = source[i][j] ^ flip, of any size; rows lie `source_row` and `target_row` bytes apart."""
    HALF = LANES // 2

    def turn_bytes(
        source: int, source_row: int, rows: int, columns: int, flip: int, target: int, target_row: int
    ) -> None:
        if rows >= ROWS and columns >= 4 * LANES:
            turn_wide_blocks(LANES, source, source_row, rows, columns, flip, target, target_row)
            return
        if rows >= ROWS and columns >= 4 * HALF:
            turn_wide_blocks(HALF, source, source_row, rows, columns, flip, target, target_row)
            return
        whole = rows >= ROWS and columns >= LANES
        for i in range(0, rows, ROWS):
            for j in range(0, columns, LANES):
                if whole:
                    at_i, at_j = min(i, rows - ROWS), min(j, columns - LANES)
                    turn_byte_square(
                        4, LANES, 1, source + at_i * source_row + at_j, source_row, ROWS, LANES, flip,
                        target + at_j * target_row + at_i, target_row,
                    )  # fmt: skip
                else:
                    turn_byte_square(
                        4, LANES, 0, source + i * source_row + j, source_row, min(ROWS, rows - i),
                        min(LANES, columns - j), flip, target + j * target_row + i, target_row,
                    )  # fmt: skip

    return turn_bytes


@jit.specialise
def turn_words(LANES: int) -> jit.Kernel:
    """target[j][i] = source[i][j] of words; rows lie so many bytes apart. (`flip` is not looked at.)

    Vectors of `LANES` rows of the source are read, and written within `rows` and `columns`.
    """

    def turn_words(
        source: int, source_row: int, rows: int, columns: int, flip: int, target: int, target_row: int
    ) -> None:
        for i in range(0, rows, LANES):
            for j in range(0, columns, LANES):
                transpose.place_square(
                    4, LANES, source + i * source_row + j * 4, source_row // 4, min(LANES, columns - j),
                    min(LANES, rows - i), target + j * target_row + i * 4, target_row // 4,
                )  # fmt: skip

    return turn_words
