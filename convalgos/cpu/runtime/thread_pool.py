"""The threads that share the tasks of a launch, and how they are dealt without waiting for one another.

A launch is a job: a kernel, its arguments and a number of tasks, in a slot that all threads read. Workers and
the calling thread claim tasks one by one, so that the caller does alone what no worker came for, and waits at
the end only for tasks that a worker has begun: on a machine whose cores others hold, nothing hangs on a
thread that has none. Any number of threads may launch at once; where no slot is free, the caller runs its
tasks itself.

Workers that find nothing spin for a while, as the next launch mostly follows soon, and then sleep; short
launches have those that are awake. Where another program took a core from one that span, they hardly spin.
Where one took it from a worker within a task, as the spinning threads of other libraries do, the caller gives
that worker its own core, and sleeps.
They are threads of the system that run compiled code only, and know nothing of Python or its lock.

A program that computes with OpenMP between launches, as torch does, has threads of its own, which spin on the
cores for milliseconds after each loop. There a launch can be such a loop: see `borrow` in `jit`.

This file has the code of the threads; `jit` compiles it and starts them. Words of the memory that they share
are at these distances in bytes; what is written by different threads lies in different cache lines.
"""

from __future__ import annotations

import ctypes
import signal
import sys

from convalgos.core.allocator import aligned_zeros
from convalgos.cpu.compile.lowering import helper
from convalgos.cpu.runtime import worker_cores
from convalgos.cpu.runtime.worker_cores import fetch_stopped, free_moved, join, note_core, row_of, wake_apart
from convalgos.cpu.vectors.atomics import (
    CAN_SLEEP,
    atomic_add,
    atomic_load,
    atomic_store,
    atomic_take,
    give_way,
    nanoseconds,
    pause,
    sleep,
    wake,
)
from convalgos.cpu.vectors.simd import call

POSTED = 0  # launches so far: changes when there is work; workers sleep here
SLEEPING, SPINNING = 64, 72  # workers that do so now
STOP, CROWDED = 128, 136  # 1: workers end; the time until which they leave the cores to others soon
LAST_SHORT, SERIES = 160, 168  # when a short launch met no worker awake, and the first of those close to it
LOOP, SHARE = 144, 152  # GOMP_parallel of an OpenMP that runs the tasks, or 0, and the address of `share`
SLOTS, FIRST, SLOT = 16, 192, 192  # jobs at a time, the first one, and from one to the next
UNCLAIMED, HELPERS = 0, 8  # tasks that no thread has taken yet, and workers that may still join
UNDONE, WAITING = 64, 72  # tasks that are not finished; 1: the caller sleeps at UNDONE
FREE, KERNEL, ARGUMENTS, TASKS = 128, 136, 144, 152  # 1: the slot may be taken; and what is to be run
WORKERS = FIRST + SLOTS * SLOT  # of `worker_cores`

# Nanoseconds. To wake a thread takes the caller 15 000, and it comes after 30 000 (a virtual machine, Xeon):
# who spins for much longer than that loses little by what comes later. A caller does so for longer, and gives
# way meanwhile: asleep, it would wake on the core of the worker that wakes it, and stay for tens of ms.
IDLE, LATE = 500_000, 3_000_000  # that a worker spins for the next task, and a caller for the end of the last
SHORT = 60_000  # for a worker where other programs want the cores, and until a caller gives way
CLOSE, LONG = 100_000, 200_000  # between short launches, and from the first on, for which workers are woken
AWAY, CALM = 200_000, 20_000_000  # for which a worker lost its core then, and for which that is remembered
LOOK = 20_000  # between two looks of a caller whether those it waits for run
PAUSES = 8  # between two looks at the clock
SHORT_THREADS = 4  # of a short launch: each takes as long to join as it saves
AT_ONCE = 2  # workers that a thread wakes: each costs a microsecond, and wakes as many in turn

