"""Filters of products of float32 that are split into three digits of eight bits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.cpu.gemm import panel_packing
from convalgos.cpu.gemm.digit_terms import pack_digits, unit_bits
from convalgos.cpu.gemm.split_cut import SplitCut
from convalgos.cpu.gemm.split_terms import ENTRY_BYTES, TILE_BYTES
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors.simd import carray, pointer

PACK_FIELDS = fields("w packed units channels taps vectors tasks")


@jit.specialise
def pack_filter_digits() -> Callable[..., None]:
    """Float32 (panel, channel, tap, filter) to (panel, entry, digit, vector, word, filter) of four bytes, and
    the largest sizes of the weights of filters, as bits, to their units."""

    def pack_filter_digits(args: int, task: int) -> None:
        a = carray(pointer(args), 1, PACK_FIELDS)[0]
        panels = (a.vectors + 1) // 2
        for panel in range(panels * task // a.tasks, panels * (task + 1) // a.tasks):
            first = a.vectors * panel // panels
            width = a.vectors * (panel + 1) // panels - first
            units = carray(pointer(a.units + first * 64), width * 16, np.int32)
            for i in range(width * 16):
                units[i] = unit_bits(units[i])
            w = a.w + first * 64 * a.channels * a.taps
            to = a.packed + first * ((a.channels + 63) // 64) * a.taps * ENTRY_BYTES
            for c in range(0, a.channels, 64):
                for tap in range(a.taps):
                    for j in range(width):
                        pack_digits(
                            4, 16, w + ((c * a.taps + tap) * width + j) * 64, a.taps * width * 16,
                            a.channels - c, a.units + (first + j) * 64, to + j * TILE_BYTES,
                            width * TILE_BYTES,
                        )  # fmt: skip
                    to += width * ENTRY_BYTES

    return pack_filter_digits


def packed_digits(w: np.ndarray, cut: SplitCut) -> np.ndarray:
    """(panels, entries, digits, vectors of a panel, 16 words, 16 filters) of four bytes, and behind them the
    units of the filters, as bytes.

    A word holds four channels that lie a quarter of a block apart, as those of x do.
    """
    p = cut.problem
    dealt = panel_packing.packed_panels(w[None], cut.panels)
    packed = aligned_empty(cut.form.filter_bytes(p), np.uint8)
    units = packed[cut.vectors * cut.entries * ENTRY_BYTES :].view(np.float32)
    units[...] = 0
    np.abs(w).max(axis=tuple(range(1, w.ndim)), out=units[: p.K])
    address, tasks = jit.data_address(), jit.thread_count()
    sizes = p.C, cut.entries // cut.channel_blocks, cut.vectors, tasks
    record = np.array([(address(dealt), address(packed), address(units), *sizes)], PACK_FIELDS)
    jit.launch(pack_filter_digits(), address(record), tasks)
    return packed
