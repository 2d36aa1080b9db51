"""Plans on boxes of tiles: the arguments of the kernels of `tiled.driver`, and their launches."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any, Self

import numpy as np

from convalgos.core.algorithm import Algorithm
from convalgos.core.arguments import Shape
from convalgos.core.layouts import BLOCKS, array_shape
from convalgos.core.plan import QuickCall
from convalgos.core.pool_problem import PoolProblem
from convalgos.core.prepared_filter import FilterForm
from convalgos.core.problem import ConvProblem
from convalgos.cpu.layout import channel_vectors
from convalgos.cpu.layout.strides import map_strides
from convalgos.cpu.runtime.plan import KernelPlan
from convalgos.cpu.tiled.blocking import BoxSizes
from convalgos.cpu.tiled.borders import border_values
from convalgos.cpu.tiled.driver import (
    BOX_ARGUMENTS,
    SIZES,
    multiply_box,
    run_each_box,
    share_box,
)
from convalgos.cpu.tiled.geometry import TiledAxis
from convalgos.cpu.tiled.reading import read_box
from convalgos.cpu.tiled.writing import write_box


class BoxPlan(KernelPlan):
    """A plan on boxes. Subclasses implement `pack_filter`, which gives U.

    Args:
        input_tiles: the address of a kernel (source, row_step, column_step, tile_step, count, target,
            target_step, point_step) that transforms `count` tiles of pixels of `lanes` channels; a transform
            in one dimension steps by column_step.
        output_tiles: of a kernel (source, source_step, point_step, count, target, row_step, column_step,
            tile_step, rows, columns), the way back to tiles of `rows` by `columns` outputs; in one dimension
            only `columns` counts. All steps count elements.
        sum_panel: of a kernel with the arguments of `panels.sum_panel`, the product at a point.
        finish_tiles: of a kernel (source, source_step, point_step, count, bias, relu, target, row_step,
            column_step, tile_step) that also adds the bias and activates, in the place of `output_tiles`.
        gather, scatter, place: of kernels with the arguments of those in `channel_vectors`, which are taken
            where all is of one type. Behind `finish_tiles` outputs are placed, else scattered.
        others: fields of the record that are not those of maps and sums of one type.
    """

    finishes = takes_views = True
    strided_batch = True
    window = 1  # outputs along rows and columns of which y has the largest: y = activation(max(conv + bias))

    def __init__(
        self,
        problem: ConvProblem,
        algorithm: Algorithm,
        cut: BoxSizes,
        input_tiles: int,
        output_tiles: int,
        sum_panel: int,
        finish_tiles: int = 0,
        gather: int = 0,
        scatter: int = 0,
        place: int = 0,
        **others: int,
    ):
        values = box_values(cut, gather) | {
            "output_tiles": output_tiles, "sum_panel": sum_panel, "input_tiles": input_tiles,
            "write_box": write_box(), "offsets": tap_offsets(cut),
            "finish_tiles": finish_tiles, "place": place, "scatter": scatter,
        }  # fmt: skip
        self._finishes_tiles = bool(finish_tiles) and not place
        values["y_in_place"] = int(self._finishes_tiles and values["y_k"] == 1)
        if finish_tiles and not place:
            values["place"] = channel_vectors.place(cut.problem.itemsize, cut.lanes)
        elif not (finish_tiles or scatter):
            values["scatter"] = channel_vectors.scatter(cut.problem.itemsize, cut.lanes)
        if "multiply_box" not in others:
            values["multiply_box"] = multiply_box()
        values |= others
        scratch, passes = cut.scratch_bytes, box_passes(cut)
        super().__init__(problem, algorithm, BOX_ARGUMENTS, values, box_steps(cut), scratch, passes)
        self.cut = cut

    def in_boxes(self, problem: ConvProblem, cut: BoxSizes, gather: int = 0, **others: int) -> Self:
        """This plan for other sizes of the maps, in the same tiles and panels."""
        values = box_values(cut, gather, self.window) | others
        values["y_in_place"] = int(self._finishes_tiles and values["y_k"] == 1)
        if cut.depth.taps > 1:
            values["offsets"] = tap_offsets(cut)
        plan = self.resized(problem, values, cut.scratch_bytes, box_steps(cut))
        plan.cut, plan._passes = cut, box_passes(cut)
        return plan

    def pooled(self, pooling: PoolProblem) -> Self | None:
        """This plan with its outputs pooled as they are finished, for the same prepared filters.

        y is that of the pooling, whose activation comes behind it. None where the kernels cannot do this.
        """
        return None

    def _array_shapes(self, problem: ConvProblem) -> tuple[Shape, Shape, Shape]:
        x, w, y = problem.array_shapes
        if self.window > 1:
            pixels = (n // self.window for n in problem.spatial_out)
            y = array_shape(problem.y_layout, (problem.N, problem.K, *pixels))
        return x, w, y

    def quick_call(self, problem: ConvProblem) -> QuickCall | None:
        return super().quick_call(problem) if self.window == 1 else None  # it goes by the problem's y

    def filter_form(self) -> FilterForm | ConvProblem:
        """Tiles, phases and panels, but not boxes."""
        c = self.cut
        axes = [(a.stride, a.dilation, a.phases, a.taps, a.outputs) for a in (c.rows, c.columns)]
        panels = c.points, c.taps, c.vectors, c.panels, c.parts, c.lanes
        return FilterForm.of(self.problem, *axes, *panels, *c.laid)


def box_steps(cut: BoxSizes) -> list[tuple[int, int]]:
    """The kernel that computes boxes, by how many tasks."""
    return [(share_box() if cut.team else run_each_box(), cut.threads)]


def box_passes(cut: BoxSizes) -> tuple[dict[str, int], ...]:
    """Of all steps: a team takes box after box, each in three phases."""
    if not cut.team:
        return ({},)
    return tuple({"box": box, "phase": phase} for box in range(cut.boxes) for phase in range(3))


@cache
def _sizes_of(kind: type[BoxSizes]) -> tuple[tuple[str, ...], Callable[[BoxSizes], tuple[Any, ...]]]:
    """The fields of a record that sizes of a kind have under the same names, and what tells them."""
    names = tuple(name for name in SIZES.names or () if hasattr(kind, name))
    return names, attrgetter(*names)


def box_values(cut: BoxSizes, gather: int = 0, window: int = 1) -> dict[str, Any]:
    """The fields of a record that follow from the sizes; `read_box` also asks for `input_tiles`.

    gather, window: as of `BoxPlan`.
    """
    p, windows = cut.problem, (1, window, window)
    y_spatial = tuple(n // side for n, side in zip(p.spatial_out, windows, strict=True))
    x_steps = map_strides(p.layout, p.C, p.spatial)
    y_steps = map_strides(p.y_layout, p.K, y_spatial)
    x_blocks, y_blocks = (layout in BLOCKS for layout in (p.layout, p.y_layout))
    x_c, y_k = 1 if x_blocks else x_steps[1], 1 if y_blocks else y_steps[1]
    amid = x_blocks and p.groups > 1 and p.w_shape[1] % cut.lanes  # groups begin amid a block
    values: dict[str, Any] = {
        "box": 0, "phase": 0, "x_size": p.itemsize, "y_size": p.itemsize, "fills_depth": 0,
        "tasks": cut.threads, "groups": p.groups,
        "channels": p.w_shape[1], "filters": p.gemm_n, "images": p.N, "cuts_n": cut.cuts[0],
        "x_n": x_steps[0], "x_vector": cut.lanes * x_steps[1], "x_c": x_c, "x_blocks": int(x_blocks),
        "y_n": y_steps[0], "y_vector": cut.sum_lanes * y_steps[1], "y_k": y_k, "y_blocks": int(y_blocks),
        "gather": gather or channel_vectors.gather(p.itemsize, cut.lanes), "read_box": read_box(),
        "x_in_place": int(not gather and x_c == 1),
        "join": channel_vectors.place(p.itemsize, cut.lanes) if amid else 0,
    } | border_values(p, cut.rows, cut.columns)  # fmt: skip
    for i, name in enumerate(("depth", "rows", "columns")):
        axis: TiledAxis = getattr(cut, name)
        written = axis.outputs * axis.lattices // windows[i]
        values[name] = (  # of AXIS_FIELDS, which begin as an axis does
            axis.size, y_spatial[i], *axis[2:], axis.step, axis.tiles, axis.tail,
            cut.cuts[1 + i], x_steps[2 + i], y_steps[2 + i], written,
        )  # fmt: skip
    kind: Any = type(cut)
    names, sizes_of = _sizes_of(kind)
    return dict(zip(names, sizes_of(cut), strict=True)) | values


def tap_offsets(cut: BoxSizes) -> np.ndarray:
    """(taps,) elements of V between a tap and the row that the table gives: depth, phase, channel."""
    slot = cut.depth.dilation // cut.slot_step * cut.slot_tiles * cut.v_row if cut.depth.taps > 1 else 0
    depth = np.arange(cut.depth.taps).reshape(-1, 1, 1) * slot
    phase = np.arange(cut.phases).reshape(-1, 1) * cut.channel_blocks * cut.parts * cut.lanes
    block, lane = np.divmod(np.arange(cut.problem.w_shape[1]), cut.lanes)
    offsets: np.ndarray = (depth + phase + block * cut.parts * cut.lanes + lane).ravel()
    return offsets.astype(np.int64)
