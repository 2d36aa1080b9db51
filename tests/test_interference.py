"""What other programs disturb is taken again, and where that does not help it is not remembered."""

import multiprocessing
import time
import tracemalloc
import warnings
from dataclasses import replace

import numpy as np
import pytest

import convalgos as ca
from convalgos.core import interference
from convalgos.core.interference import Samples
from convalgos.cpu.reference import Reference
from convalgos.select import devices
from convalgos.select.measure import accuracy, race, remembered, timing
from convalgos.select.measure.backends import Backend
from convalgos.select.measure.table import time_candidates
from convalgos.select.measured import Measured
from convalgos.select.ranking import Candidate, Ranking

PROBLEM = ca.ConvProblem.parse("n1 c4 h9 w9 k4 r3 s3 p1")
true_disturbed = interference.Meter.disturbed


class Scripted(Reference):
    """Right, or wrong, in seconds of a script; what is left of it is said again and again at its end."""

    def __init__(self, name, right=True):
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "right", right)

    @property
    def id(self):
        return f"cpu.scripted.{self.name}"

    def serve(self, problem):
        inner = super().serve(problem)

        def run(x, w, out):
            inner(x, w, out=out)
            if not self.right:
                out[..., -1] = 0  # at a border of the map only

        run.name, run.prepare = self.name, inner.prepare
        return Called(run, inner.prepare)


class Called:
    def __init__(self, run, prepare):
        self.run, self.prepare = run, prepare

    def __call__(self, x, w, out):
        Place.running = self.run.name
        self.run(x, w, out)


class Place(Backend):
    """Gives each call the seconds that a script says; a complex number is a disturbed sample."""

    idle = warm_up = 0.0
    running = ""

    def __init__(self, **scripts):
        self.scripts = {name: list(script) for name, script in scripts.items()}
        self.runs = dict.fromkeys(scripts, 0)

    def seconds(self, call):
        return self.next(call).real

    def next(self, call):
        call()
        script = self.scripts[Place.running]
        self.runs[Place.running] += 1
        return complex(script.pop(0) if len(script) > 1 else script[0])

    def sample(self, call, samples):
        took = self.next(call)
        samples.add(took.real, took.imag != 0)
        return took.real


