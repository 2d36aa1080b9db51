"""Windows along a dimension, and the strips of columns whose rows are reduced together."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from convalgos.core.axis_windows import AxisWindow
from convalgos.core.machine import cache_sizes
from convalgos.core.window_borders import border_elements, is_around
from convalgos.cpu.sliding.kernels import BORDER, FILL, RUN, STRIP
from convalgos.cpu.vectors import simd

SEGMENT = 1 << 13  # bytes of a row that are reduced with those below it at a time; Zen 4


def strip_width(size: int, stored: int, block: int, columns: AxisWindow, step: int) -> int:
    """Windows of a strip: what lies under them stays in the second cache."""
    l2 = cache_sizes()[1]
    elements = SEGMENT // stored if columns.taps == 1 else max(SEGMENT // stored, 8 * columns.taps * step)
    if block:
        elements = max(64 * 4 // size, l2 // 2 // (block * size))
        if columns.taps > 1:
            elements = max(elements, 4 * columns.taps * step)
    count = max(1, elements // step)
    strips = max(1, round(columns.outputs / count))
    return -(-columns.outputs // strips)


class StripTables(NamedTuple):
    """How strips are read and where their borders come from.

    strips: how many. table: `STRIP` of each; runs, borders: `RUN` and `BORDER` of all. longest, outputs:
    elements of the longest line, and of the results of the longest strip.
    """

    strips: int
    table: np.ndarray
    runs: np.ndarray
    borders: np.ndarray
    longest: int
    outputs: int


def strips_of(columns: AxisWindow, step: int, each: int, size: int) -> StripTables:
    """StripTables of `each` windows of `size` bytes an element; step: elements between neighbours."""
    if columns.outputs <= each and is_around(columns):
        return _one_strip(columns, step, size)
    return _several_strips(columns, step, each, size)


@lru_cache(512)
def _one_strip(columns: AxisWindow, step: int, size: int) -> StripTables:
    """Of windows around each column: what lies beyond the ends are columns of the strip itself."""
    n, low, beside = columns.size, columns.low, columns.taps - 1
    near = 2 * columns.taps
    if step == 1 and n > near:  # the same of all sizes, but for where the end lies
        first, grows = _single_borders(columns._replace(size=near), size)
        borders = first + (n - near) * grows
    else:
        borders = _borders(columns, step, size)
    table = np.array((0, n * step, 0, 1, 0, beside * step))
    run = np.array((0, low * step, n * step))
    return StripTables(1, table, run, borders, (n + beside) * step, n * step)


@lru_cache(512)
def _single_borders(columns: AxisWindow, size: int) -> tuple[np.ndarray, np.ndarray]:
    """(`_borders` of single elements, what is added for each column more than there are)."""
    first = _borders(columns, 1, size)
    return first, _borders(columns._replace(size=columns.size + 1), 1, size) - first


def _borders(columns: AxisWindow, step: int, size: int) -> np.ndarray:
    """(entries, 2) int64: `BORDER` of all that lies beyond the ends."""
    low, beside = columns.low, columns.taps - 1
    fields = np.empty((beside, step, 2), np.int64)
    target = np.arange(beside)
    target[low:] += columns.size
    source = border_elements(columns._replace(size=0), columns.size)[:-1, None]
    within = np.arange(step) * size
    fields[..., 0] = target[:, None] * (step * size) + within
    fields[..., 1] = np.where(source < 0, -FILL, (low + source) * (step * size) + within)
    return fields.reshape(-1, 2)


def _several_strips(columns: AxisWindow, step: int, each: int, size: int) -> StripTables:
    strips: list[tuple[int, ...]] = []
    runs: list[tuple[int, int, int]] = []
    borders: list[np.ndarray] = []
    longest, sources = 0, columns.sources
    apart = -(-simd.vector_bytes() // (size * step))  # between runs: a run is written up to a whole vector
    for q in range(0, columns.outputs, each):
        outputs = min(each, columns.outputs - q)
        reached = sources[q : q + outputs + columns.taps - 1]
        own = np.arange(q - columns.low, q - columns.low + len(reached))
        inside = (own >= 0) & (own < columns.size)
        first_run, first_border = len(runs), sum(table.size for table in borders)
        behind = len(reached)
        places = np.full(columns.size, -1)
        if inside.any():
            begin = int(inside.argmax())
            runs.append((int(own[begin]) * step, begin * step, int(inside.sum()) * step))
            places[own[inside]] = np.flatnonzero(inside)
        elsewhere = np.unique(reached[~inside])
        elsewhere = elsewhere[(elsewhere >= 0) & (places[elsewhere] < 0)]
        for part in np.split(elsewhere, np.flatnonzero(np.diff(elsewhere) != 1) + 1):
            if len(part):
                behind += apart
                runs.append((int(part[0]) * step, behind * step, len(part) * step))
                places[part] = np.arange(behind, behind + len(part))
                behind += len(part)
        target = np.flatnonzero(~inside)
        source = np.where(reached[target] < 0, -1, places[reached[target]])
        table = np.zeros((len(target), step), BORDER)
        within = np.arange(step)
        table["target"] = (target[:, None] * step + within) * size
        table["source"] = np.where(source[:, None] < 0, -FILL, (source[:, None] * step + within) * size)
        borders.append(table.ravel())
        strips.append((q * step, outputs * step, first_run, len(runs) - first_run, first_border, table.size))
        longest = max(longest, behind * step)
    outputs = max((strip[1] for strip in strips), default=1)
    tables = np.array(strips, STRIP), np.array(runs, RUN), np.concatenate(borders)
    return StripTables(len(strips), *tables, longest, outputs)
