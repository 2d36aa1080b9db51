"""Convolution through the FFT: blocks of the map transformed, multiplied by the filter's spectrum, and back.

y = IFFT(sum_c FFT(x_c) * conj(FFT(w_c))): the work hardly depends on the size of the kernel, which makes it
the way for long filters with few channels (long causal depthwise, FIR filters, large images), where nothing
else comes near. `fftw` and `mkl` transform whole maps; `overlap` cuts them into blocks that overlap by the
kernel (overlap-save), which keeps the transforms in the cache and lets threads share one map.

A stride s splits the map into s phases that are summed like channels, so that nothing is computed only to be
thrown away; a dilation puts zeros between the taps, before their spectrum is taken.

Sources: Stockham 1966, "High-speed convolution and correlation"; Vasilache et al. 2015, "Fast convolutional
nets with fbfft", arXiv:1412.7580.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from convalgos.core.algorithm import Algorithm, room_for_few
from convalgos.core.allocator import aligned_empty, aligned_zeros
from convalgos.core.machine import Machine
from convalgos.core.plan import Plan
from convalgos.core.problem import ConvProblem
from convalgos.cpu.layout.strides import map_strides
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import KernelPlan
from convalgos.cpu.spectral import cost as spectral_cost
from convalgos.cpu.spectral import engines
from convalgos.cpu.spectral import kernels as spectral_kernels
from convalgos.cpu.spectral.blocking import FftBlocking, chunk_schedule
from convalgos.cpu.vectors import simd

SPECTRUM_CALL = 1e-4  # seconds to transform any filter,
SPECTRUM_RATE = 4e9  # and bytes of its spectrum in a second; Zen 5
FILTER_CHUNK = 16 << 20  # bytes of planes that a filter's spectrum is made of at a time

# --- plan ------------------------------------------------------------------------------------


class FftPlan(KernelPlan):
    finishes = strided_batch = True

    def __init__(self, problem: ConvProblem, algorithm: Fft):
        cut = algorithm.cut(problem)
        p, dealt = cut.problem, chunk_schedule(cut)
        size, lanes = p.itemsize, simd.lanes(p.itemsize)
        self._cut = cut
        # kept, as its plans must outlive this one
        self._transform = engines.plan_transform(algorithm.library, p.dtype, cut.lengths)
        values = self._transform_values() | {
            "chunk": 0, "chunk_groups": dealt.groups, "chunk_blocks": dealt.blocks, "groups": p.groups,
            "channels": p.w_shape[1], "filters": p.gemm_n, "panels": cut.panels, "panel_filters": cut.tile[0],
            "run": dealt.run, "run_panels": dealt.panels, "part": dealt.part, "blocks": cut.blocks,
            "block_pair": cut.tile[1], "phases": len(cut.phases),
            "phase_table": np.array(cut.phases, np.int64), "tasks": dealt.tasks, "vectors": cut.vectors,
            "vectors_part": dealt.vectors, "lane_bytes": dealt.lane_bytes,
            "spectra_bytes": dealt.spectra_bytes, "chunks": dealt.chunks, "task_bytes": dealt.task_bytes,
            "forward": spectral_kernels.forward_chunk(size, lanes),
            "backward": spectral_kernels.backward_chunk(size, lanes),
            "inverse": self._transform.inverse,
            "execute_inverse": self._transform.execute_inverse,
            "multiply": spectral_kernels.multiply_planes(size, lanes, *cut.tile),
        }  # fmt: skip
        for name, a in zip("dhw", cut.axes, strict=True):
            values |= {f"size_{name}": a.size, f"out_{name}": a.out, f"stride_{name}": a.stride}
            values |= {f"low_{name}": a.low, f"step_{name}": a.step, f"blocks_{name}": a.blocks}
        x_strides = map_strides(p.layout, p.C, p.spatial)
        y_strides = map_strides(p.layout, p.K, p.spatial_out)
        values |= zip(("x_n", "x_c", "x_d", "x_h", "x_w"), x_strides, strict=True)
        values |= zip(("y_n", "y_k", "y_d", "y_h", "y_w"), y_strides, strict=True)
        kernels = [spectral_kernels.run_chunks()] if dealt.alone else [values["forward"], values["backward"]]
        steps = [(kernel, dealt.tasks) for kernel in kernels]
        record = spectral_kernels.CHUNK_ARGUMENTS
        passes = [{"chunk": chunk} for chunk in range(dealt.chunks)]
        if dealt.alone or dealt.chunks == 1:
            passes = [{}]
        super().__init__(problem, algorithm, record, values, steps, dealt.workspace_bytes, passes)

    def pack_filter(self, w: np.ndarray) -> np.ndarray:
        """(groups * panels, vectors, channels in phases, filters of a panel, re and im, lanes).

        Conjugated, for a correlation, and divided by the number of elements, which FFTW does not do.
        """
        cut, p = self._cut, self._cut.problem
        size, lanes, filters = p.itemsize, simd.lanes(p.itemsize), cut.tile[0]
        planes = planes_of_filter(cut, w.reshape(p.w_shape))  # (groups * panels, filters, channels, *taps)
        packed = aligned_empty(cut.filter_bytes // size, w.dtype).reshape(len(planes), -1)
        panel_bytes = filters * cut.channels * cut.plane_bytes
        at_once = min(len(planes), max(1, FILTER_CHUNK // panel_bytes))  # panels
        scratch = aligned_zeros(at_once * panel_bytes, np.uint8)
        scale = np.array([1 / math.prod(cut.lengths)], w.dtype)
        tasks = jit.thread_count()
        record = np.zeros(1, spectral_kernels.CHUNK_ARGUMENTS)
        values = self._transform_values() | {
            "tasks": tasks, "scratch": scratch.ctypes.data, "bias": scale.ctypes.data, "run": 1, "blocks": 1,
            "chunk_blocks": 1, "phases": 1, "phase_table": np.zeros(3, np.int64), "channels": cut.channels,
            "panel_filters": filters, "vectors": cut.vectors, "x_c": math.prod(planes.shape[3:]),
            "x_d": math.prod(planes.shape[4:]), "x_h": planes.shape[5], "x_w": 1,
        }  # fmt: skip
        for name, a in zip("dhw", cut.axes, strict=True):
            values |= {f"size_{name}": a.taps, f"stride_{name}": 1, f"blocks_{name}": 1}
        for name, value in values.items():
            record[name] = value.ctypes.data if isinstance(value, np.ndarray) else value
        for first in range(0, len(planes), at_once):
            part = planes[first : first + at_once]
            record["x"], record["w"] = part.ctypes.data, packed[first].ctypes.data
            record["groups"] = record["chunk_groups"] = len(part) * filters
            jit.launch(spectral_kernels.forward_chunk(size, lanes), record.ctypes.data, tasks)
            jit.launch(spectral_kernels.pack_spectra(size, lanes), record.ctypes.data, tasks)
        return packed

    def _transform_values(self) -> dict[str, Any]:
        """What the transforms of x and of w have in common."""
        lengths = self._cut.lengths
        strides = engines.strides(lengths)
        return {f"length_{name}": n for name, n in zip("dhw", lengths, strict=True)} | {
            "plane": self._cut.plane, "plane_d": strides[0], "plane_h": strides[1],
            "transform": self._transform.forward, "execute_forward": self._transform.execute_forward,
        }  # fmt: skip


def planes_of_filter(cut: FftBlocking, w: np.ndarray) -> np.ndarray:
    """w (K, C/groups, T, R, S) as (groups * panels, filters of a panel, channels in phases, *taps)."""
    p, in_panel = cut.problem, cut.tile[0]
    taps = [a.taps for a in cut.axes]
    planes = np.zeros((p.groups, cut.panels * in_panel, len(cut.phases), p.w_shape[1], *taps), w.dtype)
    w = w.reshape(p.groups, p.gemm_n, *w.shape[1:])  # (g, K/g, C/g, T, R, S)
    for i, phase in enumerate(cut.phases):
        here, there = [], []  # the kernel elements of the phase, and their places among its taps
        for kernel, dilation, stride, offset in zip(p.kernel, p.dilation, p.stride, phase, strict=True):
            period = stride // math.gcd(stride, dilation)
            first = next(t for t in range(period) if t * dilation % stride == offset)
            start, step = first * dilation // stride, dilation * period // stride
            count = len(range(first, kernel, period))
            here.append(slice(first, kernel, period))
            there.append(slice(start, start + (count - 1) * step + 1, step))
        (t, r, s), (d, h, k) = here, there
        planes[:, : p.gemm_n, i, :, d, h, k] = w[:, :, :, t, r, s]  # (g, K/g, C/g, taps of the phase)
    return planes.reshape(p.groups * cut.panels, in_panel, cut.channels, *taps)


@dataclass(frozen=True)
class Fft(Algorithm):
    """`overlap` cuts maps into blocks, with FFTs of `length` or of the lengths that are estimated best."""

    family: ClassVar[str] = "cpu.fft"
    exchanges: ClassVar[bool] = True
    spreads_nan: ClassVar[bool] = True
    engine: str = "fftw"
    overlap: bool = False
    length: int | None = None

    @property
    def variant(self) -> str:
        if not self.overlap:
            return self.engine
        return "overlap" if self.length is None else f"overlap.{self.length}"

    @property
    def library(self) -> str:
        """The engine that transforms. Blocks go through FFTW, or through MKL where FFTW is left out."""
        return (
            "mkl"
            if self.overlap and engines.why_not_engine("fftw") and not engines.why_not_engine("mkl")
            else self.engine
        )

    def cut(self, problem: ConvProblem) -> FftBlocking:
        return (
            spectral_cost.blocked(problem, self.length) if self.overlap else spectral_cost.one_block(problem)
        )

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := super().why_not(problem) or engines.why_not_engine(self.library):
            return reason
        if problem.is_empty:
            return None
        cut = self.cut(problem)
        if cut.filter_bytes > spectral_cost.FILTER_LIMIT:
            needed, limit = cut.filter_bytes >> 20, spectral_cost.FILTER_LIMIT >> 20
            return f"the filter's spectrum would take {needed} MiB, more than the {limit} it may"
        if self.overlap and cut.is_whole:
            return "no dimension is long enough to be cut: one block holds the whole map, as in cpu.fft.fftw"
        return None

    def variants(self, problem: ConvProblem) -> Iterator[Algorithm]:
        if not self.searches or problem.is_empty or self.why_not(problem):
            return
        cut = self.cut(problem)
        for length in sorted({n for a in cut.axes if a.blocks > 1 for n in (a.length // 2, 2 * a.length)}):
            yield replace(self, length=length)

    def cost(self, problem: ConvProblem, machine: Machine) -> float:
        return spectral_cost.spectral_seconds(self.cut(problem), self.engine, machine)

    def prepare_cost(self, problem: ConvProblem, machine: Machine) -> float:
        return 0.0 if problem.is_empty else SPECTRUM_CALL + self.filter_bytes(problem) / SPECTRUM_RATE

    def filter_bytes(self, problem: ConvProblem) -> int:
        return 0 if problem.is_empty else self.cut(problem).filter_bytes

    def least(self, problem: ConvProblem, machine: Machine) -> float:
        if problem.is_empty:
            return 0.0
        if self.overlap:
            return spectral_cost.least_overlapping(problem, machine)
        return spectral_cost.least_one_block(problem, self.engine, machine)

    def least_of_all(self, problem: ConvProblem, machine: Machine) -> float:
        return 0.0 if problem.is_empty else spectral_cost.least_products(problem, machine)

    @property
    def searches(self) -> bool:
        return self.overlap and self.length is None

    def closely(self, problem: ConvProblem, machine: Machine) -> float:
        return spectral_cost.closest_seconds(problem, machine) if self.searches else 0.0

    def block_starts(self, problem: ConvProblem) -> tuple[int, ...]:
        if problem.is_empty or not self.overlap:
            return self.granule(problem)
        return tuple(axis.step if axis.blocks > 1 else 1 for axis in self.cut(problem).axes[-problem.ndim :])

    def workspace_bytes(self, problem: ConvProblem) -> int:
        return 0 if problem.is_empty else chunk_schedule(self.cut(problem)).workspace_bytes

    def error_bound(self, problem: ConvProblem) -> float:
        # An FFT of n elements adds errors of about 0.6 eps sqrt(log2 n) of the root mean square of its
        # result (Schatzman 1996), spread evenly over it; here two forward transforms, a product and the way
        # back. Their size follows the norm of the block, so that small outputs beside large ones are only
        # this exact relative to the large ones. 4 log2(n) + 8 leaves room for the largest of many elements,
        # and for max|y| where it is smaller than the norms of x and w promise. The sum over the channels is a
        # random walk, which maps of one pixel, of which the transforms are exact, show alone.
        n = 1 if problem.is_empty else math.prod(self.cut(problem).lengths)
        walk = math.sqrt(problem.w_shape[1]) / 2
        return problem.eps * (4 * math.log2(n + 1) + 8 + walk) * room_for_few(problem)

    def plan(self, problem: ConvProblem) -> Plan:
        return FftPlan(problem, self)


ALGORITHMS = (Fft("fftw"), Fft("mkl"), Fft("fftw", overlap=True))
