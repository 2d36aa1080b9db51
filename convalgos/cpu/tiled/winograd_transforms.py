"""The transforms of Winograd's tiles, F(m, r) in one or two dimensions, on vectors of channels.

Every kernel takes a row of tiles: pixels, taps or points lie `..._step` elements apart, each a vector of
`lanes` channels. The matrices are those of `core.cook_toom`.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from convalgos.core.cook_toom import Axpy, Matrix, cook_toom, multiply_2d
from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import simd

# What becomes points: alpha x alpha pixels (BT d B), r x r taps (G g GT), m x m outputs (A dy AT).
INPUTS, TAPS, OUTPUTS = range(3)


def _axpy(v: simd.Vec) -> Axpy:
    """`v.axpy` for exact coefficients."""
    return lambda a, x, y: v.axpy(float(a), x, y)


def _turned(matrix: Matrix) -> Matrix:
    return tuple(zip(*matrix, strict=True))


def _matrices(matrix: Matrix, dims: int) -> tuple[Matrix, Matrix]:
    """What rows and columns are multiplied by."""
    return (matrix if dims == 2 else ((Fraction(1),),)), matrix


@simd.emitter
def winograd_points(
    v: simd.Vec, M: int, R: int, DIMS: int, OF: int, source: Any, row_step: Any, column_step: Any,
    target: Any, point_step: Any,
) -> None:  # fmt: skip
    """Pixels at source + i * row_step + j * column_step to points, `point_step` apart."""
    known = cook_toom(M, R)
    matrix = {INPUTS: known.BT, TAPS: known.G, OUTPUTS: _turned(known.AT)}[OF]
    read, to = v.pointer(source), v.pointer(target)

    def load(i: Any, j: Any) -> Any:
        return v.load(read, v.iadd(v.imul(row_step, i), v.imul(column_step, j)))

    def store(i: Any, j: Any, value: Any) -> None:
        v.store(value, to, v.imul(point_step, i * len(matrix) + j))

    multiply_2d(_axpy(v), *_matrices(matrix, DIMS), load, store)


def _gather_up(
    v: simd.Vec, matrix: Any, dims: Any, source: Any, point_step: Any, store: Callable[[int, int, Any], None]
) -> None:
    """Points, `point_step` apart, to pixels (i, j), which are stored."""
    read = v.pointer(source)

    def load(i: Any, j: Any) -> Any:
        return v.load(read, v.imul(point_step, i * len(matrix[0]) + j))

    multiply_2d(_axpy(v), *_matrices(matrix, dims), load, store)


def _stored(
    v: simd.Vec, target: Any, row_step: Any, column_step: Any, finished: Callable[[Any], Any]
) -> Callable[[int, int, Any], None]:
    """Stores a pixel (i, j), which is `finished` before, at target + i * row_step + j * column_step."""
    to = v.pointer(target)

    def store(i: int, j: int, value: Any) -> None:
        v.store(finished(value), to, v.iadd(v.imul(row_step, i), v.imul(column_step, j)))

    return store


@simd.emitter
def winograd_output_tile(
    v: simd.Vec, M: int, R: int, DIMS: int, source: Any, point_step: Any, target: Any, row_step: Any,
    column_step: Any,
) -> None:  # fmt: skip
    """AT m A: points to m x m pixels."""
    store = _stored(v, target, row_step, column_step, lambda value: value)
    _gather_up(v, cook_toom(M, R).AT, DIMS, source, point_step, store)


@simd.emitter
def winograd_finished_tile(
    v: simd.Vec, M: int, R: int, DIMS: int, source: Any, point_step: Any, bias: Any, relu: Any, target: Any,
    row_step: Any, column_step: Any,
) -> None:  # fmt: skip
    """AT m A + bias, at least 0 with relu: points to m x m pixels."""
    add, low = v.load(v.pointer(bias)), v.lower_bound(relu)

    def finished(value: Any) -> Any:
        return v.fmax(v.fadd(value, add), low)

    store = _stored(v, target, row_step, column_step, finished)
    _gather_up(v, cook_toom(M, R).AT, DIMS, source, point_step, store)


@simd.emitter
def winograd_pooled_tile(
    v: simd.Vec, M: int, R: int, source: Any, point_step: Any, bias: Any, relu: Any, target: Any,
    row_step: Any, column_step: Any,
) -> None:  # fmt: skip
    """The largest of each 2 x 2 pixels of AT m A + bias, at least 0 with relu: points to m / 2 x m / 2."""
    add, low = v.load(v.pointer(bias)), v.lower_bound(relu)
    pooled = _stored(v, target, row_step, column_step, lambda value: v.fmax(value, low))
    windows: dict[tuple[int, int], Any] = {}  # the largest so far

    def store(i: int, j: int, value: Any) -> None:
        window, value = (i // 2, j // 2), v.fadd(value, add)
        windows[window] = larger = v.larger(windows[window], value) if window in windows else value
        if i % 2 and j % 2:
            pooled(*window, larger)

    _gather_up(v, cook_toom(M, R).AT, 2, source, point_step, store)


@jit.specialise
def winograd_point_tiles(SIZE: int, LANES: int, M: int, R: int, DIMS: int, OF: int) -> Callable[..., None]:
    def winograd_point_tiles(
        source: int, row_step: int, column_step: int, tile_step: int, count: int, target: int,
        target_step: int, point_step: int,
    ) -> None:  # fmt: skip
        for i in range(count):
            winograd_points(
                SIZE, LANES, M, R, DIMS, OF, source + i * tile_step * SIZE, row_step, column_step,
                target + i * target_step * SIZE, point_step,
            )  # fmt: skip

    return winograd_point_tiles


@jit.specialise
def winograd_filter_tiles(SIZE: int, LANES: int, M: int, R: int, DIMS: int) -> Callable[..., None]:
    def winograd_filter_tiles(
        source: int, row_step: int, column_step: int, tile_step: int, count: int, target: int,
        target_step: int, point_step: int, rows: int, columns: int,
    ) -> None:  # fmt: skip
        for i in range(count):
            winograd_points(
                SIZE, LANES, M, R, DIMS, TAPS, source + i * tile_step * SIZE, row_step, column_step,
                target + i * target_step * SIZE, point_step,
            )  # fmt: skip

    return winograd_filter_tiles


@jit.specialise
def winograd_output_tiles(SIZE: int, LANES: int, M: int, R: int, DIMS: int) -> Callable[..., None]:
    def winograd_output_tiles(
        source: int, source_step: int, point_step: int, count: int, target: int, row_step: int,
        column_step: int, tile_step: int, rows: int, columns: int,
    ) -> None:  # fmt: skip
        for i in range(count):
            winograd_output_tile(
                SIZE, LANES, M, R, DIMS, source + i * source_step * SIZE, point_step,
                target + i * tile_step * SIZE, row_step, column_step,
            )  # fmt: skip

    return winograd_output_tiles


@jit.specialise
def winograd_finished_tiles(SIZE: int, LANES: int, M: int, R: int, DIMS: int) -> Callable[..., None]:
    def winograd_finished_tiles(
        source: int, source_step: int, point_step: int, count: int, bias: int, relu: int, target: int,
        row_step: int, column_step: int, tile_step: int,
    ) -> None:  # fmt: skip
        for i in range(count):
            winograd_finished_tile(
                SIZE, LANES, M, R, DIMS, source + i * source_step * SIZE, point_step, bias, relu,
                target + i * tile_step * SIZE, row_step, column_step,
            )  # fmt: skip

    return winograd_finished_tiles


@jit.specialise
def winograd_pooled_tiles(SIZE: int, LANES: int, M: int, R: int) -> Callable[..., None]:
    def winograd_pooled_tiles(
        source: int, source_step: int, point_step: int, count: int, bias: int, relu: int, target: int,
        row_step: int, column_step: int, tile_step: int,
    ) -> None:  # fmt: skip
        for i in range(count):
            winograd_pooled_tile(
                SIZE, LANES, M, R, source + i * source_step * SIZE, point_step, bias, relu,
                target + i * tile_step * SIZE, row_step, column_step,
            )  # fmt: skip

    return winograd_pooled_tiles


@simd.emitter
def winograd_tile_added(
    v: simd.Vec, M: int, R: int, DIMS: int, source: Any, point_step: Any, target: Any, row_step: Any,
    column_step: Any,
) -> None:  # fmt: skip
    """B m BT: points to alpha x alpha pixels, added to those that tiles before it hold, too.

    Tiles come row by row: the last m rows and columns of each are of no tile before it.
    """
    to = v.pointer(target)

    def store(i: int, j: int, value: Any) -> None:
        at = v.iadd(v.imul(row_step, i), v.imul(column_step, j))
        held = j < R - 1 or (i < R - 1 and DIMS == 2)
        v.store(v.fadd(value, v.load(to, at)) if held else value, to, at)

    _gather_up(v, _turned(cook_toom(M, R).BT), DIMS, source, point_step, store)


@jit.specialise
def winograd_added_tiles(SIZE: int, LANES: int, M: int, R: int, DIMS: int) -> Callable[..., None]:
    """Points to tiles of dx, which overlap; see `winograd_tile_added`."""

    def winograd_added_tiles(
        source: int, source_step: int, point_step: int, count: int, target: int, row_step: int,
        column_step: int, tile_step: int,
    ) -> None:  # fmt: skip
        for i in range(count):
            winograd_tile_added(
                SIZE, LANES, M, R, DIMS, source + i * source_step * SIZE, point_step,
                target + i * tile_step * SIZE, row_step, column_step,
            )  # fmt: skip

    return winograd_added_tiles
