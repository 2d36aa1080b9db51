"""The plan of products of filters by rows of pixels."""

from __future__ import annotations

import math

import numpy as np

from convalgos.core.algorithm import Algorithm
from convalgos.core.allocator import aligned_zeros, whole_lines
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm import row_panels
from convalgos.cpu.gemm.row_blocking import RowBlocking, row_blocking
from convalgos.cpu.gemm.row_driver import PIXELS_ARGUMENTS, store_staged, sum_row_blocks
from convalgos.cpu.gemm.row_tables import row_tables
from convalgos.cpu.layout import half_rows, strided_rows
from convalgos.cpu.layout.copied_borders import border_tables
from convalgos.cpu.runtime.half import in_float32
from convalgos.cpu.runtime.plan import KernelPlan
from convalgos.cpu.runtime.threads import plan_threads
from convalgos.cpu.vectors import halves, microkernel, simd


class PixelRowsPlan(KernelPlan):
    """Sums of tiles of filters along rows of pixels. Subclasses implement `pack_filter`."""

    def __init__(
        self, problem: ConvProblem, algorithm: Algorithm, forward: ConvProblem | None = None,
        weight_step: int = 0,
    ):  # fmt: skip
        """
        Args:
            forward: the convolution that is computed; by default the problem.
            weight_step: elements from the filters at one tap, side by side, to those at the next one, where
                they are not packed by `row_panels.pack_rows`.
        """
        cut = row_blocking(in_float32(forward or problem))
        p, form, of_map = cut.problem, halves.SAME, problem.itemsize
        size, lanes = p.itemsize, cut.lanes
        if of_map == 2:
            form = halves.HALF if problem.dtype == "float16" else halves.BRAIN
            copier = half_rows.copy_half_rows(form, lanes, p.stride[2], cut.kept)
        else:
            copier = strided_rows.row_copier(size, lanes, p.stride[2], cut.kept)
        tasks = plan_threads()
        pixels_out = math.prod(p.spatial_out)
        s_n, s_c, s_d, s_h = cut.strides
        of_task = row_scratch_bytes(cut, weight_step > 0)
        soon = microkernel.PREFETCH_TAPS if p.kernel[2] == 1 else 0
        values = {
            "size": size, "map_size": of_map, "n": p.N, "images": cut.images,
            "channels": p.w_shape[1], "filters": p.gemm_n, "groups": p.groups, "parts": cut.filter_parts,
            "tiles": cut.tiles, "taps": p.gemm_k, "tasks": tasks,
            **row_tables(cut),
            "x_n": p.C * math.prod(p.spatial), "x_c": math.prod(p.spatial),
            "step_d": cut.steps[0], "step_h": cut.steps[1], "s_n": s_n, "s_c": s_c, "s_d": s_d, "s_h": s_h,
            "phase": cut.phase, "kept": cut.kept, "input_bytes": cut.input_elements * size,
            "scratch_stride": of_task, "staged": cut.staged, "stream": int(cut.streams),
            "y_n": p.K * pixels_out, "y_k": pixels_out,
            "copy_rows": copier, "store_staged": store_staged(of_map, simd.lanes(of_map)),
            "weight_step": weight_step, "weights_at": cut.scratch_bytes, "weight_tile": _tile_elements(cut),
            "turned": row_panels.TURNED,
            "turn_weights": row_panels.turn_weights(size, lanes) if weight_step else 0,
            "sum_pixels": row_panels.sum_pixels(size, lanes, cut.rows, cut.vectors, soon, form),
        }  # fmt: skip
        for axis, block, blocks, out in zip("opq", cut.block, cut.blocks[1:], p.spatial_out, strict=True):
            values |= {f"block_{axis}": block, f"blocks_{axis}": blocks, axis: out}
        values |= dict(zip(("depth", "height", "width"), p.spatial, strict=True))
        values |= border_tables(p)
        for axis, stride, pad in zip("dhw", p.stride, p.padding, strict=True):
            values |= {f"stride_{axis}": stride, f"pad_{axis}": pad[0]}
        values |= {"span_d": p.kernel_extent[0], "span_h": p.kernel_extent[1]}
        super().__init__(
            problem,
            algorithm,
            PIXELS_ARGUMENTS,
            values,
            [(sum_row_blocks(), tasks)],
            tasks * of_task,
        )
        self._cut = cut
        self.strided_batch = cut.images == 1 or cut.staged > 0  # else a table knows where images of y lie

    def _new_scratch(self) -> np.ndarray:
        """Zeroed: vectors are summed beyond the ends of rows too, and would be slow on denormal numbers."""
        return aligned_zeros(self.scratch_bytes or 0, np.uint8)


def row_scratch_bytes(cut: RowBlocking, turns: bool) -> int:
    """Of a task; the weights of some tiles lie behind its input where it turns them."""
    weights = row_panels.TURNED * _tile_elements(cut) * cut.problem.itemsize if turns else 0
    return cut.scratch_bytes + whole_lines(weights)


def _tile_elements(cut: RowBlocking) -> int:
    """From the weights of a tile to those of the next one, where they are turned."""
    return cut.rows * cut.problem.gemm_k + row_panels.SPARE
