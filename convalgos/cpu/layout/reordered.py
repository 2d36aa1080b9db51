"""An algorithm of the CPU in the other layout, between two reorders: oneDNN's reorder before and behind it.

With few channels, vectors of channels are mostly empty, while rows of pixels fill them: to take RGB images
from channels_last into channels_first, and y back, costs less than what is then saved. Where x or y is the
same memory in both layouts (one channel, or one pixel) that one is not moved.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from convalgos.core.algorithm import Algorithm
from convalgos.core.allocator import aligned_empty
from convalgos.core.backward.by_forward import ByForward
from convalgos.core.layouts import PLAIN
from convalgos.core.machine import Machine
from convalgos.core.plan import Plan
from convalgos.core.prepared_filter import FilterForm
from convalgos.core.problem import ConvProblem
from convalgos.cpu.layout import reorder
from convalgos.cpu.runtime.wrapping_plan import WrappingPlan
from convalgos.cpu.vectors import simd

NAME = "reordered"  # the last word of the ids
BYTES = {"float32": 4, "float64": 8}  # of an element, of the maps that reorders move
LARGE = 81  # taps of a channel's window; Zen 4
# Families that bring either layout into vectors of channels: they take as long in both, and gain nothing.
EITHER = (
    "cpu.winograd",
    "cpu.winograd.half",
    "cpu.winograd.int8",
    "cpu.winograd.int16",
    "cpu.fft_tiles",
    "cpu.reference",
    "cpu.sparse",
)


def is_promising(problem: ConvProblem) -> bool:
    """Whether a choice should price algorithms so: maps of x or of y that leave vectors of channels empty,
    and large windows of one channel each, whose transforms and lines are those of rows.

    On other maps of more channels, and from channels_first, no algorithm was found that is faster in the
    other layout by as much as the reorders take.
    """
    few = min(problem.C, problem.K) < simd.lanes(problem.itemsize)
    large = problem.w_shape[1] == 1 and math.prod(problem.kernel) >= LARGE
    return (
        (few or large)
        and problem.dtype in BYTES
        and problem.layout == problem.reread.layout == "channels_last"
    )


@dataclass(frozen=True)
class Reordered(ByForward):
    """`inner`, in the form in which it computes the direction."""

    @property
    def directions(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.inner.directions

    @property
    def variant(self) -> str:
        return ".".join(filter(None, (self.inner.variant, NAME)))

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(dict.fromkeys((*self.inner.needs, "llvmlite")))

    @property
    def searches(self) -> bool:
        return self.inner.searches

    def forwards(self, problem: ConvProblem) -> list[ConvProblem]:
        return [problem.relaid]

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := self.inner.why_not(problem if problem.is_empty else problem.relaid):
            return reason
        if problem.dtype not in BYTES or problem.y_dtype not in BYTES:
            return f"moves maps of {' and '.join(BYTES)} only"
        return super().why_not(problem)

    def takes_halves(self, problem: ConvProblem) -> bool:
        """Maps of 16 bits are widened before they are moved."""
        return False

    def within(
        self, problem: ConvProblem, *, workspace_limit: int | None, deterministic: bool, strict_nan: bool
    ) -> Algorithm:
        limits = {"deterministic": deterministic, "strict_nan": strict_nan}
        inner = self.inner.within(problem.relaid, workspace_limit=workspace_limit, **limits)
        return self if inner is self.inner else replace(self, inner=inner)

    def note(self, problem: ConvProblem) -> str:
        return f"in {problem.relaid.layout}"

    def cost(self, problem: ConvProblem, machine: Machine) -> float:
        return self._moving(problem, machine) + self.inner.cost(problem.relaid, machine)

    def least(self, problem: ConvProblem, machine: Machine) -> float:
        if problem.is_empty:
            return 0.0
        return self._moving(problem, machine) + self.inner.least(problem.relaid, machine)

    def closely(self, problem: ConvProblem, machine: Machine) -> float:
        return self._moving(problem, machine) + self.inner.closely(problem.relaid, machine)

    def granule(self, problem: ConvProblem) -> tuple[int, ...]:
        return self.inner.granule(problem.relaid)

    def filter_bytes(self, problem: ConvProblem) -> int:
        return self.inner.filter_bytes(problem.relaid)

    def workspace_bytes(self, problem: ConvProblem) -> int:
        """x and y in the other layout, and what the algorithm needs."""
        if problem.is_empty:
            return 0
        maps = sum(nbytes for shape, nbytes in _maps(problem) if not reorder.is_same(shape, *PLAIN))
        return maps + self.inner.workspace_bytes(problem.relaid)

    def _moving(self, problem: ConvProblem, machine: Any) -> float:
        times = [
            reorder.reorder_seconds(shape, problem.itemsize, *PLAIN, machine) for shape, _ in _maps(problem)
        ]
        return sum(seconds + reorder.REORDER_CALL for seconds in times if seconds)

    def plan(self, problem: ConvProblem) -> Plan:
        return ReorderedPlan(problem, self)


def _maps(problem: ConvProblem) -> tuple[tuple[tuple[int, ...], int], ...]:
    """(logical shape, bytes) of the arrays that have a layout: x and y, or their gradients."""
    return (problem.x_shape, problem.x_bytes), (problem.y_shape, problem.y_bytes)


class ReorderedPlan(WrappingPlan):
    def __init__(self, problem: ConvProblem, algorithm: Reordered):
        super().__init__(problem, algorithm, algorithm.inner.plan(problem.relaid))
        self._weights = problem.direction == "backward_weights"

    def filter_form(self) -> FilterForm | ConvProblem:
        return self.problem if self._weights else super().filter_form()

    def prepare_filter(self, w: np.ndarray) -> Any:
        """The filter as the algorithm wants it; dy itself."""
        return w if self._weights else super().prepare_filter(w)

    def new_workspace(self) -> ReorderedWorkspace:
        return ReorderedWorkspace(self.problem, self._inner.new_workspace())

    def run(
        self,
        x: np.ndarray,
        w: Any,
        bias: np.ndarray | None,
        activation: str | None,
        y: np.ndarray,
        workspace: Any,
    ) -> None:
        x = workspace.first.moved(x)
        if self._weights:
            w = self._inner.prepare_filter(workspace.other.moved(w))
            self._inner.run(x, w, bias, activation, y, workspace.inner)
            return
        target = workspace.other.view(y)
        self._inner.run(x, w, bias, activation, target, workspace.inner)
        workspace.other.move_back(target, y)


class ReorderedWorkspace:
    """Of one run at a time: maps in the other layout, what moves them, and what the algorithm needs."""

    def __init__(self, problem: ConvProblem, inner: Any):
        shapes = {"x": problem.x_shape, "y": problem.y_shape}
        names = [name[-1] for name in problem.arrays if name[-1] != "w"]  # the first is read first
        back = problem.direction != "backward_weights"  # whether the other one is written
        self.inner = inner
        self.first = ReorderedMap(problem, shapes[names[0]], False)
        self.other = ReorderedMap(problem, shapes[names[1]], back)


class ReorderedMap:
    """An array of the problem in the other layout."""

    def __init__(self, problem: ConvProblem, shape: tuple[int, ...], written: bool):
        other = problem.relaid
        self._shape = other.array_shape(shape)
        self._array = self._reorder = None
        if not reorder.is_same(shape, *PLAIN):
            dtype = np.dtype(problem.dtype)
            self._array = aligned_empty(int(np.prod(shape)), dtype).reshape(self._shape)
            layouts = (other.layout, problem.layout) if written else (problem.layout, other.layout)
            self._reorder = reorder.Reorder(shape, dtype.itemsize, *layouts)

    def view(self, array: np.ndarray) -> np.ndarray:
        """Where the algorithm reads or writes it."""
        return array.reshape(self._shape) if self._array is None else self._array

    def moved(self, array: np.ndarray) -> np.ndarray:
        """An array of the problem, brought into the other layout."""
        target = self.view(array)
        if self._reorder is not None:
            self._reorder(array, target)
        return target

    def move_back(self, target: np.ndarray, array: np.ndarray) -> None:
        """What was computed in `view(array)`, brought into the array."""
        if self._reorder is not None:
            self._reorder(target, array)
