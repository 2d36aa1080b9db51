"""Filters of products of float32 that are split into three bfloat16."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.cpu.gemm import panel_packing
from convalgos.cpu.gemm.split_cut import SplitCut
from convalgos.cpu.gemm.split_terms import ENTRY_BYTES, TILE_BYTES, pack_entry
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors.simd import carray, pointer

PACK_FIELDS = fields("w packed channels taps vectors tasks")


@jit.specialise
def pack_split() -> Callable[..., None]:
    """Float32 (panel, channel, tap, filter) to (panel, entry, term, vector, word, filter) of two bfloat16."""

    def pack_split(args: int, task: int) -> None:
        a = carray(pointer(args), 1, PACK_FIELDS)[0]
        panels = (a.vectors + 1) // 2
        for panel in range(panels * task // a.tasks, panels * (task + 1) // a.tasks):
            first = a.vectors * panel // panels
            width = a.vectors * (panel + 1) // panels - first
            w = a.w + first * 64 * a.channels * a.taps
            to = a.packed + first * ((a.channels + 31) // 32) * a.taps * ENTRY_BYTES
            for c in range(0, a.channels, 32):
                for tap in range(a.taps):
                    for j in range(width):
                        pack_entry(
                            4, 16, w + ((c * a.taps + tap) * width + j) * 64, a.taps * width * 16,
                            a.channels - c, to + j * TILE_BYTES, width * TILE_BYTES,
                        )  # fmt: skip
                    to += width * ENTRY_BYTES

    return pack_split


def packed_terms(w: np.ndarray, cut: SplitCut) -> np.ndarray:
    """(panels, entries, TERMS, vectors of a panel, 16 words, 16 filters) pairs of bfloat16, as bytes.

    A word holds two channels that lie half a block apart, as those of x do.
    """
    p = cut.problem
    dealt = panel_packing.packed_panels(w[None], cut.panels)
    packed = aligned_empty(cut.form.filter_bytes(p), np.uint8)
    address, tasks = jit.data_address(), jit.thread_count()
    sizes = p.C, cut.entries // cut.channel_blocks, cut.vectors, tasks
    record = np.array([(address(dealt), address(packed), *sizes)], PACK_FIELDS)
    jit.launch(pack_split(), address(record), tasks)
    return packed
