"""Windows along a dimension, and the strips of columns whose rows are reduced together."""

from __future__ import annotations

import numpy as np

from convalgos.core.axis_windows import AxisWindow
from convalgos.core.machine import cache_sizes
from convalgos.cpu.sliding.kernels import BORDER, FILL, RUN, STRIP

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


def strips_of(
    columns: AxisWindow, step: int, each: int, size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """(`STRIP` of each, `RUN` and `BORDER` of all, elements of the longest line)."""
    strips: list[tuple[int, ...]] = []
    runs: list[tuple[int, int, int]] = []
    borders: list[np.ndarray] = []
    longest, sources = 0, columns.sources
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
    return np.array(strips, STRIP), np.array(runs, RUN), np.concatenate(borders), longest
