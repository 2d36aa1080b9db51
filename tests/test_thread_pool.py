"""Every task of every launch is run once and before the launch returns, whoever runs it."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, local

import numba
import numpy as np
import pytest

from convalgos.core import setting
from convalgos.core.machine import cpu_count
from convalgos.cpu.runtime import jit, thread_pool
from convalgos.cpu.runtime.thread_pool import FIRST, FREE, SLEEPING, SLOT, SLOTS, SPINNING, WORKERS, Pool
from convalgos.cpu.vectors.atomics import atomic_add, atomic_load, nanoseconds, pause

TASKS = (1, 2, 3, 7, 64, 1000)


@jit.specialise
def count():
    """Adds 1 to the word of the task, after the nanoseconds that word 0 holds."""

    def count(args, task):
        until = nanoseconds() + atomic_load(args)
        while nanoseconds() < until:
            pause()
        atomic_add(args + 8 * (task + 1), 1)

    return count


@jit.specialise
def meet():
    """Waits until as many tasks are there as word 0 holds, for seconds; word 2 counts those that saw it."""

    def meet(args, task):
        atomic_add(args + 8, 1)
        until = nanoseconds() + 20_000_000_000
        while atomic_load(args + 8) < atomic_load(args) and nanoseconds() < until:
            pause()
        atomic_add(args + 16, atomic_load(args + 8) == atomic_load(args))

    return meet


def counted(launch, tasks: int, nanoseconds: int = 0) -> np.ndarray:
    """How often each task was run."""
    words = np.zeros(tasks + 1, np.int64)
    words[0] = nanoseconds
    launch(count(), words.ctypes.data, tasks)
    return words[1:].copy()


@pytest.fixture
def threads():
    """Set the number of threads; it is what it was afterwards."""
    before = numba.get_num_threads()
    yield numba.set_num_threads
    numba.set_num_threads(before)


@pytest.fixture
def pool():
    """A pool of its own, and its launch on as many threads as it is told."""
    run, _ = jit._start()
    kernels = [jit.compile_kernel(f) for f in (thread_pool.work, thread_pool.stop)]
    made = Pool(*kernels)
    yield made, lambda threads: lambda k, a, tasks: run(made.address, k, a, tasks, threads)
    made.close()


def short(launch):
    """A short launch, which wakes nobody for itself."""
    return lambda kernel, arguments, tasks: launch(kernel, arguments, -tasks)


def all_free(pool: Pool) -> bool:
    return bool((pool._words[(FIRST + FREE) // 8 : WORKERS // 8 : SLOT // 8] == 1).all())


@pytest.mark.parametrize("workers", [0, 1, 5])
def test_every_task_is_run_once(pool, workers):
    made, launch = pool
    made.grow(workers + 1)
    for repeat in range(300):
        for tasks in TASKS:
            how = short(launch(6)) if repeat % 2 else launch(6)
            found = counted(how, tasks, repeat % 3 * 2000 if tasks < 64 else 0)
            assert (found == 1).all(), f"{tasks} tasks: {found.tolist()}"
    assert all_free(made)


def test_many_threads_launch_at_once(pool):
    """More than there are slots; the workers, too, are more than the cores."""
    made, launch = pool
    made.grow(6)
    callers = 3 * SLOTS
    together = Barrier(callers)

    def call(caller):
        together.wait()
        return [(counted(launch(6), tasks, 500) == 1).all() for _ in range(20) for tasks in (2, 3, 7)]

    with ThreadPoolExecutor(callers) as executor:
        assert all(ok for found in executor.map(call, range(callers)) for ok in found)
    assert all_free(made)


def test_workers_take_part(pool):
    """Tasks that wait for one another meet only where as many threads run them."""
    made, launch = pool
    made.grow(4)
    for _ in range(5):
        time.sleep(0.001)  # the workers fall asleep meanwhile
        words = np.array([4, 0, 0], np.int64)
        launch(4)(meet(), words.ctypes.data, 4)
        assert words[2] == 4


@pytest.mark.skipif(cpu_count() < 2, reason="needs two cores")
def test_short_launches_have_threads_that_are_awake(pool):
    """One by itself wakes nobody; many, close to each other, do for those to come."""
    made, launch = pool
    made.grow(2)
    asleep, awake = made._words[SLEEPING // 8 :], made._words[SPINNING // 8 :]
    until = time.monotonic() + 20
    while not asleep[0] and time.monotonic() < until:
        time.sleep(0.001)
    for _ in range(5):
        time.sleep(0.001)
        assert (counted(short(launch(2)), 2, 1000) == 1).all()
        assert asleep[0] == 1
    woken = 0
    while not woken and time.monotonic() < until:
        assert (counted(short(launch(2)), 2, 1000) == 1).all()
        woken = int(awake[0])
    assert woken == 1


def test_a_launch_waits_for_nobody_who_does_not_come(pool):
    """A pool without workers that believes to have some, as in a child whose fork nobody told of."""
    made, launch = pool
    made.threads = 8
    made._words[thread_pool.SLEEPING // 8] = 7
    for tasks in TASKS:
        assert (counted(launch(8), tasks) == 1).all()


def test_no_slot_is_free(pool):
    made, launch = pool
    made.grow(2)
    made._words[(FIRST + FREE) // 8 : WORKERS // 8 : SLOT // 8] = 0
    assert (counted(launch(2), 7) == 1).all()


def test_the_count_is_numbas(threads, monkeypatch):
    monkeypatch.setattr(jit, "_this", local())  # torch's threads may be borrowed here by now
    most = max(numba.config.NUMBA_NUM_THREADS - 1, len(jit._start()[1]._handles))  # as other tests left them
    for number in range(1, numba.config.NUMBA_NUM_THREADS + 1):
        threads(number)
        assert jit.thread_count() == number
        assert (counted(jit.launch, 100) == 1).all()
        assert jit._start()[1].threads >= number
    assert len(jit._start()[1]._handles) <= most  # as many as ever were wanted


@pytest.mark.parametrize(
    ("variables", "count"),
    [
        ({"CONVALGOS_NUM_THREADS": "3", "NUMBA_NUM_THREADS": "2"}, 3),
        ({"CONVALGOS_NUM_THREADS": "0"}, 1),
        ({"CONVALGOS_NUM_THREADS": "many", "NUMBA_NUM_THREADS": "2"}, 2),
        ({"NUMBA_NUM_THREADS": "2"}, 2),
        ({}, cpu_count()),
    ],
)
def test_variables_set_the_number_of_threads(variables, count, monkeypatch):
    for name in ("CONVALGOS_NUM_THREADS", "NUMBA_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert setting._threads_at_start.__wrapped__() == count


def run(code: str, seconds: float = 60) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr}"
    return done.stdout.strip()


def test_numbas_threads_are_not_started():
    """Of OpenMP, which would end the children of forks."""
    code = """
import numpy as np, convalgos as ca
from convalgos.cpu.runtime import jit
ca.conv(np.ones((1, 8, 64, 64), "f4"), np.ones((8, 8, 3, 3), "f4"), algorithm="cpu.direct")
import numba.np.ufunc.parallel as numba_threads
print(numba_threads._is_initialized, jit.thread_count() == numba.config.NUMBA_NUM_THREADS)
""".replace("import numba.np", "import numba, numba.np")
    assert run(code) == "False True"


def test_a_program_ends_while_threads_launch():
    code = """
import threading, time, numpy as np, convalgos as ca
x, w = np.ones((1, 8, 64, 64), "f4"), np.ones((8, 8, 3, 3), "f4")
plan = ca.plan(ca.ConvProblem(x.shape, w.shape), algorithm="cpu.direct")
def call():
    while True:
        plan(x, w)
for _ in range(4):
    threading.Thread(target=call, daemon=True).start()
time.sleep(0.3)
"""
    for _ in range(3):
        run(code)
