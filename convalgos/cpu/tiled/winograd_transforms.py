"""The transforms of Winograd's tiles, F(m, r) in one or two dimensions, on vectors of channels.

Every kernel takes a row of tiles: pixels, taps or points lie `..._step` elements apart, each a vector of
`lanes` channels. The matrices are those of `transforms.cook_toom`.
"""

from __future__ import annotations

from fractions import Fraction

from convalgos.core.cook_toom import Matrix, cook_toom, multiply_2d
from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import simd


def _matrices(matrix: Matrix, dims: int) -> tuple[Matrix, Matrix]:
    """What rows and columns are multiplied by."""
    return (matrix if dims == 2 else ((Fraction(1),),)), matrix


def _spread(v, matrix, dims, source, row_step, column_step, target, point_step):
    """Pixels at source + i * row_step + j * column_step to points, `point_step` apart."""
    read, to = v.pointer(source), v.pointer(target)

    def load(i, j):
        return v.load(read, v.iadd(v.imul(row_step, i), v.imul(column_step, j)))

    def store(i, j, value):
        v.store(value, to, v.imul(point_step, i * len(matrix) + j))

    multiply_2d(v.axpy, *_matrices(matrix, dims), load, store)


@simd.emitter
def input_tile(v, M, R, DIMS, source, row_step, column_step, target, point_step):
    """BT d B: alpha x alpha pixels to points."""
    _spread(v, cook_toom(M, R).BT, DIMS, source, row_step, column_step, target, point_step)


@simd.emitter
def filter_tile(v, M, R, DIMS, source, row_step, column_step, target, point_step):
    """G g GT: r x r taps to points."""
    _spread(v, cook_toom(M, R).G, DIMS, source, row_step, column_step, target, point_step)


@simd.emitter
def output_tile(v, M, R, DIMS, source, point_step, target, row_step, column_step):
    """AT m A: points to m x m pixels."""
    read, to = v.pointer(source), v.pointer(target)
    matrix = cook_toom(M, R).AT

    def load(i, j):
        return v.load(read, v.imul(point_step, i * len(matrix[0]) + j))

    def store(i, j, value):
        v.store(value, to, v.iadd(v.imul(row_step, i), v.imul(column_step, j)))

    multiply_2d(v.axpy, *_matrices(matrix, DIMS), load, store)


@jit.specialise
def input_tiles(SIZE, LANES, M, R, DIMS):
    def input_tiles(source, row_step, column_step, tile_step, count, target, target_step, point_step):
        for i in range(count):
            input_tile(
                SIZE, LANES, M, R, DIMS, source + i * tile_step * SIZE, row_step, column_step,
                target + i * target_step * SIZE, point_step,
            )  # fmt: skip

    return input_tiles


@jit.specialise
def filter_tiles(SIZE, LANES, M, R, DIMS):
    def filter_tiles(
        source, row_step, column_step, tile_step, count, target, target_step, point_step, rows, columns
    ):
        for i in range(count):
            filter_tile(
                SIZE, LANES, M, R, DIMS, source + i * tile_step * SIZE, row_step, column_step,
                target + i * target_step * SIZE, point_step,
            )  # fmt: skip

    return filter_tiles


@jit.specialise
def output_tiles(SIZE, LANES, M, R, DIMS):
    def output_tiles(
        source, source_step, point_step, count, target, row_step, column_step, tile_step, rows, columns
    ):
        for i in range(count):
            output_tile(
                SIZE, LANES, M, R, DIMS, source + i * source_step * SIZE, point_step,
                target + i * tile_step * SIZE, row_step, column_step,
            )  # fmt: skip

    return output_tiles


@jit.specialise
def gradient_tiles(SIZE, LANES, M, R, DIMS):
    """`filter_tiles` with the arguments of `input_tiles`, for tiles of dy in the place of a filter."""

    def gradient_tiles(source, row_step, column_step, tile_step, count, target, target_step, point_step):
        for i in range(count):
            filter_tile(
                SIZE, LANES, M, R, DIMS, source + i * tile_step * SIZE, row_step, column_step,
                target + i * target_step * SIZE, point_step,
            )  # fmt: skip

    return gradient_tiles
