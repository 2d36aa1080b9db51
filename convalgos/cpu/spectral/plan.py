"""The plan of convolution through the FFT: blocks to spectra, times that of the filter, and back."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np

from convalgos.core.algorithm import Algorithm
from convalgos.core.allocator import aligned_empty, aligned_zeros
from convalgos.core.bound_run import BoundRun
from convalgos.core.boundaries import source_indices
from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.plan import QuickCall
from convalgos.core.prepared_filter import FilterForm
from convalgos.core.problem import ConvProblem
from convalgos.cpu.layout.strides import map_strides
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import KernelPlan
from convalgos.cpu.spectral import engines, products
from convalgos.cpu.spectral import kernels as spectral_kernels
from convalgos.cpu.spectral.blocking import FftBlocking, chunk_schedule
from convalgos.cpu.spectral.lengths import strides
from convalgos.cpu.vectors import simd

FILTER_CHUNK = 16 << 20  # bytes of planes that a filter's spectrum is made of at a time
ONE_THREAD = 1 << 17  # bytes of such planes, up to which another thread helps no more than it costs; Zen 5


class SpectraPlan(KernelPlan):
    """Whole maps, or blocks of them.

    Args:
        library: the engine that transforms.
    """

    finishes = strided_batch = rows_apart = times_runs = True

    def __init__(self, problem: ConvProblem, algorithm: Algorithm, cut: FftBlocking, library: str):
        p, dealt = cut.problem, chunk_schedule(cut)
        size, lanes = p.itemsize, simd.lanes(p.itemsize)
        self._cut = cut
        # kept, as its plans must outlive this one
        self._transform = engines.plan_transform(library, p.dtype, cut.lengths)
        values = self._transform_values() | {
            "chunk": 0, "chunk_groups": dealt.groups, "chunk_blocks": dealt.blocks, "groups": p.groups,
            "channels": p.w_shape[1], "filters": p.gemm_n, "panels": cut.panels, "panel_filters": cut.tile[0],
            "run": dealt.run, "run_panels": dealt.panels, "part": dealt.part, "blocks": cut.blocks,
            "block_pair": cut.tile[1], "parts": cut.parts, "phases": len(cut.phases),
            "phase_table": np.array(cut.phases, np.int64), "tasks": dealt.tasks, "vectors": cut.vectors,
            "vectors_part": dealt.vectors, "lane_bytes": dealt.lane_bytes,
            "spectra_bytes": dealt.spectra_bytes, "chunks": dealt.chunks, "task_bytes": dealt.task_bytes,
            "forward": spectral_kernels.forward_chunk(size, lanes),
            "backward": spectral_kernels.backward_chunk(size, lanes),
            "inverse": self._transform.inverse,
            "execute_inverse": self._transform.execute_inverse,
            "multiply": products.multiply_planes(size, lanes, *cut.tile, cut.parts),
        }  # fmt: skip
        for name, a in zip("dhw", cut.axes, strict=True):
            values |= {f"size_{name}": a.size, f"out_{name}": a.out, f"stride_{name}": a.stride}
            values |= {f"low_{name}": a.low, f"step_{name}": a.step, f"blocks_{name}": a.blocks}
        values |= _border_values(p)
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

    def filter_form(self) -> FilterForm:
        """Where maps are cut depends on their sizes and on the threads."""
        cut, p = self._cut, self._cut.problem
        return FilterForm.of(self.problem, cut.lengths, p.stride, p.dilation, cut.tile[0], cut.parts)

    def pack_filter(self, w: np.ndarray) -> np.ndarray:
        """(groups * panels, vectors, channels in phases, filters of a panel, parts, lanes).

        Conjugated, for a correlation, and divided by the number of elements, which FFTW does not do.
        """
        cut, p = self._cut, self._cut.problem
        size, lanes, filters = p.itemsize, simd.lanes(p.itemsize), cut.tile[0]
        planes = planes_of_filter(cut, w.reshape(p.w_shape))  # (groups * panels, filters, channels, *taps)
        packed = aligned_empty(cut.filter_bytes // size, w.dtype).reshape(len(planes), -1)
        panel_bytes = filters * cut.channels * cut.plane_bytes
        at_once = min(len(planes), max(1, FILTER_CHUNK // panel_bytes))  # panels
        scratch = aligned_zeros(at_once * panel_bytes, np.uint8)
        tasks = 1 if scratch.nbytes <= ONE_THREAD else jit.thread_count()
        record = self._filter_words.copy().view(spectral_kernels.CHUNK_ARGUMENTS)
        record["tasks"], record["scratch"] = tasks, scratch.ctypes.data
        record["transform"] = self._transform.forward
        for first in range(0, len(planes), at_once):
            part = planes[first : first + at_once]
            record["x"], record["w"] = part.ctypes.data, packed[first].ctypes.data
            record["groups"] = record["chunk_groups"] = len(part) * filters
            jit.launch(spectral_kernels.forward_chunk(size, lanes), record.ctypes.data, tasks)
            jit.launch(spectral_kernels.pack_spectra(size, lanes, cut.parts), record.ctypes.data, tasks)
        return packed

    @cached_attribute
    def _filter_words(self) -> np.ndarray:
        """The record of the kernels that transform filters, but for memory and threads, as bytes.

        NumPy copies records a field at a time.
        """
        cut, p = self._cut, self._cut.problem
        taps = [a.taps for a in cut.axes]
        self._filter_arrays = np.array([1 / math.prod(cut.lengths)], p.dtype), np.zeros(3, np.int64)
        scale, phase_table = self._filter_arrays
        values = self._transform_values() | {
            "bias": scale.ctypes.data, "run": 1, "blocks": 1, "chunk_blocks": 1, "phases": 1,
            "phase_table": phase_table.ctypes.data, "channels": cut.channels, "panel_filters": cut.tile[0],
            "vectors": cut.vectors, "x_c": math.prod(taps), "x_d": math.prod(taps[1:]), "x_h": taps[2],
            "x_w": 1,
        }  # fmt: skip
        for name, a in zip("dhw", cut.axes, strict=True):
            values |= {f"size_{name}": a.taps, f"stride_{name}": 1, f"blocks_{name}": 1}
        record = np.zeros(1, spectral_kernels.CHUNK_ARGUMENTS)
        for name, value in values.items():
            record[name] = value
        return record.view(np.uint8)

    def run(
        self, x: np.ndarray, w: Any, bias: np.ndarray | None, activation: str | None, y: np.ndarray,
        workspace: Any,
    ) -> None:  # fmt: skip
        if self._transform.is_settled:
            super().run(x, w, bias, activation, y, workspace)
            return
        began = time.perf_counter()
        super().run(x, w, bias, activation, y, workspace)
        self._transform.ran(time.perf_counter() - began)

    def bind(self, *arguments: Any, **options: Any) -> BoundRun:
        self._settle()
        return super().bind(*arguments, **options)

    def bound_again(self, *arguments: Any) -> BoundRun | None:
        self._settle()
        return super().bound_again(*arguments)

    def quick_call(self, problem: ConvProblem) -> QuickCall | None:
        if not self._transform.is_settled:
            return None
        self._settle()
        return super().quick_call(problem)

    def _settle(self) -> None:
        """Search before runs that are not counted, and have what was found in their records."""
        self._transform.settle()
        self.record["transform"], self.record["inverse"] = self._transform.forward, self._transform.inverse

    def _set_run(self, *arguments: Any) -> Any:
        record = super()._set_run(*arguments)
        record.transform, record.inverse = self._transform.forward, self._transform.inverse
        return record

    def _set_steps(self, arguments: Any, name: str, array: np.ndarray) -> None:
        steps = [step // array.itemsize for step in array.strides]
        if self.problem.layout == "channels_last":
            steps.insert(1, steps.pop())
        channels = {"x": "c", "y": "k"}[name]
        for axis, step in zip(("n", channels, *"dhw"[-self.problem.ndim :]), steps, strict=True):
            setattr(arguments, f"{name}_{axis}", step)

    def _transform_values(self) -> dict[str, Any]:
        """What the transforms of x and of w have in common."""
        lengths = self._cut.lengths
        steps = strides(lengths)
        return {f"length_{name}": n for name, n in zip("dhw", lengths, strict=True)} | {
            "plane": self._cut.plane, "plane_d": steps[0], "plane_h": steps[1],
            "transform": self._transform.forward, "execute_forward": self._transform.execute_forward,
        }  # fmt: skip


def _border_values(p: ConvProblem) -> dict[str, Any]:
    """What tells of borders that are not zero; p: the 3-D view."""
    values: dict[str, Any] = {"fill": np.full(1, p.fill_value, np.dtype(p.dtype))}
    for name, boundary, size, pads in zip("dhw", p.boundary, p.spatial, p.padding, strict=True):
        table = source_indices(boundary, size, *pads).astype(np.int64)
        values |= {f"sources_{name}": 0 if p.is_zero_padded else table, f"places_{name}": len(table)}
    return values


def planes_of_filter(cut: FftBlocking, w: np.ndarray) -> np.ndarray:
    """w (K, C/groups, T, R, S) as (groups * panels, filters of a panel, channels in phases, *taps)."""
    p, in_panel = cut.problem, cut.tile[0]
    taps = [a.taps for a in cut.axes]
    if len(cut.phases) == 1 and cut.panels * in_panel == p.gemm_n and w[0, 0].size == math.prod(taps):
        return np.ascontiguousarray(w).reshape(p.groups * cut.panels, in_panel, cut.channels, *taps)
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
