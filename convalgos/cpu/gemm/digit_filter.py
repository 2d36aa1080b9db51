"""Filters of products of float32 that are split into three digits of eight bits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.cpu.gemm import panel_packing
from convalgos.cpu.gemm.digit_terms import LEAST, LIFTED, MOST_SPREAD, pack_digits, unit_bits
from convalgos.cpu.gemm.split_cut import SplitCut
from convalgos.cpu.gemm.split_forms import LANES
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


def filter_spreads(largest: np.ndarray, squares: np.ndarray, numbers: int) -> np.ndarray:
    """(2^23 unit)^2 over the mean square of weights, int64, the mean of each vector of filters.

    largest, squares: of the weights of each filter the largest size, and the sum of squares, (.., filters),
    float32; numbers: how many they are.
    """
    exponents = np.maximum((largest.view(np.int32) + LIFTED) >> 23, LEAST) - 22
    units = (exponents << 23).view(np.float32).astype(np.float64)
    found = (2.0**23 * units) ** 2 * numbers / np.maximum(squares, np.finfo(np.float32).tiny)
    found = np.where(squares > 0, np.minimum(found, MOST_SPREAD), 0).reshape(*squares.shape[:-1], -1, LANES)
    there = np.maximum(1, np.count_nonzero(found, axis=-1))
    spreads: np.ndarray = (found.sum(axis=-1) / there).astype(np.int64)
    return spreads


def packed_digits(w: np.ndarray, cut: SplitCut) -> np.ndarray:
    """(panels, entries, digits, vectors of a panel, 16 words, 16 filters) of four bytes, and behind them the
    units of the filters and their spreads, as bytes.

    A word holds four channels that lie a quarter of a block apart, as those of x do.
    """
    p = cut.problem
    dealt = panel_packing.packed_panels(w[None], cut.panels)
    packed = aligned_empty(cut.form.filter_bytes(p), np.uint8)
    after = packed[cut.vectors * cut.entries * ENTRY_BYTES :]
    units, spreads = after[: 4 * LANES * cut.vectors].view(np.float32), after[4 * LANES * cut.vectors :]
    rows, squares = w.reshape(p.K, -1), np.zeros_like(units)
    units[...] = 0
    np.maximum(rows.max(axis=1), -rows.min(axis=1), out=units[: p.K])
    np.einsum("ij,ij->i", rows, rows, out=squares[: p.K])
    spreads.view(np.int64)[: cut.vectors] = filter_spreads(units, squares, rows.shape[1])
    address, tasks = jit.data_address(), jit.thread_count()
    sizes = p.C, cut.entries // cut.channel_blocks, cut.vectors, tasks
    record = np.array([(address(dealt), address(packed), address(units), *sizes)], PACK_FIELDS)
    jit.launch(pack_filter_digits(), address(record), tasks)
    return packed
