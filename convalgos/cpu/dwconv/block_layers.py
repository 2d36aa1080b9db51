"""Depthwise layers in blocks of channels, on maps of any sizes: what the sizes do not change is found once.

Networks are planned for every size of their inputs: such a cut takes a tenth of what `ChannelBlocking` takes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.core.layouts import BLOCKS
from convalgos.core.machine import cache_sizes, vector_bytes
from convalgos.cpu.dwconv.block_activations import BlockKernel, block_kernel
from convalgos.cpu.dwconv.block_columns import block_pixels
from convalgos.cpu.dwconv.channel_blocking import MOST_PIXELS, ChannelBlocking
from convalgos.cpu.dwconv.channel_caches import rows_fetched
from convalgos.cpu.dwconv.channel_forms import pixels_known
from convalgos.cpu.dwconv.channel_kernels import filter_block
from convalgos.cpu.dwconv.channel_tables import (
    LinearRows,
    RowsOf,
    band_tables,
    column_table,
    linear_rows,
    plain_columns,
)
from convalgos.cpu.dwconv.row_bands import band_count
from convalgos.cpu.runtime.half import map_form
from convalgos.cpu.vectors.activations import CLIP
from convalgos.cpu.vectors.halves import LINE_FORMS


class BlockTables(NamedTuple):
    """The kernel of a layer in blocks of channels, and the tables that it reads."""

    kernel: BlockKernel
    bands: np.ndarray
    runs: np.ndarray
    columns: np.ndarray
    kept: list[np.ndarray]  # what these point to

    @property
    def filter_block(self) -> int:
        """The kernel, which keeps sums within limits."""
        return filter_block(*self.kernel, CLIP)


def tables_in_blocks(c: ChannelBlocking) -> BlockTables:
    """Those of any cut in place of blocks of channels."""
    p, lanes = c.problem, c.lanes
    steps = [(s[1] * s[2] * lanes, s[2] * lanes) for s in (p.spatial, p.spatial_out, p.kernel)]
    columns, of_columns = column_table(c, lanes, lanes)
    bands, runs, lines = band_tables(c, *steps)
    return BlockTables(block_kernel(c), bands, runs, columns, [*of_columns, *lines])


class BlockLayer:
    """A layer of zeros around its maps, a vector of whose groups is filtered at a time, in place."""

    def __init__(self, c: ChannelBlocking):
        """
        Args:
            c: on maps of some size; see `layer_in_blocks`.
        """
        p = c.problem
        self._kernel, self._lanes, self._blocks, self._groups = block_kernel(c), c.lanes, c.blocks, c.groups
        self._pair = p.groups >= 2 * c.groups and max(p.w_shape[1], p.gemm_n) == 1
        self._most, self._narrow = MOST_PIXELS[vector_bytes()][1], MOST_PIXELS[vector_bytes()][2]
        self._of_rows = p.kernel, p.stride, p.padding, p.dilation
        self._of_columns = p.stride[2], p.padding[2][0]
        self._extents, self._edge = p.kernel_extent, (p.kernel[2] - 1) * p.dilation[2]
        self._w_steps = p.kernel[1] * p.kernel[2] * c.lanes, p.kernel[2] * c.lanes
        self._steady = {*p.stride, *p.dilation} == {1} and p.C == p.K
        self._x_lanes, self._y_lanes = c.groups * p.w_shape[1], c.groups * p.gemm_n
        self._itemsize = p.itemsize

    def keeps_kernel(self, columns: int, columns_out: int) -> bool:
        """Whether the kernel is compiled for the padding that blocks of columns meet."""
        stride, pad = self._of_columns
        return max(pad, (columns_out - 1) * stride - pad + self._extents[2] - columns) <= self._edge

    def tables(self, spatial: Shape, spatial_out: Shape, bands: int) -> BlockTables | None:
        """`tables_in_blocks` for maps of other sizes in 3-D; None where they are of another kind."""
        columns, columns_out = spatial[2], spatial_out[2]
        if not self.keeps_kernel(columns, columns_out):
            return None
        of_rows = self.rows(spatial[:2], spatial_out[:2], bands).in_columns(columns, columns_out)
        kernel, of_columns = self.columns(columns, columns_out)
        return BlockTables(kernel, *of_rows, of_columns, [])

    def rows(self, spatial: Shape, spatial_out: Shape, bands: int) -> LinearRows:
        """The bands and runs of maps of so many slices and rows."""
        rows = RowsOf(spatial, spatial_out, *self._of_rows)
        return linear_rows(rows, bands, self._lanes, self._w_steps)

    def columns(self, columns: int, columns_out: int) -> tuple[BlockKernel, np.ndarray]:
        """The kernel of maps of so many columns, and their blocks."""
        of_kernel, (stride, pad), lanes = self._kernel, self._of_columns, self._lanes
        known = pixels_known(*of_kernel[3:6])
        pixels = block_pixels(min(self._most, columns_out), columns_out, 1, known)
        reach = (pixels - 1) * stride + self._extents[2]
        found = plain_columns(pixels, reach, columns, columns_out, stride, pad, lanes, lanes)
        return (*of_kernel[:6], pixels, *of_kernel[7:]), found

    def _bands(self, images: int, spatial: Shape, spatial_out: Shape) -> int:
        """As `channel_blocking` counts them."""
        stride, overlap = self._of_rows[1][1], self._extents[1] - 1
        row_bytes = spatial[0] * stride * spatial[2] * self._lanes * self._itemsize
        rows = max(1, overlap, cache_sizes()[1] // 2 // row_bytes)
        return band_count(spatial_out[1], rows, images * self._blocks, overlap, True)

    def fields(
        self, x_shape: Shape, outputs: Shape
    ) -> tuple[BlockTables, dict[str, int | np.ndarray]] | None:
        """The tables of maps of other sizes, and the fields that depend on these, as `map_fields` has them.

        None where they are cut in another way.

        Args:
            outputs: rows and columns, and slices where there are some.
        """
        images, ones = x_shape[0], (1,) * (3 - len(outputs))
        spatial, spatial_out, lanes = ones + x_shape[2:], ones + outputs, self._lanes
        (d, h, w), (o, p, q) = spatial, spatial_out
        if self._pair and q <= self._narrow:
            return None
        bands = self._bands(images, spatial, spatial_out)
        if (found := self.tables(spatial, spatial_out, bands)) is None:
            return None
        (_, strides, _, dilations), blocks = self._of_rows, self._blocks
        x_slice, y_slice = h * w * lanes, p * q * lanes
        x_blocks = -(-x_shape[1] // lanes)
        x_bytes = math.prod(x_shape) * self._itemsize
        fetch = self._steady and spatial == spatial_out and x_bytes > cache_sizes()[2] // 4
        return found, {
            "images": images, "band_count": bands, "bands": found.bands, "runs": found.runs,
            "x_n": x_blocks * d * x_slice, "x_c": d * h * w, "x_vector": self._x_lanes * d * h * w,
            "x_slice": x_slice, "y_n": blocks * o * y_slice, "y_k": o * p * q,
            "y_vector": self._y_lanes * o * p * q, "y_slice": y_slice, "slices": d, "slices_out": o,
            "from_vector": d * x_slice, "from_slice": x_slice, "to_vector": o * y_slice,
            "to_slice": y_slice, "from_next": strides[1] * w * lanes, "to_next": q * lanes,
            "slice_step": dilations[0] * x_slice, "row_step": dilations[1] * w * lanes,
            "columns": found.columns, "column_count": len(found.columns), "fetch": int(fetch),
            "fetch_rows": rows_fetched(strides, dilations, x_bytes),
            "filter_block": found.filter_block,
        }  # fmt: skip


def layer_in_blocks(c: ChannelBlocking) -> BlockLayer | None:
    """The layer of a cut, which has the `tables` of other sizes; None where it is cut otherwise."""
    p = c.problem
    alike = BLOCKS.get(p.layout) == BLOCKS.get(p.y_layout) == c.lanes and c.vectors == 1
    if (
        not alike
        or c.spread
        or c.has_border
        or c.ranged
        or p.direction != "forward"
        or map_form(p.dtype) in LINE_FORMS
    ):
        return None
    layer = BlockLayer(c)
    return layer if layer.keeps_kernel(p.spatial[2], p.spatial_out[2]) else None
