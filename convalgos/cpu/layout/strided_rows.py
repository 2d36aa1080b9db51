"""Rows of a map with their zero border, split into the phases of a stride.

Outputs that are neighbours read inputs a stride apart. Split so that element i of a row lies in phase i %
stride, at i // stride, neighbours in y have neighbours again, and vectors along a row serve any stride.
Vectors are taken apart by shuffles for small strides; larger ones are copied element by element, by one code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.simd import Value, Vec, carray, pointer

MOST_STRIDE = 8  # that is split with vectors, by code of its own


@simd.emitter
def split_row(
    v: Vec, STRIDE: int, KEPT: int, x: Value, before: Value, inside: Value, target: Value, count: Value,
    step: Value,
) -> None:  # fmt: skip
    """`before` zeros, x[:inside], zeros, in STRIDE phases of which the first KEPT are written.

    A phase is `count` elements, whole vectors that hold all of x, and begins `step` behind the one before.
    Inside is at least 1.
    """
    width = STRIDE * v.lanes
    first = v.idiv(before, width)
    last = v.idiv(v.iadd(before, v.isub(inside, 1)), width)
    second, behind = v.iadd(first, 1), v.iadd(last, 1)
    source, end = v.pointer(v.isub(x, v.imul(before, v.size))), v.iadd(before, inside)

    def masked(at: Value) -> Value:
        return v.load_masked(source, at, v.window(v.isub(before, at), v.isub(end, at)))

    parts: tuple[tuple[Value, Value, Callable[[Value], Value]], ...] = (
        (0, first, lambda at: v.zero()),
        (first, second, masked),
        (second, last, lambda at: v.load(source, at)),  # masks would double the time of these
        (v.imax(second, last), behind, masked),
        (behind, v.idiv(count, v.lanes), lambda at: v.zero()),
    )
    for start, stop, load in parts:
        with v.loop(v.isub(stop, start)) as i:
            at = v.iadd(start, i)
            row = [load(v.iadd(v.imul(at, width), j * v.lanes)) for j in range(STRIDE)]
            for j in range(KEPT):
                place = v.iadd(v.imul(at, v.lanes), v.imul(step, j))
                v.store(_phase(v, row, j), v.pointer(target), place)


def _phase(v: Vec, row: Sequence[Value], phase: int) -> Value:
    """The elements of some neighbouring vectors that are `len(row)` apart, from element `phase` on."""
    value = row[0]
    for source in range(1, len(row)):
        # lanes taken so far stay, those that lie in this vector come from it
        order = [phase + len(row) * i for i in range(v.lanes)]
        first = source == 1
        value = v.shuffle(
            value,
            row[source],
            [
                (o if first else i)
                if o < source * v.lanes
                else min(v.lanes + o - source * v.lanes, 2 * v.lanes - 1)
                for i, o in enumerate(order)
            ],
        )
    return value


@simd.emitter
def zero_row(v: Vec, target: Value, count: Value) -> None:
    """target[:count] = 0; count is a multiple of lanes."""
    with v.loop(v.idiv(count, v.lanes)) as i:
        v.store(v.zero(), v.pointer(target), v.imul(i, v.lanes))


@jit.helper
def split_any_row(
    x: int, before: int, inside: int, target: int, count: int, step: int, stride: int, kept: int, size: int
) -> None:
    """`split_row` for any stride, element by element."""
    for phase in range(kept):
        low = min(count, (max(0, before - phase) + stride - 1) // stride)  # places before the first element
        end = max(low, min(count, (before + inside - phase + stride - 1) // stride))
        place = target + phase * step * size
        simd.zero_bytes(place, low * size)
        source = x + (phase + low * stride - before) * size
        if size == 4:
            to4 = carray(pointer(place), count, np.int32)
            from4 = carray(pointer(source), (end - low) * stride, np.int32)
            for i in range(end - low):
                to4[low + i] = from4[i * stride]
        else:
            to8 = carray(pointer(place), count, np.int64)
            from8 = carray(pointer(source), (end - low) * stride, np.int64)
            for i in range(end - low):
                to8[low + i] = from8[i * stride]
        simd.zero_bytes(place + end * size, (count - end) * size)


@jit.specialise
def copy_row(SIZE: int, LANES: int, STRIDE: int, KEPT: int) -> jit.Kernel:
    """`split_row`, or zeros for a row outside of x, where inside is 0; STRIDE 0 stands for any stride."""

    def copy_row(x: int, before: int, inside: int, target: int, phase: int, stride: int, kept: int) -> None:
        if inside <= 0:
            zero_row(SIZE, LANES, target, phase * kept)
        elif STRIDE:
            split_row(SIZE, LANES, STRIDE, KEPT, x, before, inside, target, phase, phase)
        else:
            split_any_row(x, before, inside, target, phase, phase, stride, kept, SIZE)

    return copy_row


def row_copier(size: int, lanes: int, stride: int, kept: int) -> int:
    """The `copy_row` for a stride."""
    return copy_row(size, lanes, stride, kept) if stride <= MOST_STRIDE else copy_row(size, lanes, 0, 0)
