"""The tables of `cpu.depthwise.channels`: bands of rows, runs of them, and the filter of each lane."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from convalgos.core.arguments import Pads, Shape
from convalgos.core.boundaries import COPIES, OUTSIDE, source_indices
from convalgos.core.plan import numpy_dtype
from convalgos.core.taps import taps_meeting
from convalgos.cpu.dwconv.channel_blocking import ChannelBlocking
from convalgos.cpu.dwconv.channel_lines import in_lines, line_order
from convalgos.cpu.dwconv.channel_records import BEYOND, CHANNEL_BAND, COLUMN_BLOCK, ROW_RUN
from convalgos.cpu.dwconv.row_bands import band_ends, plain_rows_under
from convalgos.cpu.runtime.half import map_form

_Two = tuple[int, int]  # of slices and of rows


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
    if not (c.ranged or c.has_border):
        of_row = p.spatial[2], p.spatial_out[2], p.stride[2], p.padding[2][0]
        return plain_columns(c.pixels, c.reach, *of_row, from_pixel, to_pixel), []
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


@lru_cache(512)  # layers of one map size share them
def plain_columns(
    pixels: int, reach: int, columns: int, columns_out: int, stride: int, pad: int, from_pixel: int,
    to_pixel: int,
) -> np.ndarray:  # fmt: skip
    """Those that end in zeros, and read no tables."""
    made = _even_columns(pixels, -(-columns_out // pixels), stride, pad, from_pixel, to_pixel).copy()
    last = columns_out - pixels
    start, number = last * stride - pad, len(made) - 1
    made[number] = start * from_pixel, last * to_pixel, max(0, -start), max(0, start + reach - columns), 0, 0
    while number and (right := (number - 1) * pixels * stride - pad + reach - columns) > 0:
        number -= 1
        made[number, 3] = right
    return np.ndarray(len(made), COLUMN_BLOCK, made)


@lru_cache(512)
def _even_columns(
    pixels: int, blocks: int, stride: int, pad: int, from_pixel: int, to_pixel: int
) -> np.ndarray:
    """(blocks, fields) words of these, none of which overlaps another one or meets the right edge."""
    firsts = np.arange(blocks) * pixels
    starts = firsts * stride - pad
    made = np.zeros((blocks, len(COLUMN_BLOCK.names or ())), np.int64)
    made[:, 0], made[:, 1], made[:, 2] = starts * from_pixel, firsts * to_pixel, np.maximum(0, -starts)
    return made


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
    if not c.has_border:
        p = c.problem
        sizes = p.spatial[:2], p.spatial_out[:2]
        rows = _plain_rows(RowsOf(*sizes, p.kernel, p.stride, p.padding, p.dilation), c.bands)
        return *rows.in_columns(p.spatial[2], p.spatial_out[2], source, target, w), []
    found = [_bordered_runs(c, band, source, target, w) for band in c.band_ends]
    tables = {steps: np.frombuffer(steps, np.int64) for runs in found for *_, steps in runs}
    address = {steps: table.ctypes.data for steps, table in tables.items()}
    of_runs = [[(*run, address[steps]) for *run, steps in runs] for runs in found]
    under = [c.rows_under(*band) for band in c.band_ends]
    bands, every = _banded(c.problem.spatial[2], c.problem.spatial_out[2], c.band_ends, under, of_runs)
    return _records(bands, CHANNEL_BAND), _records(every, ROW_RUN), list(tables.values())


class RowsOf(NamedTuple):
    """What runs of rows depend on of a problem in 3-D."""

    spatial: Shape  # slices and rows
    spatial_out: Shape
    kernel: Shape
    stride: Shape
    padding: Pads
    dilation: Shape


class PlainRows(NamedTuple):
    """Bands and runs of maps that end in zeros, whatever their columns."""

    bands: np.ndarray  # (bands, 6) `CHANNEL_BAND` of columns of one pixel
    runs: np.ndarray  # (runs, 7) `ROW_RUN` without its places,
    places: np.ndarray  # (2, 3, runs) and these: slices and rows from the begin of x, w and y

    def in_columns(
        self, columns: int, columns_out: int, source: _Two, target: _Two, w: _Two
    ) -> tuple[np.ndarray, np.ndarray]:
        """The bands and runs of maps of so many columns."""
        bands = self.bands * np.array((columns, columns, columns_out, columns_out, 1, 1))
        slices, rows = self.places * np.array((source, w, target)).T[:, :, None]  # (3, runs)
        runs = self.runs.copy()
        runs[:, :3] = (slices + rows).T
        return _records(bands, CHANNEL_BAND), _records(runs, ROW_RUN)


# Of the fields of a band: those that columns do not change, that those of x do, and those of y.
_BAND_PARTS = np.array([[[0, 0, 0, 0, 1, 1]], [[1, 1, 0, 0, 0, 0]], [[0, 0, 1, 1, 0, 0]]])


class LinearRows(NamedTuple):
    """Tables of rows of pixels that lie side by side, which grow evenly with the columns of the maps."""

    table: np.ndarray  # of no columns: the words of the bands, and behind them those of the runs
    of_x: np.ndarray  # what a column of x adds,
    of_y: np.ndarray  # and one of y
    bands: int  # how many
    runs: int

    def in_columns(self, columns: int, columns_out: int) -> tuple[np.ndarray, np.ndarray]:
        """The bands and runs of maps of so many columns."""
        words = self.table + columns * self.of_x + columns_out * self.of_y
        bands, runs = self.bands, self.runs  # views by `view` take several times as long
        return (
            np.ndarray(bands, CHANNEL_BAND, words),
            np.ndarray(runs, ROW_RUN, words, bands * CHANNEL_BAND.itemsize),
        )


@lru_cache(512)  # layers of one height share them
def linear_rows(p: RowsOf, bands: int, pixel: int, w: _Two) -> LinearRows:
    """Those of maps that end in zeros.

    Args:
        pixel: elements between pixels of x and y.
        w: elements between the slices and rows of the filter.
    """
    found = _plain_rows(p, bands)
    of_bands = found.bands.size
    made = np.zeros((3, of_bands + found.runs.size), np.int64)
    made[:, :of_bands] = (found.bands * _BAND_PARTS).reshape(3, -1)
    table, of_x, of_y = made
    (slice_x, slice_w, slice_y), (row_x, row_w, row_y) = found.places
    runs, x, y = (words[of_bands:].reshape(-1, found.runs.shape[1]) for words in (table, of_x, of_y))
    runs[:, 3:] = found.runs[:, 3:]
    runs[:, 1] = slice_w * w[0] + row_w * w[1]
    x[:, 0] = (slice_x * p.spatial[1] + row_x) * pixel
    y[:, 2] = (slice_y * p.spatial_out[1] + row_y) * pixel
    return LinearRows(table, of_x, of_y, len(found.bands), len(runs))


@lru_cache(512)  # layers of one height share them
def _plain_rows(p: RowsOf, bands: int) -> PlainRows:
    rows, ends = _runs_of_rows(p), band_ends(p.spatial_out[1], bands)
    slices = [taps_meeting(p, 0, o) for o in range(p.spatial_out[0])]
    of_runs = [
        [
            ((d, t0, o), (h + (max(p0, first) - first) * p.stride[1], r0, max(p0, first)),
             (t1 - t0, r1 - r0, min(p1, end) - max(p0, first)))
            for o, (d, t0, t1) in enumerate(slices) for first, end, h, r0, r1 in rows
            if first < p1 and end > p0
        ]
        for p0, p1 in ends
    ]  # fmt: skip
    places = np.array([run[:2] for runs in of_runs for run in runs], np.int64)  # (runs, 2, 3)
    extent = p.dilation[1] * (p.kernel[1] - 1) + 1
    of_height = p.spatial[1], p.stride[1], p.padding[1][0], extent
    under = [plain_rows_under(*band, *of_height) for band in ends]
    counted = [[(0, 0, 0, *counts, 0) for *_, counts in runs] for runs in of_runs]
    return PlainRows(*_banded(1, 1, ends, under, counted), places.transpose(1, 2, 0).copy())


def _banded(
    columns: int, columns_out: int, ends: Sequence[_Two], under: Sequence[_Two],
    of_runs: Sequence[Sequence[Any]],
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Bands, which end so and have such rows of x under them, and the runs of all of them, as int64."""
    bands, begun = [], 0
    for (p0, p1), (h0, h1), runs in zip(ends, under, of_runs, strict=True):
        x_band, y_band = (h0 * columns, (h1 - h0) * columns), (p0 * columns_out, (p1 - p0) * columns_out)
        bands.append((*x_band, *y_band, begun, len(runs)))
        begun += len(runs)
    return np.array(bands, np.int64), np.array([run for runs in of_runs for run in runs], np.int64)


