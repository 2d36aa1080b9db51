"""Rows of bytes with their padding, one behind the other: what `window_sums` reads.

Rows share the padding between them. They are written in whole vectors, the last columns first: what is too
much of these lies in the first columns of the next row, which are written later.
"""

from __future__ import annotations

import numpy as np

from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.integers import Integers, words_of
from convalgos.cpu.vectors.simd import Value, Vec, call, carray, pointer

# A band of x and where it goes; all of it in bytes, `pad` and `flip` are bytes in all eight of a word. `turn`
# is a kernel of `byte_turns`, for pixels that lie `x_pixel` apart.
ROW_BAND_FIELDS = fields(
    "x channels x_channel x_pixel slices slice slice_step depth parts phases height width first vectors pad "
    "flip target pitch plane turn"
)
COPIED, LOADED, TURNED = range(3)  # how rows are placed: byte by byte, by vectors, from channels_last
# Rows of a band, of one phase of the stride: where the first that lies in the map is in x, how many do, how
# many of padding lie before them and behind, and where the first of all goes.
PHASE_ROWS = fields("x above inside below target")


@simd.emitter
def place_rows(v: Vec, WAY: int, band: Value, x: Value, rows: Value, inside: Value, target: Value) -> None:
    """Some rows of all channels (see `ROW_BAND_FIELDS`), a vector of columns at a time.

    Args:
        WAY: whether vectors are LOADED; else all rows become padding.
        x, rows: the first row of x, and a `PHASE_ROWS`, but for `inside`.
    """
    a, r = v.record(band, ROW_BAND_FIELDS), v.record(rows, PHASE_ROWS)
    bytes_, words = Integers(v.b, 4 * v.lanes, 1), words_of(v)
    padding, changed = (v.b.bitcast(words.spread(value), bytes_.type) for value in (a.pad, a.flip))
    empty = bytes_.bit_xor(padding, changed)
    below = v.isub(v.iadd(r.below, r.inside), inside if WAY == LOADED else 0)
    x_row = v.imul(a.width, a.phases)
    with v.loop(a.vectors) as done:
        i = v.isub(v.isub(a.vectors, 1), done)
        begin = v.iadd(a.first, v.imul(i, bytes_.lanes))
        mask = v.b.and_(bytes_.mask(v.isub(a.width, begin)), v.b.not_(bytes_.mask(v.isub(0, begin))))
        column = bytes_.at(v.pointer(target), v.imul(i, bytes_.lanes))
        with v.loop(a.channels) as c:
            row = bytes_.at(bytes_.pointer(x), v.iadd(v.imul(c, a.x_channel), begin))
            above = bytes_.at(column, v.imul(c, v.imul(a.plane, a.slices)))
            with v.loop(r.above) as n:
                bytes_.store(empty, above, v.imul(n, a.pitch))
            within = bytes_.at(above, v.imul(r.above, a.pitch))
            with v.loop(inside if WAY == LOADED else v.integer(0)) as n:
                value = v.b.select(mask, bytes_.load_masked(row, v.imul(n, x_row), mask), padding)
                bytes_.store(bytes_.bit_xor(value, changed), within, v.imul(n, a.pitch))
            behind = bytes_.at(within, v.imul(inside if WAY == LOADED else 0, a.pitch))
            with v.loop(below) as n:
                bytes_.store(empty, behind, v.imul(n, a.pitch))


@jit.specialise
def place_rows_of_band(LANES: int, WAY: int) -> jit.Kernel:
    """The rows of a band: [channel][slice][phase of the stride][row][column]."""

    def place_rows_of_band(band: int) -> None:
        b = carray(pointer(band), 1, ROW_BAND_FIELDS)[0]
        for t in range(b.slices):
            z = b.slice + t * b.slice_step
            within = z >= 0 and z < b.depth
            plane = b.x + (z * b.height * b.width * b.x_pixel if within else 0)
            for phase in range(b.phases):
                at = b.parts + phase * PHASE_ROWS.itemsize
                rows = carray(pointer(at), 1, PHASE_ROWS)[0]
                inside = rows.inside if within else 0
                target = b.target + t * b.plane + rows.target
                x = plane + rows.x * b.x_pixel
                place_rows(4, LANES, WAY, band, x, at, inside, target)
                for n in range(0 if WAY == LOADED else inside):
                    row = x + n * b.phases * b.width * b.x_pixel
                    place_row(WAY, band, row, target + (rows.above + n) * b.pitch)

    return place_rows_of_band


@jit.helper
def place_row(WAY: int, band: int, x: int, target: int) -> None:
    """What of a row lies in the map, of all channels."""
    b = carray(pointer(band), 1, ROW_BAND_FIELDS)[0]
    low = max(0, -b.first)
    count = min(b.pitch, b.width - b.first) - low
    source, to = x + (b.first + low) * b.x_pixel, target + low
    if WAY == TURNED:
        call(b.turn, (source, b.x_pixel, count, b.channels, b.flip, to, b.plane * b.slices))
    else:
        for _ in range(b.channels):
            bytes_from = carray(pointer(source), count, np.uint8)
            bytes_to = carray(pointer(to), count, np.uint8)
            for i in range(count):
                bytes_to[i] = bytes_from[i] ^ (b.flip & 255)
            source += b.x_channel
            to += b.plane * b.slices
