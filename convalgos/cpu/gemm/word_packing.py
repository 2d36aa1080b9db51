"""Filters of short numbers in the order of products of words, by a kernel: NumPy takes ten times as long."""

from __future__ import annotations

import math

import numpy as np

from convalgos.core.allocator import aligned_empty, aligned_zeros
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors.simd import carray, copy_bytes, pointer

SHARE = 1 << 15  # elements that are worth a thread; estimate
PACKING = fields("w packed filters group channels taps pixel panel filled tasks")


@jit.specialise
def pack_words(BYTES: int) -> jit.Kernel:
    """A task's share of the filters, of elements of BYTES. `pixel` counts the elements of a pixel's words."""
    EACH = 4 // BYTES

    def pack_words(args: int, task: int) -> None:
        a = carray(pointer(args), 1, PACKING)[0]
        words, panels = -(-a.channels // EACH), -(-a.filled // a.panel)
        units = a.filters // a.group * panels * words
        # one word of a pixel for all filters of a panel at a time: reads and writes stay in L1
        for unit in range(units * task // a.tasks, units * (task + 1) // a.tasks):
            g, first = unit // words // panels, unit // words % panels * a.panel
            width, c = min(a.panel, a.filled - first), unit % words * EACH
            begin = (g * a.filled + first) * a.taps * a.pixel + c * width
            for f in range(min(width, a.group - first)):
                for e in range(min(EACH, a.channels - c)):
                    source = ((g * a.group + first + f) * a.channels + c + e) * a.taps
                    at = begin + f * EACH + e
                    for t in range(a.taps):
                        to = at + t * a.pixel * width
                        copy_bytes(a.packed + to * BYTES, a.w + (source + t) * BYTES, BYTES)

    return pack_words


def packed_word_filters(w: np.ndarray, groups: int, panel: int, filled: int, pixel: int) -> np.ndarray:
    """(groups, panels of filters, words, filters of a panel, elements of a word) of (K, C/g, *kernel).

    Args:
        w: of one or two bytes an element, `as_laid`.
        panel: filters of a panel; the last of a group has what is left.
        filled: filters of a group, filled up with zeros.
        pixel: elements of a pixel's words, of which the channels are the first.
    """
    taps = math.prod(w.shape[2:])
    size = groups * filled * taps * pixel
    packed = (aligned_empty if size == w.size else aligned_zeros)(size, w.dtype).reshape(groups, -1)
    tasks = max(1, min(jit.thread_count(), w.size // SHARE))
    sizes = len(w), len(w) // groups, w.shape[1], taps, pixel, panel, filled, tasks
    record = np.array([(w.ctypes.data, packed.ctypes.data, *sizes)], PACKING)
    jit.launch(pack_words(w.itemsize), record.ctypes.data, tasks)
    return packed
