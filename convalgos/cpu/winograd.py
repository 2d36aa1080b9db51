"""Winograd's short convolutions: fewer products, on tiles that stay in the cache.

A tile of m x m outputs of an r x r kernel takes (m + r - 1)^2 products per pair of channels instead of
m^2 r^2: F(4, 3) saves a factor of 4. Input tiles, filters and products are transformed by the exact
matrices of `convalgos.core.cook_toom`; between the transforms every point of the tiles is a matrix product of
its own, which runs on the micro-kernel. Wins on 3x3 and 5x5 kernels with 16 and more channels.

Kernels with r taps in one dimension of the plane and 1 in the other use the 1-D form. Taps in depth are
summed inside the product, but r x 1 x 1 kernels come as r x 1 on a plane (`core.merged_dimensions`). Stride
and dilation are steps inside the tiles (`tiled.geometry.TiledAxis`).

Source: Lavin and Gray, "Fast algorithms for convolutional neural networks", arXiv:1509.09308, with the
cache-resident blocks of Zlateski et al., "Anatomy of Winograd convolution on CPUs", arXiv:1809.10170.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Self

import numpy as np

from convalgos.core.algorithm import Algorithm
from convalgos.core.cook_toom import POINTS, amplification
from convalgos.core.layouts import PLAIN
from convalgos.core.machine import Machine
from convalgos.core.plan import Plan
from convalgos.core.pool_problem import PoolProblem
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm import panels
from convalgos.cpu.gemm.split_cut import split_roundings, why_not_split
from convalgos.cpu.runtime import jit
from convalgos.cpu.tiled import bounds, filters, search
from convalgos.cpu.tiled.borders import ReadsBorders
from convalgos.cpu.tiled.box_algorithm import BoxAlgorithm
from convalgos.cpu.tiled.box_plan import BoxPlan
from convalgos.cpu.tiled.cost import BoxSchedule
from convalgos.cpu.tiled.digit_products import multiply_digits
from convalgos.cpu.tiled.errors import error_of_tiles
from convalgos.cpu.tiled.geometry import outputs_of_tile, transformed_by
from convalgos.cpu.tiled.pooled_tiles import WINDOW, pools_tiles
from convalgos.cpu.tiled.split_filters import split_filter
from convalgos.cpu.tiled.split_products import multiply_split
from convalgos.cpu.tiled.split_rows import product_table
from convalgos.cpu.tiled.split_schedule import DigitBoxSchedule, SplitBoxSchedule
from convalgos.cpu.tiled.winograd_transforms import (
    INPUTS,
    winograd_filter_tiles,
    winograd_finished_tiles,
    winograd_point_tiles,
    winograd_pooled_tiles,
)

# Where other layers run in turn (see `bf16x3`): times the seconds of split products, and of large tiles.
SPLIT_BETWEEN = LARGE_BETWEEN = 1.05
LARGE = 6  # outputs of a tile
SPLIT_WAITS = 1.3  # times as long as for float32 is for filters that are split

SCHEDULES: dict[str, type[SplitBoxSchedule]] = {"bf16x3": SplitBoxSchedule, "int8x3": DigitBoxSchedule}

# --- shapes --------------------------------------------------------------------------------------


def winograd_schedule(
    problem: ConvProblem, m: int, r: int, box: int = 0, kind: type[BoxSchedule] = BoxSchedule
) -> BoxSchedule:
    """The schedule of a problem that `transformed_by` accepts; see `search.best`."""
    known: Any = kind
    return _schedule(known, problem, m, r, box, jit.thread_count())


@lru_cache(512)
def _schedule(kind: Any, problem: ConvProblem, m: int, r: int, box: int, threads: int) -> BoxSchedule:
    return search.best(one_box(problem, m, r, threads, kind), box)


def one_box(
    problem: ConvProblem, m: int, r: int, threads: int, kind: type[BoxSchedule] = BoxSchedule
) -> BoxSchedule:
    """All tiles of a problem in one box."""
    return search.in_one_box(kind, problem, m, r, threads)


# --- plan ----------------------------------------------------------------------------------------


def product_values(cut: BoxSchedule) -> dict[str, Any]:
    """The fields of a record that say how points are multiplied."""
    if isinstance(cut, SplitBoxSchedule):
        multiply = multiply_digits() if cut.form.scaled else multiply_split()
        return {"sum_panel": 0, "multiply_box": multiply, "offsets": product_table(cut)}
    size = cut.problem.itemsize
    return {"sum_panel": panels.sum_panel(size, cut.lanes, cut.product_rows, cut.vectors, 0)}


class WinogradPlan(BoxPlan):
    cut: BoxSchedule
    borrows = False  # whether filters lie as for maps of other sizes, where they would not for its own

    def __init__(self, problem: ConvProblem, algorithm: Winograd, cut: BoxSchedule):
        kernel = (problem.itemsize, cut.lanes, algorithm.m, algorithm.r, cut.dims)
        inputs, finish = winograd_point_tiles(*kernel, INPUTS), winograd_finished_tiles(*kernel)
        values = product_values(cut)
        super().__init__(problem, algorithm, cut, inputs, 0, finish_tiles=finish, **values)
        self._m, self._r = algorithm.m, algorithm.r
        self._filter_tiles = winograd_filter_tiles(*kernel)

    def on_maps(self, problem: ConvProblem) -> Self | None:
        """This plan for other sizes of the maps; None where these are to be cut otherwise."""
        if not search.is_alike(self.cut, problem):
            return None
        return self.in_cut(problem, search.boxed_like(self.cut, problem))

    def in_cut(self, problem: ConvProblem, cut: BoxSchedule) -> Self:
        """This plan for other sizes of the maps, cut into boxes for which filters would lie as they may."""
        borrows = cut.vectors != self.cut.vectors
        if borrows:
            cut = cut.in_panels_of(self.cut)
        made = self.in_boxes(problem, cut, **product_values(cut))
        made.borrows = borrows
        return made

    def pooled(self, pooling: PoolProblem) -> Self | None:
        if not pools_tiles(self.cut.rows, self.cut.columns, pooling):
            return None
        if self.window == WINDOW:
            return self
        made = copy.copy(self)
        made.window = WINDOW
        finish = winograd_pooled_tiles(self.problem.itemsize, self.cut.lanes, self._m, self._r)
        return made.in_boxes(self.problem, self.cut, finish_tiles=finish)

    def pack_filter(self, w: np.ndarray) -> np.ndarray:
        if isinstance(self.cut, SplitBoxSchedule):
            return split_filter(w, self.cut, self.record, self._filter_tiles)
        return filters.transform_filter(w, self.cut, self.record, self._filter_tiles)


# --- algorithm -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Winograd(ReadsBorders, BoxAlgorithm):
    """F(m, r) in one or both dimensions of a plane."""

    box: int = 0  # tiles of a box, about; 0 for the number that is predicted best
    split: str = ""  # products are of three terms, on matrix tiles: "bf16x3" or "int8x3"

    family: ClassVar[str] = "cpu.winograd"
    spreads_nan: ClassVar[bool] = True
    reads: ClassVar[tuple[str, ...]] = (*PLAIN, "blocked")
    writes: ClassVar[tuple[str, ...]] = reads
    mixes_layouts: ClassVar[bool] = True

    @property
    def variant(self) -> str:
        split = f".{self.split}" if self.split else ""
        return super().variant + split + (f".box{self.box}" if self.box else "")

    @property
    def kind(self) -> type[BoxSchedule]:
        """Of its schedules."""
        return SCHEDULES[self.split] if self.split else BoxSchedule

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := super().why_not(problem):
            return reason
        if self.split and (reason := why_not_split(problem, SCHEDULES[self.split].form)):
            return reason
        found = transformed_by(problem, self.r)
        return found if isinstance(found, str) else None

    def variants(self, problem: ConvProblem) -> Iterator[Algorithm]:
        yield from (replace(self, m=alpha - self.r + 1) for alpha in POINTS if alpha > self.r)
        if not problem.is_empty:
            boxes = [replace(self, box=box) for box in search.BOXES]
            yield from search.different(self, boxes, lambda a: a._schedule(problem))

    def least(self, problem: ConvProblem, machine: Machine) -> float:
        tile = None if problem.is_empty else outputs_of_tile(problem, self.m, self.r)
        kind: Any = self.kind
        return math.inf if tile is None else bounds.bounds(kind, problem, machine).seconds(*tile)

    def least_of_all(self, problem: ConvProblem, machine: Machine) -> float:
        if self.split:
            return 0.0
        return math.inf if problem.is_pointwise else bounds.least_of_tiles(BoxSchedule, problem, machine)

    def error_bound(self, problem: ConvProblem) -> float:
        if problem.is_empty:
            return problem.eps
        cut = self._schedule(problem)
        growth = amplification(self.m, self.r) ** cut.dims
        summed = split_roundings(cut.taps) if self.split == "bf16x3" else cut.taps
        return error_of_tiles(problem, problem.eps, growth, summed)

    def seconds_between_layers(
        self, problem: ConvProblem, seconds: float, reading: float, machine: Machine
    ) -> float:
        longer = (SPLIT_BETWEEN if self.split else 1.0) * (LARGE_BETWEEN if self.m >= LARGE else 1.0)
        return super().seconds_between_layers(
            problem, longer * seconds, reading * (SPLIT_WAITS if self.split else 1.0), machine
        )

    def plan(self, problem: ConvProblem) -> Plan:
        return WinogradPlan(problem, self, self._schedule(problem))

    def why_not_on_maps(self, problem: ConvProblem) -> str | None:
        return None if problem.is_zero_padded else self.why_not(problem)

    def plan_like(self, problem: ConvProblem, known: Plan) -> Plan:
        found = known.on_maps(problem) if isinstance(known, WinogradPlan) else None
        if found or not isinstance(known, WinogradPlan):
            return found or self.plan(problem)
        cut = self._schedule(problem)
        return known.in_cut(problem, cut) if cut.is_like(known.cut) else self.plan(problem)

    def pools(self, problem: ConvProblem, pooling: PoolProblem) -> bool:
        tiles = search.in_one_box(BoxSchedule, problem, self.m, self.r, 1)
        return pools_tiles(tiles.rows, tiles.columns, pooling)

    def _schedule(self, problem: ConvProblem) -> BoxSchedule:
        return winograd_schedule(problem, self.m, self.r, self.box, self.kind)


ALGORITHMS = (
    Winograd(2),
    Winograd(4),
    Winograd(5),  # maps of 5, 10 and 14
    Winograd(6),
    Winograd(4, 2),  # 3x3 with stride 2
    Winograd(5, 2),  # the same to maps of 5, 10 and 14
    Winograd(5, 4),  # 7x7 with stride 2
    Winograd(2, 5),
    Winograd(4, 5),
    *(Winograd(m, split=split) for split in ("bf16x3", "int8x3") for m in (2, 4, 5, 6)),
)
