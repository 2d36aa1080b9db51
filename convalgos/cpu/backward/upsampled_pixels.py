"""Rows of dx of a depthwise layer with stride 2 in channels_last, with channels in the lanes.

Pixels 2i and 2i + 1 of a row of dx meet dy[i + front - d] at a displacement d, each by a tap of its own, as
in `upsampled_rows`. A block of such pairs stays in registers over all rows of taps: a pixel of dy is loaded
once for each of these, and meets all its taps. Beyond the edges zeros are read for dy, and what lies there of
dx is stored in scratch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from convalgos.core.machine import vector_bytes
from convalgos.cpu.backward.row_taps import ROW_TAPS
from convalgos.cpu.backward.upsampled_rows import pairs_of_taps
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import arguments
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.simd import Value, carray, pointer

UPSAMPLED_PIXELS = arguments(
    "images channels height width out_width front tap_rows blocks vectors zeros x_n y_n tasks"
)
MOST_PAIRS = {64: 7, 32: 4, 16: 4}  # whose sums are in registers, by vector bytes


@simd.emitter
def upsampled_row(
    v: simd.Vec, DISPLACEMENTS: int, PAIRS: int, args: Value, row: Value, x: Value, y: Value, spare: Value
) -> None:
    """A row of dx, by blocks of PAIRS and in each of them vector by vector; the last of both overlap."""
    a = v.record(args, UPSAMPLED_PIXELS)
    meets, c = v.record(v.iadd(a.tap_rows, v.imul(row, ROW_TAPS.itemsize)), ROW_TAPS), a.channels
    reach = PAIRS + DISPLACEMENTS - 1  # pixels of dy that a block meets
    low, last = v.lower_bound(a.relu), v.isub(c, v.lanes)

    def sum_block(column: Value, first: Value, at_border: bool) -> None:
        """column: of dx, where the block begins; first: pixel of dy."""
        with v.loop(a.vectors) as n:
            channel = v.imin(v.imul(n, v.lanes), last)
            added = v.load(v.pointer(a.bias), channel)
            sums = [v.register(added) for _ in range(2 * PAIRS)]
            dy, w = v.at(v.pointer(x), channel), v.at(v.pointer(a.w), channel)
            target = v.at(v.pointer(y), v.iadd(v.imul(column, c), channel))
            for q in range(2 * PAIRS):  # stores that miss wait for one another
                v.prefetch(target, v.imul(c, q), write=True, near=True)
            with v.loop(meets.count) as t:
                pixel = v.iadd(v.imul(v.isub(meets.row, t), a.out_width), first)
                taps = v.imul(v.iadd(meets.tap, v.imul(t, 2)), v.imul(c, 2 * DISPLACEMENTS))
                add_row(sums, v.at(dy, v.imul(pixel, c)), v.at(w, taps), first, at_border)
            for q, total in enumerate(sums):
                to = v.at(target, v.imul(c, q))
                if at_border:
                    to = v.inside(v.iadd(column, q), a.width, to, v.pointer(spare))
                v.store(v.fmax(total.value, low), to)

    def add_row(sums: list[simd.Register], dy: Value, w: Value, first: Value, at_border: bool) -> None:
        weights = [v.load(w, v.imul(c, tap)) for tap in range(2 * DISPLACEMENTS)]  # (lanes,) each
        for j in range(reach):
            pixel = v.at(dy, v.imul(c, j))
            if at_border:
                pixel = v.inside(v.iadd(first, j), a.out_width, pixel, v.pointer(a.zeros))
            value = v.load(pixel)  # (lanes,)
            for q, tap in met(j):
                sums[q].set(v.fma(value, weights[tap], sums[q].value))

    def met(j: int) -> Iterator[tuple[int, int]]:
        """The pixels of the block that the j-th of dy counts for, and by which tap."""
        for d in range(DISPLACEMENTS):
            if 0 <= (i := j + d - (DISPLACEMENTS - 1)) < PAIRS:
                yield from ((2 * i + phase, 2 * d + phase) for phase in range(2))

    last_pair = v.isub(v.idiv(v.iadd(a.width, 1), 2), PAIRS)
    with v.loop(a.blocks) as b:
        pair = v.imax(0, v.imin(v.imul(b, PAIRS), last_pair))
        column, first = v.imul(pair, 2), v.iadd(pair, v.isub(a.front, DISPLACEMENTS - 1))
        left = v.imin(v.isub(a.width, v.iadd(column, 2 * PAIRS)), v.isub(a.out_width, v.iadd(first, reach)))
        with v.choose(v.imin(first, left)) as (whole, at_border):  # most blocks need no checks
            with whole:
                sum_block(column, first, False)
            with at_border:
                sum_block(column, first, True)


@jit.specialise
def sum_upsampled_rows(SIZE: int, LANES: int, DISPLACEMENTS: int, PAIRS: int) -> Callable[..., None]:
    """Images x rows of dx, dealt to the tasks in equal runs."""

    def sum_upsampled_rows(args: int, task: int) -> None:
        a = carray(pointer(args), 1, UPSAMPLED_PIXELS)[0]
        total, spare = a.images * a.height, a.scratch + task * LANES * SIZE
        for item in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            n, i = item // a.height, item % a.height
            x, y = a.x + n * a.x_n * SIZE, a.y + (n * a.y_n + i * a.width * a.channels) * SIZE
            upsampled_row(SIZE, LANES, DISPLACEMENTS, PAIRS, args, i, x, y, spare)

    return sum_upsampled_rows


def blocks_of(width: int) -> int:
    """Blocks of a row of dx."""
    return -(-width // (2 * MOST_PAIRS[vector_bytes()]))


def taps_by_channels(w: np.ndarray, low: int) -> np.ndarray:
    """`pairs_of_taps` with channels last: (R, displacements, 2, C)."""
    return np.ascontiguousarray(pairs_of_taps(w, low).transpose(1, 2, 3, 0))
