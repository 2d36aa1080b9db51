"""Borders of maps in tiles: tables of the rows and columns of which padding is a copy."""

from __future__ import annotations

from typing import Any

import numpy as np

from convalgos.core.boundaries import COPIES, OUTSIDE, ZERO, source_indices
from convalgos.core.problem import ConvProblem
from convalgos.cpu.tiled.geometry import TiledAxis

TYPES = ("float32", "float64")  # of maps whose borders are read so


class ReadsBorders:
    """Mixed into algorithms on boxes of tiles: whether these read what lies beyond the edges."""

    def knows_border(self, problem: ConvProblem) -> bool:
        """Slices of zeros beyond the map are left out of the sums. A fill value fills all borders."""
        p = problem.as_3d
        if p.dtype not in TYPES:
            return problem.is_zero_padded
        padded = {name for name, pads in zip(p.boundary, p.padding, strict=True) if pads != (0, 0)}
        return padded <= {ZERO, *COPIES} or padded == {"constant"}


def border_values(problem: ConvProblem, rows: TiledAxis, columns: TiledAxis) -> dict[str, Any]:
    """The fields of a record that tell of borders; tables are empty where there is nothing to copy."""
    p = problem.as_3d
    values: dict[str, Any] = {"fill": 0, "refills": int(p.fill_value != 0)}
    if p.fill_value:
        values["fills_depth"] = int(p.padding[0] != (0, 0))
        values["fill"] = int(np.full(8 // p.itemsize, p.fill_value, np.dtype(p.dtype)).view(np.int64)[0])
    depth, pads = p.boundary[0], p.padding[0]
    values["depth_sources"] = 0
    if depth in COPIES:
        values["depth_sources"] = source_indices(depth, p.spatial[0], *pads).astype(np.int64)
    for name, axis, dimension in (("row", rows, 1), ("column", columns, 2)):
        size, pads, boundary = p.spatial[dimension], p.padding[dimension], p.boundary[dimension]
        values |= {f"{name}_sources": 0, f"{name}_places": 0}
        if boundary in COPIES:
            of_border = source_indices(boundary, size, *pads)
            beyond = np.full(axis.span(axis.tiles), OUTSIDE)  # the last tiles reach further than padding
            table = np.concatenate([of_border, beyond])[: max(len(beyond), len(of_border))]
            values |= {f"{name}_sources": table.astype(np.int64), f"{name}_places": len(table)}
    return values
