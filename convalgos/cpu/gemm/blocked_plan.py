"""The plan of direct convolution to blocks of channels, from blocks of channels or maps that lie apart.

A tile of outputs is read, summed and stored where it lies, with bias and activation, and nothing is packed or
transposed but the filters.

Source: the blocked layouts of oneDNN (Georganas et al. 2018, arXiv:1808.05567).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Self

import numpy as np

from convalgos.core.algorithm import Algorithm
from convalgos.core.arguments import Shape
from convalgos.core.prepared_filter import FilterForm
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm import panel_packing
from convalgos.cpu.gemm.block_copies import copy_block_images
from convalgos.cpu.gemm.blocked_cut import (
    BlockedCut,
    columns_of_block,
    cut_like,
    images_of_block,
    shares_of_image,
)
from convalgos.cpu.gemm.blocked_tiles import tile_kernels
from convalgos.cpu.gemm.blocking import (
    block_count,
    block_extent,
    input_in_place,
    pixel_in_image,
    table_number,
)
from convalgos.cpu.gemm.gemv import MOST_ROWS
from convalgos.cpu.gemm.reached_tiles import REACHED_FIELDS, TilePass, pass_of_tile
from convalgos.cpu.gemm.register_finish import RegisterFinish
from convalgos.cpu.gemm.row_tiles import ROW_TILE, ROW_TILE_BYTES, tile_table
from convalgos.cpu.layout.copied_borders import BORDER_FIELDS
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import arguments
from convalgos.cpu.runtime.threads import plan_threads
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.simd import call, carray, pointer

BLOCKED_ARGUMENTS = arguments(
    "size images block_o block_p block_q blocks_o blocks_p blocks_q n o p q channels filters groups "
    "parts vectors panels lanes tasks offsets entries inner whole rest chunk tiles table_length kernels "
    "last_kernels narrow copied x_n x_c x_d x_h x_w depth height width stride_d stride_h stride_w "
    "pad_d pad_h pad_w step_d step_h span_d span_h span_w s_n s_c s_d s_h s_w run unit input_bytes "
    "scratch_stride y_n y_k y_pixel y_block copy_rows unlimited limits adds scale scale_n scaled "
    "scaled_bytes scale_rows " + REACHED_FIELDS + BORDER_FIELDS
)
SHARED = {*(BLOCKED_ARGUMENTS.names or ())}  # fields, of which a cut has more


@jit.specialise
def sum_blocked() -> Callable[..., None]:
    """Parts of the filters x groups x blocks, in this order, dealt to the tasks in equal runs. For each:

    1. read the input of the block in place, or copy it with its zero border;
    2. sum a panel of filters, in passes of `chunk` entries, tile by tile, to where the outputs lie.
    """

    def sum_blocked(args: int, task: int) -> None:
        a = carray(pointer(args), 1, BLOCKED_ARGUMENTS)[0]
        scratch = a.scratch + task * a.scratch_stride
        blocks = block_count(a)
        units = blocks * a.groups
        total = units * a.parts
        for item in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            part, group, index = item // units, item // blocks % a.groups, item % blocks
            block = block_extent(a, index)
            source = scratch
            if a.copied:
                x = a.x + (block.n * a.x_n + group * a.channels * a.x_c) * a.size
                copy_block_images(a, block, x, scratch, a.channels)
            else:
                source = input_in_place(a, block, group)
            step = (a.s_n if a.copied else a.x_n) * a.size
            tiles = a.tiles + table_number(a, block) * a.table_length * ROW_TILE_BYTES
            place = block.n * a.y_n + group * a.filters * a.y_k + pixel_in_image(a, block, 0) * a.y_pixel
            begin, end = a.panels * part // a.parts, a.panels * (part + 1) // a.parts
            y, numbers = a.y + place * a.size, 0
            if a.scale:
                numbers = a.scale + block.n * a.scale_n * a.size
            scaled = a.scaled + task * a.scaled_bytes
            sum_panels(a, begin, end, group, block.images, tiles, source, step, y, numbers, scaled, block.p)

    return sum_blocked


@jit.helper
def sum_panels(
    a: Any, begin: int, end: int, group: int, images: int, tiles: int, source: int, step: int, y: int,
    numbers: int, scaled: int, row: int,
) -> None:  # fmt: skip
    """Some panels of the filters of a group, for the tiles of images whose inputs are `step` bytes apart.

    y: address of the first output, in a row of the map, for the first vector of filters. Where `numbers` is
    not zero, it is the address of numbers that scale the channels of the first image; filters times these are
    in `scaled`, which stays in the first cache, for a pass.
    """
    for panel in range(begin, end):
        first = a.vectors * panel // a.panels
        count = a.vectors * (panel + 1) // a.panels - first
        vector = a.lanes * a.size
        w = a.w + (group * a.vectors + first) * a.entries * a.inner * vector
        bias = a.bias + group * a.filters * a.size + first * vector
        kernels = a.kernels + (0 if count * a.panels >= a.vectors else a.narrow) * 8
        if panel == a.panels - 1:
            kernels = a.last_kernels
        entry = 0
        while entry < a.entries:
            entries = min(a.chunk, a.entries - entry)
            if a.tap_entries:
                entries = min(entries, a.tap_entries - entry % a.tap_entries)
            weights = w + entry * count * a.inner * vector
            for i in range(images):
                used = weights
                if numbers:
                    rows = min(entries * a.inner, a.channels - entry * a.inner)
                    at = numbers + (i * a.scale_n + entry * a.inner) * a.size
                    call(a.scale_rows, (weights, scaled, rows, count, at))
                    used = scaled
                sum_row_tiles(
                    a, kernels, tiles, source + i * step, entry, entries, used, weights, count,
                    y + (i * a.y_n + first * a.y_block) * a.size, bias, row,
                )  # fmt: skip
            entry += entries


@jit.helper
def sum_row_tiles(
    a: Any, kernels: int, tiles: int, x: int, entry: int, entries: int, w: int, packed: int, count: int,
    y: int, bias: int, row: int,
) -> None:  # fmt: skip
    """A pass of entries from one on over a panel of `count` vectors of filters, for the outputs of an image.

    packed: where the filters of this pass lie before those of the next, which are asked for.
    row: of the map, in which the outputs begin.
    """
    kernel, tile = carray(pointer(kernels), 1, np.int64), carray(pointer(tiles), 1, ROW_TILE)
    part = entries * a.inner * a.lanes * a.size
    ahead = packed + count * part  # the next pass or panel, fetched a part with each tile
    now = TilePass(True, entry == 0, entry + entries == a.entries)
    i = 0
    while tile[i].kernel >= 0:
        if a.tap_entries:
            now = pass_of_tile(a, row, tile[i].y, entry, entries)
        if now.reads:
            to = y + tile[i].y * a.size
            begin, limits = 1 + a.adds if now.begins else 0, a.unlimited
            if now.ends:
                limits = a.unlimited + 2 * a.size if a.relu else a.limits
            call(
                kernel[tile[i].kernel],
                (
                    x + tile[i].x * a.size, a.run, a.offsets + entry * 8, entries, a.inner,
                    max(0, a.whole - entry), a.rest, w, ahead, begin, to, a.y_block, bias, to + a.residual,
                    limits,
                ),
            )  # fmt: skip
            if now.ends and a.finish:
                for j in range(count):
                    run = to + j * a.y_block * a.size
                    call(a.finish, (run, 0, run, tile[i].outputs * a.lanes, a.finish_numbers))
        i += 1
        if i < count:
            ahead += part


class BlockedPlan(RegisterFinish):
    takes_views = any_order = True
    strided_batch = True

    def __init__(self, problem: ConvProblem, algorithm: Algorithm, cut: BlockedCut):
        p, tasks = cut.problem, plan_threads()
        values = {
            "parts": cut.parts, "vectors": cut.vectors_of, "panels": cut.panels, "tasks": tasks,
            "entries": cut.entries, "chunk": cut.chunk, "inner": cut.inner, "whole": cut.whole,
            "rest": p.w_shape[1] % cut.inner, **self.limit_fields(p),
            "scale": 0, "scale_n": 0, "scaled": 0, "scaled_bytes": 0, "scale_rows": 0,
        } | _of_maps(cut)  # fmt: skip
        steps = [(sum_blocked(), tasks)]
        super().__init__(problem, algorithm, BLOCKED_ARGUMENTS, values, steps, tasks * cut.scratch_bytes)
        self._cut = cut

    def on_maps(self, problem: ConvProblem) -> Self | None:
        """This plan for other sizes of the maps; None where these have the filter laid otherwise."""
        if problem.is_plain_product:  # the cut is asked for what all sizes have alone, from here on
            return self.resized(problem, _of_pixels(problem.N, math.prod(problem.spatial), self._cut), 0)
        cut = cut_like(problem, self._cut)
        if cut.by_tap != self._cut.by_tap:
            return None
        plan = self.resized(problem, _of_maps(cut, known=True), plan_threads() * cut.scratch_bytes)
        plan._cut = cut
        return plan

    def on_sizes(self, x_shape: Shape, y_shape: Shape) -> Self | None:
        images, pixels = x_shape[0], math.prod(x_shape[2:])
        if not self._cut.problem.is_plain_product or images * pixels <= MOST_ROWS:
            return None
        return self._of_sizes(x_shape, y_shape, _of_pixels(images, pixels, self._cut))

    def filter_form(self) -> FilterForm:
        return FilterForm.of(self.problem, "blocked", self._cut.panels, self._cut.unit, self._cut.by_tap)

    def pack_filter(self, w: np.ndarray) -> np.ndarray:
        """`packed_panels`; taps are entries times their inner taps, with zeros beyond C."""
        cut, p = self._cut, self._cut.problem
        w = w.reshape(p.groups, p.gemm_n, p.w_shape[1], *p.kernel)  # (g, K/g, C/g, T, R, S)
        if cut.unit > 1:
            if spare := -p.w_shape[1] % cut.unit:
                w = np.pad(w, ((0, 0), (0, 0), (0, spare), *((0, 0) for _ in p.kernel)))
            w = w.reshape(*w.shape[:2], -1, cut.unit, *p.kernel)  # (g, K/g, C/g/u, u, T, R, S)
            first, to = range(4, w.ndim), 2 if cut.by_tap else 3
            w = np.moveaxis(w, tuple(first), tuple(range(to, to + len(first))))
        return panel_packing.packed_panels(w, cut.panels)


def _of_maps(cut: BlockedCut, known: bool = False) -> dict[str, int | np.ndarray]:
    """The fields that depend on the sizes of the maps.

    Args:
        known: whether the others that the cut tells are known.
    """
    size, lanes = cut.problem.itemsize, simd.lanes(cut.problem.itemsize)
    tiles, kinds = cut.tile_table()
    kernels, last = tile_kernels(cut.problem.gemm_n, cut.panels, size, [(*kind, cut.step) for kind in kinds])
    of_cut = cut.changed_fields() if known else cut.fields()
    return {name: value for name, value in of_cut.items() if name in SHARED} | cut.reached_fields() | {
        "offsets": cut.entry_offsets(), "tiles": tiles, "table_length": tiles.shape[1],
        "kernels": kernels, "last_kernels": last, "narrow": len(kinds), "run": cut.steps[1] * cut.strides[3],
        "scratch_stride": cut.scratch_bytes, "y_block": lanes * of_cut["y_k"],
    }  # fmt: skip


@lru_cache(256)
def _entries(count: int) -> np.ndarray:
    """(count + 1,) their numbers, and 0 for one more, which is only asked for."""
    found = np.arange(count + 1)
    found[count] = 0
    return found


def _of_pixels(images: int, pixels: int, known: BlockedCut) -> dict[str, int | np.ndarray]:
    """Those of `_of_maps` that depend on the number of pixels, of a 1x1 layer, in the cut of another number.

    The pixels of an image are one row, read in place, in blocks of channels as those of y are.
    """
    layer, unit = known.problem, known.unit
    threads = plan_threads() if known.parts == 1 else 1
    together = images_of_block(images, pixels, known.most_outputs, threads)
    columns = pixels
    if not together:
        shares = shares_of_image(images * layer.groups, threads)
        columns = columns_of_block(pixels, known.rows, known.most_outputs, shares)
    row, of_block, short = (1, 1, pixels), (1, 1, columns), together > 0 and images % together > 0
    tiles, kinds = tile_table(of_block, row, known.rows, (0, 0, unit), (0, 0, unit), short)
    lengths = tuple([(1, kind.length, unit) for kind in kinds])
    kernels, last = tile_kernels(layer.gemm_n, known.panels, layer.itemsize, lengths)
    block = unit * pixels
    offsets = _entries(known.entries) * block
    of_x, of_y = (-(-channels // unit) * block for channels in (layer.C, layer.K))
    return {
        "n": images, "images": together or 1, "block_q": columns, "blocks_q": -(-pixels // columns),
        "q": pixels, "width": pixels, "end_w": pixels, "x_n": of_x, "x_c": pixels, "x_d": block, "x_h": block,
        "s_n": of_x, "s_c": pixels, "s_d": block, "s_h": block, "run": block, "y_n": of_y, "y_k": pixels,
        "y_block": block, "offsets": offsets, "tiles": tiles, "table_length": tiles.shape[1],
        "kernels": kernels, "last_kernels": last, "narrow": len(kinds),
    }  # fmt: skip
