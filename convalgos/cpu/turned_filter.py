"""The filter of a gradient's phase, turned round and with its channels exchanged: on all cores, in blocks."""

from __future__ import annotations

import math

import numpy as np

from convalgos.cpu import jit, simd
from convalgos.cpu.kernel_plan import fields
from convalgos.cpu.simd import carray, copy_bytes, pointer
from convalgos.cpu.squares import load_whole_square
from convalgos.memory import aligned_empty
from convalgos.transposed import Phase

# w (groups, filters, channels, elements), target (groups, channels, filters, taps); `places` (taps,).
RECORD = fields("w target groups filters channels elements taps places tasks")


def turned(phase: Phase, w: np.ndarray, groups: int) -> np.ndarray:
    """(C, K/groups, *taps) `Phase.filter` of a C-contiguous w (K, C/groups, *kernel), as a new array."""
    filters, channels, *kernel = w.shape
    steps = tuple(slice(first, None, step) for first, step in phase.taps)
    places = np.arange(np.prod(kernel)).reshape(kernel)[steps]  # (*taps)
    turned_places = np.ascontiguousarray(np.flip(places))
    shape = (groups * channels, filters // groups, *places.shape)
    target = aligned_empty(math.prod(shape), w.dtype).reshape(shape)
    tasks = jit.thread_count() if w.size > 1 << 14 else 1
    record = np.array(
        [(w.ctypes.data, target.ctypes.data, groups, filters // groups, channels, int(np.prod(kernel)),
          places.size, turned_places.ctypes.data, tasks)], RECORD,
    )  # fmt: skip
    jit.launch(turn(w.itemsize, simd.lanes(w.itemsize)), record.ctypes.data, tasks)
    return target


@simd.emitter
def reverse_run(v, source, target, count):
    """target[count - 1 - i] = source[i] for i < count; count is at least 1."""
    from_, end = v.pointer(source), v.at(v.pointer(target), count)
    backwards = list(reversed(range(v.lanes)))
    with v.loop(v.quotient(v.plus(count, v.lanes - 1), v.lanes)) as i:
        done = v.mul(i, v.lanes)
        left = v.minus(count, done)
        row = v.load_masked(from_, done, v.mask(left))
        to = v.minus(0, v.plus(done, v.lanes))
        v.store_masked(v.shuffle(row, row, backwards), end, to, v.window(v.minus(v.lanes, left), v.lanes))


@jit.specialise
def turn(SIZE, LANES):
    """target[group, channel, filter, tap] = w[group, filter, channel, places[tap]].

    In squares of LANES channels and filters, of which both arrays have few cache lines.
    """

    def turn(args, task):
        a = carray(pointer(args), 1, RECORD)[0]
        places = carray(pointer(a.places), a.taps, np.int64)
        blocks = (a.channels + LANES - 1) // LANES
        total = a.groups * blocks
        for item in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            group, c0 = item // blocks, item % blocks * LANES
            channels = min(LANES, a.channels - c0)
            for k0 in range(0, a.filters, LANES):
                filters = min(LANES, a.filters - k0)
                source = a.w + ((group * a.filters + k0) * a.channels + c0) * a.elements * SIZE
                target = a.target + ((group * a.channels + c0) * a.filters + k0) * a.taps * SIZE
                if a.elements == 1 and channels == filters == LANES:
                    load_whole_square(SIZE, LANES, source, a.channels, target, a.filters)
                    continue
                for c in range(channels):
                    for k in range(filters):
                        from_ = source + (k * a.channels + c) * a.elements * SIZE
                        to = target + (c * a.filters + k) * a.taps * SIZE
                        if a.taps == a.elements:  # no stride: all of them, backwards
                            reverse_run(SIZE, LANES, from_, to, a.taps)
                            continue
                        for t in range(a.taps):
                            copy_bytes(to + t * SIZE, from_ + places[t] * SIZE, SIZE)

    return turn
