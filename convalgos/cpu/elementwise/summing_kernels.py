"""The driver that combines arrays over the middle one of three dimensions, or rows that places tell."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from convalgos.cpu.elementwise.gathering_kernels import element_of, place_at
from convalgos.cpu.elementwise.pixel_vectors import in_all_lanes
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.blocks import loop_chunks
from convalgos.cpu.vectors.integers import words_of
from convalgos.cpu.vectors.lanes import lane_masks, load_lanes, store_lanes
from convalgos.cpu.vectors.simd import Value, Vec, carray, pointer
from convalgos.cpu.vectors.transpose import transpose

UNROLLED = 4  # vectors at a time
SHORT = 64  # elements of a row up to which rows are summed side by side, in squares turned over
ADDRESS = 8  # bytes of the address of a row

# y (rows, inner) of x (rows, count, inner), times the float at `scale`; units of `chunk` rows, or of as many
# elements of an inner dimension. Where it takes the `largest`, y is the maximum, and inner is more than 1.
#
# Where there are places (rows / behind, count, behind), x is (size, inner), and y of the rows of x that these
# tell, as `GATHER_FIELDS` has them: times `weights` of their shape, if there are any, or without those whose
# place is `pad`, where that is not -1. A sum that is `averaged` is divided by that of the weights, or by the
# number of rows, which are at least the float behind `scale`. Each task has a `room` for addresses (count,).
SUM_FIELDS = fields(
    "x y rows count inner scale chunk largest places weights wide size pad averaged behind room wrong tasks"
)


@jit.specialise
def sum_share(SIZE: int, LANES: int) -> jit.Kernel:
    """The units of a task."""

    def sum_share(args: int, task: int) -> None:
        a = carray(pointer(args), 1, SUM_FIELDS)[0]
        along = a.inner > 1 or a.places != 0
        size = a.inner if along else a.rows
        units = (size + a.chunk - 1) // a.chunk
        total = units * a.rows if along else units
        for unit in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            first = unit % units * a.chunk
            count = min(a.chunk, size - first)
            row = unit // units
            y = a.y + (row * a.inner + first) * SIZE
            if a.places != 0:
                begin = row // a.behind * a.count * a.behind + row % a.behind
                table = a.room + task * a.count * ADDRESS
                rows = bag_rows(a, begin, table, SIZE)
                if a.largest:
                    sum_bag(SIZE, LANES, 1, 0, table, 0, 0, first, y, rows, count, a.scale, 0)
                elif a.weights != 0:
                    weights = a.weights + begin * SIZE
                    sum_bag(
                        SIZE, LANES, 0, 1, table, weights, a.behind, first, y, rows, count, a.scale,
                        a.averaged,
                    )  # fmt: skip
                else:
                    sum_bag(SIZE, LANES, 0, 0, table, 0, 0, first, y, rows, count, a.scale, a.averaged)
            elif a.inner > 1:
                x = a.x + (row * a.count * a.inner + first) * SIZE
                if a.largest:
                    sum_columns(SIZE, LANES, 1, x, y, a.count, a.inner, count, a.scale)
                else:
                    sum_columns(SIZE, LANES, 0, x, y, a.count, a.inner, count, a.scale)
            else:
                x, y = a.x + first * a.count * SIZE, a.y + first * SIZE
                if a.count <= SHORT:
                    sum_short_rows(SIZE, LANES, x, y, count, a.count, a.scale)
                else:
                    sum_long_rows(SIZE, LANES, x, y, count, a.count, a.scale)

    return sum_share


@jit.helper
def bag_rows(a: Any, begin: int, table: int, size: int) -> int:
    """Writes the addresses of the rows of a bag into a table; how many there are."""
    addresses = carray(pointer(table), a.count, np.int64)
    rows = 0
    for i in range(a.count):
        place = place_at(a, begin + i * a.behind)
        if place != a.pad or a.pad == -1:
            addresses[rows] = a.x + max(element_of(a, place), 0) * a.inner * size
            rows = rows + 1
    return rows


@simd.emitter
def sum_columns(
    v: Vec, LARGEST: int, x: Value, y: Value, rows: Value, step: Value, count: Value, scale: Value
) -> None:
    """y[i] = scale times the sum of x[r * step + i] over rows r; LARGEST: their maximum."""
    source, by = v.pointer(x), v.broadcast(v.pointer(scale))

    def row_of(r: Value) -> _Row:
        return _Row(v.at(source, v.imul(r, step)), None)

    def chunk(first: Value, vectors: int, masks: list[Value]) -> None:
        found, _ = _combined(v, bool(LARGEST), rows, row_of, first, vectors, masks)
        _store(v, found if LARGEST else [v.fmul(total, by) for total in found], y, first, masks)

    _each_chunk(v, count, chunk)


@simd.emitter
def sum_bag(
    v: Vec, LARGEST: int, WEIGHTED: int, table: Value, weights: Value, step: Value, begin: Value, y: Value,
    rows: Value, count: Value, scale: Value, averaged: Value,
) -> None:  # fmt: skip
    """The same of rows at the addresses of a table, from their element `begin` on; times a weight each."""
    words = words_of(v)
    by, least = (v.broadcast(v.pointer(scale), i) for i in range(2))
    is_averaged = v.b.icmp_signed("!=", averaged, v.integer(0))

    def row_of(r: Value) -> _Row:
        weight = v.broadcast(v.pointer(weights), v.imul(r, step)) if WEIGHTED else None
        return _Row(v.at(v.pointer(v.table64(table, r)), begin), weight)

    def chunk(first: Value, vectors: int, masks: list[Value]) -> None:
        found, weight = _combined(v, bool(LARGEST), rows, row_of, first, vectors, masks)
        if not LARGEST:
            counted = words.floats(words.spread(rows)) if weight is None else weight
            share = v.b.fdiv(v.const(1), v.larger(counted, least))
            factor = v.b.select(is_averaged, share, by)
            found = [v.fmul(total, factor) for total in found]
        _store(v, found, y, first, masks)

    _each_chunk(v, count, chunk)


class _Row(NamedTuple):
    first: Value  # pointer to its first element
    weight: Value | None  # in all lanes


def _each_chunk(v: Vec, count: Value, chunk: Callable[[Value, int, list[Value]], None]) -> None:
    """chunk(first element, vectors, their masks) of all elements up to a count; no masks of whole vectors.

    What is left behind whole chunks is gone through at once, as each pass over the rows waits for sums.
    """
    width = UNROLLED * v.lanes
    whole = v.idiv(count, width)
    with v.loop(whole) as i:
        chunk(v.imul(i, width), UNROLLED, [])
    done = v.imul(whole, width)
    rest = v.isub(count, done)
    with v.unless_negative(v.isub(rest, 1)), v.choose(v.isub(rest, v.lanes + 1)) as (several, one):
        for branch, vectors in (several, UNROLLED), (one, 1):
            with branch:
                chunk(done, vectors, lane_masks(v, rest, vectors))


def _combined(
    v: Vec, largest: bool, rows: Value, row_of: Callable[[Value], _Row], first: Value, vectors: int,
    masks: list[Value],
) -> tuple[list[Value], Value | None]:  # fmt: skip
    """The sums of rows, or their maxima, from an element on; and the sum of their weights."""
    totals = [v.register(v.const(-math.inf) if largest else v.zero()) for _ in range(vectors)]
    weights = v.register(v.zero())
    weighted = False
    with v.loop(rows) as r:
        row = row_of(r)
        if row.weight is not None:
            weighted = True
            weights.set(v.fadd(weights.value, row.weight))
        for i, total in enumerate(totals):
            value = load_lanes(v, row.first, v.iadd(first, i * v.lanes), masks[i] if masks else None)
            if row.weight is not None:
                total.set(v.fma(row.weight, value, total.value))
            else:
                total.set((v.larger if largest else v.fadd)(total.value, value))
    return [total.value for total in totals], weights.value if weighted else None


def _store(v: Vec, values: list[Value], y: Value, first: Value, masks: list[Value]) -> None:
    to = v.pointer(y)
    for i, value in enumerate(values):
        store_lanes(v, value, to, v.iadd(first, i * v.lanes), masks[i] if masks else None)


@simd.emitter
def sum_short_rows(v: Vec, x: Value, y: Value, rows: Value, count: Value, scale: Value) -> None:
    """y[r] = scale times the sum of x[r * count + i] over i; lanes of vectors are rows."""
    source, to, by = v.pointer(x), v.pointer(y), v.broadcast(v.pointer(scale))
    with v.loop(v.idiv(v.iadd(rows, v.lanes - 1), v.lanes)) as square:
        first, total = v.imul(square, v.lanes), v.register(v.zero())
        last = v.isub(rows, 1)
        begins = [v.at(source, v.imul(v.imin(v.iadd(first, i), last), count)) for i in range(v.lanes)]
        with v.loop(v.idiv(v.iadd(count, v.lanes - 1), v.lanes)) as block:
            at = v.imul(block, v.lanes)
            mask = v.mask(v.isub(count, at))
            columns = transpose(v, [v.load_masked(row, at, mask) for row in begins])
            total.set(v.fadd(total.value, _in_pairs(v, columns)))
        v.store_masked(v.fmul(total.value, by), to, first, v.mask(v.isub(rows, first)))


@simd.emitter
def sum_long_rows(v: Vec, x: Value, y: Value, rows: Value, count: Value, scale: Value) -> None:
    """The same, one row after the other."""
    source, to, by = v.pointer(x), v.pointer(y), v.broadcast(v.pointer(scale))
    one = v.mask(1)
    with v.loop(rows) as r:
        row = v.at(source, v.imul(r, count))
        sums = [v.register(v.zero()) for _ in range(UNROLLED)]

        def chunk(first: Value, vectors: int, mask: Value = None) -> None:
            for i in range(vectors):
                at = v.iadd(first, i * v.lanes)
                value = load_lanes(v, row, at, mask)
                sums[i].set(v.fadd(sums[i].value, value))

        loop_chunks(v, v, count, UNROLLED, chunk)
        total = in_all_lanes(v, _in_pairs(v, [part.value for part in sums]), v.fadd)
        v.store_masked(v.fmul(total, by), to, r, one)


def _in_pairs(v: Vec, values: list[Value]) -> Value:
    """The sum of so many as are a power of two."""
    while len(values) > 1:
        values = [v.fadd(a, b) for a, b in zip(values[::2], values[1::2], strict=True)]
    return values[0]
