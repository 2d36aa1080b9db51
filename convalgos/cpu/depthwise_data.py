"""The gradient of the input of a depthwise layer with stride 2, in one pass over dx.

A row of dx holds two phases in turns (`core.backward.polyphase`), and so do the vectors of its sums: nothing
is interleaved, and no phase goes through memory (`backward.upsampled_rows`). A plane takes one call, and all
its rows share the masks of its borders. In channels_last a vector is some channels of a pixel, and pairs of
pixels stay in registers (`backward.upsampled_pixels`). Wins in both layouts; elsewhere phases apart, by
`cpu.depthwise.rows` or `cpu.depthwise.channels`, serve.

dy (N, C, P, Q), w (C, 1, R, S) -> dx (N, C, H, W)

Source: Shi et al. 2016, arXiv:1609.07009, for the phases.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from convalgos.core.algorithm import Algorithm, error_of_sums
from convalgos.core.machine import Machine, vector_bytes
from convalgos.core.plan import Plan
from convalgos.core.prepared_filter import FilterForm
from convalgos.core.problem import ConvProblem
from convalgos.cpu.backward.row_taps import row_taps
from convalgos.cpu.backward.upsampled_pixels import (
    MOST_PAIRS,
    UPSAMPLED_PIXELS,
    blocks_of,
    sum_upsampled_rows,
    taps_by_channels,
)
from convalgos.cpu.backward.upsampled_rows import (
    UPSAMPLED_ARGUMENTS,
    front_of,
    most_displacements,
    pairs_of_taps,
    sum_upsampled_plane,
    sum_upsampled_planes,
)
from convalgos.cpu.runtime.plan import CALL, KernelPlan
from convalgos.cpu.runtime.threads import plan_threads, worth_sharing
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.instructions import LINE

MOST = 4  # displacements of a row, with kernels of up to 7 or 8 taps
# Cycles, Xeon (Sapphire Rapids), 30 layers
STEP = 1.8  # of a displacement of a row of taps, for a vector of dx
ROW = 4.3  # to begin and end a vector
TAP_ROW = 2.2  # to begin a row of taps for it
PLANE = 28.0  # to begin some columns of a plane
# The same of channels_last; 30 layers, right within a seventh in the mean of 30 others
STORE = 5.1  # of a cache line of dx
PRODUCT = {64: 1.33, 32: 1.0, 16: 1.0}  # of a vector of it with a tap, by vector bytes

# --- plan ------------------------------------------------------------------------------------


class DepthwiseDataPlan(KernelPlan):
    strided_batch = True

    def __init__(self, problem: ConvProblem, algorithm: Algorithm):
        p, size, tasks = problem, problem.itemsize, plan_threads()
        self._low = low = p.padding[1][0]
        displacements = most_displacements(p.kernel[1], low)
        pixels, out = math.prod(p.spatial), math.prod(p.spatial_out)
        values: dict[str, int | np.ndarray] = {
            "size": size, "images": p.N, "channels": p.C, "height": p.spatial[0], "width": p.spatial[1],
            "out_width": p.spatial_out[1], "front": front_of(low), "tap_rows": row_taps(p.as_3d, 1),
            "w_c": p.kernel[0] * displacements * 2, "w_row": displacements * 2,
            "x_n": p.K * out, "x_c": out, "y_n": p.C * pixels, "y_c": pixels, "tasks": tasks,
            "sum_plane": sum_upsampled_plane(size, simd.lanes(size), displacements),
        }  # fmt: skip
        super().__init__(
            problem, algorithm, UPSAMPLED_ARGUMENTS, values, [(sum_upsampled_planes(), tasks)], 0
        )

    def filter_form(self) -> FilterForm:
        return FilterForm.of(self.problem, self._low)

    def pack_filter(self, w: np.ndarray) -> np.ndarray:
        return pairs_of_taps(w, self._low)


class DepthwisePixelsPlan(KernelPlan):
    """Of channels_last."""

    strided_batch = True

    def __init__(self, problem: ConvProblem, algorithm: Algorithm):
        p, size, tasks, lanes = problem, problem.itemsize, plan_threads(), simd.lanes(problem.itemsize)
        self._low = low = p.padding[1][0]
        values: dict[str, int | np.ndarray] = {
            "images": p.N, "channels": p.C, "height": p.spatial[0], "width": p.spatial[1],
            "out_width": p.spatial_out[1], "front": front_of(low), "tap_rows": row_taps(p.as_3d, 1),
            "blocks": blocks_of(p.spatial[1]), "vectors": -(-p.C // lanes), "zeros": np.zeros(lanes, p.dtype),
            "x_n": p.K * math.prod(p.spatial_out), "y_n": p.C * math.prod(p.spatial), "tasks": tasks,
        }  # fmt: skip
        displacements = most_displacements(p.kernel[1], low)
        rows = sum_upsampled_rows(size, lanes, displacements, MOST_PAIRS[vector_bytes()])
        super().__init__(problem, algorithm, UPSAMPLED_PIXELS, values, [(rows, tasks)], tasks * lanes * size)

    def filter_form(self) -> FilterForm:
        return FilterForm.of(self.problem, self._low, "channels_last")

    def pack_filter(self, w: np.ndarray) -> np.ndarray:
        return taps_by_channels(w, self._low)


# --- the figures for the selector --------------------------------------------------------------


@dataclass(frozen=True)
class DepthwiseData(Algorithm):
    family: ClassVar[str] = "cpu.depthwise"
    directions: ClassVar[tuple[str, ...]] = ("backward_data",)
    spreads_nan: ClassVar[bool] = True  # of dy, to the other phase, which multiplies it by a zero

    @property
    def variant(self) -> str:
        return "data"

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := super().why_not(problem):
            return reason
        if problem.ndim != 2 or problem.stride != (2, 2) or set(problem.dilation) != {1}:
            return "takes images with stride 2 along both dimensions and no dilation"
        if problem.groups != problem.C or problem.w_shape[1:2] != (1,) or problem.K != problem.C:
            return "needs one input channel and one filter in each group"
        lanes = simd.lanes(problem.itemsize)
        if problem.layout == "channels_last" and lanes > problem.C:
            return f"needs a vector of {lanes} channels in channels_last, and here are {problem.C}"
        if most_displacements(problem.kernel[1], problem.padding[1][0]) > MOST:
            return f"takes up to {MOST} pairs of taps of a row, and here are {problem.kernel[1]} taps"
        return None

    def cost(self, problem: ConvProblem, machine: Machine) -> float:
        p = problem
        cycles = _pixel_cycles(p) if p.layout == "channels_last" else _plane_cycles(p)
        seconds = cycles / machine.cycles * (1 if worth_sharing(p) else machine.threads)
        held = p.x_bytes + p.y_bytes
        stored = p.x_bytes * (2 if held > machine.l3_bytes else 1)  # beyond, a store reads its line first
        return CALL + machine.launch + math.hypot(seconds, machine.stream(stored + p.y_bytes, held))

    def least(self, problem: ConvProblem, machine: Machine) -> float:
        if problem.is_empty:
            return 0.0
        return CALL + machine.launch + problem.flops / machine.peak(problem.dtype)

    def prepare_cost(self, problem: ConvProblem, machine: Machine) -> float:
        return 1e-5 + 4 * problem.w_bytes / machine.cache_bandwidth

    def error_bound(self, problem: ConvProblem) -> float:
        return error_of_sums(problem)

    def plan(self, problem: ConvProblem) -> Plan:
        if problem.layout == "channels_last":
            return DepthwisePixelsPlan(problem, self)
        return DepthwiseDataPlan(problem, self)


def _plane_cycles(p: ConvProblem) -> float:
    """Of vectors along rows."""
    vectors = -(-p.spatial[1] // simd.lanes(p.itemsize))
    tap_rows = p.kernel[0] / 2  # of a row of dx
    row = ROW + tap_rows * (TAP_ROW + STEP * most_displacements(p.kernel[1], p.padding[1][0]))
    return p.N * p.C * vectors * (PLANE + p.spatial[0] * row)


def _pixel_cycles(p: ConvProblem) -> float:
    """Of vectors of channels."""
    pixels = p.spatial[0] * blocks_of(p.spatial[1]) * 2 * MOST_PAIRS[vector_bytes()]
    products = p.kernel[0] / 2 * most_displacements(p.kernel[1], p.padding[1][0])
    pixel = STORE * vector_bytes() / LINE + PRODUCT[vector_bytes()] * products
    return p.N * -(-p.C // simd.lanes(p.itemsize)) * pixels * pixel


ALGORITHMS = (DepthwiseData(),)
