"""Channel-vectorised tiles: what every algorithm shares that works on pixels of `lanes` channels.

Maps lie in memory in either layout; kernels that transform or filter want "pixels", vectors of `lanes`
channels, one after the other. `gather` brings a run of pixels into that order and `scatter` takes it back,
with bias and activation. The layout is only a pair of strides: channels_first has `pixel_stride` 1 and
goes through square transposes, channels_last has `channel_stride` 1 and needs only copies.

Strides and offsets count elements; x, y, source and target are addresses.
"""

from __future__ import annotations

import numpy as np

from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import simd, transpose
from convalgos.cpu.vectors.simd import Value, Vec, carray, pointer


@jit.helper
def copy_strided(target: int, source: int, count: int, stride: int, size: int) -> None:
    """target[i] = source[i * stride] for elements of 4 or 8 bytes."""
    if size == 4:
        to4 = carray(pointer(target), count, np.int32)
        from4 = carray(pointer(source), count * stride, np.int32)
        for i in range(count):
            to4[i] = from4[i * stride]
    else:
        to8 = carray(pointer(target), count, np.int64)
        from8 = carray(pointer(source), count * stride, np.int64)
        for i in range(count):
            to8[i] = from8[i * stride]


@jit.helper
def place_strided(target: int, source: int, count: int, stride: int, size: int) -> None:
    """target[i * stride] = source[i] for elements of 2, 4 or 8 bytes: `copy_strided` turned round."""
    if size == 2:
        to2 = carray(pointer(target), count * stride, np.int16)
        from2 = carray(pointer(source), count, np.int16)
        for i in range(count):
            to2[i * stride] = from2[i]
    elif size == 4:
        to4 = carray(pointer(target), count * stride, np.int32)
        from4 = carray(pointer(source), count, np.int32)
        for i in range(count):
            to4[i * stride] = from4[i]
    else:
        to8 = carray(pointer(target), count * stride, np.int64)
        from8 = carray(pointer(source), count, np.int64)
        for i in range(count):
            to8[i * stride] = from8[i]


@simd.emitter
def copy_pixels(v: Vec, x: Value, x_stride: Value, channels: Value, pixels: Value, target: Value) -> None:
    """target[j][i] = x[j * x_stride + i] for i < channels <= lanes, j < pixels; lanes beyond become 0."""
    source, to = v.pointer(x), v.pointer(target)
    inside = v.mask(channels)
    with v.choose(v.isub(channels, v.lanes)) as (whole, part):  # masks are slow where x is beyond L2
        with whole, v.loop(pixels) as j:
            v.store(v.load(source, v.imul(j, x_stride)), to, v.imul(j, v.lanes))
        with part, v.loop(pixels) as j:
            v.store(v.load_masked(source, v.imul(j, x_stride), inside), to, v.imul(j, v.lanes))


@simd.emitter
def place_pixels(v: Vec, source: Value, channels: Value, pixels: Value, y: Value, y_stride: Value) -> None:
    """y[j * y_stride + i] = source[j][i] for i < channels <= lanes, j < pixels."""
    read, to = v.pointer(source), v.pointer(y)
    inside = v.mask(channels)
    with v.loop(pixels) as j:
        v.store_masked(v.load(read, v.imul(j, v.lanes)), to, v.imul(j, y_stride), inside)


@simd.emitter
def finish_pixels(
    v: Vec, source: Value, bias: Value, relu: Value, channels: Value, pixels: Value, y: Value, y_stride: Value
) -> None:
    """y[j * y_stride + i] = source[j][i] + bias[i] for i < channels <= lanes, at least 0 with relu."""
    read, to = v.pointer(source), v.pointer(y)
    add = v.load_masked(v.pointer(bias), 0, v.mask(channels))
    low = v.lower_bound(relu)
    inside = v.mask(channels)

    def finished(j: Value) -> Value:
        return v.fmax(v.fadd(v.load(read, v.imul(j, v.lanes)), add), low)

    with v.choose(v.isub(channels, v.lanes)) as (whole, part):  # masks are slow where y is beyond L2
        with whole, v.loop(pixels) as j:
            v.store(finished(j), to, v.imul(j, y_stride))
        with part, v.loop(pixels) as j:
            v.store_masked(finished(j), to, v.imul(j, y_stride), inside)


