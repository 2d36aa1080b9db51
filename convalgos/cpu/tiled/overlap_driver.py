"""The last step of a box of tiles that overlap in dx, and what is added behind all boxes.

1. `write_overlapping` takes an image and a vector of channels: all tiles of the box are transformed into a
   thread's scratch and added where they overlap, copies of columns and rows that lie beyond the edges are
   folded onto what they are copies of, and rows go to dx or, where another box has them too, are kept apart.
2. `add_apart` adds these rows to dx.

The other steps are those of `driver`, with dy in the place of x.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.tiled.driver import BOX_ARGUMENTS, box_of, image_tiles
from convalgos.cpu.tiled.overlap_borders import APART
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.simd import Value, Vec, call, carray, pointer, zero_bytes

# Behind those of a box. `held`: rows and columns of inputs that a tile shares with those before it; `reach`
# of the inputs under the tiles of a box; tables as of `overlap_borders`. Rows apart begin `apart` bytes
# behind scratch: (plane, row, `line`), with planes as dx has them: of each channel, where channels lie first.
OWN_FIELDS = fields(
    "width held_h held_w reach_h reach_w pad_w places folded_rows row_folds folded_columns column_folds "
    "apart apart_n apart_k apart_d apart_row apart_plane y_plane planes line targets target_rows "
    "first_apart rows_apart"
)
OVERLAP_ARGUMENTS = np.dtype([*BOX_ARGUMENTS.descr, *OWN_FIELDS.descr])


@simd.emitter
def fold_pixels(v: Vec, pairs: Value, count: Value, pixels: Value, repeats: Value, step: Value) -> None:
    """pixels[j][t] += pixels[j][s] for some pairs (s, t), in rows of pixels `step` elements apart."""
    with v.loop(repeats) as j:
        row = v.at(v.pointer(pixels), v.imul(j, step))
        with v.loop(count) as i:
            pair = v.imul(i, 2)
            from_ = v.imul(v.table64(pairs, pair), v.lanes)
            to = v.imul(v.table64(pairs, v.iadd(pair, 1)), v.lanes)
            v.store(v.fadd(v.load(row, to), v.load(row, from_)), row, to)


@simd.emitter
def add_line(v: Vec, x: Value, count: Value, y: Value) -> None:
    """y[i] += x[i] for i < count."""
    source, target = v.pointer(x), v.pointer(y)
    whole = v.idiv(count, v.lanes)
    with v.loop(whole) as i:
        at = v.imul(i, v.lanes)
        v.store(v.fadd(v.load(source, at), v.load(target, at)), target, at)
    at = v.imul(whole, v.lanes)
    inside = v.mask(v.isub(count, at))
    total = v.fadd(v.load_masked(source, at, inside), v.load_masked(target, at, inside))
    v.store_masked(total, target, at, inside)


@jit.helper
def add_tiles(a: Any, m: int, tiles_h: int, tiles_w: int, own: int) -> None:
    """All tiles of a slice of a box, of one vector of channels, to the inputs under them."""
    pixel = a.lanes * a.size
    row, down = a.reach_w * pixel, a.rows.outputs * a.rows.lattices
    height = min(a.reach_h, tiles_h * down + a.held_h)
    zero_bytes(own, a.held_h * row)
    for i in range(a.held_h, height):
        zero_bytes(own + i * row, a.held_w * pixel)
    row_step = a.rows.lattices * a.reach_w * a.lanes
    # a transform along one dimension alone takes only this one
    column_step = a.columns.lattices * a.lanes if a.columns.outputs > 1 else row_step
    tile_step = a.columns.outputs * a.columns.lattices * a.lanes
    for i in range(tiles_h):
        for lattice in range(a.rows.lattices * a.columns.lattices):
            at = (i * down + lattice // a.columns.lattices) * a.reach_w + lattice % a.columns.lattices
            call(
                a.output_tiles,
                (m, a.panel, a.m_point, tiles_w, own + at * pixel, row_step, column_step, tile_step),
            )
            m += tiles_w * a.panel * a.size


@jit.specialise
def write_overlapping(SIZE: int, LANES: int) -> jit.Kernel:
    """M -> dx, for some (image, vector of channels) items of a box."""

    def write_overlapping(args: int, index: int, first: int, last: int, shared: int, own: int) -> None:
        a = carray(pointer(args), 1, OVERLAP_ARGUMENTS)[0]
        box = box_of(a, index)
        products = shared + a.points * a.v_point * a.v_size
        places = carray(pointer(a.places), (a.rows.cuts, a.reach_h), np.int64)
        cut = index % a.rows.cuts  # of whole rows: columns are not cut
        row = a.reach_w * LANES
        for item in range(first, last):
            n, block = item // a.filter_blocks, item % a.filter_blocks
            c, channels = box.group * a.filters + block * LANES, min(LANES, a.filters - block * LANES)
            for o in range(box.o0, box.o1):
                m = ((o - box.o0) * (box.n1 - box.n0) + n) * image_tiles(a, box) * a.panel
                m += block // a.vectors * a.m_panel + block % a.vectors * LANES
                add_tiles(a, products + m * SIZE, box.h1 - box.h0, box.w1 - box.w0, own)
                fold_pixels(SIZE, LANES, a.folded_columns, a.column_folds, own, a.reach_h, row)
                line = a.width * LANES
                pairs = carray(pointer(a.folded_rows), (a.row_folds, 2), np.int64)
                inside = own + a.pad_w * LANES * SIZE
                for i in range(a.row_folds):
                    from_, onto = inside + pairs[i, 0] * row * SIZE, inside + pairs[i, 1] * row * SIZE
                    add_line(SIZE, LANES, from_, line, onto)
                image = box.n0 + n
                y = a.y + (image * a.y_n + c * a.y_k + o * a.depth.y) * SIZE
                apart = a.scratch + a.apart + (image * a.apart_n + c * a.apart_k + o * a.apart_d) * SIZE
                for i in range(a.reach_h):
                    to = places[cut, i]
                    source = inside + i * row * SIZE
                    if to >= 0:
                        target = y + to * a.rows.y * SIZE
                        call(a.place, (source, a.y_k, a.columns.y, channels, a.width, target))
                    elif to <= APART:
                        target = apart + (APART - to) * a.apart_row * SIZE
                        call(a.place, (source, a.apart_k, a.columns.y, channels, a.width, target))

    return write_overlapping


@jit.specialise
def add_apart(SIZE: int, LANES: int) -> jit.Kernel:
    """Planes x rows of dx to which others are added, dealt to the tasks."""

    def add_apart(args: int, task: int) -> None:
        a = carray(pointer(args), 1, OVERLAP_ARGUMENTS)[0]
        first = carray(pointer(a.first_apart), a.targets + 1, np.int64)
        rows = carray(pointer(a.rows_apart), first[a.targets], np.int64)
        targets = carray(pointer(a.target_rows), a.targets, np.int64)
        total = a.planes * a.targets
        for unit in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            plane, target = unit // a.targets, unit % a.targets
            y = a.y + (plane * a.y_plane + targets[target] * a.line) * SIZE
            for i in range(first[target], first[target + 1]):
                x = a.scratch + a.apart + (plane * a.apart_plane + rows[i] * a.line) * SIZE
                add_line(SIZE, LANES, x, a.line, y)

    return add_apart
