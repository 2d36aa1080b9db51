"""What is kept between calls: plans by what was asked for, in bounds, and all of it is given back."""

import gc
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import convalgos as ca
from convalgos.api import call_plans, planning
from convalgos.core import allocator, workspaces
from convalgos.core.plan_cache import PlanCache, weight

W = np.ones((2, 3, 3, 3), "f4")


@pytest.fixture(autouse=True)
def nothing_kept():
    ca.forget_plans()
    yield
    ca.forget_plans()


def images(size: int, count: int = 1, dtype: str = "f4") -> np.ndarray:
    return np.ones((count, 3, size, size), dtype)


def plan_of(size: int):
    return ca.plan(ca.ConvProblem((1, 3, size, size), W.shape), algorithm="cpu.reference")


# --- plans -----------------------------------------------------------------------------------


def test_a_plan_is_found_again_and_errors_are_not_kept(monkeypatch):
    made = []
    plan = planning.plan
    monkeypatch.setattr(planning, "plan", lambda *a, **k: made.append(a) or plan(*a, **k))
    for _ in range(3):
        ca.conv(images(9), W)
        ca.conv(images(9), W, stride=[1, 1], padding=[(0, 0), (0, 0)])
    assert len(made) == 2
    for _ in range(2):
        with pytest.raises(ca.Unsupported):
            ca.conv(images(9), W, stride=2, algorithm="cpu.winograd.f4x3")
    assert len(made) == 4


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ({"stride": 1}, {"stride": True}),
        ({"stride": 1}, {"stride": 1.0}),
        ({"stride": (1, 1)}, {"stride": (1.0, 1)}),
        ({"dilation": (1, 1)}, {"dilation": (True, 1)}),
        ({"padding": ((1, 1), (1, 1))}, {"padding": ((1, 1), (1.0, 1))}),
        ({"padding": [(1, 1), (1, 1)]}, {"padding": [(1, 1), (True, 1)]}),
        ({"groups": 1}, {"groups": True}),
    ],
)
def test_what_is_refused_does_not_depend_on_what_came_before(good, bad):
    for calls in ((bad,), (good, bad)):
        ca.forget_plans()
        for arguments in calls[:-1]:
            ca.conv(images(9), W, **arguments)
        with pytest.raises(ValueError, match=next(iter(bad))):
            ca.conv(images(9), W, **calls[-1])


def test_the_least_recently_used_go_first():
    cache = PlanCache(count=16)
    plans = {size: plan_of(size) for size in range(3, 21)}
    for size in range(3, 19):
        cache.add(size, plans[size])
    assert cache.find(3) is plans[3]  # used after all the others
    cache.add(19, plans[19])
    assert len(cache) == 14
    kept = {size for size in range(3, 20) if cache.find(size)}
    assert kept == {3, *range(7, 20)}


def test_bytes_are_bounded_and_the_newest_stays():
    plans = []
    for size in range(3, 9):
        plan = plan_of(size)
        own = weight(plan)
        plan.table = np.zeros(1000)
        plan.tables = [plan.table, np.zeros(50)]  # the former counts once
        assert weight(plan) == own + 8400
        plans.append(plan)
    cache = PlanCache(nbytes=44_000)
    for size, plan in enumerate(plans):
        cache.add(size, plan)
        assert cache.nbytes == sum(weight(plans[i]) for i in range(6) if cache.find(i)) <= 44_000
    assert [cache.find(size) is not None for size in range(6)] == [False] * 4 + [True] * 2
    plans[0].table = plans[0].tables = np.zeros(10_000)
    cache.add("large", plans[0])
    assert len(cache) == 1 and cache.find("large") is plans[0]
    cache.clear()
    assert not len(cache) and not cache.nbytes


def test_tables_of_plans_within_plans_are_counted():
    inner = ca.plan(ca.ConvProblem((1, 3, 40, 40), W.shape), algorithm="cpu.im2col.own")
    half = ca.plan(ca.ConvProblem((1, 3, 40, 40), W.shape, dtype="float16"), algorithm="cpu.im2col.own")
    assert weight(half) >= weight(inner) > 0


def test_threads_share_one_cache():
    cache, plans = PlanCache(count=8), [plan_of(size) for size in range(3, 23)]
    failed = []

    def use():
        try:
            for turn in range(300):
                at = turn % len(plans)
                assert cache.find(at) in (None, plans[at])
                cache.add(at, plans[at])
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=use) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not failed and len(cache) <= 8 and cache.nbytes == sum(k.nbytes for k in cache.kept.values())


# --- workspaces ------------------------------------------------------------------------------


