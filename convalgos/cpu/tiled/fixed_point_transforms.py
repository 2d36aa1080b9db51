"""Winograd's F(4, 3) and F(2, 3) for products of 8 bits: inputs in fixed point, outputs in float32.

The points of F(4, 3) are 0, +-2/3, +-3/2 and infinity: errors of products grow by 2.67 in each dimension, by
3.23 at the points of the exact transform (0, +-1, 2, -1/2) and by 5.6 at 0, +-1 and +-2. F(2, 3) has 0, +-1
and infinity.

Pixels have SHIFT bits behind the point when they are gathered. Each row of the input transform is multiplied
by what makes its largest coefficient 1 (F(4, 3)) or all of them 1 (F(2, 3)), and the filter by the inverse:
so transformed inputs stay below 2^14.6 in 16 bits, whatever the data and its zero point, and what
multiplications by fractions round is a small part of what 8 bits round afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np

from convalgos.core.cook_toom import Matrix, cook_toom, multiply_2d, transform_lines
from convalgos.cpu.runtime import jit
from convalgos.cpu.tiled.integer_points import integer_points
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.integers import shorts_of, words_of

R = 3
POINTS = {
    2: (Fraction(0), Fraction(1), Fraction(-1)),
    4: (Fraction(0), Fraction(2, 3), Fraction(-2, 3), Fraction(3, 2), Fraction(-3, 2)),
}
SHIFT = 4  # bits of a gathered pixel behind the point

Row = Sequence[Any]


# --- inputs ------------------------------------------------------------------------------------------


def scaled_input_points(v: Any, m: int, d: Row) -> list[Any]:
    """Pixels under a tile of m outputs to points: 4 to 4, or 6 to 6.

    v: what adds, subtracts and takes fractions (a number below 1 times a value).
    """
    if m == 2:
        return [v.sub(d[0], d[2]), v.add(d[1], d[2]), v.sub(d[2], d[1]), v.sub(d[3], d[1])]
    near = v.sub(v.fraction(Fraction(4, 9), d[4]), d[2])  # of +-2/3
    slope = v.sub(v.fraction(Fraction(8, 27), d[3]), v.fraction(Fraction(2, 3), d[1]))
    far = v.sub(v.fraction(Fraction(2, 3), d[4]), v.fraction(Fraction(8, 27), d[2]))  # of +-3/2
    steep = v.sub(d[3], v.fraction(Fraction(4, 9), d[1]))
    return [
        v.sub(v.fraction(Fraction(36, 97), v.add(d[0], d[4])), d[2]),
        v.add(near, slope), v.sub(near, slope), v.add(far, steep), v.sub(far, steep),
        v.sub(v.fraction(Fraction(36, 97), v.add(d[1], d[5])), d[3]),
    ]  # fmt: skip


class _Rational:
    """Exact numbers."""

    add, sub = Fraction.__add__, Fraction.__sub__

    @staticmethod
    def fraction(part: Fraction, x: Fraction) -> Fraction:
        return part * x


class _Shorts:
    """Arrays of 16-bit integers, rounded as the kernels round."""

    add, sub = np.add, np.subtract

    @staticmethod
    def fraction(part: Fraction, x: np.ndarray) -> np.ndarray:
        return ((x.astype(np.int32) * fixed(part) + (1 << 14)) >> 15).astype(np.int16)


def fixed(part: Fraction) -> int:
    """A fraction of 1 in 15 bits, as instructions multiply by it."""
    return round(part * (1 << 15))


@cache
def input_matrix(m: int) -> Matrix:
    """What `scaled_input_points` computes, exactly: (m + 2, m + 2)."""
    units = [[Fraction(int(i == j)) for j in range(m + 2)] for i in range(m + 2)]
    return tuple(zip(*(scaled_input_points(_Rational, m, unit) for unit in units), strict=True))


def level_points(m: int, dims: int, level: int) -> np.ndarray:
    """(points,) int64: what a tile of pixels that all hold `level` becomes."""
    pixel = np.array(level << SHIFT).astype(np.int16)
    rows = transform_lines(dims, lambda i, j: pixel, m + 2, lambda d: scaled_input_points(_Shorts, m, d))
    return np.array(rows, np.int64).ravel()


# --- filters -----------------------------------------------------------------------------------------


@cache
def filter_matrix(m: int) -> np.ndarray:
    """(m + 2, 3): G, with the inverse of what rows of the input transform are multiplied by."""
    _, g, bt = cook_toom(m, R, POINTS[m])
    rows = []
    for taps, whole, own in zip(g, bt, input_matrix(m), strict=True):
        by = next(a / b for a, b in zip(whole, own, strict=True) if b)
        assert all(a == b * by for a, b in zip(whole, own, strict=True)), "rows differ by a factor"
        rows.append([float(tap * by) for tap in taps])
    return np.array(rows)


def float_filter_points(w: np.ndarray, m: int, rows: bool, columns: bool) -> np.ndarray:
    """w (..., rows, columns) to points (points, ...) of float32."""
    one = np.ones((1, 1))
    both = np.kron(filter_matrix(m) if rows else one, filter_matrix(m) if columns else one)  # (points, taps)
    flat = both.astype(np.float32) @ w.reshape(-1, both.shape[1]).astype(np.float32).T
    return np.asarray(flat.reshape(both.shape[0], *w.shape[:-2]))


# --- kernels -----------------------------------------------------------------------------------------


class _Fixed:
    """16-bit integers in vectors."""

    def __init__(self, v: simd.Vec):
        shorts = shorts_of(v)
        self.add, self.sub = shorts.add, shorts.sub
        self.fraction: Callable[[Fraction, Any], Any] = lambda part, x: shorts.rounded_product(
            x, shorts.const(fixed(part))
        )


@simd.emitter
def fixed_point_input_tile(
    v: simd.Vec, M: int, DIMS: int, source: Any, row_step: Any, column_step: Any, target: Any, point_step: Any
) -> None:
    """Pixels of 16-bit integers to points."""
    numbers = _Fixed(v)
    integer_points(
        shorts_of(v), DIMS, M + 2, lambda d: scaled_input_points(numbers, M, d), source, row_step,
        column_step, target, point_step,
    )  # fmt: skip


@simd.emitter
def rounded_output_tile(
    v: simd.Vec, M: int, DIMS: int, source: Any, point_step: Any, target: Any, row_step: Any, column_step: Any
) -> None:
    """Points of float32 to pixels, which are rounded to integers of 32 bits."""
    words = words_of(v)
    read, to = v.pointer(source), v.pointer(target)
    matrix = cook_toom(M, R, POINTS[M]).AT

    def load(i: Any, j: Any) -> Any:
        return v.load(read, v.imul(point_step, i * (M + 2) + j))

    def store(i: Any, j: Any, value: Any) -> None:
        words.store(words.nearest(value), to, v.iadd(v.imul(row_step, i), v.imul(column_step, j)))

    rows = matrix if DIMS == 2 else ((Fraction(1),),)
    multiply_2d(lambda a, x, y: v.axpy(float(a), x, y), rows, matrix, load, store)


@jit.specialise
def fixed_point_input_tiles(LANES: int, M: int, DIMS: int) -> jit.Kernel:
    def fixed_point_input_tiles(
        source: int, row_step: int, column_step: int, tile_step: int, count: int, target: int,
        target_step: int, point_step: int,
    ) -> None:  # fmt: skip
        for i in range(count):
            fixed_point_input_tile(
                2, LANES, M, DIMS, source + i * tile_step * 2, row_step, column_step,
                target + i * target_step * 2, point_step,
            )  # fmt: skip

    return fixed_point_input_tiles


@jit.specialise
def rounded_output_tiles(LANES: int, M: int, DIMS: int) -> jit.Kernel:
    def rounded_output_tiles(
        source: int, source_step: int, point_step: int, count: int, target: int, row_step: int,
        column_step: int, tile_step: int, rows: int, columns: int,
    ) -> None:  # fmt: skip
        for i in range(count):
            rounded_output_tile(
                4, LANES, M, DIMS, source + i * source_step * 4, point_step,
                target + i * tile_step * 4, row_step, column_step,
            )  # fmt: skip

    return rounded_output_tiles
