"""How the dimensions of a map are cut into tiles.

A `TiledAxis` says how one dimension of the map is cut into tiles that overlap by the kernel; stride and
dilation are only steps between the elements of a tile.
"""

from __future__ import annotations

from functools import lru_cache
from math import gcd
from typing import NamedTuple

from convalgos.core.problem import ConvProblem


class TiledAxis(NamedTuple):
    """One dimension of a map in tiles of `outputs` outputs, made from `outputs + taps - 1` inputs.

    A stride splits kernel and input into `phases`, each a convolution of stride 1 with `taps` taps, to be
    summed. A dilation splits the outputs into `lattices`, each with tiles of its own; where both share a
    divisor it cancels. Tile t of a lattice l holds outputs (t * outputs + i) * lattices + l, and needs in
    phase f the inputs (t * outputs + i) * step + l * stride + f * dilation - pad.
    """

    size: int  # inputs of the map
    size_out: int
    pad: int  # on the low side
    stride: int
    dilation: int
    phases: int
    lattices: int
    taps: int  # of a phase
    outputs: int  # of a tile

    @property
    def step(self) -> int:
        """Inputs between neighbours in a tile."""
        return self.stride * self.lattices

    @property
    def tiles(self) -> int:
        """Of one lattice."""
        return -(-self.size_out // (self.outputs * self.lattices))

    @property
    def tail(self) -> int:
        """Inputs from the first to one behind the last that lattices and phases add to a tile."""
        return (self.lattices - 1) * self.stride + (self.phases - 1) * self.dilation + 1

    def span(self, tiles: int) -> int:
        """Inputs from the first to one behind the last under some neighbouring tiles."""
        return (tiles * self.outputs + self.taps - 2) * self.step + self.tail


def tiled_axis(problem: ConvProblem, dimension: int, outputs: int) -> TiledAxis:
    """The cut of a spatial dimension of a problem into tiles of `outputs` outputs."""
    taps, stride, dilation = (v[dimension] for v in (problem.kernel, problem.stride, problem.dilation))
    if taps == 1:
        dilation = stride  # there is no second tap that it could move
    shared = gcd(stride, dilation)
    phases = stride // shared
    return TiledAxis(
        size=problem.spatial[dimension],
        size_out=problem.spatial_out[dimension],
        pad=problem.padding[dimension][0],
        stride=stride,
        dilation=dilation,
        phases=phases,
        lattices=dilation // shared,
        taps=-(-taps // phases),
        outputs=outputs,
    )


@lru_cache(512)
def plane(problem: ConvProblem) -> tuple[TiledAxis, TiledAxis]:
    """The rows and columns of the plane of a problem, in tiles of one output."""
    p = problem.as_3d
    return tiled_axis(p, 1, 1), tiled_axis(p, 2, 1)


def plane_taps(problem: ConvProblem) -> tuple[int, int]:
    """Taps of a phase along the rows and columns of the plane of a problem."""
    rows, columns = plane(problem)
    return rows.taps, columns.taps


def outputs_of_tile(problem: ConvProblem, m: int, r: int) -> tuple[int, int] | None:
    """Outputs of a tile of F(m, r) along the rows and columns of the plane of a problem; None where its taps
    are others than r. `transformed_by` tells why, and takes longer."""
    rows, columns = plane_taps(problem)
    if (rows, columns) not in ((r, r), (1, r), (r, 1)):
        return None
    return 1 if rows == 1 else m, 1 if columns == 1 else m


def transformed_by(problem: ConvProblem, r: int) -> tuple[bool, bool] | str:
    """Whether rows and columns of a plane go through a transform of r taps, or why neither can."""
    rows, columns = plane_taps(problem)
    if {rows, columns} <= {1, r} and r in (rows, columns):
        return rows == r, columns == r
    if problem.ndim == 1:
        return f"needs {r} taps; {taps_told(problem)}"
    return f"needs {r} taps in one dimension of the plane, and {r} or 1 in the other; {taps_told(problem)}"


def taps_told(problem: ConvProblem) -> str:
    """The taps of a phase along the rows and columns of a plane, in words."""
    rows, columns = plane_taps(problem)
    size = "x".join(map(str, problem.kernel))
    steps = "" if set(problem.stride) == {1} else " with stride " + "x".join(map(str, problem.stride))
    return f"kernel {size}{steps} has " + (f"{rows} by {columns}" if problem.ndim > 1 else str(columns))
