"""Filters of products of float32 that are split into three terms, as matrix tiles take them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.cpu.gemm import panel_packing
from convalgos.cpu.gemm.channel_scales import finer, scale_bytes, scaled_channels
from convalgos.cpu.gemm.digit_terms import LEAST_SQUARES, MOST_SPREAD, find_units, pack_filter_terms
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
    bfloat16, or four digits, behind which the largest sizes of filters become their units."""

    def pack_split(args: int, task: int) -> None:
        a = carray(pointer(args), 1, PACK_FIELDS)[0]
        panels, entries = (a.vectors + 1) // 2, (a.channels + CHANNELS - 1) // CHANNELS * a.taps
        for panel in range(panels * task // a.tasks, panels * (task + 1) // a.tasks):
            first = a.vectors * panel // panels
            width = a.vectors * (panel + 1) // panels - first
            units = a.packed + a.vectors * entries * ENTRY_BYTES + first * 64
            if DIGITS:
                find_units(units, width * 16)
            w = a.w + first * 64 * a.channels * a.taps
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
    p, scaled = cut.problem, cut.form.scaled
    packed = aligned_empty(cut.form.filter_bytes(p), np.uint8)
    if scaled:
        scales = packed[-scale_bytes(p.C) :]
        w = scaled_channels(w.reshape(p.K, p.C, -1), scales)
        rows = w.reshape(p.K, -1)
        after = packed[None, cut.vectors * cut.entries * ENTRY_BYTES :]
        units, spreads = filter_scales(after, cut.vectors)
        units[...] = 0
        units[0, : p.K] = largest_sizes(rows, 1)
    dealt = panel_packing.packed_panels(w[None], cut.panels)
    address, tasks = jit.data_address(), jit.thread_count()
    sizes = p.C, cut.entries // cut.channel_blocks, cut.vectors, tasks
    record = np.array([(address(dealt), address(packed), *sizes)], PACK_FIELDS)
    jit.launch(pack_split(cut.form.channels, int(scaled)), address(record), tasks)
    if scaled:
        squares = np.zeros_like(units)
        np.einsum("ij,ij->i", rows, rows, out=squares[0, : p.K])
        spreads[...] = filter_spreads(units, squares, rows.shape[1]) * finer(scales)
    return packed


# --- units of filters ----------------------------------------------------------------------------


def filter_scales(after: np.ndarray, vectors: int) -> tuple[np.ndarray, np.ndarray]:
    """What lies behind the digits of panels of so many vectors: float32 units of their filters, and int64
    spreads of their vectors. Views of rows of bytes."""
    size = 4 * LANES * vectors
    return after[:, :size].view(np.float32), after[:, size:].view(np.int64)[:, :vectors]


def largest_sizes(w: np.ndarray, axis: int) -> np.ndarray:
    """The largest size of weights along an axis, without an array of all sizes."""
    sizes: np.ndarray = np.abs(np.maximum(w.max(axis=axis), -w.min(axis=axis)))  # NaN without its sign
    return sizes


def filter_spreads(units: np.ndarray, squares: np.ndarray, numbers: int) -> np.ndarray:
    """(2^23 unit)^2 over the mean square of weights, int64, the mean of each vector of filters.

    units, squares: of filters, and the sums of the squares of their weights, (.., filters), float32;
    numbers: weights of a filter.
    """
    known = (squares > LEAST_SQUARES) & (squares < np.inf)  # as `digit_terms.find_spread` has it
    there = units > np.finfo(np.float32).tiny  # the least unit
    spread = (2.0**23 * units.astype(np.float64)) ** 2 * numbers / np.where(known, squares, 1)
    found = np.where(known, np.minimum(spread, MOST_SPREAD), MOST_SPREAD * there)
    found = found.reshape(*squares.shape[:-1], -1, LANES)
    there = np.maximum(1, np.count_nonzero(found, axis=-1))
    spreads: np.ndarray = (found.sum(axis=-1) / there).astype(np.int64)
    return spreads
