"""The filter transform of algorithms on tiles: w becomes U, a vector of filters at a time, on all threads.

U is (group, point, panel, depth tap, phase, channel, filter), as `driver.multiply_box` reads it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.cpu.layout import channel_vectors
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.records import by_name
from convalgos.cpu.tiled.blocking import BoxSizes
from convalgos.cpu.tiled.driver import BOX_ARGUMENTS
from convalgos.cpu.vectors.simd import call, carray, pointer

TRANSPOSED_TAPS = 512  # taps of a filter that are transposed at a time: 32 KiB

# Elements from a filter and a channel to the next; 1, or -1 of taps in the reverse order.
WHERE = ("filter_stride", "channel_stride", "order")
FILTER_ARGUMENTS = np.dtype(
    [
        *BOX_ARGUMENTS.descr,
        *((name, np.int64) for name in ("u", "filter_tiles", "some_channels", "task_bytes", *WHERE)),
    ]
)
"""The arguments of the boxes, and where the filter goes."""
OF_BOXES = BOX_ARGUMENTS.itemsize // 8  # numbers of them


@jit.specialise
def transform_filters() -> Callable[..., None]:
    """w (group, filter, channel, depth tap, row, column) -> U, in the order that `driver.multiply_box` reads.

    Rows and columns are multiples of the phases. An item is a group and a vector of filters.
    """

    def transform_filters(args: int, task: int) -> None:
        a = carray(pointer(args), 1, FILTER_ARGUMENTS)[0]
        scratch = a.scratch + task * a.task_bytes
        pixel = a.lanes * a.size
        width = a.columns.phases * a.columns.taps
        plane = a.rows.phases * a.rows.taps * width
        volume = a.depth.taps * plane
        down = a.rows.phases * width * a.lanes
        across = a.columns.phases * a.lanes if a.columns.outputs > 1 else down
        rows, columns = a.rows.taps, a.columns.taps if a.columns.outputs > 1 else a.rows.taps
        down, across = a.order * down, a.order * across
        origin = 0 if a.order > 0 else volume - 1
        u_panel = a.depth.taps * a.slice_taps * a.panel
        items = a.groups * a.filter_blocks
        places = carray(pointer(a.phase_places), a.rows.phases * a.columns.phases, np.int64)
        for item in range(items * task // a.tasks, items * (task + 1) // a.tasks):
            group, block = item // a.filter_blocks, item % a.filter_blocks
            filters = min(a.lanes, a.filters - block * a.lanes)
            panel = group * a.points * a.panels + block // a.vectors
            u = panel * u_panel + block % a.vectors * a.parts * a.lanes
            for c in range(0, a.channels, a.some_channels):
                channels = min(a.some_channels, a.channels - c)
                first = (group * a.filters + block * a.lanes) * a.filter_stride + c * a.channel_stride
                source = a.w + first * a.size
                if a.channel_stride == volume:
                    call(a.gather, (source, a.filter_stride, 1, filters, channels * volume, scratch))
                else:  # what a gather leaves behind the taps of a channel is written by the next one
                    for i in range(channels):
                        of_channel = source + i * a.channel_stride * a.size
                        target = scratch + i * volume * pixel
                        call(a.gather, (of_channel, a.filter_stride, 1, filters, volume, target))
                for tap in range(a.depth.taps):
                    for phase in range(a.rows.phases * a.columns.phases):
                        phase_h, phase_w = phase // a.columns.phases, phase % a.columns.phases
                        first = tap * plane + phase_h * width + phase_w
                        source = scratch + (origin + a.order * first) * pixel
                        row = tap * a.slice_taps + places[phase] * a.channels + c
                        target = a.u + (u + row * a.panel) * a.size
                        step = volume * a.lanes
                        call(
                            a.filter_tiles,
                            (source, down, across, step, channels, target, a.panel, a.panels * u_panel,
                             rows, columns),
                        )  # fmt: skip

    return transform_filters


def transform_filter(w: np.ndarray, cut: BoxSizes, record: np.ndarray, filter_tiles: int) -> np.ndarray:
    """U (groups, points, panels, taps, panel) of a filter w (K, C/groups, *kernel).

    Args:
        w: of any strides; taps that are neighbours, also in the reverse order, are read where they lie.
        record: begins with the arguments of the plan's boxes.
        filter_tiles: the address of a kernel (source, row_step, column_step, tile_step, count, target,
            target_step, point_step, rows, columns) that transforms `rows` by `columns` taps of `count`
            channels, for a vector of filters; in one dimension only column_step and `columns` count.
    """
    p = cut.problem
    taps = tuple(a.phases * a.taps for a in (cut.rows, cut.columns))
    w = w.reshape(p.w_shape)  # (K, C/g, T, R, S)
    if taps != p.kernel[1:]:  # with the zeros of the phases that have a tap less
        padded = np.zeros((*p.w_shape[:3], *taps), w.dtype)
        padded[..., : p.kernel[1], : p.kernel[2]] = w
        w = padded
    w, order = _ordered(w)
    shape = (p.groups, cut.points, cut.panels, cut.taps, cut.panel)
    u = aligned_empty(math.prod(shape), w.dtype).reshape(shape)
    written = ((cut.filter_blocks - 1) % cut.vectors + 1) * cut.parts * cut.lanes
    u[:, :, -1, :, written:] = 0

    volume = math.prod(w.shape[2:])
    some_channels = max(1, TRANSPOSED_TAPS // volume)
    task_bytes = (some_channels * volume + cut.lanes) * cut.lanes * cut.size
    scratch = aligned_empty(cut.threads * task_bytes, np.uint8)
    own, address = np.empty(1, FILTER_ARGUMENTS), jit.data_address()
    own.view(np.int64)[:OF_BOXES] = record.view(np.int64)[:OF_BOXES]
    a = by_name(own)
    a.w = address(w) - (0 if order > 0 else (volume - 1) * w.itemsize)
    a.filter_stride, a.channel_stride = (stride // w.itemsize for stride in w.strides[:2])
    a.order, a.filter_tiles, a.gather = order, filter_tiles, channel_vectors.gather(w.itemsize, cut.lanes)
    a.u, a.scratch, a.some_channels, a.task_bytes = address(u), address(scratch), some_channels, task_bytes
    jit.launch(transform_filters(), address(own), cut.threads)
    return u


def _ordered(w: np.ndarray) -> tuple[np.ndarray, int]:
    """w with the taps of a kernel side by side, and 1; or -1, where they are so in the reverse order."""
    side_by_side = w.itemsize
    forwards = backwards = True
    for size, stride in zip(w.shape[:1:-1], w.strides[:1:-1], strict=True):
        forwards = forwards and (size == 1 or stride == side_by_side)
        backwards = backwards and (size == 1 or stride == -side_by_side)
        side_by_side *= size
    if not (forwards or backwards):
        return np.ascontiguousarray(w), 1
    return w, 1 if forwards else -1
