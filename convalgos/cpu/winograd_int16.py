"""Winograd's F(4, 3) and F(2, 3) of 8-bit integers, exactly, by products of 16-bit integers.

Inputs and filters are transformed in 16 bits and multiplied in pairs of channels (`vpdpwssd`, or `vpmaddwd`)
into sums of 32 bits, which may wrap around: the denominators of the transforms are 2 in each dimension, times
odd numbers, which have inverses (`tiled.integer_transforms`). F(4, 3) needs a quarter of the products of a
direct convolution, at half the speed of 8-bit products, so that it wins where a processor has no matrix
tiles: with 512-bit VNNI, and by more where products of 8 bits cannot be summed exactly at all (AVX2).

Source: our own, after Lavin and Gray, arXiv:1509.09308, and on exact Winograd convolutions of integers Meng
and Brothers, "Efficient Winograd convolution via integer arithmetic", arXiv:1901.01965.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np

from convalgos.core.integer_plan import IntegerFilter, from_zero_point
from convalgos.core.plan import Plan
from convalgos.core.problem import ConvProblem
from convalgos.cpu.layout import byte_pixels
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import Packed
from convalgos.cpu.tiled import integer_transforms, row_products, search
from convalgos.cpu.tiled.box_algorithm import BoxAlgorithm
from convalgos.cpu.tiled.geometry import transformed_by
from convalgos.cpu.tiled.integer_box_plan import IntegerBoxPlan, output_kind
from convalgos.cpu.tiled.short_schedule import ShortBoxSchedule, sums_words
from convalgos.cpu.tiled.word_filters import packed_words, phase_filters

R = 3  # taps
LARGEST_PRODUCT = 128 * 255  # of an input and a filter less its zero point


@lru_cache(512)
def short_schedule(problem: ConvProblem, m: int, threads: int) -> ShortBoxSchedule:
    return search.best(search.in_one_box(ShortBoxSchedule, problem, m, R, threads))


# --- plan ----------------------------------------------------------------------------------------


class ExactFilter(NamedTuple):
    """U, and what kernels need to know of it."""

    u: Packed
    shared: bool  # see `integer_transforms.SHARE`
    offset: np.ndarray  # int32 (K,)


class WinogradInt16Plan(IntegerBoxPlan):
    def __init__(self, problem: ConvProblem, algorithm: WinogradInt16, cut: ShortBoxSchedule):
        m, kind = algorithm.m, output_kind(problem.y_dtype)
        self._m = m
        self._output_tiles = [
            integer_transforms.integer_output_tiles(cut.sum_lanes, m, cut.dims, shared) for shared in (0, 1)
        ]
        super().__init__(
            problem, algorithm, cut, integer_transforms.integer_input_tiles(cut.lanes, m, cut.dims),
            self._output_tiles[1],
            row_products.sum_pairs(cut.sum_lanes, cut.product_rows, cut.vectors, int(sums_words())),
            gather=byte_pixels.gather_bytes(int(problem.dtype == "int8"), cut.lanes, self.shift),
            scatter=byte_pixels.scatter_sums(kind[0], cut.sum_lanes),
            multiply_box=row_products.multiply_words(), y_size=kind[1], fills_depth=1,
        )  # fmt: skip

    def pack(self, w: np.ndarray, w_zero_point: np.ndarray | None) -> ExactFilter:
        wide = from_zero_point(w, w_zero_point, np.int32)
        taps = [a.outputs > 1 for a in (self.cut.rows, self.cut.columns)]
        points, shared = integer_transforms.filter_points(
            phase_filters(wide, self.cut), self._m, taps[0], taps[1]
        )
        u = packed_words(points, self.cut)
        return ExactFilter(Packed(u, self._address(u)), shared, self.middle_offset(wide))

    def transformed(self, w: IntegerFilter, workspace: Any) -> tuple[Packed, np.ndarray]:
        workspace.arguments.output_tiles = self._output_tiles[w.packed.shared]
        return w.packed.u, w.packed.offset


# --- algorithm -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class WinogradInt16(BoxAlgorithm):
    """F(m, 3) in one or both dimensions of a plane, in integers of 16 bits."""

    family: ClassVar[str] = "cpu.winograd.int16"
    dtypes: ClassVar[tuple[str, ...]] = ("int8", "uint8")

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := super().why_not(problem):
            return reason
        found = transformed_by(problem, R)
        if isinstance(found, str):
            return found
        most = (integer_transforms.exact_below(sum(found)) - 1) // LARGEST_PRODUCT
        if problem.reduction > most:
            return f"tells sums of up to {most} products; these are of {problem.reduction}"
        return None

    def error_bound(self, problem: ConvProblem) -> float:
        return 2 * problem.eps  # of the output step, where y is float32

    def plan(self, problem: ConvProblem) -> Plan:
        return WinogradInt16Plan(problem, self, self._schedule(problem))

    def _schedule(self, problem: ConvProblem) -> ShortBoxSchedule:
        return short_schedule(problem, self.m, jit.thread_count())


ALGORITHMS = (WinogradInt16(2), WinogradInt16(4))