def _records(rows: np.ndarray, record: np.dtype) -> np.ndarray:
    """(n, fields) of int64 as (n,) of a record of these fields."""
    return rows.reshape(-1).view(record)


def _runs_of_rows(p: RowsOf) -> list[tuple[int, int, int, int, int]]:
    """Runs of output rows that meet the same taps: (first, end, input row, first tap, end of the taps).

    The input row is that under the first tap of the first output row.
    """
    stride, pad, rows_out = p.stride[1], p.padding[1][0], p.spatial_out[1]
    extent = p.dilation[1] * (p.kernel[1] - 1) + 1
    inside = -(-pad // stride), (p.spatial[1] + pad - extent) // stride + 1  # rows with all taps
    found: list[tuple[int, int, int, int, int]] = []
    row = 0
    while row < rows_out:
        h, r0, r1 = taps_meeting(p, 1, row)
        end = min(rows_out, inside[1]) if inside[0] <= row < inside[1] else row + 1
        if found and found[-1][3:] == (r0, r1):
            found[-1] = found[-1][0], end, *found[-1][2:]
        else:
            found.append((row, end, h, r0, r1))
        row = end
    return found


def _bordered_runs(
    c: ChannelBlocking, band: _Two, source: _Two, target: _Two, w: _Two
) -> list[tuple[int, int, int, int, int, int, bytes]]:
    """`ROW_RUN` of the rows of a band of a map with a border, each with its `lines` in the place of these."""
    runs = []
    for o in range(c.problem.spatial_out[0]):
        row, last = band
        while row < last:
            met, end = _meeting(c, o, row, source), row + 1
            while end < last and _meeting(c, o, end, source)[1:] == met[1:]:
                end += 1
            (d, h), (slices, rows), steps = met
            x, y = d * source[0] + h * source[1], o * target[0] + row * target[1]
            runs.append((x, 0, y, slices, rows, end - row, steps))
            row = end
    return runs


def _meeting(c: ChannelBlocking, o: int, row: int, source: _Two) -> tuple[_Two, _Two, bytes]:
    """Where in x a row of outputs begins, how many taps it has, and `ROW_RUN.lines`."""
    p = c.problem
    starts, under = [], []
    for axis, output in enumerate((o, row)):
        sources = source_indices(p.boundary[axis], p.spatial[axis], *p.padding[axis])
        first = output * p.stride[axis]
        starts.append(first - p.padding[axis][0])
        under.append(sources[first : first + p.kernel_extent[axis] : p.dilation[axis]])
    slices, rows = (_steps(*each) for each in zip(under, starts, source, strict=True))
    beyond = np.logical_or.outer(slices == BEYOND, rows == BEYOND)
    steps = np.where(beyond, BEYOND, np.add.outer(slices, rows))
    return (starts[0], starts[1]), (p.kernel[0], p.kernel[1]), steps.tobytes()