@jit.specialise
def gather(SIZE: int, LANES: int) -> jit.Kernel:
    """x -> target[pixel][lane], for a run of `pixels` pixels and `channels` <= LANES channels.

    Lanes beyond `channels` become 0. `target` needs room for the pixels rounded up to a multiple of LANES;
    the pixels in that room become 0 or stay as they are.
    """

    def kernel(
        x: int, channel_stride: int, pixel_stride: int, channels: int, pixels: int, target: int
    ) -> None:
        if channel_stride == 1:
            copy_pixels(SIZE, LANES, x, pixel_stride, channels, pixels, target)
        elif channels == LANES and pixels >= LANES:
            for start in range(0, pixels, LANES):
                first = min(start, pixels - LANES)  # the last square overlaps the one before
                transpose.load_whole_square(
                    SIZE, LANES, x + first * SIZE, channel_stride, target + first * LANES * SIZE, LANES
                )
        else:
            for first in range(0, pixels, LANES):
                transpose.load_square(
                    SIZE, LANES, x + first * SIZE, channel_stride, channels, min(LANES, pixels - first),
                    target + first * LANES * SIZE, LANES,
                )  # fmt: skip

    return kernel


@jit.specialise
def place(SIZE: int, LANES: int) -> jit.Kernel:
    """y = source[pixel][lane], for a run of `pixels` pixels and `channels` <= LANES: `gather` turned round.

    `source` is read up to `pixels` rounded up to a multiple of LANES; nothing outside the pixels and
    channels asked for is written.
    """

    def kernel(
        source: int, channel_stride: int, pixel_stride: int, channels: int, pixels: int, y: int
    ) -> None:
        if channel_stride == 1:
            place_pixels(SIZE, LANES, source, channels, pixels, y, pixel_stride)
        elif channels == LANES and pixels >= LANES:
            for start in range(0, pixels, LANES):
                first = min(start, pixels - LANES)  # the last square overlaps the one before
                transpose.place_whole_square(
                    SIZE, LANES, source + first * LANES * SIZE, LANES, y + first * SIZE, channel_stride
                )
        else:
            for first in range(0, pixels, LANES):
                transpose.place_square(
                    SIZE, LANES, source + first * LANES * SIZE, LANES,
                    channels, min(LANES, pixels - first), y + first * SIZE, channel_stride,
                )  # fmt: skip

    return kernel


@jit.specialise
def scatter(SIZE: int, LANES: int) -> jit.Kernel:
    """y = source[pixel][lane] + bias, at least 0 with relu, for `pixels` pixels and `channels` <= LANES.

    `bias` holds LANES readable elements. `source` is read up to `pixels` rounded up to a multiple of LANES;
    nothing outside the pixels and channels asked for is written.
    """

    def kernel(
        source: int, bias: int, relu: int, channel_stride: int, pixel_stride: int, channels: int,
        pixels: int, y: int,
    ) -> None:  # fmt: skip
        if channel_stride == 1:
            finish_pixels(SIZE, LANES, source, bias, relu, channels, pixels, y, pixel_stride)
        elif channels == LANES and pixels >= LANES:
            for start in range(0, pixels, LANES):
                first = min(start, pixels - LANES)  # the last square overlaps the one before
                transpose.store_whole_square(
                    SIZE,
                    LANES,
                    source + first * LANES * SIZE,
                    LANES,
                    bias,
                    relu,
                    y + first * SIZE,
                    channel_stride,
                )
        else:
            for first in range(0, pixels, LANES):
                transpose.store_square(
                    SIZE, LANES, source + first * LANES * SIZE, LANES, bias, relu,
                    channels, min(LANES, pixels - first), y + first * SIZE, channel_stride,
                )  # fmt: skip

    return kernel
