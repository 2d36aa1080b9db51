"""Filters of products of float32 that are split into three bfloat16."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.cpu.gemm import panels
from convalgos.cpu.gemm.split_cut import SplitCut, filter_bytes
from convalgos.cpu.gemm.split_driver import ENTRY_BYTES
from convalgos.cpu.gemm.split_tiles import CHANNELS, TERMS, TILE_BYTES
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors.integers import words_of
from convalgos.cpu.vectors.simd import Value, Vec, carray, emitter, pointer

PACK_FIELDS = fields("w packed channels taps vectors tasks")


@emitter
def pack_entry(v: Vec, w: Value, step: Value, channels: Value, to: Value, term: Value) -> None:
    """The terms of CHANNELS channels, `step` elements apart, of a vector of filters; so many are there.

    Terms are rounded, so that those left out are small, but for numbers that this would make infinite.
    """
    word = words_of(v)
    source, half = v.pointer(w), CHANNELS // 2
    high, exponent = word.const(-65536), word.const(0x7F800000)
    with v.loop(half) as i:
        rest = []
        for first in (0, half):
            at = v.iadd(i, first)
            there = v.mask(v.imul(v.isub(channels, at), v.lanes))
            rest.append(v.load_masked(source, v.imul(at, step), there))
        for t in range(TERMS):
            cut = []
            for value in rest:
                bits = v.b.bitcast(value, word.type)
                odd = word.bit_and(word.right(bits, 16, False), word.const(1))
                near = word.bit_and(word.add(word.add(bits, word.const(0x7FFF)), odd), high)
                infinite = v.b.icmp_unsigned("==", word.bit_and(near, exponent), exponent)
                cut.append(v.b.select(infinite, word.bit_and(bits, high), near))
            pair = word.bit_or(word.right(cut[0], 16, False), cut[1])
            word.store(pair, v.pointer(v.iadd(v.iadd(to, v.imul(term, t)), v.imul(i, 64))))
            floats = [v.b.bitcast(value, v.type) for value in cut]
            rest = [v.fsub(value, less) for value, less in zip(rest, floats, strict=True)]


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
    dealt = panels.packed_panels(w.reshape(1, p.K, -1), cut.panels)
    packed = aligned_empty(filter_bytes(p), np.uint8)
    address, tasks = jit.data_address(), jit.thread_count()
    sizes = p.C, cut.entries // cut.channel_blocks, cut.vectors, tasks
    record = np.array([(address(dealt), address(packed), *sizes)], PACK_FIELDS)
    jit.launch(pack_split(), address(record), tasks)
    return packed
