"""The driver of products of filters by rows of pixels: blocks, tiles of filters, finished rows to y."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from convalgos.cpu.gemm.blocking import (
    BlockExtent,
    block_count,
    block_extent,
    image_pixels,
    pixel_in_image,
    run_pixels,
    table_number,
)
from convalgos.cpu.gemm.row_copies import read_rows
from convalgos.cpu.layout import streaming
from convalgos.cpu.layout.copied_borders import BORDER_FIELDS
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.finish import finish_panel
from convalgos.cpu.runtime.plan import arguments
from convalgos.cpu.vectors.simd import call, carray, pointer

PIXELS_ARGUMENTS = arguments(
    "size map_size images block_o block_p block_q blocks_o blocks_p blocks_q n o p q channels filters groups "
    "parts tiles taps tasks offsets vectors starts places counts table_length "
    "x_n x_c depth height width stride_d stride_h stride_w pad_d pad_h pad_w step_d step_h span_d span_h "
    "s_n s_c s_d s_h phase kept input_bytes scratch_stride staged stream y_n y_k copy_rows "
    "store_staged sum_pixels weight_step weights_at weight_tile turned turn_weights " + BORDER_FIELDS
)


@jit.specialise
def store_staged(SIZE: int, LANES: int) -> Callable[..., None]:
    """Finished rows to y: `rows` of them, each in `runs` pieces of `run` pixels, `y_run` apart in y."""

    def store_staged(
        source: int, stride: int, rows: int, runs: int, run: int, y: int, y_k: int, y_run: int, stream: int
    ) -> None:
        for i in range(rows):
            for j in range(runs):
                from_ = source + (i * stride + j * run) * SIZE
                streaming.copy_run(SIZE, LANES, from_, y + (i * y_k + j * y_run) * SIZE, run, stream)

    return store_staged


@jit.specialise
def sum_row_blocks() -> Callable[..., None]:
    """Groups x blocks x parts of the filters, in this order, dealt to the tasks in equal runs. For each:

    1. find the group, the block of pixels and the part of its filters;
    2. copy the input of the block, once for all parts;
    3. sum a tile of filters over all taps, for all vectors of pixels, into y or into staged rows;
    4. bring staged rows to y, around the caches where y is large.
    """

    def sum_row_blocks(args: int, task: int) -> None:
        a = carray(pointer(args), 1, PIXELS_ARGUMENTS)[0]
        scratch = a.scratch + task * a.scratch_stride
        blocks = block_count(a)
        total = a.groups * blocks * a.parts
        loaded = -1
        for item in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            group, part = item // (blocks * a.parts), item % a.parts
            block = block_extent(a, item // a.parts % blocks)
            if item // a.parts != loaded:
                loaded = item // a.parts
                read_rows(a, block, group, scratch)
            begin, end = a.tiles * part // a.parts, a.tiles * (part + 1) // a.parts
            for tile in range(begin, end):
                w = tile_weights(a, group, tile, begin, end, scratch)
                sum_tile(a, block, group, tile, w, scratch)

    return sum_row_blocks


@jit.helper
def tile_weights(a: Any, group: int, tile: int, begin: int, end: int, scratch: int) -> Any:
    """The address of the weights (taps, filters of the tile), which are packed already, or some tiles here,
    of those from `begin` to `end`."""
    if not a.turn_weights:
        return a.w + (group * a.filters + a.filters * tile // a.tiles) * a.taps * a.size
    packed, index = scratch + a.weights_at, (tile - begin) % a.turned
    if index == 0:
        last = min(tile + a.turned, end)
        call(
            a.turn_weights,
            (a.w, a.weight_step, a.taps, a.filters, a.tiles, tile, last, packed, a.weight_tile),
        )
    return packed + index * a.weight_tile * a.size


@jit.helper
def sum_tile(a: Any, block: BlockExtent, group: int, tile: int, w: int, scratch: int) -> None:
    """y of a block for one tile of the filters of a group."""
    k = a.filters * tile // a.tiles
    count = a.filters * (tile + 1) // a.tiles - k
    k += group * a.filters
    bias = a.bias + k * a.size
    y = a.y + (block.n * a.y_n + pixel_in_image(a, block, 0) + k * a.y_k) * a.map_size
    staged = scratch + a.input_bytes
    target, stride = (staged, a.staged) if a.staged else (y, a.y_k)
    index = table_number(a, block)
    table, vectors = index * a.table_length * 8, carray(pointer(a.vectors), 16, np.int64)[index]
    call(
        a.sum_pixels,
        (
            scratch, vectors, a.starts + table, a.offsets, a.taps, w, count, bias, a.relu, target, stride,
            a.places + table, a.counts + table,
        ),
    )  # fmt: skip
    if a.staged or a.finish:
        run = run_pixels(a, block)
        runs = block.images * image_pixels(block) // run
        y_run = a.y_n if a.images > 1 else (a.q if block.rows > 1 and run == block.columns else a.p * a.q)
        if a.staged:
            stream = 0 if a.finish else a.stream
            call(a.store_staged, (staged, a.staged, count, runs, run, y, a.y_k, y_run, stream))
        for j in range(runs):
            finish_panel(a, y + j * y_run * a.size, run, count, a.y_k, 1)
