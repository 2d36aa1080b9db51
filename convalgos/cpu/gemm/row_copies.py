"""The input under a block of rows of pixels, copied with its border and taken apart by the stride."""

from __future__ import annotations

from typing import Any

from convalgos.cpu.gemm.blocking import BlockExtent, input_start
from convalgos.cpu.layout import strided_rows
from convalgos.cpu.layout.copied_borders import copy_bordered_plane, place_source
from convalgos.cpu.runtime import jit


@jit.helper
def read_rows(a: Any, block: BlockExtent, group: int, scratch: int) -> None:
    """The input of a block, with its border and split into the phases of the stride, to scratch."""
    d0, h0, w0 = input_start(a, block)
    before = max(0, -w0)
    inside = min(a.width, w0 + a.phase * a.stride_w) - max(0, w0)
    depths = block.slices if a.step_d > 1 else (block.slices - 1) * a.stride_d + a.span_d
    heights = block.rows if a.step_h > 1 else (block.rows - 1) * a.stride_h + a.span_h
    rows = strided_rows.rows_of(h0, a.step_h, heights, a.height)
    bordered = a.sources_h or a.sources_w
    for c in range(a.channels):
        to = scratch + c * a.s_c * a.size
        for i in range(block.images):
            for j in range(depths):
                d = place_source(a.sources_d, a.pad_d, a.depth, d0 + j * a.step_d)
                plane = (block.n + i) * a.x_n + (group * a.channels + c) * a.x_c + d * a.height * a.width
                there = inside if d >= 0 else 0
                if bordered and d >= 0:
                    from_, at = a.x + plane * a.size, to + (i * a.s_n + j * a.s_d) * a.size
                    copy_bordered_plane(
                        a, from_, a.width, rows, w0, a.phase * a.stride_w, before, inside, at, a.s_h, a.phase,
                        a.stride_w, a.kept,
                    )  # fmt: skip
                    continue
                from_, at = a.x + (plane + max(0, w0)) * a.map_size, to + (i * a.s_n + j * a.s_d) * a.size
                strided_rows.place_plane(
                    a.copy_rows, a.map_size, a.size, from_, a.width, rows, before, there, at, a.s_h, a.phase,
                    a.stride_w, a.kept,
                )  # fmt: skip
