"""The threads that share the tasks of a launch, and how they are dealt without waiting for one another.

A launch is a job: a kernel, its arguments and a number of tasks, in a slot that all threads read. Workers and
the calling thread claim tasks one by one, so that the caller does alone what no worker came for, and waits at
the end only for tasks that a worker has begun: on a machine whose cores others hold, nothing hangs on a
thread that has none. Any number of threads may launch at once; where no slot is free, the caller runs its
tasks itself.

Workers that find nothing spin for a while, as the next launch mostly follows soon, and then sleep; where
another program took a core from one that span, they hardly spin. They are threads of the system that run
compiled code only, and know nothing of Python or its lock.

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
from convalgos.cpu.vectors.atomics import (
    CAN_SLEEP,
    add,
    give_way,
    load,
    nanoseconds,
    pause,
    sleep,
    store,
    take,
    wake,
)
from convalgos.cpu.vectors.simd import call

POSTED = 0  # launches so far: changes when there is work; workers sleep here
SLEEPING, SPINNING = 64, 72  # workers that do so now
STOP, CROWDED = 128, 136  # 1: workers end; the time until which they leave the cores to others soon
LOOP, SHARE = 144, 152  # GOMP_parallel of an OpenMP that runs the tasks, or 0, and the address of `share`
SLOTS, FIRST, SLOT = 16, 192, 192  # jobs at a time, the first one, and from one to the next
UNCLAIMED, HELPERS = 0, 8  # tasks that no thread has taken yet, and workers that may still join
UNDONE, WAITING = 64, 72  # tasks that are not finished; 1: the caller sleeps at UNDONE
FREE, KERNEL, ARGUMENTS, TASKS = 128, 136, 144, 152  # 1: the slot may be taken; and what is to be run

# Nanoseconds. To wake a thread takes the caller 15 000, and it comes after 30 000 (a virtual machine, Xeon):
# who spins for much longer than that loses little by what comes later. A caller does so for longer, and gives
# way meanwhile: asleep, it would wake on the core of the worker that wakes it, and stay for tens of ms.
IDLE, LATE = 500_000, 3_000_000  # that a worker spins for the next task, and a caller for the end of the last
SHORT = 60_000  # for a worker where other programs want the cores, and until a caller gives way
AWAY, CALM = 200_000, 20_000_000  # for which a worker lost its core then, and for which that is remembered
PAUSES = 8  # between two looks at the clock
AT_ONCE = 2  # workers that a thread wakes: each costs a microsecond, and wakes as many in turn

FAULTS = {getattr(signal, name, None) for name in ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL")}


def work(pool):
    """What a worker does until it is stopped."""
    woken = False
    while True:
        seen = load(pool + POSTED)
        for slot in range(pool + FIRST, pool + FIRST + SLOTS * SLOT, SLOT):
            if load(slot + UNCLAIMED) > 0 and take(slot + HELPERS) > 0:
                if woken and load(slot + HELPERS) > 0 and load(pool + SLEEPING) > 0:
                    wake(pool + POSTED, AT_ONCE)
                left = take(slot + UNCLAIMED)
                while left > 0:
                    # The job cannot end before this task has, so that what the slot holds is of this job.
                    call(load(slot + KERNEL), (load(slot + ARGUMENTS), load(slot + TASKS) - left))
                    if add(slot + UNDONE, -1) == 1 and load(slot + WAITING) > 0:
                        wake(slot + UNDONE, 1)
                    left = take(slot + UNCLAIMED)
        if load(pool + STOP) > 0:
            return
        add(pool + SPINNING, 1)
        now = nanoseconds()
        until = now + (IDLE if now > load(pool + CROWDED) else SHORT)
        while load(pool + POSTED) == seen and now < until:
            for _ in range(PAUSES):
                pause()
            before, now = now, nanoseconds()
            if now - before > AWAY:  # another program had the core meanwhile, and wants it again
                store(pool + CROWDED, now + CALM)
                until = now
        add(pool + SPINNING, -1)
        # Who posts after this counts us among those to be woken, and who posted before made the words differ.
        add(pool + SLEEPING, 1)
        woken = load(pool + POSTED) == seen
        if woken:
            sleep(pool + POSTED, seen)
        add(pool + SLEEPING, -1)


def launch(pool, kernel, arguments, tasks, threads):
    """kernel(arguments, task) for every task in range(tasks), by up to so many threads, this one included."""
    slot = 0
    if tasks > 1 and threads > 1:
        for place in range(pool + FIRST, pool + FIRST + SLOTS * SLOT, SLOT):
            if load(place + FREE) > 0 and take(place + FREE) > 0:
                slot = place
                break
    if slot == 0:
        for task in range(tasks):
            call(kernel, (arguments, task))
        return
    store(slot + KERNEL, kernel)
    store(slot + ARGUMENTS, arguments)
    store(slot + TASKS, tasks)
    if load(pool + LOOP) > 0:
        store(slot + UNCLAIMED, tasks)
        # 0: as many threads as the library's other loops have, since another number would make them anew
        call(load(pool + LOOP), (load(pool + SHARE), slot, 0, 0))
        store(slot + FREE, 1)
        return
    helpers = min(threads, tasks) - 1
    store(slot + UNDONE, tasks)
    store(slot + HELPERS, helpers)
    store(slot + UNCLAIMED, tasks)  # from here on others take part
    add(pool + POSTED, 1)
    missing = helpers - load(pool + SPINNING)
    if missing > 0 and load(pool + SLEEPING) > 0:
        wake(pool + POSTED, min(missing, AT_ONCE))
    done = 0
    left = take(slot + UNCLAIMED)
    while left > 0:
        call(kernel, (arguments, tasks - left))
        done += 1
        left = take(slot + UNCLAIMED)
    if add(slot + UNDONE, -done) > done:
        now = nanoseconds()
        soon, until = now + SHORT, now + LATE
        while load(slot + UNDONE) > 0 and now < until:
            if now > soon:
                give_way()  # who is waited for may need this core
            for _ in range(PAUSES):
                pause()
            now = nanoseconds()
        if load(slot + UNDONE) > 0:
            add(slot + WAITING, 1)
            undone = load(slot + UNDONE)
            while undone > 0:
                sleep(slot + UNDONE, undone)
                undone = load(slot + UNDONE)
            add(slot + WAITING, -1)
    store(slot + FREE, 1)


def share(slot):
    """What a thread of OpenMP does in a launch; all have ended when the loop has."""
    left = take(slot + UNCLAIMED)
    while left > 0:
        call(load(slot + KERNEL), (load(slot + ARGUMENTS), load(slot + TASKS) - left))
        left = take(slot + UNCLAIMED)


def stop(pool):
    """Make workers end as soon as they have finished their tasks."""
    store(pool + STOP, 1)
    add(pool + POSTED, 1)
    wake(pool + POSTED, 1 << 30)


class Pool:
    """Memory and workers; `work` and `stop` are the addresses of the compiled functions.

    A process has one; after a fork, the child makes its own. Where the system has no futex, there are no
    workers, and callers run their tasks themselves.
    """

    def __init__(self, work: int, stop: int):
        self._work, self._stop = work, stop
        self._words = aligned_zeros((FIRST + SLOTS * SLOT) // 8, "int64")
        self._words[(FIRST + FREE) // 8 :: SLOT // 8] = 1
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
