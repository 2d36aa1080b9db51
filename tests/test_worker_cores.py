"""Workers run on other cores than the thread that wakes them, and on its own where they were stopped."""

import ctypes
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from convalgos.cpu.runtime import jit, thread_pool, worker_cores
from convalgos.cpu.runtime.thread_pool import WORKERS, Pool
from convalgos.cpu.runtime.worker_cores import current_core, fetch_stopped, free_moved
from convalgos.cpu.vectors.atomics import CAN_SLEEP, atomic_add, atomic_load, atomic_store, nanoseconds, pause

CORES = sorted(os.sched_getaffinity(0)) if CAN_SLEEP else []


@jit.specialise
def meet():
    """Tasks count up word 0, each writes its core, and they wait until they are as many as word 1 holds."""

    def meet(args, task):
        atomic_store(args + 16 + 8 * task, current_core())
        atomic_add(args, 1)
        until = nanoseconds() + 10_000_000_000
        while atomic_load(args) < atomic_load(args + 8) and nanoseconds() < until:
            pause()

    return meet


def wait_for_sleep(thread):
    """Until Linux tells that a thread of this process sleeps."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        if Path(f"/proc/self/task/{thread}/stat").read_text().rpartition(")")[2].split()[0] == "S":
            return
        time.sleep(0.001)
    raise TimeoutError(thread)


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
@pytest.mark.parametrize("place", [0, 1])
def test_a_worker_wakes_on_another_core(place):
    """Also on one that others use, which the system would not choose; few are brought back at once."""
    core, other = CORES[place], CORES[1 - place]
    run, _ = jit._start()
    pool = Pool(*(jit.compile_kernel(f) for f in (thread_pool.work, thread_pool.stop)))
    words = np.array([0, 2, 0, 0], np.int64)
    apart = words.copy()
    arguments = pool.address, meet(), words.ctypes.data, 2, 2

    def keep_busy():
        os.sched_setaffinity(0, {other})
        run(pool.address, meet(), apart.ctypes.data, 1, 1)

    def cores_of_tasks():
        """Where two tasks run, the second by a worker that fell asleep on the core of the first."""
        os.sched_setaffinity(worker, {core})
        words[0] = 0
        run(*arguments)
        wait_for_sleep(worker)
        os.sched_setaffinity(worker, {core, other})
        words[0], words[2:] = 0, -1
        run(*arguments)
        return tuple(words[2:].tolist())

    try:
        os.sched_setaffinity(0, {core})
        pool.grow(2)
        run(*arguments)
        worker = int(pool._words[(WORKERS + worker_cores.ROWS + worker_cores.THREAD) // 8])
        with ThreadPoolExecutor(1) as executor:
            busy = executor.submit(keep_busy)
            time.sleep(0.3)  # until the system knows that core for a busy one
            try:
                assert [cores_of_tasks() for _ in range(20)].count((core, other)) > 10
            finally:
                apart[0] = 2  # who keeps it busy ends
            busy.result()
        assert os.sched_getaffinity(worker) == {core, other}
    finally:
        os.sched_setaffinity(0, set(CORES))
        pool.close()


def fetched(workers, job):
    return fetch_stopped(workers, job)


def freed(workers, job):
    free_moved(workers, job)


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_a_worker_without_a_core_is_fetched():
    """One that sleeps stands for one that was stopped."""
    pool = Pool(*(jit.compile_kernel(f) for f in (thread_pool.work, thread_pool.stop)))
    workers, row = pool.address + WORKERS, (WORKERS + worker_cores.ROWS) // 8
    kind = ctypes.CFUNCTYPE(ctypes.c_ssize_t, ctypes.c_ssize_t, ctypes.c_ssize_t)
    fetch, free = kind(jit.compile_kernel(fetched, "integer")), kind(jit.compile_kernel(freed))
    job, other = 4096, 8192
    try:
        pool.grow(2)
        until = time.monotonic() + 20
        while pool._words[thread_pool.SLEEPING // 8] == 0 and time.monotonic() < until:
            time.sleep(0.001)
        worker = int(pool._words[row + worker_cores.THREAD // 8])
        wait_for_sleep(worker)
        pool._words[row + worker_cores.JOB // 8] = job
        os.sched_setaffinity(0, {CORES[1]})
        assert fetch(workers, job) == 0  # it has run since it was looked at last, which was never
        assert fetch(workers, other) == 0
        assert fetch(workers, job) == 1
        assert os.sched_getaffinity(worker) == {CORES[1]}
        assert fetch(workers, job) == 0  # once is enough
        free(workers, other)
        assert os.sched_getaffinity(worker) == {CORES[1]}
        free(workers, job)
        assert os.sched_getaffinity(worker) == set(CORES)
        assert pool._words[row + worker_cores.FREE // 8] == 1
    finally:
        os.sched_setaffinity(0, set(CORES))
        pool.close()
