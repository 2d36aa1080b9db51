"""im2col + GEMM: the input patches of a block of pixels laid out as a matrix, times the filters.

The baseline that every library has: it turns any convolution into one well-studied product, at the price
of writing each input element once per kernel element. Patches are made for as many pixels at a time as a
quarter of the last cache holds. The product runs through NumPy's BLAS (`blas`), MKL (`mkl`) or our own
micro-kernel (`own`). Pointwise problems need no patches: libraries read x as it lies, and our own kernel does
so as `cpu.direct`.

Source: Chellapilla, Puri, Simard 2006, "High performance convolutional neural networks for document
processing".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from convalgos.core.algorithm import PREPARE_CALL, Algorithm, error_of_sums
from convalgos.core.allocator import aligned_empty, aligned_zeros
from convalgos.core.machine import Machine
from convalgos.core.plan import Plan
from convalgos.core.prepared_filter import FilterForm
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm import dealt_panels, panel_packing, panels
from convalgos.cpu.gemm.patches import (
    IM2COL_FIELDS,
    Patches,
    fill_channels_first,
    fill_channels_last,
    multiply_patches,
    patches,
    sums_bytes,
)
from convalgos.cpu.runtime import jit, mkl
from convalgos.cpu.runtime.array_pass import CompiledPass
from convalgos.cpu.runtime.filter_reads import block_filter_seconds, reading_seconds
from convalgos.cpu.runtime.threads import worth_sharing
from convalgos.cpu.vectors import microkernel, simd

GEMM_EFFICIENCY = {"blas": 0.85, "mkl": 0.8, "own": 0.9}  # of the peak, on large products; Zen 5
GEMM_CALL = {"blas": 6e-6, "mkl": 8e-6, "own": 6e-6}  # seconds of Python and launch around a product
PATCHES = 1.3  # times the sums of `panels`, of patches: more on a Xeon (Granite Rapids), less on Zen 5
COPY_CALL = 2.5e-8  # seconds of a copy of one run of patch elements
TURNING = 5e8  # bytes in a second that NumPy turns of the filters for MKL, channels last; Xeon

# --- plan ------------------------------------------------------------------------------------


class Im2colPlan(CompiledPass, Plan):
    def __init__(self, problem: ConvProblem, algorithm: Im2col):
        super().__init__(problem, algorithm, algorithm.workspace_bytes(problem))
        cut = self._cut = patches(problem)
        p = self._p = cut.problem
        self._gemm = algorithm.gemm
        self._last = p.layout == "channels_last"
        self._turned = self._last and self._gemm == "mkl"  # filters: BLAS reads them as they are
        # Our threads spin for a while after a launch, and would take the cores from NumPy's BLAS, whose
        # threads are others: then one thread makes the patches.
        tasks = self._tasks = 1 if self._gemm == "blas" else jit.thread_count()
        size, lanes = p.itemsize, simd.lanes(p.itemsize)
        rows, self._panels = dealt_panels.panel_tile(p.gemm_n, size)
        self._parallel = worth_sharing(problem)
        self._fill = fill_channels_last() if self._last else fill_channels_first(size)
        out = math.prod(p.spatial_out)
        tap_step = 1 if self._last else cut.row  # of patches
        self._tap_table = microkernel.padded_for_prefetch(np.arange(p.gemm_k, dtype=np.int64) * tap_step)
        self._record = np.zeros(1, IM2COL_FIELDS)
        values = {
            "size": size, "tasks": tasks, "groups": p.groups, "channels": p.w_shape[1], "filters": p.gemm_n,
            "taps": p.gemm_k, "chunk": panels.chunk(p.gemm_k), "tap_table": self._tap_table.ctypes.data,
            "row_pixels": cut.row, "pixel_step": p.groups * p.gemm_k if self._last else 1,
            "group_step": p.gemm_k * tap_step, "rows": rows, "sums_stride": sums_bytes(problem),
            "y_k": 1 if self._last else out, "y_pixel": p.K if self._last else 1,
            "stream": int(panels.streams_panels(p)),
        }  # fmt: skip
        axes = zip("dhw", p.kernel, p.stride, p.dilation, p.padding, strict=True)
        for axis, kernel, stride, dilation, pad in axes:
            values |= {f"kernel_{axis}": kernel, f"stride_{axis}": stride}
            values |= {f"dilation_{axis}": dilation, f"pad_{axis}": pad[0]}
        values |= dict(zip(("depth", "height", "width"), p.spatial, strict=True))
        values |= dict(zip("opq", p.spatial_out, strict=True))
        if self._gemm == "own":
            needed, soon = -(-p.gemm_n // lanes), microkernel.PREFETCH_TAPS
            values |= dealt_panels.panel_kernels(panels.sum_panel, size, rows, needed, self._panels, soon)
            values["store_run"] = panels.store_run(size, lanes)
        for name, value in values.items():
            self._record[name] = value

    def filter_form(self) -> FilterForm:
        return FilterForm.of(self.problem, self._gemm, self._last, self._turned, self._panels)

    def prepare_filter(self, w: np.ndarray) -> np.ndarray:
        p = self._p
        w = w.reshape(p.groups, p.gemm_n, p.w_shape[1], -1)  # (g, K/g, C/g, T*R*S)
        if self._last:
            w = w.swapaxes(2, 3)
        w = w.reshape(p.groups, p.gemm_n, p.gemm_k)  # (g, K/g, taps)
        if self._gemm == "own":
            return panel_packing.packed_panels(w, self._panels)
        return np.array(w.swapaxes(1, 2) if self._turned else w, order="C")  # a copy: the caller owns w

    def new_workspace(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        record = self._record.copy()
        block = aligned_empty(self._cut.elements, self._dtype)
        sums = aligned_empty(self._tasks * sums_bytes(self.problem) if self._gemm == "own" else 0, np.uint8)
        bias = aligned_zeros(self.problem.K + 64, self._dtype)
        record["patches"], record["sums"] = block.ctypes.data, sums.ctypes.data
        return record, block, sums, bias

    def run(
        self,
        x: np.ndarray,
        w: Any,
        bias: np.ndarray | None,
        activation: str | None,
        y: np.ndarray,
        workspace: Any,
    ) -> None:
        record, block, _, padded_bias = workspace
        cut, p = self._cut, self._p
        fields, address = record[0], record.ctypes.data
        padded_bias[: p.K] = 0 if bias is None else bias
        fields["bias"], fields["relu"] = padded_bias.ctypes.data, activation is not None
        fields["w"] = w.ctypes.data
        x = x.reshape(cut.runs, -1)  # (runs, C * spatial), or one run of everything
        # (runs, K, pixels), or (1, pixels, K)
        y = y.reshape(1, -1, p.K) if self._last else y.reshape(p.N, p.K, -1)
        for run in range(cut.runs):
            fields["x"], fields["y"] = x[run].ctypes.data, y[run].ctypes.data
            for first in range(0, cut.run_pixels, cut.pixels):
                count = min(cut.pixels, cut.run_pixels - first)
                fields["first"], fields["pixels"] = first, count
                if cut.needed:
                    jit.launch(self._fill, address, self._tasks, self._parallel)
                if self._gemm == "own":
                    jit.launch(multiply_patches(), address, self._tasks, self._parallel)
                    continue
                source, at = (block, 0) if cut.needed else (x[run], first)
                self._product(source, at, w, y[run], first, count, bias, activation)

    def _product(
        self,
        source: np.ndarray,
        at: int,
        w: np.ndarray,
        y: np.ndarray,
        first: int,
        count: int,
        bias: np.ndarray | None,
        activation: str | None,
    ) -> None:
        """Outputs `first` to `first + count` from patches `at` to `at + count`, through a library's GEMM."""
        p = self._p
        if self._last:
            a = source.reshape(-1, p.groups, p.gemm_k)[at : at + count].swapaxes(0, 1)  # (g, count, taps)
            b = w if self._turned else w.swapaxes(1, 2)  # (g, taps, K/g)
            c = y.reshape(-1, p.groups, p.gemm_n)[first : first + count].swapaxes(0, 1)  # (g, count, K/g)
            bias = None if bias is None else bias.reshape(p.groups, 1, p.gemm_n)
        else:
            a = w  # (g, K/g, taps)
            b = source.reshape(p.groups, p.gemm_k, -1)[:, :, at : at + count]  # (g, taps, count)
            c = y.reshape(p.groups, p.gemm_n, -1)[:, :, first : first + count]  # (g, K/g, count)
            bias = None if bias is None else bias.reshape(p.groups, p.gemm_n, 1)
        if self._gemm == "blas":
            np.matmul(a, b, out=c)
        else:
            mkl.gemm(a, b, c)
        if bias is not None:
            c += bias
        if activation == "relu":
            np.maximum(c, 0, out=c)


