"""Algorithms of one form of `core.bilinear_forms` on boxes of tiles: what they have in common.

All is as for Winograd's tiles, but that a tile of m outputs has the `alpha` points of its form.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from convalgos.core.bilinear_forms import NESTED, SYMBOLIC, BilinearForm, bilinear_form
from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.layouts import PLAIN
from convalgos.core.machine import Machine
from convalgos.core.plan import Plan
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm import panels
from convalgos.cpu.runtime import jit
from convalgos.cpu.tiled import bounds, filters, search
from convalgos.cpu.tiled.bilinear_transforms import (
    bilinear_filter_tiles,
    bilinear_finished_tiles,
    bilinear_input_tiles,
)
from convalgos.cpu.tiled.box_algorithm import BoxAlgorithm
from convalgos.cpu.tiled.box_plan import BoxPlan
from convalgos.cpu.tiled.cost import PRODUCT, BoxSchedule
from convalgos.cpu.tiled.errors import error_of_tiles
from convalgos.cpu.tiled.geometry import outputs_of_tile, transformed_by

LEAST_PRODUCTS = 5 / 3  # of an output, in each dimension: a ring of six with three taps
OPERATIONS = 3.0  # of vectors, for a point of a tile in each of its transforms; Xeon (Granite Rapids)


class BilinearSchedule(BoxSchedule):
    """A schedule of tiles with the points of a form."""

    kind: ClassVar[int]
    least_flops: ClassVar[float] = 2 * LEAST_PRODUCTS / PRODUCT

    @cached_attribute
    def points(self) -> int:
        return self.points_of(self.rows.outputs, self.columns.outputs)

    def points_of(self, h: int, w: int) -> int:
        return self._along(h, self.rows.taps) * self._along(w, self.columns.taps)

    def _along(self, outputs: int, taps: int) -> int:
        return taps if outputs == 1 else bilinear_form(self.kind, outputs, taps).alpha

    def products_of(self, h: int, w: int) -> int:
        return self.points_of(h, w) * self.slice_taps

    @property
    def short_phases(self) -> tuple[int, int]:
        return 0, 0  # the last tap makes the filter at several points

    def transforming(self, points: int, machine: Machine) -> float:
        return 2 * OPERATIONS * points * self.lanes / machine.peak(self.problem.dtype)


class PlaneSchedule(BilinearSchedule):
    """For bounds of kernels with taps in both dimensions of a plane."""

    least_flops = BilinearSchedule.least_flops * LEAST_PRODUCTS


class NestedSchedule(BilinearSchedule):
    kind = NESTED


class SymbolicSchedule(BilinearSchedule):
    kind = SYMBOLIC


@lru_cache(256)
def _bilinear_schedule(kind: Any, problem: ConvProblem, m: int, r: int, threads: int) -> BilinearSchedule:
    found: BilinearSchedule = search.best(search.in_one_box(kind, problem, m, r, threads))
    return found


class BilinearPlan(BoxPlan):
    def __init__(self, problem: ConvProblem, algorithm: BilinearTiles, cut: BilinearSchedule):
        kernel = (problem.itemsize, cut.lanes, cut.kind, algorithm.m, algorithm.r, cut.dims)
        product = panels.sum_panel(problem.itemsize, cut.lanes, cut.product_rows, cut.vectors, 0)
        inputs, finish = bilinear_input_tiles(*kernel), bilinear_finished_tiles(*kernel)
        super().__init__(problem, algorithm, cut, inputs, 0, product, finish)
        self._filter_tiles = bilinear_filter_tiles(*kernel)

    def pack_filter(self, w: np.ndarray) -> np.ndarray:
        return filters.transform_filter(w, self.cut, self.record, self._filter_tiles)


@dataclass(frozen=True)
class BilinearTiles(BoxAlgorithm):
    """m outputs of r taps, in one or both dimensions of a plane."""

    schedule: ClassVar[type[BilinearSchedule]]
    spreads_nan: ClassVar[bool] = True
    bounded_with: ClassVar[str] = "bilinear tiles"
    reads: ClassVar[tuple[str, ...]] = (*PLAIN, "blocked")
    writes: ClassVar[tuple[str, ...]] = reads
    mixes_layouts: ClassVar[bool] = True

    @property
    def form(self) -> BilinearForm:
        return bilinear_form(self.schedule.kind, self.m, self.r)

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := super().why_not(problem):
            return reason
        found = transformed_by(problem, self.r)
        return found if isinstance(found, str) else None

    def least(self, problem: ConvProblem, machine: Machine) -> float:
        tile = None if problem.is_empty else outputs_of_tile(problem, self.m, self.r)
        if tile is None:
            return math.inf
        points = self.form.alpha if min(tile) == 1 else self.form.alpha**2
        # those of Winograd, whose transforms are shorter; a choice has asked them already
        kind: Any = BoxSchedule
        return bounds.bounds(kind, problem, machine).seconds(*tile, points)

    def least_of_all(self, problem: ConvProblem, machine: Machine) -> float:
        if max(problem.kernel) < 3 or problem.is_empty:
            return math.inf
        kind: Any = PlaneSchedule if min(problem.kernel[-2:]) > 1 < problem.ndim else BilinearSchedule
        return bounds.least_of_tiles(kind, problem, machine)

    def error_bound(self, problem: ConvProblem) -> float:
        if problem.is_empty:
            return problem.eps
        cut = self._schedule(problem)
        growth = self.form.amplification**cut.dims
        return error_of_tiles(problem, problem.eps, growth, cut.taps)

    def plan(self, problem: ConvProblem) -> Plan:
        return BilinearPlan(problem, self, self._schedule(problem))

    def _schedule(self, problem: ConvProblem) -> BilinearSchedule:
        kind: Any = self.schedule
        return _bilinear_schedule(kind, problem, self.m, self.r, jit.thread_count())