@pytest.fixture
def hurried(monkeypatch):
    monkeypatch.setattr(race.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(interference, "AGREE", 1.5)


def candidates(place, wrong=(), predicted=1e-5):
    return [Candidate.of(Scripted(n, n not in wrong), PROBLEM, predicted) for n in place.scripts]


def run_race(place, wrong=(), predicted=1e-5, **options):
    return race.race(PROBLEM, candidates(place, wrong, predicted), backend=place, **options)


SLOWED = 8e-3 + 1j  # 10 us of which 8 ms were those of others

# --- of a race -------------------------------------------------------------------------------


def test_a_race_takes_disturbed_samples_again(hurried):
    place = Place(a=[SLOWED] * 4 + [1e-5], b=[1e-5, SLOWED, 1e-5])
    found = run_race(place)
    assert found.keys() == {"cpu.scripted.a", "cpu.scripted.b"}
    for known in found.values():
        assert set(known.samples_s) == {1e-5} and len(known.samples_s) >= 3


def test_what_is_disturbed_all_the_time_is_given_up_and_told(hurried, wisdom):
    place = Place(a=[SLOWED], b=[1e-5])
    with pytest.warns(RuntimeWarning, match=r"other programs ran meanwhile; .*: cpu\.scripted\.a$"):
        found = run_race(place)
    assert found.keys() == {"cpu.scripted.b"}
    assert place.runs["a"] < 60  # it is bounded


def test_times_that_do_not_agree_are_not_believed(hurried):
    """Where the system tells nothing of others: a call that is now slow, now slower."""
    place = Place(a=[1e-3, 8e-3, 2e-2] * 100, b=[1e-5])
    with pytest.warns(RuntimeWarning, match=r": cpu\.scripted\.a$"):
        assert run_race(place).keys() == {"cpu.scripted.b"}
    settled = Place(a=[8e-3, 1e-5, 8e-3, 8e-3, 8e-3, 1e-5], b=[1e-5])
    assert run_race(settled)["cpu.scripted.a"].median_s == 1e-5


def test_a_single_sample_of_a_short_call_must_be_near_its_prediction(hurried):
    short = {"time_budget": 0.0}
    assert run_race(Place(a=[2e-5]), **short)["cpu.scripted.a"].samples_s == (2e-5,)
    with pytest.warns(RuntimeWarning, match="other programs"):
        assert run_race(Place(a=[8e-3]), **short) == {}
    assert run_race(Place(a=[0.5]), **short)["cpu.scripted.a"].samples_s == (0.5,)  # of a long one not


def test_a_short_one_is_not_abandoned_by_one_sample(hurried):
    place = Place(a=[1e-5], b=[2e-2, 1e-5])  # whose first call was slow
    found = run_race(place)
    assert len(found["cpu.scripted.b"].samples_s) >= 3


# --- of a table ------------------------------------------------------------------------------


def table(place, wrong=(), **options):
    ranking = Ranking(PROBLEM, tuple(candidates(place, wrong)), ())
    return time_candidates(ranking, check=accuracy.AccuracyCheck(PROBLEM, place), **options)


def test_a_table_takes_disturbed_samples_again_and_keeps_none(hurried):
    place = Place(a=[1e-5] * 6 + [SLOWED] * 9 + [1e-5], b=[SLOWED], c=[1e-5])
    found = table(place)
    rows = {row.algorithm: row for row in found.rows}
    assert set(rows["cpu.scripted.a"].samples_s) == {1e-5} and rows["cpu.scripted.a"].believable
    assert rows["cpu.scripted.b"].median_s == 8e-3 and not rows["cpu.scripted.b"].believable
    with pytest.warns(RuntimeWarning, match=r": cpu\.scripted\.b$"):
        assert remembered.of_table(found).keys() == {"cpu.scripted.a", "cpu.scripted.c"}


# --- wrong results ---------------------------------------------------------------------------


@pytest.mark.parametrize("brief", [False, True])
def test_a_wrong_result_is_never_remembered_as_a_time(hurried, wisdom, monkeypatch, brief):
    if brief:
        of_large_problems = replace(accuracy.BRIEF, flops=0)
        monkeypatch.setattr(accuracy, "BRIEF", of_large_problems)
    place = Place(a=[1e-5], b=[2e-5])
    with pytest.warns(RuntimeWarning, match=r"cpu\.scripted\.a is wrong on n1 c4 h9 w9 .*its error was"):
        found = run_race(place, wrong="a")
    assert found["cpu.scripted.a"].failure and not found["cpu.scripted.a"].samples_s
    assert found["cpu.scripted.b"].error <= 1e-5
    assert place.runs["a"] == 1
    with pytest.warns(RuntimeWarning, match=r"cpu\.scripted\.a is wrong on"):
        kept = remembered.of_table(table(place, wrong="a"))
    assert kept["cpu.scripted.a"].failure and kept["cpu.scripted.b"].median_s > 0


def test_plan_find_and_tune_do_not_take_what_is_wrong(wisdom, monkeypatch):
    """A kernel that leaves some of its result unwritten, as one that is wrong on a shape."""
    from convalgos.tools.bench import tune

    pick = ca.plan(PROBLEM).algorithm
    made = type(ca.plan(PROBLEM, algorithm=pick))
    true_run = made.run

    def run(self, x, w, bias, activation, y, workspace):
        true_run(self, x, w, bias, activation, y, workspace)
        if self.algorithm == pick:
            y[..., -1] = 0

    monkeypatch.setattr(made, "run", run)
    for measured in (
        lambda: ca.plan(PROBLEM, effort="measure", time_budget=0.5).algorithm,
        lambda: ca.find(PROBLEM, effort="measure", time_budget=0.5).rows[0].algorithm,
        lambda: tune.tune(PROBLEM, effort="measure", time_budget=0.5).after,
        lambda: ca.find(PROBLEM, time_budget=0.5) and ca.plan(PROBLEM).algorithm,
    ):
        ca.wisdom.forget()
        with pytest.warns(RuntimeWarning, match=f"{pick} is wrong on"):
            assert measured() != pick
        assert devices.store().lookup(PROBLEM)[pick].failure
        assert ca.plan(PROBLEM).algorithm != pick


@pytest.mark.parametrize("text", ["n1 c8 h30 w30 k8 r3 s3 p1", "n3 c2 w50 k2 s5 backward_weights float16"])
def test_samples_of_a_result_lie_at_its_borders_too(monkeypatch, text):
    monkeypatch.setattr(accuracy, "BRIEF", replace(accuracy.BRIEF, flops=0))
    problem = ca.ConvProblem.parse(text)
    check = accuracy.AccuracyCheck(problem, arrays=accuracy.repeating_arrays(problem), brief=True)
    y = ca.plan(problem, algorithm="cpu.reference")(check.x, check.w)
    assert check.error(y) < 1e-3
    for axis in range(y.ndim):
        for end in (0, -1):
            wrong = y.copy()
            np.moveaxis(wrong, axis, 0)[end] = 0
            assert check.error(wrong) > 1e-2


# --- how it is told --------------------------------------------------------------------------


def test_one_sample_is_told_as_one_and_ties_as_the_noisiest(wisdom):
    one, many = Measured((1e-3,)), Measured((1.04e-3,) * 9)
    assert one.ties(many) and many.ties(one)  # within the noise that a sample may have
    assert not many.ties(Measured((1e-3,) * 9))
    assert not one.ties(Measured((1.2e-3,) * 9))
    devices.store().record(PROBLEM, {"cpu.direct": one})
    assert "1 sample" in str(ca.explain(PROBLEM)) and "1 sample" in ca.wisdom.show(PROBLEM)
    assert "0%" not in ca.wisdom.show(PROBLEM)
    assert timing.spread_told((1.0,)) == "1 sample" and timing.spread_told((1.0, 1.0)) == "0.0%"


# --- what the system tells -------------------------------------------------------------------


def spin(until):
    while time.monotonic() < until:
        pass


def test_neighbours_on_the_core_are_noticed(monkeypatch):
    """With twice as many busy processes as cores no long call has a core to itself."""
    monkeypatch.setattr(interference.Meter, "disturbed", true_disturbed)
    context = multiprocessing.get_context("fork")
    until = time.monotonic() + 1.0
    others = [context.Process(target=spin, args=(until,)) for _ in range(2 * multiprocessing.cpu_count())]
    for other in others:
        other.start()
    found = []
    while time.monotonic() < until - 0.3:
        meter = interference.Meter()
        spin(time.monotonic() + 0.05)
        found.append(meter.disturbed())
    for other in others:
        other.join()
    assert sum(found) >= len(found) / 2


def test_a_sleep_is_not_the_work_of_a_call(monkeypatch):
    monkeypatch.setattr(interference.Meter, "disturbed", true_disturbed)
    meter = interference.Meter()
    time.sleep(0.02)
    assert meter.disturbed()


def test_samples_agree():
    samples = Samples()
    for seconds, disturbed in ((1e-5, False), (8e-3, True), (1.1e-5, False)):
        samples.add(seconds, disturbed)
    assert not samples.enough and samples.best == 1e-5
    samples.add(1.2e-5, False)
    assert samples.believable and samples.all == (1e-5, 1.1e-5, 1.2e-5)


# --- memory ----------------------------------------------------------------------------------


def test_measuring_holds_one_result_at_a_time_and_nothing_afterwards(wisdom):
    problem = ca.ConvProblem.parse("n1 c1 h800 w800 k1 r1 s1")  # 2.6 MB read, 2.6 MB written
    place = Place(a=[1e-5], b=[1e-5], c=[1e-5], d=[1e-5], e=[1e-5], f=[1e-5])
    tracemalloc.start()
    try:
        began = tracemalloc.get_traced_memory()[0]
        for measured in (
            lambda: race.race(problem, candidates(place), backend=place),
            lambda: time_candidates(
                Ranking(problem, tuple(candidates(place)), ()), check=accuracy.AccuracyCheck(problem, place)
            ),
        ):
            tracemalloc.reset_peak()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                measured()
            now, peak = tracemalloc.get_traced_memory()
            assert now - began < 1e6
            assert peak - began < 11 * problem.y_bytes  # x, y, an answer, and a run of the reference: 10
    finally:
        tracemalloc.stop()
