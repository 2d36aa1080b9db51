"""Winograd on bfloat16 and float16: transforms and products in float32, and no copy of x or y in float32.

What `cpu.winograd` computes of float32 copies, bit for bit. Elements are widened where tiles are gathered and
rounded where they are written, so that half the bytes are moved, and no thread waits for copies. Wins on
3x3 and 5x5 kernels with 16 and more channels where a processor has no matrix tiles.

Source: Lavin and Gray, arXiv:1509.09308.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.cook_toom import amplification
from convalgos.core.machine import Machine
from convalgos.core.plan import Plan
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm import panels
from convalgos.cpu.layout import half_pixels
from convalgos.cpu.runtime import half, jit
from convalgos.cpu.tiled import bounds, filters, search
from convalgos.cpu.tiled.box_algorithm import BoxAlgorithm
from convalgos.cpu.tiled.box_plan import BoxPlan
from convalgos.cpu.tiled.cost import BoxSchedule
from convalgos.cpu.tiled.errors import error_of_tiles
from convalgos.cpu.tiled.geometry import outputs_of_tile, transformed_by
from convalgos.cpu.tiled.winograd_transforms import (
    INPUTS,
    winograd_filter_tiles,
    winograd_finished_tiles,
    winograd_point_tiles,
)
from convalgos.cpu.vectors import halves, simd

SINGLE = 4  # bytes of an element inside
SINGLE_EPS = 2.0**-23


class HalfBoxSchedule(BoxSchedule):
    """All that is not x or y is float32."""

    @property
    def size(self) -> int:
        return SINGLE

    @property
    def v_size(self) -> int:
        return SINGLE

    @property
    def sum_size(self) -> int:
        return SINGLE

    @cached_attribute
    def lanes(self) -> int:
        return simd.lanes(SINGLE)

    @cached_attribute
    def vectors(self) -> int:
        return panels.tile_for(self.problem.gemm_n, SINGLE)[1]

    def peak(self, machine: Machine) -> float:
        return machine.peak_float32


@lru_cache(512)
def half_schedule(problem: ConvProblem, m: int, r: int, threads: int) -> HalfBoxSchedule:
    return search.best(search.in_one_box(HalfBoxSchedule, problem, m, r, threads))


# --- plan ----------------------------------------------------------------------------------------


class WinogradHalfPlan(BoxPlan):
    def __init__(self, problem: ConvProblem, algorithm: WinogradHalf, cut: HalfBoxSchedule):
        kernel = (SINGLE, cut.lanes, algorithm.m, algorithm.r, cut.dims)
        form = halves.HALF if problem.dtype == "float16" else halves.BRAIN
        super().__init__(
            problem, algorithm, cut, winograd_point_tiles(*kernel, INPUTS), 0,
            panels.sum_panel(SINGLE, cut.lanes, cut.product_rows, cut.vectors, 0),
            winograd_finished_tiles(*kernel), gather=half_pixels.gather_halves(form, cut.lanes),
            place=half_pixels.place_halves(form, cut.lanes),
        )  # fmt: skip
        self._filter_tiles = winograd_filter_tiles(*kernel)

    def pack_filter(self, w: np.ndarray) -> np.ndarray:
        return filters.transform_filter(w.astype(np.float32), self.cut, self.record, self._filter_tiles)


# --- algorithm -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class WinogradHalf(BoxAlgorithm):
    """F(m, r) in one or both dimensions of a plane, of 16-bit maps."""

    family: ClassVar[str] = "cpu.winograd.half"
    dtypes: ClassVar[tuple[str, ...]] = ("bfloat16", "float16")
    spreads_nan: ClassVar[bool] = True

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := super().why_not(problem):
            return reason
        found = transformed_by(problem, self.r)
        if isinstance(found, str):
            return found
        return half.why_not(problem.dtype)

    def least(self, problem: ConvProblem, machine: Machine) -> float:
        tile = None if problem.is_empty else outputs_of_tile(problem, self.m, self.r)
        return math.inf if tile is None else bounds.bounds(HalfBoxSchedule, problem, machine).seconds(*tile)

    def error_bound(self, problem: ConvProblem) -> float:
        if problem.is_empty:
            return problem.eps
        cut = self._schedule(problem)
        growth = amplification(self.m, self.r) ** cut.dims
        return problem.eps / 2 + error_of_tiles(problem, SINGLE_EPS, growth, cut.taps)

    def plan(self, problem: ConvProblem) -> Plan:
        return WinogradHalfPlan(problem, self, self._schedule(problem))

    def _schedule(self, problem: ConvProblem) -> HalfBoxSchedule:
        return half_schedule(problem, self.m, self.r, jit.thread_count())


ALGORITHMS = (
    WinogradHalf(2),
    WinogradHalf(4),
    WinogradHalf(6),
    WinogradHalf(4, 2),  # 3x3 with stride 2
    WinogradHalf(5, 4),  # 7x7 with stride 2
    WinogradHalf(4, 5),
)
