"""Gradients of maxima whose places are known, fixed to kernels of the CPU."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from convalgos.core.pool_problem import PoolProblem
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
from convalgos.cpu.vectors import simd

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
    fewer = math.prod(problem.kernel) <= FEW_TAPS * simd.lanes(problem.itemsize) / 16
    small = fewer and math.prod(problem.stride) <= 2
    return last or not (has_tiles(problem) or (small and has_gradient_plan(problem)))


class PlacesPlan:
    """dx of dy and of places, where `has_places_plan`."""

    def __init__(self, problem: PoolProblem):
        # what dy is computed in is what it is scattered in: 16-bit floats are converted as whole arrays
        of = Computed(problem, gradient=True, converts=False)
        size, lanes, _ = of.kinds
        self._compute = np.dtype(np.float64 if size == 8 else np.float32)
        taps, channels = math.prod(problem.kernel), problem.x_shape[1]
        # where windows overlap and are strided, a vector of channels is added to much that gets nothing
        sides = zip(problem.kernel, problem.stride, strict=True)
        dense = set(problem.stride) == {1} or all(k <= s for k, s in sides)
        most = (MOST_TAPS if dense else FEW_TAPS) * lanes / 16
        vectors = problem.layout == "channels_last" and channels >= lanes and taps <= most
        if vectors and has_gradient_plan(problem):
            self._runs = scatter_runs(problem, of, PLACED)
            return
        values, kernel = _values(problem, size, lanes)
        tasks = of.tasks(values["planes"] * values["bands"])
        self._runs = KernelRuns(PLACED_FIELDS, values | of.sizes, kernel, tasks, ("y", "dx", "given"))

    def run(self, dy: np.ndarray, dx: np.ndarray, places: np.ndarray) -> None:
        """Write dx; places: int64. All `as_laid`."""
        if dx.dtype == self._compute:
            self._runs.launch(dy, dx, places)
            return
        wide = np.empty(dx.shape, np.float32)
        self._runs.launch(widened(dy), wide, places)
        half.convert(wide, dx)


def _values(problem: PoolProblem, size: int, lanes: int) -> tuple[dict[str, Any], int]:
    """(values of the driver's record, the driver)."""
    n, channels = problem.x_shape[:2]
    planar = problem.layout == "channels_first"
    planes, each = (n * channels, 1) if planar else (n, channels)
    groups, begins = _groups(problem, -(-GROUP_ELEMENTS // each))
    pixels = math.prod(problem.x_shape[2:])
    bands = _bands(groups, begins, pixels, planes)
    values: dict[str, Any] = {
        "planes": planes, "channels": each, "pixels": pixels, "outputs": math.prod(problem.y_shape[2:]),
        "bands": len(bands), "band_table": bands, "groups": len(groups), "group_table": groups,
        "scratch_bytes": 0,
    }  # fmt: skip
    return values, add_gradient_at_places(size, lanes, planar)


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


def _bands(groups: np.ndarray, begins: np.ndarray, pixels: int, planes: int) -> np.ndarray:
    """`PLACED_BAND`: as many as give all threads the same number of them."""
    threads = jit.thread_count()
    count = min(pixels, threads // math.gcd(threads, planes))
    table = np.zeros(count, PLACED_BAND)
    ends = [pixels * i // count for i in range(count + 1)]
    table["first"], table["end"] = ends[:-1], ends[1:]
    for band in table:
        met = np.flatnonzero((begins < band["end"]) & (groups["reach"] > band["first"]))
        band["groups"], band["groups_end"] = (met[0], met[-1] + 1) if len(met) else (0, 1)
    return table
