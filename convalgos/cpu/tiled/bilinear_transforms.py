"""The transforms of `core.bilinear_forms` on tiles, in one or two dimensions, on vectors of channels.

The kernels take what those of `winograd_transforms` take. They have the code of one line of a tile, which
runs over all lines: those of nested forms are too long to be written out for a whole tile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from convalgos.core.bilinear_forms import bilinear_form
from convalgos.core.cook_toom import Axpy
from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import simd

Line = Callable[[Axpy, Sequence[Any]], list[Any]]


def _transform(
    v: simd.Vec,
    line: Line,
    dims: int,
    lengths: tuple[int, int],
    load: Callable[[Any, Any], Any],
    store: Callable[[Any, Any, Any], None],
) -> None:
    """store(i, j, value) the elements of a table that is transformed along its columns, then along its rows.

    Args:
        lengths: of a line, and of what becomes of it.
        load: (i, j) to the value there.
    """

    def axpy(a: Any, x: Any, y: Any) -> Any:
        return v.axpy(float(a), x, y)

    read, written = lengths
    if dims == 1:
        for j, value in enumerate(line(axpy, [load(0, j) for j in range(read)])):
            store(0, j, value)
        return
    half = v.buffer(read * written)
    with v.loop(read) as i:
        row = v.at(half, v.imul(i, written * v.lanes))
        for j, value in enumerate(line(axpy, [load(i, j) for j in range(read)])):
            v.store(value, row, j * v.lanes)
    with v.loop(written) as j:
        column = v.at(half, v.imul(j, v.lanes))
        for i, value in enumerate(line(axpy, [v.load(column, i * written * v.lanes) for i in range(read)])):
            store(i, j, value)


@simd.emitter
def bilinear_input_tile(
    v: simd.Vec, KIND: int, M: int, R: int, DIMS: int, source: Any, row_step: Any, column_step: Any,
    target: Any, point_step: Any,
) -> None:  # fmt: skip
    """Pixels to points."""
    form = bilinear_form(KIND, M, R)
    _spread(
        v, form.spread, DIMS, (form.inputs, form.alpha), source, row_step, column_step, target, point_step
    )


@simd.emitter
def bilinear_filter_tile(
    v: simd.Vec, KIND: int, M: int, R: int, DIMS: int, source: Any, row_step: Any, column_step: Any,
    target: Any, point_step: Any,
) -> None:  # fmt: skip
    """Taps to points."""
    form = bilinear_form(KIND, M, R)
    lengths = R, form.alpha
    _spread(v, form.spread_filter, DIMS, lengths, source, row_step, column_step, target, point_step)


def _spread(
    v: simd.Vec, line: Line, dims: int, lengths: tuple[int, int], source: Any, row_step: Any,
    column_step: Any, target: Any, point_step: Any,
) -> None:  # fmt: skip
    """Values at source + i * row_step + j * column_step to points, `point_step` apart."""
    read, to = v.pointer(source), v.pointer(target)

    def load(i: Any, j: Any) -> Any:
        return v.load(read, v.iadd(v.imul(row_step, i), v.imul(column_step, j)))

    def store(i: Any, j: Any, value: Any) -> None:
        v.store(value, to, v.imul(point_step, v.iadd(v.imul(i, lengths[1]), j)))

    _transform(v, line, dims, lengths, load, store)


@simd.emitter
def bilinear_finished_tile(
    v: simd.Vec, KIND: int, M: int, R: int, DIMS: int, source: Any, point_step: Any, bias: Any, relu: Any,
    target: Any, row_step: Any, column_step: Any,
) -> None:  # fmt: skip
    """Points to pixels + bias, at least 0 with relu."""
    form = bilinear_form(KIND, M, R)
    read, to, scale = v.pointer(source), v.pointer(target), float(form.scale)
    add, low = v.load(v.pointer(bias)), v.lower_bound(relu)

    def line(axpy: Axpy, values: Sequence[Any]) -> list[Any]:
        return [v.scale(scale, value) for value in form.gather(axpy, values)]

    def load(i: Any, j: Any) -> Any:
        return v.load(read, v.imul(point_step, v.iadd(v.imul(i, form.alpha), j)))

    def store(i: Any, j: Any, value: Any) -> None:
        finished = v.fmax(v.fadd(value, add), low)
        v.store(finished, to, v.iadd(v.imul(row_step, i), v.imul(column_step, j)))

    _transform(v, line, DIMS, (form.alpha, M), load, store)


@jit.specialise
def bilinear_input_tiles(SIZE: int, LANES: int, KIND: int, M: int, R: int, DIMS: int) -> Callable[..., None]:
    def bilinear_input_tiles(
        source: int, row_step: int, column_step: int, tile_step: int, count: int, target: int,
        target_step: int, point_step: int,
    ) -> None:  # fmt: skip
        for i in range(count):
            bilinear_input_tile(
                SIZE, LANES, KIND, M, R, DIMS, source + i * tile_step * SIZE, row_step, column_step,
                target + i * target_step * SIZE, point_step,
            )  # fmt: skip

    return bilinear_input_tiles


@jit.specialise
def bilinear_filter_tiles(SIZE: int, LANES: int, KIND: int, M: int, R: int, DIMS: int) -> Callable[..., None]:
    def bilinear_filter_tiles(
        source: int, row_step: int, column_step: int, tile_step: int, count: int, target: int,
        target_step: int, point_step: int, rows: int, columns: int,
    ) -> None:  # fmt: skip
        for i in range(count):
            bilinear_filter_tile(
                SIZE, LANES, KIND, M, R, DIMS, source + i * tile_step * SIZE, row_step, column_step,
                target + i * target_step * SIZE, point_step,
            )  # fmt: skip

    return bilinear_filter_tiles


@jit.specialise
def bilinear_finished_tiles(
    SIZE: int, LANES: int, KIND: int, M: int, R: int, DIMS: int
) -> Callable[..., None]:
    def bilinear_finished_tiles(
        source: int, source_step: int, point_step: int, count: int, bias: int, relu: int, target: int,
        row_step: int, column_step: int, tile_step: int,
    ) -> None:  # fmt: skip
        for i in range(count):
            bilinear_finished_tile(
                SIZE, LANES, KIND, M, R, DIMS, source + i * source_step * SIZE, point_step, bias, relu,
                target + i * tile_step * SIZE, row_step, column_step,
            )  # fmt: skip

    return bilinear_finished_tiles
