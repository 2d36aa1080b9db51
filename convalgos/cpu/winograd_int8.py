"""Winograd's F(4, 3) and F(2, 3) of 8-bit integers, with tiles and filters rounded to 8 bits at each point.

Inputs are transformed in 16 bits (`tiled.fixed_point_transforms`), and rounded to 8 bits by a scale for each
tile at each point, which its largest element gives; filters at each point by one for each filter. Products
of bytes (`vpdpbusd`) are summed in 32 bits, scaled, and transformed back in float32
(`tiled.quantised_products`). Four times fewer products than direct sums, at the same speed each; but y is not
exact: F(4, 3) errs by a few percent of max|y|, F(2, 3) by about one. So it is picked only where the caller
gives an error to stay within.

Source: Li et al. 2021, "LoWino: Towards efficient low-precision Winograd convolutions on modern CPUs", ICPP.
Scales for each tile, found in the call, instead of calibrated ones, and the points are our own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np

from convalgos.core.algorithm import room_for_few
from convalgos.core.allocator import aligned_zeros
from convalgos.core.cook_toom import amplification
from convalgos.core.element_types import INTEGERS
from convalgos.core.integer_plan import IntegerFilter, from_zero_point
from convalgos.core.plan import Plan
from convalgos.core.problem import ConvProblem
from convalgos.cpu.layout import byte_pixels
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import Packed
from convalgos.cpu.tiled import fixed_point_transforms as transforms
from convalgos.cpu.tiled import quantised_products, search
from convalgos.cpu.tiled.box_algorithm import BoxAlgorithm
from convalgos.cpu.tiled.byte_schedule import ByteBoxSchedule
from convalgos.cpu.tiled.geometry import transformed_by
from convalgos.cpu.tiled.integer_box_plan import IntegerBoxPlan, output_kind
from convalgos.cpu.tiled.short_schedule import sums_words
from convalgos.cpu.tiled.word_filters import packed_words, phase_filters

R = 3  # taps
LARGEST_PRODUCT = 255 * 255
MEASURED = (
    1.9  # largest errors, over growth times rounding: of 240 draws, zero points of each filter among them
)
MOST = 2**30 // LARGEST_PRODUCT  # products of a sum: what errors add to it stays in 32 bits


@lru_cache(512)
def byte_schedule(problem: ConvProblem, m: int, threads: int) -> ByteBoxSchedule:
    return search.best(search.in_one_box(ByteBoxSchedule, problem, m, R, threads))


# --- plan ----------------------------------------------------------------------------------------


class RoundedFilter(NamedTuple):
    """U, and what tells the zero point of x from it."""

    u: Packed
    sums: np.ndarray  # int32 (K,), of the taps of each filter


class WinogradInt8Plan(IntegerBoxPlan):
    shift = transforms.SHIFT

    def __init__(self, problem: ConvProblem, algorithm: WinogradInt8, cut: ByteBoxSchedule):
        m, kind = algorithm.m, output_kind(problem.y_dtype)
        self._m = m
        self._levels: dict[int, np.ndarray] = {}  # by the zero point of x
        super().__init__(
            problem, algorithm, cut, transforms.fixed_point_input_tiles(cut.lanes, m, cut.dims),
            transforms.rounded_output_tiles(cut.sum_lanes, m, cut.dims),
            quantised_products.sum_bytes(cut.sum_lanes, cut.product_rows, cut.vectors),
            gather=byte_pixels.gather_bytes(int(problem.dtype == "int8"), cut.lanes, self.shift),
            scatter=byte_pixels.scatter_sums(kind[0], cut.sum_lanes),
            multiply_box=quantised_products.multiply_rounded(cut.lanes), y_size=kind[1],
        )  # fmt: skip

    def pack(self, w: np.ndarray, w_zero_point: np.ndarray | None) -> RoundedFilter:
        wide = from_zero_point(w, w_zero_point, np.int32)
        taps = [a.outputs > 1 for a in (self.cut.rows, self.cut.columns)]
        points = transforms.float_filter_points(phase_filters(wide, self.cut), self._m, taps[0], taps[1])
        u = self._packed(points)
        return RoundedFilter(Packed(u, self._address(u)), wide.reshape(len(w), -1).sum(1, dtype=np.int32))

    def _packed(self, points: np.ndarray) -> np.ndarray:
        """The filter as `quantised_products` reads it, of (point, phase, K, C/groups, depth tap)."""
        cut, groups = self.cut, self.problem.groups
        largest = np.abs(points).max((1, 3, 4), initial=0)  # (point, K)
        largest[largest == 0] = 1
        step = largest / np.float32(quantised_products.LEVELS)
        words = packed_words(np.rint(points / step[:, None, :, None, None]).astype(np.int8), cut)
        panels, depth = (groups, cut.points, cut.panels), self.problem.as_3d.kernel[0]
        words = words.reshape(*panels, depth, -1, cut.panel, 4)
        begin = -quantised_products.MIDDLE * words.sum((4, 6), dtype=np.int32)  # (..., depth, filter)
        scales = np.zeros((groups, cut.points, cut.panels * cut.panel), np.float32)
        by_group = step.reshape(cut.points, groups, -1).transpose(1, 0, 2)
        scales[..., : by_group.shape[2]] = by_group / (1 << self.shift)
        taps = np.concatenate([words.reshape(*panels, depth, -1).view(np.int32), begin], -1)
        parts = [taps.reshape(*panels, -1), scales.reshape(*panels, -1).view(np.int32)]
        whole = np.concatenate(parts, -1)
        u = aligned_zeros(whole.size, np.int32)
        u[:] = whole.ravel()
        return u

    def transformed(self, w: IntegerFilter, workspace: Any) -> tuple[Packed, np.ndarray]:
        if (levels := self._levels.get(w.pad)) is None:
            levels = transforms.level_points(self._m, self.cut.dims, self.middle(w.pad))
            self._levels[w.pad] = levels
        workspace.arguments.offsets = self._address(levels)
        # x - zero point is what is multiplied, which `w.offset` takes for x alone
        return w.packed.u, w.pad * w.packed.sums


# --- algorithm -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class WinogradInt8(BoxAlgorithm):
    """F(m, 3) in one or both dimensions of a plane, in 8 bits."""

    family: ClassVar[str] = "cpu.winograd.int8"
    dtypes: ClassVar[tuple[str, ...]] = ("int8", "uint8")
    approximates: ClassVar[bool] = True

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := super().why_not(problem):
            return reason
        found = transformed_by(problem, R)
        if isinstance(found, str):
            return found
        if problem.reduction > MOST:
            return f"tells sums of up to {MOST} products; these are of {problem.reduction}"
        if not sums_words():
            return "the processor does not have avx512vnni or avxvnni"
        return None

    def error_bound(self, problem: ConvProblem) -> float:
        """Measured: of normal, uniform and smooth data, and of the limits of types.

        Of data whose channels differ by powers of ten, the small ones are rounded by the scale of the large,
        and errors are up to three times as large.
        """
        if problem.is_empty:
            return 2 * problem.eps
        cut = self._schedule(problem)
        growth = amplification(self.m, R, transforms.POINTS[self.m]) ** cut.dims
        # standard deviations that the largest of so many normal numbers is away, about
        largest = math.sqrt(2 * math.log(2 * cut.taps))
        rounding = math.sqrt(2 / 12) * largest / quantised_products.LEVELS  # of both factors, of a product
        last = 1 / 255 if problem.y_dtype in INTEGERS else 0.0  # a step of y
        return MEASURED * growth * rounding * room_for_few(problem) + last

    def plan(self, problem: ConvProblem) -> Plan:
        return WinogradInt8Plan(problem, self, self._schedule(problem))

    def _schedule(self, problem: ConvProblem) -> ByteBoxSchedule:
        return byte_schedule(problem, self.m, jit.thread_count())


ALGORITHMS = (WinogradInt8(2), WinogradInt8(4))
