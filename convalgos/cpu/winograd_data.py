"""The gradient of the input (dgrad) by Winograd's transforms turned round: F(m, r) transposed.

Forward a tile of m x m outputs is y = AT [(G g GT) * (BT d B)] A, of the (m + r - 1)^2 inputs d under it. Its
gradient is dd = B [(G g GT) * (A dy AT)] BT: tiles of dy lie side by side, those of dx overlap and are added.
There are as many products as forward, whatever lies beyond the edges: what comes to copies of elements of
the map is folded onto these where tiles are added. A forward convolution of dy needs more, as its outputs are
the map with its border: 16 x 16 for 14 x 14. Wins with borders that are not zero, and without padding.

Source: Lavin and Gray, arXiv:1509.09308; transposed as bilinear algorithms are (Winograd, "Arithmetic
complexity of computations", 1980).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from convalgos.core.algorithm import Algorithm
from convalgos.core.backward.polyphase import Phase
from convalgos.core.boundaries import BOUNDARIES
from convalgos.core.cook_toom import transposed_amplification
from convalgos.core.machine import Machine
from convalgos.core.plan import Plan
from convalgos.core.problem import ConvProblem
from convalgos.cpu.backward.filter_rotation import rotated_filters, rotation_seconds
from convalgos.cpu.gemm import panels
from convalgos.cpu.runtime import jit
from convalgos.cpu.tiled.bounds import least_of_products
from convalgos.cpu.tiled.errors import error_of_tiles
from convalgos.cpu.tiled.geometry import plane, transformed_by
from convalgos.cpu.tiled.overlap_borders import apart_bytes
from convalgos.cpu.tiled.overlap_plan import OverlapPlan
from convalgos.cpu.tiled.overlap_schedule import OverlapSchedule, overlap_schedule
from convalgos.cpu.tiled.winograd_transforms import (
    OUTPUTS,
    winograd_added_tiles,
    winograd_filter_tiles,
    winograd_point_tiles,
)

# --- plan ------------------------------------------------------------------------------------


class WinogradDataPlan(OverlapPlan):
    """A plan by the transforms of F(m, r), transposed."""

    def pack_filter(self, w: np.ndarray) -> np.ndarray:
        """U of w with its channels in the place of its filters."""
        p = self.problem
        if p.groups == 1:
            return self.transformed(w.reshape(p.w_shape).swapaxes(0, 1))
        as_it_is = tuple((taps - 1, -1) for taps in p.kernel)  # a phase's filter turns it round once more
        (swapped,) = rotated_filters([Phase(p.spatial, p.spatial, None, as_it_is)], w, p.groups)
        return self.transformed(swapped)


# --- the figures for the selector --------------------------------------------------------------


@dataclass(frozen=True)
class WinogradData(Algorithm):
    """F(m, r) transposed."""

    m: int
    r: int = 3

    family: ClassVar[str] = "cpu.winograd"
    directions: ClassVar[tuple[str, ...]] = ("backward_data",)
    boundaries: ClassVar[tuple[str, ...]] = BOUNDARIES
    spreads_nan: ClassVar[bool] = True

    @property
    def variant(self) -> str:
        return f"data.f{self.m}x{self.r}"

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := super().why_not(problem):
            return reason
        p = problem.as_3d
        if p.kernel[0] > 1 or p.stride[0] > 1 or p.padding[0] != (0, 0):
            return "transforms planes: it takes no taps, stride or padding in depth"
        if isinstance(found := transformed_by(problem, self.r), str):
            return found
        if any(axis.phases > 1 or axis.stride > axis.lattices for axis in plane(problem)):
            return "takes no stride, whose phases are convolutions of their own"
        return None

    def cost(self, problem: ConvProblem, machine: Machine) -> float:
        return self._boxes(problem).seconds(machine)

    def least(self, problem: ConvProblem, machine: Machine) -> float:
        return least_of_products(problem, self.m, self.r, machine)

    def prepare_cost(self, problem: ConvProblem, machine: Machine) -> float:
        if problem.is_empty:
            return 0.0
        return self._boxes(problem).prepare_seconds(machine) + rotation_seconds(problem, 1, machine)

    def filter_bytes(self, problem: ConvProblem) -> int:
        return 0 if problem.is_empty else problem.groups * self._boxes(problem).u_bytes

    def workspace_bytes(self, problem: ConvProblem) -> int:
        if problem.is_empty:
            return 0
        cut = self._boxes(problem)
        return cut.scratch_bytes + apart_bytes(problem, cut)

    def error_bound(self, problem: ConvProblem) -> float:
        if problem.is_empty:
            return problem.eps
        cut = self._boxes(problem)
        growth = transposed_amplification(self.m, self.r) ** cut.dims
        return error_of_tiles(problem, problem.eps, growth, cut.taps)

    def plan(self, problem: ConvProblem) -> Plan:
        cut = self._boxes(problem)
        kernel = (problem.itemsize, cut.lanes, self.m, self.r, cut.dims)
        product = panels.sum_panel(problem.itemsize, cut.lanes, cut.product_rows, cut.vectors, 0)
        return WinogradDataPlan(
            problem, self, cut, winograd_point_tiles(*kernel, OUTPUTS), winograd_added_tiles(*kernel),
            product, winograd_filter_tiles(*kernel),
        )  # fmt: skip

    def _boxes(self, problem: ConvProblem) -> OverlapSchedule:
        return overlap_schedule(problem, self.m, jit.thread_count())


ALGORITHMS = (
    WinogradData(2),
    WinogradData(4),
    WinogradData(5),
    WinogradData(6),
    WinogradData(2, 5),
    WinogradData(4, 5),
)
