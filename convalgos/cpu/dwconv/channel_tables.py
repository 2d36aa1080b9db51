"""The tables of `cpu.depthwise.channels`: bands of rows, runs of them, and the filter of each lane."""

from __future__ import annotations

import numpy as np

from convalgos.core.boundaries import COPIES, OUTSIDE, source_indices
from convalgos.core.plan import numpy_dtype
from convalgos.core.taps import taps_meeting
from convalgos.cpu.dwconv.channel_blocking import ChannelBlocking
from convalgos.cpu.dwconv.channel_kernels import BEYOND, CHANNEL_BAND, COLUMN_BLOCK, ROW_RUN
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


def column_table(c: ChannelBlocking, from_pixel: int, to_pixel: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """`COLUMN_BLOCK` of the blocks of columns, and the tables that it points to.

    from_pixel, to_pixel: elements between the pixels of what the kernels read and write.
    """
    p = c.problem
    ranges: dict[tuple[int, int], np.ndarray] = {}  # by padding: blocks without any share theirs
    made, sources = [], []
    beyond = source_indices(p.boundary[2], p.spatial[2], *p.padding[2]) if c.has_border else np.zeros(0)
    for q, left, right in c.columns:
        if c.ranged and not c.has_border and (left, right) not in ranges:
            ranges[left, right] = c.ranges(q)
        column = q * p.stride[2] - p.padding[2][0]
        if c.has_border and (c.ranged or left + right):
            met = beyond[q * p.stride[2] :][: c.reach]
            sources.append(_steps(met, column, from_pixel))
        tables = (ranges.get((left, right)), sources[-1] if sources else None)
        addresses = (0 if table is None else table.ctypes.data for table in tables)
        made.append((column * from_pixel, q * to_pixel, left, right, *addresses))
    return np.array(made, COLUMN_BLOCK), [*ranges.values(), *sources]


def filler(c: ChannelBlocking) -> np.ndarray:
    """A row of what the kernels read that holds the fill value; a pixel where no row is read."""
    p = c.problem
    if not c.has_border:
        return np.zeros(0)
    pixel, _, vector = c.source
    rows = any(boundary not in COPIES for boundary in p.boundary[:2])
    count = (c.vectors - 1) * vector + (p.spatial[2] * pixel if rows else 0) + c.lanes
    value = np.full(count, p.fill_value).astype(numpy_dtype(p.dtype))
    return value if c.in_place else value.astype(p.compute_dtype)


def _steps(sources: np.ndarray, start: int, step: int) -> np.ndarray:
    """Where elements lie behind the one at `start`, as kernels read it."""
    return np.where(sources == OUTSIDE, BEYOND, (sources - start) * step).astype(np.int64)


def band_tables(
    c: ChannelBlocking, source: tuple[int, int], target: tuple[int, int], w: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """The bands, and the runs of output rows in them, as `CHANNEL_BAND` and `ROW_RUN`; and tables of these.

    source, target and w: elements between the slices, and between the rows, of what the kernels read,
    write, and of the filter.
    """
    p = c.problem
    stride, pad = p.stride[1], p.padding[1][0]
    inside = -(-pad // stride), (p.spatial[1] + pad - p.kernel_extent[1]) // stride + 1  # rows with all taps
    bands: list[tuple[int, ...]] = []
    runs: list[tuple[int, ...]] = []
    tables: dict[bytes, np.ndarray] = {}  # runs that go alike share one
    for p0, p1 in c.band_ends:
        h0, h1 = c.rows_under(p0, p1)
        first = len(runs)
        for o in range(p.spatial_out[0]):
            row = p0
            while row < p1:
                met, end = _meeting(c, o, row, source), row + 1
                if inside[0] <= row < inside[1]:
                    end = min(p1, inside[1])
                while end < p1 and _meeting(c, o, end, source)[1:] == met[1:]:
                    end += 1
                (d, h), (t0, r0), (slices, rows), steps = met
                x, y = d * source[0] + h * source[1], o * target[0] + row * target[1]
                taps = t0 * w[0] + r0 * w[1]
                table = tables.setdefault(steps, np.frombuffer(steps, np.int64))
                runs.append((x, taps, y, slices, rows, end - row, table.ctypes.data))
                row = end
        columns, columns_out = p.spatial[2], p.spatial_out[2]
        x_band, y_band = (h0 * columns, (h1 - h0) * columns), (p0 * columns_out, (p1 - p0) * columns_out)
        bands.append((*x_band, *y_band, first, len(runs) - first))
    return np.array(bands, CHANNEL_BAND), np.array(runs, ROW_RUN), list(tables.values())


_Two = tuple[int, int]  # of slices and of rows


def _meeting(c: ChannelBlocking, o: int, row: int, source: _Two) -> tuple[_Two, _Two, _Two, bytes]:
    """Where in x a row of outputs begins, the first taps that it meets, how many, and `ROW_RUN.lines`."""
    p = c.problem
    if not c.has_border:
        (d, t0, t1), (h, r0, r1) = taps_meeting(p, 0, o), taps_meeting(p, 1, row)
        return (d, h), (t0, r0), (t1 - t0, r1 - r0), b""
    starts, under = [], []
    for axis, output in enumerate((o, row)):
        sources = source_indices(p.boundary[axis], p.spatial[axis], *p.padding[axis])
        first = output * p.stride[axis]
        starts.append(first - p.padding[axis][0])
        under.append(sources[first : first + p.kernel_extent[axis] : p.dilation[axis]])
    slices, rows = (_steps(*each) for each in zip(under, starts, source, strict=True))
    beyond = np.logical_or.outer(slices == BEYOND, rows == BEYOND)
    steps = np.where(beyond, BEYOND, np.add.outer(slices, rows))
    return (starts[0], starts[1]), (0, 0), (p.kernel[0], p.kernel[1]), steps.tobytes()
