"""The fields of the record of `cpu.depthwise.channels` that depend on the sizes of the maps."""

from __future__ import annotations

import math

import numpy as np

from convalgos.core.layouts import channels_together
from convalgos.core.problem import ConvProblem
from convalgos.cpu.dwconv.block_activations import block_kernel
from convalgos.cpu.dwconv.channel_blocking import ChannelBlocking
from convalgos.cpu.dwconv.channel_kernels import filter_block
from convalgos.cpu.dwconv.channel_tables import band_tables, column_table, filler
from convalgos.cpu.dwconv.folded_maps import NO_FOLD, fold_map, fold_values
from convalgos.cpu.runtime.half import computed_bytes
from convalgos.cpu.vectors.activations import CLIP


def map_fields(
    c: ChannelBlocking, folded: ConvProblem | None = None
) -> tuple[dict[str, int | np.ndarray], list[np.ndarray]]:
    """The fields that depend on the sizes of the maps, and what their tables point to.

    Args:
        folded: the gradient of a map with a border, of which the problem computes that with its border.
    """
    p, size = c.problem, computed_bytes(c.problem)
    slices, slices_out = p.spatial[0], p.spatial_out[0]
    map_out = folded.spatial if folded else c.spread.spatial if c.spread else p.spatial_out
    x_pixels, y_pixels = math.prod(p.spatial), math.prod(map_out)
    # of vectors of channels, which are whole blocks; and of pixels
    x_c = 1 if p.layout == "channels_last" else x_pixels
    y_k = 1 if p.y_layout == "channels_last" else y_pixels
    x_pixel, y_pixel = channels_together(p.layout, p.C), channels_together(p.y_layout, p.K)
    # what the kernels read and write, `from` and `to`: x and y themselves, or scratch
    (from_pixel, from_slice, from_vector), (to_pixel, to_slice, to_vector) = c.source, c.target
    from_row, to_row = p.spatial[2] * from_pixel, c.target_row
    w_row = p.kernel[2] * c.lanes
    w_slice, w_channel = p.kernel[1] * w_row, p.kernel[0] * p.kernel[1] * w_row
    w_vector = p.w_shape[1] * w_channel
    bands, runs, lines = band_tables(c, (from_slice, from_row), (to_slice, to_row), (w_slice, w_row))
    columns, of_columns = column_table(c, from_pixel, to_pixel)
    x_shape, _, y_shape = p.array_shapes
    values: dict[str, int | np.ndarray] = {
        "images": p.N, "band_count": c.bands, "bands": bands, "runs": runs,
        "x_n": math.prod(x_shape[1:]), "x_c": x_c, "x_vector": c.groups * p.w_shape[1] * x_c,
        "x_slice": x_pixels // slices * x_pixel,
        "y_n": p.K * y_pixels if folded or c.spread else math.prod(y_shape[1:]), "y_k": y_k,
        "y_vector": c.groups * p.gemm_n * y_k,
        "y_slice": y_pixels // slices_out * y_pixel, "slices": slices, "slices_out": slices_out,
        "from_vector": from_vector, "from_slice": from_slice,
        "to_vector": to_vector, "to_slice": to_slice,
        "from_next": p.stride[1] * from_row, "to_next": to_row,
        "slice_step": p.dilation[0] * from_slice, "row_step": p.dilation[1] * from_row,
        "w_block": c.vectors * w_vector, "w_vector": w_vector, "w_channel": w_channel, "w_slice": w_slice,
        "w_row": w_row,
        "scratch_bytes": c.scratch_bytes, "sums": 0 if c.x_near else c.vectors * slices * from_slice,
        "columns": columns, "column_count": len(columns), "fetch": int(c.fetch),
        "fetch_rows": c.fetch_rows,
        "band_ahead": int(c.band_ahead), "filler": filler(c),
        "filter_block": filter_block(*block_kernel(c), CLIP),
        "fold": fold_map(size, c.lanes) if folded else 0,
        **(fold_values(folded, to_slice // to_pixel) if folded else NO_FOLD),
    }  # fmt: skip
    return values, [*lines, *of_columns]
