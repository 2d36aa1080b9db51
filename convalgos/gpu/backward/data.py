"""dgrad on the GPU by any forward algorithm: a forward convolution of dy for each phase of the stride.

Without a stride, the algorithm writes dx itself. With one, each phase is computed into the workspace, and one
more kernel interleaves them into dx.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

import numpy as np

from convalgos.core.backward.by_forward import ByForward
from convalgos.core.backward.polyphase import Phase, is_whole, phases
from convalgos.core.problem import LAYOUTS, ConvProblem
from convalgos.gpu.compile.module import ELEMENTS, Build
from convalgos.gpu.device import GpuMachine
from convalgos.gpu.launch.algorithm import GpuAlgorithm
from convalgos.gpu.launch.grid import GRID_X, NO_BIAS, VECTOR_BYTES, ceil_div
from convalgos.gpu.launch.kernel_records import DIVISOR, record_of
from convalgos.gpu.launch.plan import GpuPlan

INTERLEAVING, THREADS = "interleave.cu", 256  # of a block, as there
# `Params` of interleave.cu.
INTERLEAVE_PARAMS = np.dtype(
    [
        (name, DIVISOR)
        for name in ("blocks", "channels", "columns", "rows", "depth", "step_w", "step_h", "step_d")
    ]
)
PHASE = np.dtype([("first", np.int64), ("size", np.int32, 3), ("spare", np.int32)])


def interleave_build(dtype: str, layout: str) -> Build:
    last = int(layout == "channels_last")
    return Build.of(INTERLEAVING, element_t=ELEMENTS[dtype], CHANNELS_LAST=last)


def interleave_blocks(problem: ConvProblem) -> int:
    """Of an image of dx."""
    return ceil_div(math.prod(problem.x_shape[1:]), THREADS)


@dataclass(frozen=True)
class GpuByForward(ByForward, GpuAlgorithm):  # type: ignore[override]
    """A forward algorithm of a GPU in another direction."""

    inner: GpuAlgorithm

    @property
    def computes(self) -> dict[str, tuple[str, ...]]:  # type: ignore[override]
        return self.inner.computes

    @property
    def capability(self) -> tuple[int, int]:  # type: ignore[override]
        return self.inner.capability

    @property
    def until(self) -> tuple[int, int] | None:  # type: ignore[override]
        return self.inner.until

    def builds(self) -> Iterable[Build]:
        return self.inner.builds()

    def spills(self, build: Build, arch: str) -> int:
        return self.inner.spills(build, arch)


@dataclass(frozen=True)
class BackwardData(GpuByForward):
    """A forward algorithm of a GPU, asked for the gradient of the input."""

    directions: ClassVar[tuple[str, ...]] = ("backward_data",)

    def builds(self) -> Iterable[Build]:
        yield from self.inner.builds()
        yield from (interleave_build(dtype, layout) for dtype, layout in product(self.dtypes, LAYOUTS))

    def spills(self, build: Build, arch: str) -> int:
        return 0 if build.source == INTERLEAVING else self.inner.spills(build, arch)

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := super().why_not(problem):
            return reason
        few = problem.is_empty or is_whole(problem) or interleave_blocks(problem) * problem.N <= GRID_X
        return None if few else "needs more blocks than a launch may have"

    def variants(self, problem: ConvProblem) -> Iterable[GpuAlgorithm]:
        """Those of the forward algorithm, where it runs once."""
        forwards = self.forwards(problem) if not problem.is_empty and is_whole(problem) else []
        return [BackwardData(v) for f in forwards for v in self.inner.variants(f)]

    def forwards(self, problem: ConvProblem) -> list[ConvProblem]:
        return [p.forward for p in phases(problem) if p.forward is not None]

    def cost(self, problem: ConvProblem, machine: GpuMachine) -> float:
        sums = sum(self.inner.cost(f, machine) for f in self.forwards(problem))
        if is_whole(problem):
            return sums
        return sums + machine.launch + machine.stream(2 * problem.x_bytes)

    def workspace_bytes(self, problem: ConvProblem) -> int:
        """The phases of dx, and what one of them needs: it comes from the pool for one after the other."""
        if problem.is_empty:
            return 0
        part = 0 if is_whole(problem) else _places(problem)[1] * problem.itemsize
        return part + max((self.inner.workspace_bytes(f) for f in self.forwards(problem)), default=0)

    def plan(self, problem: ConvProblem) -> GpuPlan:
        return BackwardDataPlan(problem, self)


def _places(problem: ConvProblem) -> tuple[dict[Phase, int], int]:
    """(the first element of each phase that taps reach, elements of all of them), one after the other."""
    each, found, end = VECTOR_BYTES // problem.itemsize, {}, 0
    for phase in phases(problem):
        if phase.forward is not None:
            found[phase] = end
            end += ceil_div(problem.N * problem.C * math.prod(phase.size), each) * each
    return found, end


class BackwardDataPlan(GpuPlan):
    def __init__(self, problem: ConvProblem, algorithm: BackwardData):
        super().__init__(problem, algorithm, algorithm.workspace_bytes(problem))
        with self.device.gathering():
            self._plans: dict[Phase, Any] = {
                p: algorithm.child_plan(p.forward) for p in phases(problem) if p.forward is not None
            }
            self._interleave = None if is_whole(problem) else self._interleaving()
        self.fuses = all(plan.fuses for plan in self._plans.values())
        self.launches += [launch for plan in self._plans.values() for launch in plan.launches]
        self.uncapturable = next((p.uncapturable for p in self._plans.values() if p.uncapturable), None)  # type: ignore[misc]

    def _interleaving(self) -> Any:
        """The kernel that puts the phases into their places."""
        problem = self.problem
        self._first, self._elements = _places(problem)
        wide = problem.as_3d
        steps = tuple(map(min, wide.stride, wide.spatial))  # beyond its end, a dimension has no phases
        table = np.zeros(math.prod(steps), PHASE)  # (steps d, h, w)
        table["first"] = -1
        for phase in phases(problem):
            start, size = (
                (fill,) * (3 - problem.ndim) + v for fill, v in ((0, phase.start), (1, phase.size))
            )
            row = table[np.ravel_multi_index(start, steps)]
            row["first"], row["size"] = self._first.get(phase, -1), size
        self._table = self.device.table(table.view(np.int64))  # (steps d, h, w, 3)
        per_image = interleave_blocks(problem)
        numbers = (per_image, problem.C, *reversed(wide.spatial), *reversed(steps))
        params = dict(zip(INTERLEAVE_PARAMS.names or (), numbers, strict=True))
        self._params = self.by_value(record_of(INTERLEAVE_PARAMS, params))
        module = interleave_build(problem.dtype, problem.layout)
        return self.launch(module, "interleave", (per_image * problem.N,), THREADS)

    def prepare_filter(self, w: Any) -> Any:
        """A filter (C, K/groups, *taps) in its own form for each phase."""
        groups, xp = self.problem.groups, self.device.xp
        return {
            p: plan.prepare_filter(xp.ascontiguousarray(p.filter(w, groups)))
            for p, plan in self._plans.items()
        }

    def workspace(self) -> Any:
        """None: each phase takes its own."""

    def run(self, x: Any, w: Any, bias: Any, activation: str | None, y: Any, workspace: Any) -> None:
        p = self.problem
        parts = None if self._interleave is None else self.device.xp.empty(self._elements, self._dtype)
        for phase, plan in self._plans.items():
            target = y
            if parts is not None:
                shape, first = p.array_shape((p.N, p.C, *phase.size)), self._first[phase]
                target = parts[first : first + math.prod(shape)].reshape(shape)
            dy = self._vectors(phase.part(x, p.layout))
            plan.run(dy, w[phase], bias, activation, target, plan.workspace())
        if self._interleave is not None:
            conv = self.conv[activation is not None]
            self._interleave(parts, NO_BIAS if bias is None else bias, y, self._table, conv, self._params)
