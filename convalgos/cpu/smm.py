"""Scalar times matrix (SMM-Conv): columns are lowered, and each weight multiplies whole planes of pixels.

A plane of outputs of one filter is a sum of R*S planes of the input, each shifted and multiplied by one
weight. SMM-Conv takes the shift by columns out of the way once, by S copies of each channel that are as
wide as the output; a shift by rows then is only a later begin in memory, filters need no packing, and there
is no matrix product at all. The paper claims less memory than im2col takes, and significantly more speed on
common networks.

Here the sums of some filters by some vectors of pixels stay in registers over all taps. Between
neighbouring rows of outputs there is no gap, so that vectors are full on narrow maps, too, where the rows
of `cpu.direct.pixels` leave lanes empty: on 14x14 maps both are as fast. Elsewhere that one is faster, as
it copies the input once instead of S times. Channels first only.

Source: Ofir and Ben-Artzi 2022, "SMM-Conv: scalar matrix multiplication with zero packing for accelerated
convolution", arXiv:2411.15659.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from convalgos.core.allocator import aligned_zeros
from convalgos.core.machine import Machine, cache_sizes, vector_bytes
from convalgos.core.plan import Plan
from convalgos.core.prepared_filter import FilterForm
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm import row_panels
from convalgos.cpu.gemm.all_products import AllProducts, least_sums, memory_seconds
from convalgos.cpu.gemm.lowering import COLUMNS, LOWERING_FIELDS, Lowering, lower_map, lowering
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.finish import finish_panel
from convalgos.cpu.runtime.plan import CALL, KernelPlan, arguments
from convalgos.cpu.runtime.threads import plan_threads
from convalgos.cpu.vectors import halves, microkernel, simd
from convalgos.cpu.vectors.simd import call, carray, pointer

ROOM = 4  # a part of L2 that the lowered channels under a piece of pixels fill
LATENCY = 8  # registers of sums that keep the arithmetic units busy
SUMS = 1.4  # times the least, as vectors of pixels cross lines; Xeon (Granite Rapids)

# --- kernel ----------------------------------------------------------------------------------

SMM_ARGUMENTS = arguments(
    LOWERING_FIELDS
    + "groups channels filters taps tiles vectors piece starts places counts tap_table y_n y_k "
    "sum_pixels"
)


@jit.specialise
def multiply_planes_by_weights() -> Callable[..., None]:
    """Images x pieces of pixels x groups x tiles of filters, dealt to the tasks."""

    def multiply_planes_by_weights(args: int, task: int) -> None:
        a = carray(pointer(args), 1, SMM_ARGUMENTS)[0]
        pieces = (a.vectors + a.piece - 1) // a.piece
        total = a.count * pieces * a.groups * a.tiles
        for item in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            tile, group = item % a.tiles, item // a.tiles % a.groups
            piece, image = item // (a.tiles * a.groups) % pieces, item // (a.tiles * a.groups * pieces)
            first = a.vectors * piece // pieces
            count = a.vectors * (piece + 1) // pieces - first
            k = a.filters * tile // a.tiles
            filters = a.filters * (tile + 1) // a.tiles - k
            k += group * a.filters
            source = a.scratch + (image * a.l_n + group * a.channels * a.l_c) * a.size
            y = a.y + ((a.first + image) * a.y_n + k * a.y_k) * a.size
            at = first * 8
            call(
                a.sum_pixels,
                (source, count, a.starts + at, a.tap_table, a.taps, a.w + k * a.taps * a.size, filters,
                 a.bias + k * a.size, a.relu, y, a.y_k, a.places + at, a.counts + at),
            )  # fmt: skip
            if a.finish:
                places = carray(pointer(a.places), a.vectors, np.int64)
                counts = carray(pointer(a.counts), a.vectors, np.int64)
                pixels = places[first + count - 1] + counts[first + count - 1] - places[first]
                finish_panel(a, y + places[first] * a.size, pixels, filters, a.y_k, 1)

    return multiply_planes_by_weights


# --- shapes ----------------------------------------------------------------------------------


def vector_tables(cut: Lowering, lanes: int, spare: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(vectors + spare,) each: where the vectors of an image start in the lowered map, where their pixels go
    in a plane of y, and how many these are. A spare vector stores nothing."""
    p = cut.problem
    pixels = cut.pixel_table(0)
    run = p.spatial_out[2]  # outputs that are neighbours in the lowered map
    for n in (p.spatial_out[1], p.spatial_out[0]):
        if n > 1 and (run >= pixels.size or pixels[run] - pixels[0] != run):
            break
        run *= n
    begins = np.arange(0, pixels.size, run)
    within = np.arange(0, run, lanes)
    places = np.add.outer(begins, within).ravel()
    starts = np.add.outer(pixels[begins], within).ravel()
    counts = np.tile(np.minimum(lanes, run - within), begins.size)
    ends = [(0, spare)]
    return np.pad(starts, ends, mode="edge"), np.pad(places, ends, mode="edge"), np.pad(counts, ends)


