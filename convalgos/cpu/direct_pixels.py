"""Direct convolution, vectorised along rows of pixels instead of filters.

A tile of filters by vectors of pixels is summed in registers: y[filter][pixels] = sum_tap w[filter][tap] *
x[pixels + offset[tap]]. The input of a block is copied once, with its zero border and split into the phases
of the stride (`layout.strided_rows`): in scratch every tap of a vector of pixels is a vector. The sums lie as
channels_first wants them, and nothing is transposed, which with few taps takes as long as the sums. Wins on
first layers and 1x1 of few channels; `cpu.direct` wins on small maps and serves channels_last.

Source: the register tile of Goto and van de Geijn, "Anatomy of high-performance matrix multiplication"
(2008), over input rows in place of a packed matrix.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from convalgos.core.algorithm import Algorithm, error_of_sums
from convalgos.core.element_types import HALF_DTYPES
from convalgos.core.machine import Machine
from convalgos.core.plan import Plan
from convalgos.core.prepared_filter import FilterForm
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm import row_panels
from convalgos.cpu.gemm.row_blocking import row_blocking
from convalgos.cpu.gemm.row_cost import least_row_seconds, row_seconds
from convalgos.cpu.gemm.row_plan import PixelRowsPlan
from convalgos.cpu.layout import strided_rows
from convalgos.cpu.layout.copied_borders import COPIED_BORDERS
from convalgos.cpu.runtime import half
from convalgos.cpu.runtime.half import in_float32
from convalgos.cpu.runtime.threads import SingleThreaded, plan_threads

# --- plan ------------------------------------------------------------------------------------


class DirectPixelsPlan(PixelRowsPlan):
    finishes = True

    def filter_form(self) -> FilterForm:
        return FilterForm.of(self.problem, self._cut.tiles)

    def pack_filter(self, w: np.ndarray) -> np.ndarray:
        """(groups, tiles, taps, filters of a tile)."""
        p = self._cut.problem
        if w.itemsize == 2:
            wide = np.empty(w.shape, np.float32)
            half.convert(w, wide)
            w = wide
        return row_panels.pack_rows(w, p.groups, p.gemm_n, p.gemm_k, self._cut.tiles)


# --- the figures for the selector --------------------------------------------------------------


@dataclass(frozen=True)
class DirectPixels(SingleThreaded, Algorithm):
    family: ClassVar[str] = "cpu.direct"
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "float64", *HALF_DTYPES)

    @property
    def variant(self) -> str:
        return "pixels"

    def knows_border(self, problem: ConvProblem) -> bool:
        return problem.itemsize > 2 and set(COPIED_BORDERS).issuperset(problem.boundary)

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := super().why_not(problem):
            return reason
        if problem.layout != "channels_first":
            return "takes vectors along rows of channels_first maps; cpu.direct serves channels_last"
        return None

    def why_not_on_maps(self, problem: ConvProblem) -> str | None:
        return None if problem.is_zero_padded else self.why_not(problem)

    def takes_halves(self, problem: ConvProblem) -> bool:
        split = problem.stride[-1] <= strided_rows.MOST_STRIDE
        return split and super().takes_halves(problem) and half.why_not(problem.dtype) is None

    def cost(self, problem: ConvProblem, machine: Machine) -> float:
        return row_seconds(problem, machine)

    def least(self, problem: ConvProblem, machine: Machine) -> float:
        return math.inf if problem.layout != "channels_first" else least_row_seconds(problem, machine)

    def workspace_bytes(self, problem: ConvProblem) -> int:
        return 0 if problem.is_empty else plan_threads() * row_blocking(in_float32(problem)).scratch_bytes

    def error_bound(self, problem: ConvProblem) -> float:
        return error_of_sums(problem)

    def plan(self, problem: ConvProblem) -> Plan:
        return DirectPixelsPlan(problem, self)


ALGORITHMS = (DirectPixels(),)
