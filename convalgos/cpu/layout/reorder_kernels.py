"""Kernels of reorders: squares of channels and pixels turned over in registers, or vectors of channels moved.

A map lies as (N, blocks, pixels, width): blocks of `width` channels, which is 1 in channels_first, all
channels in channels_last, and those of a block in blocked layouts. Work is dealt in units: some pixels of a
vector of channels. Where a map has whole vectors and squares, the last of them overlap those before; lanes
beyond the channels are written as 0, and are not read.

Matrices of arrays whose axes lie in another order are turned over, too: of y, C-contiguous, the last axis
holds the `rows` of x, which lie apart there, and another axis the `columns`, which are neighbours in x.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import arguments, fields
from convalgos.cpu.vectors import simd, transpose
from convalgos.cpu.vectors.simd import Value, Vec, carray, pointer

# Of x and y: channels that lie side by side, and elements from image to image; `written`: channels of y, with
# those beyond the last that fill its block; vectors of channels, and the first channel of the last vector.
REORDER_FIELDS = arguments("images channels pixels x_width y_width x_n y_n written vectors last chunk tasks")


def _picked(v: Vec, vectors: Sequence[Value], places: Sequence[tuple[int, int]]) -> Value:
    """A vector of elements of several ones; places: (which vector, which lane) of each."""
    n = v.lanes
    order = [lane + which * n if which < 2 else 0 for which, lane in places]
    found = v.shuffle(vectors[0], vectors[1], order)
    for i in range(2, len(vectors)):
        here = enumerate(places)
        found = v.shuffle(found, vectors[i], [n + p if which == i else at for at, (which, p) in here])
    return found


@simd.emitter
def split_pixels(v: Vec, CHANNELS: int, x: Value, pixels: Value, y: Value, y_stride: Value) -> None:
    """y[c][j] = x[j][c], for c < CHANNELS, of which there are at least two, and j < pixels."""
    source, to = v.pointer(x), v.pointer(y)
    whole = v.idiv(pixels, v.lanes)
    with v.loop(whole) as i:
        at = v.imul(i, v.lanes)
        read = v.at(source, v.imul(at, CHANNELS))
        vectors = [v.load(read, k * v.lanes) for k in range(CHANNELS)]
        for c in range(CHANNELS):
            places = [divmod(lane * CHANNELS + c, v.lanes) for lane in range(v.lanes)]
            v.store(_picked(v, vectors, places), to, v.iadd(v.imul(y_stride, c), at))
    done = v.imul(whole, v.lanes)
    with v.loop(v.isub(pixels, done)) as i:
        at = v.iadd(done, i)
        for c in range(CHANNELS):
            element = v.b.load(v.at(source, v.iadd(v.imul(at, CHANNELS), c)), typ=v.element)
            v.b.store(element, v.at(to, v.iadd(v.imul(y_stride, c), at)))


@simd.emitter
def join_pixels(v: Vec, CHANNELS: int, x: Value, x_stride: Value, pixels: Value, y: Value) -> None:
    """y[j][c] = x[c][j], for c < CHANNELS, of which there are at least two, and j < pixels."""
    source, to = v.pointer(x), v.pointer(y)
    whole = v.idiv(pixels, v.lanes)
    with v.loop(whole) as i:
        at = v.imul(i, v.lanes)
        write = v.at(to, v.imul(at, CHANNELS))
        vectors = [v.load(source, v.iadd(v.imul(x_stride, c), at)) for c in range(CHANNELS)]
        for k in range(CHANNELS):
            elements = [divmod(k * v.lanes + lane, CHANNELS) for lane in range(v.lanes)]
            v.store(_picked(v, vectors, [(c, pixel) for pixel, c in elements]), write, k * v.lanes)
    done = v.imul(whole, v.lanes)
    with v.loop(v.isub(pixels, done)) as i:
        at = v.iadd(done, i)
        for c in range(CHANNELS):
            element = v.b.load(v.at(source, v.iadd(v.imul(x_stride, c), at)), typ=v.element)
            v.b.store(element, v.at(to, v.iadd(v.imul(at, CHANNELS), c)))


@simd.emitter
def turn_square(
    v: Vec, x: Value, x_stride: Value, rows: Value, columns: Value, y: Value, y_stride: Value, written: Value
) -> None:
    """y[j][i] = x[i][j] for i < rows <= lanes, j < columns <= lanes; nothing else is read.

    y[j][i] = 0 for rows <= i < written; nothing else is written.
    """
    source, to = v.pointer(x), v.pointer(y)
    across, down = v.mask(columns), v.mask(written)
    last_row, last_column = v.isub(rows, 1), v.isub(columns, 1)
    read = []
    for i in range(v.lanes):
        row = v.load_masked(source, v.imul(v.imin(i, last_row), x_stride), across)
        read.append(v.b.select(v.b.icmp_signed("<", v.integer(i), rows), row, v.zero()))
    turned = transpose.transpose(v, read)
    for j in reversed(range(v.lanes)):  # those beyond the last write to it first, and it writes last itself
        v.store_masked(turned[j], to, v.imul(v.imin(j, last_column), y_stride), down)


@simd.emitter
def move_lanes(
    v: Vec, x: Value, x_stride: Value, channels: Value, pixels: Value, y: Value, y_stride: Value,
    written: Value,
) -> None:  # fmt: skip
    """y[j * y_stride + i] = x[j * x_stride + i] for i < channels <= lanes, j < pixels; 0 up to `written`."""
    source, to = v.pointer(x), v.pointer(y)
    read, write = v.mask(channels), v.mask(written)
    with v.choose(v.isub(v.imin(channels, written), v.lanes)) as (whole, part):
        with whole, v.loop(pixels) as j:
            v.store(v.load(source, v.imul(j, x_stride)), to, v.imul(j, y_stride))
        with part, v.loop(pixels) as j:
            v.store_masked(v.load_masked(source, v.imul(j, x_stride), read), to, v.imul(j, y_stride), write)


class ReorderUnit(NamedTuple):
    """Some pixels of a vector of channels."""

    x: int  # addresses
    y: int
    pixels: int
    channels: int  # from the first one on; at most 0 where it lies beyond the last
    written: int


@jit.helper
def units_of(a: Any, task: int) -> tuple[int, int]:
    """(the first unit of a task, the one behind its last)."""
    units = (a.pixels + a.chunk - 1) // a.chunk * a.vectors * a.images
    return units * task // a.tasks, units * (task + 1) // a.tasks


@jit.helper
def unit_of(a: Any, unit: int, size: int, lanes: int) -> ReorderUnit:
    """Vectors of the same pixels are neighbours."""
    chunks = (a.pixels + a.chunk - 1) // a.chunk
    start = unit // a.vectors % chunks * a.chunk
    image = unit // (a.vectors * chunks)
    first = min(unit % a.vectors * lanes, a.last)
    x = image * a.x_n + (first // a.x_width * a.pixels + start) * a.x_width + first % a.x_width
    y = image * a.y_n + (first // a.y_width * a.pixels + start) * a.y_width + first % a.y_width
    pixels = min(a.chunk, a.pixels - start)
    return ReorderUnit(
        a.x + x * size, a.y + y * size, pixels, min(lanes, a.channels - first), min(lanes, a.written - first)
    )


@jit.specialise
def reorder_rows(SIZE: int, LANES: int) -> jit.Kernel:
    """channels_first into a layout whose pixels have several channels side by side."""

    def reorder_rows(args: int, task: int) -> None:
        a = carray(pointer(args), 1, REORDER_FIELDS)[0]
        first, end = units_of(a, task)
        for number in range(first, end):
            u = unit_of(a, number, SIZE, LANES)
            if u.channels == LANES and u.pixels >= LANES:
                for start in range(0, u.pixels, LANES):
                    p = min(start, u.pixels - LANES)
                    transpose.load_whole_square(
                        SIZE, LANES, u.x + p * SIZE, a.pixels, u.y + p * a.y_width * SIZE, a.y_width
                    )
            elif u.channels > 0:
                for p in range(0, u.pixels, LANES):
                    turn_square(
                        SIZE, LANES, u.x + p * SIZE, a.pixels, u.channels, min(LANES, u.pixels - p),
                        u.y + p * a.y_width * SIZE, a.y_width, u.written,
                    )  # fmt: skip
            else:
                move_lanes(SIZE, LANES, u.x, 0, 0, u.pixels, u.y, a.y_width, u.written)

    return reorder_rows


@jit.specialise
def reorder_pixels(SIZE: int, LANES: int) -> jit.Kernel:
    """A layout whose pixels have several channels side by side into channels_first."""

    def reorder_pixels(args: int, task: int) -> None:
        a = carray(pointer(args), 1, REORDER_FIELDS)[0]
        first, end = units_of(a, task)
        for number in range(first, end):
            u = unit_of(a, number, SIZE, LANES)
            if u.channels == LANES and u.pixels >= LANES:
                for start in range(0, u.pixels, LANES):
                    p = min(start, u.pixels - LANES)
                    transpose.place_whole_square(
                        SIZE, LANES, u.x + p * a.x_width * SIZE, a.x_width, u.y + p * SIZE, a.pixels
                    )
            else:
                for p in range(0, u.pixels, LANES):
                    count = min(LANES, u.pixels - p)
                    turn_square(
                        SIZE, LANES, u.x + p * a.x_width * SIZE, a.x_width, count, u.channels,
                        u.y + p * SIZE, a.pixels, count,
                    )  # fmt: skip

    return reorder_pixels


@jit.specialise
def reorder_blocks(SIZE: int, LANES: int) -> jit.Kernel:
    """Blocks of other channels: between blocked layouts, and between them and channels_last."""

    def reorder_blocks(args: int, task: int) -> None:
        a = carray(pointer(args), 1, REORDER_FIELDS)[0]
        first, end = units_of(a, task)
        for number in range(first, end):
            u = unit_of(a, number, SIZE, LANES)
            move_lanes(SIZE, LANES, u.x, a.x_width, u.channels, u.pixels, u.y, a.y_width, u.written)

    return reorder_blocks


@jit.specialise
def reorder_few(SIZE: int, LANES: int, CHANNELS: int, TO_LAST: int) -> jit.Kernel:
    """Between channels_first and channels_last, of as many channels as are split and joined by shuffles."""

    def reorder_few(args: int, task: int) -> None:
        a = carray(pointer(args), 1, REORDER_FIELDS)[0]
        chunks = (a.pixels + a.chunk - 1) // a.chunk
        units = chunks * a.images
        for unit in range(units * task // a.tasks, units * (task + 1) // a.tasks):
            start = unit % chunks * a.chunk
            pixels = min(a.chunk, a.pixels - start)
            x = a.x + (unit // chunks * a.x_n + start * a.x_width) * SIZE
            y = a.y + (unit // chunks * a.y_n + start * a.y_width) * SIZE
            if TO_LAST:
                join_pixels(SIZE, LANES, CHANNELS, x, a.pixels, pixels, y)
            else:
                split_pixels(SIZE, LANES, CHANNELS, x, pixels, y, a.pixels)

    return reorder_few


# Two axes of matrices: how many, and elements from one to the next in x and in y; the same of rows, which are
# neighbours in y, and of columns, which are in x; and of a block of a matrix.
TURN_FIELDS = fields(
    "x y outer outer_x outer_y inner inner_x inner_y rows x_row columns y_column high wide tasks"
)


@jit.helper
def turn_block(
    SIZE: int, LANES: int, x: int, x_row: int, rows: int, columns: int, y: int, y_column: int
) -> None:
    """y[j * y_column + i] = x[i * x_row + j] for i < rows, j < columns; the last squares overlap others."""
    for j in range(0, columns, LANES):
        if rows >= LANES and columns >= LANES:
            at_j = min(j, columns - LANES)
            for i in range(0, rows, LANES):
                at_i = min(i, rows - LANES)
                transpose.load_whole_square(
                    SIZE, LANES, x + (at_i * x_row + at_j) * SIZE, x_row,
                    y + (at_j * y_column + at_i) * SIZE, y_column,
                )  # fmt: skip
        else:
            for i in range(0, rows, LANES):
                many = min(LANES, rows - i)
                turn_square(
                    SIZE, LANES, x + (i * x_row + j) * SIZE, x_row, many, min(LANES, columns - j),
                    y + (j * y_column + i) * SIZE, y_column, many,
                )  # fmt: skip


@jit.specialise
def turn_matrices(SIZE: int, LANES: int) -> jit.Kernel:
    """Blocks of a task, neighbours in a row of x one after the other."""

    def turn_matrices(args: int, task: int) -> None:
        a = carray(pointer(args), 1, TURN_FIELDS)[0]
        down, across = (a.rows + a.high - 1) // a.high, (a.columns + a.wide - 1) // a.wide
        total = a.outer * down * a.inner * across
        for unit in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            column, rest = unit % across * a.wide, unit // across
            inner, rest = rest % a.inner, rest // a.inner
            row, outer = rest % down * a.high, rest // down
            x = a.x + (outer * a.outer_x + inner * a.inner_x + row * a.x_row + column) * SIZE
            y = a.y + (outer * a.outer_y + inner * a.inner_y + column * a.y_column + row) * SIZE
            rows, columns = min(a.high, a.rows - row), min(a.wide, a.columns - column)
            turn_block(SIZE, LANES, x, a.x_row, rows, columns, y, a.y_column)

    return turn_matrices
