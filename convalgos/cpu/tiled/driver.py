"""The driver of algorithms on transformed tiles. A map is cut into boxes of tiles; each goes three steps:

1. read: pixels of x, with their zero border, are transformed tile by tile (`input_tiles`) into V;
2. multiply: at each point of the tiles V times the transformed filter U is M, a matrix product of its own;
3. write: M is transformed back (`output_tiles`) into pixels of y, with bias and activation.

V is (point, input slice, image, tile, phase, channel), U (group, point, panel, depth tap, phase, channel,
filter) and M (point, panel, output slice, image, tile, filter). In V and M the tiles of all images of a
slice lie one after the other without a gap: they are the rows of one product. Slices of V lie as far apart
as in the largest box. A value at a point is one vector of channels or filters, or two where it is complex:
one of real parts, then one of imaginary parts.

Elements of x, of gathered pixels (`size`), of V and U, of M (`sum_size`) and of y may differ in size. Padding
holds `fill`, a word of 8 bytes; where that is not 0, `fills_depth` has slices beyond the map read, too, and
`refills` the border filled after each reading, which may write zeros behind its end. `depth_sources`,
`row_sources` and `column_sources` say of which slices, rows and columns padding is a copy, from its first
place on.

An algorithm gives the addresses of the kernels that transform tiles and sum products. Map size, padding,
stride, dilation, layout, groups and the number of dimensions are dealt with here. Sizes come from
`blocking.BoxSizes`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import arguments
from convalgos.cpu.vectors.simd import call, carray, pointer, zero_bytes

# --- the arguments of the kernels -------------------------------------------------------------------

AXIS_FIELDS = np.dtype(
    [
        (name, np.int64)
        for name in (
            "size", "size_out", "pad", "stride", "dilation", "phases", "lattices", "taps", "outputs", "step",
            "tiles", "tail", "cuts", "x", "y", "written",
        )
    ]
)  # fmt: skip
"""A `TiledAxis` and its cuts into boxes, the elements between neighbours along it in x and in y, and the
pixels of y that a tile is written to: where y is pooled, fewer than its outputs, as `size_out` is then."""

SIZES = arguments(
    "box phase size lanes x_size v_size sum_size sum_lanes y_size parts tasks groups images cuts_n channels "
    "filters channel_blocks filter_blocks points panel panels vectors slice_taps chunk slot_step slot_tiles "
    "strip v_row v_point m_panel m_point own_bytes table_bytes box_bytes fill fills_depth "
    "x_n x_vector x_c y_n y_vector y_k x_blocks y_blocks x_in_place y_in_place "
    "row_tiles offsets phase_places point_taps depth_sources row_sources row_places column_sources "
    "column_places refills "
    "gather join scatter place input_tiles output_tiles finish_tiles sum_panel "
    "read_box multiply_box write_box"
)
BOX_ARGUMENTS = np.dtype(
    [*SIZES.descr, ("depth", AXIS_FIELDS), ("rows", AXIS_FIELDS), ("columns", AXIS_FIELDS)]
)


class Box(NamedTuple):
    """What a box holds: a group, and ranges of images, output slices, rows and columns of tiles."""

    group: int
    n0: int
    n1: int
    o0: int
    o1: int
    h0: int
    h1: int
    w0: int
    w1: int


@jit.helper
def box_of(a: Any, index: int) -> Box:
    """The box of an index; boxes differ by at most one along each dimension."""
    w, index = index % a.columns.cuts, index // a.columns.cuts
    h, index = index % a.rows.cuts, index // a.rows.cuts
    o, index = index % a.depth.cuts, index // a.depth.cuts
    n, group = index % a.cuts_n, index // a.cuts_n
    return Box(
        group,
        a.images * n // a.cuts_n, a.images * (n + 1) // a.cuts_n,
        a.depth.tiles * o // a.depth.cuts, a.depth.tiles * (o + 1) // a.depth.cuts,
        a.rows.tiles * h // a.rows.cuts, a.rows.tiles * (h + 1) // a.rows.cuts,
        a.columns.tiles * w // a.columns.cuts, a.columns.tiles * (w + 1) // a.columns.cuts,
    )  # fmt: skip


@jit.helper
def image_tiles(a: Any, box: Box) -> Any:
    """Tiles of a slice of one image of a box: from an image to the next in V and M."""
    return (box.h1 - box.h0) * (box.w1 - box.w0) * a.row_tiles


# --- multiply ------------------------------------------------------------------------------------


@jit.helper
def fill_row_table(a: Any, box: Box, address: int) -> None:
    """Where the row of V of each output tile begins, in the order of M; spare entries repeat the last."""
    table = carray(pointer(address), a.table_bytes // 8, np.int64)
    rows = (box.n1 - box.n0) * image_tiles(a, box)  # of a slice
    i = 0
    for o in range(box.o1 - box.o0):
        start = o * a.depth.stride // a.slot_step * a.slot_tiles
        for row in range(rows):
            table[i] = (start + row) * a.v_row
            i += 1
    for spare in range(i, a.table_bytes // 8):
        table[spare] = table[i - 1]


@jit.helper
def depth_taps(a: Any, o: int) -> tuple[int, int]:
    """The first and one behind the last tap in depth under which output slice o meets the map."""
    d = o * a.depth.stride - a.depth.pad
    if a.fills_depth or a.depth_sources:  # slices beyond the map are read, too
        return 0, a.depth.taps
    first = max(0, -(d // a.depth.dilation))
    return first, max(first, min(a.depth.taps, (a.depth.size - 1 - d) // a.depth.dilation + 1))


@jit.specialise
def multiply_box() -> Callable[..., None]:
    """V and U -> M, for some (point, panel) items of a box."""

    def multiply_box(args: int, index: int, first: int, last: int, shared: int, own: int) -> None:
        a = carray(pointer(args), 1, BOX_ARGUMENTS)[0]
        box = box_of(a, index)
        fill_row_table(a, box, own)
        per_slice = (box.n1 - box.n0) * image_tiles(a, box)
        products = shared + a.points * a.v_point * a.v_size
        point_taps = carray(pointer(a.point_taps), (a.points, 2), np.int64)
        for item in range(first, last):
            point, panel = item // a.panels, item % a.panels
            v = shared + point * a.v_point * a.v_size
            m = products + (point * a.m_point + panel * a.m_panel) * a.sum_size
            u = ((box.group * a.points + point) * a.panels + panel) * a.depth.taps * a.slice_taps
            o = box.o0
            while o < box.o1:  # output slices with the same taps in depth are one product
                tap0, tap1 = depth_taps(a, o)
                end = o + 1
                while end < box.o1 and depth_taps(a, end) == (tap0, tap1):
                    end += 1
                row, rows = (o - box.o0) * per_slice, (end - o) * per_slice
                target = m + row * a.panel * a.sum_size
                if tap0 == tap1:
                    zero_bytes(target, rows * a.panel * a.sum_size)
                else:
                    skip = tap0 * a.slice_taps + point_taps[point, 0]
                    taps = (tap1 - tap0 - 1) * a.slice_taps + point_taps[point, 1]
                    weights = a.w + (u + skip) * a.panel * a.v_size
                    offsets = a.offsets + skip * 8
                    call(a.sum_panel, (v, own + row * 8, rows, offsets, taps, a.chunk, weights, target))
                o = end

    return multiply_box


# --- all boxes -----------------------------------------------------------------------------------


@jit.specialise
def run_each_box() -> Callable[..., None]:
    """Every task takes boxes of its own through all three phases."""

    def run_each_box(args: int, task: int) -> None:
        a = carray(pointer(args), 1, BOX_ARGUMENTS)[0]
        own = a.scratch + task * (a.own_bytes + a.box_bytes)
        shared = own + a.own_bytes
        boxes = a.groups * a.cuts_n * a.depth.cuts * a.rows.cuts * a.columns.cuts
        for index in range(boxes * task // a.tasks, boxes * (task + 1) // a.tasks):
            box = box_of(a, index)
            images = box.n1 - box.n0
            call(a.read_box, (args, index, 0, images * a.channel_blocks, shared, own))
            call(a.multiply_box, (args, index, 0, a.points * a.panels, shared, own))
            call(a.write_box, (args, index, 0, images * a.filter_blocks, shared, own))

    return run_each_box


@jit.specialise
def share_box() -> Callable[..., None]:
    """All tasks take parts of the box `a.box` through the phase `a.phase`: 0 read, 1 multiply, 2 write."""

    def share_box(args: int, task: int) -> None:
        a = carray(pointer(args), 1, BOX_ARGUMENTS)[0]
        own = a.scratch + task * a.own_bytes
        shared = a.scratch + a.tasks * a.own_bytes
        box = box_of(a, a.box)
        kernel, items = a.multiply_box, a.points * a.panels
        if a.phase == 0:
            kernel, items = a.read_box, (box.n1 - box.n0) * a.channel_blocks
        elif a.phase == 2:
            kernel, items = a.write_box, (box.n1 - box.n0) * a.filter_blocks
        call(kernel, (args, a.box, items * task // a.tasks, items * (task + 1) // a.tasks, shared, own))

    return share_box
