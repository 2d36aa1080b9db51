"""Boxes of tiles of dy whose tiles of dx overlap: the gradient of the input by transposed transforms.

A tile of m x m outputs reaches (m + r - 1)^2 inputs. Forward these are read, and outputs of tiles lie side by
side; here outputs are read side by side, and what tiles have for the same input is added (overlap-add). A box
holds whole rows of tiles, so that only its first and last rows of inputs are of other boxes, too.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Self

from convalgos.core import profiles
from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.machine import Machine
from convalgos.core.problem import ConvProblem
from convalgos.cpu.tiled import search
from convalgos.cpu.tiled.blocking import ONE_BOX, Cuts
from convalgos.cpu.tiled.cost import BoxSchedule
from convalgos.cpu.tiled.geometry import TiledAxis, plane


class OverlapSchedule(BoxSchedule):
    """Sizes and predicted time. `problem` and the axes of tiles are of the products: dy is read, K channels
    make C filters; `inputs` are the axes of dx."""

    inputs: tuple[TiledAxis, TiledAxis]

    def cut_into(self, cuts: Cuts, team: bool) -> Self:
        made = super().cut_into(cuts, team)
        made.inputs = self.inputs
        return made

    @property
    def short_phases(self) -> tuple[int, int]:
        return 0, 0

    def products_of(self, h: int, w: int) -> int:
        return self.points_of(h, w) * self.problem.w_shape[1]

    def points_of(self, h: int, w: int) -> int:
        rows, columns = self.inputs
        return (h + rows.taps - 1) * (w + columns.taps - 1)

    @cached_attribute
    def points(self) -> int:
        return self.points_of(self.rows.outputs, self.columns.outputs)

    @property
    def reached(self) -> tuple[int, int]:
        """Rows and columns of inputs under the tiles of a box."""
        rows, columns = self.inputs
        return rows.span(self.box[2]), columns.span(self.box[3])

    @property
    def strip(self) -> int:
        return self.box[2]

    @property
    def pixel_bytes(self) -> int:
        outputs = self.rows.span(self.box[2]) * self.columns.span(self.box[3])
        inputs = self.reached[0] * self.reached[1]
        return (max(inputs, outputs) + self.lanes) * self.lanes * self.size

    @cached_attribute
    def transform_bytes(self) -> float:
        outputs = self.rows.outputs * self.columns.outputs
        own = self.reached[0] * self.reached[1] / self.tiles  # inputs for each tile
        reads = self.channel_blocks * (self.pixel_moves * outputs + 2 * self.points)
        writes = self.filter_blocks * (2 * self.points + self.output_moves * own)
        return (reads + writes) * self.lanes * self.size

    def seconds(self, machine: Machine) -> float:
        behind = machine.launch if self.cuts[2] > 1 else 0.0  # to add the rows that several boxes have
        return super().seconds(machine) + behind


@lru_cache(512)
def overlap_schedule(problem: ConvProblem, m: int, threads: int) -> OverlapSchedule:
    """The boxes that are predicted to take the least time, of a backward_data problem without stride.

    Args:
        m: outputs of a tile, along the dimensions of the plane that have several taps.
    """
    p = problem.as_3d
    inputs = [a._replace(outputs=m if a.taps > 1 else 1) for a in plane(problem)]
    down, across = (
        TiledAxis(a.size_out, a.size_out, 0, 1, a.lattices, 1, a.lattices, 1, a.outputs) for a in inputs
    )
    around = ((0, 0), *((taps - 1, taps - 1) for taps in p.kernel[1:]))
    products = ConvProblem(
        p.y_shape, (p.C, p.gemm_n, *p.kernel), padding=around, groups=p.groups, layout=p.layout, dtype=p.dtype
    )
    whole = OverlapSchedule(products, down, across, ONE_BOX, True, threads)
    whole.inputs = inputs[0], inputs[1]
    ways = {((n, o, h, 1), team) for (n, o, h, _), team in search.box_ways(whole)}
    usual = profiles.nominal(threads)
    made = (whole.cut_into(*way) for way in sorted(ways))
    return min(made, key=lambda cut: (cut.seconds(usual), cut.scratch_bytes))
