"""The first step of a box: pixels of x, with their zero border, are transformed tile by tile into V."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from convalgos.cpu.runtime import jit
from convalgos.cpu.tiled.driver import BOX_ARGUMENTS, box_of, image_tiles
from convalgos.cpu.vectors.simd import call, carray, pointer, zero_bytes


@jit.helper
def span(axis: Any, tiles: int) -> Any:
    """`TiledAxis.span`."""
    return (tiles * axis.outputs + axis.taps - 2) * axis.step + axis.tail


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
def transform_inputs(a: Any, source: int, width: int, strip: int, tiles_w: int, v: int) -> None:
    """All tiles of a strip of rows: source (row, column, lane) -> V, for one vector of channels."""
    pixel = a.lanes * a.size
    down = a.rows.step * width * a.lanes
    # a 1-D transform takes only this one
    across = a.columns.step * a.lanes if a.columns.outputs > 1 else down
    places = carray(pointer(a.phase_places), a.rows.phases * a.columns.phases, np.int64)
    for i in range(strip):
        for lattice in range(a.rows.lattices * a.columns.lattices):
            lattice_h, lattice_w = lattice // a.columns.lattices, lattice % a.columns.lattices
            for phase in range(a.rows.phases * a.columns.phases):
                phase_h, phase_w = phase // a.columns.phases, phase % a.columns.phases
                row = i * a.rows.outputs * a.rows.step + lattice_h * a.rows.stride + phase_h * a.rows.dilation
                column = lattice_w * a.columns.stride + phase_w * a.columns.dilation
                first = source + (row * width + column) * pixel
                target = v + places[phase] * a.channel_blocks * a.parts * a.lanes * a.v_size
                tile_step = a.columns.outputs * a.columns.step * a.lanes
                call(a.input_tiles, (first, down, across, tile_step, tiles_w, target, a.v_row, a.v_point))
            v += tiles_w * a.v_row * a.v_size


@jit.specialise
def read_box() -> Callable[..., None]:
    """x -> V, for some (image, vector of channels) items of a box."""

    def read_box(args: int, index: int, first: int, last: int, shared: int, own: int) -> None:
        a = carray(pointer(args), 1, BOX_ARGUMENTS)[0]
        box = box_of(a, index)
        pixel = a.lanes * a.size
        slots = (
            (box.o1 - box.o0 - 1) * a.depth.stride + (a.depth.taps - 1) * a.depth.dilation
        ) // a.slot_step + 1
        tiles_w = box.w1 - box.w0
        # The region under a strip of tiles begins at (top, left) of the map, and may reach beyond it.
        left = box.w0 * a.columns.outputs * a.columns.step - a.columns.pad
        width = span(a.columns, tiles_w)
        column0, column1 = max(0, -left), min(width, a.columns.size - left)  # of the region, inside the map
        for h in range(box.h0, box.h1, a.strip):
            strip = min(a.strip, box.h1 - h)
            top = h * a.rows.outputs * a.rows.step - a.rows.pad
            height = span(a.rows, strip)
            row0, row1 = max(0, -top), min(height, a.rows.size - top)
            if max(row0, column0) > 0 or row1 < height or column1 < width:
                fill_pixels(own, height * width * pixel, a.fill)
            for item in range(first, last):
                n, block = item // a.channel_blocks, item % a.channel_blocks
                channels = min(a.lanes, a.channels - block * a.lanes)
                c = box.group * a.channels + block * a.lanes
                x = (box.n0 + n) * a.x_n + c // a.lanes * a.x_vector + c % a.lanes * a.x_c
                near = min(channels, a.lanes - c % a.lanes) if a.x_blocks else channels
                for slot in range(slots):
                    d = box.o0 * a.depth.stride - a.depth.pad + slot * a.slot_step
                    outside = d < 0 or d >= a.depth.size
                    if outside and not a.fills_depth:
                        continue  # the products leave it out
                    if outside:
                        fill_pixels(own, height * width * pixel, a.fill)
                    plane = x + d * a.depth.x + (left + column0) * a.columns.x
                    for row in range(row0, row0 if outside else row1):
                        source = a.x + (plane + (top + row) * a.rows.x) * a.x_size
                        target = own + (row * width + column0) * pixel
                        call(a.gather, (source, a.x_c, a.columns.x, near, column1 - column0, target))
                        if near < channels:  # a group's channels begin amid a block
                            source += (a.x_vector - c % a.lanes) * a.x_size
                            target += near * a.size
                            call(a.join, (source, 1, a.lanes, channels - near, column1 - column0, target))
                    v = slot * a.slot_tiles + n * image_tiles(a, box) + (h - box.h0) * tiles_w * a.row_tiles
                    v = shared + (v * a.v_row + block * a.parts * a.lanes) * a.v_size
                    transform_inputs(a, own, width, strip, tiles_w, v)

    return read_box
