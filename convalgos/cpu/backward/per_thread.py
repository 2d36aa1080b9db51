"""The gradient of the input slice by slice: each thread computes all phases of a slice, and interleaves them.

A slice is some images, or some groups of an image. For each slice a thread

1. runs the kernels of all sub-problems, planned for a slice and for one thread, into scratch in its caches;
2. interleaves what they computed into the slice of dx.

So dy and dx pass memory once, and all is one parallel region.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.core.backward.by_forward import ByForward
from convalgos.core.bound_run import BoundRun, Launch, address_words
from convalgos.core.plan import numpy_dtype
from convalgos.core.prepared_filter import FilterForm, PreparedFilter
from convalgos.core.problem import ConvProblem
from convalgos.cpu.backward import interleave
from convalgos.cpu.backward.bound_parts import BoundParts
from convalgos.cpu.backward.slices import Slicing, slices_workspace_bytes
from convalgos.cpu.backward.subproblems import filters_of, has_views, subproblems
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.half import computed_bytes
from convalgos.cpu.runtime.plan import Packed, arguments, fields
from convalgos.cpu.runtime.rebinding import RUN_FIELDS
from convalgos.cpu.runtime.threads import on_one_thread, plan_threads, worth_sharing
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.simd import call, carray, pointer

# --- kernels ---------------------------------------------------------------------------------

# A kernel of a phase's plan, or the one that interleaves, and what its record holds for a slice: addresses,
# and bytes between the images and the groups. w: addresses of the filters of each slice of groups, or 0.
SLICE_STEP = fields("kernel record x x_n x_g w y y_n y_g bias bias_g scratch")
RUN_ARGUMENTS = fields(RUN_FIELDS)  # of any record the first ones
SLICES_ARGUMENTS = arguments("slices steps step_count first_images first_groups images groups tasks")


@jit.specialise
def run_slices() -> Callable[..., None]:
    """Slices, dealt to the tasks in equal runs. For each slice the steps of its task, one after the other:

    1. set the addresses of the slice in the record of a kernel;
    2. run the kernel: of a sub-problem, or at last the one that interleaves.
    """

    def run_slices(args: int, task: int) -> None:
        a = carray(pointer(args), 1, SLICES_ARGUMENTS)[0]
        first_images = carray(pointer(a.first_images), a.images, np.int64)
        first_groups = carray(pointer(a.first_groups), a.groups, np.int64)
        steps = carray(pointer(a.steps), a.tasks * a.step_count, SLICE_STEP)
        for item in range(a.slices * task // a.tasks, a.slices * (task + 1) // a.tasks):
            part = item % a.groups
            n, g = first_images[item // a.groups], first_groups[part]
            for i in range(task * a.step_count, (task + 1) * a.step_count):
                s = steps[i]
                run = carray(pointer(s.record), 1, RUN_ARGUMENTS)[0]
                run.x = s.x + n * s.x_n + g * s.x_g
                if s.w:
                    run.w = carray(pointer(s.w), a.groups, np.int64)[part]
                run.y = s.y + n * s.y_n + g * s.y_g
                run.bias = s.bias + g * s.bias_g
                run.relu = a.relu
                run.scratch = s.scratch
                call(s.kernel, (s.record, 0))

    return run_slices


# --- plan ------------------------------------------------------------------------------------


class SlicedPlan(BoundParts):
    def __init__(self, problem: ConvProblem, algorithm: ByForward, cut: Slicing):
        super().__init__(problem, algorithm, slices_workspace_bytes(cut, algorithm.inner))
        self._where = jit.data_address()
        self.cut, self.tasks = cut, min(plan_threads(), cut.count)
        self._parallel = worth_sharing(problem)
        with on_one_thread():
            shared: dict[Any, Any] = {f: algorithm.child_plan(f) for f, _ in cut.forwards}  # kernel plans
        self.plans: list[Any] = [shared[p.forward] if p.forward else None for p in cut.subproblems]
        self.subproblems = subproblems(problem, cut.spare)
        self._as_views = [plan is None or plan.takes_views for plan in self.plans]
        any_order = all(plan is None or plan.any_order for plan in self.plans)
        self.any_order = any_order and has_views(self.subproblems, problem)
        self.together = len(self.subproblems[0].phases)
        self.tables = interleave.phase_sizes(cut.slice, self.together)

    def filter_form(self) -> FilterForm:
        starts = tuple(map(tuple, self.cut.starts))
        forms = (plan and plan.filter_form() for plan in self.plans)
        return FilterForm.of(self.problem, self.problem, starts, *forms)

    def prepare_filter(self, w: np.ndarray) -> list[SlicedFilters]:
        p = self.problem
        found = []
        filters = filters_of(self.subproblems, w, p.groups, self._as_views)
        for rotated, plan in zip(filters, self.plans, strict=True):
            if rotated is not None:
                first = [group * p.w_shape[1] for group in self.cut.starts[1]]  # channels of the slices
                packed = [plan.prepare_filter(rotated[c : c + plan.problem.K]) for c in first]
                found.append(SlicedFilters(packed, np.array([f.address for f in packed])))
        return found

    def new_workspace(self) -> SlicesWorkspace:
        return SlicesWorkspace(self)

    def run(
        self, x: np.ndarray, w: Any, bias: np.ndarray | None, activation: str | None, y: np.ndarray,
        workspace: Any,
    ) -> None:  # fmt: skip
        parts = [np.ascontiguousarray(part) for part in self._parts(x)]
        workspace.set_run(parts, w, y, bias, activation)
        jit.launch(run_slices(), workspace.record.ctypes.data, self.tasks, self._parallel)

    def _launched(
        self, x: np.ndarray, parts: list[np.ndarray], w: PreparedFilter, y: np.ndarray,
        bias: np.ndarray | None, activation: str | None, scratch: np.ndarray | None,
    ) -> BoundRun:  # fmt: skip
        workspace = self.new_workspace()
        workspace.set_run(parts, w.data, y, bias, activation)
        launch = Launch(run_slices(), workspace.record.ctypes.data, self.tasks, not self._parallel)
        x_words, y_words = workspace.words()
        return jit.bound_run(
            (launch,),
            self,
            x,
            w,
            y,
            workspace,
            x_places=address_words(x, x_words),
            y_places=address_words(y, y_words),
        )

    def _parts(self, x: np.ndarray) -> list[np.ndarray]:
        layout = self.problem.layout
        return [p.whole.part(x, layout) for p in self.subproblems if p.forward]


class SlicedFilters(NamedTuple):
    """Of a sub-problem."""

    packed: list[Packed]  # of each slice of the groups
    addresses: np.ndarray  # theirs


class SlicesWorkspace:
    """Tables, scratch and biases of one run at a time."""

    def __init__(self, plan: SlicedPlan):
        p, cut = plan.problem, plan.cut
        size, wide, scratch_bytes = p.itemsize, computed_bytes(p), plan.workspace_bytes // plan.tasks
        self._problem, self._together = p, plan.together
        self._scratch = aligned_empty(plan.workspace_bytes, np.uint8)
        # with spare elements for the last vectors that kernels read
        self._biases = np.zeros(plan.together * p.C + 2 * simd.lanes(wide), p.compute_dtype)
        self._filled = not all(plan.plans)  # whether there are phases that no tap reaches
        self._fill = interleave.fill_rows(p, np.zeros(p.C if self._filled else 0, numpy_dtype(p.dtype)))
        self._finished = False  # whether biases and fill are other than zeros
        self._kept: list[np.ndarray] = []  # what records and tables have addresses of
        biases = (self._biases.ctypes.data, p.w_shape[1] * wide)
        fill = (self._fill.ctypes.data, p.w_shape[1] * interleave.fill_row(p))

        steps = []  # of all tasks, as `SLICE_STEP`
        for task in range(plan.tasks):
            part = self._scratch.ctypes.data + task * scratch_bytes
            places, work = [], part + sum(cut.part_bytes)
            for child, inner, part_bytes in zip(plan.subproblems, plan.plans, cut.part_bytes, strict=True):
                places += [part + start * size if inner else 0 for start in child.starts(p.layout)]
                if inner and child.forward:
                    record, x = self._address(inner.record.copy()), _between(child.forward.x_shape, p)
                    steps += [(k, record, 0, *x, 0, part, 0, 0, *biases, work) for k, _ in inner.steps]
                part += part_bytes
            record = self._address(
                interleave.interleave_arguments(cut.slice, 1, plan.tables, plan.together, cut.stage[0])
            )
            table = self._address(interleave.places(cut.slice, places))
            y = _between(p.x_shape, p)
            steps.append((interleave.interleave_kernel(p), record, table, 0, 0, 0, 0, *y, *fill, work))
        self._steps = np.array(steps, SLICE_STEP).reshape(plan.tasks, -1)
        self.of_dx = self._steps[:, -1]
        ends = list(accumulate(len(inner.steps) for inner in plan.plans if inner))
        self.of_subproblems = [self._steps[:, a:b] for a, b in pairwise([0, *ends])]
        starts = [np.array(s, np.int64) for s in cut.starts]
        self.record = np.zeros(1, SLICES_ARGUMENTS)
        values = {
            "slices": cut.count, "steps": self._steps.ctypes.data, "step_count": self._steps.shape[1],
            "first_images": self._address(starts[0]), "first_groups": self._address(starts[1]),
            "images": len(starts[0]), "groups": len(starts[1]), "tasks": plan.tasks,
        }  # fmt: skip
        for name, value in values.items():
            self.record[name] = value

    def _address(self, array: np.ndarray) -> int:
        self._kept.append(array)
        return array.ctypes.data

    def set_run(
        self, parts: Sequence[np.ndarray], w: Sequence[SlicedFilters], y: np.ndarray,
        bias: np.ndarray | None, activation: str | None,
    ) -> None:  # fmt: skip
        """Complete the tables for a run."""
        for dy, filters, steps in zip(parts, w, self.of_subproblems, strict=True):
            steps["x"], steps["w"] = dy.ctypes.data, filters.addresses.ctypes.data
        self.of_dx["y"] = y.ctypes.data
        self._finish_with(bias, activation)

    def words(self) -> tuple[list[int], list[int]]:
        """Addresses of the words that hold the addresses of dy and dx."""
        of_dy = [a for steps in self.of_subproblems for row in steps for a in _words(row["x"])]
        return of_dy, _words(self.of_dx["y"])

    def _finish_with(self, bias: np.ndarray | None, activation: str | None) -> None:
        """What is added to dx and what it is at least."""
        self.record["relu"] = activation is not None
        if bias is None and not self._finished:
            return
        self._finished = bias is not None
        added = np.zeros(self._problem.C, self._biases.dtype) if bias is None else bias
        of_subproblems = np.tile(added, self._together)
        self._biases[: len(of_subproblems)] = of_subproblems
        if self._filled:
            fill = added if activation is None else np.maximum(added, 0)
            self._fill[...] = interleave.fill_rows(self._problem, fill)


def _words(column: np.ndarray) -> list[int]:
    """The addresses of the elements of a column."""
    return [column.ctypes.data + i * column.strides[0] for i in range(len(column))]


def _between(shape: Sequence[int], problem: ConvProblem) -> tuple[int, int]:
    """Bytes between the images, and between the groups, of an array of a logical shape."""
    image = math.prod(shape[1:]) * problem.itemsize
    return image, image // problem.groups
