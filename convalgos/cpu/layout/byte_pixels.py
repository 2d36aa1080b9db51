"""Pixels of 8-bit channels: gathered as integers of 16 bits, and written from sums of 32 bits.

What `channel_vectors` is to floating-point maps, with the same arguments. `gather_bytes` widens elements;
`scatter_sums` adds an offset to each filter's sums, and narrows them by the output step (`requantise`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import requantise, simd, transpose
from convalgos.cpu.vectors.integers import bytes_of, shorts_of, words_of
from convalgos.cpu.vectors.lanes import store_lanes
from convalgos.cpu.vectors.simd import Value, Vec

WORDS, BYTES, FLOATS = range(3)  # what y holds: sums, 8-bit integers, scaled sums
MIDDLE = 128  # what uint8 elements lose when they are gathered, which makes them as large as int8 ones
STEP_FIELDS = np.dtype([*requantise.STEP_FIELDS.descr, ("multipliers", np.int64)])
"""The output step, and how many bytes behind the offsets of filters their multipliers lie."""


# --- from memory ---------------------------------------------------------------------------------


def _widened(v: Vec, signed: int, shift: int, elements: Any) -> Any:
    """int16 of 8-bit elements, with `shift` bits behind the point."""
    s = shorts_of(v)
    value = bytes_of(v).resized(elements, 2, bool(signed))
    if not signed:
        value = s.sub(value, s.const(MIDDLE))
    return s.left(value, shift) if shift else value


@simd.emitter
def widen_pixels(
    v: Vec, SIGNED: int, SHIFT: int, x: Value, x_stride: Value, channels: Value, pixels: Value, target: Value
) -> None:
    """target[j][i] = x[j * x_stride + i] for i < channels <= lanes, j < pixels; others hold anything."""
    narrow, wide = bytes_of(v), shorts_of(v)
    source, to = v.pointer(x), v.pointer(target)
    inside = narrow.mask(channels)

    def put(j: Any, value: Any) -> None:
        wide.store(_widened(v, SIGNED, SHIFT, value), to, v.imul(j, v.lanes))

    with v.choose(v.isub(channels, v.lanes)) as (whole, part):
        with whole, v.loop(pixels) as j:
            put(j, narrow.load(source, v.imul(j, x_stride)))
        with part, v.loop(pixels) as j:
            put(j, narrow.load_masked(source, v.imul(j, x_stride), inside))


@simd.emitter
def widen_square(
    v: Vec, SIGNED: int, SHIFT: int, x: Value, x_stride: Value, channels: Value, pixels: Value, target: Value
) -> None:
    """target[j][i] = x[i][j] for i < channels <= lanes, j < pixels <= lanes; others hold anything."""
    narrow, wide = bytes_of(v), shorts_of(v)
    source, to = v.pointer(x), v.pointer(target)
    inside, last = narrow.mask(pixels), v.isub(channels, 1)
    rows = []
    for i in range(v.lanes):
        valid = v.b.icmp_signed("<", v.integer(i), channels)
        row = v.b.select(valid, v.integer(i), last)
        value = narrow.load_masked(source, v.imul(row, x_stride), inside)
        rows.append(_widened(v, SIGNED, SHIFT, v.b.select(valid, value, narrow.zero())))
    columns, last = transpose.transpose(wide, rows), v.isub(pixels, 1)
    for j in reversed(range(v.lanes)):  # pixels beyond the last write to it first, and it writes last itself
        wide.store(columns[j], to, v.imul(v.imin(j, last), v.lanes))


@simd.emitter
def widen_whole_square(v: Vec, SIGNED: int, SHIFT: int, x: Value, x_stride: Value, target: Value) -> None:
    """`widen_square` of lanes x lanes, without masks."""
    narrow, wide = bytes_of(v), shorts_of(v)
    row, to, rows = narrow.step(v.pointer(x), 0), v.pointer(target), []
    for i in range(v.lanes):
        row = narrow.step(row, x_stride) if i else row
        rows.append(_widened(v, SIGNED, SHIFT, narrow.load(row)))
    for j, column in enumerate(transpose.transpose(wide, rows)):
        wide.store(column, to, j * v.lanes)


@jit.specialise
def gather_bytes(SIGNED: int, LANES: int, SHIFT: int) -> jit.Kernel:
    """x -> target[pixel][lane] of 16-bit integers, for `pixels` pixels and `channels` <= LANES channels.

    int8 as it is, and uint8 less `MIDDLE`, times 2^SHIFT. Lanes beyond `channels` hold anything.

    Nothing but the pixels is written: what stands beside them is the border of a map, which is not 0 here.
    """

    def kernel(
        x: int, channel_stride: int, pixel_stride: int, channels: int, pixels: int, target: int
    ) -> None:
        if channel_stride == 1:
            widen_pixels(2, LANES, SIGNED, SHIFT, x, pixel_stride, channels, pixels, target)
        elif channels == LANES and pixels >= LANES:
            for start in range(0, pixels, LANES):
                first = min(start, pixels - LANES)  # the last square overlaps the one before
                widen_whole_square(
                    2, LANES, SIGNED, SHIFT, x + first, channel_stride, target + first * LANES * 2
                )
        else:
            for first in range(0, pixels, LANES):
                widen_square(
                    2, LANES, SIGNED, SHIFT, x + first, channel_stride, channels, min(LANES, pixels - first),
                    target + first * LANES * 2,
                )  # fmt: skip

    return kernel


# --- to memory -----------------------------------------------------------------------------------


def _finished(v: Vec, kind: int, bias: Any, step: Any) -> Callable[[Any], Any]:
    """What becomes of sums in a vector of filters: words of 32 bits."""
    words = words_of(v)
    offset = words.load(v.pointer(bias))
    if kind == WORDS:
        return lambda sums: words.add(sums, offset)
    behind = v.table64(step, requantise.STEP_FIELDS.itemsize // 8)
    multiplier = v.load(v.pointer(v.iadd(bias, behind)))
    if kind == FLOATS:
        low = v.broadcast(v.pointer(step), 1)

        def real(sums: Any) -> Any:
            value = requantise.scaled(v, words.add(sums, offset), multiplier)
            return v.b.bitcast(v.fmax(value, low), words.type)

        return real
    by = requantise.scaling(v, multiplier, step)
    return lambda sums: requantise.requantised(v, words.add(sums, offset), by)


def _store(v: Vec, kind: int, words: Any, target: Any, index: Any, mask: Any) -> None:
    """A vector of y from an index of its elements on."""
    if kind == BYTES:
        requantise.store_bytes(v, words, bytes_of(v).at(target, index), mask)
    else:
        store_lanes(words_of(v), words, target, index, mask)


@simd.emitter
def finish_byte_pixels(
    v: Vec, KIND: int, source: Value, bias: Value, step: Value, filters: Value, pixels: Value, y: Value,
    y_stride: Value,
) -> None:  # fmt: skip
    """y[j * y_stride + i] = finished source[j][i] for i < filters <= lanes, j < pixels."""
    words, read, to = words_of(v), v.pointer(source), v.pointer(y)
    finished, inside = _finished(v, KIND, bias, step), words.mask(filters)
    with v.choose(v.isub(filters, v.lanes)) as (whole, part):
        with whole, v.loop(pixels) as j:
            value = finished(words.load(read, v.imul(j, v.lanes)))
            _store(v, KIND, value, to, v.imul(j, y_stride), None)
        with part, v.loop(pixels) as j:
            value = finished(words.load(read, v.imul(j, v.lanes)))
            _store(v, KIND, value, to, v.imul(j, y_stride), inside)


@simd.emitter
def finish_byte_square(
    v: Vec, KIND: int, source: Value, bias: Value, step: Value, filters: Value, pixels: Value, y: Value,
    y_stride: Value,
) -> None:  # fmt: skip
    """y[i * y_stride + j] = finished source[j][i] for i < filters <= lanes, j < pixels <= lanes."""
    words, read, to = words_of(v), v.pointer(source), v.pointer(y)
    finished, inside = _finished(v, KIND, bias, step), words.mask(pixels)
    rows = transpose.transpose(words, [finished(words.load(read, j * v.lanes)) for j in range(v.lanes)])
    last = v.isub(filters, 1)
    for i in reversed(range(v.lanes)):  # rows beyond the last write to it first, and it writes last itself
        _store(v, KIND, rows[i], to, v.imul(v.imin(i, last), y_stride), inside)


@simd.emitter
def finish_whole_byte_square(
    v: Vec, KIND: int, source: Value, bias: Value, step: Value, y: Value, y_stride: Value
) -> None:
    """`finish_byte_square` of lanes x lanes, without masks."""
    words, read, to = words_of(v), v.pointer(source), v.pointer(y)
    finished = _finished(v, KIND, bias, step)
    rows = transpose.transpose(words, [finished(words.load(read, j * v.lanes)) for j in range(v.lanes)])
    for i, row in enumerate(rows):
        _store(v, KIND, row, to, v.imul(i, y_stride), None)


@jit.specialise
def scatter_sums(KIND: int, LANES: int) -> jit.Kernel:
    """y = finished source[pixel][lane] of 32-bit sums, for `pixels` pixels and `channels` <= LANES.

    `bias` are LANES offsets, `step` is the address of `STEP_FIELDS`. `source` is read up to `pixels` rounded
    up to a multiple of LANES.
    """
    SIZE = 1 if KIND == BYTES else 4

    def kernel(
        source: int, bias: int, step: int, channel_stride: int, pixel_stride: int, channels: int,
        pixels: int, y: int,
    ) -> None:  # fmt: skip
        if channel_stride == 1:
            finish_byte_pixels(4, LANES, KIND, source, bias, step, channels, pixels, y, pixel_stride)
        elif channels == LANES and pixels >= LANES:
            for start in range(0, pixels, LANES):
                first = min(start, pixels - LANES)  # the last square overlaps the one before
                finish_whole_byte_square(
                    4, LANES, KIND, source + first * LANES * 4, bias, step, y + first * SIZE, channel_stride
                )
        else:
            for first in range(0, pixels, LANES):
                finish_byte_square(
                    4, LANES, KIND, source + first * LANES * 4, bias, step, channels,
                    min(LANES, pixels - first), y + first * SIZE, channel_stride,
                )  # fmt: skip

    return kernel
