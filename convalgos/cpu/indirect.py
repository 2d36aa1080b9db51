"""Indirect convolution: a table of where the pixels under each output lie takes the place of copies.

im2col copies pixels, the indirection buffer of this method only points at them: for each tap of the kernel
and each output it has the place of a run of channels, and outputs near the border point to one run of zeros
that all share. The micro-kernel looks the places of its rows up once for each tap and then reads their
channels as a matrix product would. The buffer depends on the sizes only and is made with the plan. The
paper (XNNPACK's way) reports up to 1.62 times the speed of im2col and GEMM where that makes patches, and a
little less on 1x1 layers.

Channels last only, as the channels of a pixel are then one run. `cpu.direct` turns the table round, by taps
instead of pixels, and copies the input of padded maps: on few channels it is faster, as places are then
looked up for few products each. On strided layers of many channels nothing is faster than this, with a
tenth of the scratch.

Source: Dukhan 2019, "The indirect convolution algorithm", arXiv:1907.02129.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar

import numpy as np

from convalgos.core.allocator import aligned_zeros
from convalgos.core.machine import Machine
from convalgos.core.plan import Plan
from convalgos.core.prepared_filter import FilterForm
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm import dealt_panels, panel_packing, panels
from convalgos.cpu.gemm.all_products import LEAST_SUMS, AllProducts, sums_seconds
from convalgos.cpu.gemm.lowered_plan import PIECE_PIXELS, piece_bytes, piece_seconds
from convalgos.cpu.layout.strides import map_strides
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.finish import finish_panel
from convalgos.cpu.runtime.plan import KernelPlan, arguments
from convalgos.cpu.runtime.threads import plan_threads
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.simd import Value, Vec, call, carray, pointer

TAP = 1  # channels summed in the time in which the places of a tap are looked up; Xeon (Granite Rapids)
NOWHERE = -1  # in the buffer: the run of zeros

# --- kernels ---------------------------------------------------------------------------------


@simd.emitter
def indirect_tile(
    v: Vec, ROWS: int, VECTORS: int, x: Value, zeros: Value, buffer: Value, buffer_row: Value, taps: Value,
    channels: Value, w: Value, y: Value,
) -> None:  # fmt: skip
    """y[i][:] = sum_t sum_c pixel(t, i)[c] * w[t][c][:], for i < ROWS, in rows of VECTORS * lanes.

    buffer: int64, elements of x before the pixel, in rows of taps `buffer_row` entries apart; where it is
    negative the pixel is `zeros`.
    """
    wide, weights = range(VECTORS), v.pointer(w)
    sums = [[v.register(v.zero()) for _ in wide] for _ in range(ROWS)]
    panel = VECTORS * v.lanes
    with v.loop(taps) as t:
        first, pixels = v.imul(t, buffer_row), []
        for i in range(ROWS):
            place = v.table64(buffer, v.iadd(first, i))
            inside = v.b.icmp_signed(">=", place, v.integer(0))
            pixels.append(v.pointer(v.b.select(inside, v.iadd(x, v.imul(place, v.size)), zeros)))
        of_tap = v.at(weights, v.imul(v.imul(t, channels), panel))
        with v.loop(channels) as c:
            row = v.at(of_tap, v.imul(c, panel))
            loaded = [v.load(row, j * v.lanes) for j in wide]
            for totals, pixel in zip(sums, pixels, strict=True):
                value = v.broadcast(pixel, c)
                for total, weight in zip(totals, loaded, strict=True):
                    total.set(v.fma(value, weight, total.value))
    target = v.pointer(y)
    for i, totals in enumerate(sums):
        for j, total in enumerate(totals):
            v.store(total.value, target, i * panel + j * v.lanes)


@jit.specialise
def sum_indirect(SIZE: int, LANES: int, ROWS: int, VECTORS: int) -> Callable[..., None]:
    """sums[pixel][:] of a panel of filters. Pixels are dealt to tiles of ROWS and ROWS - 1; where that cannot
    be, the last tile computes spare rows, for which the buffer and the sums have room."""
    FEWER = max(ROWS - 1, 1)

    def sum_indirect(
        x: int, zeros: int, buffer: int, buffer_row: int, pixels: int, taps: int, channels: int, w: int,
        sums: int,
    ) -> None:  # fmt: skip
        tiles = (pixels + ROWS - 1) // ROWS
        rows = max(pixels, tiles * FEWER)
        for tile in range(tiles):
            first = rows * tile // tiles
            at, target = buffer + first * 8, sums + first * VECTORS * LANES * SIZE
            if rows * (tile + 1) // tiles - first == ROWS:
                indirect_tile(SIZE, LANES, ROWS, VECTORS, x, zeros, at, buffer_row, taps, channels, w, target)
            else:
                indirect_tile(
                    SIZE, LANES, FEWER, VECTORS, x, zeros, at, buffer_row, taps, channels, w, target
                )

    return sum_indirect


INDIRECT_ARGUMENTS = arguments(
    "size images groups channels filters taps kernel_taps vectors panels widest lanes pixels tasks buffer "
    "buffer_row zeros x_n y_n y_pixel sums_stride sum_panel sum_narrow store_run"
)


@jit.specialise
def multiply_indirectly(PIECE: int) -> Callable[..., None]:
    """Images x pieces of at most PIECE pixels x groups x panels of filters, dealt to the tasks."""

    def multiply_indirectly(args: int, task: int) -> None:
        a = carray(pointer(args), 1, INDIRECT_ARGUMENTS)[0]
        sums = a.scratch + task * a.sums_stride
        pieces = (a.pixels + PIECE - 1) // PIECE
        total = a.images * pieces * a.groups * a.panels
        for item in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            panel, group = item % a.panels, item // a.panels % a.groups
            piece, image = item // (a.panels * a.groups) % pieces, item // (a.panels * a.groups * pieces)
            first = a.pixels * piece // pieces
            count = a.pixels * (piece + 1) // pieces - first
            filters = dealt_panels.panel_extent(a, group, panel)
            x = a.x + (image * a.x_n + group * a.channels) * a.size
            buffer = a.buffer + first * 8
            call(
                filters.kernel,
                (x, a.zeros, buffer, a.buffer_row, count, a.kernel_taps, a.channels, filters.w, sums),
            )
            k = group * a.filters + filters.first
            y = a.y + (image * a.y_n + k + first * a.y_pixel) * a.size
            bias, stream = a.bias + k * a.size, 0
            call(
                a.store_run,
                (sums, filters.width, count, filters.filters, bias, a.relu, stream, y, 1, a.y_pixel),
            )
            finish_panel(a, y, count, filters.filters, 1, a.y_pixel)

    return multiply_indirectly


# --- plan ------------------------------------------------------------------------------------


def indirection_buffer(problem: ConvProblem, spare: int) -> np.ndarray:
    """(taps of the kernel, pixels + spare): elements of an image of x before the pixel that a tap of an
    output reads, or NOWHERE. Spare entries repeat the last one."""
    p = problem
    places, inside = [], []
    axes = zip(p.spatial_out, p.kernel, p.stride, p.dilation, p.padding, p.spatial, strict=True)
    for out, taps, stride, dilation, (low, _), size in axes:
        at = np.add.outer(np.arange(taps) * dilation, np.arange(out) * stride) - low  # (taps, outputs)
        places.append(at)
        inside.append((at >= 0) & (at < size))
    strides = map_strides(p.layout, p.C, p.spatial)[2:]
    moved = [at * step for at, step in zip(places, strides, strict=True)]

    def combined(parts: list[np.ndarray], join: np.ufunc) -> np.ndarray:
        """(T, O), (R, P), (S, Q) to (T*R*S, O*P*Q)."""
        whole = reduce(join.outer, parts)  # (T, O, R, P, S, Q)
        return whole.transpose(0, 2, 4, 1, 3, 5).reshape(math.prod(p.kernel), -1)

    buffer = np.where(combined(inside, np.logical_and), combined(moved, np.add), NOWHERE)
    spread = np.pad(buffer.astype(np.int64), [(0, 0), (0, spare)], mode="edge")
    return np.ascontiguousarray(spread)  # NumPy keeps the order that taps and pixels were combined in


class IndirectPlan(KernelPlan):
    takes_views = any_order = True
    finishes = strided_batch = True

    def __init__(self, problem: ConvProblem, algorithm: Indirect):
        p = self._p = problem.as_3d
        size, lanes, tasks = p.itemsize, simd.lanes(p.itemsize), plan_threads()
        rows, self._panels = dealt_panels.panel_tile(p.gemm_n, size)
        buffer = indirection_buffer(p, spare=rows)
        out = math.prod(p.spatial_out)
        stride = piece_bytes(p, PIECE_PIXELS)
        values = {
            "size": size, "images": p.N, "groups": p.groups, "channels": p.w_shape[1], "filters": p.gemm_n,
            "taps": p.gemm_k, "kernel_taps": math.prod(p.kernel), "pixels": out, "tasks": tasks,
            "buffer": buffer, "buffer_row": buffer.shape[1],
            "zeros": aligned_zeros(p.w_shape[1] + lanes, np.dtype(p.dtype)),
            "x_n": p.C * math.prod(p.spatial), "y_n": p.K * out, "y_pixel": p.K, "sums_stride": stride,
            "store_run": panels.store_run(size, lanes),
            **dealt_panels.panel_kernels(sum_indirect, size, rows, -(-p.gemm_n // lanes), self._panels),
        }  # fmt: skip
        steps = [(multiply_indirectly(PIECE_PIXELS), tasks)]
        super().__init__(problem, algorithm, INDIRECT_ARGUMENTS, values, steps, tasks * stride)

    def filter_form(self) -> FilterForm:
        return FilterForm.of(self.problem, self._panels)

    def pack_filter(self, w: np.ndarray) -> np.ndarray:
        """`packed_panels`, the channels of a tap side by side."""
        p = self._p
        w = w.reshape(p.groups, p.gemm_n, p.w_shape[1], *p.kernel)  # (g, K/g, C/g, T, R, S)
        return panel_packing.packed_panels(np.moveaxis(w, 2, -1), self._panels)


@dataclass(frozen=True)
class Indirect(AllProducts):
    family: ClassVar[str] = "cpu.indirect"

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := super().why_not(problem):
            return reason
        if problem.layout != "channels_last":
            return "points to pixels whose channels are one run, as they are in channels_last"
        return None

    def least(self, problem: ConvProblem, machine: Machine) -> float:
        return math.inf if problem.layout != "channels_last" else sums_seconds(problem, machine, LEAST_SUMS)

    def cost(self, problem: ConvProblem, machine: Machine) -> float:
        return piece_seconds(problem, machine, LEAST_SUMS + TAP / problem.w_shape[1])

    def workspace_bytes(self, problem: ConvProblem) -> int:
        return 0 if problem.is_empty else plan_threads() * piece_bytes(problem.as_3d, PIECE_PIXELS)

    def plan(self, problem: ConvProblem) -> Plan:
        return IndirectPlan(problem, self)


ALGORITHMS = (Indirect(),)
