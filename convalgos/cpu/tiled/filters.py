"""The filter transform of algorithms on tiles: w becomes U, a vector of filters at a time, on all threads.

U is (group, point, panel, depth tap, phase, channel, filter), as `driver.multiply_box` reads it; the driver
of `split_filters` brings what is transformed of a vector of filters into another form at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from convalgos.core.allocator import aligned_empty, whole_lines
from convalgos.cpu.layout import channel_vectors
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.recorded_packing import launch_packing
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
        *(
            (name, np.int64)
            for name in ("u", "filter_tiles", "some_channels", "tap_bytes", "task_bytes", "own")
        ),
        *((name, np.int64) for name in WHERE),
    ]
)
"""The arguments of the boxes, and where the filter goes. In the scratch of a task the first `tap_bytes` are
of taps, and what lies behind them is the driver's, as is what `own` says the address of."""
OF_BOXES = BOX_ARGUMENTS.itemsize // 8  # numbers of them


@jit.helper
def transform_vector(a: Any, group: int, block: int, scratch: int, u: int, u_row: int, u_point: int) -> None:
    """w (channel, depth tap, row, column) of a vector of filters -> (point, depth tap, phase, channel), a
    vector each, from u on; u_row, u_point: elements from a channel, and from a point, to the next.

    Rows and columns are multiples of the phases.
    """
    pixel = a.lanes * a.size
    width = a.columns.phases * a.columns.taps
    plane = a.rows.phases * a.rows.taps * width
    volume = a.depth.taps * plane
    down = a.rows.phases * width * a.lanes
    across = a.columns.phases * a.lanes if a.columns.outputs > 1 else down
    rows, columns = a.rows.taps, a.columns.taps if a.columns.outputs > 1 else a.rows.taps
    down, across = a.order * down, a.order * across
    origin = 0 if a.order > 0 else volume - 1
    places = carray(pointer(a.phase_places), a.rows.phases * a.columns.phases, np.int64)
    filters = min(a.lanes, a.filters - block * a.lanes)
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
                target = u + row * u_row * a.size
                step = volume * a.lanes
                call(
                    a.filter_tiles,
                    (source, down, across, step, channels, target, u_row, u_point, rows, columns),
                )


@jit.specialise
def transform_filters() -> Callable[..., None]:
    """w (group, filter, channel, depth tap, row, column) -> U, in the order that `driver.multiply_box` reads.

    An item is a group and a vector of filters.
    """

    def transform_filters(args: int, task: int) -> None:
        a = carray(pointer(args), 1, FILTER_ARGUMENTS)[0]
        scratch = a.scratch + task * a.task_bytes
        u_panel = a.depth.taps * a.slice_taps * a.panel
        items = a.groups * a.filter_blocks
        for item in range(items * task // a.tasks, items * (task + 1) // a.tasks):
            group, block = item // a.filter_blocks, item % a.filter_blocks
            panel = group * a.points * a.panels + block // a.vectors
            u = panel * u_panel + block % a.vectors * a.parts * a.lanes
            transform_vector(a, group, block, scratch, a.u + u * a.size, a.panel, a.panels * u_panel)

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
    shape = (cut.problem.groups, cut.points, cut.panels, cut.taps, cut.panel)
    u = aligned_empty(math.prod(shape), w.dtype).reshape(shape)
    written = ((cut.filter_blocks - 1) % cut.vectors + 1) * cut.parts * cut.lanes
    u[:, :, -1, :, written:] = 0
    launch_transform(transform_filters(), w, cut, record, filter_tiles, u)
    return u


def launch_transform(
    driver: int, w: np.ndarray, cut: BoxSizes, record: np.ndarray, filter_tiles: int, target: np.ndarray,
    own_bytes: int = 0, given: np.ndarray | None = None,
) -> None:  # fmt: skip
    """Run a driver of `FILTER_ARGUMENTS`, whose `u` is the target.

    Args:
        w, record, filter_tiles: of `transform_filter`.
        own_bytes: of scratch that each task has for itself, behind the taps.
        given: a record of the driver's own.
    """
    p = cut.problem
    taps = tuple(a.phases * a.taps for a in (cut.rows, cut.columns))
    w = w.reshape(p.w_shape)  # (K, C/g, T, R, S)
    if taps != p.kernel[1:]:  # with the zeros of the phases that have a tap less
        padded = np.zeros((*p.w_shape[:3], *taps), w.dtype)
        padded[..., : p.kernel[1], : p.kernel[2]] = w
        w = padded
    w, order = _ordered(w)
    volume = math.prod(w.shape[2:])
    some_channels = max(1, TRANSPOSED_TAPS // volume)
    tap_bytes = whole_lines((some_channels * volume + cut.lanes) * cut.lanes * cut.size)
    task_bytes = tap_bytes + whole_lines(own_bytes)
    scratch = aligned_empty(cut.threads * task_bytes, np.uint8)
    own, address = np.empty(1, FILTER_ARGUMENTS), jit.data_address()
    own.view(np.int64)[:OF_BOXES] = record.view(np.int64)[:OF_BOXES]
    a = by_name(own)
    a.w = address(w) - (0 if order > 0 else (volume - 1) * w.itemsize)
    a.filter_stride, a.channel_stride = (stride // w.itemsize for stride in w.strides[:2])
    a.order, a.filter_tiles, a.gather = order, filter_tiles, channel_vectors.gather(w.itemsize, cut.lanes)
    a.u, a.scratch, a.some_channels = address(target), address(scratch), some_channels
    a.tap_bytes, a.task_bytes, a.own = tap_bytes, task_bytes, 0 if given is None else address(given)
    if given is None:
        launch_packing(driver, own, cut.threads, w, target, scratch, record)
    else:
        jit.launch(driver, address(own), cut.threads)


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
