"""The plans of products of float32 that are split for matrix tiles."""

from __future__ import annotations

import math
from itertools import product
from typing import Self

import numpy as np

from convalgos.core.algorithm import Algorithm
from convalgos.core.machine import cache_sizes
from convalgos.core.prepared_filter import FilterForm
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm import digit_driver, digit_tiles, split_driver, split_tiles, streamed_digits
from convalgos.cpu.gemm.register_finish import RegisterFinish
from convalgos.cpu.gemm.split_blocks import SPLIT_ARGUMENTS
from convalgos.cpu.gemm.split_cut import ROOM, WIDTH, SplitCut
from convalgos.cpu.gemm.split_filter import packed_filter
from convalgos.cpu.gemm.split_forms import DIGITS, LANES
from convalgos.cpu.gemm.streamed_digits import FEW, ONE
from convalgos.cpu.layout.strides import map_strides
from convalgos.cpu.runtime.threads import plan_threads
from convalgos.cpu.vectors import matrix_tiles

FETCHED = 1 << 17  # bytes of a filter from which on it is fetched ahead


class SplitSumsPlan(RegisterFinish):
    takes_views = any_order = True
    strided_batch = True

    def __init__(self, problem: ConvProblem, algorithm: Algorithm, cut: SplitCut):
        p, tasks, digits = cut.problem, plan_threads(), cut.form is DIGITS
        tile_sums = digit_tiles.sum_digit_tiles if digits else split_tiles.sum_split_tiles
        kernels = [tile_sums(LANES, *tiles) for tiles in product((1, 2), (1, 2))]
        if digits:
            kernels += [streamed_digits.stream_digits(LANES, *tiles) for tiles in product((1, 2), (1, 2))]
        driver = digit_driver.sum_digits() if digits else split_driver.sum_split()
        values = {
            "size": p.itemsize, "parts": cut.parts, "tasks": tasks,
            "channels": p.C, "filters": p.K, "vectors": cut.vectors, "panels": cut.panels,
            "entries": cut.entries, "pad_h": p.padding[1][0], "pad_w": p.padding[2][0],
            "stride_h": p.stride[1], "stride_w": p.stride[2], "step_h": cut.steps[0], "step_w": cut.steps[1],
            "phases": cut.strides[0], "position_bytes": cut.strides[1] * WIDTH,
            "kernels": np.array(kernels, np.int64), "fetches": _fetches(cut),
            **_of_maps(cut), **self.limit_fields(p),
        }  # fmt: skip
        super().__init__(
            problem, algorithm, SPLIT_ARGUMENTS, values, [(driver, tasks)],
            tasks * cut.scratch_bytes,
        )  # fmt: skip
        self.cut = cut

    def in_cut(self, problem: ConvProblem, cut: SplitCut) -> Self:
        """This plan for other sizes of the maps, in a cut of as many parts of the filters."""
        plan = self.resized(problem, _of_maps(cut), plan_threads() * cut.scratch_bytes)
        plan.cut = cut
        return plan

    def filter_form(self) -> FilterForm:
        return FilterForm.of(self.problem, *self.cut.form.laid)

    def pack_filter(self, w: np.ndarray) -> np.ndarray:
        """(panels, entries, TERMS, vectors of a panel, 16 words, 16 filters), as bytes."""
        return packed_filter(w, self.cut)


def _fetches(cut: SplitCut) -> int:
    """Whether filters are fetched ahead: 1 for the first block, 2 for each, where they do not stay in L2."""
    nbytes = cut.form.filter_bytes(cut.problem)
    return int(nbytes > FETCHED) + int(nbytes > cut.parts * ROOM * cache_sizes()[1])


def _of_maps(cut: SplitCut) -> dict[str, int | np.ndarray]:
    """The fields that depend on the sizes of the maps."""
    p = cut.problem
    x_n, x_c, _, x_h, x_w = map_strides(p.layout, p.C, p.spatial)
    y_n, y_k, _, y_h, y_w = map_strides(p.y_layout, p.K, p.spatial_out)
    of_x = streamed_digits.OF_W if cut.streamed else 6  # matrix tiles in the shape of pixels, before filters
    return {
        "n": p.N, "p": p.spatial_out[1], "q": p.spatial_out[2], "height": p.spatial[1], "width": p.spatial[2],
        "images": cut.images, "rows": cut.rows, "columns": cut.columns,
        "blocks_p": cut.blocks[1], "blocks_q": cut.blocks[2],
        "phase_rows": cut.phase_rows, "pitch": cut.pitch, "positions": cut.positions, "tile": cut.tile,
        "x_n": x_n, "x_h": x_h, "x_w": x_w, "x_block": LANES * x_c,
        "y_n": y_n, "y_k": y_k, "y_h": y_h, "y_pixel": y_w, "y_block": LANES * y_k,
        "plane_bytes": cut.plane_bytes, "term_bytes": cut.term_bytes, "offsets": cut.entry_offsets(),
        "configuration": matrix_tiles.configuration([(cut.tile, 16)] * of_x + [(16, 16)] * (8 - of_x)),
        "passes": cut.passes, "streamed": cut.streamed and (ONE if cut.outputs == 1 else FEW),
        "run": 0 if cut.form is DIGITS else _lines_of_block(cut), **cut.scratch_fields(),
    }  # fmt: skip


def _lines_of_block(cut: SplitCut) -> int:
    """Neighbouring cache lines of a block of channels under a block of outputs; 0: more than pixels."""
    p = cut.problem
    if p.layout == "channels_last" or math.prod(cut.kernel) > 1:
        return 0
    return cut.columns * p.stride[2] if cut.rows == 1 else cut.rows * p.stride[1] * p.spatial[2]
