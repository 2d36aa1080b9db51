"""The driver of convolution by tiles of planes: tiles dealt to tasks, their borders, and their three passes.

Each unit is a tile of outputs of one plane: the rows of x under it are transformed where they lie, or from a
copy where the tile reaches over the ends of rows; multiplied by the spectrum of the filter; and transformed
back into y. Rows of a tile that are no outputs go to a row of scratch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.finish import finish_run
from convalgos.cpu.runtime.plan import arguments
from convalgos.cpu.vectors.simd import call, carray, copy_bytes, pointer, zero_bytes

# Tables name the row and the column of x at each place of the padded map, or -1, for which `fill` stands.
# Rows, planes and parts of scratch in bytes, `group` in elements.
PLANE_FIELDS = arguments(
    "planes channels filters tiles_h tiles_w height width step_h step_w out_h out_w x_n x_plane x_row y_n "
    "y_plane y_row size_w low_w row_sources column_sources borders fill w_step group groups turns_h turns_w "
    "forward multiply backward tasks scratch_stride targets_at copy_at spectrum_at"
)


@jit.helper
def copy_row(a: Any, size: int, source: int, target: int, left: int) -> None:
    """The row of a tile whose first column is `left` in the padded map; source: the row of x."""
    begin = left - a.low_w
    low = min(a.width, max(0, -begin))
    high = max(low, min(a.width, a.size_w - begin))
    copy_bytes(target + low * size, source + (begin + low) * size, (high - low) * size)
    if a.borders == 0:
        zero_bytes(target, low * size)
        zero_bytes(target + high * size, (a.width - high) * size)
    else:
        columns = carray(pointer(a.column_sources), left + a.width, np.int64)
        for i in range(low + a.width - high):
            j = i if i < low else i - low + high
            column = columns[left + j]
            copy_bytes(target + j * size, a.fill if column < 0 else source + column * size, size)


@jit.helper
def find_tile_rows(a: Any, size: int, x: int, top: int, left: int, table: int, copy: int) -> None:
    """The table of the rows of a tile: in x, in a copy, or of the fill value."""
    rows = carray(pointer(table), a.height, np.int64)
    sources = carray(pointer(a.row_sources), top + a.height, np.int64)
    begin = left - a.low_w
    direct = begin >= 0 and begin + a.width <= a.size_w
    for i in range(a.height):
        source = sources[top + i]
        if source < 0:
            rows[i] = a.fill
        elif direct:
            rows[i] = x + source * a.x_row + begin * size
        else:
            rows[i] = copy + i * a.width * size
            copy_row(a, size, x + source * a.x_row, rows[i], left)


@jit.specialise
def convolve_tiles(SIZE: int) -> jit.Kernel:
    """The tiles of a task."""

    def convolve_tiles(args: int, task: int) -> None:
        a = carray(pointer(args), 1, PLANE_FIELDS)[0]
        scratch = a.scratch + task * a.scratch_stride
        targets = carray(pointer(scratch + a.targets_at), a.height, np.int64)
        spectrum, copy = scratch + a.spectrum_at, scratch + a.copy_at
        tiles = a.tiles_h * a.tiles_w
        units = a.planes * tiles
        for unit in range(units * task // a.tasks, units * (task + 1) // a.tasks):
            tile, plane = unit % tiles, unit // tiles
            top, left = tile // a.tiles_w * a.step_h, tile % a.tiles_w * a.step_w
            n, k = plane // a.filters, plane % a.filters
            x = a.x + n * a.x_n + k // (a.filters // a.channels) * a.x_plane
            find_tile_rows(a, SIZE, x, top, left, scratch, copy)
            call(a.forward, (scratch, a.width, a.turns_h, spectrum, a.group))
            call(a.multiply, (spectrum, a.group, a.groups, a.w + k * a.w_step, a.turns_w))
            height, columns = min(a.step_h, a.out_h - top), min(a.step_w, a.out_w - left)
            y = a.y + n * a.y_n + k * a.y_plane + top * a.y_row + left * SIZE
            for i in range(a.height):
                targets[i] = y + i * a.y_row if i < height else copy
            call(
                a.backward,
                (
                    spectrum, a.group, a.turns_h, scratch + a.targets_at, columns, a.bias + k * SIZE, a.relu,
                ),
            )  # fmt: skip
            for i in range(height):
                finish_run(a, targets[i], columns)

    return convolve_tiles
