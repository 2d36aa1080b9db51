"""Plans of gradients of the input on boxes of tiles that overlap in dx."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from convalgos.core.algorithm import Algorithm
from convalgos.core.epilogue import finish
from convalgos.core.layouts import channels_together
from convalgos.core.prepared_filter import FilterForm
from convalgos.core.problem import ConvProblem
from convalgos.cpu.layout import channel_vectors
from convalgos.cpu.layout.strides import map_strides
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import KernelPlan, Workspace
from convalgos.cpu.runtime.records import copy_of_record
from convalgos.cpu.tiled import filters
from convalgos.cpu.tiled.blocking import ONE_BOX
from convalgos.cpu.tiled.box_plan import box_passes, box_values, tap_offsets
from convalgos.cpu.tiled.driver import AXIS_FIELDS, multiply_box, run_each_box, share_box
from convalgos.cpu.tiled.geometry import TiledAxis
from convalgos.cpu.tiled.overlap_borders import OverlapTables, apart_bytes, overlap_tables
from convalgos.cpu.tiled.overlap_driver import OVERLAP_ARGUMENTS, add_apart, write_overlapping
from convalgos.cpu.tiled.overlap_schedule import OverlapSchedule


class OverlapPlan(KernelPlan):
    """A plan on boxes of dy. Subclasses implement `pack_filter` by `transformed`.

    Args:
        input_tiles: as of `BoxPlan`, for tiles of dy.
        added_tiles: the address of a kernel (source, source_step, point_step, count, target, row_step,
            column_step, tile_step), the way back to tiles of dx, which are added to those before them.
        filter_tiles: as of `filters.transform_filter`.
    """

    def __init__(
        self,
        problem: ConvProblem,
        algorithm: Algorithm,
        cut: OverlapSchedule,
        input_tiles: int,
        added_tiles: int,
        sum_panel: int,
        filter_tiles: int,
    ):
        size, lanes = problem.itemsize, cut.lanes
        tables = overlap_tables(problem, cut)
        values = box_values(cut) | {
            "input_tiles": input_tiles, "output_tiles": added_tiles, "sum_panel": sum_panel,
            "multiply_box": multiply_box(), "write_box": write_overlapping(size, lanes),
            "offsets": tap_offsets(cut), "finish_tiles": 0, "scatter": 0, "y_in_place": 0,
            "place": channel_vectors.place(size, lanes),
        } | _of_dx(problem, cut) | _of_rows_apart(problem, cut, tables)  # fmt: skip
        steps = [(share_box() if cut.team else run_each_box(), cut.threads)]
        super().__init__(
            problem, algorithm, OVERLAP_ARGUMENTS, values, steps,
            cut.scratch_bytes + apart_bytes(problem, cut), box_passes(cut),
        )  # fmt: skip
        self.cut, self._filter_tiles = cut, filter_tiles
        self._behind = add_apart(size, lanes) if len(tables.targets) else 0

    def filter_form(self) -> FilterForm:
        c = self.cut
        taps = tuple((a.taps, a.outputs) for a in c.inputs)
        return FilterForm.of(self.problem, "overlap", taps, c.points, c.taps, c.vectors, c.panels, c.lanes)

    def transformed(self, w: np.ndarray) -> np.ndarray:
        """U of w (C, K/groups, *kernel)."""
        cut = self.cut
        axes = [a._replace(taps=i.taps) for a, i in zip((cut.rows, cut.columns), cut.inputs, strict=True)]
        of_filter = OverlapSchedule(
            cut.problem, axes[0], axes[1], ONE_BOX, True, cut.threads, {"vectors": cut.vectors}
        )
        of_filter.inputs = cut.inputs
        record = copy_of_record(self.record)
        for name, axis in zip(("rows", "columns"), axes, strict=True):
            record[name]["taps"] = axis.taps
        return filters.transform_filter(w, of_filter, record, self._filter_tiles)

    def run(
        self, x: np.ndarray, w: Any, bias: np.ndarray | None, activation: str | None, y: np.ndarray,
        workspace: Any,
    ) -> None:  # fmt: skip
        self._set_run(x, w, None, False, y, workspace)
        self.launch_steps(workspace)
        finish(y, bias, activation, self.problem)

    def launch_steps(self, workspace: Workspace) -> None:
        super().launch_steps(workspace)
        if self._behind:
            jit.launch(self._behind, workspace.address, self.cut.threads, self._parallel)


def _of_dx(problem: ConvProblem, cut: OverlapSchedule) -> dict[str, Any]:
    """The fields of a record that tell how dx lies in memory, and under the tiles of a box."""
    p = problem.as_3d
    n, c, *steps = map_strides(p.layout, p.C, p.spatial)
    values: dict[str, Any] = {"y_n": n, "y_vector": cut.lanes * c, "y_k": c, "width": p.spatial[2]}
    x_steps = map_strides(p.layout, p.K, p.spatial_out)[2:]
    for i, name in enumerate(("depth", "rows", "columns")):
        axis: TiledAxis = getattr(cut, name)
        given = {"cuts": cut.cuts[1 + i], "x": x_steps[i], "y": steps[i]}
        given["written"] = axis.outputs * axis.lattices
        values[name] = tuple(given[f] if f in given else getattr(axis, f) for f in AXIS_FIELDS.names or ())
    rows, columns = cut.inputs
    values |= {f"held_{x}": (a.taps - 1) * a.lattices for x, a in (("h", rows), ("w", columns))}
    return values | {"reach_h": cut.reached[0], "reach_w": cut.reached[1], "pad_w": columns.pad}


def _of_rows_apart(problem: ConvProblem, cut: OverlapSchedule, tables: OverlapTables) -> dict[str, Any]:
    """Those of tables, and of rows that are added behind all boxes."""
    p = problem.as_3d
    inner = channels_together(p.layout, p.C)
    line, count = p.spatial[2] * inner, len(tables.targets)
    targets, first = np.unique(np.sort(tables.targets), return_index=True)
    channels = p.C // inner
    plane = count * line
    return {
        "places": tables.places, "folded_rows": tables.folded_rows, "row_folds": len(tables.folded_rows),
        "folded_columns": tables.folded_columns, "column_folds": len(tables.folded_columns),
        "apart": cut.scratch_bytes, "apart_n": channels * p.spatial[0] * plane,
        "apart_k": p.spatial[0] * plane if inner == 1 else 1, "apart_d": plane, "apart_row": line,
        "apart_plane": plane, "y_plane": math.prod(p.spatial[1:]) * inner,
        "planes": p.N * channels * p.spatial[0], "line": line, "targets": len(targets),
        "target_rows": targets.astype(np.int64), "first_apart": np.append(first, count).astype(np.int64),
        "rows_apart": np.argsort(tables.targets, kind="stable").astype(np.int64),
    }  # fmt: skip
