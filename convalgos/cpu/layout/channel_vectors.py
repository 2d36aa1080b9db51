"""Channel-vectorised tiles: what every algorithm shares that works on pixels of `lanes` channels.

Maps lie in memory in either layout; kernels that transform or filter want "pixels", vectors of `lanes`
channels, one after the other. `gather` brings a run of pixels into that order and `scatter` takes it back,
with bias and activation. The layout is only a pair of strides: channels_first has `pixel_stride` 1 and
goes through square transposes, channels_last has `channel_stride` 1 and needs only copies.

An `Axis` says how one dimension of the map is cut into tiles that overlap by the kernel; stride and
dilation are only steps between the elements of a tile.

Strides and offsets count elements; x, y, source and target are addresses.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import gcd

import numpy as np

from convalgos.core.problem import ConvProblem
from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import simd, transpose
from convalgos.cpu.vectors.simd import carray, pointer


@dataclass(frozen=True)
class Axis:
    """One dimension of a map in tiles of `outputs` outputs, made from `outputs + taps - 1` inputs.

    A stride splits kernel and input into `phases`, each a convolution of stride 1 with `taps` taps, to be
    summed. A dilation splits the outputs into `lattices`, each with tiles of its own; where both share a
    divisor it cancels. Tile t of a lattice l holds outputs (t * outputs + i) * lattices + l, and needs in
    phase f the inputs (t * outputs + i) * step + l * stride + f * dilation - pad.
    """

    size: int  # inputs of the map
    size_out: int
    pad: int  # on the low side
    stride: int
    dilation: int
    phases: int
    lattices: int
    taps: int  # of a phase
    outputs: int  # of a tile

    @property
    def step(self) -> int:
        """Inputs between neighbours in a tile."""
        return self.stride * self.lattices

    @property
    def tiles(self) -> int:
        """Of one lattice."""
        return -(-self.size_out // (self.outputs * self.lattices))

    @property
    def tail(self) -> int:
        """Inputs from the first to one behind the last that lattices and phases add to a tile."""
        return (self.lattices - 1) * self.stride + (self.phases - 1) * self.dilation + 1

    def span(self, tiles: int) -> int:
        """Inputs from the first to one behind the last under some neighbouring tiles."""
        return (tiles * self.outputs + self.taps - 2) * self.step + self.tail


def axis(problem: ConvProblem, dimension: int, outputs: int) -> Axis:
    """The cut of a spatial dimension of a problem into tiles of `outputs` outputs."""
    taps, stride, dilation = (v[dimension] for v in (problem.kernel, problem.stride, problem.dilation))
    if taps == 1:
        dilation = stride  # there is no second tap that it could move
    shared = gcd(stride, dilation)
    phases = stride // shared
    return Axis(
        size=problem.spatial[dimension],
        size_out=problem.spatial_out[dimension],
        pad=problem.padding[dimension][0],
        stride=stride,
        dilation=dilation,
        phases=phases,
        lattices=dilation // shared,
        taps=-(-taps // phases),
        outputs=outputs,
    )


@lru_cache(512)
def plane(problem: ConvProblem) -> tuple[Axis, Axis]:
    """The rows and columns of the plane of a problem, in tiles of one output."""
    p = problem.as_3d
    return axis(p, 1, 1), axis(p, 2, 1)


def plane_taps(problem: ConvProblem) -> tuple[int, int]:
    """Taps of a phase along the rows and columns of the plane of a problem."""
    rows, columns = plane(problem)
    return rows.taps, columns.taps


@jit.helper
def copy_strided(target, source, count, stride, size):
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
def place_strided(target, source, count, stride, size):
    """target[i * stride] = source[i] for elements of 4 or 8 bytes: `copy_strided` turned round."""
    if size == 4:
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
def copy_pixels(v, x, x_stride, channels, pixels, target):
    """target[j][i] = x[j * x_stride + i] for i < channels <= lanes, j < pixels; lanes beyond become 0."""
    source, to = v.pointer(x), v.pointer(target)
    inside = v.mask(channels)
    with v.choose(v.minus(channels, v.lanes)) as (whole, part):  # masks are slow where x is beyond L2
        with whole, v.loop(pixels) as j:
            v.store(v.load(source, v.mul(j, x_stride)), to, v.mul(j, v.lanes))
        with part, v.loop(pixels) as j:
            v.store(v.load_masked(source, v.mul(j, x_stride), inside), to, v.mul(j, v.lanes))


@simd.emitter
def place_pixels(v, source, channels, pixels, y, y_stride):
    """y[j * y_stride + i] = source[j][i] for i < channels <= lanes, j < pixels."""
    read, to = v.pointer(source), v.pointer(y)
    inside = v.mask(channels)
    with v.loop(pixels) as j:
        v.store_masked(v.load(read, v.mul(j, v.lanes)), to, v.mul(j, y_stride), inside)


@simd.emitter
def finish_pixels(v, source, bias, relu, channels, pixels, y, y_stride):
    """y[j * y_stride + i] = source[j][i] + bias[i] for i < channels <= lanes, at least 0 with relu."""
    read, to = v.pointer(source), v.pointer(y)
    add = v.load_masked(v.pointer(bias), 0, v.mask(channels))
    low = v.floor(relu)
    inside = v.mask(channels)

    def finished(j):
        return v.at_least(v.add(v.load(read, v.mul(j, v.lanes)), add), low)

    with v.choose(v.minus(channels, v.lanes)) as (whole, part):  # masks are slow where y is beyond L2
        with whole, v.loop(pixels) as j:
            v.store(finished(j), to, v.mul(j, y_stride))
        with part, v.loop(pixels) as j:
            v.store_masked(finished(j), to, v.mul(j, y_stride), inside)


@jit.specialise
def gather(SIZE, LANES):
    """x -> target[pixel][lane], for a run of `pixels` pixels and `channels` <= LANES channels.

    Lanes beyond `channels` become 0. `target` needs room for the pixels rounded up to a multiple of LANES;
    the pixels in that room become 0 or stay as they are.
    """

    def kernel(x, channel_stride, pixel_stride, channels, pixels, target):
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
def place(SIZE, LANES):
    """y = source[pixel][lane], for a run of `pixels` pixels and `channels` <= LANES: `gather` turned round.

    `source` is read up to `pixels` rounded up to a multiple of LANES; nothing outside the pixels and
    channels asked for is written.
    """

    def kernel(source, channel_stride, pixel_stride, channels, pixels, y):
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
def scatter(SIZE, LANES):
    """y = source[pixel][lane] + bias, at least 0 with relu, for `pixels` pixels and `channels` <= LANES.

    `bias` holds LANES readable elements. `source` is read up to `pixels` rounded up to a multiple of LANES;
    nothing outside the pixels and channels asked for is written.
    """

    def kernel(source, bias, relu, channel_stride, pixel_stride, channels, pixels, y):
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
