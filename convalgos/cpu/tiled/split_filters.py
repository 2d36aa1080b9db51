"""Filters of products on transformed tiles that are split into three terms, as matrix tiles take them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.cpu.gemm.channel_scales import UNLIKE, tell_scales
from convalgos.cpu.gemm.digit_terms import pack_filter_terms, scale_filters
from convalgos.cpu.gemm.split_forms import LANES
from convalgos.cpu.gemm.split_terms import ENTRY_BYTES, TILE_BYTES
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.tiled.filters import FILTER_ARGUMENTS, launch_transform, transform_vector
from convalgos.cpu.tiled.split_schedule import SplitBoxSchedule
from convalgos.cpu.vectors.simd import carray, pointer

SCALE_FIELDS = fields("largest times")  # of digits: see `channel_scales`, and `scale_filters`


@jit.helper
def point_step(rows: int) -> int:
    """Elements from a point to the next in the scratch of a vector of filters: an odd number of lines, so
    that rows of several points do not lie in the same places of the caches."""
    return (rows | 1) * LANES


@jit.specialise
def transform_split(CHANNELS: int, DIGITS: int) -> Callable[..., None]:
    """w (group, filter, channel, row, column) -> the terms of U (group, point, panel, phase, entry, term,
    vector, word, filter), words of four bytes. Behind the digits of a panel lie the units of its filters, and
    `times` the spreads of its vectors. `largest` (task, group, channel, lane) becomes what
    `channel_scales.tell_scales` asks for.

    An item is a group and a vector of filters, which is transformed in scratch.
    """

    def transform_split(args: int, task: int) -> None:
        a = carray(pointer(args), 1, FILTER_ARGUMENTS)[0]
        own = carray(pointer(a.own), 1, SCALE_FIELDS)[0]
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
            largest = own.largest + (task * a.groups + group) * a.channels * 64
            for point in range(a.points):
                source = u + point * u_point * 4
                to = a.u + ((group * a.points + point) * a.panels + panel) * panel_bytes
                unit, spread = to + terms + vector * 64, to + terms + a.vectors * 64 + vector * 8
                if DIGITS:
                    scale_filters(
                        4, LANES, source, LANES, phases, a.channels, 1, largest, own.times, unit, spread
                    )  # fmt: skip
                for phase in range(phases):
                    for c in range(0, a.channels, CHANNELS):
                        pack_filter_terms(
                            DIGITS, source + (phase * a.channels + c) * 64, LANES, a.channels - c, unit,
                            to + vector * TILE_BYTES, a.vectors * TILE_BYTES,
                        )  # fmt: skip
                        to += u_entry

    return transform_split


def split_filter(w: np.ndarray, cut: SplitBoxSchedule, record: np.ndarray, filter_tiles: int) -> np.ndarray:
    """The terms of a transformed filter, as bytes: what `transform_split` gives, and behind all digits the
    scales of the channels of each group.

    Args:
        w, record, filter_tiles: of `filters.transform_filter`.
    """
    groups, channels, scaled = cut.problem.groups, cut.problem.w_shape[1], int(cut.form.scaled)
    packed, ends = aligned_empty(groups * cut.u_bytes, np.uint8), groups * cut.points * cut.point_bytes
    if cut.filter_blocks % cut.vectors:
        packed[:ends].reshape(groups * cut.points, cut.panels, -1)[:, -1] = 0
    largest = np.zeros((cut.threads, groups, channels * scaled, LANES), np.int32)
    driver, own_bytes = transform_split(cut.form.channels, scaled), cut.points * point_step(cut.taps) * 4

    def transform(w: np.ndarray, times: int) -> None:
        own = np.array([(largest.ctypes.data, times)], SCALE_FIELDS)
        launch_transform(driver, w, cut, record, filter_tiles, packed, own_bytes, own)

    transform(w, 1)
    if scaled:
        factors = tell_scales(largest, packed[ends:].reshape(groups, -1))
        if factors is not None:  # as rarely is the case
            of_filters = np.repeat(factors, cut.problem.gemm_n, axis=0)  # (K, C/groups)
            transform(w * of_filters.reshape(*of_filters.shape, *(1,) * (w.ndim - 2)), UNLIKE)
    return packed