FAULTS = {getattr(signal, name, None) for name in ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL")}


@helper
def run_claimed(slot: int) -> int:
    """Claim the tasks of a job one by one and run them, until none is left; returns how many.

    Who has claimed tasks counts them off UNDONE behind the last one: until then the job cannot end, so that
    what the slot holds is of this job.
    """
    done = 0
    left = atomic_take(slot + UNCLAIMED)
    while left > 0:
        call(
            atomic_load(slot + KERNEL),
            (atomic_load(slot + ARGUMENTS), atomic_load(slot + TASKS) - left),
        )
        done += 1
        left = atomic_take(slot + UNCLAIMED)
    return done


def work(pool: int) -> None:
    """What a worker does until it is stopped."""
    woken, index = False, join(pool + WORKERS)
    row = row_of(pool + WORKERS, index)
    while True:
        seen = atomic_load(pool + POSTED)
        for slot in range(pool + FIRST, pool + FIRST + SLOTS * SLOT, SLOT):
            if atomic_load(slot + UNCLAIMED) > 0 and atomic_take(slot + HELPERS) > 0:
                if woken and atomic_load(slot + HELPERS) > 0 and atomic_load(pool + SLEEPING) > 0:
                    wake_apart(pool + WORKERS, pool + POSTED, AT_ONCE)
                atomic_store(row + worker_cores.JOB, slot)
                done = run_claimed(slot)
                if done > 0 and atomic_add(slot + UNDONE, -done) == done and atomic_load(slot + WAITING) > 0:
                    wake(slot + UNDONE, 1)
                atomic_store(row + worker_cores.JOB, 0)
        if atomic_load(pool + STOP) > 0:
            return
        atomic_add(pool + SPINNING, 1)
        now = nanoseconds()
        until = now + (IDLE if now > atomic_load(pool + CROWDED) else SHORT)
        if atomic_load(row + worker_cores.MOVED) > 0:  # this core is the caller's
            until = now
        while atomic_load(pool + POSTED) == seen and now < until:
            for _ in range(PAUSES):
                pause()
            before, now = now, nanoseconds()
            if now - before > AWAY:  # another program had the core meanwhile, and wants it again
                atomic_store(pool + CROWDED, now + CALM)
                until = now
        atomic_add(pool + SPINNING, -1)
        # Who posts after this counts us among those to be woken, and who posted before made the words differ.
        note_core(pool + WORKERS, index)
        atomic_add(pool + SLEEPING, 1)
        woken = atomic_load(pool + POSTED) == seen
        if woken:
            sleep(pool + POSTED, seen)
        atomic_add(pool + SLEEPING, -1)


@helper
def wait_for_end(pool: int, slot: int) -> None:
    """Wait until the tasks that workers have begun are finished.

    Where another program took the core of such a worker, it gets the one of this thread, which sleeps.
    """
    now = nanoseconds()
    look, until, fetched = now + SHORT, now + LATE, 0
    while atomic_load(slot + UNDONE) > 0 and now < until:
        if now > look:
            fetched = fetch_stopped(pool + WORKERS, slot)
            if fetched > 0:
                atomic_store(pool + CROWDED, now + CALM)
                until = now
            else:
                give_way()  # who is waited for may need this core
                look = now + LOOK
        for _ in range(PAUSES):
            pause()
        now = nanoseconds()
    if atomic_load(slot + UNDONE) > 0:
        atomic_add(slot + WAITING, 1)
        undone = atomic_load(slot + UNDONE)
        while undone > 0:
            sleep(slot + UNDONE, undone)
            undone = atomic_load(slot + UNDONE)
        atomic_add(slot + WAITING, -1)
    if fetched > 0:
        free_moved(pool + WORKERS, slot)


@helper
def awake_threads(pool: int, threads: int) -> int:
    """Of so many threads, this one included, those that a short launch has.

    Workers that sleep are woken for the short launches to come, where such have followed each other closely
    for a while, as in a network that is called again and again.
    """
    spinning = atomic_load(pool + SPINNING)
    if spinning == 0 and threads > 1 and atomic_load(pool + SLEEPING) > 0:
        now = nanoseconds()
        if now > atomic_load(pool + LAST_SHORT) + CLOSE:
            atomic_store(pool + SERIES, now)
        atomic_store(pool + LAST_SHORT, now)
        if now > atomic_load(pool + SERIES) + LONG and now > atomic_load(pool + CROWDED):
            atomic_store(pool + SERIES, now)
            wake_apart(pool + WORKERS, pool + POSTED, AT_ONCE)
    return int(min(1 + spinning, min(threads, SHORT_THREADS)))


def launch_tasks(pool: int, kernel: int, arguments: int, tasks: int, threads: int) -> None:
    """kernel(arguments, task) for every task in range(tasks), by up to so many threads, this one included.

    Negative `tasks` are as many of a short launch, in which only threads that are awake have part.
    """
    slot = 0
    if tasks < 0:
        tasks, threads = -tasks, awake_threads(pool, threads)
    if tasks > 1 and threads > 1:
        for place in range(pool + FIRST, pool + FIRST + SLOTS * SLOT, SLOT):
            if atomic_load(place + FREE) > 0 and atomic_take(place + FREE) > 0:
                slot = place
                break
    if slot == 0:
        for task in range(tasks):
            call(kernel, (arguments, task))
        return
    atomic_store(slot + KERNEL, kernel)
    atomic_store(slot + ARGUMENTS, arguments)
    atomic_store(slot + TASKS, tasks)
    if atomic_load(pool + LOOP) > 0:
        atomic_store(slot + UNCLAIMED, tasks)
        # 0: as many threads as the library's other loops have, since another number would make them anew
        call(atomic_load(pool + LOOP), (atomic_load(pool + SHARE), slot, 0, 0))
        atomic_store(slot + FREE, 1)
        return
    helpers = min(threads, tasks) - 1
    atomic_store(slot + UNDONE, tasks)
    atomic_store(slot + HELPERS, helpers)
    # From here on others take part. The caller has task 0 in any case: what it read in the last call, such as
    # its part of the filters, is then in its cache in the next one.
    atomic_store(slot + UNCLAIMED, tasks - 1)
    atomic_add(pool + POSTED, 1)
    missing = helpers - atomic_load(pool + SPINNING)
    if missing > 0 and atomic_load(pool + SLEEPING) > 0:
        wake_apart(pool + WORKERS, pool + POSTED, min(missing, AT_ONCE))
    call(kernel, (arguments, 0))
    done = 1 + run_claimed(slot)
    if atomic_add(slot + UNDONE, -done) > done:
        wait_for_end(pool, slot)
    atomic_store(slot + FREE, 1)


def share_tasks(slot: int) -> None:
    """What a thread of OpenMP does in a launch; all have ended when the loop has."""
    run_claimed(slot)


def stop(pool: int) -> None:
    """Make workers end as soon as they have finished their tasks."""
    atomic_store(pool + STOP, 1)
    atomic_add(pool + POSTED, 1)
    wake(pool + POSTED, 1 << 30)


class Pool:
    """Memory and workers; `work` and `stop` are the addresses of the compiled functions.

    A process has one; after a fork, the child makes its own. Where the system has no futex, there are no
    workers, and callers run their tasks themselves.
    """

    def __init__(self, work: int, stop: int):
        self._work, self._stop = work, stop
        self._words = aligned_zeros((WORKERS + worker_cores.SIZE) // 8, "int64")
        self._words[(FIRST + FREE) // 8 : WORKERS // 8 : SLOT // 8] = 1
        self._handles: list[ctypes.c_ulong] = []
        self.address = self._words.ctypes.data
        self.threads = 1  # that a launch may have, the caller included

    def borrow(self, loop: int, share: int) -> None:
        """Have the tasks run by the threads of an OpenMP, and start no workers.

        Args:
            loop: address of its GOMP_parallel.
            share: address of the compiled function.
        """
        self._words[LOOP // 8], self._words[SHARE // 8] = loop, share
        self.threads = sys.maxsize

    def grow(self, threads: int) -> None:
        """Start workers, so that a launch may run on so many threads; the system may refuse to start some."""
        self.threads = max(self.threads, threads)
        if not CAN_SLEEP:
            return
        create = ctypes.CDLL(None).pthread_create
        work, address = ctypes.c_void_p(self._work), ctypes.c_void_p(self.address)
        # signals are for Python's threads, but for those that tell of a fault of the thread itself
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - FAULTS)
        try:
            while len(self._handles) < threads - 1:
                handle = ctypes.c_ulong()
                if create(ctypes.byref(handle), None, work, address):
                    break
                self._handles.append(handle)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def close(self) -> None:
        """Stop the workers and wait for their ends: the code they run must not go before they do."""
        ctypes.CFUNCTYPE(None, ctypes.c_ssize_t)(self._stop)(self.address)
        while self._handles:
            ctypes.CDLL(None).pthread_join(self._handles.pop(), None)
