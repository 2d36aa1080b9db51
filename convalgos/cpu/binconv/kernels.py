"""Sums of +1 and -1 by counting bits: where x and w differ, the product is -1.

A sum of n products is n - 2 popcount(x xor w) over their words. A tile of filters by vectors of pixels counts
in registers; what it writes begins from a table, which holds n, less what padding of 0 must not add.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import arguments
from convalgos.cpu.vectors.simd import Value, Vec, call, carray, emitter, function_of, ir, pointer
from convalgos.cpu.vectors.transpose import transpose

SUM_ARGUMENTS = arguments(
    "n groups filters slices pixels tiles tile_filters tile_vectors chunks vectors taps tasks maps map_n "
    "map_group slice_words begin begin_pattern scale offsets starts places counts patterns slice_patterns "
    "y_n y_k y_pixel sum_tile"
)


@emitter
def binary_tile(
    v: Vec, VECTORS: int, FLOATS: int, LAST: int, x: Value, starts: Value, offsets: Value, taps: Value,
    w: Value, begin: Value, begin_pattern: Value, patterns: Value, bias: Value, scale: Value, relu: Value,
    filters: Value, y: Value, y_stride: Value, places: Value, counts: Value,
) -> None:  # fmt: skip
    """y of as many filters as lanes and of VECTORS vectors of pixels: begin[pattern][i] - 2 differences.

    Differences of filter i are counted over taps t, of words x[starts[j] + offsets[t]] and w[t][i]. Then
    bias[i] is added, with FLOATS times scale[i], at least 0 with relu. y lies in rows of filters, `y_stride`
    elements apart, or with LAST in pixels that are `y_stride` apart.
    """
    words = v.words()
    base, weights = v.pointer(x), v.pointer(w)
    inputs = [v.at(base, v.table64(starts, j)) for j in range(VECTORS)]
    zero = words.zero()
    sums = [[words.register(zero) for _ in inputs] for _ in range(v.lanes)]
    count = function_of(v.b, ir.FunctionType(words.type, [words.type]), f"llvm.ctpop.v{v.lanes}i64")
    with v.loop(taps) as t:
        at, tap = v.table64(offsets, t), v.imul(t, v.lanes)
        pixels = [words.load(start, at) for start in inputs]
        for i, row in enumerate(sums):
            weight = words.broadcast(weights, v.iadd(tap, i))
            for total, pixel in zip(row, pixels, strict=True):
                differing = v.b.call(count, [v.b.xor(pixel, weight)])
                total.set(v.b.add(total.value, differing))
    half = Vec(v.b, v.lanes, 4)
    values = [_finished(half, row, i, FLOATS, (begin, begin_pattern, patterns, bias, scale, relu))
              for i, row in enumerate(sums)]  # fmt: skip
    _store(half, values, LAST, filters, (y, y_stride, places, counts))


def _finished(v: Vec, row: Any, i: int, floats: int, given: tuple[Any, ...]) -> list[Any]:
    """The outputs of filter i of a tile, as vectors of 32 bits of the type of y seen as floats."""
    begin, begin_pattern, patterns, bias, scale, relu = given
    whole = v.words()
    table = v.pointer(begin)
    added = whole.broadcast(v.pointer(bias), i)
    factor = v.broadcast(v.pointer(scale), i) if floats else None
    low = v.b.select(v.b.icmp_signed("!=", relu, v.integer(0)), whole.zero(), _least(whole))
    found = []
    for j, total in enumerate(row):
        pattern = v.imul(v.table64(patterns, j), begin_pattern)
        start = whole.load(table, v.iadd(pattern, i * v.lanes))
        differing = v.b.trunc(total.value, whole.type)
        value = v.b.add(v.b.sub(start, v.b.add(differing, differing)), added)
        if floats:
            value = v.fmul(v.b.sitofp(value, v.type), factor)
            found.append(v.fmax(value, v.lower_bound(relu)))
        else:
            value = v.b.select(v.b.icmp_signed(">", value, low), value, low)
            found.append(v.floats(value))
    return found


def _least(v: Vec) -> Any:
    """The smallest integers."""
    return ir.Constant(v.type, [-(2**31)] * v.lanes)


def _store(v: Vec, values: list[list[Any]], last: int, filters: Any, where: tuple[Any, ...]) -> None:
    """Values of [filter][vector of pixels] to y."""
    y, y_stride, places, counts = where
    target = v.pointer(y)
    for j in range(len(values[0])):
        count, place = v.table64(counts, j), v.table64(places, j)
        column = [row[j] for row in values]
        if last:
            at, rows, width = v.at(target, v.imul(place, y_stride)), count, filters
            column = transpose(v, column)
        else:
            at, rows, width = v.at(target, place), filters, count
        with v.choose(v.isub(v.imin(count, filters), v.lanes)) as (whole, part):
            with whole:
                for i, value in enumerate(column):
                    v.store(value, at, v.imul(y_stride, i))
            with part:
                for i, value in enumerate(column):
                    inside = v.b.select(v.b.icmp_signed(">", rows, v.integer(i)), width, v.integer(0))
                    v.store_masked(value, at, v.imul(y_stride, i), v.mask(inside))


@jit.specialise
def sum_binary_tile(LANES: int, VECTORS: int, FLOATS: int, LAST: int) -> Callable[..., None]:
    """`binary_tile` for `tiles` tiles of vectors, one behind the other."""

    def sum_binary_tile(
        tiles: int, x: int, starts: int, offsets: int, taps: int, w: int, begin: int, begin_pattern: int,
        patterns: int, bias: int, scale: int, relu: int, filters: int, y: int, y_stride: int, places: int,
        counts: int,
    ) -> None:  # fmt: skip
        for tile in range(tiles):
            at = tile * VECTORS * 8
            binary_tile(
                8, LANES, VECTORS, FLOATS, LAST, x, starts + at, offsets, taps, w, begin, begin_pattern,
                patterns + at, bias, scale, relu, filters, y, y_stride, places + at, counts + at,
            )  # fmt: skip

    return sum_binary_tile


@jit.specialise
def sum_binary() -> Callable[..., None]:
    """Images x slices x groups x chunks of vectors x tiles of filters, in this order, dealt to the tasks."""

    def sum_binary(args: int, task: int) -> None:
        a = carray(pointer(args), 1, SUM_ARGUMENTS)[0]
        total = a.n * a.slices * a.groups * a.chunks * a.tiles
        slice_patterns = carray(pointer(a.slice_patterns), a.slices, np.int64)
        tiles = (a.vectors + a.tile_vectors - 1) // a.tile_vectors
        for item in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            tile, chunk = item % a.tiles, item // a.tiles % a.chunks
            group = item // (a.tiles * a.chunks) % a.groups
            slice_ = item // (a.tiles * a.chunks * a.groups) % a.slices
            n = item // (a.tiles * a.chunks * a.groups * a.slices)
            first, end = tiles * chunk // a.chunks, tiles * (chunk + 1) // a.chunks
            at = first * a.tile_vectors * 8
            k = tile * a.tile_filters
            packed = group * a.tiles + tile  # tiles of filters before it
            filter = group * a.filters + k
            begin = (slice_patterns[slice_] * a.begin_pattern + packed * a.tile_filters * a.tile_filters) * 4
            y = a.y + (n * a.y_n + filter * a.y_k + slice_ * a.pixels * a.y_pixel) * 4
            call(
                a.sum_tile,
                (
                    end - first, a.maps + (n * a.map_n + group * a.map_group + slice_ * a.slice_words) * 8,
                    a.starts + at, a.offsets, a.taps, a.w + packed * a.taps * a.tile_filters * 8,
                    a.begin + begin, a.begin_pattern, a.patterns + at, a.bias + filter * 4,
                    a.scale + filter * 4, a.relu, min(a.tile_filters, a.filters - k), y,
                    max(a.y_k, a.y_pixel), a.places + at, a.counts + at,
                ),
            )  # fmt: skip

    return sum_binary