def _reading(cut: Patches, machine: Machine) -> float:
    """Seconds to read filters, and patches once for each panel of them, that L2 does not keep."""
    p = cut.problem
    block = cut.pixels * p.gemm_k * p.groups * p.itemsize  # bytes
    passes = dealt_panels.panel_tile(p.gemm_n, p.itemsize)[1]
    read = p.gemm_m * p.gemm_k * p.groups * p.itemsize * passes
    again = reading_seconds(read, block / p.groups / machine.threads, block, machine)
    return again + block_filter_seconds(p, cut.blocks, machine.threads, machine)


def _memory(p: ConvProblem, machine: Machine) -> float:
    """Seconds to read x, and to read and write y."""
    return machine.stream(p.x_bytes + 2 * p.y_bytes, p.x_bytes + p.y_bytes)


@dataclass(frozen=True)
class Im2col(Algorithm):
    family: ClassVar[str] = "cpu.im2col"
    least_prepare: ClassVar[float] = PREPARE_CALL
    exchanges: ClassVar[bool] = True
    gemm: str

    @property
    def variant(self) -> str:
        return self.gemm

    @property
    def equal_bits(self) -> bool:  # type: ignore[override]
        return self.gemm == "own"  # libraries sum what lies at an edge in another order

    @property
    def spins(self) -> bool:
        return self.gemm == "blas"

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := super().why_not(problem):
            return reason
        if self.gemm == "own" and problem.is_plain_product:
            return "a plain product, which cpu.direct computes in the same way"
        return mkl.why_no_mkl() if self.gemm == "mkl" else None

    def cost(self, problem: ConvProblem, machine: Machine) -> float:
        cut = patches(problem)
        p = cut.problem
        made = p.gemm_m * p.gemm_k * p.groups * p.itemsize if cut.needed else 0  # bytes of all patches
        # written, then read by the product, through the last cache; narrow rows cost a copy call each
        copies = made / p.itemsize / max(1, p.w_shape[1] if p.layout == "channels_last" else p.spatial_out[2])
        threads = 1 if self.gemm == "blas" else machine.threads
        filling = (2 * made / machine.cache_bandwidth * machine.threads + copies * COPY_CALL) / threads
        if self.gemm == "own":
            rows, _ = dealt_panels.panel_tile(p.gemm_n, p.itemsize)
            spare = max(1, (rows - 1) / max(1, cut.pixels))  # the smallest tile has so many rows
            product = PATCHES * panels.product_seconds(p, machine) * spare
            product = math.hypot(product, _reading(cut, machine))
            calls = 2 * cut.blocks
        else:
            # narrow products never reach the library's rate
            narrow = min(p.gemm_n, p.gemm_k, cut.pixels)
            rate = machine.peak(p.dtype) * GEMM_EFFICIENCY[self.gemm] * narrow / (narrow + 24)
            filters = reading_seconds(p.w_bytes, p.w_bytes / machine.threads, p.w_bytes, machine)
            product = max(p.flops / rate, filters)  # of few pixels no more than to read them
            calls = cut.blocks * (1 + p.groups)
        return calls * GEMM_CALL[self.gemm] + filling + product + _memory(p, machine)

    def prepare_cost(self, problem: ConvProblem, machine: Machine) -> float:
        turned = self.gemm == "mkl" and problem.layout == "channels_last"
        return super().prepare_cost(problem, machine) + (problem.w_bytes / TURNING if turned else 0.0)

    def least(self, problem: ConvProblem, machine: Machine) -> float:
        # the product, at the full rate of a library, and the bytes that have to move
        if self.gemm == "own":
            if problem.is_plain_product:
                return math.inf
            product = panels.product_seconds(problem, machine)
        else:
            product = problem.flops / (machine.peak(problem.dtype) * GEMM_EFFICIENCY[self.gemm])
        return 2 * GEMM_CALL[self.gemm] + product + _memory(problem, machine)

    def workspace_bytes(self, problem: ConvProblem) -> int:
        if problem.is_empty:
            return 0
        own = jit.thread_count() * sums_bytes(problem) if self.gemm == "own" else 0
        return patches(problem).elements * problem.itemsize + own

    def error_bound(self, problem: ConvProblem) -> float:
        return error_of_sums(problem)

    def plan(self, problem: ConvProblem) -> Plan:
        return Im2colPlan(problem, self)


ALGORITHMS = (Im2col("blas"), Im2col("mkl"), Im2col("own"))
