"""The plan of a 1x1 layer of channels_first maps whose pixels are packed: a matrix product of our own.

Every output is summed over the channels in their order, whatever the cut: the same to the bit as where the
pixels are read as they lie.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from convalgos.core.algorithm import Algorithm
from convalgos.core.prepared_filter import FilterForm
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm import dealt_panels, packed_tiles, panel_packing, panels
from convalgos.cpu.gemm.packed_blocking import PackedCut
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.finish import finish_panel
from convalgos.cpu.runtime.plan import KernelPlan, arguments
from convalgos.cpu.runtime.threads import plan_threads
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.simd import call, carray, pointer

PACKED_ARGUMENTS = arguments(
    "size images x_n y_n groups taps filters image blocks block parts vectors panels widest lanes chunk "
    "tasks pitch packed_bytes scratch_stride stream pack_pixel_tiles sum_panel sum_narrow store_run"
)


@jit.specialise
def sum_packed_blocks() -> Callable[..., None]:
    """Parts of the filters x images x groups x blocks, in this order, dealt to the tasks in equal runs.

    Threads of different parts store no neighbouring pixels. For each:

    1. pack the pixels of the block;
    2. sum a panel of filters over all channels, for all pixels of the block;
    3. store the sums in y with bias and activation.
    """

    def sum_packed_blocks(args: int, task: int) -> None:
        a = carray(pointer(args), 1, PACKED_ARGUMENTS)[0]
        tiles = a.scratch + task * a.scratch_stride
        sums = tiles + a.packed_bytes
        maps = a.images * a.groups  # of the channels of one group
        total = a.parts * maps * a.blocks
        for item in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            part, unit = item // (maps * a.blocks), item // a.blocks % maps
            group = unit % a.groups
            first = item % a.blocks * a.block
            pixels = min(a.block, a.image - first)
            x = a.x + (unit // a.groups * a.x_n + group * a.taps * a.image + first) * a.size
            call(a.pack_pixel_tiles, (x, a.image, pixels, a.taps, a.pitch, tiles))
            for panel in range(a.panels * part // a.parts, a.panels * (part + 1) // a.parts):
                filters = dealt_panels.panel_extent(a, group, panel)
                call(filters.kernel, (tiles, a.pitch, pixels, a.taps, a.chunk, filters.w, sums))
                k = group * a.filters + filters.first
                y, bias = a.y + (unit // a.groups * a.y_n + k * a.image + first) * a.size, a.bias + k * a.size
                stream = 0 if a.finish else a.stream
                call(
                    a.store_run,
                    (sums, filters.width, pixels, filters.filters, bias, a.relu, stream, y, a.image, 1),
                )
                finish_panel(a, y, pixels, filters.filters, a.image, 1)

    return sum_packed_blocks


class PackedPlan(KernelPlan):
    takes_views = any_order = True
    finishes = strided_batch = True

    def __init__(self, problem: ConvProblem, algorithm: Algorithm, cut: PackedCut):
        p, tasks, image = cut.problem, plan_threads(), math.prod(cut.problem.spatial_out)
        size, lanes = p.itemsize, simd.lanes(p.itemsize)
        kernels = dealt_panels.panel_kernels(
            packed_tiles.sum_packed_tiles, size, cut.rows, cut.vectors_of, cut.panels
        )
        values: dict[str, int | np.ndarray] = {
            "size": size, "images": p.N, "x_n": p.C * image, "y_n": p.K * image, "groups": p.groups,
            "taps": p.gemm_k, "filters": p.gemm_n,
            "image": image, "blocks": cut.blocks, "block": cut.pixels, "parts": cut.parts,
            "chunk": cut.chunk, "tasks": tasks, "pitch": cut.pitch,
            "packed_bytes": cut.packed_bytes, "scratch_stride": cut.scratch_bytes,
            "stream": int(panels.streams_panels(p)),
            "pack_pixel_tiles": packed_tiles.pack_pixel_tiles(size, lanes, cut.rows),
            "store_run": panels.store_run(size, lanes),
            **kernels,
        }  # fmt: skip
        steps = [(sum_packed_blocks(), tasks)]
        super().__init__(problem, algorithm, PACKED_ARGUMENTS, values, steps, tasks * cut.scratch_bytes)
        self._cut = cut

    def filter_form(self) -> FilterForm:
        return FilterForm.of(self.problem, self._cut.panels)

    def pack_filter(self, w: np.ndarray) -> np.ndarray:
        """`packed_panels` over the channels."""
        p = self._cut.problem
        return panel_packing.packed_panels(w.reshape(p.groups, p.gemm_n, p.gemm_k), self._cut.panels)
