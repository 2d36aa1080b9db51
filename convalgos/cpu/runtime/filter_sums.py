"""The sum of each filter of bytes: with it, zero points of x and changed signs are taken back."""

from __future__ import annotations

import numpy as np

from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.integers import Integers, words_of
from convalgos.cpu.vectors.simd import Value, Vec, carray, emitter, pointer

SHARE = 1 << 16  # bytes that are worth a thread; estimate
SUMMING = fields("w sums filters count tasks")


@emitter
def add_filter_bytes(v: Vec, SIGNED: int, w: Value, count: Value, total: Value) -> None:
    """The sum of some bytes, int32, in all lanes of a vector at `total`."""
    bytes_, words = Integers(v.b, v.lanes, 1), words_of(v)
    source, sums = v.pointer(w), words.register(words.zero())
    whole = v.idiv(count, v.lanes)
    with v.loop(whole) as i:
        value = bytes_.load(source, v.imul(i, v.lanes))
        sums.set(words.add(sums.value, bytes_.resized(value, 4, bool(SIGNED))))
    done = v.imul(whole, v.lanes)
    value = bytes_.load_masked(source, done, bytes_.mask(v.isub(count, done)))
    summed = words.add(sums.value, bytes_.resized(value, 4, bool(SIGNED)))
    words.store(words.spread(words.total(summed)), v.pointer(total))


@jit.specialise
def sum_filters(LANES: int, SIGNED: int) -> jit.Kernel:
    """A task's share of the filters, for each of which a vector is written."""

    def sum_filters(args: int, task: int) -> None:
        a = carray(pointer(args), 1, SUMMING)[0]
        first, end = a.filters * task // a.tasks, a.filters * (task + 1) // a.tasks
        for k in range(first, end):
            add_filter_bytes(4, LANES, SIGNED, a.w + k * a.count, a.count, a.sums + k * LANES * 4)

    return sum_filters


def filter_sums(w: np.ndarray) -> np.ndarray:
    """int32 (K,) of int8 or uint8 (K, ...), which lies in one piece."""
    lanes = simd.lanes(4)
    sums = np.empty((len(w), lanes), np.int32)
    tasks = max(1, min(jit.thread_count(), w.nbytes // SHARE))
    sizes = len(w), w[0].size, tasks
    record = np.array([(w.ctypes.data, sums.ctypes.data, *sizes)], SUMMING)
    jit.launch(sum_filters(lanes, int(w.dtype == np.int8)), record.ctypes.data, tasks)
    return sums[:, 0]
