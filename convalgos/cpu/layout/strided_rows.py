"""Rows of a map with their zero border, split into the phases of a stride.

Outputs that are neighbours read inputs a stride apart. Split so that element i of a row lies in phase i %
stride, at i // stride, neighbours in y have neighbours again, and vectors along a row serve any stride.
Vectors are taken apart by shuffles for small strides; larger ones are copied element by element, by one code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.simd import Value, Vec, call, carray, pointer, zero_bytes

MOST_STRIDE = 8  # that is split with vectors, by code of its own
# Cycles of a thread to copy rows of a plane to scratch: Xeon (Granite Rapids), grouped and strided layers.
PLANE_CYCLES = 25.0  # to begin, and to fill with zeros what lies above and below,
VECTOR_CYCLES = 6.2  # and for each vector of a row


@simd.emitter
def split_rows(
    v: Vec, STRIDE: int, KEPT: int, x: Value, x_row: Value, rows: Value, before: Value, inside: Value,
    target: Value, target_row: Value, count: Value, step: Value,
) -> None:  # fmt: skip
    """`before` zeros, x[:inside], zeros, in STRIDE phases of which the first KEPT are written, row by row.

    A phase is `count` elements, whole vectors that hold all of x, and begins `step` behind the one before.
    Inside is at least 1. Vectors of the same columns are copied one below the other, from the last columns to
    the first: what the vectors of a row write behind its end is overwritten by the row that begins there.
    """
    split_maps(v, v, (STRIDE, KEPT), x, x_row, rows, (before, inside), target, target_row, count, step)


def split_maps(
    v: Vec, m: Vec, phases: tuple[int, int], x: Value, x_row: Value, rows: Value,
    columns: tuple[Value, Value], target: Value, target_row: Value, count: Value, step: Value,
) -> None:  # fmt: skip
    """`split_rows` of what m loads from x. phases: (STRIDE, KEPT); columns: (before, inside)."""
    (STRIDE, KEPT), (before, inside) = phases, columns
    width = STRIDE * v.lanes
    first = v.idiv(before, width)
    last = v.idiv(v.iadd(before, v.isub(inside, 1)), width)
    second, behind = v.iadd(first, 1), v.iadd(last, 1)
    source, to = m.at(m.pointer(x), v.isub(0, before)), v.pointer(target)
    end = v.iadd(before, inside)

    parts = (
        (behind, v.idiv(count, v.lanes), "zeros"),
        (v.imax(second, last), behind, "masked"),
        (second, last, "whole"),  # masks would double the time of these
        (first, second, "masked"),
        (0, first, "zeros"),
    )
    for start, stop, kind in parts:
        with v.loop(v.isub(stop, start)) as i:
            place = v.isub(v.isub(stop, 1), i)
            at = v.imul(place, width)  # the same for all rows, and so are the masks
            begins = [v.iadd(at, j * v.lanes) for j in range(STRIDE)]
            masks = [v.window(v.isub(before, b), v.isub(end, b)) for b in begins if kind == "masked"]
            with v.loop(rows) as row:
                from_ = m.at(source, v.imul(row, x_row))
                line = v.at(to, v.iadd(v.imul(row, target_row), v.imul(place, v.lanes)))
                if kind == "zeros":
                    values = [v.zero()] * KEPT
                elif kind == "whole":
                    values = _phases(v, [m.load(from_, b) for b in begins], KEPT)
                else:
                    read = [m.load_masked(from_, b, mask) for b, mask in zip(begins, masks, strict=True)]
                    values = _phases(v, read, KEPT)
                for j, value in enumerate(values):
                    v.store(value, line, v.imul(step, j))


def _phases(v: Vec, row: Sequence[Value], kept: int) -> list[Value]:
    """The first `kept` phases of some neighbouring vectors."""
    return [strided_elements(v, row, j) for j in range(kept)]


def elements_in_turns(v: Vec, phases: Sequence[Value]) -> list[Value]:
    """`strided_elements` turned round: a row of the elements of one vector, or of two by turns."""
    if len(phases) == 1:
        return list(phases)
    even, odd = phases
    pairs = [lane // 2 + lane % 2 * v.lanes for lane in range(2 * v.lanes)]
    return [v.shuffle(even, odd, order) for order in (pairs[: v.lanes], pairs[v.lanes :])]


def strided_elements(v: Vec, row: Sequence[Value], phase: int) -> Value:
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


@jit.helper
def split_any_row(
    x: int, before: int, inside: int, target: int, count: int, step: int, stride: int, kept: int, size: int
) -> None:
    """`split_rows` of one row for any stride, element by element."""
    for phase in range(kept):
        low = min(count, (max(0, before - phase) + stride - 1) // stride)  # places before the first element
        end = max(low, min(count, (before + inside - phase + stride - 1) // stride))
        place = target + phase * step * size
        zero_bytes(place, low * size)
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
        zero_bytes(place + end * size, (count - end) * size)


@jit.specialise
def copy_rows(SIZE: int, LANES: int, STRIDE: int, KEPT: int) -> jit.Kernel:
    """`split_rows`; STRIDE 0 stands for any stride."""

    def copy_rows(
        x: int, x_row: int, rows: int, before: int, inside: int, target: int, target_row: int, phase: int,
        stride: int, kept: int,
    ) -> None:  # fmt: skip
        if STRIDE:
            split_rows(
                SIZE, LANES, STRIDE, KEPT, x, x_row, rows, before, inside, target, target_row, phase, phase
            )
        else:
            for i in range(rows):
                from_, to = x + i * x_row * SIZE, target + i * target_row * SIZE
                split_any_row(from_, before, inside, to, phase, phase, stride, kept, SIZE)

    return copy_rows


def row_copier(size: int, lanes: int, stride: int, kept: int) -> int:
    """The `copy_rows` for a stride."""
    return copy_rows(size, lanes, stride, kept) if stride <= MOST_STRIDE else copy_rows(size, lanes, 0, 0)


class RowRange(NamedTuple):
    """`number` rows h, h + step, ...: `above` of them lie above a plane, and all from `below` on below it."""

    h: int
    step: int
    number: int
    above: int
    below: int


@jit.helper
def rows_of(h: int, step: int, count: int, height: int) -> RowRange:
    """The rows of a plane of some height."""
    above = min(count, max(0, (step - 1 - h) // step))
    return RowRange(h, step, count, above, max(above, min(count, (height - h + step - 1) // step)))


@jit.helper
def copy_plane(
    copier: int, size: int, x: int, x_row: int, rows: RowRange, before: int, inside: int, target: int,
    target_row: int, phase: int, stride: int, kept: int,
) -> None:  # fmt: skip
    """`place_plane` of elements of one size."""
    place_plane(copier, size, size, x, x_row, rows, before, inside, target, target_row, phase, stride, kept)


@jit.helper
def place_plane(
    copier: int, x_size: int, size: int, x: int, x_row: int, rows: RowRange, before: int, inside: int,
    target: int, target_row: int, phase: int, stride: int, kept: int,
) -> None:  # fmt: skip
    """`copy_rows` of some rows of a plane x; those outside of it, or all where inside is 0, become zeros.

    x: of row 0, at the first column inside. Rows of zeros are filled up to the next row of target.
    """
    above, below = (rows.above, rows.below) if inside > 0 else (0, 0)
    if above > 0:
        zero_bytes(target, above * target_row * size)
    if below > above:
        first = x + (rows.h + above * rows.step) * x_row * x_size
        to = target + above * target_row * size
        call(
            copier,
            (first, rows.step * x_row, below - above, before, inside, to, target_row, phase, stride, kept),
        )
    if rows.number > below:
        zero_bytes(target + below * target_row * size, (rows.number - below) * target_row * size)


def copying_seconds(planes: float, rows: float, vectors: int, lanes: int, peak: float) -> float:
    """Of all threads, to copy some planes of so many rows in all, of some vectors each; peak: flop/s."""
    cycles = planes * PLANE_CYCLES + rows * vectors * VECTOR_CYCLES
    return cycles * 4 * lanes / peak  # a cycle of a thread is two fused multiply-adds of a vector
