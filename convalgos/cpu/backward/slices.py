"""How a gradient of the input is cut into slices, one thread for each, and the predicted time of that.

A slice is some images, or some groups of an image: as many as the caches of a thread hold.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from convalgos.core.algorithm import Algorithm
from convalgos.core.allocator import whole_lines
from convalgos.core.backward.polyphase import is_whole
from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.machine import Machine, cache_sizes
from convalgos.core.problem import ConvProblem
from convalgos.cpu.backward import interleave
from convalgos.cpu.backward.subproblems import Subproblem, subproblems
from convalgos.cpu.layout import streaming
from convalgos.cpu.runtime.plan import CALL
from convalgos.cpu.runtime.threads import SingleThreaded, on_one_thread, plan_threads

LEAST_SHARE = 0.8  # of the time of all threads, at least, that slices must fill; else all compute together
SHOWN_MEMORY = 0.5  # of the time in which dy and dx are moved, which the sums do not hide


@dataclass(frozen=True)
class Slicing:
    """How a problem is cut; the last slice of images, and of groups, overlaps the one before."""

    problem: ConvProblem
    images: int  # of a slice
    groups: int  # of a slice; all of them where it has several images
    spare: float = 0.0  # as of `subproblems.subproblems`

    @cached_attribute
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

    @cached_attribute
    def subproblems(self) -> tuple[Subproblem, ...]:
        """Of a slice: as of the whole problem, also where it is one group of several."""
        return subproblems(self.slice, self.spare if self.problem.groups == 1 else 0.0)

    @cached_attribute
    def forwards(self) -> tuple[tuple[ConvProblem, int], ...]:
        """The convolutions of a slice that differ, and how many there are of each."""
        return tuple(Counter(p.forward for p in self.subproblems if p.forward).items())

    @cached_attribute
    def part_bytes(self) -> list[int]:
        """Of what each sub-problem of a slice computes, in whole cache lines; 0 where no tap reaches it."""
        return [whole_lines(p.forward.y_bytes) if p.forward else 0 for p in self.subproblems]


def slices_workspace_bytes(cut: Slicing, algorithm: Algorithm) -> int:
    """Of all threads: the parts, then what plans and stage need, one after the other."""
    with on_one_thread():
        each = [algorithm.workspace_bytes(f) for f, _ in cut.forwards]
    each.append(cut.stage[1])
    return min(plan_threads(), cut.count) * (sum(cut.part_bytes) + whole_lines(max(each)))


def slicing(problem: ConvProblem, algorithm: Algorithm, spare: float) -> Slicing | None:
    """How the threads share a problem in slices, or None where they compute it together."""
    if not isinstance(algorithm, SingleThreaded):
        return None
    cut = cut_for(problem, algorithm.least_groups(problem), spare, plan_threads())
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
    # SlicedFilters that L2 does not hold are read again for each slice.
    room = max(l2 // 2, min(problem.w_bytes, l3 // (4 * threads)))
    chosen = None
    for cut in _ways(problem, least_groups, spare):
        if cut.share(threads) >= LEAST_SHARE:
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


def slices_seconds(cut: Slicing, algorithm: Algorithm, machine: Machine) -> float:
    """Predicted time of a run on all threads."""
    p, one = cut.problem, _one_thread(machine)
    with on_one_thread():
        sums = sum(count * (algorithm.cost(f, one) - CALL) for f, count in cut.forwards)
    own = sums + interleave.interleave_seconds(cut.slice, one)
    rounds = -(-cut.count // machine.threads)
    # a cached store reads its line first
    written = p.x_bytes * (2 if p.x_bytes > machine.l3_bytes / 2 and not cut.stage[0] else 1)
    memory = SHOWN_MEMORY * machine.stream(p.y_bytes + written, p.x_bytes + p.y_bytes)
    return CALL + machine.launch + rounds * own + memory


def least_slices_seconds(cut: Slicing, algorithm: Algorithm, machine: Machine) -> float:
    """A lower bound of `slices_seconds`."""
    one = _one_thread(machine)
    with on_one_thread():
        sums = sum(count * (algorithm.least(f, one) - CALL) for f, count in cut.forwards)
        return cut.count * sums / machine.threads


def _one_thread(machine: Machine) -> Machine:
    n = machine.threads
    return replace(
        machine, threads=1, peak_float32=machine.peak_float32 / n, peak_float64=machine.peak_float64 / n,
        bandwidth=machine.bandwidth / n, cache_bandwidth=machine.cache_bandwidth / n, launch=0.0,
        l2_bandwidth=machine.l2_bandwidth and machine.l2_bandwidth / n,
        read_bandwidth=machine.read_bandwidth and machine.read_bandwidth / n,
    )  # fmt: skip
