"""im2col and GEMM on the GPU: explicit patches, multiplied by cuBLAS.

The inputs of each output pixel are written out as a column, so that the convolution of a group is one GEMM.
The matrix of patches is R*S times as large as x, and goes through memory twice; several passes keep it within
a limit. 1x1 kernels of stride 1 need no patches, as x is the matrix. Wins on these, in strict float32;
elsewhere it is the baseline that most libraries began with.

Source: Chellapilla, Puri and Simard 2006; Jia, "Learning semantic image representations", 2014 (Caffe).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

import numpy as np

from convalgos.core.algorithm import error_of_sums
from convalgos.core.epilogue import finish
from convalgos.core.problem import ConvProblem
from convalgos.gpu.compile.module import ELEMENTS, Build
from convalgos.gpu.device import current
from convalgos.gpu.device.machine import GpuMachine
from convalgos.gpu.gemm.tap_table import tap_table
from convalgos.gpu.launch.algorithm import GpuAlgorithm
from convalgos.gpu.launch.grid import COUNTED, NO_BIAS, ceil_div, waves
from convalgos.gpu.launch.kernel_records import DIVISOR, record_of
from convalgos.gpu.launch.plan import PASS_BYTES, GpuPlan

THREADS = 256  # of a block, as in im2col.cu
ITEMS = 8  # elements of the patches of a thread
CUBLAS = "it multiplies by cuBLAS, which CuPy keeps out of graphs"
# Fitted to batched products of cuBLAS on an H200: what they reach of the peak in tiles of 128 by this, what
# start and end take (rows of the common side, and shares of a wave of tiles), and seconds in which CuPy
# starts a product.
PRODUCTS = {128: 0.86, 64: 0.78, 32: 0.64}
PRODUCT_ROWS = 20
PRODUCT_WAVES = 0.5
PRODUCT_CALL = 35e-6

# --- shapes ----------------------------------------------------------------------------------

# `Params` of im2col.cu.
IM2COL_PARAMS = np.dtype(
    [
        *((n, DIVISOR) for n in ("columns", "rows", "depth", "fastest", "slowest", "count", "filters")),
        *((name, np.int32) for name in ("first", "taps", "threads", "spare")),
    ]
)


def is_product(problem: ConvProblem) -> bool:
    """Whether x itself is the matrix of patches."""
    return problem.is_plain_product and problem.groups == 1


def pixels_of_a_pass(problem: ConvProblem) -> int:
    """As many as fit PASS_BYTES, with a row of the product for each."""
    row = problem.itemsize * (problem.gemm_k * problem.groups + problem.K)
    return min(problem.gemm_m, max(1, PASS_BYTES // row))


def sides(problem: ConvProblem, count: int) -> tuple[int, int]:
    """Threads along the two sides of the patches of so many pixels, the fastest in memory first."""
    if problem.layout == "channels_last":
        return problem.gemm_k, ceil_div(count, ITEMS)
    return count, ceil_div(problem.gemm_k, ITEMS)


def im2col_build(dtype: str, layout: str) -> Build:
    return Build.of("im2col.cu", element_t=ELEMENTS[dtype], CHANNELS_LAST=int(layout == "channels_last"))


# --- the figures for the selector --------------------------------------------------------------


def multiply_seconds(matrices: int, m: int, n: int, k: int, dtype: str, machine: GpuMachine) -> float:
    """Seconds of `matrices` products (m, k) @ (k, n) by cuBLAS, in tiles that all multiprocessors share."""
    rate = machine.exact_peak(dtype) / machine.multiprocessors
    side = 128 if m > 64 else 64

    def seconds(width: int) -> float:
        tiles = matrices * ceil_div(m, side) * ceil_div(n, width)
        tile = 2 * side * width * (k + PRODUCT_ROWS) / (rate * PRODUCTS[width])
        return (waves(tiles, machine) + PRODUCT_WAVES) * tile

    return max(PRODUCT_CALL, min(map(seconds, PRODUCTS)))


@dataclass(frozen=True)
class Im2col(GpuAlgorithm):
    family: ClassVar[str] = "gpu.im2col"
    exchanges: ClassVar[bool] = True
    equal_bits: ClassVar[bool] = False  # cuBLAS does not promise it
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "float64")

    def builds(self) -> Iterable[Build]:
        for dtype, layout in product(self.dtypes, ("channels_first", "channels_last")):
            yield im2col_build(dtype, layout)

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := super().why_not(problem) or current().lacks("cublas"):
            return reason
        if os.environ.get("CUPY_TF32", "0") not in ("", "0"):
            return "multiplies through CuPy, which CUPY_TF32 tells to round to TF32"
        if problem.is_empty or is_product(problem):
            return None
        count = pixels_of_a_pass(problem)
        most = max(math.prod(sides(problem, count)) * problem.groups, count * problem.K)
        return "needs more threads than a launch may have" if most + THREADS >= COUNTED else None

    def cost(self, problem: ConvProblem, machine: GpuMachine) -> float:
        p = problem
        multiply = multiply_seconds(p.groups, p.gemm_n, p.gemm_m, p.gemm_k, p.dtype, machine)
        if is_product(p):
            return max(multiply, machine.stream(p.bytes)) + 2 * machine.launch + machine.stream(p.y_bytes)
        passes = ceil_div(p.gemm_m, pixels_of_a_pass(p))
        patches = p.itemsize * p.gemm_m * p.gemm_k * p.groups
        footprint = patches / passes
        moved = machine.stream(p.x_bytes + 2 * patches, footprint) + machine.stream(3 * p.y_bytes, footprint)
        return multiply + moved + 3 * passes * machine.launch

    def workspace_bytes(self, problem: ConvProblem) -> int:
        if problem.is_empty or is_product(problem):
            return 0
        row = problem.itemsize * (problem.gemm_k * problem.groups + problem.K)
        return row * pixels_of_a_pass(problem)

    def error_bound(self, problem: ConvProblem) -> float:
        return error_of_sums(problem)

    def plan(self, problem: ConvProblem) -> GpuPlan:
        return ProductPlan(problem, self) if is_product(problem) else PatchPlan(problem, self)


# --- the plan ----------------------------------------------------------------------------------


class ProductPlan(GpuPlan):
    """1x1: y = w @ x for every image, or x @ w for all pixels."""

    uncapturable = CUBLAS

    def prepare_filter(self, w: Any) -> Any:
        """(K, C), or channels last (C, K)."""
        w = w.reshape(w.shape[:2])
        return self.device.xp.array(w.T if self.problem.layout == "channels_last" else w, order="C")

    def run(self, x: Any, w: Any, bias: Any, activation: str | None, y: Any, workspace: Any) -> None:
        p = self.problem
        if p.layout == "channels_last":
            self.device.xp.matmul(x.reshape(-1, p.C), w, out=y.reshape(-1, p.K))
        else:
            self.device.xp.matmul(w, x.reshape(p.N, p.C, -1), out=y.reshape(p.N, p.K, -1))
        finish(y, bias, activation, p)


class PatchPlan(GpuPlan):
    uncapturable = CUBLAS

    def __init__(self, problem: ConvProblem, algorithm: Im2col):
        super().__init__(problem, algorithm, algorithm.workspace_bytes(problem))
        p, module = problem, im2col_build(problem.dtype, problem.layout)
        self._last = p.layout == "channels_last"
        self._taps = self.device.table(tap_table(p))
        most, (depth, rows, columns) = pixels_of_a_pass(p), p.as_3d.spatial_out
        # (pixels, params, kernels) of each pass; there may be tens of thousands, which share their kernels.
        self._passes, kernels = [], {}
        for first in range(0, p.gemm_m, most):
            count = min(most, p.gemm_m - first)
            fastest, slowest = sides(p, count)
            threads = fastest * slowest * p.groups
            params = {
                **{"columns": columns, "rows": rows, "depth": depth, "fastest": fastest, "slowest": slowest},
                **{"count": count, "filters": p.gemm_n, "first": first, "taps": p.gemm_k, "threads": threads},
            }
            if count not in kernels:
                patches = self.launch(module, "patches", (ceil_div(threads, THREADS),), THREADS)
                output = self.launch(module, "output", (ceil_div(count * p.K, THREADS),), THREADS)
                kernels[count] = patches, output
            self._passes.append((count, self.by_value(record_of(IM2COL_PARAMS, params)), kernels[count]))

    def prepare_filter(self, w: Any) -> Any:
        """(groups, K/groups, taps), or channels last (groups, taps, K/groups); taps as in the table."""
        p = self.problem
        w = w.reshape(p.groups, p.gemm_n, p.w_shape[1], -1)  # (groups, K/groups, C/groups, T*R*S)
        w = w.transpose(0, 3, 2, 1).reshape(p.groups, p.gemm_k, p.gemm_n) if self._last else w
        return self.device.xp.array(w.reshape(p.groups, w.shape[1], -1), order="C")

    def run(self, x: Any, w: Any, bias: Any, activation: str | None, y: Any, workspace: Any) -> None:
        p, xp = self.problem, self.device.xp
        bias, conv = NO_BIAS if bias is None else bias, self.conv[activation is not None]
        scratch = workspace.view(y.dtype)
        for count, params, (patches, output) in self._passes:
            taps, sums = count * p.gemm_k * p.groups, count * p.K
            matrix, result = scratch[:taps], scratch[taps : taps + sums]
            patches(x, matrix, self._taps, conv, params)
            if self._last:
                matrix = matrix.reshape(p.groups, count, p.gemm_k)
                xp.matmul(matrix, w, out=result.reshape(p.groups, count, p.gemm_n))
            else:
                matrix = matrix.reshape(p.groups, p.gemm_k, count)
                xp.matmul(w, matrix, out=result.reshape(p.groups, p.gemm_n, count))
            output(result, bias, y, conv, params)


ALGORITHMS = (Im2col(),)
