"""Filters of products of float32 that are split into three terms, as matrix tiles take them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.cpu.gemm import panel_packing
from convalgos.cpu.gemm.channel_scales import UNLIKE, scale_bytes, tell_scales
from convalgos.cpu.gemm.digit_terms import pack_filter_terms, scale_filters
from convalgos.cpu.gemm.split_cut import SplitCut
from convalgos.cpu.gemm.split_forms import LANES
from convalgos.cpu.gemm.split_terms import ENTRY_BYTES, TILE_BYTES
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors.simd import carray, pointer

PACK_FIELDS = fields("w packed units spreads channels taps vectors tasks largest times")
PIECE = 1 << 24  # bytes of a filter that are dealt to panels at a time: of a huge one not all are there twice


@jit.specialise
def pack_split(CHANNELS: int, DIGITS: int) -> Callable[..., None]:
    """Float32 (panel, channel, tap, filter) to (panel, entry, term, vector, word, filter) of four bytes: two
    bfloat16, or four digits, with the units of the filters and `times` the spreads of their vectors apart.
    `largest` (task, channel, lane) becomes what `channel_scales.tell_scales` asks for."""

    def pack_split(args: int, task: int) -> None:
        a = carray(pointer(args), 1, PACK_FIELDS)[0]
        panels, entries = (a.vectors + 1) // 2, (a.channels + CHANNELS - 1) // CHANNELS * a.taps
        for panel in range(panels * task // a.tasks, panels * (task + 1) // a.tasks):
            first = a.vectors * panel // panels
            width = a.vectors * (panel + 1) // panels - first
            units, spreads = a.units + first * 64, a.spreads + first * 8
            w = a.w + first * 64 * a.channels * a.taps
            if DIGITS:
                largest, step = a.largest + task * a.channels * 64, width * LANES
                for j in range(width):
                    scale_filters(
                        4, LANES, w + j * 64, step, 1, a.channels, a.taps, largest, a.times, units + j * 64,
                        spreads + j * 8,
                    )  # fmt: skip
            to = a.packed + first * entries * ENTRY_BYTES
            for c in range(0, a.channels, CHANNELS):
                for tap in range(a.taps):
                    for j in range(width):
                        pack_filter_terms(
                            DIGITS, w + ((c * a.taps + tap) * width + j) * 64, a.taps * width * 16,
                            a.channels - c, units + j * 64, to + j * TILE_BYTES, width * TILE_BYTES,
                        )  # fmt: skip
                    to += width * ENTRY_BYTES

    return pack_split


def packed_filter(w: np.ndarray, cut: SplitCut) -> np.ndarray:
    """(panels, entries, TERMS, vectors of a panel, 16 words, 16 filters) of four bytes, and behind digits the
    units of the filters, their spreads, and the scales of channels, as bytes.

    A word holds channels that lie half an entry apart, or a quarter, as those of x do.
    """
    packed = aligned_empty(cut.form.filter_bytes(cut.problem), np.uint8)
    largest = _pack(w, cut, packed)
    if cut.form.scaled:
        scales = packed[None, -scale_bytes(cut.problem.C) :]
        factors = tell_scales(largest, scales)
        if factors is not None:  # as rarely is the case
            _pack(w, cut, packed, factors.reshape(-1, *(1,) * (w.ndim - 2)), UNLIKE)
    return packed


def _pack(
    w: np.ndarray, cut: SplitCut, packed: np.ndarray, factors: np.ndarray | None = None, times: int = 1
) -> np.ndarray:
    """Write all but the scales; returns the largest sizes that were met (tasks, 1, channels, lanes).

    Args:
        factors: of channels.
    """
    scaled, channels = int(cut.form.scaled), cut.problem.C
    address, tasks, taps = jit.data_address(), jit.thread_count(), cut.entries // cut.channel_blocks
    kernel = pack_split(cut.form.channels, scaled)
    largest = np.zeros((tasks, 1, channels * scaled, LANES), np.int32)
    begin, of_vector = address(packed), cut.entries * ENTRY_BYTES
    units = begin + cut.vectors * of_vector
    spreads = units + cut.vectors * 64
    of_piece = max(1, cut.panels * PIECE // max(1, w.nbytes))
    for panel in range(0, cut.panels, of_piece):
        panels = min(of_piece, cut.panels - panel)
        first, end = (cut.vectors * number // cut.panels for number in (panel, panel + panels))
        piece = w[None, first * LANES : end * LANES]  # (1, filters, C, *taps)
        dealt = panel_packing.packed_panels(piece if factors is None else piece * factors, panels)
        to = begin + first * of_vector, units + first * 64, spreads + first * 8
        sizes = channels, taps, end - first, tasks
        record = np.array([(address(dealt), *to, *sizes, address(largest), times)], PACK_FIELDS)
        jit.launch(kernel, address(record), tasks)
    return largest
