"""Gradients of maxima whose places are known, fixed to kernels of the CPU."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from convalgos.core.allocator import whole_lines
from convalgos.core.pool_problem import PoolProblem
from convalgos.cpu.pooling.elements import FLOAT, FORMS, can_convert
from convalgos.cpu.pooling.gradient_plan import has_gradient_plan, scatter_runs
from convalgos.cpu.pooling.maxima_plan import MOST_ELEMENTS
from convalgos.cpu.pooling.placed_gradients import (
    PLACED_BAND,
    PLACED_FIELDS,
    PLACED_GROUP,
    add_gradient_at_places,
)
from convalgos.cpu.pooling.runs import Computed, KernelRuns, widened
from convalgos.cpu.pooling.scattered_gradients import PLACED
from convalgos.cpu.pooling.tables import POINT, in_three
from convalgos.cpu.pooling.tile_plan import has_tiles
from convalgos.cpu.runtime import half, jit
from convalgos.cpu.runtime.threads import THREAD_UNITS
from convalgos.cpu.vectors import simd

BAND_SUMS = 1 << 19  # bytes of dx in scratch, where it is rounded: a part of L2
AGAIN = 1.5  # times its outputs that a map takes so, in bands of dx that windows share
TOGETHER = 1 << 12  # elements of small planes that are begun at a time
GROUP_ELEMENTS = 256  # of outputs, between which dx is filled with zeros further on
FEW_TAPS = 5  # for 16 lanes: of windows in vectors of planes, or of channels where they are strided
MOST_TAPS = 10  # for 16 lanes: of windows whose dx is written tap by tap, by whole vectors of channels


def has_places_plan(problem: PoolProblem) -> bool:
    """Whether these kernels take a problem, and not more slowly than maxima are found again.

    Offsets in a map are integers of 32 bits. Small windows of vectors of planes take fewer instructions than
    one output after the other.
    """
    last = problem.layout == "channels_last"
    if math.prod(problem.x_shape[2:]) * (problem.x_shape[1] if last else 1) > MOST_ELEMENTS:
        return False
    if problem.itemsize == 2 and can_convert(FORMS[problem.dtype]):
        return True
    fewer = math.prod(problem.kernel) <= FEW_TAPS * simd.lanes(problem.itemsize) / 16
    small = fewer and math.prod(problem.stride) <= 2
    return last or not (has_tiles(problem) or (small and has_gradient_plan(problem)))


class PlacesPlan:
    """dx of dy and of places, where `has_places_plan`."""

    def __init__(self, problem: PoolProblem):
        of = Computed(problem, gradient=True)
        if of.kinds[2] != FLOAT and _taken_again(problem, of.kinds[0]) > AGAIN:
            of = Computed(problem, gradient=True, converts=False)
        self._widens = of.widens
        if of.kinds[2] == FLOAT and _in_vectors(problem, of.kinds[1]):
            self._runs = scatter_runs(problem, of, PLACED)
            return
        values, kernel = _values(problem, of.kinds)
        tasks = of.tasks(values["planes"] * values["bands"])
        self._runs = KernelRuns(PLACED_FIELDS, values | of.sizes, kernel, tasks, ("y", "dx", "given"))

    def run(self, dy: np.ndarray, dx: np.ndarray, places: np.ndarray) -> None:
        """Write dx; places: int64. All `as_laid`."""
        if not self._widens:
            self._runs.launch(dy, dx, places)
            return
        wide = np.empty(dx.shape, np.float32)
        self._runs.launch(widened(dy), wide, places)
        half.convert(wide, dx)


def _taken_again(problem: PoolProblem, size: int) -> float:
    """Times that its outputs are looked at, in bands of dx in scratch."""
    n, channels = problem.x_shape[:2]
    planar = problem.layout == "channels_first"
    groups, bands = _tables(problem, *((n * channels, 1) if planar else (n, channels)), size)
    taken = [groups["count"][band["groups"] : band["groups_end"]].sum() for band in bands]
    return float(sum(taken)) / math.prod(problem.y_shape[2:])


def _in_vectors(problem: PoolProblem, lanes: int) -> bool:
    """Whether dx is written tap by tap, by vectors of channels."""
    # where windows overlap and are strided, a vector of channels is added to much that gets nothing
    dense = set(problem.stride) == {1} or all(
        k <= s for k, s in zip(problem.kernel, problem.stride, strict=True)
    )
    most = (MOST_TAPS if dense else FEW_TAPS) * lanes / 16
    return (
        problem.layout == "channels_last"
        and problem.x_shape[1] >= lanes
        and math.prod(problem.kernel) <= most
        and has_gradient_plan(problem)
    )


def _values(problem: PoolProblem, kinds: tuple[int, int, int]) -> tuple[dict[str, Any], int]:
    """(values of the driver's record, the driver)."""
    size, lanes, form = kinds
    n, channels = problem.x_shape[:2]
    planar = problem.layout == "channels_first"
    planes, each = (n * channels, 1) if planar else (n, channels)
    groups, bands = _tables(problem, planes, each, size if form != FLOAT else 0)
    pixels = math.prod(problem.x_shape[2:])
    most = int((bands["end"] - bands["first"]).max())
    small = planar and len(groups) == len(bands) == 1
    together = min(TOGETHER // pixels, planes // (THREAD_UNITS * jit.thread_count())) if small else 1
    together = max(1, together)
    values: dict[str, Any] = {
        "planes": planes, "together": together, "channels": each, "pixels": pixels,
        "outputs": math.prod(problem.y_shape[2:]),
        "bands": len(bands), "band_table": bands, "groups": len(groups), "group_table": groups,
        "scratch_bytes": 0 if form == FLOAT else whole_lines((together * most * each + lanes) * size),
    }  # fmt: skip
    return values, add_gradient_at_places(*kinds, planar)


def _tables(problem: PoolProblem, planes: int, each: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """(`PLACED_GROUP`, `PLACED_BAND`). size: of an element of dx in scratch, 0 for none."""
    groups, begins = _groups(problem, -(-GROUP_ELEMENTS // each))
    pixels = math.prod(problem.x_shape[2:])
    return groups, _bands(groups, begins, pixels, planes, max(1, -(-pixels * each * size // BAND_SUMS)))


def _groups(problem: PoolProblem, fewest: int) -> tuple[np.ndarray, np.ndarray]:
    """(`PLACED_GROUP`: rows of outputs, some of them together where they are short; where windows begin)."""
    depth, height, width = in_three(problem)
    if len(problem.kernel) == 1:
        height, width = width, POINT
    ends = [w.first + (w.taps - 1) * w.dilation for w in (depth, height)]
    reach = ((ends[0][:, None] * height.size + ends[1]).ravel() + 1) * width.size
    begins = (depth.first[:, None] * height.size + height.first).ravel() * width.size
    outputs = len(width.first)
    first = np.arange(0, len(reach), -(-fewest // outputs))
    table = np.zeros(len(first), PLACED_GROUP)
    table["first"] = first * outputs
    table["count"] = np.diff(first, append=len(reach)) * outputs
    table["reach"] = np.maximum.reduceat(reach, first)
    return table, np.minimum.reduceat(begins, first)


def _bands(groups: np.ndarray, begins: np.ndarray, pixels: int, planes: int, parts: int) -> np.ndarray:
    """`PLACED_BAND`: at least so many of a plane, and as many as give all threads the same number of them."""
    threads = jit.thread_count()
    each = threads // math.gcd(threads, planes)
    count = min(pixels, -(-parts // each) * each)
    table = np.zeros(count, PLACED_BAND)
    ends = [pixels * i // count for i in range(count + 1)]
    table["first"], table["end"] = ends[:-1], ends[1:]
    for band in table:
        met = np.flatnonzero((begins < band["end"]) & (groups["reach"] > band["first"]))
        band["groups"], band["groups_end"] = (met[0], met[-1] + 1) if len(met) else (0, 1)
    return table
