"""Maxima of planes in phases of the stride, fixed to kernels of the CPU."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from convalgos.core.allocator import whole_lines
from convalgos.core.pool_problem import PoolProblem, PoolWindows
from convalgos.core.profiles import units_are_narrow
from convalgos.cpu.layout.strided_rows import MOST_STRIDE
from convalgos.cpu.pooling.elements import FLOAT, FORMS, can_convert
from convalgos.cpu.pooling.maxima import INDEX
from convalgos.cpu.pooling.phase_maxima import GROUP_BAND, PHASE_FIELDS, TAP, phase_maxima
from convalgos.cpu.pooling.reductions import UNROLLED
from convalgos.cpu.pooling.runs import (
    Computed,
    KernelRuns,
    MaximaRuns,
    in_full_precision,
    leaves_cache,
    widened,
)
from convalgos.cpu.pooling.tables import POINT, in_three
from convalgos.cpu.runtime import half, jit
from convalgos.cpu.runtime.threads import THREAD_UNITS
from convalgos.cpu.vectors import simd

BAND_SCRATCH = 3 << 13  # bytes of a band: what L1 holds beside the maps
# Taps of windows whose gradient is taken in vectors of planes: of small planes, of float32 and float64; and
# of planes of at least so many vectors
MOST_TAPS, MOST_OF_LARGE = (16, 8), 8
LARGE = 32
SPARSE, MEDIUM = 4, 24  # elements of x for an output, of planes of so many vectors, whatever the taps
# Where units are narrow: taps up to which vectors of planes win, of more than so many vectors, and of rows of
# so many vectors where windows are sparse (Zen 4, two threads, 750 random maps)
PLANES_TAPS, PLANES, PLANES_COLUMNS = 9, 2, 3
FEW_OUTPUTS = 32  # of a plane, up to which 16-bit floats are converted for vectors of planes
MOST_SUMS = 1 << 16  # elements of a plane of dx that is rounded: a part of L2
WORTH = 1.5  # times the steps over columns and then over rows, that the taps of windows gone over so are
FEWEST = 4  # times the rows that windows of neighbouring bands share, in a band


def has_phases(problem: PoolProblem) -> bool:
    """Whether these kernels take a problem: floats with channels first, of one slice, by small strides."""
    depth, _, width = in_three(problem)
    return (
        problem.layout == "channels_first"
        and problem.itemsize > 1
        and can_convert(FORMS[problem.dtype])
        and depth.size == depth.kernel == 1
        and width.stride <= MOST_STRIDE
        and width.before < simd.lanes(8)
    )


def phases_scatter(problem: PoolProblem) -> bool:
    """Whether a maximum's gradient is faster than in vectors of planes: of many taps, or few planes.

    And of floats of 16 bits, which these would have converted as whole arrays.
    """
    if problem.itemsize == 2 and math.prod(problem.y_shape[2:]) >= FEW_OUTPUTS and has_phases(problem):
        return True
    if units_are_narrow() and _many_planes(problem):
        return False
    lanes, (_, height, width) = simd.lanes(max(4, problem.itemsize)), in_three(problem)
    few = 2 * math.prod(problem.x_shape[:2]) <= lanes
    taps, large = height.kernel * width.kernel, height.size * width.size >= LARGE * lanes
    many = taps > (MOST_OF_LARGE if large else MOST_TAPS[problem.dtype == "float64"])
    many = many and width.size >= lanes
    sparse = height.stride * width.stride >= SPARSE and height.size * width.size >= MEDIUM * lanes
    outputs = len(height.first) * len(width.first)
    worth = (many and outputs >= 2 * lanes) or (sparse and outputs >= 3 * lanes)
    return has_phases(in_full_precision(problem)) and (few or worth)


def _many_planes(problem: PoolProblem) -> bool:
    """Whether a problem has so many planes that, where units are narrow, vectors of these win by few taps.

    Where rows are taken apart too, those of narrow rows do, or of maps that leave the cache; of float64,
    whose vectors hold few planes, these alone.
    """
    _, height, width = in_three(problem)
    lanes, planes = simd.lanes(max(4, problem.itemsize)), math.prod(problem.x_shape[:2])
    if height.kernel * width.kernel > PLANES_TAPS or planes <= PLANES * lanes:
        return False
    cheap = height.stride * width.stride < SPARSE or width.size <= PLANES_COLUMNS * lanes
    return (cheap and problem.dtype != "float64") or leaves_cache(problem)


class PhasePlan(MaximaRuns):
    """Maxima with their places, where `has_phases`; and a maximum's gradient, of 16-bit floats as well."""

    def __init__(self, problem: PoolProblem):
        height, width = problem.x_shape[-2:] if len(problem.kernel) > 1 else (1, problem.x_shape[-1])
        self._problem = problem
        # floats of 16 bits that kernels do not convert
        self._widens = problem.itemsize == 2 and (
            height * width > MOST_SUMS or not can_convert(FORMS[problem.dtype])
        )

    def find(self, x: np.ndarray, y: np.ndarray, places: np.ndarray) -> None:
        """Write y, and int64 places of its elements in their planes of x."""
        self._finding.launch(x, y, places)

    def gradient(self, x: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
        """Write dx."""
        if not self._widens:
            self._gradient.launch(x, dy, dx)
            return
        wide = np.empty(dx.shape, np.float32)
        self._gradient.launch(widened(x), widened(dy), wide)
        half.convert(wide, dx)

    def _runs(self, gradient: bool) -> KernelRuns:
        problem = in_full_precision(self._problem) if gradient and self._widens else self._problem
        of = Computed(problem, gradient)
        size, lanes, form = of.kinds
        _, height, width = in_three(problem)
        planes = math.prod(problem.x_shape[:2])
        values = _values(height, width, planes, size, gradient)
        if gradient and form != FLOAT:
            plane = whole_lines((height.size * width.size + lanes) * size)
            values |= {"sums": values["scratch_bytes"], "scratch_bytes": values["scratch_bytes"] + plane}
        tasks = of.tasks(planes * values["bands"])
        kernel = phase_maxima(size, lanes, form, width.stride)
        return KernelRuns(PHASE_FIELDS, values | of.sizes, kernel, tasks, self.given(gradient))


def _values(
    height: PoolWindows, width: PoolWindows, planes: int, size: int, gradient: bool
) -> dict[str, Any]:
    """Values of the driver's record."""
    lanes = simd.lanes(size)
    rows_out, outputs = len(height.first), len(width.first)
    back = (height.kernel - 1) * height.dilation // height.stride  # rows of windows over a row, less one
    aside = (width.kernel - 1) * width.dilation // width.stride
    pitch = max(outputs + aside, -(-(width.before + width.size) // width.stride))
    groups = max(-(-(height.before + height.size) // height.stride), rows_out) if gradient else rows_out
    phases = height.stride * width.stride
    taps = height.kernel * width.kernel
    two_steps = taps >= WORTH * (height.kernel + min(height.stride, height.kernel) * width.kernel)
    lines = 2 * height.stride if two_steps else 0
    bands = _bands(groups, back, planes, pitch * size * (phases + 2 + lines))
    most = int((bands["end"] - bands["first"]).max())
    slack = UNROLLED * lanes
    more = back if gradient else 0  # rows of outputs before a band
    rows = most + back + more  # and one window further
    x_phase = -(-((rows + 1) * pitch + 2 * slack) // lanes) * lanes
    y_line = -(-((most + more) * pitch + 2 * slack) // lanes) * lanes
    scratch = phases * x_phase * size + y_line * (size + INDEX)
    if two_steps:
        scratch += height.stride * x_phase * (size + INDEX)
        tables = _tap_table(POINT, width, pitch, x_phase), _row_tap_table(height, width, pitch, x_phase)
    else:
        tables = _tap_table(height, width, pitch, x_phase), np.zeros(0, TAP)
    begins = np.zeros(slack, np.int32)
    padded = bool(height.before or width.before)
    if padded:  # numbers count from the first tap, which may lie in the padding
        missing = (height.first - np.arange(rows_out) * height.stride + height.before) * width.size
        aside_of = np.zeros(pitch, np.int64)
        aside_of[:outputs] = width.first - np.arange(outputs) * width.stride + width.before
        begins = np.resize(begins, rows_out * pitch + 2 * slack)
        begins[: rows_out * pitch] = (missing[:, None] + aside_of).ravel()
    values: dict[str, Any] = {
        "planes": planes, "bands": len(bands), "band_table": bands, "height": height.size,
        "columns": width.size, "above": height.before, "before": width.before, "rows_out": rows_out,
        "outputs": outputs, "row_stride": height.stride, "back": back, "pitch": pitch,
        "x_phase": x_phase, "y_line": y_line, "taps": len(tables[0]), "tap_table": tables[0],
        "row_taps": len(tables[1]), "row_table": tables[1],
        "begins": begins, "begins_step": int(padded),
        "x_plane": height.size * width.size, "y_plane": rows_out * outputs,
        "scratch_bytes": whole_lines(scratch),
    }  # fmt: skip
    return values


def _bands(groups: int, back: int, planes: int, group_bytes: int) -> np.ndarray:
    """`GROUP_BAND`: as few as scratch allows, and some for each thread."""
    wanted = -(-THREAD_UNITS * jit.thread_count() // planes)
    rows = max(1, FEWEST * back, min(BAND_SCRATCH // group_bytes, -(-groups // wanted)))
    count = -(-groups // min(groups, rows))
    ends = [groups * i // count for i in range(count + 1)]
    table = np.zeros(count, GROUP_BAND)
    table["first"], table["end"] = ends[:-1], ends[1:]
    return table


def _tap_table(height: PoolWindows, width: PoolWindows, pitch: int, x_phase: int) -> np.ndarray:
    """`TAP` of windows."""
    taps = np.zeros(height.kernel * width.kernel, TAP)
    for i in range(len(taps)):
        r, s = i // width.kernel * height.dilation, i % width.kernel * width.dilation
        phase = r % height.stride * width.stride + s % width.stride
        offset = r // height.stride * pitch + s // width.stride
        taps[i] = phase * x_phase + offset, r * width.size + s
    return taps


def _row_tap_table(height: PoolWindows, width: PoolWindows, pitch: int, x_phase: int) -> np.ndarray:
    """`TAP` of the rows of windows, of maxima over their columns."""
    r = np.arange(height.kernel) * height.dilation
    table = np.zeros(height.kernel, TAP)
    table["offset"] = r % height.stride * x_phase + r // height.stride * pitch
    table["number"] = r * width.size
    return table
