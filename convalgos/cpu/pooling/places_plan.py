"""Gradients of maxima whose places are known, fixed to kernels of the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from convalgos.core.allocator import whole_lines
from convalgos.core.pool_problem import PoolProblem
from convalgos.cpu.pooling.gathered_gradients import GATHER_FIELDS, gradient_of_places
from convalgos.cpu.pooling.maxima import INDEX
from convalgos.cpu.pooling.reductions import SPLIT_STRIDE, UNROLLED
from convalgos.cpu.pooling.runs import Computed, KernelRuns
from convalgos.cpu.pooling.tables import gradient_bands, in_three, meeting
from convalgos.cpu.vectors import simd

MOST_TAPS = 5  # of a row, which is written out
WIDE = 4  # vectors of a row, from which on maxima take longer to find again than to read


def gathers_places(problem: PoolProblem) -> bool:
    """Whether reading places is the faster way, of windows that have a `GradientPlan`."""
    _, _, width = in_three(problem)
    wide = width.size > WIDE * simd.lanes(max(4, problem.itemsize))
    fits = width.stride <= SPLIT_STRIDE and width.kernel <= MOST_TAPS
    return problem.layout == "channels_first" and wide and fits


class PlacesPlan:
    """dx of dy and of places, where `gathers_places`."""

    def __init__(self, problem: PoolProblem):
        of = Computed(problem, gradient=True)
        size, lanes, _ = of.kinds
        n, channels = problem.x_shape[:2]
        _, height, width = in_three(problem)
        outputs, planes = len(width.first), n * channels
        groups = -(-(width.size + width.before) // width.stride)
        whole = -(-max(outputs, groups) // lanes) * lanes
        # an over-long line: vectors are written behind its end
        line = whole * width.stride + width.before + width.size + UNROLLED * lanes
        output_line = whole + 2 * lanes
        bands = gradient_bands(height, line * size + output_line * (INDEX + size) / height.stride, planes)
        most_out = int((bands["outputs_end"] - bands["outputs"]).max())
        values: dict[str, Any] = {
            "planes": planes, "bands": len(bands), "band_table": bands, "columns": width.size,
            "before": width.before, "outputs": outputs, "line": -(-line // lanes) * lanes,
            "output_line": output_line, "lead": lanes, "groups": groups, "inputs": meeting(height),
            "x_plane": height.size * width.size, "y_plane": len(height.first) * outputs,
        }  # fmt: skip
        scratch = most_out * output_line * (INDEX + size) + values["line"] * size
        kernel = gradient_of_places(size, lanes, width.stride, width.kernel)
        values |= {"scratch_bytes": whole_lines(scratch)} | of.sizes
        self._runs = KernelRuns(GATHER_FIELDS, values, kernel, of.tasks(planes * len(bands)))

    def run(self, dy: np.ndarray, dx: np.ndarray, places: np.ndarray) -> None:
        """Write dx, of what it is computed in, as dy is; places: int64."""
        self._runs.launch(y=dy, dx=dx, given=places)
