"""A child of a fork computes what its parent does, and ends, whatever the parent was doing."""

import functools
import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from convalgos.core import forks

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")

SECONDS = 100  # after which a program hangs

TESTS = str(Path(__file__).parent)
BEGIN = """
import os, sys, threading, time, warnings
warnings.simplefilter("ignore")  # Python's own: the process has threads
import numpy as np, convalgos as ca
from convalgos.select.measure.accuracy import random_arrays
P = ca.ConvProblem.parse
LARGE = P("n1 c64 h40 w40 k64 r3 s3 p1")  # enough work for several threads

def computed(algorithm, problem=LARGE):
    x, w = random_arrays(problem)[:2]
    return ca.conv(x, w, padding=1, algorithm=algorithm)

def in_child(work):
    "The exit status of a child that does some work: 0 where it returned True."
    pid = os.fork()
    if pid == 0:
        status = 9
        try:
            status = 0 if work() else 1
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def same(algorithm, expected):
    return lambda: bool(np.array_equal(computed(algorithm), expected))

def right(algorithm, problem=LARGE):
    "For a child of a parent in which convalgos has run nothing."
    return np.allclose(computed(algorithm, problem), computed("cpu.reference", problem), atol=1e-3)
"""


def run(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"TESTS = {TESTS!r}\n{BEGIN}{code}"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stdout} {done.stderr}"


def test_after_everything_ran_in_the_parent_and_in_a_grandchild():
    """MKL's, FFTW's and NumPy's BLAS among them."""
    run("""
served = {c.id for c in ca.explain(LARGE).candidates}
ids = {"cpu.direct", "cpu.im2col.blas", "cpu.im2col.mkl", "cpu.fft.fftw", "cpu.fft.mkl"} & served
assert "cpu.direct" in ids
expected = {i: computed(i) for i in ids}
def child():
    grandchild = in_child(lambda: all(same(i, expected[i])() for i in ids))
    return all(same(i, expected[i])() for i in ids) and grandchild == 0
assert in_child(child) == 0
""")


@pytest.mark.parametrize("first", ["torch", "prange"])
def test_after_other_threads_ran_in_the_parent(first):
    """Of OpenMP, whose threads a child does not have, or which ends it."""
    if first == "torch":
        pytest.importorskip("torch")
        code = """
import torch
torch.set_num_threads(4)
x, w = (torch.from_numpy(a) for a in random_arrays(LARGE)[:2])
for _ in range(3):
    torch.nn.functional.conv2d(x, w, padding=1)
"""
    else:
        code = """
import numba
@numba.njit(parallel=True)
def total(x):
    s = 0.0
    for i in numba.prange(len(x)):
        s += x[i]
    return s
assert total(np.ones(1000)) == 1000
"""
    run(
        code
        + """
assert in_child(lambda: right("cpu.winograd.f4x3") and right("cpu.direct")) == 0
"""
    )


def test_while_another_thread_imports_the_algorithms():
    run("""
amid = threading.Event()
class Slow:
    "Makes an import last, as from a slow disk."
    def find_spec(self, name, path=None, target=None):
        if name == "convalgos.cpu.gemm":
            amid.set()
            time.sleep(0.5)
sys.meta_path.insert(0, Slow())
from convalgos.select.registry import algorithms
other = threading.Thread(target=algorithms, args=("cpu",))  # and nothing else, which may import more
other.start()
assert amid.wait(30)
assert in_child(lambda: right("cpu.direct")) == 0
other.join()
""")


def test_while_threads_run_and_plan():
    run("""
expected = computed("cpu.direct")
going = True
def work():
    n = 0
    while going:
        n += 1
        computed("cpu.direct")
        computed("cpu.fft.fftw", P(f"n1 c1 h{40 + n % 50} w40 k1 r3 s3 p1"))
def child():
    return same("cpu.direct", expected)() and right("cpu.fft.fftw", P("n1 c1 h40 w150 k1 r3 s3 p1"))
others = [threading.Thread(target=work) for _ in range(3)]
for other in others:
    other.start()
found = [in_child(child) for _ in range(8)]
going = False
assert found == [0] * 8, found
""")


def test_while_a_thread_that_compiles_has_a_word_for_the_log():
    """Forks take the log's lock before ours where `logging` was imported later."""
    run("""
from convalgos.core import forks; from convalgos.cpu.compile import kernel_cache
from convalgos.cpu.runtime import compile_notice
import logging
sys.path.insert(0, TESTS)
from tiny_kernels import sum_to
forks.PATIENCE, compile_notice.LONG = 8, 0.0
amid = threading.Event()
def nothing_kept(key):
    amid.set()
    while threading.current_thread() is other and not forks._waiting:
        time.sleep(0.001)
kernel_cache.load_kernel, kernel_cache.save_kernel = nothing_kept, lambda *entry: None
other = threading.Thread(target=sum_to, args=(1,))
other.start()
assert amid.wait(30)
assert in_child(lambda: sum_to(2) > 0) == 0
""")


