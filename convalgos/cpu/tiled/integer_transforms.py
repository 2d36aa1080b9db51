"""Winograd's F(4, 3) and F(2, 3) in integers of 16 and 32 bits, exactly.

The points of F(4, 3) are 0, 1, -1, 2, -1/2 and infinity, a pair in each residue class modulo 2. So 2 divides
the denominators of Toom and Cook's interpolation once in each dimension, and their odd parts, 1, 3 and 15,
have inverses modulo 2^32: sums that wrap around in 32 bits still tell y modulo 2^30, which is y itself where
it is below 2^29. With the usual points, 0, +-1 and +-2, only 26 bits would be left.

Filters are multiplied by what makes all denominators equal, 30 in each dimension, of which 2 is left for
outputs. In two dimensions inputs are then 24,990 at most and filters 28,800, for 8-bit data of any zero
point: both fit 16 bits. Filters with a zero point of their own may not; theirs are multiplied by less, and
the transform of outputs does the rest.

F(2, 3) has the points 0, 1, -1 and infinity, and the denominator 2.

Source: our own; the transforms are those of Toom and Cook, as in `convalgos.core.cook_toom`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from convalgos.core.cook_toom import transform_lines
from convalgos.cpu.runtime import jit
from convalgos.cpu.tiled.integer_points import integer_points
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.integers import Integers, shorts_of, words_of

FILTER = {  # of each m: what a filter is multiplied by at each point,
    2: np.array([[-1, 0, 0], [1, 1, 1], [1, -1, 1], [0, 0, 1]]),
    4: np.array([[-1, 0, 0], [-1, -1, -1], [-1, 1, -1], [1, 2, 4], [4, -2, 1], [0, 0, 1]]),
}
SHARE = {2: np.array([2, 1, 1, 2]), 4: np.array([15, 5, 5, 1, 1, 15])}  # and what denominators are equal by
ODD = {2: 1, 4: 15}  # half of the denominator that is then common
BITS = 32  # of the sums
MOST = 32767  # of a transformed input or filter

Row = Sequence[Any]


def exact_below(dims: int) -> int:
    """The size of outputs up to which sums tell them."""
    return 1 << (BITS - 1 - dims)


# --- one dimension ---------------------------------------------------------------------------------


def input_points(v: Integers, m: int, d: Row) -> list[Any]:
    """Pixels under a tile of m outputs to points: 4 to 4, or 6 to 6."""
    step = [v.sub(d[i + 2], d[i]) for i in range(m)]
    if m == 2:
        return [step[0], v.add(d[1], d[2]), v.sub(d[2], d[1]), step[1]]
    double = [v.left(f, 1) for f in step]
    e = [v.sub(f, v.mul(v.const(3), x)) for f, x in zip(double, d[1:], strict=False)]
    return [
        v.sub(e[0], e[2]), v.add(e[1], e[2]), v.sub(e[1], e[2]),
        v.add(step[1], double[2]), v.sub(double[1], step[2]), v.sub(e[3], e[1]),
    ]  # fmt: skip


def output_tile(v: Integers, m: int, p: Row) -> list[Any]:
    """Points, which all have the common denominator, to m outputs times it."""
    total, less = v.add(p[1], p[2]), v.sub(p[1], p[2])
    if m == 2:
        return [v.add(p[0], total), v.add(less, p[3])]
    two, half, last = p[3:]  # 2, -1/2, infinity
    return [
        v.add(v.add(p[0], total), v.add(two, v.left(half, 3))),
        v.add(less, v.left(v.sub(two, v.left(half, 1)), 1)),
        v.add(total, v.left(v.add(half, v.left(two, 1)), 1)),
        v.add(v.add(less, last), v.sub(v.left(two, 3), half)),
    ]


# --- kernels -----------------------------------------------------------------------------------------


@simd.emitter
def integer_input_tile(
    v: simd.Vec, M: int, DIMS: int, source: Any, row_step: Any, column_step: Any, target: Any, point_step: Any
) -> None:
    """Pixels of 16-bit integers to points."""
    s = shorts_of(v)
    integer_points(
        s, DIMS, M + 2, lambda d: input_points(s, M, d), source, row_step, column_step, target, point_step
    )


@simd.emitter
def integer_output_tile(
    v: simd.Vec, M: int, DIMS: int, SHARED: int, source: Any, point_step: Any, target: Any, row_step: Any,
    column_step: Any,
) -> None:  # fmt: skip
    """Points of 32-bit integers to pixels. SHARED: the filter has `SHARE` in it."""
    w = words_of(v)
    read, to = w.pointer(source), w.pointer(target)

    def load(i: int, j: int) -> Any:
        return w.load(read, w.imul(point_step, i * (M + 2) + j))

    def line(points: Row) -> Row:
        if not SHARED:
            points = [
                w.mul(w.const(int(s)), p) if s > 1 else p for s, p in zip(SHARE[M], points, strict=True)
            ]
        return output_tile(w, M, points)

    inverse = pow(ODD[M], -DIMS, 1 << BITS)
    inverse -= inverse >> (BITS - 1) << BITS
    for i, row in enumerate(transform_lines(DIMS, load, M + 2, line)):
        for j, value in enumerate(row):
            if inverse != 1:
                value = w.mul(value, w.const(inverse))
            w.store(w.right(value, DIMS), to, w.iadd(w.imul(row_step, i), w.imul(column_step, j)))


@jit.specialise
def integer_input_tiles(LANES: int, M: int, DIMS: int) -> jit.Kernel:
    def integer_input_tiles(
        source: int, row_step: int, column_step: int, tile_step: int, count: int, target: int,
        target_step: int, point_step: int,
    ) -> None:  # fmt: skip
        for i in range(count):
            integer_input_tile(
                2, LANES, M, DIMS, source + i * tile_step * 2, row_step, column_step,
                target + i * target_step * 2, point_step,
            )  # fmt: skip

    return integer_input_tiles


@jit.specialise
def integer_output_tiles(LANES: int, M: int, DIMS: int, SHARED: int) -> jit.Kernel:
    def integer_output_tiles(
        source: int, source_step: int, point_step: int, count: int, target: int, row_step: int,
        column_step: int, tile_step: int, rows: int, columns: int,
    ) -> None:  # fmt: skip
        for i in range(count):
            integer_output_tile(
                4, LANES, M, DIMS, SHARED, source + i * source_step * 4, point_step,
                target + i * tile_step * 4, row_step, column_step,
            )  # fmt: skip

    return integer_output_tiles


# --- filters ----------------------------------------------------------------------------------------


def filter_points(w: np.ndarray, m: int, rows: bool, columns: bool) -> tuple[np.ndarray, bool]:
    """w (..., rows, columns) of integers below 256 to points (points, ...) of int16, and whether `SHARE` is
    in them: where that fits."""
    plain, shared = FILTER[m], FILTER[m] * SHARE[m][:, None]
    for matrix in (shared, plain):
        both = np.kron(matrix if rows else [[1]], matrix if columns else [[1]])  # (points, taps)
        # sums of few small integers are exact in float32
        flat = w.reshape(-1, both.shape[1]).astype(np.float32) @ both.T.astype(np.float32)
        if matrix is plain or np.abs(flat).max(initial=0) <= MOST:
            break
    points = flat.T.reshape(both.shape[0], *w.shape[:-2])
    return points.astype(np.int16), matrix is shared