def test_workspaces_of_many_shapes_are_bounded(monkeypatch):
    monkeypatch.setattr(workspaces, "most", lambda: 24 << 20)
    plans = []
    for size in range(300, 330, 3):
        problem = ca.ConvProblem((4, 3, size, size), W.shape, padding=1, dtype="float16")
        plan = ca.plan(problem, algorithm="cpu.direct")
        assert plan.workspace_bytes > workspaces.LARGE
        plan(images(size, 4, "f2"), W.astype("f2"))
        assert not plan._free  # a size that comes once
        plan(images(size, 4, "f2"), W.astype("f2"))
        plans.append(plan)
        kept = [p.workspace_bytes * len(p._free) for p in plans]
        assert sum(kept) == workspaces.workspace_bytes_held() <= 24 << 20
        assert kept[-1] > 0
    assert not plans[0]._free
    del plans[-4:], plan
    gc.collect()
    assert workspaces.workspace_bytes_held() == sum(p.workspace_bytes * len(p._free) for p in plans)
    ca.forget_plans()
    assert workspaces.workspace_bytes_held() == 0 and not any(p._free for p in plans)


def test_a_plan_that_lost_its_workspace_runs_again(monkeypatch):
    monkeypatch.setattr(workspaces, "most", lambda: 0)
    plan = ca.plan(ca.ConvProblem((4, 3, 300, 300), W.shape, dtype="float16"), algorithm="cpu.direct")
    x = images(300, 4, "f2")
    for _ in range(2):
        assert (plan(x, W.astype("f2")) == 27).all() and not plan._free


def test_results_do_not_depend_on_what_is_let_go_meanwhile():
    plan = ca.plan(ca.ConvProblem((1, 3, 96, 96), W.shape), algorithm="cpu.im2col.own")
    plan._counted = True
    failed, done = [], threading.Event()

    def use():
        for _ in range(100):
            if not (plan(images(96), W) == 27).all():
                failed.append("wrong")
        done.set()

    def let_go():
        while not done.is_set():
            workspaces.release_workspaces()

    threads = [threading.Thread(target=use), threading.Thread(target=use), threading.Thread(target=let_go)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not failed


@pytest.mark.parametrize(("given", "most"), [("1000", 1000), ("0", 0)])
def test_the_bound_is_settable(monkeypatch, given, most):
    monkeypatch.setenv("CONVALGOS_KEPT_BYTES", given)
    workspaces.most.cache_clear()
    try:
        assert workspaces.most() == most
        monkeypatch.setenv("CONVALGOS_KEPT_BYTES", "1 GB")
        workspaces.most.cache_clear()
        with pytest.raises(ValueError, match="CONVALGOS_KEPT_BYTES='1 GB' must be a number of bytes"):
            workspaces.most()
    finally:
        monkeypatch.undo()
        workspaces.most.cache_clear()
    assert 1 << 20 < workspaces.most() < 1 << 50


MEMORY = """
import numpy as np, convalgos as ca
def mib():
    import gc; gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**20
w = np.ones((8, 8, 3, 3), "f2")
ca.conv(np.ones((1, 8, 64, 64), "f2"), w, algorithm="cpu.direct")
before = mib()
for size in range(480, 540):  # each keeps (8, size, size) of float32: 8 MB
    ca.conv(np.ones((1, 8, size, size), "f2"), w, algorithm="cpu.direct")
full = mib()
ca.forget_plans()
print(full - before, mib() - before)
"""


@pytest.mark.skipif(
    not os.path.exists("/proc/self/statm"), reason="the system does not tell a process its size"
)
def test_a_process_stays_small_and_gives_memory_back():
    done = subprocess.run(
        [sys.executable, "-c", MEMORY],
        env={**os.environ, "CONVALGOS_KEPT_BYTES": str(32 << 20), "CONVALGOS_PROFILE": "avx2"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    full, after = map(float, done.stdout.split())
    assert full < 200  # of 480 that all outputs take, and the 64 that results leave
    assert after < 60  # and not the 500 that were kept before


def test_forgetting_lets_go_of_everything():
    ca.conv(images(400, 4), W)
    assert len(call_plans._plans)
    ca.forget_plans()
    assert not len(call_plans._plans) and not allocator._kept and not workspaces.workspace_bytes_held()


# --- names -----------------------------------------------------------------------------------


def test_only_public_names_are_shown():
    assert dir(ca) == sorted(ca.__all__)
    assert all(getattr(ca, name) is not None for name in dir(ca))
    shown = subprocess.run(
        [sys.executable, "-c", "import convalgos, pydoc; print(pydoc.plaintext.document(convalgos))"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    listed = shown.partition("PACKAGE CONTENTS")[2].partition("\nFUNCTIONS")[2]
    for name in ("conv", "plan", "forget_plans", "conv_backward_data", "capture"):
        assert f"\n    {name}(" in listed
    assert "import_module" not in listed and "    annotations" not in listed