def test_while_a_thread_compiles():
    """The fork waits for it, and is let in between two kernels; the child compiles, too."""
    run("""
from convalgos.core import forks; from convalgos.cpu.runtime import jit
from convalgos.cpu.compile import kernel_cache
sys.path.insert(0, TESTS)
from tiny_kernels import sum_to
kernel_cache.load_kernel, kernel_cache.save_kernel = lambda key: None, lambda *entry: None
forks.PATIENCE = 8
expected = computed("cpu.direct")
going = True
def work():
    n = 0
    while going:
        n += 1
        sum_to(n)
other = threading.Thread(target=work)
other.start()
def child():
    return sum_to(-1) > 0 and same("cpu.direct", expected)()
found = []
for i in range(4):
    time.sleep(0.023 * i)
    found.append(in_child(child))
going = False
assert found == [0] * 4, found
""")


def test_a_compilation_that_goes_on_for_too_long():
    """The child is told; what is compiled runs on."""
    run("""
from convalgos.core import forks
from convalgos.cpu.runtime import jit; from convalgos.cpu.runtime import thread_pool
forks.PATIENCE = 0.1
expected = computed("cpu.direct")
let_go, held = threading.Event(), threading.Event()
def hold():
    with jit._lock:
        held.set()
        let_go.wait()
other = threading.Thread(target=hold)
other.start()
held.wait()
def child():
    try:
        jit.compile_kernel(thread_pool.stop)
    except ca.Unsupported as told:
        return "forked while another thread compiled" in str(told) and same("cpu.direct", expected)()
found = in_child(child)
let_go.set()
other.join()
assert found == 0, found
assert jit.compile_kernel(thread_pool.stop) > 0  # in the parent
""")


def test_processes_of_multiprocessing_and_a_data_loader():
    pytest.importorskip("torch")
    run("""
import multiprocessing
import torch.utils.data
expected = computed("auto"), computed("cpu.im2col.blas")
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 6
    def __getitem__(self, i):
        return float(same("auto", expected[0])())
def work(i):
    return same("cpu.im2col.blas", expected[1])()
with multiprocessing.get_context("fork").Pool(3) as pool:
    assert all(pool.map(work, range(6)))
loader = torch.utils.data.DataLoader(Data(), 2, num_workers=2, multiprocessing_context="fork")
assert sum(float(batch.sum()) for batch in loader) == 6
""")


def test_threads_of_a_child():
    """It starts its own. A child whose fork Python is not told of, as by a library in C, does without."""
    run("""
import ctypes
from convalgos.cpu.runtime import jit
jit.thread_count = lambda: 3
expected = computed("cpu.direct")
pool = jit._launcher[1]
def child():
    fresh = same("cpu.direct", expected)() and jit._launcher[1]
    return fresh is not pool and len(fresh._handles) == 2
assert in_child(child) == 0
pid = ctypes.PyDLL(None).fork()
if pid == 0:
    os._exit(0 if all(same("cpu.direct", expected)() for _ in range(5)) else 1)
assert os.waitpid(pid, 0)[1] == 0
assert pool is jit._launcher[1] and len(pool._handles) == 2
sys.exit(0)  # with the parent's threads, which the children's ends have left alone
""")


def test_locks_are_free_in_the_child_and_kept_in_the_parent(monkeypatch):
    monkeypatch.setattr(forks, "PATIENCE", 0.2)
    monkeypatch.setattr(forks, "_guarded", {})
    told = []
    free, reentrant = forks.guarded(threading.Lock()), forks.guarded(threading.RLock())
    stuck = forks.guarded(threading.Lock(), lambda: told.append("stuck"))
    let_go, held = threading.Event(), threading.Event()

    def hold():
        with stuck:
            held.set()
            let_go.wait()

    other = threading.Thread(target=hold)
    other.start()
    held.wait()
    with reentrant:  # the forking thread itself may hold one
        pid = os.fork()
        if pid == 0:
            right = all(lock.acquire(timeout=1) for lock in (free, stuck)) and told == ["stuck"]
            os._exit(0 if right else 1)
        assert os.waitpid(pid, 0)[1] == 0
        assert free.acquire(blocking=False) and not stuck.acquire(blocking=False)
        assert told == []
    let_go.set()
    other.join()


