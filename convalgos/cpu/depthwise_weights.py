"""The gradient of depthwise filters: each tap is a dot product of dy with x, shifted.

A block of x is copied with its border, strides as phases, so that every tap meets dy at an offset of its
own, whatever row it is; then some taps at a time are summed over all rows of dy. Where maps are small or
channels lie last, vectors are channels, and maps with channels first are brought into that order; otherwise
vectors are neighbours in a row. Each channel is summed by one thread over all images in their order: the bits
do not depend on how many there are. Wins wherever there is one input channel for each filter.

Source: the definition; planes with a border as in Chellapilla et al. 2006, section 3, for one channel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from convalgos.core.algorithm import Algorithm, error_of_sums
from convalgos.core.boundaries import BOUNDARIES, fills_alike
from convalgos.core.machine import Machine
from convalgos.core.plan import Plan
from convalgos.core.problem import ConvProblem
from convalgos.cpu.dwconv.padded_planes import padded_planes
from convalgos.cpu.dwconv.plane_copies import (
    DEPTHWISE_WEIGHTS_FIELDS,
    border_pixels,
    border_rows,
    border_transposed,
    source_tables,
)
from convalgos.cpu.dwconv.weight_kernels import TAP_TILE, correlate_planes, correlate_taps, sum_lanes
from convalgos.cpu.layout.channel_vectors import gather, place
from convalgos.cpu.layout.strided_rows import MOST_STRIDE
from convalgos.cpu.layout.strides import map_strides
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import CALL, KernelPlan
from convalgos.cpu.vectors import simd

MEMORY = 0.8  # of the time in which x and dy are moved; an estimate for Zen 5

# --- plan ------------------------------------------------------------------------------------


class DepthwiseWeightsPlan(KernelPlan):
    reads_filter = True

    def __init__(self, problem: ConvProblem, algorithm: DepthwiseWeights):
        cut = padded_planes(problem)
        p = cut.problem
        size, lanes = p.itemsize, simd.lanes(p.itemsize)
        tasks = min(jit.thread_count(), cut.units)
        taps = math.prod(p.kernel)
        slices, rows, pitch = cut.sizes
        down, across = cut.offsets()
        kernels = [correlate_taps(size, lanes, len(r), len(c)) for r, c in cut.tap_tiles]
        starts = [(r.start, c.start) for r, c in cut.tap_tiles]
        tiles = np.array([(k, *at) for k, at in zip(kernels, starts, strict=True)], TAP_TILE)
        in_phases = p.stride[2] if p.stride[2] <= MOST_STRIDE else 0
        last = p.layout == "channels_last"
        has_border = 0 if p.is_zero_padded else 1
        if not cut.by_channel:
            border = border_rows(size, lanes, in_phases, has_border)
        else:
            border = (border_pixels if last else border_transposed)(size, lanes, has_border)
        tables = source_tables(cut)
        values: dict[str, int | np.ndarray] = {
            "size": size, "lanes": lanes, "images": p.N, "channels": p.C, "tasks": tasks, "units": cut.units,
            "unit": cut.lanes, "together": cut.together,
            "multiplier": p.gemm_n, "taps": taps, "row_taps": p.kernel[2],
            "tiles": tiles, "tap_tiles": len(tiles), "down": down, "across": across,
            "slices": slices, "rows": rows, "pitch": pitch, "plane": cut.plane, "planes": cut.planes,
            "sums": cut.sums, "scratch_stride": cut.task_bytes,
            "by_channel": int(cut.by_channel), "places": cut.places() if cut.is_gathered else 0,
            "border_rows": border, "fetch_x": cut.fetch[0], "fetch_y": cut.fetch[1],
            "place_sums": place(size, lanes) if cut.by_channel else sum_lanes(size, lanes),
            "gather": gather(size, lanes) if cut.is_gathered else 0,
            "end_w": p.spatial[2] + p.padding[2][1], "fill": np.full(1, p.fill_value, p.dtype),
        }  # fmt: skip
        for axis, n, block, blocks in zip("opq", p.spatial_out, cut.block, cut.blocks, strict=True):
            values |= {axis: n, f"block_{axis}": block, f"blocks_{axis}": blocks}
        values |= dict(zip(("depth", "height", "width"), p.spatial, strict=True))
        for axis, stride, (low, _), table in zip("dhw", p.stride, p.padding, tables, strict=True):
            values |= {f"stride_{axis}": stride, f"pad_{axis}": low}
            values |= {f"sources_{axis}": table.ctypes.data + low * table.itemsize}
        self._sources = tables
        (x_d, x_h, x_w), (o, rows_out, q) = p.spatial, p.spatial_out
        x_strides = map_strides(p.layout, p.C, (x_d, x_h, x_w))
        values |= dict(zip(("x_n", "x_c", "x_d", "x_h", "x_w"), x_strides, strict=True))
        y_n, y_k, *y_strides = map_strides(p.layout, p.K, (o, rows_out, q))
        if cut.is_gathered:  # dy is read where its pixels are vectors
            y_strides = [cut.lanes * step for step in y_strides]
        values |= dict(zip(("y_n", "y_k", "y_o", "y_p", "y_q"), (y_n, y_k, *y_strides), strict=True))
        values["y_step"] = y_strides[-1] if cut.by_channel else lanes
        steps = [(correlate_planes(), tasks)]
        super().__init__(problem, algorithm, DEPTHWISE_WEIGHTS_FIELDS, values, steps, tasks * cut.task_bytes)

    def pack_filter(self, w: np.ndarray) -> np.ndarray:
        """dy itself."""
        return w


# --- the figures for the selector --------------------------------------------------------------


@dataclass(frozen=True)
class DepthwiseWeights(Algorithm):
    family: ClassVar[str] = "cpu.depthwise"
    directions: ClassVar[tuple[str, ...]] = ("backward_weights",)
    spreads_nan: ClassVar[bool] = True  # of x, to taps that do not meet it: by zeros instead of parts of dy
    boundaries: ClassVar[tuple[str, ...]] = BOUNDARIES

    @property
    def variant(self) -> str:
        return "weights"

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := super().why_not(problem):
            return reason
        if problem.w_shape[1] != 1:
            return f"needs one input channel in each group, but there are {problem.w_shape[1]}"
        if problem.layout == "channels_last" and problem.gemm_n != 1:
            return f"needs one filter in each group channels last, but there are {problem.gemm_n}"
        return None

    def knows_border(self, problem: ConvProblem) -> bool:
        return fills_alike(problem)

    def cost(self, problem: ConvProblem, machine: Machine) -> float:
        cut = padded_planes(problem)
        p, lanes = cut.problem, simd.lanes(problem.itemsize)
        seconds = (
            cut.imbalance(machine.threads) * cut.cycles * 4 * lanes / machine.peak(p.dtype)
        )  # a cycle is two vectors of sums
        return CALL + machine.launch + seconds + MEMORY * machine.stream(p.x_bytes + p.y_bytes)

    def prepare_cost(self, problem: ConvProblem, machine: Machine) -> float:
        return 1e-9  # dy is taken as it is

    def workspace_bytes(self, problem: ConvProblem) -> int:
        if problem.is_empty:
            return 0
        cut = padded_planes(problem)
        return min(jit.thread_count(), cut.units) * cut.task_bytes

    def error_bound(self, problem: ConvProblem) -> float:
        return error_of_sums(problem)

    def plan(self, problem: ConvProblem) -> Plan:
        return DepthwiseWeightsPlan(problem, self)


ALGORITHMS = (DepthwiseWeights(),)
