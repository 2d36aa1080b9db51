"""Sleeping workers, and how they wake on another core than that of the thread that wakes them.

A guest of a virtual machine takes a core that its host has put to rest for one that is busy. So Linux wakes a
worker on the core where it fell asleep, which may be the waker's: both then share it for 5 to 20 ms while the
other is idle, and every launch takes twice as long. The waker looks where the sleepers are. Those on its own
core may not run there while it wakes them, and may run anywhere again at once.

Figures of each of the first `MOST` workers lie in memory from an address on, that of all `workers`.
"""

from __future__ import annotations

import platform

from convalgos.cpu.compile.lowering import helper
from convalgos.cpu.vectors.atomics import CAN_SLEEP, atomic_add, atomic_load, atomic_store, atomic_take, wake
from convalgos.cpu.vectors.simd import Value, function_of, intrinsic, ir

MOST = 64  # workers that are looked for
SETS = 128  # bytes for a set of cores
# Distances from the words of all workers: how many there are, the core where each sleeps, one row for each.
COUNT, CORES, ROWS = 0, 64, 64 + 8 * MOST
# Of a row: 1: the worker may be moved; its number; by a thread of which core it is, and 1; where it may run.
FREE, THREAD, MOVED, BYTES, ALLOWED, ROW = 0, 8, 16, 24, 64, 64 + SETS
SIZE = ROWS + MOST * ROW

GET_THREAD, SET_CORES, GET_CORES = {"x86_64": (186, 203, 204), "aarch64": (178, 122, 123)}.get(
    platform.machine(), (0, 0, 0)
)  # the numbers of Linux's calls


@intrinsic
def current_core(builder: Value) -> Value:
    """The number of the core that runs this."""
    word, half = ir.IntType(64), ir.IntType(32)
    if not CAN_SLEEP:
        return ir.Constant(word, 0)
    found = builder.call(function_of(builder, ir.FunctionType(half, []), "sched_getcpu"), [])
    return builder.sext(found, word)


@intrinsic
def system_call(builder: Value, number: Value, a: Value, b: Value, c: Value) -> Value:
    """What Linux answers; -1 where it refuses."""
    word = ir.IntType(64)
    if not CAN_SLEEP:
        return ir.Constant(word, -1)
    system = function_of(builder, ir.FunctionType(word, [word], var_arg=True), "syscall")
    return builder.call(system, [number, a, b, c])


@helper
def join(workers: int) -> int:
    """The index of one more worker, which calls this itself."""
    index = atomic_add(workers + COUNT, 1)
    if index < MOST:
        row = workers + ROWS + index * ROW
        atomic_store(row + THREAD, system_call(GET_THREAD, 0, 0, 0))
        atomic_store(workers + CORES + 8 * index, -1)
        atomic_store(row + FREE, 1)
    return int(index)


@helper
def note_core(workers: int, index: int) -> None:
    """A worker is about to sleep on the core that it is on."""
    if index < MOST:
        atomic_store(workers + CORES + 8 * index, current_core())


@helper
def wake_apart(workers: int, address: int, count: int) -> None:
    """Wake up to `count` workers that sleep at an address, on other cores than this one if they have any."""
    here, moved = current_core(), 0
    known = min(MOST, atomic_load(workers + COUNT))
    for i in range(known):
        if atomic_load(workers + CORES + 8 * i) == here:
            row = workers + ROWS + i * ROW
            if atomic_take(row + FREE) > 0:
                moved += keep_away(row, here)
    wake(address, count)
    for i in range(known if moved else 0):
        row = workers + ROWS + i * ROW
        if atomic_load(row + MOVED) == here + 1:
            atomic_store(row + MOVED, 0)
            system_call(SET_CORES, atomic_load(row + THREAD), atomic_load(row + BYTES), row + ALLOWED)
            atomic_store(row + FREE, 1)


@helper
def keep_away(row: int, core: int) -> int:
    """Forbid a worker its core, but for its only one; 1, or 0 where the system does not let us."""
    count = system_call(GET_CORES, atomic_load(row + THREAD), SETS, row + ALLOWED)
    word, one = row + ALLOWED + core // 64 * 8, 1 << core % 64
    if count <= core // 8 or atomic_load(word) & one == 0:
        atomic_store(row + FREE, 1)
        return 0
    atomic_add(word, -one)
    system_call(SET_CORES, atomic_load(row + THREAD), count, row + ALLOWED)
    atomic_add(word, one)
    atomic_store(row + BYTES, count)
    atomic_store(row + MOVED, core + 1)
    return 1