def smm_tile(problem: ConvProblem, lanes: int) -> tuple[int, int]:
    """(tiles of the filters of a group, vectors of pixels) of the micro-kernel."""
    table = microkernel.REGISTER_TILES[vector_bytes()]
    vectors = max(table) if math.prod(problem.spatial_out) > lanes else 1
    return -(-problem.gemm_n // table[vectors]), vectors


# --- plan ------------------------------------------------------------------------------------


class SmmPlan(KernelPlan):
    finishes = True

    def __init__(self, problem: ConvProblem, algorithm: Smm):
        cut = self._cut = lowering(problem, COLUMNS)
        p = cut.problem
        size, lanes = p.itemsize, simd.lanes(p.itemsize)
        tasks, out = plan_threads(), math.prod(p.spatial_out)
        self._tiles, vectors = smm_tile(p, lanes)
        starts, places, counts = vector_tables(cut, lanes, spare=vectors)
        self._order = np.argsort(cut.tap_offsets(), kind="stable")  # a channel, a column, then its rows
        room = cache_sizes()[1] // ROOM // (p.w_shape[1] * cut.laid_out * vector_bytes())  # vectors
        values = cut.fields() | {
            "tasks": tasks, "groups": p.groups, "channels": p.w_shape[1], "filters": p.gemm_n,
            "taps": p.gemm_k, "tiles": self._tiles, "vectors": len(starts) - vectors,
            "piece": max(4 * vectors, room), "starts": starts, "places": places, "counts": counts,
            "tap_table": microkernel.padded_for_prefetch(cut.tap_offsets()[self._order]),
            "y_n": p.K * out, "y_k": out,
            "sum_pixels": row_panels.sum_pixels(
                size, lanes, -(-p.gemm_n // self._tiles), vectors, 0, halves.SAME
            ),
        }  # fmt: skip
        steps = [(lower_map(size), tasks), (multiply_planes_by_weights(), tasks)]
        passes = cut.passes if len(cut.passes) > 1 else ({},)
        super().__init__(problem, algorithm, SMM_ARGUMENTS, values, steps, cut.scratch_bytes, passes)

    def _new_scratch(self) -> np.ndarray:
        """Zeroed: vectors are summed beyond the ends of rows too, and would be slow on denormal numbers."""
        return aligned_zeros(self.scratch_bytes or 0, np.uint8)

    def filter_form(self) -> FilterForm:
        return FilterForm.of(self.problem, self._tiles)

    def pack_filter(self, w: np.ndarray) -> np.ndarray:
        """(groups, tiles, taps, filters of a tile)."""
        p = self._cut.problem
        w = w.reshape(p.groups, p.gemm_n, -1)[..., self._order]
        return row_panels.pack_rows(w, p.groups, p.gemm_n, p.gemm_k, self._tiles)


@dataclass(frozen=True)
class Smm(AllProducts):
    family: ClassVar[str] = "cpu.smm"

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := super().why_not(problem):
            return reason
        if problem.layout != "channels_first":
            return "multiplies planes of pixels, which channels_first maps have"
        return None

    def least(self, problem: ConvProblem, machine: Machine) -> float:
        if problem.layout != "channels_first":
            return math.inf
        sums = SUMS * least_sums(problem, machine)
        return CALL + 2 * machine.launch + sums + memory_seconds(problem, machine)

    def cost(self, problem: ConvProblem, machine: Machine) -> float:
        cut = lowering(problem, COLUMNS)
        p, lanes = cut.problem, simd.lanes(problem.itemsize)
        tiles, vectors = smm_tile(p, lanes)
        rows = -(-p.gemm_n // tiles)
        waits = max(1.0, LATENCY / (rows * vectors), (1.8 * vectors + rows) / (rows * vectors))
        out = math.prod(p.spatial_out)
        filled = out / (-(-out // lanes) * lanes)
        sums = SUMS * waits / filled * least_sums(p, machine)
        launches = 2 * len(cut.passes)
        return CALL + launches * machine.launch + cut.seconds(machine) + sums + memory_seconds(p, machine)

    def workspace_bytes(self, problem: ConvProblem) -> int:
        return 0 if problem.is_empty else lowering(problem, COLUMNS).scratch_bytes

    def plan(self, problem: ConvProblem) -> Plan:
        return SmmPlan(problem, self)


ALGORITHMS = (Smm(),)
