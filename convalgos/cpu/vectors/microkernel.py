"""The register-blocked micro-kernels: sums of products that stay in registers over all taps.

`conv_tile` is the heart of the library: rows of outputs by vectors of filters, over a table of input offsets,
so that kernel size, stride, dilation and number of dimensions are only table content. `pixel_tile` is the
same with vectors along rows of pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from convalgos.cpu.vectors.halves import maps
from convalgos.cpu.vectors.simd import LINE, Register, Value, Vec, emitter

# Rows of outputs that fit the registers beside a number of vectors of filters: {vectors: rows}. More rows
# than 8 run out of address registers even where vector registers are left.
REGISTER_TILES = {
    64: {4: 6, 3: 8, 2: 8, 1: 8},  # 32 registers; measured on Zen 5
    32: {2: 6, 1: 8},  # 16 registers: 6 x 4 spills and halves the speed
    16: {2: 4, 1: 6},
}
# The same of packed rows; tiles have more than two thirds as many.
PACKED_TILES = {64: {4: 6, 3: 8}, 32: {2: 6}, 16: {2: 4}}
# Taps ahead of a product: channels of a map lie too far apart for a processor to foresee. With 4, 8, 16 and
# 24 of them 1x1 layers took 0.90, 0.88, 0.91 and 0.91 of the time on a Xeon (Granite Rapids), down to 0.70.
PREFETCH_TAPS = 8


def padded_for_prefetch(offsets: np.ndarray) -> np.ndarray:
    """A table of offsets (..., taps) with PREFETCH_TAPS more behind each row, which are only asked for."""
    *rows, taps = offsets.shape
    padded = np.zeros((*rows, taps + PREFETCH_TAPS), offsets.dtype)
    padded[..., :taps] = offsets
    if taps:
        padded[..., taps:] = offsets[..., -1:]
    return padded


@emitter
def conv_tile(
    v: Vec, ROWS: int, VECTORS: int, ACCUMULATE: int, PREFETCH_TAPS: int, x: Value, rows: Value,
    offsets: Value, w: Value, taps: Value, y: Value, y_stride: Value, ahead: Value,
) -> None:  # fmt: skip
    """y[i][:] (+)= sum_t x[rows[i] + offsets[t]] * w[t][:], for i < ROWS.

    w: (taps, VECTORS*lanes); y: rows of VECTORS*lanes, y_stride apart; rows, offsets: int64 tables. For
    each tap one vector from `ahead` on, which may be any address, is prefetched into L2, and with
    PREFETCH_TAPS the row of x that is read so many taps later into L1: `offsets` goes on for those (see
    `padded_for_prefetch`). So is the line behind the last row into L2, where the next rows are neighbours.
    """
    base, later = v.pointer(x), v.pointer(ahead)
    inputs = [v.at(base, v.table64(rows, i)) for i in range(ROWS)]

    def offset(t: Any) -> Any:
        v.prefetch(later, v.imul(t, v.lanes))
        if PREFETCH_TAPS:
            v.prefetch(v.at(inputs[0], v.table64(offsets, v.iadd(t, PREFETCH_TAPS))), near=True)
            v.prefetch(v.at(inputs[-1], v.iadd(v.table64(offsets, t), LINE // v.size)))
        return v.table64(offsets, t)

    _tile(v, VECTORS, ACCUMULATE, inputs, offset, w, taps, y, y_stride)


@emitter
def added_tile(
    v: Vec, ROWS: int, VECTORS: int, x: Value, rows: Value, offsets: Value, w: Value, taps: Value, y: Value,
    y_stride: Value, accumulate: Value,
) -> None:  # fmt: skip
    """`conv_tile` that finds out whether to add to y when it runs, and asks for nothing ahead."""
    inputs = [v.at(v.pointer(x), v.table64(rows, i)) for i in range(ROWS)]
    _tile(v, VECTORS, accumulate, inputs, lambda t: v.table64(offsets, t), w, taps, y, y_stride)


@emitter
def gemm_tile(
    v: Vec, ROWS: int, VECTORS: int, ACCUMULATE: int, a: Value, a_stride: Value, w: Value, taps: Value,
    y: Value, y_stride: Value,
) -> None:  # fmt: skip
    """y[i][:] (+)= sum_t a[i][t] * w[t][:], for i < ROWS: `conv_tile` without tables."""
    base = v.pointer(a)
    inputs = [v.at(base, v.imul(a_stride, i)) for i in range(ROWS)]
    _tile(v, VECTORS, ACCUMULATE, inputs, lambda t: t, w, taps, y, y_stride)


@emitter
def packed_tile(
    v: Vec, ROWS: int, VECTORS: int, ACCUMULATE: int, x: Value, w: Value, taps: Value, y: Value,
    y_stride: Value, ahead: Value,
) -> None:  # fmt: skip
    """y[i][:] (+)= sum_t x[t][i] * w[t][:], for i < ROWS: `conv_tile` of packed rows (taps, ROWS)."""
    base, later = v.pointer(x), v.pointer(ahead)

    def offset(t: Any) -> Any:
        v.prefetch(later, v.imul(t, v.lanes))
        return v.imul(t, ROWS)

    _tile(v, VECTORS, ACCUMULATE, [v.at(base, i) for i in range(ROWS)], offset, w, taps, y, y_stride)


def begun_sums(v: Vec, outputs: list[Any], vectors: int, accumulate: int | Value) -> list[list[Register]]:
    """The sums of a tile: zeros, or what so many vectors of each row of outputs hold where `accumulate` is 1.

    Known when the kernel is compiled, or only when it runs.
    """
    sums = [[v.register(v.zero()) for _ in range(vectors)] for _ in outputs]

    def load() -> None:
        for row, totals in zip(outputs, sums, strict=True):
            for j, total in enumerate(totals):
                total.set(v.load(row, j * v.lanes))

    if not isinstance(accumulate, int):
        with v.unless_negative(v.isub(accumulate, 1)):
            load()
    elif accumulate:
        load()
    return sums


def _tile(
    v: Vec,
    vectors: int,
    accumulate: int | Value,
    inputs: list[Any],
    offset: Callable[[Any], Any],
    w: Any,
    taps: Any,
    y: Any,
    y_stride: Any,
) -> None:
    wide = range(vectors)
    filters = v.pointer(w)
    outputs = [v.at(v.pointer(y), v.imul(y_stride, i)) for i in range(len(inputs))]
    sums = begun_sums(v, outputs, vectors, accumulate)
    with v.loop(taps) as t:
        at = offset(t)
        tap = v.at(filters, v.imul(t, vectors * v.lanes))
        weights = [v.load(tap, j * v.lanes) for j in wide]
        for row, input_ in zip(sums, inputs, strict=True):
            value = v.broadcast(input_, at)
            for total, weight in zip(row, weights, strict=True):
                total.set(v.fma(value, weight, total.value))
    for row, target in zip(sums, outputs, strict=True):
        for j, total in enumerate(row):
            v.store(total.value, target, j * v.lanes)


@emitter
def pixel_tile(
    v: Vec, FORM: int, ROWS: int, VECTORS: int, PREFETCH_TAPS: int, x: Value, starts: Value, offsets: Value,
    taps: Value, w: Value, bias: Value, relu: Value, y: Value, y_k: Value, places: Value, counts: Value,
) -> None:  # fmt: skip
    """y[i*y_k + places[j]][:counts[j]] = bias[i] + sum_t w[t][i] * x[starts[j] + offsets[t]][:].

    For i < ROWS, j < VECTORS; at least 0 with relu. starts, offsets, places and counts are int64 tables;
    offsets goes on for PREFETCH_TAPS taps, whose pixels are prefetched. FORM: of y, see `halves`.
    """
    inputs = [v.at(v.pointer(x), v.table64(starts, j)) for j in range(VECTORS)]
    m, weights = maps(v, FORM), v.pointer(w)
    target = m.pointer(y)
    sums = [[v.register(v.broadcast(v.pointer(bias), i)) for _ in range(VECTORS)] for i in range(ROWS)]
    with v.loop(taps) as t:
        at = v.table64(offsets, t)
        tap = v.at(weights, v.imul(t, ROWS))
        for start in inputs if PREFETCH_TAPS else ():
            v.prefetch(v.at(start, v.table64(offsets, v.iadd(t, PREFETCH_TAPS))), near=True)
        pixels = [v.load(start, at) for start in inputs]
        for i, row in enumerate(sums):
            weight = v.broadcast(tap, i)
            for total, value in zip(row, pixels, strict=True):
                total.set(v.fma(weight, value, total.value))
    low = v.lower_bound(relu)
    for j in range(VECTORS):
        count = v.table64(counts, j)
        place = m.at(target, v.table64(places, j))
        values = [v.fmax(row[j].value, low) for row in sums]
        with v.choose(v.isub(count, v.lanes)) as (whole, part):
            with whole:  # a mask would make the store slower
                for i, value in enumerate(values):
                    m.store(value, place, v.imul(y_k, i))
            with part:
                for i, value in enumerate(values):
                    m.store_masked(value, place, v.imul(y_k, i), m.mask(count))
