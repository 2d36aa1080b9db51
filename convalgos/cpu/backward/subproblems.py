"""The forward convolutions that make up a gradient of the input: one for each phase, or one for all of them.

All phases together are one convolution: its filters are those of all phases, over the taps that any of them
has, with zeros in the others. dy is then read once, and where dx has few channels, registers are full that
the filters of one phase would leave empty. And its kernel is one that transforms can take: 3x3 for 5x5 with
stride 2, where phases have 3x3, 3x2, 2x3 and 2x2 taps.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.core.backward.polyphase import Phase, phases
from convalgos.core.problem import ConvProblem
from convalgos.cpu.backward.filter_rotation import rotated_filters, rotated_together


@dataclass(frozen=True)
class Subproblem:
    """A forward convolution of dy, and the phases that it computes: those of a group are side by side."""

    whole: Phase  # `forward` is None for a phase that no tap reaches
    phases: tuple[Phase, ...]

    @property
    def forward(self) -> ConvProblem | None:
        return self.whole.forward

    @property
    def are_alike(self) -> bool:
        """Whether all phases have all taps of its kernel, so that none of these are zeros."""
        first, kernel = _first_rows(self.whole), self.whole.forward and self.whole.forward.kernel
        return all(p.forward and p.forward.kernel == kernel and _first_rows(p) == first for p in self.phases)

    @property
    def filter_taps(self) -> tuple[Any, ...]:
        """What its filter, of `filters_of`, is made of: taps of each phase, and where they stand in it."""
        own = self.forward.w_shape if self.forward else ()
        parts = ((p.taps, tuple(_first_rows(p))) for p in (self.whole, *self.phases) if p.forward)
        return own, *parts

    def starts(self, layout: str) -> list[int]:
        """Where the phases begin in what is computed for an image, in elements."""
        if len(self.phases) == 1 or self.forward is None:
            return [0]
        channels = self.forward.K // len(self.phases)
        step = channels * (1 if layout == "channels_last" else math.prod(self.whole.size))
        return [i * step for i in range(len(self.phases))]


def has_views(found: Sequence[Subproblem], problem: ConvProblem) -> bool:
    """Whether filters of all sub-problems of a backward_data problem are there as views of its filter."""
    return _has_views(found, problem.w_shape, problem.groups, problem.itemsize)


def _has_views(found: Sequence[Subproblem], w_shape: Shape, groups: int, itemsize: int) -> bool:
    depthwise = w_shape[:2] == (groups, 1)  # nothing changes places but taps
    return (groups == 1 or depthwise) and itemsize >= 4 and len(found[0].phases) == 1


def filters_of(
    found: Sequence[Subproblem], w: np.ndarray, groups: int, as_views: Sequence[bool] | None = None
) -> list[np.ndarray | None]:
    """(filters, K/groups, *taps) of each sub-problem, from w (K, C/groups, *kernel); None without taps.

    Args:
        as_views: for which of them a view of w will do, where there is one.
    """
    if len(found[0].phases) > 1:  # which are all
        return [_filters_together(found[0], w)]
    if not _has_views(found, w.shape, groups, w.itemsize):
        as_views = None
    if as_views is None and len(found) == len(found[0].phases) == 1:
        return rotated_filters(found[0].phases, w, groups) if found[0].forward else [None]  # type: ignore[return-value]
    views = as_views or (False,) * len(found)
    copied = [child.whole for child, view in zip(found, views, strict=True) if not view]
    rotated = iter(rotated_filters([phase for phase in copied if phase.forward], w, groups))
    filters: list[np.ndarray | None] = []
    for child, view in zip(found, views, strict=True):
        if not child.whole.forward:
            filters.append(None)
        else:
            filters.append(child.whole.filter(w, groups) if view else next(rotated))
    return filters


def _filters_together(child: Subproblem, w: np.ndarray) -> np.ndarray:
    """The filters of all phases of a sub-problem, side by side; zeros are the taps that a phase has not."""
    assert child.forward
    if child.are_alike and w.itemsize >= 4:
        return rotated_together(child.phases, w)
    first, kernel = _first_rows(child.whole), child.forward.kernel
    apart = rotated_filters(child.phases, w, 1)  # (C, K, *taps) of each phase
    together = np.zeros((len(child.phases), *apart[0].shape[:2], *kernel), w.dtype)
    for phase, part, filters in zip(child.phases, together, apart, strict=True):
        assert phase.forward
        steps = zip(_first_rows(phase), first, phase.forward.kernel, child.forward.dilation, strict=True)
        taps = tuple(slice((a - b) // d, (a - b) // d + n) for a, b, n, d in steps)
        part[(slice(None), slice(None), *taps)] = filters
    return together.reshape(child.forward.w_shape)


@lru_cache(512)
def distinct_forwards(problem: ConvProblem, spare: float) -> tuple[tuple[ConvProblem, int], ...]:
    """The convolutions of the `subproblems` that differ, and how many there are of each."""
    return tuple(Counter(p.forward for p in subproblems(problem, spare) if p.forward).items())


@lru_cache(64)
def subproblems(problem: ConvProblem, spare: float) -> tuple[Subproblem, ...]:
    """The sub-problems of a backward_data problem that is not empty, in the order of their phases.

    Args:
        spare: phases are together where their products, those with zeros among them, are at most so many
            times those of the phases apart.
    """
    found = phases(problem)
    whole = _together(problem, found, spare)
    return (Subproblem(whole, found),) if whole else tuple(Subproblem(p, (p,)) for p in found)


def _together(problem: ConvProblem, found: tuple[Phase, ...], spare: float) -> Phase | None:
    """The convolution of all phases, where there is one of no more products than that."""
    forwards = [p.forward for p in found if p.forward]
    if not spare or problem.groups > 1 or not 1 < len(found) == len(forwards):
        return None
    dilation = tuple(map(max, zip(*(f.dilation for f in forwards), strict=True)))
    if any(d > 1 and s > 1 for d, s in zip(dilation, problem.stride, strict=True)):
        return None
    kernel, rows, padding = [], [], []
    size = found[0].size  # the largest
    for axis, (out, step) in enumerate(zip(problem.spatial_out, dilation, strict=True)):
        first = [_first_rows(p)[axis] for p in found]
        ends = [a + (f.kernel[axis] - 1) * step for a, f in zip(first, forwards, strict=True)]
        low, high = min(first), max(ends)  # rows of dy that the first output reads
        beyond = size[axis] - 1 + high - (out - 1)
        kernel.append((high - low) // step + 1)
        rows.append((max(0, low), out - max(0, -beyond)))
        padding.append((max(0, -low), max(0, beyond)))
    if math.prod(kernel) * len(found) > spare * math.prod(problem.kernel):
        return None
    forward = forwards[0].replace(
        x_shape=(problem.N, problem.K, *(end - first for first, end in rows)),
        w_shape=(len(found) * problem.C, problem.K, *kernel),
        padding=tuple(padding),
        dilation=dilation,
    )
    assert forward.spatial_out == size, (problem, forward)
    return Phase(found[0].start, size, forward, rows=tuple(rows))


def _first_rows(phase: Phase) -> list[int]:
    """The row of dy that the first tap of the first output meets, per dimension; it may be padding."""
    assert phase.forward
    return [a - low for (a, _), (low, _) in zip(phase.rows, phase.forward.padding, strict=True)]
