"""The tables of `cpu.depthwise.channels`: bands of rows, runs of them, and the filter of each lane."""

from __future__ import annotations

import numpy as np

from convalgos.core.taps import taps_meeting
from convalgos.cpu.dwconv.channel_blocking import ChannelBlocking
from convalgos.cpu.dwconv.channel_kernels import CHANNEL_BAND, COLUMN_BLOCK, ROW_RUN
from convalgos.cpu.dwconv.channel_lines import in_lines, line_order
from convalgos.cpu.runtime.half import map_form


def lane_filters(c: ChannelBlocking) -> tuple[np.ndarray, np.ndarray | None]:
    """(blocks, vectors, lanes) the filter of each lane, and which lanes have none, if any."""
    p = c.problem
    first = np.arange(c.blocks) * c.vectors * c.groups
    first = np.minimum(first, c.last_group)
    groups = np.add.outer(first, np.arange(c.vectors) * c.groups)  # (blocks, vectors)
    lanes = np.arange(c.lanes)
    filters = np.add.outer(groups * p.gemm_n, lanes)
    if lanes_in_lines(c):
        filters = filters[:, :1, :1] + line_order(c.lanes)
    outside = (filters >= p.K) | (lanes >= c.groups * p.gemm_n)
    return np.where(outside, 0, filters), outside if outside.any() else None


def lanes_in_lines(c: ChannelBlocking) -> bool:
    """Whether the lanes of a vector are in the order of `line_order`."""
    p = c.problem
    return c.in_place and in_lines(map_form(p.dtype), p.w_shape[1], p.gemm_n, c.vectors)


def column_table(
    c: ChannelBlocking, from_pixel: int, to_pixel: int
) -> tuple[np.ndarray, dict[tuple[int, int], np.ndarray]]:
    """`COLUMN_BLOCK` of the blocks of columns, and the tables of ranges that it points to.

    from_pixel, to_pixel: elements between the pixels of what the kernels read and write.
    """
    p = c.problem
    ranges: dict[tuple[int, int], np.ndarray] = {}  # by padding: blocks without any share theirs
    made = []
    for q, left, right in c.columns:
        if c.ranged and (left, right) not in ranges:
            ranges[left, right] = c.ranges(q)
        table = ranges[left, right].ctypes.data if c.ranged else 0
        made.append(((q * p.stride[2] - p.padding[2][0]) * from_pixel, q * to_pixel, left, right, table))
    return np.array(made, COLUMN_BLOCK), ranges


def band_tables(
    c: ChannelBlocking, source: tuple[int, int], target: tuple[int, int], w: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """The bands, and the runs of output rows in them, as `CHANNEL_BAND` and `ROW_RUN`.

    source, target and w: elements between the slices, and between the rows, of what the kernels read,
    write, and of the filter.
    """
    p = c.problem
    height, rows_out = p.spatial[1], p.spatial_out[1]
    bands: list[tuple[int, ...]] = []
    runs: list[tuple[int, ...]] = []
    for i in range(c.bands):
        p0, p1 = rows_out * i // c.bands, rows_out * (i + 1) // c.bands
        h0 = min(height, max(0, p0 * p.stride[1] - p.padding[1][0]))
        h1 = max(h0, min(height, (p1 - 1) * p.stride[1] - p.padding[1][0] + p.kernel_extent[1]))
        first = len(runs)
        for o in range(p.spatial_out[0]):
            d, t0, t1 = taps_meeting(p, 0, o)
            row = p0
            while row < p1:
                h, r0, r1 = taps_meeting(p, 1, row)
                end = row + 1
                while end < p1 and taps_meeting(p, 1, end)[1:] == (r0, r1):
                    end += 1
                x, taps, y = (
                    a * outer + b * inner
                    for (a, b), (outer, inner) in (((d, h), source), ((t0, r0), w), ((o, row), target))
                )
                runs.append((x, taps, y, t1 - t0, r1 - r0, end - row))
                row = end
        columns, columns_out = p.spatial[2], p.spatial_out[2]
        x_band, y_band = (h0 * columns, (h1 - h0) * columns), (p0 * columns_out, (p1 - p0) * columns_out)
        bands.append((*x_band, *y_band, first, len(runs) - first))
    return np.array(bands, CHANNEL_BAND), np.array(runs, ROW_RUN)
