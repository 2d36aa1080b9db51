"""Depthwise and small grouped convolution, vectorised over channels.

A vector is one pixel of as many whole groups as it has lanes. A row of output pixels stays in registers over
the whole kernel, and every input pixel is loaded once for each kernel row; where groups have several input
channels, a shuffle copies each to the lanes of the filters of its group. Kernel elements that meet only
zeros of padding are left out, and tables tell where else a border lies, so that no padded copy is made:
channels_last and blocks of channels are filtered in place, channels_first goes through square transposes in
scratch; x and y may lie in different layouts. Wins in blocks, on small maps, strides, groups and
channels_last; `cpu.depthwise.rows` on wide channels_first maps.

Source: the NHWC depthwise kernels of XNNPACK and oneDNN; skipped borders as in oneDNN's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from convalgos.core.algorithm import Algorithm, error_of_sums
from convalgos.core.boundaries import BOUNDARIES, fills_alike
from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.element_types import HALF_DTYPES
from convalgos.core.errors import Unsupported
from convalgos.core.layouts import BLOCKS, PLAIN, channels_together
from convalgos.core.machine import Machine, cache_sizes, vector_bytes
from convalgos.core.plan import Plan
from convalgos.core.prepared_filter import FilterForm
from convalgos.core.problem import ConvProblem, Shape
from convalgos.core.taps import taps_met
from convalgos.cpu.dwconv.block_activations import block_kernel, kind_of_block
from convalgos.cpu.dwconv.block_layers import BlockLayer, BlockTables, layer_in_blocks
from convalgos.cpu.dwconv.channel_blocking import (
    MOST_PIXELS,
    ChannelBlocking,
    Spread,
    channel_blocking,
    groups_of_vector,
)
from convalgos.cpu.dwconv.channel_cost import block_cycles
from convalgos.cpu.dwconv.channel_fields import map_fields
from convalgos.cpu.dwconv.channel_filters import packed_lanes, taps_by_channel
from convalgos.cpu.dwconv.channel_forms import channels_read
from convalgos.cpu.dwconv.channel_kernels import filter_block, filter_channel_blocks
from convalgos.cpu.dwconv.channel_records import CHANNEL_KERNEL_FIELDS
from convalgos.cpu.dwconv.channel_tables import (
    lanes_in_lines,
)
from convalgos.cpu.dwconv.folded_maps import folding_blocking
from convalgos.cpu.gemm.panel_packing import packed_panels
from convalgos.cpu.layout import channel_vectors, half_pixels
from convalgos.cpu.runtime import half
from convalgos.cpu.runtime.half import computed_bytes, map_form
from convalgos.cpu.runtime.plan import CALL, KernelPlan
from convalgos.cpu.runtime.records import by_name
from convalgos.cpu.runtime.spread_outputs import SpreadOutputs
from convalgos.cpu.runtime.threads import SingleThreaded, plan_threads
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.activations import CLIP
from convalgos.cpu.vectors.halves import BRAIN, HALF, SAME

ROWS_AHEAD = 4  # rows behind the kernel that are asked for: what comes from memory takes so long
MOST_SCRATCH = 16 << 20  # bytes for each thread: wide rows are not cut
FETCHED = 1.6  # sums or bytes, whichever are done first, take so much less where lines are asked for ahead
# Of blocks of channels: what sums and bytes take of what they would take one after the other, and how many
# times as many bytes a second come from L2 as from L3. Xeon (Granite Rapids), 90 layers of networks; for 90
# others it is right in the median, but for the start of a run, and a fifth off in the mean.
BLOCK_SUMS, BLOCK_BYTES, IN_L2 = 0.75, 0.47, 1.8
FROM_L3, FROM_L2 = 27.0, 45.0  # bytes a cycle, at most, as the caches of Zen 4 are faster than these kernels
ONE_TAP = 1.4  # slower by this where vectors are turned for a single tap; Xeon (Granite Rapids)

# --- plan ------------------------------------------------------------------------------------


class ChannelsPlan(KernelPlan):
    strided_batch = takes_views = True

    def __init__(
        self, problem: ConvProblem, algorithm: Channels, cut: ChannelBlocking,
        folded: ConvProblem | None = None,
    ):  # fmt: skip
        """
        Args:
            folded: the gradient of a map with a border, of which the problem computes that with its border.
        """
        c = self._cut = cut
        self._kernel = block_kernel(c)
        self.rows_apart = cut.spread is not None
        # pixels of channels_last belong to several tasks; what two of them write must not be finished twice
        self.finishes = c.problem.y_layout != "channels_last" and not c.overlaps
        p, size = c.problem, computed_bytes(c.problem)
        x_pixel, y_pixel = channels_together(p.layout, p.C), channels_together(p.y_layout, p.K)
        gather, place = turns(size, c.lanes, map_form(p.dtype))
        of_maps, self._pointed = map_fields(c, folded)
        self._folds = folded is not None
        self._unbounded = np.array([-np.inf, np.inf], p.compute_dtype)
        values = of_maps | {
            "size": p.itemsize, "sum_size": size, "near_size": p.itemsize if c.in_place else size,
            "tasks": plan_threads(), "blocks": c.blocks, "vectors": c.vectors,
            "block_groups": c.groups, "groups": p.groups, "channels": p.w_shape[1], "filters": p.gemm_n,
            "last_group": c.last_group, "x_near": int(c.x_near), "y_near": int(c.y_near),
            "shares_lines": int(c.shares_lines), "x_pixel": x_pixel, "y_pixel": y_pixel,
            "from_pixel": c.source[0], "to_pixel": c.target[0], "rows_ahead": p.kernel[1] + ROWS_AHEAD,
            "bounds": self._unbounded, "taps": p.kernel[2], "stride": p.stride[2],
            "dilation": p.dilation[2], "gather": gather, "place": place,
        }  # fmt: skip
        steps, scratch = [(filter_channel_blocks(), plan_threads())], plan_threads() * c.scratch_bytes
        super().__init__(problem, algorithm, CHANNEL_KERNEL_FIELDS, values, steps, scratch)

    def on_maps(self, problem: ConvProblem) -> Self | None:
        """This plan for other sizes of the maps; None where these take other vectors of channels."""
        if self._layer and (found := self._layer.fields(problem.x_shape, problem.spatial_out)):
            return self.resized(problem, found[1], 0)._with_kernel(found[0])
        c, known = channel_blocking(problem), self._cut
        alike = (c.vectors, c.x_near, c.y_near) == (known.vectors, known.x_near, known.y_near)
        if self._folds or known.spread or not alike or _too_large(c):
            return None
        of_maps, pointed = map_fields(c)
        plan = self.resized(problem, of_maps, plan_threads() * c.scratch_bytes)
        plan.__dict__.pop("_layer", None)
        plan._cut, plan._kernel, plan._pointed = c, block_kernel(c), pointed
        return plan

    def on_sizes(self, x_shape: Shape, y_shape: Shape) -> Self | None:
        found = None if self._layer is None else self._layer.fields(x_shape, y_shape[2:])
        return None if found is None else self._of_sizes(x_shape, y_shape, found[1])._with_kernel(found[0])

    def _with_kernel(self, tables: BlockTables) -> Self:
        """This plan, just made for other sizes, with the kernel of its own tables."""
        self.__dict__.pop("_cut", None)
        self._kernel = tables.kernel
        return self

    @cached_attribute
    def _cut(self) -> ChannelBlocking:
        """Of a plan on other maps found when it is first asked for."""
        return channel_blocking(self.problem)

    @cached_attribute
    def _layer(self) -> BlockLayer | None:
        """What plans of this layer on other maps are made of, where it is cut so."""
        return None if self._folds else layer_in_blocks(self._cut)

    def _set_finish(self, fields: Any, y: int, residual: Any, activation: Any) -> np.ndarray:
        """What is kept within bounds is so in registers."""
        numbers = super()._set_finish(fields, y, residual, activation)
        if residual is not None:
            return numbers
        kernel = self._kernel
        if (kind := kind_of_block(kernel, activation)) != CLIP:
            fields.filter_block = filter_block(*kernel, kind)
        elif activation.name != "clip":
            return numbers
        fields.bounds, fields.finish = fields.finish_numbers, 0
        return numbers

    def run_finished(self, *given: Any) -> None:
        *_, workspace = given
        try:
            super().run_finished(*given)
        finally:
            arguments = workspace.arguments
            arguments.bounds = self._address(self._unbounded)
            arguments.filter_block = by_name(self.record).filter_block

    def filter_form(self) -> FilterForm:
        c = self._cut
        return FilterForm.of(
            self.problem, c.blocks, c.vectors, c.lanes, c.groups, c.last_group, lanes_in_lines(c)
        )

    def pack_filter(self, w: np.ndarray) -> np.ndarray:
        taps = taps_by_channel(self._cut, w)
        if taps is None:
            return packed_lanes(self._cut, w)
        return packed_panels(taps[None], self._cut.blocks * self._cut.vectors)


def turns(size: int, lanes: int, form: int) -> tuple[int, int]:
    """`gather` and `place` of maps, which turn pixels to scratch and back."""
    if form == SAME:
        return channel_vectors.gather(size, lanes), channel_vectors.place(size, lanes)
    form = HALF if form == HALF else BRAIN
    return half_pixels.gather_halves(form, lanes), half_pixels.place_halves(form, lanes)


@dataclass(frozen=True)
class Channels(SingleThreaded, SpreadOutputs, Algorithm):
    family: ClassVar[str] = "cpu.depthwise"
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "float64", *HALF_DTYPES)
    reads: ClassVar[tuple[str, ...]] = (*PLAIN, "blocked")
    writes: ClassVar[tuple[str, ...]] = (*PLAIN, "blocked")
    mixes_layouts: ClassVar[bool] = True
    boundaries: ClassVar[tuple[str, ...]] = BOUNDARIES

    @property
    def variant(self) -> str:
        return "channels"

    def why_not(self, problem: ConvProblem) -> str | None:
        return super().why_not(problem) or _unsuited(problem)

    def least_groups(self, problem: ConvProblem) -> int:
        return max(1, min(problem.groups, 2 * groups_of_vector(problem)))

    def knows_border(self, problem: ConvProblem) -> bool:
        return fills_alike(problem)

    def takes_halves(self, problem: ConvProblem) -> bool:
        return super().takes_halves(problem) and half.why_not(problem.dtype) is None

    def cost(self, problem: ConvProblem, machine: Machine) -> float:
        c = channel_blocking(problem)
        p = c.problem
        cycles = machine.peak(p.dtype) / (4 * c.lanes)  # a second, of all cores
        compute = p.N * c.blocks * block_cycles(problem) / cycles * (ONE_TAP if p.is_pointwise else 1.0)
        written = p.y_bytes * (2 if p.y_bytes > machine.l3_bytes / 2 else 1)  # a store reads its line first
        memory = machine.stream(p.x_bytes + written, p.bytes)
        moved = compute + memory
        if c.in_blocks:
            near = p.x_bytes + p.y_bytes < machine.threads * machine.l2_bytes
            moved = BLOCK_SUMS * compute + _block_seconds(p.x_bytes + written, memory, near, machine)
        elif c.fetch:  # lines come while there is something to sum
            moved = max(compute + memory / FETCHED, compute / FETCHED + memory)
        return CALL + machine.launch + moved

    def least(self, problem: ConvProblem, machine: Machine) -> float:
        if _of_other_groups(problem):
            return math.inf
        p, lanes = problem, simd.lanes(computed_bytes(problem))
        cycles = _least_cycles(p)
        compute = p.N * -(-p.groups // groups_of_vector(p)) * cycles * 4 * lanes / machine.peak(p.dtype)
        memory = machine.stream(p.x_bytes + p.y_bytes, p.bytes)
        if {p.layout, p.y_layout} <= BLOCKS.keys():
            return CALL + machine.launch + BLOCK_SUMS * compute + BLOCK_BYTES * memory / IN_L2
        return CALL + machine.launch + compute + memory / 2

    def workspace_bytes(self, problem: ConvProblem) -> int:
        return 0 if problem.is_empty else plan_threads() * channel_blocking(problem).scratch_bytes

    def error_bound(self, problem: ConvProblem) -> float:
        return error_of_sums(problem)

    def plan(self, problem: ConvProblem) -> Plan:
        return ChannelsPlan(problem, self, channel_blocking(problem))

    def spreads(self, problem: ConvProblem) -> bool:
        if problem.y_layout != "channels_last" or self.why_not(problem):
            return False
        c = channel_blocking(problem)
        return c.in_place and not c.has_border

    def plan_spread(self, problem: ConvProblem, spatial: Shape, step: Shape) -> Plan:
        ones = (1,) * (3 - len(step))
        spread = Spread((*ones, *spatial), (*ones, *step))
        return ChannelsPlan(problem, self, replace(channel_blocking(problem), spread=spread))

    def folds(self, problem: ConvProblem) -> bool:
        """Whether it folds a gradient that it computes onto a map, in scratch that L2 holds."""
        return folding_blocking(problem).scratch_bytes <= cache_sizes()[1] // 2

    def folding_bytes(self, problem: ConvProblem) -> int:
        """The workspace of that."""
        return plan_threads() * folding_blocking(problem).scratch_bytes

    def plan_folded(self, problem: ConvProblem, folded: ConvProblem) -> Plan:
        """The gradient of a map with its border, folded onto the map as the problem of this has it."""
        return ChannelsPlan(problem, self, folding_blocking(problem), folded)

    def plan_like(self, problem: ConvProblem, known: Plan) -> Plan:
        found = known.on_maps(problem) if isinstance(known, ChannelsPlan) else None
        if found is None and (reason := _too_large(channel_blocking(problem))):
            raise Unsupported(f"{self.id} cannot serve {problem}: it {reason}")
        return found or self.plan(problem)

    def why_not_on_maps(self, problem: ConvProblem) -> str | None:
        return None  # `plan_like` tells


def _block_seconds(nbytes: float, memory: float, near: bool, machine: Machine) -> float:
    """To move blocks of channels; memory: what a copy of them would take, near: whether they stay in L2."""
    of_caches = BLOCK_BYTES * memory / (IN_L2 if near else 1.0)
    return max(of_caches, nbytes / (machine.cycles * (FROM_L2 if near else FROM_L3)))


def _least_cycles(p: ConvProblem) -> float:
    """Of a vector of groups of one image, at least. Products with padding are left out."""
    rows, columns = math.prod(p.spatial_out[:-1]), p.spatial_out[-1]
    blocks = -(-columns // MOST_PIXELS[vector_bytes()][1])  # of columns, at least
    kernel_rows = math.prod([taps_met(p, d) for d in range(p.ndim - 1)])
    cycles = kernel_rows * (0.5 * p.w_shape[1] * taps_met(p, -1) + 4 * blocks)
    cycles += rows * (6 * blocks + 0.6 * columns)
    if p.layout == "channels_first":  # pixels are turned
        cycles += 2 * rows * columns
        if p.ndim == 1:
            cycles += 2 * p.spatial[0]
        elif p.kernel_extent[-2] >= p.stride[-2]:
            reach = (p.spatial_out[-2] - 1) * p.stride[-2] + p.kernel_extent[-2]
            cycles += 2 * math.prod(p.spatial[:-2]) * min(p.spatial[-2], reach) * p.spatial[-1]
    return cycles


def _of_other_groups(problem: ConvProblem) -> str | None:
    """Why the channels and filters of a problem are not for this; told without cutting it."""
    lanes = simd.lanes(computed_bytes(problem))
    if problem.groups == 1 and problem.C > 1:
        return "filters groups of few channels, and this is one group of all"
    if max(problem.w_shape[1], problem.gemm_n) > lanes:
        return (
            f"holds whole groups in vectors of {lanes} lanes, and these have "
            f"{problem.w_shape[1]} channels and {problem.gemm_n} filters"
        )
    if not (problem.w_shape[1] or problem.gemm_n):
        return "holds whole groups in vectors, and these have no channels and no filters"
    whole = simd.lanes(problem.itemsize) == lanes  # else blocks are longer than vectors of what is summed
    if not whole and (problem.layout != problem.y_layout or problem.layout not in PLAIN):
        return f"reads {problem.dtype} in {' and '.join(PLAIN)} only, and writes the layout that it reads"
    groups = groups_of_vector(problem)
    counts = problem.w_shape[1], problem.gemm_n
    for name, layout, count, whole in (
        ("x", problem.layout, counts[0], channels_read(lanes, *counts) > 0),
        ("y", problem.y_layout, counts[1], groups * counts[1] == lanes),
    ):
        if layout in BLOCKS and not whole:
            return (
                f"holds {groups} groups in a vector, whose {groups * count} channels of {name} are no block"
            )
    return None


def _unsuited(problem: ConvProblem) -> str | None:
    reason = _of_other_groups(problem)
    return reason or (None if problem.is_empty else _too_large(channel_blocking(problem)))


def _too_large(c: ChannelBlocking) -> str | None:
    if c.scratch_bytes > MOST_SCRATCH:
        return f"copies whole rows, here {c.scratch_bytes} bytes for each thread and at most {MOST_SCRATCH}"
    if c.range_bytes > MOST_SCRATCH:
        return f"has a table of taps for each block that meets padding, here {c.range_bytes} bytes in all"
    return None


ALGORITHMS = (Channels(),)
