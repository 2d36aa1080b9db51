"""Winograd's short convolutions: fewer products, on tiles that stay in the cache.

A tile of m x m outputs of an r x r kernel takes (m + r - 1)^2 products per pair of channels instead of
m^2 r^2: F(4, 3) saves a factor of 4. Input tiles, filters and products are transformed by the exact
matrices of `convalgos.core.cook_toom`; between the transforms every point of the tiles is a matrix product of
its own, which runs on the micro-kernel. Wins on 3x3 and 5x5 kernels with 16 and more channels.

Kernels with r taps in one dimension of the plane and 1 in the other use the 1-D form; taps in depth are
summed inside the product; stride and dilation are steps inside the tiles (`tiles.Axis`).

Source: Lavin and Gray, "Fast algorithms for convolutional neural networks", arXiv:1509.09308, with the
cache-resident blocks of Zlateski et al., "Anatomy of Winograd convolution on CPUs", arXiv:1809.10170.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np

from convalgos.core.algorithm import Algorithm, room_for_few
from convalgos.core.cook_toom import POINTS, amplification
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm import panels
from convalgos.cpu.runtime import jit
from convalgos.cpu.tiled import bounds, filters, search
from convalgos.cpu.tiled.cost import Schedule
from convalgos.cpu.tiled.driver import BoxPlan
from convalgos.cpu.tiled.geometry import plane_taps
from convalgos.cpu.tiled.winograd_transforms import filter_tiles, input_tiles, output_tiles

# --- shapes --------------------------------------------------------------------------------------


def form(problem: ConvProblem, r: int) -> tuple[bool, bool] | str:
    """Whether rows and columns of a plane are transformed by F(m, r), or why neither can be."""
    taps = plane_taps(problem)
    if set(taps) <= {1, r} and r in taps:
        return taps[0] == r, taps[1] == r
    size = "x".join(map(str, problem.kernel))
    steps = "" if set(problem.stride) == {1} else " with stride " + "x".join(map(str, problem.stride))
    needed = f"needs {r} taps in one dimension of the plane, and {r} or 1 in the other"
    found = f"kernel {size}{steps} has {taps[0]} by {taps[1]}"
    return f"{needed}; {found}" if problem.ndim > 1 else f"needs {r} taps; kernel {size}{steps} has {taps[1]}"


def schedule(problem: ConvProblem, m: int, r: int, box: int = 0) -> Schedule:
    """The schedule of a problem that `form` accepts; see `box_search.best`."""
    return _schedule(problem, m, r, box, jit.thread_count())


@lru_cache(512)
def _schedule(problem: ConvProblem, m: int, r: int, box: int, threads: int) -> Schedule:
    return search.best(whole(problem, m, r, threads), box)


def whole(problem: ConvProblem, m: int, r: int, threads: int) -> Schedule:
    """All tiles of a problem in one box."""
    transformed = form(problem, r)
    assert not isinstance(transformed, str)
    return search.common(Schedule, problem, threads).tiled(
        (m if transformed[0] else 1, m if transformed[1] else 1)
    )


# --- plan ----------------------------------------------------------------------------------------


class WinogradPlan(BoxPlan):
    def __init__(self, problem: ConvProblem, algorithm: Winograd, cut: Schedule):
        kernel = (problem.itemsize, cut.lanes, algorithm.m, algorithm.r, cut.dims)
        product = panels.sum_panel(problem.itemsize, cut.lanes, cut.product_rows, cut.vectors, 0)
        super().__init__(problem, algorithm, cut, input_tiles(*kernel), output_tiles(*kernel), product)
        self._filter_tiles = filter_tiles(*kernel)

    def pack_filter(self, w):
        return filters.transform(w, self.cut, self.record, self._filter_tiles)


# --- algorithm -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Winograd(Algorithm):
    """F(m, r) in one or both dimensions of a plane."""

    m: int
    r: int = 3
    box: int = 0  # tiles of a box, about; 0 for the number that is predicted best

    family: ClassVar[str] = "cpu.winograd"
    spreads_nan: ClassVar[bool] = True

    @property
    def variant(self):
        return f"f{self.m}x{self.r}" + (f".box{self.box}" if self.box else "")

    def why_not(self, problem):
        if reason := super().why_not(problem):
            return reason
        found = form(problem, self.r)
        return found if isinstance(found, str) else None

    def variants(self, problem):
        yield from (replace(self, m=alpha - self.r + 1) for alpha in POINTS if alpha > self.r)
        if not problem.is_empty:
            boxes = [replace(self, box=box) for box in search.BOXES]
            yield from search.different(self, boxes, lambda a: a._schedule(problem))

    def cost(self, problem, machine):
        return machine.launch if problem.is_empty else self._schedule(problem).seconds(machine)

    def least(self, problem, machine):
        taps = plane_taps(problem)
        if taps not in ((self.r, self.r), (1, self.r), (self.r, 1)) or problem.is_empty:
            return math.inf
        h, w = 1 if taps[0] == 1 else self.m, 1 if taps[1] == 1 else self.m
        return bounds.bounds(Schedule, problem, machine).seconds(h, w)

    def granule(self, problem):
        return whole(problem, self.m, self.r, 1).granule[3 - problem.ndim :]

    def prepare_cost(self, problem, machine):
        return 0.0 if problem.is_empty else self._schedule(problem).prepare_seconds

    def workspace_bytes(self, problem):
        return 0 if problem.is_empty else self._schedule(problem).scratch_bytes

    def error_bound(self, problem):
        # The sum of a point is a random walk, whose errors are as large as its own products; the constant
        # covers the largest of many outputs and the few operations of the transforms.
        eps = float(np.finfo(problem.dtype).eps)
        if problem.is_empty:
            return eps
        cut = self._schedule(problem)
        walk = amplification(self.m, self.r) ** cut.dims * math.sqrt(cut.taps + 8)
        return 3 * eps * walk * room_for_few(problem)

    def plan(self, problem):
        return WinogradPlan(problem, self, self._schedule(problem))

    def _schedule(self, problem: ConvProblem) -> Schedule:
        return schedule(problem, self.m, self.r, self.box)


ALGORITHMS = (
    Winograd(2),
    Winograd(4),
    Winograd(5),  # maps of 5, 10 and 14
    Winograd(6),
    Winograd(4, 2),  # 3x3 with stride 2
    Winograd(5, 2),  # the same to maps of 5, 10 and 14
    Winograd(5, 4),  # 7x7 with stride 2
    Winograd(2, 5),
    Winograd(4, 5),
)
