"""Filters of products on transformed tiles that are split into three terms, as matrix tiles take them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.cpu.gemm.channel_scales import finer, scaled_channels
from convalgos.cpu.gemm.digit_terms import find_units, pack_filter_terms
from convalgos.cpu.gemm.split_filter import filter_scales, filter_spreads, largest_sizes
from convalgos.cpu.gemm.split_terms import ENTRY_BYTES, TILE_BYTES
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.tiled.split_schedule import SplitBoxSchedule
from convalgos.cpu.vectors.simd import carray, pointer

PACK_FIELDS = fields("w packed panels phases channels vectors tasks")


@jit.specialise
def pack_points(CHANNELS: int, DIGITS: int) -> Callable[..., None]:
    """Float32 (panel, phase, channel, filter) to (panel, phase, entry, term, vector, word, filter) of four
    bytes. Behind each panel of digits the largest sizes of its filters become their units."""

    def pack_points(args: int, task: int) -> None:
        a = carray(pointer(args), 1, PACK_FIELDS)[0]
        u_entry = a.vectors * ENTRY_BYTES
        terms = a.phases * ((a.channels + CHANNELS - 1) // CHANNELS) * u_entry
        for panel in range(a.panels * task // a.tasks, a.panels * (task + 1) // a.tasks):
            to = a.packed + panel * (terms + DIGITS * (a.vectors + 1) * 64)
            units = to + terms
            if DIGITS:
                find_units(units, a.vectors * 16)
            for phase in range(a.phases):
                w = a.w + (panel * a.phases + phase) * a.channels * a.vectors * 64
                for c in range(0, a.channels, CHANNELS):
                    for j in range(a.vectors):
                        pack_filter_terms(
                            DIGITS, w + (c * a.vectors + j) * 64, a.vectors * 16, a.channels - c,
                            units + j * 64, to + j * TILE_BYTES, a.vectors * TILE_BYTES,
                        )  # fmt: skip
                    to += u_entry

    return pack_points


def split_filter(u: np.ndarray, cut: SplitBoxSchedule) -> np.ndarray:
    """The terms of a transformed filter (groups, points, panels, taps, panel), as bytes; behind the digits of
    a panel lie the units of its filters, and spreads, and behind all of them scales of channels."""
    panels, tasks, scaled = cut.problem.groups * cut.points * cut.panels, jit.thread_count(), cut.form.scaled
    groups, channels = cut.problem.groups, cut.problem.w_shape[1]
    packed, rows = aligned_empty(groups * cut.u_bytes, np.uint8), u.reshape(panels, -1, cut.panel)
    if scaled:
        ends = groups * cut.points * cut.point_bytes
        scales = packed[ends:].reshape(groups, -1)
        for of_group, to in zip(u.reshape(groups, -1, channels, cut.panel), scales, strict=True):
            if (made := scaled_channels(of_group, to)) is not of_group:
                of_group[...] = made
        after = packed[:ends].reshape(panels, -1)[:, cut.vectors * cut.entries * ENTRY_BYTES :]
        units, spreads = filter_scales(after, cut.vectors)
        units[...] = largest_sizes(rows, 1)
    address = jit.data_address()
    sizes = panels, cut.phases, channels, cut.vectors, tasks
    record = np.array([(address(u), address(packed), *sizes)], PACK_FIELDS)
    jit.launch(pack_points(cut.form.channels, int(scaled)), address(record), tasks)
    if scaled:
        squares = np.einsum("ptf,ptf->pf", rows, rows)
        spreads[...] = filter_spreads(units, squares, rows.shape[1]) * finer(scales)
    return packed
