"""Pixels of 16-bit floating-point channels: gathered as float32, and rounded when they are written.

What `channel_vectors` is to maps of float32, with the same arguments: no copy in float32 is
read or written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import simd, transpose
from convalgos.cpu.vectors.integers import rounded_halves, shorts_of, widened_halves
from convalgos.cpu.vectors.simd import Value, Vec


@simd.emitter
def widen_half_pixels(
    v: Vec, BRAIN: int, x: Value, x_stride: Value, channels: Value, pixels: Value, target: Value
) -> None:
    """target[j][i] = x[j * x_stride + i] for i < channels <= lanes, j < pixels; lanes beyond become 0."""
    halves, source, to = shorts_of(v), v.pointer(x), v.pointer(target)
    inside = halves.mask(channels)
    with v.choose(v.isub(channels, v.lanes)) as (whole, part):
        with whole, v.loop(pixels) as j:
            v.store(
                widened_halves(v, BRAIN, halves.load(source, v.imul(j, x_stride))), to, v.imul(j, v.lanes)
            )
        with part, v.loop(pixels) as j:
            value = halves.load_masked(source, v.imul(j, x_stride), inside)
            v.store(widened_halves(v, BRAIN, value), to, v.imul(j, v.lanes))


@simd.emitter
def widen_half_square(
    v: Vec, BRAIN: int, x: Value, x_stride: Value, channels: Value, pixels: Value, target: Value
) -> None:
    """target[j][i] = x[i][j] for i < channels <= lanes, j < pixels <= lanes; lanes beyond become 0.

    Writes whole vectors for all `lanes` pixels.
    """
    halves, source, to = shorts_of(v), v.pointer(x), v.pointer(target)
    inside, last, rows = halves.mask(pixels), v.isub(channels, 1), []
    for i in range(v.lanes):
        valid = v.b.icmp_signed("<", v.integer(i), channels)
        row = v.b.select(valid, v.integer(i), last)
        value = halves.load_masked(source, v.imul(row, x_stride), inside)
        rows.append(v.b.select(valid, widened_halves(v, BRAIN, value), v.zero()))
    for j, column in enumerate(transpose.transpose(v, rows)):
        v.store(column, to, j * v.lanes)


@simd.emitter
def widen_whole_half_square(v: Vec, BRAIN: int, x: Value, x_stride: Value, target: Value) -> None:
    """`widen_half_square` of lanes x lanes, without masks."""
    halves = shorts_of(v)
    row, to, rows = halves.step(v.pointer(x), 0), v.pointer(target), []
    for i in range(v.lanes):
        row = halves.step(row, x_stride) if i else row
        rows.append(widened_halves(v, BRAIN, halves.load(row)))
    for j, column in enumerate(transpose.transpose(v, rows)):
        v.store(column, to, j * v.lanes)


@jit.specialise
def gather_halves(BRAIN: int, LANES: int) -> jit.Kernel:
    """`channel_vectors.gather` from bfloat16, or from float16."""

    def kernel(
        x: int, channel_stride: int, pixel_stride: int, channels: int, pixels: int, target: int
    ) -> None:
        if channel_stride == 1:
            widen_half_pixels(4, LANES, BRAIN, x, pixel_stride, channels, pixels, target)
        elif channels == LANES and pixels >= LANES:
            for start in range(0, pixels, LANES):
                first = min(start, pixels - LANES)  # the last square overlaps the one before
                widen_whole_half_square(
                    4, LANES, BRAIN, x + first * 2, channel_stride, target + first * LANES * 4
                )
        else:
            for first in range(0, pixels, LANES):
                widen_half_square(
                    4, LANES, BRAIN, x + first * 2, channel_stride, channels, min(LANES, pixels - first),
                    target + first * LANES * 4,
                )  # fmt: skip

    return kernel


def _finished(v: Vec, brain: int, bias: Any, relu: Any) -> Callable[[Any], Any]:
    """What becomes of a vector of filters."""
    add, low = v.load(v.pointer(bias)), v.lower_bound(relu)
    return lambda value: rounded_halves(v, brain, v.fmax(v.fadd(value, add), low))


@simd.emitter
def finish_half_pixels(
    v: Vec, BRAIN: int, source: Value, bias: Value, relu: Value, filters: Value, pixels: Value, y: Value,
    y_stride: Value,
) -> None:  # fmt: skip
    """y[j * y_stride + i] = finished source[j][i] for i < filters <= lanes, j < pixels."""
    halves, read, to = shorts_of(v), v.pointer(source), v.pointer(y)
    finished, inside = _finished(v, BRAIN, bias, relu), halves.mask(filters)
    with v.choose(v.isub(filters, v.lanes)) as (whole, part):
        with whole, v.loop(pixels) as j:
            halves.store(finished(v.load(read, v.imul(j, v.lanes))), to, v.imul(j, y_stride))
        with part, v.loop(pixels) as j:
            value = finished(v.load(read, v.imul(j, v.lanes)))
            halves.store_masked(value, to, v.imul(j, y_stride), inside)


@simd.emitter
def finish_half_square(
    v: Vec, BRAIN: int, source: Value, bias: Value, relu: Value, filters: Value, pixels: Value, y: Value,
    y_stride: Value,
) -> None:  # fmt: skip
    """y[i * y_stride + j] = finished source[j][i] for i < filters <= lanes, j < pixels <= lanes."""
    halves, read, to = shorts_of(v), v.pointer(source), v.pointer(y)
    rows = transpose.transpose(v, [v.load(read, j * v.lanes) for j in range(v.lanes)])
    low, inside, last = v.lower_bound(relu), halves.mask(pixels), v.isub(filters, 1)
    for i in reversed(range(v.lanes)):  # rows beyond the last write to it first, and it writes last itself
        row = v.imin(i, last)
        value = v.fmax(v.fadd(rows[i], v.broadcast(v.pointer(bias), i)), low)
        halves.store_masked(rounded_halves(v, BRAIN, value), to, v.imul(row, y_stride), inside)


@jit.specialise
def scatter_halves(BRAIN: int, LANES: int) -> jit.Kernel:
    """`channel_vectors.scatter` to bfloat16, or to float16. `bias` are float32."""

    def kernel(
        source: int, bias: int, relu: int, channel_stride: int, pixel_stride: int, channels: int,
        pixels: int, y: int,
    ) -> None:  # fmt: skip
        if channel_stride == 1:
            finish_half_pixels(4, LANES, BRAIN, source, bias, relu, channels, pixels, y, pixel_stride)
        else:
            for start in range(0, pixels, LANES):
                first = max(0, min(start, pixels - LANES))  # the last square overlaps the one before
                finish_half_square(
                    4, LANES, BRAIN, source + first * LANES * 4, bias, relu, channels,
                    min(LANES, pixels - first), y + first * 2, channel_stride,
                )  # fmt: skip

    return kernel
