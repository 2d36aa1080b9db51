"""Transforms whose plans are estimates until their runs have paid for the search."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import convalgos as ca
from convalgos.core.errors import missing
from convalgos.core.later_search import searches_later, searching_later
from convalgos.cpu.spectral import engines

pytestmark = pytest.mark.skipif(
    missing("llvmlite") is not None or engines.why_not_engine("fftw") is not None, reason="no FFTW"
)
PROBLEM = ca.ConvProblem.parse("n1 c1 h150 w160 k1 r30 s31")


def check(y, expected):
    assert np.abs(y - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.fixture
def searches(monkeypatch):
    """The lengths that are searched for, as of a process that knows none."""
    found = []
    monkeypatch.setattr(engines, "keep_wisdom", lambda prefix: found.append(prefix))
    monkeypatch.setattr(engines, "learn_wisdom", lambda prefix: None)
    library = engines._library("fftw")
    for prefix in engines.PREFIX.values():
        engines._function(library, f"{prefix}_forget_wisdom")()
    engines._transform.cache_clear()
    yield found
    engines._transform.cache_clear()


def test_only_what_may_come_once_waits(searches):
    with searching_later():
        transform = engines.plan_transform("fftw", "float32", (1, 40, 48))
        assert searches_later() and not transform.is_settled
    assert not searches and not searches_later()
    assert engines.plan_transform("fftw", "float32", (1, 40, 48)) is transform
    assert transform.is_settled and len(searches) == 1
    with searching_later():  # where wisdom tells the plans, nothing waits
        engines._transform.cache_clear()
        assert engines.plan_transform("fftw", "float32", (1, 40, 48)).is_settled
        assert engines.plan_transform("fftw", "float32", (1, 4, 4)).is_settled  # as small ones do


def test_runs_pay_for_the_search(searches, monkeypatch):
    monkeypatch.setattr(engines, "WORTH", 1e6)
    with searching_later():
        plan = ca.plan(PROBLEM, algorithm="cpu.fft.fftw")
    transform = plan._transform
    x, w = (np.random.default_rng(0).standard_normal(s) for s in (PROBLEM.x_shape, PROBLEM.w_shape))
    x, w = x.astype("f"), w.astype("f")
    expected = ca.conv(x.astype("d"), w.astype("d"), algorithm="cpu.direct")
    prepared = plan.prepare(w)
    for _ in range(3):
        check(plan(x, prepared), expected)
    assert not transform.is_settled and not searches
    estimated = transform.forward
    transform._left = 0.0
    check(plan(x, prepared), expected)  # the run that pays
    assert transform.is_settled and transform.forward != estimated and len(searches) == 1
    check(plan(x, prepared), expected)


def test_threads_run_on_while_one_searches(searches, monkeypatch):
    with searching_later():
        plan = ca.plan(PROBLEM, algorithm="cpu.fft.fftw")
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-4, 5, s).astype("f") for s in (PROBLEM.x_shape, PROBLEM.w_shape))
    expected, prepared = plan(x, w), plan.prepare(w)
    plan._transform._left = 1e-9
    begun, may_end = threading.Event(), threading.Event()
    search = engines.Transform._plan
    monkeypatch.setattr(
        engines.Transform, "_plan",
        lambda self, later: (begun.set(), may_end.wait(20), search(self, later)),
    )  # fmt: skip
    with ThreadPoolExecutor(4) as pool:
        pays = pool.submit(plan, x, prepared)
        try:
            assert begun.wait(20)
            for y in pool.map(lambda _: plan(x, prepared), range(40), timeout=10):
                check(y, expected)
            assert not pays.done() and not plan._transform.is_settled
        finally:
            may_end.set()
        check(pays.result(), expected)
    assert plan._transform.is_settled and len(searches) == 1
    check(plan(x, prepared), expected)


def test_bound_runs_search_at_once(searches):
    with searching_later():
        plan = ca.plan(PROBLEM, algorithm="cpu.fft.fftw")
    x, w = np.ones(PROBLEM.x_shape, "f"), np.ones(PROBLEM.w_shape, "f")
    y, estimated = np.empty(PROBLEM.y_shape, "f"), plan._transform.forward
    bound = plan.bind(x, plan.prepare(w), y)
    assert plan._transform.is_settled and len(searches) == 1
    bound.run()
    check(y, np.full(PROBLEM.y_shape, 930.0))
    assert bound.launches  # kernels, which networks run without Python
    assert plan._transform.forward != estimated and plan.record["transform"] == plan._transform.forward


def test_plans_that_are_searched_for_are_called_at_once(searches):
    with searching_later():
        assert ca.plan(PROBLEM, algorithm="cpu.fft.fftw")._quick is None
    assert ca.plan(PROBLEM, algorithm="cpu.fft.fftw")._quick is not None


def test_calls_of_signals_and_convolutions_wait(searches, monkeypatch):
    made = []
    settled = engines.Transform.settle
    monkeypatch.setattr(engines.Transform, "settle", lambda self: made.append(self) or settled(self))
    x, w = np.ones((1, 1, 150, 160)), np.ones((1, 1, 30, 31))
    ca.forget_plans()
    check(ca.conv(x, w, algorithm="cpu.fft.fftw"), np.full((1, 1, 121, 130), 930.0))
    assert not searches and not made
