"""Blocks of outputs, and the input under them: what products over a table of input offsets read.

The outputs of a problem are cut into blocks of pixels. Kernel size, stride, dilation, number of dimensions
and layout become tables of input offsets: of the pixels of a block, and of the taps. The input of a block is
read in place where there is no padding; else it is copied, with its zero border, into scratch that stays in
L2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.layouts import BLOCKS
from convalgos.core.problem import ConvProblem
from convalgos.core.problem_views import in_a_row
from convalgos.cpu.gemm.offset_tables import tables_of_offsets
from convalgos.cpu.layout import strided_rows
from convalgos.cpu.layout.copied_borders import border_tables
from convalgos.cpu.layout.strides import first_output, map_strides
from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import simd

WHOLE_ROW = 300  # outputs; longer rows are cut. Long runs store better than short halos load
COLUMNS = 256  # of a block of a longer row

OF_BLOCKS = [f"{name}_{axis}" for name in ("block", "blocks") for axis in "opq"]
SIZE_FIELDS = (*OF_BLOCKS, *"opq", "depth", "height", "width")
TAP_FIELDS = tuple(f"{name}_{axis}" for name in ("stride", "pad", "span") for axis in "dhw")
STEP_FIELDS = tuple(f"{name}_{axis}" for name in "xs" for axis in "ncdhw")


@dataclass(frozen=True)
class Blocks:
    """How the output is cut. Sizes are per dimension (O, P, Q) of the 3-D view."""

    problem: ConvProblem  # the 3-D view
    images: int  # of a block; more than one only where the block holds whole images
    block: tuple[int, int, int]  # outputs of a block
    copied: bool  # whether the input of a block is copied, with its border, into scratch

    @cached_attribute
    def pixels(self) -> int:
        return self.images * math.prod(self.block)

    @cached_attribute
    def blocks(self) -> tuple[int, int, int, int]:
        """Number of blocks along (N, O, P, Q)."""
        sizes = (self.problem.N, *self.problem.spatial_out)
        return tuple(-(-n // b) for n, b in zip(sizes, (self.images, *self.block), strict=True))  # type: ignore[return-value]

    @cached_attribute
    def spans(self) -> tuple[int, ...]:
        """Input elements under a block, per dimension; where there is one tap, only those it reads."""
        p = self.problem
        return tuple(
            (n - 1) * (1 if r == 1 and axis != "w" else s) + e
            for axis, n, r, s, e in zip("dhw", self.block, p.kernel, p.stride, p.kernel_extent, strict=True)
        )

    @cached_attribute
    def strides(self) -> tuple[int, ...]:
        """Elements between neighbours along (N, C, D, H, W) of what the micro-kernel reads."""
        p = self.problem
        sizes = self.spans if self.copied else p.spatial
        channels = p.C if p.layout == "channels_last" or not self.copied else p.w_shape[1]
        return map_strides(p.layout, channels, sizes)

    @cached_attribute
    def unit(self) -> int:
        """Channels of a pixel that are neighbours in x."""
        return (
            self.problem.C if self.problem.layout == "channels_last" else BLOCKS.get(self.problem.layout, 1)
        )

    @property
    def input_elements(self) -> int:
        """Of scratch, with a cache line's worth of elements that the vectors of the last row may write."""
        return self.images * self.strides[0] + 16 if self.copied else 0

    def fields(self) -> dict[str, Any]:
        """What a driver over blocks finds in its record: sizes, steps and strides, in elements."""
        p = self.problem
        values = {
            "size": p.itemsize, "channels": p.w_shape[1],
            "filters": p.gemm_n, "groups": p.groups, "copied": int(self.copied), "unit": self.unit,
            "lanes": simd.lanes(p.itemsize), "copy_rows": self._row_copier,
            "step_d": p.stride[0] if self.copied and p.kernel[0] == 1 else 1,
            "step_h": p.stride[1] if self.copied and p.kernel[1] == 1 else 1,
        }  # fmt: skip
        lows = [low for low, _ in p.padding]
        values |= border_tables(p)
        values |= zip(TAP_FIELDS, (*p.stride, *lows, *p.kernel_extent), strict=True)
        return values | self.size_fields()

    def changed_fields(self) -> dict[str, Any]:
        """Those of them that other sizes of the maps may change."""
        return self.size_fields() if self.problem.is_zero_padded else self.fields()

    def size_fields(self) -> dict[str, int]:
        """Those of them that the sizes of maps change which have zeros around them."""
        p = self.problem
        x_strides = map_strides(p.layout, p.C, p.spatial)
        y_n, y_k, _, _, y_pixel = map_strides(p.y_layout, p.K, p.spatial_out)
        sizes = (*self.block, *self.blocks[1:], *p.spatial_out, *p.spatial)
        values = {
            "n": p.N, "images": self.images, "input_bytes": self.input_elements * p.itemsize,
            "y_n": y_n, "y_k": y_k, "y_pixel": y_pixel, "end_w": p.spatial[2] + p.padding[2][1],
        }  # fmt: skip
        values |= zip(SIZE_FIELDS, sizes, strict=True)
        return values | dict(zip(STEP_FIELDS, (*x_strides, *self.strides), strict=True))

    @property
    def _row_copier(self) -> int:
        """The kernel that copies rows of one channel, where there are any to copy."""
        p = self.problem
        if not self.copied or self.unit > 1:
            return 0
        return strided_rows.row_copier(p.itemsize, simd.lanes(p.itemsize), 1, 1)

    def pixel_table(self, spare: int) -> np.ndarray:
        """(ways, pixels + spare) input offsets of the pixels of a block, for each way of being cut short."""
        p = self.problem
        sizes = (self.images, *self.block)
        totals = (p.N, *p.spatial_out)
        n, _, d, h, w = self.strides
        strides = (n, d * (1 if self.copied and p.kernel[0] == 1 else p.stride[0]),
                   h * (1 if self.copied and p.kernel[1] == 1 else p.stride[1]), w * p.stride[2])  # fmt: skip
        return tables_of_offsets((1, *sizes), (1, *totals), (0, *strides), self.pixels + spare)

    def tap_offsets(self, by_channel: bool, spare: int = 0) -> np.ndarray:
        """(taps + spare,) input offsets: channels outermost, as in a filter, or innermost, as channels last.
        Spare ones are that of the last tap."""
        p, channels = self.problem, self.problem.w_shape[1]
        _, c, *spatial = self.strides
        lanes = min(BLOCKS.get(p.layout, 1), channels) or 1
        if p.is_pointwise and channels:
            block, lane = _channel_places(channels, lanes, spare)
            of_pixel: np.ndarray = block * (lanes * c) + lane
            return of_pixel
        blocks = -(-channels // lanes)
        of_channels = [(blocks, lanes * c), (lanes, 1)]
        taps = [(r, s * e) for r, s, e in zip(p.kernel, spatial, p.dilation, strict=True)]
        counts, strides = zip(*(of_channels + taps if by_channel else taps + of_channels), strict=True)
        whole = channels == blocks * lanes  # else offsets of channels beyond the last are left out
        found: np.ndarray = tables_of_offsets(counts, counts, strides, math.prod(counts) + whole * spare)[0]
        if whole:
            return found
        found = found[: p.gemm_k] if by_channel else found.reshape(-1, blocks * lanes)[:, :channels].ravel()
        return np.pad(found, (0, spare), mode="edge")


@lru_cache(512)  # layers have the same on maps of all sizes
def _channel_places(channels: int, lanes: int, spare: int) -> tuple[np.ndarray, np.ndarray]:
    """(channels + spare,) the block of each channel, of so many lanes, and its place there; the last one's
    again for spare ones."""
    block, lane = np.divmod(np.minimum(np.arange(channels + spare), channels - 1), lanes)
    return block, lane


def flat_view(problem: ConvProblem) -> ConvProblem:
    """The 3-D view; a pointwise problem without stride or padding is one long column of pixels."""
    if problem.is_plain_product:
        view: ConvProblem = in_a_row(problem, (1, math.prod(problem.spatial), 1))
        return view
    return problem.as_3d


def cut_map(pixels: int, sizes: tuple[int, int, int], lanes: int) -> tuple[int, int, int]:
    """A block of about `pixels` outputs, in whole rows where they are not too long."""
    o, p, q = sizes
    columns = q
    if q > min(WHOLE_ROW, pixels):
        parts = -(-q // min(COLUMNS if p > 1 or o > 1 else pixels, pixels))
        columns = min(q, math.ceil(q / parts / lanes) * lanes)
    rows = max(1, min(p, round(pixels / columns)))
    rows = -(-p // -(-p // rows))
    slices = 1
    if rows == p and columns == q:
        slices = max(1, min(o, round(pixels / (p * q))))
        slices = -(-o // -(-o // slices))
    return slices, rows, columns


def block_lengths(size: int, along: int) -> list[int]:
    """A size cut into blocks, the last one short."""
    whole, rest = divmod(size, along)
    return [along] * whole + [rest] * (rest > 0)


def busiest(work: Sequence[float], units: int, threads: int) -> float:
    """Work of the busiest of some threads: blocks of so much work in each of their units, which are dealt to
    the threads in equal runs."""
    before = [0.0, *accumulate(work)]
    starts = []  # work before that of each thread
    for thread in range(threads + 1):
        done, more = divmod(len(work) * units * thread // threads, units)
        starts.append(before[done] * units + (more * work[done] if more else 0))
    return max(end - start for start, end in pairwise(starts))


class Panels:
    """Filters taken in panels by a tile of the micro-kernel: a base of what has these fields."""

    problem: ConvProblem
    vectors: int  # of filters of the micro-kernel

    @property
    def panel(self) -> int:
        """Filters of the micro-kernel."""
        return self.vectors * simd.lanes(self.problem.itemsize)

    @property
    def panels(self) -> int:
        """Of one group."""
        return -(-self.problem.gemm_n // self.panel)


@dataclass(frozen=True)
class PanelBlocks(Panels, Blocks):
    """Blocks whose filters are taken in panels."""

    rows: int  # of the micro-kernel
    vectors: int


class BlockExtent(NamedTuple):
    """Where a block of outputs begins, and how many it holds along each dimension: fewer at the ends."""

    n: int
    o: int
    p: int
    q: int
    images: int
    slices: int
    rows: int
    columns: int


@jit.helper
def block_extent(a: Any, block: int) -> BlockExtent:
    """What a block holds; blocks at the ends of a map are cut short."""
    n, o, p, q = first_output(a, block)
    return BlockExtent(
        n * a.images, o, p, q,
        min(a.images, a.n - n * a.images), min(a.block_o, a.o - o), min(a.block_p, a.p - p),
        min(a.block_q, a.q - q),
    )  # fmt: skip


@jit.helper
def table_number(a: Any, b: BlockExtent) -> int:
    """Which of the tables of `Blocks.pixel_table` a block takes: it may be cut short in each dimension."""
    short = (b.images < a.images) * 8 + (b.slices < a.block_o) * 4
    return int(short + (b.rows < a.block_p) * 2 + (b.columns < a.block_q))


@jit.helper
def run_pixels(a: Any, b: BlockExtent) -> int:
    """Pixels of a block that are neighbours in y: whole rows and slices of the map join."""
    run = b.columns
    if b.columns == a.q:
        run *= b.rows
        if b.rows == a.p:
            run *= b.slices
    return run


@jit.helper
def block_count(a: Any) -> Any:
    """Blocks of all outputs."""
    return (a.n + a.images - 1) // a.images * a.blocks_o * a.blocks_p * a.blocks_q


@jit.helper
def image_pixels(b: BlockExtent) -> Any:
    """Pixels of one image of a block."""
    return b.slices * b.rows * b.columns


@jit.helper
def pixel_in_image(a: Any, b: BlockExtent, done: int) -> Any:
    """Where in an image of y the row begins that follows the first `done` pixels of a block in it."""
    o = b.o + done // (b.rows * b.columns)
    p = b.p + done // b.columns % b.rows
    return (o * a.p + p) * a.q + b.q


@jit.helper
def input_start(a: Any, b: BlockExtent) -> tuple[int, int, int]:
    """The input slice, row and column under the first tap of a block; they may be padding."""
    return b.o * a.stride_d - a.pad_d, b.p * a.stride_h - a.pad_h, b.q * a.stride_w - a.pad_w


@jit.helper
def input_in_place(a: Any, b: BlockExtent, group: int) -> Any:
    """The address in x of the input of a block without padding, at the first channel of a group."""
    d, h, w = input_start(a, b)
    first = b.n * a.x_n + group * a.channels * a.x_c
    return a.x + (first + d * a.x_d + h * a.x_h + w * a.x_w) * a.size
