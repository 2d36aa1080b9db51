"""Threads and profile may change while a program runs: choices change at once, and come back."""

import os
import subprocess
import sys

import numpy as np
import pytest

import convalgos as ca
from convalgos.api import planning
from convalgos.core.profiles import VARIABLE
from convalgos.core.setting import Variable, setting
from convalgos.cpu.reference import Reference
from convalgos.select import devices, registry

PROBLEM = ca.ConvProblem.parse("n1 c4 h9 w9 k4 r3 s3")
X, W = np.ones((1, 4, 9, 9), "f4"), np.ones((4, 4, 3, 3), "f4")


class Moody(Reference):
    """The fastest of all, but with one thread, or by the profile of AVX2, where it is the slowest."""

    family = "cpu.moody"

    def cost(self, problem, machine):
        return 1e9 if machine.threads == 1 or "profile avx2" in machine.source else 1e-12

    def least(self, problem, machine):
        return 0.0


@pytest.fixture
def moody(monkeypatch, wisdom):
    found = (*registry.algorithms("cpu"), Moody())
    monkeypatch.setattr(registry, "algorithms", lambda device=None: found)
    monkeypatch.setenv(VARIABLE, "avx512")
    ca.forget_plans()
    yield
    ca.forget_plans()


@pytest.fixture(params=["threads", "profile"])
def switched(request, monkeypatch):
    """Switches to one thread, or to another profile, and back."""
    if request.param == "profile":
        return lambda on: monkeypatch.setenv(VARIABLE, "avx2" if on else "avx512")
    numba = pytest.importorskip("numba", reason="sets the threads")
    threads = numba.get_num_threads()
    if threads == 1:
        pytest.skip("there is one thread only")
    request.addfinalizer(lambda: numba.set_num_threads(threads))
    return lambda on: numba.set_num_threads(1 if on else threads)


def shapes(count):
    return [PROBLEM.replace(x_shape=(1, 4, 9 + i, 9)) for i in range(count)]


def test_predictions_and_picks_follow_and_come_back(moody, switched):
    before = ca.explain(PROBLEM)
    picks = [ca.plan(p).algorithm for p in shapes(9)]  # chosen each by itself, then from buckets
    assert set(picks) == {"cpu.moody"} == {before.candidates[0].id}
    switched(True)
    now = ca.explain(PROBLEM)
    assert now.candidates[-1].id == "cpu.moody" != ca.plan(PROBLEM).algorithm
    predicted = {c.id: c.predicted_s for c in before.candidates}
    assert all(c.predicted_s != predicted[c.id] for c in now.candidates if c.id == "cpu.direct")
    assert "cpu.moody" not in {ca.plan(p).algorithm for p in shapes(9)}
    switched(False)
    assert str(ca.explain(PROBLEM)) == str(before)
    assert picks == [ca.plan(p).algorithm for p in shapes(9)]


def test_kept_plans_of_calls_follow_and_come_back(moody, switched, monkeypatch):
    made, plan = [], planning.plan
    monkeypatch.setattr(planning, "plan", lambda *a, **k: made.append(plan(*a, **k)) or made[-1])
    for on in (False, True, False, True):
        switched(on)
        assert (ca.conv(X, W) == 36).all()
        ca.signal.convolve(X[0, 0], W[0, 0])
    assert [p.algorithm == "cpu.moody" for p in made] == [True, False]


def test_figures_measured_anew_end_the_choices_by_the_old_ones(moody, monkeypatch):
    assert {ca.plan(p).algorithm for p in shapes(9)} == {"cpu.moody"}
    monkeypatch.setattr(Moody, "cost", lambda self, problem, machine: 1e9)
    ca.select.cost.cache_clear()
    devices.forget_figures()
    assert "cpu.moody" not in {ca.plan(p).algorithm for p in shapes(9)}


def test_the_threads_that_a_process_begins_with():
    code = "import convalgos as ca; print(ca.select.current_machine().threads)"
    environment = {**os.environ, "NUMBA_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout == "1\n", done.stderr


def test_a_variable_is_seen_as_it_changes(monkeypatch):
    variable = Variable("CONVALGOS_OF_A_TEST")
    assert variable.get() is None
    monkeypatch.setenv("CONVALGOS_OF_A_TEST", "größer")
    assert variable.get() == "größer"
    monkeypatch.delenv("CONVALGOS_OF_A_TEST")
    assert variable.get() is None
    monkeypatch.setenv(VARIABLE, "no such profile")
    assert os.fsdecode(setting()[1]) == "no such profile"
    with pytest.raises(ValueError, match="CONVALGOS_PROFILE='no such profile' must be one of"):
        ca.select.current_machine()