def test_locks_that_forks_do_not_wait_for_are_free_in_the_child():
    lock = forks.renewed(threading.Lock())
    began = time.monotonic()
    with lock:
        pid = os.fork()
        if pid == 0:
            os._exit(0 if lock.acquire(timeout=1) else 1)
        assert os.waitpid(pid, 0)[1] == 0 and lock.locked()
    assert time.monotonic() - began < forks.PATIENCE


def test_a_lock_that_the_forking_thread_holds_is_its_own_in_the_child():
    pid, lock = 0, forks.renewed(threading.RLock())
    try:
        with lock:
            pid = os.fork()
            if pid == 0:
                other = threading.Thread(target=lambda: os._exit(1 if lock.acquire(timeout=0.1) else 0))
                other.start()
                other.join()
    finally:
        if pid == 0:
            os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0


def test_a_fork_ends_while_others_make_ever_more_locks(monkeypatch):
    monkeypatch.setattr(forks, "_guarded", {})
    locks, held = [], 0

    class Growing:
        def acquire(self, timeout):
            nonlocal held
            assert len(locks) < 10_000
            locks.append(forks.guarded(Growing()))
            held += 1
            return True

        def release(self):
            nonlocal held
            held -= 1

    locks.append(forks.guarded(Growing()))
    forks._before()
    assert held > 0
    forks._in_parent()
    assert held == 0


@pytest.mark.parametrize("fork_between", [False, True])
def test_locks_go_with_what_has_them(fork_between):
    before = len(forks._guarded), len(forks._renewed)
    locks = [forks.guarded(threading.Lock()), forks.renewed(threading.Lock())]
    assert (len(forks._guarded), len(forks._renewed)) == (before[0] + 1, before[1] + 1)
    if fork_between:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    del locks
    gc.collect()
    assert len(forks._guarded) <= before[0] and len(forks._renewed) <= before[1]


def test_while_a_thread_reads_a_network_for_branches_that_shapes_decide():
    """Which may take seconds: the child computes without waiting for its parent's thread."""
    for module in ("onnx", "onnxruntime"):
        pytest.importorskip(module)
    run("""
sys.path.insert(0, TESTS)
from test_decided_branches import from_onnx, numbers, squeezed
net, x = from_onnx(squeezed()), numbers((1, 6, 1, 7))
expected = net(x)
(reading,) = net._instead
amid, go_on = threading.Event(), threading.Event()
read = reading._read
def slow(proto):
    amid.set()
    assert go_on.wait(60)
    return read(proto)
reading._read = slow
other = threading.Thread(target=lambda: [net(x) for _ in range(3)])
other.start()
assert amid.wait(60)
assert in_child(lambda: go_on.set() or all(np.allclose(net(x), expected) for _ in range(4))) == 0
go_on.set()
other.join()
""")


def test_while_a_thread_infers_the_types_of_a_model():
    """Which may take seconds: the child reads models without waiting for its parent's thread."""
    for module in ("onnx", "onnxruntime"):
        pytest.importorskip(module)
    run("""
sys.path.insert(0, TESTS)
from test_decided_branches import from_onnx, numbers, squeezed
from convalgos.network.onnx_reader.model import OnnxModel
model, x = squeezed(), numbers((1, 6, 1, 7))
expected = from_onnx(model)(x)
amid, go_on, infer = threading.Event(), threading.Event(), OnnxModel._inferred
def slow(self, *args):
    if threading.current_thread() is other:
        amid.set()
        assert go_on.wait(60)
    return infer(self, *args)
OnnxModel._inferred = slow
other = threading.Thread(target=lambda: from_onnx(model))
other.start()
assert amid.wait(60)
status = in_child(lambda: np.allclose(from_onnx(model)(x), expected))
go_on.set()
other.join()
assert status == 0
""")


@pytest.mark.parametrize("room", ["workspaces", "engines"])
def test_what_ends_a_plan_waits_for_no_other_thread(room):
    """Objects go amid any line of a program, which may hold what the other thread waits for."""
    if room == "engines":
        from convalgos.cpu.spectral import engines as module
    else:
        from convalgos.core import workspaces as module
    told = []
    end = functools.partial(module._ended.add, lambda: told.append(5))
    held, let_go = threading.Event(), threading.Event()

    def hold():
        with module._lock:
            held.set()
            let_go.wait()

    other, ending = threading.Thread(target=hold), threading.Thread(target=end, daemon=True)
    other.start()
    held.wait()
    ending.start()
    ending.join(60)
    waits = ending.is_alive()
    let_go.set()
    other.join()
    ending.join()
    with module._lock:
        module._ended.settle()
    assert not waits and told == [5]
