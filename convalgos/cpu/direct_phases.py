"""The gradient of the input of a strided layer by direct sums of all its phases, interleaved in registers.

Outputs whose places leave the same remainder by the stride are a phase, a convolution of dy without a stride
(`core.backward.polyphase`). Here a tile holds some vectors of every phase along a row; its sums are
interleaved in registers and stored next to each other. Where there are too many phases for that, vectors hold
neighbouring phases, at one place of dy after the other. No phase goes through memory, and the filter is read
as it lies, so nothing is prepared; but of a stride with a dilation along rows, neighbouring phases meet dy at
places apart, and the filter is filled with zeros. Wins on transposed convolutions of few channels, above all
on long rows: signals upsampled by filters, image decoders.

dy (N, K, *spatial_out), w (K, C/groups, *kernel) -> dx (N, C, *spatial)

Source: Shi et al. 2016, arXiv:1609.07009, for the phases; Vaidyanathan 1990, "Multirate digital filters,
filter banks, polyphase networks, and applications".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, NamedTuple

import numpy as np

from convalgos.core.algorithm import Algorithm, error_of_sums, packing_seconds
from convalgos.core.machine import Machine, vector_bytes
from convalgos.core.plan import Plan
from convalgos.core.prepared_filter import FilterForm
from convalgos.core.problem import ConvProblem
from convalgos.cpu.backward.phase_rows import TILE_ELEMENTS, fewest_cycles, sum_phase_rows
from convalgos.cpu.backward.phase_tiles import (
    FEW_SHUFFLES,
    TILE_STEPS,
    most_ways,
    phase_tile_sizes,
    sum_phases,
)
from convalgos.cpu.backward.row_taps import ROW_TAPS, row_taps
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.finish import finish_panel
from convalgos.cpu.runtime.plan import CALL, KernelPlan, arguments
from convalgos.cpu.runtime.threads import plan_threads, worth_sharing
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.simd import call, carray, pointer
from convalgos.cpu.vectors.transpose import shuffles

# Zen 4, AVX-512: cycles of the pace of vectors, see `Machine.paced_cycles`.
LATENCY = 8  # sums that keep the arithmetic units busy
ROW_CYCLES = 6  # to begin a row of the kernel
TILE_CYCLES = 20  # to begin and end a tile
STORE_CYCLES = 1.0  # a vector of dx, beside half a cycle for each of its shuffles
# Cycles of the clock beside these, where products of 64 bytes take one unit and hide none of them: a Xeon
# (AVX-512 and AMX), 11 layers, ten of them depthwise.
MASKED_CYCLES = 3.0  # a load with a mask, as the first and the last tile of a row have them
BEGUN_CYCLES = 200  # a tile
SHOWN = 0.35  # of them where L2 gives a line in each cycle; 569 layers, Zen 5
# To wait for a row of the kernel, in filters beyond L1, a third of L2, and L2, by `Machine.line_waits`; Xeon
# (Sapphire Rapids)
L1_WAIT, L2_WAIT, L3_WAIT = 5.0, 13.0, 40.0

# --- shapes ----------------------------------------------------------------------------------


class Cut(NamedTuple):
    """How rows of dx are cut into tiles."""

    channels: int  # of a tile
    vectors: int  # of it, of each phase; or of phases
    span: int  # elements of dy that it lies at
    places: int  # of these, that are summed at a time; 0: all, and phases are interleaved
    tiles: int  # of a row
    displacements: int  # at which phases meet dy
    front: int  # elements that the first one begins before the kernel
    first: int  # element of dy that the first output meets at the first displacement


@lru_cache(1024)
def _cut(p: ConvProblem) -> Cut:
    """The tile of the least time, of a problem that `as_3d` gives."""
    stride, (low, _), taps = p.stride[2], p.padding[2], p.kernel[2]
    first = (stride - 1 + low) // stride
    front = first * stride - low
    displacements = -(-(taps + front) // stride)
    lanes, row = simd.lanes(p.itemsize), -(-p.spatial[2] // stride)  # places of dy
    if stride > most_ways():
        _, (places, vectors) = fewest_cycles(row, p.spatial_out[2], stride, lanes, displacements, _lines(p))
        span = min(row, max(places, TILE_ELEMENTS // stride))
        return Cut(1, vectors, span, places, -(-row // span), displacements, front, first)
    cuts = [
        Cut(channels, vectors, vectors * lanes, 0, -(-row // (vectors * lanes)), displacements, front, first)
        for channels, vectors in phase_tile_sizes(stride)
        if p.w_shape[1] % channels == 0
    ]
    return min(cuts, key=lambda cut: _cycles(p, cut))


def _lines(p: ConvProblem) -> float:
    """Rows of taps that meet a row of dx."""
    return p.gemm_n * math.prod(p.kernel[:2]) / math.prod(p.stride[:2])


def _cycles(p: ConvProblem, cut: Cut) -> float:
    """Of all threads, in the pace of vectors."""
    ways, taps = p.stride[2], p.kernel[2]
    if cut.places:
        places, lanes = -(-p.spatial[2] // ways), simd.lanes(p.itemsize)
        row, _ = fewest_cycles(places, p.spatial_out[2], ways, lanes, cut.displacements, _lines(p))
        return p.N * p.C * math.prod(p.spatial[:2]) * (cut.tiles * TILE_CYCLES + row)
    sums = ways * cut.channels * cut.vectors  # vectors
    products = taps * cut.channels * cut.vectors
    loads = 1.5 * cut.displacements * cut.vectors + taps * cut.channels
    line = ROW_CYCLES + max(products, loads) / 2 * max(1.0, LATENCY / sums)
    tile = TILE_CYCLES + _lines(p) * line + sums * (STORE_CYCLES + min(shuffles(ways), FEW_SHUFFLES) / 2)
    return p.N * p.C // cut.channels * math.prod(p.spatial[:2]) * cut.tiles * tile


def _exposed_cycles(p: ConvProblem, cut: Cut) -> float:
    """Of all threads, in the pace of the clock: masks and the beginnings of tiles."""
    masked = 0.0 if cut.places else cut.displacements * cut.vectors * min(1.0, 2 / cut.tiles)
    tiles = p.N * p.C // cut.channels * math.prod(p.spatial[:2]) * cut.tiles
    return tiles * (_lines(p) * masked * MASKED_CYCLES + BEGUN_CYCLES)


def _filter_cycles(p: ConvProblem, cut: Cut, machine: Machine) -> float:
    """Of all threads, in the pace of the clock: waits for the filter, whose rows lie on pages apart."""
    of_group = p.w_bytes / p.groups
    held = (machine.l2_bytes, L3_WAIT), (machine.l2_bytes / 3, L2_WAIT), (machine.l1_bytes, L1_WAIT)
    waits = next((wait for nbytes, wait in held if of_group > nbytes), 0.0)
    rows = p.gemm_n * math.prod(p.kernel[:2]) / math.prod(p.stride[:2])
    return waits * rows * p.N * p.C // cut.channels * math.prod(p.spatial[:2]) * cut.tiles


def _summed(problem: ConvProblem, filled: bool) -> ConvProblem:
    """What the kernels compute, in three dimensions: the problem, or that of its filter filled with zeros."""
    p = problem.as_3d
    if not filled:
        return p
    return p.replace(w_shape=(*p.w_shape[:-1], p.kernel_extent[2]), dilation=(*p.dilation[:2], 1))


# --- kernels ---------------------------------------------------------------------------------

PHASES_ARGUMENTS = arguments(
    "size images groups channels filters depth height width ways span tiles tile_channels blocks of_d of_h "
    "first inner_end inner_first x_n x_c x_d x_h y_n y_c w_k w_c w_d w_h steps sum_phases tasks"
)


@jit.specialise
def sum_phase_tiles() -> Callable[..., None]:
    """Images x groups x rows of dx x tiles of a row x blocks of channels, dealt to tasks in equal runs."""

    def sum_phase_tiles(args: int, task: int) -> None:
        a = carray(pointer(args), 1, PHASES_ARGUMENTS)[0]
        of_d = carray(pointer(a.of_d), a.depth, ROW_TAPS)
        of_h = carray(pointer(a.of_h), a.height, ROW_TAPS)
        total = a.images * a.groups * a.depth * a.height * a.tiles * a.blocks
        begin, end = total * task // a.tasks, total * (task + 1) // a.tasks
        block, tile = begin % a.blocks, begin // a.blocks % a.tiles
        row = begin // (a.blocks * a.tiles)
        h, d = row % a.height, row // a.height % a.depth
        image = row // (a.height * a.depth)
        group, n = image % a.groups, image // a.groups
        for _ in range(end - begin):
            place = tile * a.span + a.first
            channel = group * a.channels + block * a.tile_channels
            done = tile * a.span * a.ways
            count = min(a.width - done, a.span * a.ways)
            taps_d, taps_h = of_d[d], of_h[h]
            x = n * a.x_n + group * a.filters * a.x_c + taps_d.row * a.x_d + taps_h.row * a.x_h + place
            w = group * a.filters * a.w_k + block * a.tile_channels * a.w_c
            w += taps_d.tap * a.w_d + taps_h.tap * a.w_h
            y = a.y + (n * a.y_n + channel * a.y_c + (d * a.height + h) * a.width + done) * a.size
            call(
                a.sum_phases,
                (
                    a.x + x * a.size, a.w + w * a.size, y, a.bias + channel * a.size, a.relu, count, a.steps,
                    taps_d.count, taps_h.count, place, a.inner_first, a.inner_end,
                ),
            )  # fmt: skip
            finish_panel(a, y, count, a.tile_channels, a.y_c, 1)
            block += 1  # divisions for each tile would take as long as a small one
            if block == a.blocks:
                block, tile = 0, tile + 1
            if tile == a.tiles:
                tile, h = 0, h + 1
            if h == a.height:
                h, d = 0, d + 1
            if d == a.depth:
                d, group = 0, group + 1
            if group == a.groups:
                group, n = 0, n + 1

    return sum_phase_tiles


# --- plan ------------------------------------------------------------------------------------


class DirectPhasesPlan(KernelPlan):
    finishes = strided_batch = reads_filter = True

    def __init__(self, problem: ConvProblem, algorithm: DirectPhases):
        p = _summed(problem, algorithm.filled)
        self.reads_filter = not algorithm.filled
        cut, size, lanes, tasks = _cut(p), p.itemsize, simd.lanes(p.itemsize), plan_threads()
        volume, plane, row = math.prod(p.kernel), math.prod(p.kernel[1:]), p.kernel[2]
        out, out_plane, out_row = math.prod(p.spatial_out), math.prod(p.spatial_out[1:]), p.spatial_out[2]
        channels, pixels = p.w_shape[1], math.prod(p.spatial)
        steps_d, steps_h = (
            (d // math.gcd(s, d), s // math.gcd(s, d)) for s, d in zip(p.stride, p.dilation[:2], strict=False)
        )
        steps = np.zeros(1, TILE_STEPS)
        steps[0] = (
            -steps_d[0] * out_plane, -steps_h[0] * out_row, out, steps_d[1] * plane, steps_h[1] * row,
            channels * volume, volume, pixels, p.dilation[2], p.gemm_n, cut.displacements, cut.front, row,
            out_row, p.stride[2],
        )  # fmt: skip
        if cut.places:
            kernel = sum_phase_rows(size, lanes, cut.places, cut.vectors)
        else:
            kernel = sum_phases(size, lanes, p.stride[2], cut.channels, cut.vectors)
        values: dict[str, int | np.ndarray] = {
            "size": size, "images": p.N, "groups": p.groups, "channels": channels, "filters": p.gemm_n,
            "depth": p.spatial[0], "height": p.spatial[1], "width": p.spatial[2], "ways": p.stride[2],
            "span": cut.span, "tiles": cut.tiles, "tile_channels": cut.channels,
            "blocks": channels // cut.channels, "of_d": row_taps(p, 0), "of_h": row_taps(p, 1),
            "first": cut.first, "inner_first": (cut.displacements - 1) * p.dilation[2],
            "inner_end": out_row - (cut.places or cut.span) + 1,
            "x_n": p.K * out, "x_c": out, "x_d": out_plane, "x_h": out_row, "y_n": p.C * pixels,
            "y_c": pixels, "w_k": channels * volume, "w_c": volume, "w_d": plane, "w_h": row,
            "steps": steps, "tasks": tasks,
            "sum_phases": kernel,
        }  # fmt: skip
        super().__init__(problem, algorithm, PHASES_ARGUMENTS, values, [(sum_phase_tiles(), tasks)], 0)

    def filter_form(self) -> FilterForm:
        return FilterForm.of(self.problem, *(() if self.reads_filter else (self.problem.dilation[-1],)))

    def pack_filter(self, w: np.ndarray) -> np.ndarray:
        if self.reads_filter:
            return w.copy()
        row, step = self.problem.kernel_extent[-1], self.problem.dilation[-1]
        filled = np.zeros((*w.shape[:-1], row), w.dtype)  # (K, C/groups, *kernel, row)
        filled[..., ::step] = w
        return filled


# --- the figures for the selector --------------------------------------------------------------


@dataclass(frozen=True)
class DirectPhases(Algorithm):
    family: ClassVar[str] = "cpu.direct"
    directions: ClassVar[tuple[str, ...]] = ("backward_data",)
    filled: bool = False  # zeros stand between the taps of a row, which is then not dilated

    @property
    def variant(self) -> str:
        return "phases.filled" if self.filled else "phases"

    @property
    def spreads_nan(self) -> bool:  # type: ignore[override]
        """Zeros between taps meet dy, too."""
        return self.filled

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := super().why_not(problem):
            return reason
        if problem.layout != "channels_first":
            return "takes vectors along rows of channels_first maps"
        if (problem.stride[-1] > 1 < problem.dilation[-1]) is self.filled:
            return None
        if self.filled:
            return "fills filters for a stride and a dilation along rows at once, which are not both here"
        return "takes no stride and dilation along rows at once"

    def cost(self, problem: ConvProblem, machine: Machine) -> float:
        p = _summed(problem, self.filled)
        cut = _cut(p)
        seconds = _cycles(p, cut) / machine.paced_cycles
        if vector_bytes() == 64:  # none at the pace of Zen 4, 1/2
            exposed = min(1.0, max(0.0, 2 * machine.pace - 1))
            exposed *= SHOWN + (1 - SHOWN) * machine.line_waits
            seconds += exposed * _exposed_cycles(p, cut) / machine.cycles
        seconds += machine.line_waits * _filter_cycles(p, cut, machine) / machine.cycles
        if not worth_sharing(p):
            seconds *= machine.threads
        held = p.x_bytes + p.y_bytes
        stored = p.x_bytes * (2 if held > machine.l3_bytes else 1)  # beyond, a store reads its line first
        moved = machine.stream(stored + p.y_bytes, held)
        seconds = max(seconds, moved)
        if cut.places:  # every tile reads the taps of its channel
            read = p.N * p.C * math.prod(p.spatial[:2]) * cut.tiles * _lines(p) * p.kernel[2] * p.itemsize
            seconds += machine.stream(read, p.w_bytes)
        return CALL + machine.launch + seconds

    def least(self, problem: ConvProblem, machine: Machine) -> float:
        if problem.is_empty:
            return 0.0
        return CALL + machine.launch + problem.flops / machine.peak(problem.dtype)

    def prepare_cost(self, problem: ConvProblem, machine: Machine) -> float:
        if self.filled:
            return packing_seconds(self.filter_bytes(problem), machine)
        return 1e-9  # it is copied

    def filter_bytes(self, problem: ConvProblem) -> int:
        return _summed(problem, self.filled).w_bytes

    def error_bound(self, problem: ConvProblem) -> float:
        return error_of_sums(problem)

    def plan(self, problem: ConvProblem) -> Plan:
        return DirectPhasesPlan(problem, self)


ALGORITHMS = (DirectPhases(), DirectPhases(filled=True))
