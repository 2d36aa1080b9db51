"""The cores of workers: where those that sleep wake, and where those that were stopped go on.

A guest of a virtual machine takes a core that its host has put to rest for one that is busy. So Linux wakes a
worker on the core where it fell asleep, which may be the waker's: both then share it for 5 to 20 ms while the
other is idle, and every launch takes twice as long. The waker looks where the sleepers are. Those on its own
core may not run there while it wakes them, and may run anywhere again at once.

Where another program's thread takes a core from a worker within a task, the thread that waits for the end
moves the worker to its own core, where it stays until the job is done.

Figures of each of the first `MOST` workers lie in memory from an address on, that of all `workers`.
"""

from __future__ import annotations

import platform

from convalgos.cpu.compile.lowering import helper
from convalgos.cpu.vectors.atomics import CAN_SLEEP, atomic_add, atomic_load, atomic_store, atomic_take, wake
from convalgos.cpu.vectors.simd import Value, function_of, intrinsic, ir

MOST = 64  # workers that are looked for; others share one more row, and are never moved
SETS = 128  # bytes for a set of cores
# Distances from the words of all workers: how many there are, the core where each sleeps, one row for each.
COUNT, CORES, ROWS = 0, 64, 64 + 8 * (MOST + 8)
# Of a row: 1: the worker may be moved; its number; for what it was moved: the core it is kept from, and 1, or
# the job that it is to end; bytes of the sets; the time that it has run, as last seen, and as Linux tells it.
FREE, THREAD, MOVED, BYTES, RAN, MOMENT = 0, 8, 16, 24, 32, 40
JOB = 64  # whose tasks it runs, or 0: the worker writes this
ALLOWED, ONE, ROW = 128, 128 + SETS, 128 + 2 * SETS  # where it may run, and a set of one core
SIZE = ROWS + (MOST + 1) * ROW

GET_THREAD, SET_CORES, GET_CORES, GET_TIME = {
    "x86_64": (186, 203, 204, 228), "aarch64": (178, 122, 123, 113),
}.get(platform.machine(), (0, 0, 0, 0))  # the numbers of Linux's calls  # fmt: skip


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
    if index >= MOST:
        return MOST
    row = row_of(workers, index)
    atomic_store(row + THREAD, system_call(GET_THREAD, 0, 0, 0))
    atomic_store(workers + CORES + 8 * index, -1)
    atomic_store(row + FREE, 1)
    return int(index)


@helper
def row_of(workers: int, index: int) -> int:
    """The address of the words of a worker."""
    return workers + ROWS + index * ROW


@helper
def note_core(workers: int, index: int) -> None:
    """A worker is about to sleep on the core that it is on."""
    atomic_store(workers + CORES + 8 * index, current_core())


@helper
def wake_apart(workers: int, address: int, count: int) -> None:
    """Wake up to `count` workers that sleep at an address, on other cores than this one if they have any."""
    here, moved = current_core(), 0
    known = min(MOST, atomic_load(workers + COUNT))
    for i in range(known):
        if atomic_load(workers + CORES + 8 * i) == here:
            row = row_of(workers, i)
            if atomic_take(row + FREE) > 0:
                moved += confine(row, here, 0)
    wake(address, count)
    if moved:
        free_moved(workers, here + 1)


@helper
def fetch_stopped(workers: int, job: int) -> int:
    """Move workers that run tasks of a job and have no core to this one; returns how many.

    A worker has none if it has not run since this was called last. It runs here when this thread sleeps.
    """
    here, moved = current_core(), 0
    for i in range(min(MOST, atomic_load(workers + COUNT))):
        row = row_of(workers, i)
        clock = (-1 - atomic_load(row + THREAD)) * 8 + 6  # Linux's number for the time that a thread has run
        if atomic_load(row + JOB) == job and system_call(GET_TIME, clock, row + MOMENT, 0) == 0:
            ran = atomic_load(row + MOMENT) * 1_000_000_000 + atomic_load(row + MOMENT + 8)
            if ran == atomic_load(row + RAN) and atomic_take(row + FREE) > 0:
                moved += confine(row, here, job)
            atomic_store(row + RAN, ran)
    return moved


@helper
def free_moved(workers: int, cause: int) -> None:
    """Workers that were moved for this may run where they might before."""
    for i in range(min(MOST, atomic_load(workers + COUNT))):
        row = row_of(workers, i)
        if atomic_load(row + MOVED) == cause:
            atomic_store(row + MOVED, 0)
            system_call(SET_CORES, atomic_load(row + THREAD), atomic_load(row + BYTES), row + ALLOWED)
            atomic_store(row + FREE, 1)


@helper
def confine(row: int, core: int, job: int) -> int:
    """Forbid a worker a core, or for a job all others; 0 where it may not run there, or must."""
    count = system_call(GET_CORES, atomic_load(row + THREAD), SETS, row + ALLOWED)
    word, one = core // 64 * 8, 1 << core % 64
    if count <= core // 8 or atomic_load(row + ALLOWED + word) & one == 0:
        atomic_store(row + FREE, 1)
        return 0
    for at in range(0, SETS, 8):
        atomic_store(row + ONE + at, 0 if job else atomic_load(row + ALLOWED + at))
    atomic_store(row + ONE + word, one if job else atomic_load(row + ALLOWED + word) - one)
    atomic_store(row + BYTES, count)
    atomic_store(row + MOVED, job if job else core + 1)
    system_call(SET_CORES, atomic_load(row + THREAD), count, row + ONE)
    return 1
