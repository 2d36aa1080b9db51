"""The plan of direct convolution to blocks of channels, from blocks of channels or maps that lie apart.

A tile of outputs is read, summed and stored where it lies, with bias and activation, and nothing is packed or
transposed but the filters.

Source: the blocked layouts of oneDNN (Georganas et al. 2018, arXiv:1808.05567).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from convalgos.core.algorithm import Algorithm
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm import panels
from convalgos.cpu.gemm.blocked_cut import BlockedCut, RowTile
from convalgos.cpu.gemm.blocked_tiles import sum_block_tile
from convalgos.cpu.gemm.blocking import (
    block_count,
    block_extent,
    copy_block_images,
    input_in_place,
    pixel_in_image,
    table_number,
)
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import KernelPlan, arguments, fields
from convalgos.cpu.runtime.threads import plan_threads
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.simd import call, carray, pointer

BLOCKED_ARGUMENTS = arguments(
    "size images block_o block_p block_q blocks_o blocks_p blocks_q n o p q channels filters groups "
    "parts vectors panels lanes tasks offsets entries inner whole rest chunk tiles table_length kernels "
    "narrow copied x_n x_c x_d x_h x_w depth height width stride_d stride_h stride_w pad_d pad_h pad_w "
    "step_d step_h span_d span_h span_w s_n s_c s_d s_h s_w run unit input_bytes scratch_stride "
    "y_n y_k y_pixel y_block copy_rows"
)
ROW_TILE = fields("x y kernel")  # a kernel that is none ends a row of the table
NONE = -1


@jit.specialise
def sum_blocked() -> Callable[..., None]:
    """Parts of the filters x groups x blocks, in this order, dealt to the tasks in equal runs. For each:

    1. read the input of the block in place, or copy it with its zero border;
    2. sum a panel of filters, in passes of `chunk` entries, tile by tile, to where the outputs lie.
    """

    def sum_blocked(args: int, task: int) -> None:
        a = carray(pointer(args), 1, BLOCKED_ARGUMENTS)[0]
        scratch = a.scratch + task * a.scratch_stride
        kernels = carray(pointer(a.kernels), 1, np.int64)
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
            tiles = carray(pointer(a.tiles), 1, ROW_TILE)
            tile_0 = table_number(a, block) * a.table_length
            place = block.n * a.y_n + group * a.filters * a.y_k + pixel_in_image(a, block, 0) * a.y_pixel
            for panel in range(a.panels * part // a.parts, a.panels * (part + 1) // a.parts):
                first = a.vectors * panel // a.panels
                count = a.vectors * (panel + 1) // a.panels - first
                kind = 0 if count * a.panels >= a.vectors else a.narrow
                vector = a.lanes * a.size
                w = a.w + (group * a.vectors + first) * a.entries * a.inner * vector
                y = a.y + (place + first * a.y_block) * a.size
                bias = a.bias + group * a.filters * a.size + first * vector
                entry = 0
                while entry < a.entries:
                    entries = min(a.chunk, a.entries - entry)
                    weights = w + entry * count * a.inner * vector
                    ahead = weights + entries * count * a.inner * vector  # fetched a part with each tile
                    last = entry + entries == a.entries
                    tile = tile_0
                    while tiles[tile].kernel >= 0:
                        t = tiles[tile]
                        call(
                            kernels[kind + t.kernel],
                            (
                                source + t.x * a.size, a.run, a.offsets + entry * 8, entries, a.inner,
                                max(0, a.whole - entry), a.rest, weights, ahead, entry == 0, y + t.y * a.size,
                                a.y_block, bias, a.relu if last else 0,
                            ),
                        )  # fmt: skip
                        tile += 1
                        if tile - tile_0 < count:
                            ahead += entries * a.inner * vector
                    entry += entries

    return sum_blocked


class BlockedPlan(KernelPlan):
    def __init__(self, problem: ConvProblem, algorithm: Algorithm, cut: BlockedCut):
        p, tasks = cut.problem, plan_threads()
        size, lanes = p.itemsize, simd.lanes(p.itemsize)
        widths = cut.vectors, cut.vectors_of // cut.panels
        tiles, kinds = self._tile_table(cut)
        kernels = [
            sum_block_tile(size, lanes, *kind, vectors, cut.step) for vectors in widths for kind in kinds
        ]
        shared = set(BLOCKED_ARGUMENTS.names or ())
        values = {name: value for name, value in cut.fields().items() if name in shared} | {
            "parts": cut.parts, "vectors": cut.vectors_of, "panels": cut.panels, "tasks": tasks,
            "offsets": cut.entry_offsets(), "entries": cut.entries, "chunk": cut.chunk,
            "inner": cut.inner, "whole": cut.whole, "rest": p.w_shape[1] % cut.inner,
            "tiles": tiles, "table_length": tiles.shape[1], "kernels": np.array(kernels, np.int64),
            "narrow": len(kinds), "run": cut.steps[1] * cut.strides[3], "scratch_stride": cut.scratch_bytes,
            "y_block": lanes * cut.fields()["y_k"],
        }  # fmt: skip
        steps = [(sum_blocked(), tasks)]
        super().__init__(problem, algorithm, BLOCKED_ARGUMENTS, values, steps, tasks * cut.scratch_bytes)
        self._cut = cut

    @staticmethod
    def _tile_table(cut: BlockedCut) -> tuple[np.ndarray, list[RowTile]]:
        """(16, most tiles and an end) of ROW_TILE, and the tiles that its kernels are for."""
        rows = cut.all_tiles()
        kinds = sorted({tile for row in rows for _, _, tile in row})
        table = np.full((16, max(map(len, rows)) + 1), NONE, np.int64).astype(ROW_TILE)
        for line, row in zip(table, rows, strict=True):
            line[: len(row)] = [(x, y, kinds.index(tile)) for x, y, tile in row]
        return table, kinds

    def pack_filter(self, w: np.ndarray) -> np.ndarray:
        """`panels.packed_panels`; taps are entries times their inner taps, with zeros beyond C."""
        cut, p = self._cut, self._cut.problem
        w = w.reshape(p.groups, p.gemm_n, p.w_shape[1], -1)  # (g, K/g, C/g, T*R*S)
        if cut.unit > 1:
            w = np.pad(w, ((0, 0), (0, 0), (0, -p.w_shape[1] % cut.unit), (0, 0)))
            w = w.reshape(p.groups, p.gemm_n, -1, cut.unit, w.shape[-1]).swapaxes(3, 4)
        return panels.packed_panels(w.reshape(p.groups, p.gemm_n, -1), cut.panels)
