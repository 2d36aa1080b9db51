"""The last step of a box: M is transformed back into pixels of y, with bias and activation.

Pixels of a strip of tiles go through a thread's scratch, vector of filters by vector of filters. Where these
are vectors in y, tiles that lie wholly inside the map are written where they belong, if the algorithm has a
transform that adds the bias and activates (`finish_tiles`). One that also pools its tiles gives a pixel of y
for each window of their outputs: maps of the outputs themselves are then nowhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.finish import finish_run
from convalgos.cpu.tiled.driver import BOX_ARGUMENTS, box_of, image_tiles
from convalgos.cpu.vectors.simd import call, carray, pointer


@jit.helper
def transform_outputs(
    a: Any, m: int, k: int, target: int, down: int, pixel: int, first: int, last: int, tiles: int
) -> None:
    """Tiles from `first` to `last` of a row of them: M -> target, for one vector of filters from k on.

    Args:
        target: the first pixel of the whole row of tiles; rows of pixels are `down` elements apart, and
            neighbours in a row `pixel`.
        tiles: of the whole row.
    """
    row_step = a.rows.lattices * down
    # a 1-D transform takes only this one
    column_step = a.columns.lattices * pixel if a.columns.outputs > 1 else row_step
    tile_step = a.columns.written * pixel
    rows, columns = a.rows.outputs, a.columns.outputs if a.columns.outputs > 1 else a.rows.outputs
    for lattice in range(a.rows.lattices * a.columns.lattices):
        at = lattice // a.columns.lattices * down + lattice % a.columns.lattices * pixel + first * tile_step
        from_, to, count = m + first * a.panel * a.sum_size, target + at * a.sum_size, last - first
        if a.finish_tiles:
            bias = a.bias + k * a.sum_size
            steps = bias, a.relu, to, row_step, column_step, tile_step
            call(a.finish_tiles, (from_, a.panel, a.m_point, count, *steps))
        else:
            steps = to, row_step, column_step, tile_step, rows, columns
            call(a.output_tiles, (from_, a.panel, a.m_point, count, *steps))
        m += tiles * a.panel * a.sum_size


@jit.helper
def finish_outputs(a: Any, y: int, filters: int, pixels: int) -> None:
    """The rest of the output step on a run of pixels of some filters, which are stored."""
    if not a.finish:
        return
    if a.columns.y == 1:  # those of a filter are neighbours
        for i in range(filters):
            finish_run(a, y + i * a.y_k * a.y_size, pixels)
    elif a.columns.y == filters:
        finish_run(a, y, pixels * filters)
    else:
        for i in range(pixels):
            finish_run(a, y + i * a.columns.y * a.y_size, filters)


@jit.helper
def scatter_pixels(a: Any, source: int, k: int, filters: int, pixels: int, y: int) -> None:
    """A run of pixels of some filters from k on -> y."""
    if a.finish_tiles:
        call(a.place, (source, a.y_k, a.columns.y, filters, pixels, y))
    else:
        call(a.scatter, (source, a.bias + k * a.sum_size, a.relu, a.y_k, a.columns.y, filters, pixels, y))
    finish_outputs(a, y, filters, pixels)


@jit.helper
def write_run(a: Any, source: int, k: int, filters: int, pixels: int, y: int) -> None:
    """A run of pixels of a vector of filters from k on -> y, which may lie in two blocks."""
    lane = k % a.sum_lanes
    near = min(filters, a.sum_lanes - lane) if a.y_blocks else filters
    scatter_pixels(a, source, k, near, pixels, y)
    if near < filters:  # a group's filters begin amid a block
        rest = y + (a.y_vector - lane) * a.y_size
        scatter_pixels(a, source + near * a.sum_size, k + near, filters - near, pixels, rest)


@jit.helper
def write_slice(
    a: Any, m: int, k: int, filters: int, strip: int, tiles: int, rows: int, pixels: int, own: int, y: int
) -> None:
    """The tiles of a strip of rows, in one slice of depth and one vector of filters from k on.

    Args:
        rows, pixels: of y from the first tile on, which tiles may reach beyond.
    """
    high, width = a.rows.written, tiles * a.columns.written
    inside, in_place = 0, 0  # tiles of a row, and rows of tiles, that are written where they belong
    if a.y_in_place and filters == a.sum_lanes and (k % a.sum_lanes == 0 or not a.y_blocks):
        inside, in_place = min(tiles, pixels // a.columns.written), min(strip, rows // high)
    for i in range(strip):
        start, first = own + i * high * width * a.sum_lanes * a.sum_size, 0
        if i < in_place:
            to, first = y + i * high * a.rows.y * a.y_size, inside
            transform_outputs(a, m, k, to, a.rows.y, a.columns.y, 0, first, tiles)
            for row in range(high if a.finish else 0):
                run = to + row * a.rows.y * a.y_size
                finish_outputs(a, run, filters, first * a.columns.written)
        transform_outputs(a, m, k, start, width * a.sum_lanes, a.sum_lanes, first, tiles, tiles)
        m += tiles * a.row_tiles * a.panel * a.sum_size
    for row in range(rows):
        first = inside * a.columns.written if row < in_place * high else 0
        if first < pixels:
            source = own + (row * width + first) * a.sum_lanes * a.sum_size
            to = y + (row * a.rows.y + first * a.columns.y) * a.y_size
            write_run(a, source, k, filters, pixels - first, to)


@jit.specialise
def write_box() -> Callable[..., None]:
    """M -> y, for some (image, vector of filters) items of a box."""

    def write_box(args: int, index: int, first: int, last: int, shared: int, own: int) -> None:
        a = carray(pointer(args), 1, BOX_ARGUMENTS)[0]
        box = box_of(a, index)
        tiles_w = box.w1 - box.w0
        products = shared + a.points * a.v_point * a.v_size
        left = box.w0 * a.columns.written
        pixels = min(tiles_w * a.columns.written, a.columns.size_out - left)
        for h in range(box.h0, box.h1, a.strip):
            strip = min(a.strip, box.h1 - h)
            top = h * a.rows.written
            rows = min(a.rows.size_out - top, strip * a.rows.written)
            for item in range(first, last):
                n, block = item // a.filter_blocks, item % a.filter_blocks
                k = box.group * a.filters + block * a.sum_lanes
                filters = min(a.sum_lanes, a.filters - block * a.sum_lanes)
                for o in range(box.o0, box.o1):
                    m = ((o - box.o0) * (box.n1 - box.n0) + n) * image_tiles(a, box)
                    m = (m + (h - box.h0) * tiles_w * a.row_tiles) * a.panel
                    m += block // a.vectors * a.m_panel + block % a.vectors * a.parts * a.sum_lanes
                    y = (box.n0 + n) * a.y_n + k // a.sum_lanes * a.y_vector + k % a.sum_lanes * a.y_k
                    y += o * a.depth.y + top * a.rows.y + left * a.columns.y
                    write_slice(
                        a, products + m * a.sum_size, k, filters, strip, tiles_w, rows, pixels, own,
                        a.y + y * a.y_size,
                    )  # fmt: skip

    return write_box
