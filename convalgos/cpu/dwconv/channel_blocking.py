"""How the work of `cpu.depthwise.channels` is cut, into bands of rows and blocks of columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from convalgos.core.boundaries import OUTSIDE, source_indices
from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.layouts import BLOCKS, channels_together
from convalgos.core.machine import cache_sizes, vector_bytes
from convalgos.core.problem import ConvProblem, Shape
from convalgos.cpu.dwconv.block_columns import block_pixels
from convalgos.cpu.dwconv.channel_caches import AHEAD, crowds_sets, leaves_l2, rows_fetched
from convalgos.cpu.dwconv.channel_forms import channels_read, pixels_known, rows_known
from convalgos.cpu.dwconv.row_bands import band_count, band_ends, plain_rows_under
from convalgos.cpu.runtime.half import computed_bytes, map_form
from convalgos.cpu.runtime.threads import cached_by_threads
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.halves import LINE_FORMS

# Output pixels whose sums are in registers, by vector bytes and vectors of each pixel.
MOST_PIXELS = {64: {1: 14, 2: 8}, 32: {1: 7, 2: 4}, 16: {1: 7, 2: 4}}


class Spread(NamedTuple):
    """Where the outputs lie that are some of the pixels of a larger map of channels_last, in 3-D."""

    spatial: Shape  # of that map
    step: Shape  # from one output to the next


@dataclass(frozen=True)
class ChannelBlocking:
    """How the work is cut: `vectors` of groups by bands of output rows, and rows into blocks of columns."""

    problem: ConvProblem  # the 3-D view
    x_near: bool  # x is read where it lies,
    y_near: bool  # and y is written there; else scratch, in vectors of channels
    vectors: int  # filtered side by side
    pixels: int  # of a block of columns
    bands: int  # their sizes differ by one row at most
    spread: Spread | None = None  # None where outputs are all of y

    def in_bands(self, bands: int) -> ChannelBlocking:
        """The same in so many bands."""
        of_block = self.problem, self.x_near, self.y_near, self.vectors, self.pixels
        return ChannelBlocking(*of_block, bands, self.spread)

    @cached_attribute
    def lanes(self) -> int:
        return simd.lanes(computed_bytes(self.problem))

    @cached_attribute
    def groups(self) -> int:
        """Whole groups of a vector."""
        return groups_of_vector(self.problem)

    @property
    def in_place(self) -> bool:
        return self.x_near and self.y_near

    @cached_attribute
    def has_border(self) -> bool:
        """Whether something else than zeros lies beyond the edges."""
        return not self.problem.is_zero_padded

    @property
    def shares_lines(self) -> bool:
        """Whether vectors of channels that lie side by side share lines of x."""
        return self.in_place and self.problem.layout == "channels_last"

    @property
    def in_blocks(self) -> bool:
        """Whether x is read and y written in blocks of channels."""
        return self.problem.layout in BLOCKS and self.problem.y_layout in BLOCKS

    @cached_attribute
    def blocks(self) -> int:
        """Of `vectors` vectors of groups."""
        return -(-self.problem.groups // (self.groups * self.vectors))

    @cached_attribute
    def last_group(self) -> int:
        """Where the last of them begins: in place it overlaps the one before, and reads no further."""
        p = self.problem
        if not (self.x_near or self.y_near):
            return int(p.groups)
        filled = BLOCKS.keys() & {p.layout, p.y_layout}  # blocks of channels are whole
        groups = -(-p.groups // self.groups) * self.groups if filled else p.groups
        return int(groups - self.vectors * self.groups)

    @property
    def overlaps(self) -> bool:
        """Whether the last block of vectors computes channels of the one before, too."""
        return self.last_group < (self.blocks - 1) * self.vectors * self.groups

    @cached_attribute
    def source(self) -> tuple[int, int, int]:
        """Elements between pixels, slices and vectors of what the kernels read: x, or its band in scratch."""
        p = self.problem
        if self.x_near:
            return self._map_strides(p.spatial, p.layout, p.C)
        height = max(end - first for first, end in (self.rows_under(*band) for band in self.band_ends))
        return self._scratch_strides(p.spatial[0], height * p.spatial[2])

    @cached_attribute
    def target(self) -> tuple[int, int, int]:
        """The same for what they write: y, or its band in scratch."""
        p = self.problem
        if self.spread:
            (_, height, width), (step_d, _, step_w) = self.spread
            return step_w * p.K, step_d * height * width * p.K, self.lanes
        if self.y_near:
            return self._map_strides(p.spatial_out, p.y_layout, p.K)
        return self._scratch_strides(p.spatial_out[0], self.band_rows * p.spatial_out[2])

    @property
    def target_row(self) -> int:
        """Elements between the rows of what they write."""
        p, pixel = self.problem, self.target[0]
        if self.spread:
            return self.spread.step[1] * self.spread.spatial[2] * p.K
        return int(p.spatial_out[2] * pixel)

    def _map_strides(self, spatial: Shape, layout: str, channels: int) -> tuple[int, int, int]:
        pixel = channels_together(layout, channels)
        pixels = spatial[1] * spatial[2]
        return pixel, pixels * pixel, spatial[0] * pixels * pixel if layout in BLOCKS else self.lanes

    def _scratch_strides(self, slices: int, pixels: int) -> tuple[int, int, int]:
        pixels = -(-pixels // self.lanes) * self.lanes  # squares
        return self.lanes, pixels * self.lanes, slices * pixels * self.lanes

    @property
    def band_ends(self) -> list[tuple[int, int]]:
        """Of each band the first output row, and one behind the last."""
        return band_ends(self.problem.spatial_out[1], self.bands)

    def rows_under(self, first: int, end: int) -> tuple[int, int]:
        """Rows of x from the first to the last that some output rows read, directly or beyond an edge."""
        p = self.problem
        if not self.has_border:
            of_height = p.spatial[1], p.stride[1], p.padding[1][0], p.kernel_extent[1]
            return plain_rows_under(first, end, *of_height)
        sources = source_indices(p.boundary[1], p.spatial[1], *p.padding[1])
        met = sources[first * p.stride[1] : (end - 1) * p.stride[1] + p.kernel_extent[1]]
        met = met[met != OUTSIDE]
        return (int(met.min()), int(met.max()) + 1) if len(met) else (0, 0)

    @cached_attribute
    def band_rows(self) -> int:
        """Output rows of the largest band."""
        return -(-self.problem.spatial_out[1] // self.bands)

    @property
    def scratch_bytes(self) -> int:
        """Of one task."""
        return 0 if self.in_place else self.vectors * self.turned * computed_bytes(self.problem)

    @property
    def turned(self) -> int:
        """Elements of a vector that go through scratch."""
        return (0 if self.x_near else self.source[2]) + (0 if self.y_near else self.target[2])

    @property
    def fetch(self) -> bool:
        """Whether the kernels ask for lines of x and y ahead.

        In place those of rows further down, which lie alike; of the next planes on small maps, that little
        in a row.
        """
        p = self.problem
        if self.in_place:
            alike = p.C == p.K and p.spatial == p.spatial_out and set(p.stride) == set(p.dilation) == {1}
            return alike and not self.spread and p.x_bytes > cache_sizes()[2] // 4
        whole = p.itemsize == computed_bytes(p)  # pixels are as large in scratch as in x and y
        whole = whole and not (self.x_near or self.y_near)
        return whole and self.bands == 1 and self.scratch_bytes <= cache_sizes()[0]

    @property
    def fetch_rows(self) -> int:
        """Rows of x that the kernels ask for ahead with each row of y."""
        p = self.problem
        return rows_fetched(p.stride, p.dilation, p.x_bytes) if self.in_blocks else 0

    @property
    def band_ahead(self) -> bool:
        """Whether the driver asks for the rows of the next band, in the order of memory."""
        p = self.problem
        return self.shares_lines and not self.fetch and p.stride[1] == 1 and leaves_l2(p, AHEAD)

    @cached_attribute
    def code(self) -> tuple[int, int, int]:
        """TAPS, STRIDE and DILATION of `filter_columns`, of which there are `rows_known`."""
        p = self.problem
        row = p.kernel[2], p.stride[2], p.dilation[2]
        known = rows_known(p.w_shape[1], p.gemm_n)
        reach = (row[0] - 1) * row[2]  # columns at both ends of a block that may be padding
        if row in known and max(self._padding(0), self._padding(-1)) <= reach:
            return row
        return (0, *row[1:]) if (0, *row[1:]) in known else (0, 0, 0)

    @cached_attribute
    def ranged(self) -> bool:
        """Whether the kernel reads which outputs each tap meets from tables."""
        return self.code == (0, 0, 0)

    @cached_attribute
    def columns(self) -> list[tuple[int, int, int]]:
        """(first output column, padding columns left and right) of each block; the last overlaps.

        The padding counts columns of the block's input that some output meets, up to the last of them.
        """
        p = self.problem
        stride, pad = p.stride[2], p.padding[2][0]
        firsts = first_columns(self.pixels, p.spatial_out[2]).tolist()
        starts = [(first, first * stride - pad) for first in firsts]  # and the input column of the first tap
        return [(first, max(0, -start), max(0, start + self.reach - p.spatial[2])) for first, start in starts]

    @cached_attribute
    def reach(self) -> int:
        """Input columns from the first that a block meets to the last."""
        p = self.problem
        return int((self.pixels - 1) * p.stride[2] + p.kernel_extent[2])

    def _padding(self, block: int) -> int:
        """Columns of padding that the first block meets on the left, or the last one on the right."""
        p = self.problem
        if block == 0:
            return int(p.padding[2][0])
        start: int = (p.spatial_out[2] - self.pixels) * p.stride[2] - p.padding[2][0]
        return start + self.reach - p.spatial[2]

    @property
    def range_bytes(self) -> int:
        """Of the tables of `ranges`, at most: of each block that meets padding, and one of all others."""
        step = self.pixels * self.problem.stride[2]
        ends = sum(-(-max(0, self._padding(block)) // step) for block in (0, -1)) if self.ranged else -1
        return 16 * self.problem.kernel[2] * (ends + 1)

    def ranges(self, first: int) -> np.ndarray:
        """(S, 2) of a block of columns: the first output that meets the map under each tap, and one
        behind."""
        p = self.problem
        column = first * p.stride[2] - p.padding[2][0] + np.arange(p.kernel[2]) * p.dilation[2]  # of output 0
        start = np.clip(-(column // p.stride[2]), 0, self.pixels)
        end = np.clip(-((column - p.spatial[2]) // p.stride[2]), 0, self.pixels)
        return np.stack([np.minimum(start, end), end], 1).astype(np.int64)


def first_columns(pixels: int, columns: int) -> np.ndarray:
    """(blocks,) where blocks of so many pixels of a row of y begin; the last overlaps the one before."""
    last = columns - pixels
    found: np.ndarray = np.minimum(np.arange(0, last + pixels, pixels), last)
    return found


def groups_of_vector(p: ConvProblem) -> int:
    return simd.lanes(computed_bytes(p)) // max(p.w_shape[1], p.gemm_n)


@cached_by_threads(256)
def channel_blocking(problem: ConvProblem) -> ChannelBlocking:
    p = problem.as_3d
    groups = groups_of_vector(problem)
    near = _near(p, groups)
    in_place = near == (True, True)
    shared = in_place and p.layout == "channels_last"
    # Two vectors keep the registers busy on narrow maps, spare the first cache where the pixels lie so many
    # bytes apart that they share few of its sets, and read a line of channels_last once that both need, which
    # tells where it comes from beyond L2 and few taps follow.
    narrow = p.spatial_out[2] <= (2 if shared else 1) * MOST_PIXELS[vector_bytes()][2]
    pair = max(p.w_shape[1], p.gemm_n) == 1 and p.groups >= 2 * groups
    if pair and not narrow:
        lines = in_place and map_form(p.dtype) in LINE_FORMS  # two vectors are loaded together
        even = shared and p.kernel[2] <= 3 and -(-p.C // groups) % 2 == 0
        pair = lines or (shared and ((even and leaves_l2(p)) or crowds_sets(p)))
    c = _uncut_block(p, near, pair)
    bands = _band_count(c)
    return c if bands == 1 else c.in_bands(bands)


def band_blocking(problem: ConvProblem, bands: int) -> ChannelBlocking:
    """Blocks of channels filtered one by one, in place or where a step before it has left a band of x."""
    return _uncut_block(problem.as_3d, (True, True), False).in_bands(bands)


def _near(p: ConvProblem, groups: int) -> tuple[bool, bool]:
    """Whether x is read and y written where it lies, in whole vectors of so many groups."""
    lanes = simd.lanes(computed_bytes(p))
    layouts, counts = (p.layout, p.y_layout), (p.w_shape[1], p.gemm_n)
    whole = channels_read(lanes, *counts) > 0, groups * p.gemm_n == lanes
    if p.layout == p.y_layout == "channels_last" and not all(whole):
        return False, False
    # the last vector of channels_last overlaps the one before, which blocks do not
    overlaps = not BLOCKS.keys() & set(layouts) or p.groups % groups == 0
    x_near, y_near = (
        layout in BLOCKS or (layout == "channels_last" and fills and p.groups >= groups and overlaps)
        for layout, fills in zip(layouts, whole, strict=True)
    )
    return x_near, y_near


def _uncut_block(p: ConvProblem, near: tuple[bool, bool], pair: bool) -> ChannelBlocking:
    """A block of groups, in one band.

    Args:
        p: in 3-D.
        near: whether x is read and y written where it lies.
        pair: whether two vectors are worth a try.
    """
    columns, most = p.spatial_out[2], MOST_PIXELS[vector_bytes()]
    for vectors in (2, 1) if pair else (1,):
        known = pixels_known(p.w_shape[1], p.gemm_n, vectors)
        pixels = block_pixels(min(most[vectors], columns), columns, vectors, known)
        c = ChannelBlocking(p, *near, vectors, pixels, 1)
        if vectors == 1 or not c.ranged:
            break
    return c


def _band_count(c: ChannelBlocking) -> int:
    """Bands for all threads, whose rows of x stay in half of L2. c: in one band.

    Where blocks share lines, and not all of x and y stays there from call to call, the rows of both take a
    quarter of it, or a sixteenth where the next band is asked for. Where the first cache loses the rows that
    two bands share, they may as well come from L2.
    """
    p, rows_out, (_, l2, _) = c.problem, c.problem.spatial_out[1], cache_sizes()
    limit = l2 // 2
    if c.x_near:
        row_bytes = p.spatial[0] * p.stride[1] * p.spatial[2] * c.source[0] * p.itemsize
    else:
        row_bytes = c.scratch_bytes // rows_out
    overlap = p.kernel_extent[1] - 1  # rows of x that two bands share
    if c.shares_lines and leaves_l2(p):
        limit = l2 // (16 if c.band_ahead else 4)
        row_bytes += p.spatial_out[0] * p.spatial_out[2] * c.target[0] * p.itemsize
    shared = 0 if c.band_ahead and overlap <= 2 and crowds_sets(p) else overlap
    rows = max(1, shared, limit // row_bytes)
    return band_count(rows_out, rows, p.N * c.blocks, overlap, c.in_blocks)
