"""Gradients of maxima of windows side by side with channels first, fixed to kernels of the CPU."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from convalgos.core.machine import vector_bytes
from convalgos.core.pool_problem import PoolProblem
from convalgos.cpu.pooling.runs import Computed, KernelRuns
from convalgos.cpu.pooling.tables import in_three
from convalgos.cpu.pooling.tile_gradients import TILE_FIELDS, tile_gradient
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.threads import THREAD_UNITS
from convalgos.cpu.vectors import simd

MOST_ROWS, MOST_TAPS = 3, 2  # of a window
# Vectors that a row of windows fills at least, as the last is masked, by bytes of a vector; of shorter
# rows, lanes are planes. Masks of vectors of 64 bytes cost nothing.
NARROW = {64: 1 / 2}
NARROW_ELSE = 3 / 2


def has_tiles(problem: PoolProblem) -> bool:
    """Whether these kernels take a problem: windows apart, each inside a map, of float32 or float64."""
    depth, height, width = in_three(problem)
    sides = all(
        w.kernel == w.stride and not w.before and len(w.first) * w.kernel <= w.size for w in (height, width)
    )
    return (
        sides
        and problem.reduction == "max"
        and problem.layout == "channels_first"
        and problem.dtype in ("float32", "float64")
        and depth.size == depth.kernel == 1
        and (height.dilation == 1 or height.kernel == 1)
        and (width.dilation == 1 or width.kernel == 1)
        and height.kernel <= MOST_ROWS
        and width.kernel <= MOST_TAPS
        and len(width.first) >= NARROW.get(vector_bytes(), NARROW_ELSE) * simd.lanes(problem.itemsize)
    )


class TilePlan:
    """dx of dy and x, where `has_tiles`."""

    def __init__(self, problem: PoolProblem):
        of = Computed(problem, gradient=True)
        size, lanes, _ = of.kinds
        _, height, width = in_three(problem)
        planes, rows = math.prod(problem.x_shape[:2]), len(height.first)
        bands = min(rows, -(-THREAD_UNITS * jit.thread_count() // planes))
        values: dict[str, Any] = {
            "planes": planes, "bands": bands, "height": height.size, "columns": width.size, "rows": rows,
            "outputs": len(width.first), "scratch_bytes": 0,
        }  # fmt: skip
        kernel = tile_gradient(size, lanes, height.kernel, width.kernel)
        tasks = of.tasks(planes * bands)
        self._runs = KernelRuns(TILE_FIELDS, values | of.sizes, kernel, tasks, ("y", "dx", "x"))

    def gradient(self, x: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
        """Write dx; all `as_laid`."""
        self._runs.launch(dy, dx, x)
