"""The last step of a box: M is transformed back into pixels of y, with bias and activation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from convalgos.cpu.runtime import jit
from convalgos.cpu.tiled.driver import BOX_ARGUMENTS, box_of, image_tiles
from convalgos.cpu.vectors.simd import call, carray, pointer


@jit.helper
def transform_outputs(a: Any, m: int, strip: int, tiles_w: int, target: int, width: int) -> None:
    """All tiles of a strip of rows: M -> target (row, column, lane), for one vector of filters."""
    down = a.rows.lattices * width * a.sum_lanes
    across = a.columns.lattices * a.sum_lanes if a.columns.outputs > 1 else down
    tile_step = a.columns.outputs * a.columns.lattices * a.sum_lanes
    rows, columns = a.rows.outputs, a.columns.outputs if a.columns.outputs > 1 else a.rows.outputs
    for i in range(strip):
        for lattice in range(a.rows.lattices * a.columns.lattices):
            row = i * a.rows.outputs * a.rows.lattices + lattice // a.columns.lattices
            first = target + (row * width + lattice % a.columns.lattices) * a.sum_lanes * a.sum_size
            call(
                a.output_tiles,
                (m, a.panel, a.m_point, tiles_w, first, down, across, tile_step, rows, columns),
            )
            m += tiles_w * a.panel * a.sum_size


@jit.specialise
def write_box() -> Callable[..., None]:
    """M -> y, for some (image, vector of filters) items of a box."""

    def write_box(args: int, index: int, first: int, last: int, shared: int, own: int) -> None:
        a = carray(pointer(args), 1, BOX_ARGUMENTS)[0]
        box = box_of(a, index)
        pixel = a.sum_lanes * a.sum_size
        tiles_w = box.w1 - box.w0
        per_image = image_tiles(a, box)
        products = shared + a.points * a.v_point * a.v_size
        left = box.w0 * a.columns.outputs * a.columns.lattices
        width = tiles_w * a.columns.outputs * a.columns.lattices  # the last tile may reach beyond y
        for h in range(box.h0, box.h1, a.strip):
            strip = min(a.strip, box.h1 - h)
            top = h * a.rows.outputs * a.rows.lattices
            rows = min(a.rows.size_out - top, strip * a.rows.outputs * a.rows.lattices)
            for item in range(first, last):
                n, block = item // a.filter_blocks, item % a.filter_blocks
                k = box.group * a.filters + block * a.sum_lanes
                filters = min(a.sum_lanes, a.filters - block * a.sum_lanes)
                near = min(filters, a.sum_lanes - k % a.sum_lanes) if a.y_blocks else filters
                for o in range(box.o0, box.o1):
                    m = ((o - box.o0) * (box.n1 - box.n0) + n) * per_image
                    m += (h - box.h0) * tiles_w * a.row_tiles
                    m = (
                        block // a.vectors * a.m_panel
                        + m * a.panel
                        + block % a.vectors * a.parts * a.sum_lanes
                    )
                    transform_outputs(a, products + m * a.sum_size, strip, tiles_w, own, width)
                    y = (box.n0 + n) * a.y_n + k // a.sum_lanes * a.y_vector + k % a.sum_lanes * a.y_k
                    y += o * a.depth.y + top * a.rows.y + left * a.columns.y
                    for row in range(rows):
                        source, target = own + row * width * pixel, a.y + (y + row * a.rows.y) * a.y_size
                        bias, pixels = a.bias + k * a.sum_size, min(width, a.columns.size_out - left)
                        call(a.scatter, (source, bias, a.relu, a.y_k, a.columns.y, near, pixels, target))
                        if near < filters:  # a group's filters begin amid a block
                            source, bias = source + near * a.sum_size, bias + near * a.sum_size
                            target += (a.y_vector - k % a.sum_lanes) * a.y_size
                            far = filters - near
                            call(a.scatter, (source, bias, a.relu, a.y_k, a.columns.y, far, pixels, target))

    return write_box
