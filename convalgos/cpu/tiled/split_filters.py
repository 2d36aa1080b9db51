"""Filters of products on transformed tiles that are split into three terms, as matrix tiles take them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.cpu.gemm.digit_terms import pack_filter_terms, scale_filters
from convalgos.cpu.gemm.split_forms import LANES
from convalgos.cpu.gemm.split_terms import ENTRY_BYTES, TILE_BYTES
from convalgos.cpu.runtime import jit
from convalgos.cpu.tiled.filters import FILTER_ARGUMENTS, launch_transform, transform_vector
from convalgos.cpu.tiled.split_schedule import SplitBoxSchedule
from convalgos.cpu.vectors.simd import carray, pointer


@jit.helper
def point_step(rows: int) -> int:
    """Elements from a point to the next in the scratch of a vector of filters: an odd number of lines, so
    that rows of several points do not lie in the same places of the caches."""
    return (rows | 1) * LANES


@jit.specialise
def transform_split(CHANNELS: int, DIGITS: int) -> Callable[..., None]:
    """w (group, filter, channel, row, column) -> the terms of U (group, point, panel, phase, entry, term,
    vector, word, filter), words of four bytes. Behind the digits of a panel lie the units of its filters, and
    the spreads of its vectors.

    An item is a group and a vector of filters, which is transformed in scratch.
    """

    def transform_split(args: int, task: int) -> None:
        a = carray(pointer(args), 1, FILTER_ARGUMENTS)[0]
        taps = a.scratch + task * a.task_bytes
        u, u_point = taps + a.tap_bytes, point_step(a.slice_taps)  # (point, phase, channel, filter)
        u_entry, phases = a.vectors * ENTRY_BYTES, a.slice_taps // a.channels
        terms = phases * ((a.channels + CHANNELS - 1) // CHANNELS) * u_entry
        panel_bytes = terms + DIGITS * (a.vectors + 1) * 64
        items = a.groups * a.filter_blocks
        for item in range(items * task // a.tasks, items * (task + 1) // a.tasks):
            group, block = item // a.filter_blocks, item % a.filter_blocks
            transform_vector(a, group, block, taps, u, LANES, u_point)
            panel, vector = block // a.vectors, block % a.vectors
            for point in range(a.points):
                source = u + point * u_point * 4
                to = a.u + ((group * a.points + point) * a.panels + panel) * panel_bytes
                unit, spread = to + terms + vector * 64, to + terms + a.vectors * 64 + vector * 8
                if DIGITS:
                    scale_filters(4, LANES, source, LANES, a.slice_taps, unit, spread)
                for phase in range(phases):
                    for c in range(0, a.channels, CHANNELS):
                        pack_filter_terms(
                            DIGITS, source + (phase * a.channels + c) * 64, LANES, a.channels - c, unit,
                            to + vector * TILE_BYTES, a.vectors * TILE_BYTES,
                        )  # fmt: skip
                        to += u_entry

    return transform_split


def split_filter(w: np.ndarray, cut: SplitBoxSchedule, record: np.ndarray, filter_tiles: int) -> np.ndarray:
    """The terms of a transformed filter, as bytes: what `transform_split` gives.

    Args:
        w, record, filter_tiles: of `filters.transform_filter`.
    """
    packed = aligned_empty(cut.problem.groups * cut.u_bytes, np.uint8)
    if cut.filter_blocks % cut.vectors:
        packed.reshape(cut.problem.groups * cut.points, cut.panels, -1)[:, -1] = 0
    driver = transform_split(cut.form.channels, int(cut.form.scaled))
    own_bytes = cut.points * point_step(cut.taps) * w.itemsize
    launch_transform(driver, w, cut, record, filter_tiles, packed, own_bytes)
    return packed
