"""The gradient of the filter (wgrad) by Winograd: F(taps, tile), with tiles of dy as filters.

dw is a correlation of x with dy: its outputs are the r taps of the kernel, its filter is dy. dy is cut into
tiles of m x m; each meets the (m + r - 1)^2 inputs under it, and takes (m + r - 1)^2 products per pair of
channels instead of m^2 r^2: F(3, 4) saves a factor of 4. Between the transforms the products of all tiles are
summed, at each point a matrix product of its own; only dw is transformed back. Wins on 3x3 and 5x5 kernels
with 32 and more channels, and where a strided kernel has phases of two taps or more.

Source: Lavin and Gray, arXiv:1509.09308, section 4.1, on the same tiles of x as its forward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from convalgos.core.algorithm import Algorithm
from convalgos.core.cook_toom import amplification
from convalgos.core.machine import Machine, whole_l3
from convalgos.core.plan import Plan
from convalgos.core.problem import ConvProblem
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import CALL
from convalgos.cpu.tiled.borders import ReadsBorders
from convalgos.cpu.tiled.bounds import least_of_products
from convalgos.cpu.tiled.errors import error_of_tiles
from convalgos.cpu.tiled.geometry import transformed_by
from convalgos.cpu.tiled.weights_blocking import TiledWeightsBlocking, uncut_weights, weight_ways
from convalgos.cpu.tiled.weights_driver import WeightBoxPlan
from convalgos.cpu.tiled.winograd_transforms import (
    INPUTS,
    TAPS,
    winograd_output_tiles,
    winograd_point_tiles,
)
from convalgos.cpu.vectors import simd

# Calibrated on Zen 5 with AVX-512.
PRODUCT = 1.12  # of the measured peak, inside the micro-kernel,
WAITS = 4.3  # less this over its registers, as small tiles wait for their loads
COLUMN = 1.2  # times as long for kernels of one column, such as those in depth; Xeon (Granite Rapids)
STRIDED = 1.2  # times as long for the phases of strided problems; 500 gradients, Xeon (AMX)
TILE_TAPS = 12  # tiles multiplied in the time that sums are loaded and stored
SUMS = 1.9  # times the bandwidth of the caches, at which sums are loaded and stored
# Bytes of such sums that take as long as
FROM_MEMORY = 7  # a byte of sums in memory, where they are mostly
SPILT = 0.25, 0.75  # between these shares of L3, which they do not have for themselves,
FROM_L2, FROM_L3 = 5, 43  # a byte of V or D, half of which another core wrote, in L2 and in L3,
FAR = 0.55  # where they are once they fill this share of L3,
BOX = 2.4e6  # and the two parallel regions of a box

# --- shapes ----------------------------------------------------------------------------------


@lru_cache(512)
def tiled_weights_blocking(problem: ConvProblem, r: int, m: int, threads: int) -> TiledWeightsBlocking:
    """The boxes that are predicted to take the least time."""
    transformed = transformed_by(problem, r)
    assert not isinstance(transformed, str)
    all_tiles = uncut_weights(problem, (m if transformed[0] else 1, m if transformed[1] else 1), threads)
    return min(weight_ways(all_tiles), key=lambda cut: (_effort(cut), cut.inputs.boxes))


def _effort(cut: TiledWeightsBlocking) -> float:
    """What boxes of this size move, as bytes of sums that could be loaded or stored in the time.

    Boxes are the order of sums: the number of threads has no say.
    """
    held = cut.v_bytes + cut.d_bytes
    if cut.chunks:
        return cut.inputs.boxes * (FROM_L3 * held + BOX)
    low, high = SPILT
    spilt = min(1.0, max(0.0, (cut.m_bytes / whole_l3() - low) / (high - low)))
    sums = 2 * cut.m_bytes * (1 + spilt * (FROM_MEMORY - 1))
    return cut.inputs.boxes * (sums + _reads(held) + BOX)


def _reads(held: int) -> float:
    """What V and D of a box are read, as such bytes."""
    far = min(1.0, held / (FAR * whole_l3()))
    return (FROM_L2 + far * (FROM_L3 - FROM_L2)) * held


def _moved(cut: TiledWeightsBlocking) -> float:
    """`_effort`, but of maps whose one box, V and D, stays in L2: they have no other boxes."""
    if not cut.chunks:
        return _effort(cut)
    return cut.inputs.boxes * (_reads(cut.v_bytes + cut.d_bytes) + BOX)


# --- the figures for the selector --------------------------------------------------------------


@dataclass(frozen=True)
class WinogradWeights(ReadsBorders, Algorithm):
    """F(r, m): r taps from tiles of m x m outputs."""

    r: int
    m: int

    family: ClassVar[str] = "cpu.winograd"
    directions: ClassVar[tuple[str, ...]] = ("backward_weights",)
    spreads_nan: ClassVar[bool] = True

    @property
    def variant(self) -> str:
        return f"weights.f{self.r}x{self.m}"

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := super().why_not(problem):
            return reason
        found = transformed_by(problem, self.r)
        return found if isinstance(found, str) else None

    def cost(self, problem: ConvProblem, machine: Machine) -> float:
        cut = self._boxes(problem)
        p, x = cut.problem, cut.inputs
        tiles = x.tile_count / p.groups  # of one group
        per_box = tiles / (x.boxes / p.groups)
        flops = 2 * tiles * _products(cut) * cut.panels * cut.panel * p.kernel[0] * p.groups
        registers = cut.product_rows * cut.vectors
        share = registers / (registers + WAITS) * per_box / (per_box + TILE_TAPS)
        speed = machine.peak(p.dtype) * PRODUCT * share
        moved = _moved(cut) / (machine.cache_bandwidth * SUMS)
        memory = 0.43 * machine.stream(p.x_bytes + p.y_bytes, p.x_bytes + p.y_bytes)
        written = machine.stream(2 * p.w_bytes, p.w_bytes)
        long_rows = COLUMN if p.kernel[2] == 1 < p.kernel[1] else 1.0
        phases = STRIDED if max(problem.stride) > 1 else 1.0
        return CALL + (flops / speed + moved) * long_rows * phases + memory + written

    def least(self, problem: ConvProblem, machine: Machine) -> float:
        return least_of_products(problem, self.m, self.r, machine)

    def prepare_cost(self, problem: ConvProblem, machine: Machine) -> float:
        return 1e-9  # dy is taken as it is

    def workspace_bytes(self, problem: ConvProblem) -> int:
        return 0 if problem.is_empty else self._boxes(problem).scratch_bytes

    def error_bound(self, problem: ConvProblem) -> float:
        if problem.is_empty:
            return problem.eps
        cut = self._boxes(problem)
        growth = amplification(self.r, self.m) ** cut.inputs.dims
        return error_of_tiles(problem, problem.eps, growth, cut.inputs.tile_count / problem.groups)

    def plan(self, problem: ConvProblem) -> Plan:
        cut = self._boxes(problem)
        kernel = (problem.itemsize, simd.lanes(problem.itemsize), self.r, self.m, cut.inputs.dims)
        transforms = (
            winograd_point_tiles(*kernel, INPUTS),
            winograd_point_tiles(*kernel, TAPS),
            winograd_output_tiles(*kernel),
        )
        return WeightBoxPlan(problem, self, cut, *transforms)

    def _boxes(self, problem: ConvProblem) -> TiledWeightsBlocking:
        return tiled_weights_blocking(problem, self.r, self.m, jit.thread_count())


def _products(cut: TiledWeightsBlocking) -> float:
    """Of a tile and a filter, at all points: channels by the phases that have products there."""
    return float(cut.inputs.point_taps[:, 1].sum())


ALGORITHMS = (
    WinogradWeights(3, 4),
    WinogradWeights(3, 2),
    WinogradWeights(3, 6),
    WinogradWeights(2, 4),  # 3x3 with stride 2
    WinogradWeights(4, 4),  # 7x7 with stride 2
    WinogradWeights(5, 4),
)
