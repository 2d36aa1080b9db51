"""The gradient of the input slice by slice: each thread computes all phases of one, and interleaves them.

A slice is some images, or some groups of an image. A thread runs the kernels of the plans of its `pieces`,
each made for a slice and for one thread, into scratch that stays in its caches, and writes the slice of dx
from there: dy and dx pass memory once, and all is one parallel region.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from convalgos.core.algorithm import Algorithm
from convalgos.core.allocator import aligned_empty, whole_lines
from convalgos.core.backward.polyphase import is_whole
from convalgos.core.cached_attribute import kept
from convalgos.core.machine import Machine, cache_sizes
from convalgos.core.plan import Plan
from convalgos.core.problem import ConvProblem
from convalgos.cpu.backward import interleave
from convalgos.cpu.backward.subproblems import Piece, filters_of, pieces
from convalgos.cpu.layout import streaming
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import CALL, Packed, arguments, fields
from convalgos.cpu.runtime.threads import Lone, alone, thread_count, worth_sharing
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.simd import call, carray, pointer

SHARE = 0.8  # of the time of all threads, at least, that slices must fill; else all compute together
SHOWN = 0.5  # of the time in which dy and dx are moved, which the sums do not hide

# --- shapes ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Slicing:
    """How a problem is cut; the last slice of images, and of groups, overlaps the one before."""

    problem: ConvProblem
    images: int  # of a slice
    groups: int  # of a slice; all of them where it has several images
    spare: float = 0.0  # as of `pieces`

    @kept
    def slice(self) -> ConvProblem:
        p = self.problem
        channels, filters = self.groups * p.w_shape[1], self.groups * p.gemm_n
        return p.replace(
            x_shape=(self.images, channels, *p.spatial),
            w_shape=(filters, *p.w_shape[1:]),
            groups=self.groups,
        )

    @property
    def numbers(self) -> tuple[int, int]:
        """Of slices of images and of groups."""
        return -(-self.problem.N // self.images), -(-self.problem.groups // self.groups)

    @property
    def count(self) -> int:
        return math.prod(self.numbers)

    @property
    def starts(self) -> tuple[list[int], list[int]]:
        """First images, and first groups, of the slices."""
        p = self.problem
        return (
            [min(i * self.images, p.N - self.images) for i in range(self.numbers[0])],
            [min(i * self.groups, p.groups - self.groups) for i in range(self.numbers[1])],
        )

    @property
    def bytes(self) -> int:
        """Of dy and of the phases of a slice."""
        p = self.problem
        return (p.x_bytes + p.y_bytes) * self.images * self.groups // (p.N * p.groups)

    @property
    def stage(self) -> tuple[int, int]:
        """`interleave.stage`, where dx is so large that it is stored around the caches."""
        large = streaming.outgrows_caches(self.problem.x_bytes, streaming.STREAMED_SLICES, own=True)
        return interleave.stage(self.problem) if large else (0, 0)

    def share(self, threads: int) -> float:
        """Of the time of all threads the part in which they compute what they must, and once."""
        p = self.problem
        computed = -(-self.count // threads) * threads * self.images * self.groups
        return p.N * p.groups / computed

    @kept
    def pieces(self) -> tuple[Piece, ...]:
        """Of a slice: as of the whole problem, also where it is one group of several."""
        return pieces(self.slice, self.spare if self.problem.groups == 1 else 0.0)

    @kept
    def forwards(self) -> tuple[tuple[ConvProblem, int], ...]:
        """The convolutions of a slice that differ, and how many there are of each."""
        return tuple(Counter(p.forward for p in self.pieces if p.forward).items())

    @kept
    def part_bytes(self) -> list[int]:
        """Of what the pieces of a slice compute, in whole cache lines; 0 where no tap reaches the phase."""
        return [whole_lines(p.forward.y_bytes) if p.forward else 0 for p in self.pieces]


def workspace_bytes(cut: Slicing, algorithm: Algorithm) -> int:
    """Of all threads: the parts, then what plans and stage need, one after the other."""
    with alone():
        each = [algorithm.workspace_bytes(f) for f, _ in cut.forwards]
    each.append(cut.stage[1])
    return min(thread_count(), cut.count) * (sum(cut.part_bytes) + whole_lines(max(each)))


def slicing(problem: ConvProblem, algorithm: Algorithm, spare: float) -> Slicing | None:
    """How the threads share a problem in slices, or None where they compute it together."""
    if not isinstance(algorithm, Lone):
        return None
    cut = cut_for(problem, algorithm.least_groups(problem), spare, thread_count())
    return cut if cut and _serves(algorithm, cut) else None


@lru_cache(512)
def _serves(algorithm: Any, cut: Slicing) -> bool:
    return all(algorithm.why_not(f) is None for f, _ in cut.forwards)


@lru_cache(512)
def cut_for(problem: ConvProblem, least_groups: int, spare: float, threads: int) -> Slicing | None:
    """The largest slices that a thread's caches hold; the smallest there are, where L3 holds them."""
    if is_whole(problem):
        return None
    _, l2, l3 = cache_sizes()
    # Filters that L2 does not hold are read again for each slice.
    room = max(l2 // 2, min(problem.w_bytes, l3 // (4 * threads)))
    chosen = None
    for cut in _ways(problem, least_groups, spare):
        if cut.share(threads) >= SHARE:
            chosen = cut
            if cut.bytes <= room:
                break
    return chosen if chosen and chosen.bytes <= l3 // threads else None


def _ways(problem: ConvProblem, least_groups: int, spare: float) -> Iterator[Slicing]:
    """From large to small slices, of every number of slices one."""
    p = problem
    for images in sorted({-(-p.N // n) for n in range(1, p.N + 1)}, reverse=True):
        yield Slicing(p, images, p.groups, spare)
    if p.layout == "channels_first":
        numbers = range(2, p.groups // least_groups + 1)
        for groups in sorted({-(-p.groups // n) for n in numbers}, reverse=True):
            yield Slicing(p, 1, groups, spare)


def seconds(cut: Slicing, algorithm: Algorithm, machine: Machine) -> float:
    """Predicted time of a run on all threads."""
    p, one = cut.problem, _one_thread(machine)
    with alone():
        sums = sum(count * (algorithm.cost(f, one) - CALL) for f, count in cut.forwards)
    own = sums + interleave.seconds(cut.slice, one)
    rounds = -(-cut.count // machine.threads)
    # a cached store reads its line first
    written = p.x_bytes * (2 if p.x_bytes > machine.l3_bytes / 2 and not cut.stage[0] else 1)
    memory = SHOWN * machine.stream(p.y_bytes + written, p.x_bytes + p.y_bytes)
    return CALL + machine.launch + rounds * own + memory


def least_seconds(cut: Slicing, algorithm: Algorithm, machine: Machine) -> float:
    """A lower bound of `seconds`."""
    one = _one_thread(machine)
    with alone():
        sums = sum(count * (algorithm.least(f, one) - CALL) for f, count in cut.forwards)
        return cut.count * sums / machine.threads


def _one_thread(machine: Machine) -> Machine:
    n = machine.threads
    return replace(
        machine, threads=1, peak_float32=machine.peak_float32 / n, peak_float64=machine.peak_float64 / n,
        bandwidth=machine.bandwidth / n, cache_bandwidth=machine.cache_bandwidth / n, launch=0.0,
    )  # fmt: skip


# --- kernels ---------------------------------------------------------------------------------

# A kernel of a phase's plan, or the one that interleaves, and what its record holds for a slice: addresses,
# and bytes between the images and the groups. w: addresses of the filters of each slice of groups, or 0.
STEP = fields("kernel record x x_n x_g w y y_n y_g bias bias_g scratch")
RECORD = arguments("slices steps step_count first_images first_groups images groups tasks")


@jit.specialise
def driver():
    """Slices, dealt to the tasks in equal runs; of each, all steps."""

    def driver(args, task):
        a = carray(pointer(args), 1, RECORD)[0]
        first_images = carray(pointer(a.first_images), a.images, np.int64)
        first_groups = carray(pointer(a.first_groups), a.groups, np.int64)
        steps = carray(pointer(a.steps), a.tasks * a.step_count, STEP)
        for item in range(a.slices * task // a.tasks, a.slices * (task + 1) // a.tasks):
            part = item % a.groups
            n, g = first_images[item // a.groups], first_groups[part]
            for i in range(task * a.step_count, (task + 1) * a.step_count):
                s = steps[i]
                run = carray(pointer(s.record), 6, np.int64)  # `RUN_FIELDS`
                run[0] = s.x + n * s.x_n + g * s.x_g
                if s.w:
                    run[1] = carray(pointer(s.w), a.groups, np.int64)[part]
                run[2] = s.y + n * s.y_n + g * s.y_g
                run[3] = s.bias + g * s.bias_g
                run[4] = a.relu
                run[5] = s.scratch
                call(s.kernel, (s.record, 0))

    return driver


# --- plan ------------------------------------------------------------------------------------


class SlicedPlan(Plan):
    def __init__(self, problem: ConvProblem, algorithm: Algorithm, inner: Algorithm, cut: Slicing):
        super().__init__(problem, algorithm, workspace_bytes(cut, inner))
        self.cut, self.tasks = cut, min(thread_count(), cut.count)
        self._parallel = worth_sharing(problem)
        with alone():
            shared: dict[Any, Any] = {f: inner.plan(f) for f, _ in cut.forwards}  # kernel plans
        self.plans: list[Any] = [shared[p.forward] if p.forward else None for p in cut.pieces]
        self.pieces = pieces(problem, cut.spare)
        self.together = len(self.pieces[0].phases)
        self.tables = interleave.tables(cut.slice, self.together)

    def prepare_filter(self, w: np.ndarray) -> list[Filters]:
        p = self.problem
        found = []
        for turned, plan in zip(filters_of(self.pieces, w, p.groups), self.plans, strict=True):
            if turned is not None:
                first = [group * p.w_shape[1] for group in self.cut.starts[1]]  # channels of the slices
                packed = [plan.prepare_filter(turned[c : c + plan.problem.K]) for c in first]
                found.append(Filters(packed, np.array([f.address for f in packed])))
        return found

    def new_workspace(self) -> Workspace:
        return Workspace(self)

    def run(self, x, w, bias, activation, y, workspace) -> None:
        layout = self.problem.layout
        read = [np.ascontiguousarray(p.whole.part(x, layout)) for p in self.pieces if p.forward]
        for dy, filters, steps in zip(read, w, workspace.of_pieces, strict=True):
            steps["x"], steps["w"] = dy.ctypes.data, filters.addresses.ctypes.data
        workspace.of_dx["y"] = y.ctypes.data
        workspace.finish_with(bias, activation)
        jit.launch(driver(), workspace.record.ctypes.data, self.tasks, self._parallel)


class Filters(NamedTuple):
    """Of a piece."""

    packed: list[Packed]  # of each slice of the groups
    addresses: np.ndarray  # theirs


class Workspace:
    """Tables, scratch and biases of one run at a time."""

    def __init__(self, plan: SlicedPlan):
        p, cut = plan.problem, plan.cut
        size, scratch_bytes = p.itemsize, plan.workspace_bytes // plan.tasks
        self._problem, self._together = p, plan.together
        self._scratch = aligned_empty(plan.workspace_bytes, np.uint8)
        # with spare elements for the last vectors that kernels read
        self._biases = np.zeros(plan.together * p.C + 2 * simd.lanes(size), p.dtype)
        self._filled = not all(plan.plans)  # whether there are phases that no tap reaches
        self._fill = interleave.fill_rows(p, np.zeros(p.C if self._filled else 0, p.dtype))
        self._finished = False  # whether biases and fill are other than zeros
        self._kept: list[np.ndarray] = []  # what records and tables have addresses of
        biases = (self._biases.ctypes.data, p.w_shape[1] * size)
        fill = (self._fill.ctypes.data, p.w_shape[1] * interleave.fill_row(p))

        steps = []  # of all tasks, as `STEP`
        for task in range(plan.tasks):
            part = self._scratch.ctypes.data + task * scratch_bytes
            places, work = [], part + sum(cut.part_bytes)
            for piece, inner, part_bytes in zip(plan.pieces, plan.plans, cut.part_bytes, strict=True):
                places += [part + start * size if inner else 0 for start in piece.starts(p.layout)]
                if inner and piece.forward:
                    record, x = self._address(inner.record.copy()), _between(piece.forward.x_shape, p)
                    steps += [(k, record, 0, *x, 0, part, 0, 0, *biases, work) for k, _ in inner.steps]
                part += part_bytes
            record = self._address(interleave.record(cut.slice, 1, plan.tables, plan.together, cut.stage[0]))
            table = self._address(interleave.places(cut.slice, places))
            y = _between(p.x_shape, p)
            steps.append((interleave.kernel(p), record, table, 0, 0, 0, 0, *y, *fill, work))
        self._steps = np.array(steps, STEP).reshape(plan.tasks, -1)
        self.of_dx = self._steps[:, -1]
        ends = list(accumulate(len(inner.steps) for inner in plan.plans if inner))
        self.of_pieces = [self._steps[:, a:b] for a, b in pairwise([0, *ends])]
        starts = [np.array(s, np.int64) for s in cut.starts]
        self.record = np.zeros(1, RECORD)
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

    def finish_with(self, bias: np.ndarray | None, activation: str | None) -> None:
        """What is added to dx and what it is at least."""
        self.record["relu"] = activation is not None
        if bias is None and not self._finished:
            return
        self._finished = bias is not None
        added = np.zeros(self._problem.C, self._biases.dtype) if bias is None else bias
        of_pieces = np.tile(added, self._together)
        self._biases[: len(of_pieces)] = of_pieces
        if self._filled:
            fill = added if activation is None else np.maximum(added, 0)
            self._fill[...] = interleave.fill_rows(self._problem, fill)


def _between(shape: Sequence[int], problem: ConvProblem) -> tuple[int, int]:
    """Bytes between the images, and between the groups, of an array of a logical shape."""
    image = math.prod(shape[1:]) * problem.itemsize
    return image, image // problem.groups
