"""Transformed filters in words of 32 bits: U (group, point, panel, depth tap, word, filter, part of a word).

A word holds the channels that one instruction multiplies with those of a word of V and sums: two of 16 bits,
or four of 8.
"""

from __future__ import annotations

import math

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.cpu.tiled.blocking import BoxSizes

WORD = 4  # bytes


def phase_filters(w: np.ndarray, cut: BoxSizes) -> np.ndarray:
    """The filters of the phases of a stride, (phase, K, C/groups, depth tap, row, column), with their zeros.

    Phases stand in the order in which tiles hold them.
    """
    p, rows, columns = cut.problem, cut.rows, cut.columns
    w = w.reshape(p.w_shape)
    whole = np.zeros((*w.shape[:3], rows.taps * rows.phases, columns.taps * columns.phases), w.dtype)
    whole[..., : p.kernel[1], : p.kernel[2]] = w
    parts = whole.reshape(*w.shape[:3], rows.taps, rows.phases, columns.taps, columns.phases)
    phases = parts.transpose(4, 6, 0, 1, 2, 3, 5).reshape(-1, *w.shape[:3], rows.taps, columns.taps)
    return np.asarray(phases[np.argsort(cut.phase_places)])


def packed_words(points: np.ndarray, cut: BoxSizes) -> np.ndarray:
    """U of filters (point, phase, K, C/groups, depth tap) at the points of a transform."""
    p, part = cut.problem, WORD // points.itemsize
    channels = cut.slice_taps // cut.phases  # of a row of V, with those that fill it up
    u = np.zeros(
        (p.groups, cut.points, cut.panels * cut.panel, p.kernel[0], cut.phases, channels), points.dtype
    )
    split = points.reshape(cut.points, cut.phases, p.groups, p.gemm_n, p.w_shape[1], p.kernel[0])
    u[:, :, : p.gemm_n, ..., : p.w_shape[1]] = split.transpose(2, 0, 3, 5, 1, 4)
    words = u.reshape(p.groups, cut.points, cut.panels, cut.panel, p.kernel[0], -1, part)
    packed = aligned_empty(math.prod(words.shape), u.dtype)
    packed.reshape(words.transpose(0, 1, 2, 4, 5, 3, 6).shape)[...] = words.transpose(0, 1, 2, 4, 5, 3, 6)
    return packed
