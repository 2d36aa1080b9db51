"""Separated gradients of windows with channels last, fixed to kernels of the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from convalgos.core.allocator import whole_lines
from convalgos.core.machine import cache_sizes
from convalgos.core.pool_problem import PoolProblem, PoolWindows
from convalgos.cpu.pooling.elements import MAX
from convalgos.cpu.pooling.maxima import INDEX
from convalgos.cpu.pooling.phase_maxima import TAP
from convalgos.cpu.pooling.reductions import UNROLLED
from convalgos.cpu.pooling.runs import Computed, KernelRuns
from convalgos.cpu.pooling.separable_gradients import PIXELS, SEPARABLE_FIELDS, separable_gradient
from convalgos.cpu.pooling.tables import (
    POINT,
    gradient_bands,
    in_three,
    meeting,
    window_counts,
    window_rows,
)

SCRATCH = 1 / 4  # of L2, for a block of channels


def separable_runs(problem: PoolProblem, of: Computed, reduction: int) -> KernelRuns:
    """Runs of the kernel for windows of a plane, not dilated; reduction: MAX or MEAN."""
    size, lanes, _ = of.kinds
    n, channels = problem.x_shape[:2]
    _, height, width = in_three(problem)
    outputs, rows_out = len(width.first), len(height.first)
    rows, kept = height.kernel, -(-height.kernel // height.stride)
    aside = (width.kernel - 1) // width.stride
    phases, phase_taps = _phases(width)
    pixels = max(outputs + aside, int((phases["place"] + phases["count"]).max()))
    lines = width.stride + 3 + kept * (2 if reduction == MAX else 1) + (2 * rows if reduction == MAX else 0)
    block = _block_channels(channels, pixels * lines * size, lanes)
    line = -(-(pixels + 2 * aside) * block // lanes) * lanes + 2 * UNROLLED * lanes
    tables = _scratch(width.stride, rows if reduction == MAX else 0, kept, line, size)
    blocks = -(-channels // block)
    bands = gradient_bands(height, 1, n, blocks, of.threads)
    begins = width.first - np.arange(outputs) * width.stride + width.before
    taps, ring = _taps(width, block, line), _ring(rows, line)
    phase_taps["offset"] *= block
    values: dict[str, Any] = {
        "planes": n, "blocks": blocks, "channels": channels, "block_channels": block, "bands": len(bands),
        "band_table": bands, "row_table": window_rows(height), "height": height.size, "columns": width.size,
        "rows_out": rows_out, "outputs": outputs, "x_plane": height.size * width.size * channels,
        "y_plane": rows_out * outputs * channels, "met_table": meeting(height), "stride": width.stride,
        "phase_table": phases, "phase_taps": phase_taps, "taps": len(taps), "tap_table": taps,
        "begins": np.resize(np.repeat(begins, block).astype(np.int32), line), "begins_step": 1,
        "rows": rows, "ring_table": ring, "kept": kept, "merged": width.stride == 1 and block == channels,
        "line": line, "zeros": np.zeros(UNROLLED * lanes, np.int32), **tables,
    }  # fmt: skip
    counts = window_counts(POINT, height, width, of.kinds)
    values |= {"row_counts": counts["row_counts"], "counts": _each(counts["counts"][:outputs], block, line)}
    kernel = separable_gradient(*of.kinds, reduction)
    tasks = of.tasks(n * blocks * len(bands))
    given = ("y", "dx", "x") if reduction == MAX else ("y", "dx")
    return KernelRuns(SEPARABLE_FIELDS, values | of.sizes, kernel, tasks, given)


def _each(counts: np.ndarray, block: int, line: int) -> np.ndarray:
    """Of each column of outputs, for all channels of a block."""
    return np.resize(np.repeat(counts, block), line)


def _block_channels(channels: int, pixel_bytes: int, lanes: int) -> int:
    """Of a unit of work: all, or as many as stay in the cache, in equal blocks of whole vectors."""
    most = max(lanes, int(SCRATCH * cache_sizes()[1]) // pixel_bytes // lanes * lanes)
    blocks = -(-channels // most)
    each = -(-channels // blocks)
    return min(channels, -(-each // lanes) * lanes) if blocks > 1 else channels


def _scratch(stride: int, rows: int, kept: int, line: int, size: int) -> dict[str, int]:
    """Where lines of each kind begin, in bytes; rows: of which maxima are kept."""
    at, places = 0, {}
    # x lies at the beginning; what is summed has zeros before it, and behind
    for name, lines, each in (
        ("x", stride, size), ("sums", 1, size), ("sums", 1, size), ("found", 1, size), ("given", kept, size),
        ("maxima", rows, size), ("numbers", rows, INDEX), ("winners", kept if rows else 0, INDEX),
    ):  # fmt: skip
        places[name] = at
        at += lines * line * each
    places.pop("x")
    return places | {"scratch_bytes": whole_lines(at)}


def _phases(width: PoolWindows) -> tuple[np.ndarray, np.ndarray]:
    """(`PIXELS` of the phases of the stride, `TAP` of all of them, whose offsets are in pixels)."""
    table, taps = np.zeros(width.stride, PIXELS), np.zeros(width.kernel, TAP)
    given = 0
    for phase in range(width.stride):
        first = (phase - width.before) % width.stride
        table["first"][phase] = first
        table["place"][phase] = (first + width.before) // width.stride
        table["count"][phase] = len(range(first, width.size, width.stride))
        numbers = np.arange(phase, width.kernel, width.stride)
        end = given + len(numbers)
        table["first_tap"][phase], table["taps"][phase] = given, len(numbers)
        taps["offset"][given:end], taps["number"][given:end] = -(numbers // width.stride), numbers
        given = end
    return table, taps


def _taps(width: PoolWindows, block: int, line: int) -> np.ndarray:
    """`TAP` of the columns of windows, of x in phases."""
    s = np.arange(width.kernel)
    table = np.zeros(width.kernel, TAP)
    table["offset"] = s % width.stride * line + s // width.stride * block
    table["number"] = s
    return table


def _ring(rows: int, line: int) -> np.ndarray:
    """`TAP` of the rows of windows, whose first lies in each of the lines that are used by turns."""
    r = np.arange(rows)
    table = np.zeros((rows, rows), TAP)
    table["offset"], table["number"] = (r[:, None] + r) % rows * line, r
    return table
