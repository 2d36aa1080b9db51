"""The plan of a 1x1 layer by Strassen's products: sums of pixels packed, products in tiles, outputs stored.

Source: sums of operands and outputs are fused with the products as in Huang et al., "Strassen's algorithm
reloaded", SC 2016; here those of the filters are made once, and those of pixels once for all filters.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from convalgos.core.algorithm import Algorithm
from convalgos.core.allocator import aligned_empty, aligned_zeros
from convalgos.core.prepared_filter import FilterForm
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm import panel_packing, panels, strassen_tiles, tile_sums
from convalgos.cpu.gemm.register_finish import RegisterFinish
from convalgos.cpu.gemm.strassen_cut import StrassenCut, strassen_cut_like
from convalgos.cpu.gemm.strassen_driver import STRASSEN_ARGUMENTS, sum_parts
from convalgos.cpu.gemm.strassen_scheme import steps_of_parts
from convalgos.cpu.layout.strides import map_strides
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import KernelPlan
from convalgos.cpu.runtime.threads import plan_threads


class StrassenPlan(RegisterFinish):
    takes_views = any_order = True
    strided_batch = True

    def __init__(self, problem: ConvProblem, algorithm: Algorithm, cut: StrassenCut):
        p, tasks = cut.problem, plan_threads()
        size, lanes, side = p.itemsize, cut.lanes, cut.side
        self._in_planes = p.y_layout == "channels_first"
        self.adds_first = not self._in_planes
        masked = p.C % lanes > 0 and not cut.turned_bytes  # what is turned has zeros already
        steps = steps_of_parts(side)
        values: dict[str, int | np.ndarray] = {
            "size": size, "lanes": lanes, "side": side, "channels": p.C, "filters": p.K,
            "strided": int(not p.is_plain_product), "panels": cut.panels,
            "vectors": cut.vectors, "passes": cut.passes, "depth": cut.depth, "section": cut.section,
            "pass_bytes": cut.pass_bytes, "held": int(cut.holds_sums),
            "tasks": tasks, "steps": steps, "step_count": len(steps), "zeros": aligned_zeros(lanes, p.dtype),
            "pack": strassen_tiles.pack_sums(size, lanes, side, int(masked)),
            "add": tile_sums.add_tile(size, lanes), "in_planes": int(self._in_planes),
            "store": (panels.store_run if self._in_planes else strassen_tiles.store_summed)(size, lanes),
            **_of_maps(cut), **self.limit_fields(p),
        }  # fmt: skip
        launches = [(sum_parts(size, lanes), tasks)]
        super().__init__(problem, algorithm, STRASSEN_ARGUMENTS, values, launches, tasks * cut.scratch_bytes)
        self._cut = cut

    def on_maps(self, problem: ConvProblem) -> Self | None:
        """This plan for other sizes of the maps; None where these are to be cut otherwise."""
        cut = strassen_cut_like(problem, self._cut)
        if cut is None:
            return None
        plan = self.resized(problem, _of_maps(cut), plan_threads() * cut.scratch_bytes)
        plan._cut = cut
        return plan

    def _set_finish(self, fields: Any, y: int, residual: Any, activation: Any) -> np.ndarray:
        """In planes, into which squares are turned, the rest is done behind the stores."""
        of = KernelPlan if self._in_planes else RegisterFinish
        return of._set_finish(self, fields, y, residual, activation)

    def filter_form(self) -> FilterForm:
        cut = self._cut
        return FilterForm.of(self.problem, cut.side, cut.vectors, cut.passes)

    def pack_filter(self, w: np.ndarray) -> np.ndarray:
        """[panel][pass][operand][channel][filter]: the sums of parts of the filters."""
        cut = self._cut
        p, side, lanes = cut.problem, cut.side, cut.lanes
        filters, channels = cut.panels * side * cut.vectors * lanes, side * cut.section * lanes
        w = w.reshape(p.K, p.C)
        if (filters, channels) != w.shape:
            w = np.pad(w, ((0, filters - p.K), (0, channels - p.C)))
        whole = panel_packing.packed_panels(w[None], cut.panels)  # [panel][channel][filter]
        summed = aligned_empty(cut.panels * cut.passes * cut.pass_bytes // w.itemsize, w.dtype)
        tasks, address = jit.thread_count(), jit.data_address()
        depth, section = cut.depth * lanes, cut.section * lanes
        row = address(whole), address(summed), cut.panels, cut.passes, section, depth, cut.products, tasks
        record = np.array([row], strassen_tiles.SUM_FILTERS)
        jit.launch(
            strassen_tiles.sum_filter_panels(p.itemsize, lanes, side, cut.vectors), address(record), tasks
        )
        return summed


def _of_maps(cut: StrassenCut) -> dict[str, int | np.ndarray]:
    """The fields that depend on the sizes of the maps."""
    p, size, lanes = cut.problem, cut.problem.itemsize, cut.lanes
    x_n, x_c, _, x_row, x_pixel = map_strides(p.layout, p.C, p.spatial)
    y_n, y_k, *_, y_pixel = map_strides(p.y_layout, p.K, p.spatial_out)
    return {
        "images": p.N, "image": cut.image, "x_n": x_n, "x_block": lanes * x_c,
        "x_pixel": p.stride[2] * x_pixel, "x_row": p.stride[1] * x_row, "wide": p.spatial_out[2],
        "y_n": y_n, "y_k": y_k, "y_pixel": y_pixel, "blocks": cut.blocks, "parts": cut.parts,
        "pixels": cut.pixels, "tiles": cut.tiles, "rows": cut.rows, "whole_tiles": cut.whole_tiles,
        "operand_bytes": cut.operand_bytes, "tile_bytes": cut.tile_bytes, "sums_bytes": cut.sums_bytes,
        "turned_bytes": cut.turned_bytes,
        "sum_whole": strassen_tiles.sum_step(size, lanes, cut.rows, cut.vectors),
        "sum_less": strassen_tiles.sum_step(size, lanes, max(1, cut.rows - 1), cut.vectors),
        **cut.scratch_fields,
    }  # fmt: skip
