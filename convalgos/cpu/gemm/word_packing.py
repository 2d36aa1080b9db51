"""Filters of short numbers in the order of products of words.

A word of the packed filter holds elements of neighbouring channels at one tap, and its neighbours are those
of other filters; in w the taps of a channel lie side by side. A block of channels of a vector of filters is
read as words of whatever lies side by side, transposed in registers and staged, [position][filter]; then the
elements of each word are put together from their positions.
"""

from __future__ import annotations

import math

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.integers import Integers, words_of
from convalgos.cpu.vectors.simd import Value, Vec, carray, copy_bytes, emitter, pointer, zero_bytes
from convalgos.cpu.vectors.transpose import transpose

SHARE = 1 << 15  # bytes that are worth a thread; estimate
STAGED = 256  # vectors of a block of channels, or those of one word's channels: 16 KiB
PACKING = fields("w packed filters group channels taps words panel filled block stage stage_bytes tasks")


@emitter
def stage_filters(
    v: Vec, BYTES: int, w: Value, w_row: Value, filters: Value, count: Value, stage: Value
) -> None:
    """stage[i][f] = the i-th word of w[f], for up to `lanes` filters, w_row bytes apart, and words.

    count: elements of BYTES that are left of each filter; what lies behind them, and other filters, become 0.
    """
    word, short, to = words_of(v), Integers(v.b, v.lanes * 4 // BYTES, BYTES), v.pointer(stage)

    def put(rows: list[Value]) -> None:
        for i, row in enumerate(transpose(v, [v.b.bitcast(row, word.type) for row in rows])):
            word.store(row, to, i * v.lanes)

    with v.choose(v.imin(v.isub(count, short.lanes), v.isub(filters, v.lanes))) as (whole, part):
        with whole:
            put([short.load(v.pointer(v.iadd(w, v.imul(w_row, f)))) for f in range(v.lanes)])
        with part:
            rows, inside = [], short.mask(count)
            for f in range(v.lanes):
                at = v.pointer(v.iadd(w, v.imul(w_row, v.imax(v.imin(f, v.isub(filters, 1)), 0))))
                there = v.b.icmp_signed("<", v.integer(f), filters)
                rows.append(v.b.select(there, short.load_masked(at, 0, inside), short.zero()))
            put(rows)


@emitter
def join_elements(
    v: Vec, BYTES: int, stage: Value, first: Value, taps: Value, channels: Value, packed: Value
) -> None:
    """A vector of words, of the elements at the staged positions first, first + taps, ...

    channels: that are left; those that a word lacks become 0.
    """
    word, each = words_of(v), 4 // BYTES
    source, total = v.pointer(stage), word.zero()
    for e in range(each):
        position = v.iadd(first, v.imul(taps, v.imin(e, v.isub(channels, 1))))
        staged = word.load(source, v.imul(v.idiv(position, each), v.lanes))
        within = v.imul(v.isub(position, v.imul(v.idiv(position, each), each)), 8 * BYTES)
        element = v.b.shl(v.b.lshr(staged, word.spread(within)), word.const(32 - 8 * BYTES))
        there = v.b.icmp_signed("<", v.integer(e), channels)
        element = v.b.select(there, element, word.zero())
        total = word.bit_or(word.right(total, 8 * BYTES, signed=False), element)
    word.store(total, v.pointer(packed))


@jit.specialise
def pack_words(BYTES: int, LANES: int) -> jit.Kernel:
    """A task's share of the vectors of filters and their blocks of channels."""
    EACH = 4 // BYTES

    def pack_words(args: int, task: int) -> None:
        a = carray(pointer(args), 1, PACKING)[0]
        stage = a.stage + task * a.stage_bytes
        vectors, blocks = a.filled // LANES, -(-a.channels // a.block)
        units = a.filters // a.group * vectors * blocks
        for unit in range(units * task // a.tasks, units * (task + 1) // a.tasks):
            index, c = unit // blocks, unit % blocks * a.block
            g, k = index // vectors, index % vectors * LANES
            channels, left = min(a.block, a.channels - c), a.group - k  # of the block; filters
            start = k // a.panel * a.panel  # of the panel
            row = min(a.panel, a.filled - start) * 4  # bytes of a word of all its filters
            to = a.packed + ((g * a.filled + start) * a.taps * a.words + k - start) * 4
            if left <= 0:
                if c == 0:
                    for word in range(a.taps * a.words):
                        zero_bytes(to + word * row, LANES * 4)
                continue
            w = a.w + ((g * a.group + k) * a.channels + c) * a.taps * BYTES
            for i in range(0, channels * a.taps, LANES * EACH):
                stage_filters(
                    4, LANES, BYTES, w + i * BYTES, a.channels * a.taps * BYTES, left, channels * a.taps - i,
                    stage + i * LANES * BYTES,
                )  # fmt: skip
            begin, end = c // EACH, -(-(c + channels) // EACH)
            for word in range(begin, end):
                first = (word * EACH - c) * a.taps
                for t in range(a.taps):
                    at = to + (t * a.words + word) * row
                    if EACH == 1:
                        copy_bytes(at, stage + (first + t) * LANES * 4, LANES * 4)
                    elif a.taps == 1:
                        copy_bytes(at, stage + (word - begin) * LANES * 4, LANES * 4)
                    else:
                        join_elements(
                            4, LANES, BYTES, stage, first + t, a.taps, c + channels - word * EACH, at
                        )
            if end * EACH >= a.channels:
                for t in range(a.taps):
                    for word in range(end, a.words):
                        zero_bytes(to + (t * a.words + word) * row, LANES * 4)

    return pack_words


def packed_word_filters(w: np.ndarray, groups: int, panel: int, filled: int, words: int) -> np.ndarray:
    """(groups, panels of filters, words, filters of a panel, elements of a word) of (K, C/g, *kernel).

    Args:
        w: of one, two or four bytes an element, `as_laid`.
        panel: filters of a panel, whole vectors; the last of a group has what is left.
        filled: filters of a group, filled up with zeros to whole vectors.
        words: of a pixel, of which the channels are the first elements.
    """
    taps, lanes, each = math.prod(w.shape[2:]), simd.lanes(4), 4 // w.itemsize
    packed = aligned_empty(groups * filled * taps * words * each, w.dtype).reshape(groups, -1)
    block = max(1, STAGED // taps) * each  # channels
    stage_bytes = (block * taps // each + lanes) * lanes * 4
    tasks = max(1, min(jit.thread_count(), w.nbytes // SHARE))
    stage = aligned_empty(tasks * stage_bytes, np.uint8)
    address = jit.data_address()
    sizes = len(w), len(w) // groups, w.shape[1], taps, words, panel, filled, block
    record = np.array([(address(w), address(packed), *sizes, address(stage), stage_bytes, tasks)], PACKING)
    jit.launch(pack_words(w.itemsize, lanes), address(record), tasks)
    return packed
