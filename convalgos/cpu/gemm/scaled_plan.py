"""The plan of a pointwise convolution of maps whose channels are scaled first, as by squeeze and excitation.

The scales of an image go into the filters, a pass over a panel at a time: the map is read once, and nothing
of it is written.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from convalgos.core.allocator import aligned_empty, whole_lines
from convalgos.core.bound_run import BoundRun, check_bound, checked_scratch, image_step
from convalgos.core.epilogue import Activation
from convalgos.core.machine import Machine
from convalgos.core.prepared_filter import PreparedFilter
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm.blocked_plan import BlockedPlan
from convalgos.cpu.gemm.packed_blocking import seconds
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.rebinding import RunSettings
from convalgos.cpu.runtime.record_changes import changed_record
from convalgos.cpu.runtime.threads import plan_threads
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.simd import Value, Vec, emitter

SCALING = "scale", "scale_n", "scaled", "scaled_bytes", "scale_rows"  # fields of a record
SCALED = 1.5  # cycles of a vector of filters; Xeon (Granite Rapids)


@emitter
def scale_vectors(v: Vec, source: Value, target: Value, rows: Value, vectors: Value, numbers: Value) -> None:
    """target[r][j][:] = source[r][j][:] * numbers[r]."""
    read, to = v.pointer(source), v.pointer(target)
    with v.loop(rows) as r:
        number = v.broadcast(v.pointer(numbers), r)
        with v.loop(vectors) as j:
            at = v.imul(v.iadd(v.imul(r, vectors), j), v.lanes)
            v.store(v.fmul(v.load(read, at), number), to, at)


@jit.specialise
def scale_filter_rows(SIZE: int, LANES: int) -> jit.Kernel:
    """`scale_vectors`."""

    def scale_filter_rows(source: int, target: int, rows: int, vectors: int, numbers: int) -> None:
        scale_vectors(SIZE, LANES, source, target, rows, vectors, numbers)

    return scale_filter_rows


def takes_scale(plan: object) -> bool:
    """Whether the kernels of a plan can scale what it reads."""
    if not isinstance(plan, BlockedPlan):
        return False
    p = plan.problem
    return bool(p.is_plain_product and p.groups == 1 and p.dtype == "float32" and p.layout == p.y_layout)


class ScaledSettings(NamedTuple):
    """What runs of a layer have in common, whatever the sizes of its maps."""

    of_plan: RunSettings  # of the convolution
    scale_step: int  # elements from the numbers of an image to those of the next


class ScaledPlan:
    """y = activation(conv(x * scale, w) + bias + residual), for one number of each map of x.

    Args:
        plan: of the convolution, for which `takes_scale`; its prepared filters serve.
    """

    strided_batch = True

    def __init__(self, plan: BlockedPlan):
        cut, self._itemsize = plan._cut, plan.problem.itemsize
        self._pass_bytes = whole_lines(cut.chunk * cut.inner * cut.panel * self._itemsize)
        self._set_plan(plan)

    def _set_plan(self, plan: BlockedPlan) -> None:
        self.plan, self._key = plan, plan._key
        self.scratch_bytes = whole_lines(plan.scratch_bytes or 0) + plan_threads() * self._pass_bytes

    def of_sizes(self, plan: BlockedPlan) -> ScaledPlan:
        """This plan for other sizes of the maps; plan: that of the convolution, of the same layer."""
        made = ScaledPlan.__new__(ScaledPlan)
        made._itemsize, made._pass_bytes = self._itemsize, self._pass_bytes
        made._set_plan(plan)
        return made

    @property
    def problem(self) -> ConvProblem:
        return self.plan.problem

    @property
    def algorithm(self) -> str:
        """What reports call it."""
        return self.plan.algorithm

    def prepare(self, w: np.ndarray) -> PreparedFilter:
        """The filter in the plan's form."""
        return self.plan.prepare(w)

    def bind(
        self, x: np.ndarray, scale: np.ndarray, w: PreparedFilter, y: np.ndarray, bias: np.ndarray | None,
        activation: Activation | None, residual: np.ndarray | None, scratch: np.ndarray | None = None,
    ) -> BoundRun:  # fmt: skip
        """A run on these very arrays; see `Plan.bind`.

        Args:
            scale: of each map of x, (N, C, 1, 1) or blocks of these.

        Raises:
            ValueError, TypeError, Unsupported: an array is not as the plan takes it.
        """
        p = self.problem
        check_bound("scale", scale, scale.shape, np.dtype(p.dtype), strided=True)
        if len(scale) != p.N or scale[0].size not in (p.C, p.array_shapes[0][1] * p.array_shapes[0][-1]):
            raise ValueError(f"scale has shape {scale.shape}, but the run takes {(p.N, p.C, 1, 1)} or blocks")
        scratch = checked_scratch(scratch, self.scratch_bytes)
        if scratch is None:
            scratch = aligned_empty(self.scratch_bytes, np.uint8)
        plan = self._scaling(scale.ctypes.data, image_step(scale), scratch.ctypes.data)
        run = plan.bind(x, w, y, bias, activation, residual, scratch)
        whole = scale.flags.c_contiguous  # as runs bound again have it
        settings = ScaledSettings(run.settings, image_step(scale)) if run.settings and whole else None
        return BoundRun(run.call, run.launches, (*run.kept, scale, scratch), settings=settings)

    def bound_again(
        self, settings: ScaledSettings, x: Sequence[int], y: Sequence[int], scratch: int, told: bool
    ) -> BoundRun | None:
        """A run as `bind` gave it for other sizes of the maps; see `Plan.bound_again`."""
        plan = self._scaling(x[1], settings.scale_step, scratch)
        return plan.bound_again(settings.of_plan, (x[0], *x[2:]), y, scratch, False)

    def _scaling(self, scale: int, step: int, scratch: int) -> BlockedPlan:
        """The plan, but for its record, which says where the numbers lie, and where filters are scaled.

        Args:
            scale, scratch: addresses. step: elements from the numbers of an image to those of the next.
        """
        plan, size = copy.copy(self.plan), self._itemsize
        scaled = scratch + whole_lines(self.plan.scratch_bytes or 0)
        kernel = scale_filter_rows(size, simd.lanes(size))
        plan.record = changed_record(plan.record, SCALING, (scale, step, scaled, self._pass_bytes, kernel))
        return plan


def scaling_seconds(problem: ConvProblem, machine: Machine) -> float:
    """To scale the filters of a convolution, which threads share, for all images."""
    cycles = SCALED * problem.N * problem.w_bytes / (simd.lanes(4) * 4 * machine.threads)
    return seconds(cycles, problem, machine)
