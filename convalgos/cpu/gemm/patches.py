"""The patch matrix of im2col: its shape, the kernels that fill it, and our own product with it.

Channels first a patch matrix is (groups, taps, pixels) and is filled row by row of x; channels last it is
(pixels, groups, taps), in runs of all channels of a group. Pointwise problems need none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from convalgos.core.machine import cache_sizes
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm import dealt_panels
from convalgos.cpu.layout import channel_vectors
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import arguments
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.simd import call, carray, copy_bytes, pointer, zero_bytes

PIECE_PIXELS = 256  # that a task of our own product takes at a time


@dataclass(frozen=True)
class Patches:
    """The patch matrix of a block: (groups, taps, pixels), or (pixels, groups, taps) in channels_last."""

    problem: ConvProblem  # the 3-D view
    images: int  # that share one run of pixels: all in channels_last, where y has no gap between them
    pixels: int  # of a block

    @property
    def runs(self) -> int:
        """Runs of neighbouring outputs: one per image, or one for all."""
        return self.problem.N // self.images

    @property
    def run_pixels(self) -> int:
        return self.images * math.prod(self.problem.spatial_out)

    @property
    def needed(self) -> bool:
        """A pointwise problem without stride or padding reads x as it is."""
        return not self.problem.is_plain_product

    @property
    def row(self) -> int:
        """Elements of a row of patches in channels_first: an odd number of cache lines, so that the taps of
        a pixel do not all fall into one set of a cache."""
        line = 64 // self.problem.itemsize
        return (-(-self.pixels // line) | 1) * line

    @property
    def elements(self) -> int:
        width = self.pixels if self.problem.layout == "channels_last" else self.row
        return self.problem.groups * self.problem.gemm_k * width if self.needed else 0

    @property
    def blocks(self) -> int:
        return self.runs * -(-self.run_pixels // self.pixels)


@lru_cache(256)
def patches(problem: ConvProblem) -> Patches:
    p = problem.as_3d
    images = p.N if p.layout == "channels_last" else 1
    run = images * math.prod(p.spatial_out)
    room = cache_sizes()[2] // 4 // (p.groups * p.gemm_k * p.itemsize)
    pixels = min(run, max(16, room))
    return Patches(p, images, -(-run // -(-run // pixels)))


def sums_bytes(problem: ConvProblem) -> int:
    """Scratch of a task of our own product: the pixel table, and sums with spare rows."""
    rows, count = dealt_panels.panel_tile(problem.gemm_n, problem.itemsize)
    lanes = simd.lanes(problem.itemsize)
    vectors = -(-problem.gemm_n // lanes // count)  # of the widest panel
    return (PIECE_PIXELS + 16) * 8 + (PIECE_PIXELS + rows + lanes) * vectors * lanes * problem.itemsize


# --- kernels ---------------------------------------------------------------------------------

IM2COL_FIELDS = arguments(
    "size patches sums sums_stride first pixels tasks groups channels filters taps chunk "
    "depth height width o p q kernel_d kernel_h kernel_w stride_d stride_h stride_w "
    "dilation_d dilation_h dilation_w pad_d pad_h pad_w "
    "row_pixels pixel_step group_step tap_table vectors panels widest lanes rows "
    "y_k y_pixel stream sum_panel sum_narrow store_run"
)


@jit.specialise
def fill_channels_first(SIZE: int) -> jit.Kernel:
    """patches[channel, t, r, s][pixel] = the input element under that kernel element, or 0."""

    def fill_channels_first(args: int, task: int) -> None:
        a = carray(pointer(args), 1, IM2COL_FIELDS)[0]
        area = a.kernel_d * a.kernel_h * a.kernel_w
        total = a.groups * a.channels * area
        for row in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            c = row // area
            t = row % area // (a.kernel_h * a.kernel_w)
            r = row // a.kernel_w % a.kernel_h
            s = row % a.kernel_w
            target = a.patches + row * a.row_pixels * SIZE
            done = 0
            while done < a.pixels:
                q0 = (a.first + done) % a.q
                count = min(a.q - q0, a.pixels - done)  # pixels up to the end of this row of outputs
                p = (a.first + done) // a.q % a.p
                o = (a.first + done) // (a.q * a.p)
                d = o * a.stride_d - a.pad_d + t * a.dilation_d
                h = p * a.stride_h - a.pad_h + r * a.dilation_h
                w = q0 * a.stride_w - a.pad_w + s * a.dilation_w
                to = target + done * SIZE
                done += count
                if d < 0 or d >= a.depth or h < 0 or h >= a.height:
                    zero_bytes(to, count * SIZE)
                    continue
                # outputs [before, inside) of this row read inside of x
                before = min(count, max(0, (-w + a.stride_w - 1) // a.stride_w))
                inside = max(before, min(count, (a.width - 1 - w) // a.stride_w + 1))
                source = a.x + (((c * a.depth + d) * a.height + h) * a.width + w) * SIZE
                if before:
                    zero_bytes(to, before * SIZE)
                if inside < count:
                    zero_bytes(to + inside * SIZE, (count - inside) * SIZE)
                if a.stride_w == 1:
                    copy_bytes(to + before * SIZE, source + before * SIZE, (inside - before) * SIZE)
                else:
                    first = source + before * a.stride_w * SIZE
                    channel_vectors.copy_strided(to + before * SIZE, first, inside - before, a.stride_w, SIZE)

    return fill_channels_first


@jit.specialise
def fill_channels_last() -> jit.Kernel:
    """patches[pixel][group][t, r, s, channel] = the input element under that kernel element, or 0."""

    def fill_channels_last(args: int, task: int) -> None:
        a = carray(pointer(args), 1, IM2COL_FIELDS)[0]
        run = a.channels * a.size
        every = a.groups * a.channels
        for pixel in range(a.pixels * task // a.tasks, a.pixels * (task + 1) // a.tasks):
            at = a.first + pixel
            w0 = at % a.q * a.stride_w - a.pad_w
            h0 = at // a.q % a.p * a.stride_h - a.pad_h
            d0 = at // (a.q * a.p) % a.o * a.stride_d - a.pad_d
            image = at // (a.q * a.p * a.o)
            to = a.patches + pixel * a.groups * a.taps * a.size
            for group in range(a.groups):
                for t in range(a.kernel_d):
                    d = d0 + t * a.dilation_d
                    for r in range(a.kernel_h):
                        h = h0 + r * a.dilation_h
                        for s in range(a.kernel_w):
                            w = w0 + s * a.dilation_w
                            inside = d >= 0 and d < a.depth and h >= 0 and h < a.height and w >= 0
                            if inside and w < a.width:
                                element = ((image * a.depth + d) * a.height + h) * a.width + w
                                copy_bytes(to, a.x + (element * every + group * a.channels) * a.size, run)
                            else:
                                zero_bytes(to, run)
                            to += run

    return fill_channels_last


@jit.specialise
def multiply_patches() -> jit.Kernel:
    """Our own product: pieces of PIECE_PIXELS pixels x groups x panels of filters, dealt to the tasks."""

    def multiply_patches(args: int, task: int) -> None:
        a = carray(pointer(args), 1, IM2COL_FIELDS)[0]
        table = a.sums + task * a.sums_stride
        sums = table + (PIECE_PIXELS + 16) * 8
        pieces = (a.pixels + PIECE_PIXELS - 1) // PIECE_PIXELS
        per_piece = a.groups * a.panels
        total = pieces * per_piece
        for item in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            piece = item // per_piece
            group = item % per_piece // a.panels
            panel = item % a.panels
            first = piece * PIECE_PIXELS
            count = min(PIECE_PIXELS, a.pixels - first)
            rows = carray(pointer(table), PIECE_PIXELS + 16, np.int64)
            for i in range(count + a.rows):  # spare rows of the micro-kernel read the last pixel
                rows[i] = min(i, count - 1) * a.pixel_step
            source = a.patches + (first * a.pixel_step + group * a.group_step) * a.size
            filters = dealt_panels.panel_extent(a, group, panel)
            call(filters.kernel, (source, table, count, a.tap_table, a.taps, a.chunk, filters.w, sums))
            k = group * a.filters + filters.first
            y = a.y + (k * a.y_k + (a.first + first) * a.y_pixel) * a.size
            bias = a.bias + k * a.size
            call(
                a.store_run,
                (
                    sums, filters.width, count, filters.filters, bias, a.relu, a.stream, y, a.y_k, a.y_pixel,
                ),
            )  # fmt: skip

    return multiply_patches
