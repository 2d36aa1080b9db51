"""Filters of products of float32 that are split into three terms, as matrix tiles take them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.cpu.gemm import panel_packing
from convalgos.cpu.gemm.digit_terms import pack_filter_terms, scale_filters
from convalgos.cpu.gemm.split_cut import SplitCut
from convalgos.cpu.gemm.split_forms import LANES
from convalgos.cpu.gemm.split_terms import ENTRY_BYTES, TILE_BYTES
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors.simd import carray, pointer

PACK_FIELDS = fields("w packed channels taps vectors tasks")


@jit.specialise
def pack_split(CHANNELS: int, DIGITS: int) -> Callable[..., None]:
    """Float32 (panel, channel, tap, filter) to (panel, entry, term, vector, word, filter) of four bytes: two
    bfloat16, or four digits, behind which lie the units of the filters and the spreads of their vectors."""

    def pack_split(args: int, task: int) -> None:
        a = carray(pointer(args), 1, PACK_FIELDS)[0]
        panels, entries = (a.vectors + 1) // 2, (a.channels + CHANNELS - 1) // CHANNELS * a.taps
        for panel in range(panels * task // a.tasks, panels * (task + 1) // a.tasks):
            first = a.vectors * panel // panels
            width = a.vectors * (panel + 1) // panels - first
            units = a.packed + a.vectors * entries * ENTRY_BYTES + first * 64
            spreads = a.packed + a.vectors * (entries * ENTRY_BYTES + 64) + first * 8
            w, rows = a.w + first * 64 * a.channels * a.taps, a.channels * a.taps
            if DIGITS:
                for j in range(width):
                    scale_filters(4, LANES, w + j * 64, width * LANES, rows, units + j * 64, spreads + j * 8)
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
    units of the filters and their spreads, as bytes.

    A word holds channels that lie half an entry apart, or a quarter, as those of x do.
    """
    p, scaled = cut.problem, int(cut.form.scaled)
    dealt = panel_packing.packed_panels(w[None], cut.panels)
    packed = aligned_empty(cut.form.filter_bytes(p), np.uint8)
    address, tasks = jit.data_address(), jit.thread_count()
    sizes = p.C, cut.entries // cut.channel_blocks, cut.vectors, tasks
    record = np.array([(address(dealt), address(packed), *sizes)], PACK_FIELDS)
    jit.launch(pack_split(cut.form.channels, scaled), address(record), tasks)
    return packed
