"""The driver of gradients of 1x1 filters that are summed in tiles of channels by channels.

x (N, *spatial, C), dy (N, *spatial, K) -> sums (parts, groups, panels of columns, K/groups, columns) -> dw
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import arguments
from convalgos.cpu.vectors.simd import LINE, call, carray, pointer, zero_bytes

CHANNEL_ARGUMENTS = arguments(
    "size lanes pixels block parts groups row_blocks panel_blocks filters columns vectors panels widest "
    "padded k o p q x_n x_d x_h x_w dw_group dw_row dw_column tasks packed_bytes spread in_place row_tiles "
    "sum_tiles sum_narrow pack pack_narrow add_tile store_run"
)


class ChannelUnit(NamedTuple):
    """A part of the pixels, a group, and a block of its rows and panels: what a task sums at a time."""

    part: int
    group: int
    row: int
    rows: int
    panel: int
    end: int  # behind its last panel


@jit.helper
def channel_unit(a: Any, item: int) -> ChannelUnit:
    """Parts are outermost, blocks of rows innermost."""
    block, panels = item % a.row_blocks, item // a.row_blocks % a.panel_blocks
    row = a.filters * block // a.row_blocks
    outer = item // (a.row_blocks * a.panel_blocks)
    return ChannelUnit(
        outer // a.groups, outer % a.groups, row, a.filters * (block + 1) // a.row_blocks - row,
        a.panels * panels // a.panel_blocks, a.panels * (panels + 1) // a.panel_blocks,
    )  # fmt: skip


@jit.specialise
def sum_channels() -> Callable[..., None]:
    """Parts x groups x blocks of panels and rows, dealt to the tasks in equal runs. Of each, for every block
    of pixels and every panel of columns of x:

    1. copy the panel into scratch, unless it is read in place;
    2. add its products with all rows of dy to the sums.
    """

    def sum_channels(args: int, task: int) -> None:
        a = carray(pointer(args), 1, CHANNEL_ARGUMENTS)[0]
        units = a.parts * a.groups * a.row_blocks * a.panel_blocks
        packed = a.scratch + task * a.packed_bytes
        for item in range(units * task // a.tasks, units * (task + 1) // a.tasks):
            unit = channel_unit(a, item)
            for panel in range(unit.panel, unit.end):
                width = columns_of(a, panel)[1]
                zero_bytes(channel_sums(a, unit, unit.part, panel), unit.rows * width * a.size)
            end = a.pixels * (unit.part + 1) // a.parts
            for pixel in range(a.pixels * unit.part // a.parts, end, a.block):
                add_pixels(a, unit, pixel, min(a.block, end - pixel), packed)

    return sum_channels


@jit.helper
def columns_of(a: Any, panel: int) -> tuple[int, int]:
    """(first column, columns with those of padding) of a panel."""
    first = a.vectors * panel // a.panels
    return first * a.lanes, (a.vectors * (panel + 1) // a.panels - first) * a.lanes


@jit.helper
def channel_sums(a: Any, unit: ChannelUnit, part: int, panel: int) -> Any:
    """Where the sums of a unit and a panel begin in a part, behind the packed panels of all tasks."""
    first, width = columns_of(a, panel)
    sums = a.scratch + a.tasks * a.packed_bytes
    of_group = (part * a.groups + unit.group) * a.filters * a.padded
    return sums + (of_group + first * a.filters + unit.row * width) * a.size


@jit.helper
def pixel_in_x(a: Any, pixel: int) -> Any:
    """Elements of x before a pixel of y."""
    row = pixel // a.q
    plane = row // a.p
    return plane // a.o * a.x_n + plane % a.o * a.x_d + row % a.p * a.x_h + pixel % a.q * a.x_w


@jit.helper
def add_pixels(a: Any, unit: ChannelUnit, pixel: int, count: int, packed: int) -> None:
    """The products of a block of pixels to the sums of a unit."""
    begin, behind = columns_of(a, unit.panel)[0], a.columns
    if unit.end < a.panels:
        behind = columns_of(a, unit.end)[0]
    x = a.x + unit.group * a.columns * a.size
    dy = a.w + (unit.group * a.filters + unit.row) * a.size
    soon, line = min(pixel + count, a.pixels - 1), LINE // a.size
    x_soon = x + (pixel_in_x(a, soon) + begin) * a.size
    for panel in range(unit.panel, unit.end):
        first, width = columns_of(a, panel)
        columns = min(width, a.columns - first)
        at, step = packed, width
        if a.in_place and columns == width:
            at, step = x + (pixel_in_x(a, pixel) + first) * a.size, a.x_w
        else:
            pack_pixels(a, x + first * a.size, width, columns, pixel, count, packed)
        kernel = a.sum_tiles if width == a.widest else a.sum_narrow
        call(
            kernel,
            (
                dy + pixel * a.k * a.size, a.k, unit.rows, at, step, count,
                channel_sums(a, unit, unit.part, panel), dy + soon * a.k * a.size,
                (unit.rows + line - 1) // line, x_soon, (behind - begin + line - 1) // line, a.x_w,
                (panel - unit.panel) * a.row_tiles, a.spread,
            ),
        )  # fmt: skip


@jit.helper
def pack_pixels(a: Any, x: int, width: int, columns: int, pixel: int, count: int, packed: int) -> None:
    """A panel of x of a block of pixels, run by run of those that lie equally far apart."""
    kernel = a.pack if width == a.widest else a.pack_narrow
    done = 0
    while done < count:
        run = min(count - done, a.q - (pixel + done) % a.q)
        source = x + pixel_in_x(a, pixel + done) * a.size
        call(kernel, (source, a.x_w, run, columns, packed + done * width * a.size))
        done += run


@jit.specialise
def store_channels() -> Callable[..., None]:
    """Groups x blocks of panels and rows, dealt to the tasks: the sums of all parts to dw."""

    def store_channels(args: int, task: int) -> None:
        a = carray(pointer(args), 1, CHANNEL_ARGUMENTS)[0]
        units = a.groups * a.row_blocks * a.panel_blocks
        for item in range(units * task // a.tasks, units * (task + 1) // a.tasks):
            unit = channel_unit(a, item)
            for panel in range(unit.panel, unit.end):
                store_outer_panel(a, unit, panel)

    return store_channels


@jit.helper
def store_outer_panel(a: Any, unit: ChannelUnit, panel: int) -> None:
    """The sums of all parts of a unit and a panel, in their order, to dw."""
    first, width = columns_of(a, panel)
    sums = channel_sums(a, unit, 0, panel)
    for part in range(1, a.parts):
        call(a.add_tile, (channel_sums(a, unit, part, panel), sums, unit.rows * width // a.lanes))
    to = a.y + (unit.group * a.dw_group + first * a.dw_column + unit.row * a.dw_row) * a.size
    columns = min(width, a.columns - first)
    call(a.store_run, (sums, width, unit.rows, columns, a.bias, 0, 0, to, a.dw_column, a.dw_row))
