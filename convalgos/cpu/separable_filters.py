"""Depthwise convolution by filters that are sums of outer products: lines along rows, then along columns.

A filter of r x s elements and rank R costs R (r + s) products for each output in the place of r s. Both
passes are over a ring of rows in the second cache: each row of x is padded, filtered along itself once for
each term, and kept until the last row of outputs that sees it is summed; what lies beyond the borders is no
copy of the map. In 3-D there are such rings for each plane under the window: the outer products are those of
the matrix that has a row for each place of a plane and column. Wins on large filters of few terms: Gaussians,
boxes, derivatives, and others that `ca.filter_pattern` finds; and, where an error is allowed, on those that
are nearly such sums.

Source: Treitel and Shanks 1971, "The design of multistage separable planar filters"; in bands as in Halide
(Ragan-Kelley et al. 2013).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from convalgos.core.algorithm import Algorithm, error_of_sums, room_for_few
from convalgos.core.axis_windows import AxisWindow, windows_of_problem
from convalgos.core.boundaries import BOUNDARIES
from convalgos.core.filter_patterns import KERNEL_PATTERNS, left_out_of, terms_of
from convalgos.core.machine import Machine
from convalgos.core.plan import Plan, numpy_dtype
from convalgos.core.problem import ConvProblem
from convalgos.cpu.filtering.line_elements import KINDS, load_line
from convalgos.cpu.filtering.outer_products import outer_products
from convalgos.cpu.filtering.window_cut import WindowCut, source_planes
from convalgos.cpu.filtering.window_kernels import FUSED, LISTED, WINDOW_FIELDS, sum_windows
from convalgos.cpu.runtime.plan import CALL, KernelPlan
from convalgos.cpu.runtime.threads import cached_by_threads
from convalgos.cpu.vectors import simd

ALONG, ACROSS = 0.52, 0.9  # of the peak, reached by sums along rows and across them; Zen 4
LOADED = 8  # elements of a row in a nanosecond, of a thread, to be padded; Zen 4
ROW, UNIT = 5e-8, 2e-6  # seconds to begin a row of a ring, and a run; Zen 4
CHANCE = 2.0  # how much larger the largest of some outputs may be than that of others, of a size in the mean

# --- shapes ----------------------------------------------------------------------------------


@cached_by_threads(256)
def _cut(problem: ConvProblem) -> tuple[WindowCut, int]:
    """(the cut of all planes, planes under a window)."""
    p = problem
    *leading, rows, columns = windows_of_problem(p)
    plane = rows.size * columns.size * p.itemsize
    planes = source_planes([AxisWindow(p.N * p.C), *leading], plane)  # (N C windows, planes that one spans)
    if leading:
        planes = planes.reshape(p.N * p.C, -1, planes.shape[1])
        planes = planes[:, :: p.stride[0], :: p.dilation[0]]  # (N C, outputs, planes of a window)
    under = planes.shape[-1]
    planes = np.repeat(planes.reshape(p.N * p.C, -1, under), p.K // p.C, axis=0)  # (N K, outputs, ...)
    rings = np.repeat(planes.reshape(-1, under), terms_of(p.pattern) or 1, axis=1)
    taps = np.argwhere(np.ones((rings.shape[1], p.kernel[-2], 1))) * (1, p.dilation[-2], 1)
    steps = p.stride[-2], p.stride[-1]
    listed = [np.ascontiguousarray(column) for column in taps.T]
    cut = WindowCut(
        rings, rows, columns, p.itemsize, listed, p.kernel[-1], p.dilation[-2] == 1, steps,
        p.dilation[-1],
    )  # fmt: skip
    return cut, under


# --- plan ------------------------------------------------------------------------------------


class OuterProductsPlan(KernelPlan):
    finishes = True

    def __init__(self, problem: ConvProblem, algorithm: Separable):
        p = problem
        self._cut, self._under = _cut(p)
        cut, size = self._cut, p.itemsize
        window, along = cut.rings * p.kernel[-2], cut.rings * cut.along  # weights of a filter
        values = cut.values(FUSED, size, size, p.fill_value) | {
            "w_listed": window * size, "w_along": 2 * window * size, "w_step": (2 * window + along) * size,
            "load": load_line(KINDS.index(p.dtype), size, simd.lanes(size)), "store": 0,
            "filters": np.tile(np.repeat(np.arange(p.K), cut.outer // (p.N * p.K)), p.N),
        }  # fmt: skip
        steps = [(sum_windows(size), cut.tasks)]
        super().__init__(problem, algorithm, WINDOW_FIELDS, values, steps, cut.scratch * cut.tasks)

    def pack_filter(self, w: np.ndarray) -> np.ndarray:
        """(K, weights across rows, the same again, weights along rows), of each plane and term."""
        planes, rows, columns = self._under, self.problem.kernel[-2], self._cut.along
        terms = self._cut.rings // planes
        left_out = left_out_of(self.problem.pattern)
        across, along = outer_products(w.reshape(len(w), -1, columns), terms, left_out)  # (K, terms, ...)
        across = across.reshape(len(w), terms, planes, rows).swapaxes(1, 2)
        along = np.tile(along, (1, planes, 1))  # (K, planes * terms, columns)
        across, along = (a.reshape(len(w), -1) for a in (across, along))
        return np.concatenate([across, across, along], 1).astype(numpy_dtype(self.problem.dtype))


@dataclass(frozen=True)
class Separable(Algorithm):
    family: ClassVar[str] = "cpu.separable"
    patterns: ClassVar[tuple[str, ...]] = KERNEL_PATTERNS[::-1]
    boundaries: ClassVar[tuple[str, ...]] = BOUNDARIES
    casts: ClassVar[bool] = False

    def why_not(self, problem: ConvProblem) -> str | None:
        return super().why_not(problem) or _unsuited(problem)

    def cost(self, problem: ConvProblem, machine: Machine) -> float:
        p = problem
        cut, _ = _cut(p)
        units = cut.outer * -(-p.spatial_out[-1] // cut.width) * -(-p.spatial_out[-2] // cut.row_chunk)
        # that are brought to rings
        rows = units * ((cut.row_chunk - 1) * p.stride[-2] + cut.rows.taps) * cut.rings
        block = LISTED * simd.lanes(p.itemsize)
        width = -(-cut.width // block) * block
        along = 2 * rows * width * cut.along / ALONG
        across = 2 * math.prod(p.y_shape) * cut.rings * p.kernel[-2] / ACROSS
        summed = (along + across) / machine.peak(p.dtype) * machine.threads
        phases = p.stride[-1] if p.stride[-1] == 1 else 2 * p.stride[-1]  # which rows are taken apart into
        loaded = rows * (ROW + width * phases * p.itemsize / (4e9 * LOADED))
        begun = CALL + UNIT + float(machine.launch if cut.tasks > 1 else 0)
        memory = float(machine.stream(p.x_bytes + p.y_bytes, p.bytes))  # half of it shows
        return float(begun + (summed + loaded) / cut.tasks + memory / 2)

    def least(self, problem: ConvProblem, machine: Machine) -> float:
        p = problem
        terms = terms_of(p.pattern)
        if terms is None or _unsuited(p):
            return math.inf
        summed = 2 * terms * (p.kernel[-1] + math.prod(p.kernel[:-1])) * math.prod(p.y_shape)
        memory = float(machine.stream(p.x_bytes + p.y_bytes, p.bytes))
        return CALL + float(summed / machine.peak(p.dtype)) + memory / 2

    def workspace_bytes(self, problem: ConvProblem) -> int:
        if problem.is_empty:
            return 0
        cut, _ = _cut(problem)
        return int(cut.scratch * cut.tasks)

    def error_bound(self, problem: ConvProblem) -> float:
        """Of the sums, and of a filter that its products differ from by a few roundings, and what they leave
        out, whose outputs and those of the filter are largest at places of their own."""
        left_out = CHANCE * left_out_of(problem.pattern) * room_for_few(problem)
        return error_of_sums(problem) * (1 + (terms_of(problem.pattern) or 1)) + left_out

    def plan(self, problem: ConvProblem) -> Plan:
        return OuterProductsPlan(problem, self)


def _unsuited(problem: ConvProblem) -> str | None:
    p = problem
    if p.w_shape[1] != 1:
        return "filters every channel by itself, and here a filter sums over several"
    if p.layout != "channels_first":
        return "reads rows of channels_first maps"
    if p.ndim == 1:
        return "makes lines of windows, and a filter of one dimension is a line"
    return None


ALGORITHMS = (Separable(),)
