"""The gradient of the input as forward convolutions: one for each phase of the stride.

dx[i] = sum over taps r of w[r] * dy[(i + low - r * dilation) / stride], where that is a whole number. Inputs
whose places leave the same remainder by the stride, a phase, are reached by the same taps, at neighbouring
outputs: they are a convolution of dy with these taps turned round, without a stride. So nothing is multiplied
by zeros that a stride would insert. Without a stride there is one phase, and it is all of dx.

Source: the sub-pixel view of transposed convolution, Shi et al. 2016, arXiv:1609.07009.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

from convalgos.core.arguments import Shape
from convalgos.core.filter_patterns import pattern_of_phases
from convalgos.core.plan import flipped
from convalgos.core.problem import ConvProblem
from convalgos.core.problem_views import on_map


@dataclass(frozen=True)
class Phase:
    """dx[..., start::stride] as a convolution of dy; `forward` is None where no tap reaches it."""

    start: Shape
    size: Shape  # of this part of dx
    forward: ConvProblem | None  # x is the part of dy, w (C, K/groups, *taps)
    taps: tuple[tuple[int, int], ...] = ()  # first tap and step, per dimension
    rows: tuple[tuple[int, int], ...] = ()  # of dy that it reads, first and end, per dimension

    def filter(self, w: Any, groups: int) -> Any:
        """(C, K/groups, *taps), a view of w (K, C/groups, *kernel)."""
        steps = tuple(slice(first, None, step) for first, step in self.taps)
        part = flipped(w[(slice(None), slice(None), *steps)])  # (K, C/groups, *taps)
        filters, channels, *kernel = part.shape
        part = part.reshape(groups, filters // groups, channels, *kernel).swapaxes(1, 2)
        return part.reshape(groups * channels, filters // groups, *kernel)

    def part(self, dy: Any, layout: str) -> Any:
        """The rows of dy that it reads: a view, or dy itself."""
        first = 2 if layout == "channels_first" else 1
        reads = self.reads(dy.shape[first : first + len(self.rows)], first)
        return dy if reads is None else dy[reads]

    def writes(self, stride: Shape, first: int) -> tuple[slice, ...]:
        """Slices of dx that it is, whose dimensions from the first on are the map's."""
        of_map = (slice(start, None, step) for start, step in zip(self.start, stride, strict=True))
        return (slice(None),) * first + tuple(of_map)

    def reads(self, sizes: Shape, first: int) -> tuple[slice, ...] | None:
        """Slices of dy that it reads, whose dimensions from the first on have these sizes; None of all."""
        if all(rows == (0, size) for rows, size in zip(self.rows, sizes, strict=True)):
            return None
        return (slice(None),) * first + tuple(slice(*rows) for rows in self.rows)


@lru_cache(64)  # of large strides they are thousands
def phases(problem: ConvProblem) -> tuple[Phase, ...]:
    """The phases of a backward_data problem that is not empty; together they are all of dx."""
    axes = [_axis(problem, axis) for axis in range(problem.ndim)]
    forwards: dict[Any, ConvProblem] = {}  # of thousands of phases of a large stride, a few differ
    return tuple(_phase(problem, places, forwards) for places in product(*axes))


@dataclass(frozen=True)
class _Places:
    """A phase along one dimension."""

    start: int
    size: int
    taps: int  # none where no tap reaches it
    first_tap: int = 0
    tap_step: int = 1
    dilation: int = 1
    padding: tuple[int, int] = (0, 0)
    rows: tuple[int, int] = (0, 0)


def is_whole(problem: ConvProblem) -> bool:
    """Whether the one phase is all of dx, so that its convolution writes dx itself."""
    found = phases(problem)
    return len(found) == 1 and found[0].forward is not None


def _axis(problem: ConvProblem, axis: int) -> list[_Places]:
    step, dilation, kernel = problem.stride[axis], problem.dilation[axis], problem.kernel[axis]
    size, out, low = problem.spatial[axis], problem.spatial_out[axis], problem.padding[axis][0]
    common = math.gcd(step, dilation)
    first_taps = {r * dilation % step: r for r in reversed(range(min(kernel, step)))}  # by their remainder
    found = []
    for start in range(min(step, size)):
        count = -(-(size - start) // step)
        first = first_taps.get((start + low) % step)
        if first is None:
            found.append(_Places(start, count, 0))
            continue
        tap_step, near = step // common, dilation // common
        taps = -(-(kernel - first) // tap_step)
        near = near if taps > 1 else 1
        # Output j reads dy[origin + j - t * near] by its tap t: from the last tap's to the first one's.
        origin = (start + low - first * dilation) // step
        before, after = (taps - 1) * near - origin, count - 1 + origin - (out - 1)
        rows = (max(0, -before), out - max(0, -after))
        if rows[0] >= rows[1]:  # dy lies beyond the reach of all its taps
            found.append(_Places(start, count, 0))
            continue
        padding = (max(0, before), max(0, after))
        found.append(_Places(start, count, taps, first, tap_step, near, padding, rows))
    return found


@lru_cache(256)
def _layer(
    channels: int, w_shape: Shape, axes: tuple[Any, ...], groups: int, layout: str, dtype: str,
    compute_dtype: str, density: float, pattern: str,
) -> ConvProblem:  # fmt: skip
    """A phase on the smallest map, of which it is made for others; axes: taps, padding, dilation of each."""
    taps, padding, dilation = zip(*axes, strict=True)
    reach = ((n - 1) * step + 1 - sum(pads) for n, pads, step in axes)
    return ConvProblem(
        (1, channels, *(max(1, n) for n in reach)),
        (*w_shape, *taps),
        padding=padding,
        dilation=dilation,
        groups=groups,
        layout=layout,
        dtype=dtype,
        compute_dtype=compute_dtype,
        density=density,  # of the turned filter; a pattern along its channels is none of it
        pattern=pattern,
    )


def _phase(problem: ConvProblem, places: tuple[_Places, ...], forwards: dict[Any, ConvProblem]) -> Phase:
    start, size = tuple(p.start for p in places), tuple(p.size for p in places)
    if not all(p.taps for p in places):
        return Phase(start, size, None)
    rows = tuple(p.rows for p in places)
    sizes = tuple(end - first for first, end in rows)
    kind = (sizes, *((p.taps, p.padding, p.dilation) for p in places))
    forward = forwards.get(kind)
    if forward is None:
        p = problem
        layer = _layer(
            p.K, (p.C, p.gemm_n), kind[1:], p.groups, p.layout, p.dtype, p.compute_dtype, p.density,
            pattern_of_phases(p.pattern, p.stride),
        )  # fmt: skip
        forward = forwards[kind] = on_map(layer, (p.N, p.K, *sizes))
    assert forward.spatial_out == size, (problem, forward)
    return Phase(start, size, forward, tuple((p.first_tap, p.tap_step) for p in places), rows)
