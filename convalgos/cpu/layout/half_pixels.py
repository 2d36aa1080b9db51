"""Pixels of 16-bit floating-point channels: gathered as float32, and rounded when they are written.

What `channel_vectors` is to maps of float32, with the same arguments: no copy in float32 is
read or written. FORM tells bfloat16 from float16, see `halves`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import simd, transpose
from convalgos.cpu.vectors.halves import HalfMaps
from convalgos.cpu.vectors.simd import Value, Vec


@simd.emitter
def widen_half_pixels(
    v: Vec, FORM: int, x: Value, x_stride: Value, channels: Value, pixels: Value, target: Value
) -> None:
    """target[j][i] = x[j * x_stride + i] for i < channels <= lanes, j < pixels; lanes beyond become 0."""
    m, source, to = HalfMaps(v, FORM), v.pointer(x), v.pointer(target)
    inside = m.mask(channels)
    with v.choose(v.isub(channels, v.lanes)) as (whole, part):
        with whole, v.loop(pixels) as j:
            v.store(m.load(source, v.imul(j, x_stride)), to, v.imul(j, v.lanes))
        with part, v.loop(pixels) as j:
            v.store(m.load_masked(source, v.imul(j, x_stride), inside), to, v.imul(j, v.lanes))


@simd.emitter
def widen_half_square(
    v: Vec, FORM: int, x: Value, x_stride: Value, channels: Value, pixels: Value, target: Value
) -> None:
    """target[j][i] = x[i][j] for i < channels <= lanes, j < pixels <= lanes; lanes beyond become 0.

    Writes whole vectors for all `lanes` pixels.
    """
    m, source, to = HalfMaps(v, FORM), v.pointer(x), v.pointer(target)
    inside, last, rows = m.mask(pixels), v.isub(channels, 1), []
    for i in range(v.lanes):
        valid = v.b.icmp_signed("<", v.integer(i), channels)
        row = v.b.select(valid, v.integer(i), last)
        value = m.load_masked(source, v.imul(row, x_stride), inside)
        rows.append(v.b.select(valid, value, v.zero()))
    for j, column in enumerate(transpose.transpose(v, rows)):
        v.store(column, to, j * v.lanes)


@simd.emitter
def widen_whole_half_square(v: Vec, FORM: int, x: Value, x_stride: Value, target: Value) -> None:
    """`widen_half_square` of lanes x lanes, without masks."""
    m = HalfMaps(v, FORM)
    row, to, rows = m.step(v.pointer(x), 0), v.pointer(target), []
    for i in range(v.lanes):
        row = m.step(row, x_stride) if i else row
        rows.append(m.load(row))
    for j, column in enumerate(transpose.transpose(v, rows)):
        v.store(column, to, j * v.lanes)


@jit.specialise
def gather_halves(FORM: int, LANES: int) -> jit.Kernel:
    """`channel_vectors.gather` from 16 bits."""

    def kernel(
        x: int, channel_stride: int, pixel_stride: int, channels: int, pixels: int, target: int
    ) -> None:
        if channel_stride == 1:
            widen_half_pixels(4, LANES, FORM, x, pixel_stride, channels, pixels, target)
        elif channels == LANES and pixels >= LANES:
            for start in range(0, pixels, LANES):
                first = min(start, pixels - LANES)  # the last square overlaps the one before
                widen_whole_half_square(
                    4, LANES, FORM, x + first * 2, channel_stride, target + first * LANES * 4
                )
        else:
            for first in range(0, pixels, LANES):
                widen_half_square(
                    4, LANES, FORM, x + first * 2, channel_stride, channels, min(LANES, pixels - first),
                    target + first * LANES * 4,
                )  # fmt: skip

    return kernel


Finish = Callable[[Any, Any], Any]  # (sums, filter): what becomes of a vector of them, or of one filter's


def _store_pixels(
    v: Vec, form: int, finish: Callable[[Any], Any], source: Value, filters: Value, pixels: Value, y: Value,
    y_stride: Value,
) -> None:  # fmt: skip
    m, read, to = HalfMaps(v, form), v.pointer(source), v.pointer(y)
    inside = m.mask(filters)
    with v.choose(v.isub(filters, v.lanes)) as (whole, part):
        with whole, v.loop(pixels) as j:
            m.store(finish(v.load(read, v.imul(j, v.lanes))), to, v.imul(j, y_stride))
        with part, v.loop(pixels) as j:
            value = finish(v.load(read, v.imul(j, v.lanes)))
            m.store_masked(value, to, v.imul(j, y_stride), inside)


def _store_square(
    v: Vec, form: int, finish: Finish, source: Value, filters: Value, pixels: Value, y: Value, y_stride: Value
) -> None:
    m, read, to = HalfMaps(v, form), v.pointer(source), v.pointer(y)
    rows = transpose.transpose(v, [v.load(read, j * v.lanes) for j in range(v.lanes)])
    inside, last = m.mask(pixels), v.isub(filters, 1)
    for i in reversed(range(v.lanes)):  # rows beyond the last write to it first, and it writes last itself
        m.store_masked(finish(rows[i], i), to, v.imul(v.imin(i, last), y_stride), inside)


@simd.emitter
def round_pixels(
    v: Vec, FORM: int, source: Value, filters: Value, pixels: Value, y: Value, y_stride: Value
) -> None:
    """y[j * y_stride + i] = source[j][i] for i < filters <= lanes, j < pixels."""
    _store_pixels(v, FORM, lambda value: value, source, filters, pixels, y, y_stride)


@simd.emitter
def round_square(
    v: Vec, FORM: int, source: Value, filters: Value, pixels: Value, y: Value, y_stride: Value
) -> None:
    """y[i * y_stride + j] = source[j][i] for i < filters <= lanes, j < pixels <= lanes."""
    _store_square(v, FORM, lambda value, i: value, source, filters, pixels, y, y_stride)


@simd.emitter
def round_whole_square(v: Vec, FORM: int, source: Value, y: Value, y_stride: Value) -> None:
    """`round_square` of lanes x lanes, without masks."""
    m, read = HalfMaps(v, FORM), v.pointer(source)
    to = m.step(v.pointer(y), 0)
    rows = transpose.transpose(v, [v.load(read, j * v.lanes) for j in range(v.lanes)])
    for i, row in enumerate(rows):
        to = m.step(to, y_stride) if i else to
        m.store(row, to)


@jit.specialise
def place_halves(FORM: int, LANES: int) -> jit.Kernel:
    """`channel_vectors.place` to 16 bits."""

    def kernel(
        source: int, channel_stride: int, pixel_stride: int, channels: int, pixels: int, y: int
    ) -> None:
        if channel_stride == 1:
            round_pixels(4, LANES, FORM, source, channels, pixels, y, pixel_stride)
        elif channels == LANES and pixels >= LANES:
            for start in range(0, pixels, LANES):
                first = min(start, pixels - LANES)  # the last square overlaps the one before
                round_whole_square(4, LANES, FORM, source + first * LANES * 4, y + first * 2, channel_stride)
        else:
            for first in range(0, pixels, LANES):
                round_square(
                    4, LANES, FORM, source + first * LANES * 4, channels, min(LANES, pixels - first),
                    y + first * 2, channel_stride,
                )  # fmt: skip

    return kernel
