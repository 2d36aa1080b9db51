"""float32 to integers of 8 bits on all threads, by the range of the data.

Two passes over x: its least and largest number, from which scale and zero point follow, and the integers. The
range holds 0, which becomes the zero point exactly: padding is made of it.

Source: Jacob et al. 2018, arXiv:1712.05877, section 3.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.integers import words_of
from convalgos.cpu.vectors.requantise import limited, store_bytes
from convalgos.cpu.vectors.simd import Value, Vec, carray, pointer

LEVELS = 255  # steps from the least integer to the largest
PIECE = 1 << 14  # elements that are worth a thread; estimate
FIELDS = np.dtype([(name, np.int64) for name in ("x", "y", "count", "tasks", "step")])


class Affine(NamedTuple):
    """What real numbers are as integers: x / scale + zero_point."""

    scale: float
    zero_point: int


@simd.emitter
def find_range(v: Vec, x: Value, count: Value, found: Value) -> None:
    """Three vectors: least and largest numbers with 0 among them, and 0, or NaN where one is not finite."""
    from_, to = v.pointer(x), v.pointer(found)
    low, high, odd = v.register(v.zero()), v.register(v.zero()), v.register(v.zero())

    def take(numbers: Value) -> None:
        low.set(v.b.select(v.b.fcmp_ordered("<", numbers, low.value), numbers, low.value))
        high.set(v.b.select(v.b.fcmp_ordered(">", numbers, high.value), numbers, high.value))
        odd.set(v.fma(numbers, v.zero(), odd.value))

    whole = v.idiv(count, v.lanes)
    with v.loop(whole) as i:
        take(v.load(from_, v.imul(i, v.lanes)))
    done = v.imul(whole, v.lanes)
    take(v.load_masked(from_, done, v.mask(v.isub(count, done))))
    for i, register in enumerate((low, high, odd)):
        v.store(register.value, to, i * v.lanes)


@simd.emitter
def write_bytes(v: Vec, x: Value, y: Value, count: Value, step: Value) -> None:
    """y[:count] = rint(min(max(x / scale, low), high)) + zero point.

    Args:
        step: address of 1 / scale, low, high as float32, and the zero point as int32.
    """
    from_, at, words = v.pointer(x), v.pointer(step), words_of(v)
    inverse, low, high = (v.broadcast(at, i) for i in range(3))
    zero_point = words.broadcast(at, 3)

    def as_words(numbers: Value) -> Value:
        return words.add(words.rounded(limited(v, v.fmul(numbers, inverse), low, high)), zero_point)

    whole = v.idiv(count, v.lanes)
    with v.loop(whole) as i:
        first = v.imul(i, v.lanes)
        store_bytes(v, as_words(v.load(from_, first)), v.pointer(v.iadd(y, first)))
    done = v.imul(whole, v.lanes)
    tail = v.mask(v.isub(count, done))
    store_bytes(v, as_words(v.load_masked(from_, done, tail)), v.pointer(v.iadd(y, done)), tail)


@jit.specialise
def range_of(LANES: int) -> jit.Kernel:
    """`find_range` of a task's share of x."""

    def range_of(args: int, task: int) -> None:
        a = carray(pointer(args), 1, FIELDS)[0]
        first = a.count * task // a.tasks
        count = a.count * (task + 1) // a.tasks - first
        find_range(4, LANES, a.x + 4 * first, count, a.y + 3 * LANES * 4 * task)

    return range_of


@jit.specialise
def bytes_of_floats(LANES: int) -> jit.Kernel:
    """`write_bytes` of a task's share of x."""

    def bytes_of_floats(args: int, task: int) -> None:
        a = carray(pointer(args), 1, FIELDS)[0]
        first = a.count * task // a.tasks
        count = a.count * (task + 1) // a.tasks - first
        write_bytes(4, LANES, a.x + 4 * first, a.y + first, count, a.step)

    return bytes_of_floats


def quantise(x: np.ndarray, y: np.ndarray) -> Affine | None:
    """Write x, float32, as uint8 over its own range; None, and y unwritten, where it holds NaN or infinity.

    x, y: `as_laid`, of one size.
    """
    lanes, tasks = simd.lanes(4), max(1, min(jit.thread_count(), x.size // PIECE))
    found = aligned_empty(3 * lanes * tasks, np.float32)
    _launch(range_of(lanes), x, found, tasks, 0)
    parts = found.reshape(tasks, 3, lanes)
    if np.isnan(parts[:, 2]).any():
        return None
    low, high = float(parts[:, 0].min()), float(parts[:, 1].max())
    scale = (high - low) / LEVELS or 1.0
    zero_point = int(np.clip(round(-low / scale), 0, LEVELS))
    step = np.array([1 / scale, -zero_point, LEVELS - zero_point, 0], np.float32)
    step[3:].view(np.int32)[0] = zero_point
    _launch(bytes_of_floats(lanes), x, y, tasks, step.ctypes.data)
    return Affine(scale, zero_point)


def _launch(kernel: int, x: np.ndarray, y: np.ndarray, tasks: int, step: int) -> None:
    record = np.array([(x.ctypes.data, y.ctypes.data, x.size, tasks, step)], FIELDS)
    jit.launch(kernel, record.ctypes.data, tasks)
