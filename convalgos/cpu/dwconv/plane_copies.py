"""Planes of a depthwise layer copied with their border into scratch, for the gradient of the filter.

There is a plane for each phase of the strides. Three kernels copy the rows of a slice that lie under a block
of outputs: `border_rows` neighbours in a row, `border_pixels` vectors of channels, and `border_transposed`
the same of maps with channels first. With BORDER 0 zeros lie beyond the edges; otherwise tables tell of which
row and column each is a copy, and what is no copy becomes `fill`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from convalgos.core.boundaries import OUTSIDE, source_indices
from convalgos.cpu.dwconv.padded_planes import PaddedPlanes
from convalgos.cpu.layout.channel_vectors import copy_pixels
from convalgos.cpu.layout.strided_rows import split_any_row, split_rows
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import arguments
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.simd import Value, Vec, carray, copy_bytes, pointer
from convalgos.cpu.vectors.transpose import transpose

# `sources_*`: where each slice, row and column lies in x, from those of the padding on, or OUTSIDE.
DEPTHWISE_WEIGHTS_FIELDS = arguments(
    "size lanes images channels tasks units unit together multiplier taps row_taps tiles tap_tiles down "
    "across o p q block_o block_p block_q blocks_o blocks_p blocks_q depth height width stride_d stride_h "
    "stride_w pad_d pad_h pad_w slices rows pitch plane planes sums x_n x_c x_d x_h x_w y_n y_k y_o y_p y_q "
    "y_step by_channel scratch_stride border_rows place_sums gather places fetch_x fetch_y "
    "sources_d sources_h sources_w end_w fill"
)


def source_tables(cut: PaddedPlanes) -> list[np.ndarray]:
    """Of slices, rows and columns, each from its padding to the end of the last block."""
    p, tables = cut.problem, []
    for axis in range(3):
        (low, high), stride, size = p.padding[axis], p.stride[axis], p.spatial[axis]
        last = (cut.blocks[axis] - 1) * cut.block[axis] * stride + cut.sizes[axis] * stride
        table = np.full(max(last, low + size + high), OUTSIDE, np.int64)
        table[: low + size + high] = source_indices(p.boundary[axis], size, low, high)
        tables.append(table)
    return tables


@simd.emitter
def fill_places(v: Vec, target: Value, count: Value, fill: Value) -> None:
    """target[:count] = fill[0]; count is a multiple of lanes."""
    value = v.broadcast(v.pointer(fill))
    with v.loop(v.idiv(count, v.lanes)) as i:
        v.store(value, v.pointer(target), v.imul(i, v.lanes))


@jit.helper
def row_in_map(a: Any, row: int, border: int) -> int:
    """The row of x that lies at a row of the map or of its border, or OUTSIDE."""
    if border:
        row = carray(pointer(a.sources_h), 1, np.int64)[row]
        return row
    return row if row >= 0 and row < a.height else OUTSIDE


@jit.helper
def copy_ends(
    a: Any, row: int, w: int, before: int, inside: int, target: int, size: int, lanes: int, pixel: int
) -> None:
    """Places of a row from column w on that lie beyond the map: behind the first `before`, `inside` do not.

    Args:
        row: where column 0 of the row lies, pixels of it `pixel` bytes apart. What is copied are `lanes`
            elements of `size` bytes.
    """
    sources = carray(pointer(a.sources_w), 1, np.int64)
    end = min(a.pitch * a.stride_w, a.end_w - w)
    for i in range(end - inside):
        place = i if i < before else i + inside
        to = target + (place % a.stride_w * a.plane + place // a.stride_w * lanes) * size
        source = sources[w + place]
        if source == OUTSIDE:
            for lane in range(lanes):
                copy_bytes(to + lane * size, a.fill, size)
        else:
            copy_bytes(to, row + source * pixel, lanes * size)


@jit.specialise
def border_rows(SIZE: int, LANES: int, STRIDE: int, BORDER: int) -> jit.Kernel:
    """Rows of a slice from (h, w) on, and what lies outside of it, to phases of rows and columns.

    `there` tells whether there is such a slice; `ahead` is asked into L2. STRIDE 0 is any stride along the
    row: a few elements at a time.
    """

    def border_rows(
        args: int, x: int, channels: int, there: int, h: int, w: int, target: int, ahead: int
    ) -> None:
        a = carray(pointer(args), 1, DEPTHWISE_WEIGHTS_FIELDS)[0]
        stride, pitch, plane, x_h, down = a.stride_w, a.pitch, a.plane, a.x_h, a.stride_h
        rows, fetch = a.rows, a.fetch_x
        before = min(max(0, -w), pitch * stride)
        inside = max(0, min(a.width - w, pitch * stride) - before)
        there = there if inside > 0 or BORDER else 0
        for i in range(rows):
            simd.fetch_bytes(SIZE, LANES, 0, ahead + i * fetch, fetch)
            for j in range(down):  # row by row, as they lie in memory
                to = target + (j * stride * plane + i * pitch) * SIZE
                row = row_in_map(a, h + i * down + j, BORDER) if there else OUTSIDE
                from_ = x + (row * x_h + w + before) * SIZE
                if row == OUTSIDE or inside == 0:
                    for phase in range(stride):
                        fill_places(SIZE, LANES, to + phase * plane * SIZE, pitch, a.fill)
                elif STRIDE:
                    split_rows(SIZE, LANES, STRIDE, STRIDE, from_, 0, 1, before, inside, to, 0, pitch, plane)
                else:
                    split_any_row(from_, before, inside, to, pitch, plane, stride, stride, SIZE)
                if BORDER and row != OUTSIDE:
                    copy_ends(a, x + row * x_h * SIZE, w, before, inside, to, SIZE, 1, SIZE)

    return border_rows


@jit.specialise
def border_pixels(SIZE: int, LANES: int, BORDER: int) -> jit.Kernel:
    """`border_rows` of vectors of channels, of which lanes beyond `channels` become 0; asks for nothing."""

    def border_pixels(
        args: int, x: int, channels: int, there: int, h: int, w: int, target: int, ahead: int
    ) -> None:
        a = carray(pointer(args), 1, DEPTHWISE_WEIGHTS_FIELDS)[0]
        pitch, plane, x_h, down = a.pitch, a.plane, a.x_h, a.stride_h
        rows, stride, step = a.rows, a.stride_w, a.stride_w * a.x_w
        sources = carray(pointer(a.sources_w), 1, np.int64)
        for phase in range(stride):
            first = w + phase  # column of the first place, then of the first one inside
            low = min(pitch, (max(0, -first) + stride - 1) // stride)
            count = max(0, min(pitch, (a.width - first + stride - 1) // stride) - low)
            end = min(pitch, (a.end_w - first + stride - 1) // stride)
            from_ = x + (first + low * stride) * a.x_w * SIZE
            for i in range(rows):
                for j in range(down):
                    to = target + ((j * stride + phase) * plane + i * pitch * LANES) * SIZE
                    row = row_in_map(a, h + i * down + j, BORDER) if there else OUTSIDE
                    if row == OUTSIDE:
                        fill_places(SIZE, LANES, to, pitch * LANES, a.fill)
                    else:
                        fill_places(SIZE, LANES, to, low * LANES, a.fill)
                        place = to + low * LANES * SIZE
                        copy_pixels(SIZE, LANES, from_ + row * x_h * SIZE, step, channels, count, place)
                        behind = (pitch - low - count) * LANES
                        fill_places(SIZE, LANES, place + count * LANES * SIZE, behind, a.fill)
                        for k in range(end - count if BORDER else 0):
                            at = k if k < low else k + count
                            source = sources[first + at * stride]
                            if source != OUTSIDE:
                                from_row = x + (row * x_h + source * a.x_w) * SIZE
                                copy_pixels(SIZE, LANES, from_row, 0, channels, 1, to + at * LANES * SIZE)

    return border_pixels


@simd.emitter
def border_square(
    v: Vec,
    WHOLE: int,
    x: Value,
    x_stride: Value,
    channels: Value,
    columns: Value,
    places: Value,
    target: Value,
) -> None:
    """target[places[j]:][i] = x[i][j] for i < channels <= lanes, j < columns <= lanes; WHOLE: both are lanes.

    Lanes beyond the channels hold some value or other.
    """
    to, row, read = v.pointer(target), v.step(v.pointer(x), 0), []
    inside = v.mask(columns)
    for i in range(v.lanes):
        if WHOLE:
            row = v.step(row, x_stride) if i else row
            read.append(v.load(row))
        else:
            read.append(v.load_masked(row, v.imul(v.imin(i, v.isub(channels, 1)), x_stride), inside))
    pixels = transpose(v, read)
    for j in reversed(range(v.lanes)):  # those beyond the last go to its place first, and it goes there last
        entry = j if WHOLE else v.imin(j, v.isub(columns, 1))
        v.store(pixels[j], to, v.table64(places, entry))


@jit.helper
def turn_rows(
    a: Any, x: int, channels: int, pixels: int, places: int, target: int, SIZE: int, LANES: int
) -> None:
    """Neighbouring pixels of x to their places, square by square."""
    for start in range(0, pixels, LANES):
        count = min(LANES, pixels)
        at = min(start, pixels - count)  # the last square overlaps the one before
        from_, table = x + at * SIZE, places + at * 8
        if count == LANES and channels == LANES:
            border_square(SIZE, LANES, 1, from_, a.x_c, channels, count, table, target)
        else:
            border_square(SIZE, LANES, 0, from_, a.x_c, channels, count, table, target)


@jit.specialise
def border_transposed(SIZE: int, LANES: int, BORDER: int) -> jit.Kernel:
    """`border_pixels` of whole rows with channels first: squares are turned, and put where they belong.

    1. Rows of the band that lie in the map, 2. what lies beyond their ends, 3. rows that do not: copies of
    rows of the band, or of others.
    """

    def border_transposed(
        args: int, x: int, channels: int, there: int, h: int, w: int, target: int, ahead: int
    ) -> None:
        a = carray(pointer(args), 1, DEPTHWISE_WEIGHTS_FIELDS)[0]
        width, plane, pitch, down, stride = a.width, a.plane, a.pitch, a.stride_h, a.stride_w
        band = a.rows * down
        first = min(max(0, -h), band)  # of the rows that there are
        end = max(first, min(band, a.height - h)) if there else first
        if end > first:
            table = a.places + first * width * 8
            turn_rows(
                a, x + (h + first) * width * SIZE, channels, (end - first) * width, table, target, SIZE, LANES
            )
        pixel = LANES * SIZE
        for n in range(band):
            i = first + n if first + n < band else n + first - band  # rows that are there come first
            offset = (i % down * stride * plane + i // down * pitch * LANES) * SIZE
            near = i >= first and i < end
            row = OUTSIDE
            if there:
                row = h + i if near else row_in_map(a, h + i, BORDER)
            if row == OUTSIDE:
                for phase in range(stride):
                    fill_places(SIZE, LANES, target + offset + phase * plane * SIZE, pitch * LANES, a.fill)
            elif BORDER:
                copied = row - h
                if not near and copied >= first and copied < end:
                    source = (copied % down * stride * plane + copied // down * pitch * LANES) * SIZE
                    for phase in range(stride):
                        shift = target + phase * plane * SIZE
                        copy_bytes(shift + offset, shift + source, pitch * pixel)
                else:
                    if not near:
                        turn_rows(
                            a, x + row * width * SIZE, channels, width, a.places, target + offset, SIZE, LANES
                        )
                    turned_ends(a, target + offset, SIZE, LANES)

    return border_transposed


@jit.helper
def turned_ends(a: Any, row: int, size: int, lanes: int) -> None:
    """What lies beyond the ends of a row that is in its planes."""
    sources = carray(pointer(a.sources_w), 1, np.int64)
    stride, plane = a.stride_w, a.plane
    end = min(a.pitch * stride, a.end_w + a.pad_w)
    for i in range(end - a.width):
        place = i if i < a.pad_w else i + a.width
        to = row + (place % stride * plane + place // stride * lanes) * size
        source = sources[place - a.pad_w]
        if source == OUTSIDE:
            fill_places(size, lanes, to, lanes, a.fill)
        else:
            column = source + a.pad_w
            copy_bytes(to, row + (column % stride * plane + column // stride * lanes) * size, lanes * size)
