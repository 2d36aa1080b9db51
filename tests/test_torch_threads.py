"""Convolutions that are called through torch run on its threads, which would spin on the cores otherwise."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (CI installs it)")

from test_thread_pool import TASKS, all_free, counted  # noqa: E402

import convalgos.torch as ct  # noqa: E402
from convalgos.core.machine import cpu_count  # noqa: E402
from convalgos.cpu.runtime import jit  # noqa: E402
from convalgos.torch import threads  # noqa: E402

pytestmark = pytest.mark.skipif(not threads._loop(), reason="this torch has no OpenMP of GNU's form")


@pytest.fixture(autouse=True)
def _threads_that_spin(monkeypatch):
    """Also where the tests are run with others."""
    monkeypatch.setattr(threads, "_sleep_at_once", lambda: False)


def borrowed(work):
    """What `work` returns in a thread that borrows torch's."""

    def run():
        threads.share()
        return work()

    with ThreadPoolExecutor(1) as executor:
        return executor.submit(run).result()


def test_calls_through_torch_borrow_its_threads_and_others_do_not():
    x, w = torch.randn(1, 32, 40, 40), torch.randn(32, 32, 3, 3)
    module = torch.nn.Conv2d(32, 32, 3).eval()
    ct.replace(module)

    def pool(call):
        def run():
            with torch.no_grad():
                call()
            return getattr(jit._this, "pool", None)

        with ThreadPoolExecutor(1) as executor:
            return executor.submit(run).result()

    own = jit._start()[1]
    assert pool(lambda: jit.launch) is None
    assert pool(lambda: ct.conv2d(x, w)) is not None is not own
    assert pool(lambda: module(x)) is pool(lambda: ct.conv2d(x, w))


@pytest.mark.parametrize(
    ("policy", "turns", "asleep"),
    [
        ("", "", False),
        ("active", "", False),
        ("passive", "", True),
        (" PASSIVE", "", True),
        ("passive", "1000", False),
        ("", "0", True),
    ],
)
def test_threads_that_sleep_at_once_are_not_borrowed(monkeypatch, policy, turns, asleep):
    monkeypatch.undo()
    monkeypatch.setenv("OMP_WAIT_POLICY", policy)
    monkeypatch.setenv("GOMP_SPINCOUNT", turns)
    threads._sleep_at_once.cache_clear()
    try:
        assert borrowed(lambda: hasattr(jit._this, "pool")) is not asleep
    finally:
        threads._sleep_at_once.cache_clear()


def test_every_task_is_run_once():
    def run():
        for tasks in TASKS:
            assert (counted(jit.launch, tasks) == 1).all()
        return jit._this.pool

    assert all_free(borrowed(run))


@pytest.mark.skipif(cpu_count() < 2, reason="the threads of OpenMP are no more than the cores")
def test_tasks_meet_on_several_threads():
    """The loop has as many threads as torch's own."""
    from test_thread_pool import meet

    many = max(2, torch.get_num_threads())
    words = np.zeros(4, np.int64)
    words[0] = 2

    def run():
        before = torch.get_num_threads()
        torch.set_num_threads(many)
        try:
            jit.launch(meet(), words.ctypes.data, 2)
        finally:
            torch.set_num_threads(before)

    borrowed(run)
    assert words[1] == 2 and words[2] == 2


def test_threads_that_launch_at_once():
    together = Barrier(6)

    def run(_):
        threads.share()
        together.wait()
        return all((counted(jit.launch, 64) == 1).all() for _ in range(50))

    with ThreadPoolExecutor(6) as executor:
        assert all(executor.map(run, range(6)))


def test_a_child_of_a_fork_runs_on_threads_of_its_own():
    """Comparing by torch would hang: its OpenMP does not survive a fork of a process that has used it."""
    code = """
import os, sys, warnings
warnings.simplefilter("ignore")
import torch, convalgos.torch as ct
from convalgos.cpu.runtime import jit
x, w = torch.randn(1, 64, 40, 40), torch.randn(64, 64, 3, 3)
expected = ct.conv2d(x, w).numpy()
assert hasattr(jit._this, "pool")
pid = os.fork()
if pid == 0:
    same = (ct.conv2d(x, w).numpy() == expected).all()
    os._exit(0 if same and not hasattr(jit._this, "pool") else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    assert hasattr(os, "fork"), "GNU's OpenMP is of systems that fork"
    environment = {**os.environ, "OMP_WAIT_POLICY": "active", "GOMP_SPINCOUNT": "1000"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, env=environment
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stdout} {done.stderr}"
