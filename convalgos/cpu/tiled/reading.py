"""The first step of a box: pixels of x, with their border, are transformed tile by tile into V.

The pixels under a strip of tiles are gathered in a thread's scratch, vector of channels by vector of
channels. Where these are vectors in x already, tiles that lie wholly inside the map are read where they are.
What lies beyond the map is `fill`, or where tables say so, copies of pixels of the map.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from convalgos.cpu.runtime import jit
from convalgos.cpu.tiled.driver import BOX_ARGUMENTS, box_of, image_tiles
from convalgos.cpu.vectors.simd import call, carray, copy_bytes, pointer, zero_bytes

COPIED, GATHERED, BOTH = range(3)  # which pixels beyond the map are read


class Region(NamedTuple):
    """The rows or the columns of pixels under some neighbouring tiles, which may reach beyond the map."""

    start: int  # in the map, of the first pixel
    size: int
    inside0: int  # pixels from here on,
    inside1: int  # up to here, lie in the map;
    tile0: int  # tiles from here on,
    tile1: int  # up to here, lie wholly in the map,
    only0: int  # and pixels from here on,
    only1: int  # up to here, are of no other tiles


@jit.helper
def span(axis: Any, tiles: int) -> Any:
    """`TiledAxis.span`."""
    return (tiles * axis.outputs + axis.taps - 2) * axis.step + axis.tail


@jit.helper
def region_of(axis: Any, first: int, tiles: int) -> Region:
    """The pixels under tiles from `first` on."""
    step = axis.outputs * axis.step
    start, size = first * step - axis.pad, span(axis, tiles)
    tile0 = min(tiles, max(0, -(start // step)))
    tile1 = max(tile0, min(tiles, (axis.size - span(axis, 1) - start) // step + 1))
    inside0 = min(size, max(0, -start))
    inside1 = max(inside0, min(size, axis.size - start))
    return Region(
        start, size, inside0, inside1, tile0, tile1,
        span(axis, tile0) if tile0 > 0 else 0, tile1 * step if tile1 < tiles else size,
    )  # fmt: skip


@jit.helper
def fill_pixels(address: int, count: int, word: int) -> None:
    """Some bytes, a multiple of 8: what the border of a map holds."""
    if word == 0:
        zero_bytes(address, count)
    else:
        words = carray(pointer(address), count // 8, np.int64)
        for i in range(count // 8):
            words[i] = word


@jit.helper
def fill_border(a: Any, own: int, rows: Region, columns: Region) -> None:
    """The pixels that lie beyond the map."""
    pixel = a.lanes * a.size
    for row in range(rows.size):
        start = own + row * columns.size * pixel
        if row < rows.inside0 or row >= rows.inside1:
            fill_pixels(start, columns.size * pixel, a.fill)
        else:
            fill_pixels(start, columns.inside0 * pixel, a.fill)
            fill_pixels(start + columns.inside1 * pixel, (columns.size - columns.inside1) * pixel, a.fill)


@jit.helper
def gather_pixels(a: Any, x: int, lane: int, channels: int, pixels: int, target: int) -> None:
    """A run of pixels of x, of some channels, that begin at a lane of their vector."""
    near = min(channels, a.lanes - lane) if a.x_blocks else channels
    call(a.gather, (x, a.x_c, a.columns.x, near, pixels, target))
    if near < channels:  # a group's channels begin amid a block
        rest = x + (a.x_vector - lane) * a.x_size
        call(a.join, (rest, 1, a.lanes, channels - near, pixels, target + near * a.size))


@jit.helper
def transform_row(
    a: Any, source: int, down: int, pixel: int, first: int, last: int, tiles: int, v: int
) -> None:
    """Tiles from `first` to `last` of a row of them -> V, for one vector of channels.

    Args:
        source: the first pixel under the whole row of tiles; rows of pixels are `down` elements apart, and
            neighbours in a row `pixel`.
        tiles: of the whole row.
    """
    row_step = a.rows.step * down
    # a 1-D transform takes only this one
    column_step = a.columns.step * pixel if a.columns.outputs > 1 else row_step
    tile_step = a.columns.outputs * a.columns.step * pixel
    places = carray(pointer(a.phase_places), a.rows.phases * a.columns.phases, np.int64)
    for lattice in range(a.rows.lattices * a.columns.lattices):
        lattice_h, lattice_w = lattice // a.columns.lattices, lattice % a.columns.lattices
        for phase in range(a.rows.phases * a.columns.phases):
            phase_h, phase_w = phase // a.columns.phases, phase % a.columns.phases
            row = lattice_h * a.rows.stride + phase_h * a.rows.dilation
            column = lattice_w * a.columns.stride + phase_w * a.columns.dilation
            from_ = source + (row * down + column * pixel + first * tile_step) * a.size
            to = v + (first * a.v_row + places[phase] * a.channel_blocks * a.parts * a.lanes) * a.v_size
            call(
                a.input_tiles,
                (from_, row_step, column_step, tile_step, last - first, to, a.v_row, a.v_point),
            )
        v += tiles * a.v_row * a.v_size


@jit.helper
def read_outer_pixels(
    a: Any, x: int, lane: int, channels: int, columns: Region, places: tuple[int, int],
    near: tuple[int, int], way: int, target: int,
) -> None:  # fmt: skip
    """Pixels of a row that lie beyond the map, at some places of it: copies of others.

    Args:
        x: what lies under the first place of the row, be it in the map or not.
        near: places of the pixels that are there already.
        way: `COPIED` are those of which the pixel is near, `GATHERED` the others, `BOTH` all.
    """
    pixel = a.lanes * a.size
    table = carray(pointer(a.column_sources), a.column_places, np.int64)
    for place in range(places[0], places[1]):
        source = table[columns.start + a.columns.pad + place] - columns.start
        if source >= -columns.start:
            is_near = near[0] <= source < near[1]
            if is_near and way != GATHERED:
                copy_bytes(target + place * pixel, target + source * pixel, pixel)
            if not is_near and way != COPIED:
                from_ = x + source * a.columns.x * a.x_size
                gather_pixels(a, from_, lane, channels, 1, target + place * pixel)


@jit.helper
def read_row(a: Any, x: int, lane: int, channels: int, columns: Region, first: int, target: int) -> None:
    """A row of the map, from the pixel at place `first` on, and what lies beyond its ends.

    What is gathered may write some zeros behind itself: pixels are gathered from left to right.
    """
    pixel, near = a.lanes * a.size, (first, columns.inside1)
    left, right = (0, columns.inside0), (columns.inside1, columns.size)
    if a.column_sources:
        read_outer_pixels(a, x, lane, channels, columns, left, near, GATHERED, target)
    if columns.inside1 > first:
        from_ = x + first * a.columns.x * a.x_size
        gather_pixels(a, from_, lane, channels, columns.inside1 - first, target + first * pixel)
    if a.column_sources:
        read_outer_pixels(a, x, lane, channels, columns, left, near, COPIED, target)
        read_outer_pixels(a, x, lane, channels, columns, right, near, BOTH, target)


@jit.helper
def read_outer_rows(
    a: Any, x: int, lane: int, channels: int, rows: Region, columns: Region, first: int, last: int,
    in_place: bool, way: int, own: int,
) -> None:  # fmt: skip
    """The rows from `first` to `last`, which lie beyond the map: copies of rows in it.

    Args:
        way: as of `read_outer_pixels`.
    """
    table = carray(pointer(a.row_sources), a.row_places, np.int64)
    length = columns.size * a.lanes * a.size
    for row in range(first, last):
        source = table[rows.start + a.rows.pad + row] - rows.start
        if source >= -rows.start:
            is_near = rows.inside0 <= source < rows.inside1
            is_near = is_near and not (in_place and rows.only0 <= source < rows.only1)
            if is_near and way != GATHERED:
                copy_bytes(own + row * length, own + source * length, length)
            if not is_near and way != COPIED:
                from_ = x + source * a.rows.x * a.x_size
                read_row(a, from_, lane, channels, columns, columns.inside0, own + row * length)


@jit.helper
def read_slice(
    a: Any, x: int, lane: int, channels: int, outside: bool, rows: Region, columns: Region, strip: int,
    tiles: int, own: int, v: int,
) -> None:  # fmt: skip
    """The tiles of a strip of rows, in one slice of depth and one vector of channels."""
    in_place = a.x_in_place and not outside and channels == a.lanes and (lane == 0 or not a.x_blocks)
    in_place = in_place and rows.tile0 < rows.tile1 and columns.tile0 < columns.tile1
    pixel, copies = a.lanes * a.size, a.row_sources and not outside
    if copies:
        end = rows.inside0
        read_outer_rows(a, x, lane, channels, rows, columns, 0, end, in_place, GATHERED, own)
    for row in range(rows.inside0, rows.inside0 if outside else rows.inside1):
        source, target = x + row * a.rows.x * a.x_size, own + row * columns.size * pixel
        start = columns.inside0
        if in_place and rows.only0 <= row < rows.only1:  # what is between is read from x
            if columns.only0 > start:
                from_, count = source + start * a.columns.x * a.x_size, columns.only0 - start
                gather_pixels(a, from_, lane, channels, count, target + start * pixel)
            start = max(start, columns.only1)
        read_row(a, source, lane, channels, columns, start, target)
    if copies:
        end = rows.inside0
        read_outer_rows(a, x, lane, channels, rows, columns, 0, end, in_place, COPIED, own)
        end = rows.inside1
        read_outer_rows(a, x, lane, channels, rows, columns, end, rows.size, in_place, BOTH, own)
    if a.refills:
        fill_border(a, own, rows, columns)
    down, step = columns.size * a.lanes, a.rows.outputs * a.rows.step
    for i in range(strip):
        source, end = own + i * step * down * a.size, tiles
        if in_place and rows.tile0 <= i < rows.tile1:
            from_ = x + i * step * a.rows.x * a.size
            transform_row(a, from_, a.rows.x, a.columns.x, columns.tile0, columns.tile1, tiles, v)
            transform_row(a, source, down, a.lanes, columns.tile1, tiles, tiles, v)
            end = columns.tile0
        transform_row(a, source, down, a.lanes, 0, end, tiles, v)
        v += tiles * a.row_tiles * a.v_row * a.v_size


@jit.specialise
def read_box() -> Callable[..., None]:
    """x -> V, for some (image, vector of channels) items of a box."""

    def read_box(args: int, index: int, first: int, last: int, shared: int, own: int) -> None:
        a = carray(pointer(args), 1, BOX_ARGUMENTS)[0]
        box = box_of(a, index)
        slots = (
            (box.o1 - box.o0 - 1) * a.depth.stride + (a.depth.taps - 1) * a.depth.dilation
        ) // a.slot_step + 1
        tiles_w = box.w1 - box.w0
        columns = region_of(a.columns, box.w0, tiles_w)
        for h in range(box.h0, box.h1, a.strip):
            strip = min(a.strip, box.h1 - h)
            rows = region_of(a.rows, h, strip)
            fill_border(a, own, rows, columns)
            for item in range(first, last):
                n, block = item // a.channel_blocks, item % a.channel_blocks
                channels = min(a.lanes, a.channels - block * a.lanes)
                c = box.group * a.channels + block * a.lanes
                x = (box.n0 + n) * a.x_n + c // a.lanes * a.x_vector + c % a.lanes * a.x_c
                x += rows.start * a.rows.x + columns.start * a.columns.x
                for slot in range(slots):
                    d = box.o0 * a.depth.stride - a.depth.pad + slot * a.slot_step
                    if a.depth_sources:
                        d = carray(pointer(a.depth_sources), a.depth.pad + d + 1, np.int64)[a.depth.pad + d]
                    outside = d < 0 or d >= a.depth.size
                    if outside and not a.fills_depth:
                        continue  # the products leave it out
                    if outside:
                        fill_pixels(own, rows.size * columns.size * a.lanes * a.size, a.fill)
                    plane = a.x + (x + d * a.depth.x) * a.x_size
                    v = slot * a.slot_tiles + n * image_tiles(a, box) + (h - box.h0) * tiles_w * a.row_tiles
                    v = shared + (v * a.v_row + block * a.parts * a.lanes) * a.v_size
                    read_slice(
                        a, plane, c % a.lanes, channels, outside, rows, columns, strip, tiles_w, own, v
                    )

    return read_box
