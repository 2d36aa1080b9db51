"""The choice: what was measured decides, limits apply when it is made, and other rankers can be asked."""

import math
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

import convalgos as ca
from convalgos.api import planning
from convalgos.core.algorithm import Algorithm
from convalgos.core.errors import Unsupported
from convalgos.cpu.reference import Reference
from convalgos.select import devices, ranker, registry
from convalgos.select.constraints import Constraints
from convalgos.select.measure import race, table, timing
from convalgos.select.measure.accuracy import random_arrays
from convalgos.select.measured import Measured
from convalgos.select.ranking import Candidate

PROBLEM = ca.ConvProblem.parse("n1 c16 h12 w12 k16 r3 s3 p1")
NEAR = ca.ConvProblem.parse("n1 c16 h13 w12 k16 r3 s3 p1")
FAR = ca.ConvProblem.parse("n1 c16 h40 w40 k16 r3 s3 p1")
IDS = [c.id for c in ca.explain(PROBLEM).candidates]  # as predicted


def measured(seconds, spread=0.0, error=1e-8, **more):
    return Measured((seconds * (1 - spread), seconds, seconds, seconds * (1 + spread)), error=error, **more)


def record(problem=PROBLEM, **seconds):
    """Record times by the id, its dots written as double underscores."""
    found = {k.replace("__", "."): v if isinstance(v, Measured) else measured(v) for k, v in seconds.items()}
    devices.store().record(problem, found)


def ids(ranking):
    return [c.id for c in ranking.candidates]


# --- what was measured -----------------------------------------------------------------------


def test_without_wisdom_the_models_decide(wisdom):
    ranking = ca.explain(PROBLEM)
    assert ranking.basis == "predicted" and ids(ranking) == IDS
    assert all(c.measured_s is None and c.estimate_s == c.predicted_s for c in ranking.candidates)
    assert "measured" not in str(ranking) and "margin: " in str(ranking)
    assert f"->{IDS[0]} " in str(ranking)


@pytest.mark.parametrize(
    "text",
    [
        "n16 c64 w86253 k16 s5 p4 stride512 backward_weights float64",
        "n1 c256 w112529 k1 s3 stride160 backward_weights",
        "n16 c64 h788 w344 k1 r4 s61 stride8,160 channels_last backward_weights float64",
        "n16 c256 w26284 k2 s2 p1 stride16 backward_data",
        "n1 c256 w132621 k1 s2 stride64 dilation2 backward_data",
        "n16 c80 w381189 k80 s8 p7 stride512 dilation16 groups80 backward_data float64",
        "n16 c3 h638 w204 k2 r1 s2 p0,1 stride1,64 dilation1,16 channels_last backward_weights",
        "n4 c256 w276908 k1 s1 stride64 dilation16 float64",
        "n16 c80 d80 h20 w24 k1 t7 r2 s1 p6,1,0 stride160,512,4 dilation2,16,4",
    ],
)
def test_the_reference_is_not_picked_where_strides_pass_most_over(wisdom, text):
    """It converts and pads all of x, also what no output reads: 0.6 s where 9 ms were predicted."""
    candidates = ca.explain(ca.ConvProblem.parse(text)).candidates
    assert candidates[0].id != "cpu.reference"
    seconds = {c.id: c.predicted_s for c in candidates}
    assert seconds["cpu.reference"] > 1.5 * candidates[0].predicted_s


def test_what_was_measured_decides(wisdom):
    record(cpu__im2col__own=1e-6, cpu__direct=2e-6)
    ranking = ca.explain(PROBLEM)
    assert ids(ranking)[0] == "cpu.im2col.own" and ranking.basis == "measured"
    assert ca.plan(PROBLEM).algorithm == "cpu.im2col.own"
    assert ranking.candidates[0].measured_s == 1e-6 != ranking.candidates[0].predicted_s
    text = str(ranking)
    assert "measured time" in text and "faster than" in text and "as measured" in text
    assert sorted(ids(ranking)) == sorted(IDS)


def test_the_rest_is_as_much_slower_than_predicted_as_the_measured(wisdom):
    base = {c.id: c.predicted_s for c in ca.explain(PROBLEM).candidates}
    best, second, *_, last = IDS
    devices.store().record(PROBLEM, {second: measured(2 * base[second])})
    ranking = {c.id: c for c in ca.explain(PROBLEM).candidates}
    assert ranking[last].estimate_s == pytest.approx(2 * base[last], rel=1e-3)
    devices.store().record(PROBLEM, {second: measured(1e4)})  # disturbed; what promised more is not ruled out
    assert ids(ca.explain(PROBLEM))[0] == best


def test_failures_and_wrong_results_are_rejected_with_their_reason(wisdom):
    record(
        cpu__direct=Measured(failure="RuntimeError: no"),
        cpu__im2col__own=measured(1e-9, error=0.5),
        cpu__winograd__f2x3=1e-6,
    )
    ranking = ca.explain(PROBLEM)
    assert ids(ranking)[0] == "cpu.winograd.f2x3"
    why = {r.id: r.why_not for r in ranking.rejected}
    assert why["cpu.direct"] == "failed when it was measured: RuntimeError: no"
    assert why["cpu.im2col.own"].startswith("its error was 5.0e-01 when measured, over its bound")


def test_a_near_problem_is_scaled(wisdom):
    record(cpu__im2col__own=1e-9)
    near = ca.explain(NEAR)
    assert near.basis == "near" and near.near == PROBLEM
    assert near.candidates[0].id == "cpu.im2col.own"
    assert f"scaled from what was measured on {PROBLEM}" in str(near)
    assert near.candidates[0].measured_s is None
    assert ca.explain(FAR).basis == "predicted"
    record(NEAR, cpu__direct=1e-9)  # its own comes first
    assert ca.explain(NEAR).near is None


def test_ties_within_the_noise_are_resolved_in_a_fixed_order(wisdom):
    first, second = [i for i in IDS if i != "cpu.reference"][:2]
    for a, b in ((1.0, 1.005), (1.005, 1.0)):
        devices.store().record(PROBLEM, {first: measured(a * 1e-6), second: measured(b * 1e-6)})
        assert ids(ca.explain(PROBLEM))[:2] == [first, second]
    devices.store().record(PROBLEM, {first: measured(1.06e-6), second: measured(1e-6)})
    assert ids(ca.explain(PROBLEM))[0] == second
    noisy = {first: measured(1.04e-6, spread=0.3), second: measured(1e-6, spread=0.3)}
    devices.store().record(PROBLEM, noisy)
    assert ids(ca.explain(PROBLEM))[0] == first


def test_another_number_of_threads_is_another_machine(wisdom):
    numba = pytest.importorskip("numba", reason="sets the threads")
    threads = numba.get_num_threads()
    if threads == 1:
        pytest.skip("there is one thread only")
    record(cpu__im2col__own=1e-9)
    numba.set_num_threads(1)
    try:
        assert devices.store().lookup(PROBLEM) == {}
        record(cpu__direct=1e-9)
    finally:
        numba.set_num_threads(threads)
    assert devices.store().lookup(PROBLEM).keys() == {"cpu.im2col.own"}
    assert len(list(wisdom.glob("*.json"))) == 2


def test_conv_goes_by_what_was_measured_since(wisdom, monkeypatch):
    seen, built = [], Algorithm.built
    monkeypatch.setattr(Algorithm, "built", lambda a, *others: seen.append(a.id) or built(a, *others))
    x, w = random_arrays(PROBLEM)
    planning.forget_plans()
    ca.conv(x, w, padding=1)
    planning.remember(PROBLEM, {"cpu.im2col.own": measured(1e-9)})
    ca.conv(x, w, padding=1)
    ca.conv(x, w, padding=1)
    assert len(seen) == 2
    assert seen[0] != "cpu.im2col.own" == seen[1]


# --- replay ----------------------------------------------------------------------------------


def test_replay_runs_only_what_was_measured(wisdom):
    with pytest.raises(Unsupported, match=r"was not measured on this machine, of which 0 problems are known"):
        ca.plan(PROBLEM, on_miss="error")
    record(cpu__im2col__own=1e-3)
    assert ca.plan(PROBLEM, on_miss="error").algorithm == "cpu.im2col.own"
    with pytest.raises(Unsupported, match=rf"1 problems are known, the most similar being {PROBLEM}"):
        ca.plan(NEAR, on_miss="error")
    with pytest.raises(Unsupported, match=r"of the 1 candidates .* cpu\.im2col\.own: is denied by"):
        ca.plan(PROBLEM, on_miss="error", deny="cpu.im2col")
    for bad in ({"on_miss": "maybe"}, {"on_miss": "error", "effort": "measure"}):
        with pytest.raises(ValueError, match="on_miss='"):
            ca.plan(PROBLEM, **bad)


# --- limits ----------------------------------------------------------------------------------


class Odd(Reference):
    """A candidate with the properties that a test needs."""

    family = "cpu.odd"
    deterministic = False

    def cost(self, problem, machine):
        return 1e-12


@pytest.fixture
def odd(monkeypatch, wisdom):
    found = (*registry.algorithms("cpu"), Odd())
    monkeypatch.setattr(registry, "algorithms", lambda device=None: found)


def test_deterministic_rejects_and_tells_its_cost(odd):
    assert ca.explain(PROBLEM).candidates[0].id == "cpu.odd"
    ranking = ca.explain(PROBLEM, deterministic=True)
    assert ids(ranking) == IDS
    (out,) = [r for r in ranking.rejected if r.id == "cpu.odd"]
    assert out.why_not == "its sums differ in their last bits from run to run"
    assert ranking.costs["deterministic"] == pytest.approx(ranking.candidates[0].estimate_s / 1e-12)
    assert f"deterministic: {ranking.costs['deterministic']:.2f}x" in str(ranking)


def test_strict_nan_leaves_plain_sums(wisdom):
    ranking = ca.explain(PROBLEM, strict_nan=True)
    assert "cpu.direct" in ids(ranking) and "cpu.im2col.own" in ids(ranking)
    assert not any("fft" in i or "winograd" in i for i in ids(ranking))
    why = {r.id: r.why_not for r in ranking.rejected}
    assert why["cpu.winograd.f4x3"] == "a NaN in x would reach outputs beyond its footprint"
    assert ranking.costs["strict_nan"] >= 1
    with pytest.raises(Unsupported, match="beyond its footprint"):
        ca.plan(PROBLEM, algorithm="cpu.winograd.f4x3", strict_nan=True)


def test_allow_and_deny_take_families_and_ids(wisdom):
    assert set(ids(ca.explain(PROBLEM, allow="cpu.im2col"))) <= {
        f"cpu.im2col.{g}" for g in ("own", "blas", "mkl")
    }
    assert ids(ca.explain(PROBLEM, allow=["cpu.fft_tiles", "cpu.im2col.own"], deny=["cpu.fft_tiles"])) == [
        "cpu.im2col.own"
    ]
    assert not any(i.startswith("cpu.fft.") for i in ids(ca.explain(PROBLEM, deny="cpu.fft")))
    assert any(i.startswith("cpu.fft_tiles.") for i in ids(ca.explain(PROBLEM, deny="cpu.fft")))
    assert set(ids(ca.explain(PROBLEM, allow="cpu.direct"))) == {"cpu.direct", "cpu.direct.pixels"}
    assert "cpu.direct" in ids(ca.explain(PROBLEM, deny="cpu.direct.pixels"))
    assert not {"cpu.direct", "cpu.direct.pixels"} & set(ids(ca.explain(PROBLEM, deny="cpu.direct")))
    with pytest.raises(ValueError, match=r"deny='cpu\.magic' must be a family or an id"):
        ca.explain(PROBLEM, deny="cpu.magic")
    with pytest.raises(Unsupported, match=r"is not among allow=cpu\.depthwise"):
        ca.plan(PROBLEM, allow="cpu.depthwise")
    with pytest.raises(ValueError, match="allow=7"):
        ca.explain(PROBLEM, allow=7)


def test_a_limit_applies_when_it_is_asked_for_and_not_to_what_is_known(wisdom):
    """MIOpen#2947: what was measured under a small workspace must not decide without it."""
    needed = {c.id: c.workspace_bytes for c in ca.explain(PROBLEM).candidates}
    limit = min(needed["cpu.winograd.f4x3"], needed["cpu.winograd.f2x3"])
    small, large = sorted(("cpu.winograd.f4x3", "cpu.winograd.f2x3"), key=needed.__getitem__)
    assert needed[small] < needed[large]
    devices.store().record(PROBLEM, {small: measured(1e-5), large: measured(1e-6)})
    limited = ca.explain(PROBLEM, workspace_limit=limit, allow=["cpu.winograd.f2x3", "cpu.winograd.f4x3"])
    assert ids(limited) == [small]
    assert limited.costs["workspace_limit"] == pytest.approx(10.0)
    assert ca.plan(PROBLEM).algorithm == large


def test_few_calls_count_the_preparing_of_the_filter(wisdom):
    record(
        cpu__direct=measured(1e-5, prepare_s=1e-6),
        cpu__winograd__f4x3=measured(5e-6, prepare_s=1e-4),
    )
    assert ca.plan(PROBLEM).algorithm == "cpu.winograd.f4x3"
    assert ca.plan(PROBLEM, expected_calls=1000).algorithm == "cpu.winograd.f4x3"
    assert ca.plan(PROBLEM, expected_calls=2).algorithm == "cpu.direct"
    assert ca.plan(PROBLEM, weights_constant=False, expected_calls=1000).algorithm == "cpu.direct"
    first = ca.explain(PROBLEM, expected_calls=2).candidates[0]
    assert first.estimate_s == pytest.approx(1.05e-5)


@pytest.mark.parametrize(
    "bad",
    [{"expected_calls": 0}, {"expected_calls": "many"}, {"strict_nan": 1}, {"workspace_limit": math.nan}],
    ids=str,
)
def test_limits_that_are_refused(bad):
    ((name, value),) = bad.items()
    with pytest.raises(ValueError, match=f"{name}={value!r} must be"):
        ca.explain(PROBLEM, **bad)
    with pytest.raises(TypeError, match="speed"):
        ca.explain(PROBLEM, speed=1)


def test_every_transform_spreads_nan_and_no_plain_sum_does():
    others = (
        "cpu.depthwise.weights",  # multiplies by the zeros between its rows
        "cpu.depthwise.data",  # multiplies by zeros between phases, as the next by those of taps
        "cpu.direct.phases.filled",
        "cpu.polyphase",  # whose phases may go to transforms
        "cpu.recursive.pairs2",  # whose states keep it
        "cpu.recursive.pairs3",
        "cpu.int8x3",  # a block shares the unit of its digits
    )
    for a in registry.algorithms("cpu"):
        spreads = any(w in a.family for w in ("winograd", "fft", "fourier", "strassen")) or a.id in others
        assert a.spreads_nan == (spreads and not set(a.dtypes) <= {"int8", "uint8"}), a.id  # these have none
    assert not Constraints().active


def test_what_treats_equal_filters_otherwise_says_so():
    """`check_equal_filters` holds all others to it."""
    unequal = {a.id for a in registry.algorithms("cpu") if not a.equal_bits}
    assert unequal - {"cpu.polyphase"} == {  # whose phases go to anything
        "cpu.reference", "cpu.im2col.blas", "cpu.im2col.mkl", "cpu.strassen.s2", "cpu.strassen.s4"
    }  # fmt: skip
    problem = ca.ConvProblem.parse("n1 c40 h12 w13 k70 r1 s1")
    x = np.random.default_rng(0).standard_normal(problem.x_shape).astype("f4")
    w = np.repeat(x[0, None, :, :1, :1], problem.K, 0)  # one filter, 70 times
    y = ca.plan(problem, algorithm="cpu.strassen.s2")(x, w)
    assert not (y == y[:, :1]).all()
    ranking = ca.explain(problem, equal_bits=True)
    assert not {c.id for c in ranking.candidates} & unequal
    rejected = {r.id: r.why_not for r in ranking.rejected}
    assert rejected["cpu.strassen.s2"] == "equal filters would give unequal bits"


# --- rankers ---------------------------------------------------------------------------------


@pytest.fixture
def registered(monkeypatch, wisdom):
    monkeypatch.setattr(ranker, "_rankers", dict(ranker._rankers))


def test_a_ranker_decides_alone(registered):
    record(cpu__direct=1e-9)
    ca.select.register(
        "last", lambda problem, candidates, machine: [-1 / c.predicted_s + 1e12 for c in candidates]
    )
    assert (
        ids(ca.explain(PROBLEM, selector="last"))[0]
        == min(ca.explain(PROBLEM, selector="analytic").candidates, key=lambda c: -1 / c.predicted_s).id
    )
    assert ca.plan(PROBLEM, selector="analytic").algorithm == IDS[0]
    assert "measured" not in str(ca.explain(PROBLEM, selector="last"))


def test_rankers_that_are_refused(registered):
    for name in ("two words", "analytic", "", 7):
        with pytest.raises(ValueError, match="must be a word"):
            ca.select.register(name, lambda *a: [])
    with pytest.raises(TypeError, match="must be callable"):
        ca.select.register("mine", [1.0])
    with pytest.raises(ValueError, match="selector='mine' must be one of analytic"):
        ca.plan(PROBLEM, selector="mine")
    ca.select.register("short", lambda problem, candidates, machine: [1.0])
    ca.select.register("wrong", lambda problem, candidates, machine: [float("nan") for _ in candidates])
    for name in ("short", "wrong"):
        with pytest.raises(ValueError, match="a number of seconds for each"):
            ca.explain(PROBLEM, selector=name)


# --- measuring -------------------------------------------------------------------------------


class Timed(Reference):
    """Takes the seconds that it is told, by a clock of the test."""

    clock = 0.0
    runs: ClassVar[dict] = {}
    seconds: ClassVar[dict] = {}

    def __init__(self, name):
        object.__setattr__(self, "name", name)

    @property
    def id(self):
        return f"cpu.timed.{self.name}"

    @property
    def spins(self):
        return self.name == "spins"

    def serve(self, problem):
        if self.name == "broken":
            raise RuntimeError("it is broken")
        if self.name == "full":
            raise MemoryError

        right = super().serve(problem)

        class Run:
            prepare = right.prepare

            def __call__(run, x, w, out):
                right(x, w, out=out)
                Timed.runs[self.name] = Timed.runs.get(self.name, 0) + 1
                Timed.clock += Timed.seconds[self.name]

        return Run()


@pytest.fixture
def run_race(monkeypatch):
    Timed.clock, Timed.runs = 0.0, {}
    monkeypatch.setattr(race.time, "perf_counter", lambda: Timed.clock)
    monkeypatch.setattr(race.time, "sleep", lambda s: None)

    def run(times, predicted=None, **options):
        Timed.seconds = times
        candidates = [Candidate.of(Timed(n), PROBLEM, s) for n, s in (predicted or times).items()]
        return race.race(PROBLEM, candidates, **options)

    return run


def test_a_race_costs_about_twenty_runs(run_race):
    times = {f"c{i:02d}": 1.0 + i / 100 for i in range(30)}
    found = run_race(times)
    assert 10 <= Timed.clock <= 23
    assert found["cpu.timed.c00"].median_s == 1.0


def test_slow_ones_are_abandoned_and_hopeless_ones_never_run(run_race, monkeypatch):
    monkeypatch.setattr(race, "RUNS", 20)
    found = run_race(
        {"a": 1.0, "b": 5.0, "c": 2.5, "d": 1.01, "e": 1.0},
        {"a": 1.0, "b": 1.1, "c": 1.2, "d": 1.3, "e": 9.0},
    )
    assert Timed.runs["b"] == 1 and Timed.runs["c"] == 2 and "e" not in Timed.runs
    assert Timed.runs["d"] > 2 and Timed.runs["a"] > 2
    assert found.keys() == {"cpu.timed.a", "cpu.timed.b", "cpu.timed.c", "cpu.timed.d"}
    assert found["cpu.timed.b"].samples_s == (5.0,)  # what it cost to find out is remembered


def test_what_takes_long_to_prepare_is_left_out(run_race):
    times = {"a": 1.0, "b": 1.0, "c": 1.0}
    candidates = [
        replace(Candidate.of(Timed(n), PROBLEM, s), prepare_s=100.0 * (n == "b")) for n, s in times.items()
    ]
    Timed.seconds = times
    found = race.race(PROBLEM, candidates)
    assert found.keys() == {"cpu.timed.a", "cpu.timed.c"}
    found = race.race(PROBLEM, candidates, time_budget=1000.0)
    assert found.keys() == {"cpu.timed.a", "cpu.timed.b", "cpu.timed.c"}


def test_budgets_are_honoured(run_race):
    times = dict.fromkeys("abcdef", 1.0)
    run_race(times, time_budget=0.0)
    assert Timed.runs == {"a": 2}  # the first is always timed
    Timed.runs, Timed.clock = {}, 0.0
    run_race(times, time_budget=100.0)
    assert Timed.clock <= 103 and min(Timed.runs.values()) > 10
    Timed.runs, Timed.clock = {}, 0.0
    run_race(times, runs_budget=5.0)
    assert Timed.clock <= 7


def test_failures_are_told_and_a_full_memory_is_not(run_race):
    found = run_race({"broken": 1.0, "full": 1.0, "a": 1.0})
    assert found.keys() == {"cpu.timed.broken", "cpu.timed.a"}
    assert found["cpu.timed.broken"].failure == "RuntimeError: it is broken"


def test_those_that_disturb_others_come_last_and_only_if_they_promise_much(run_race):
    order = []
    told = lambda what, share: order.append(what.rpartition(".")[2])  # noqa: E731
    run_race({"spins": 1.0, "a": 1.0, "b": 1.0}, {"spins": 1.0, "a": 1.05, "b": 1.1}, progress=told)
    assert order[:3] == ["a", "b", "spins"]
    Timed.runs = {}
    run_race({"spins": 1.0, "a": 1.0}, {"a": 1.0, "spins": 1.5})
    assert "spins" not in Timed.runs


def test_measuring_is_remembered_and_not_repeated(wisdom, monkeypatch):
    calls = []
    true_race = race.race
    monkeypatch.setattr(
        race, "race", lambda p, c, **k: calls.append([x.id for x in c]) or true_race(p, c, **k)
    )
    plan = ca.plan(PROBLEM, effort="measure", time_budget=30.0)
    known = devices.store().lookup(PROBLEM)
    assert plan.algorithm in known and "measured" in plan.explain()
    assert len(calls[0]) == len(IDS)
    again = ca.plan(PROBLEM, effort="measure", time_budget=10.0)
    assert again.algorithm == plan.algorithm and calls[1] == []
    assert devices.store().lookup(PROBLEM) == known
    assert ca.plan(PROBLEM).algorithm == ca.plan(PROBLEM, on_miss="error").algorithm == again.algorithm


def test_estimate_measures_nothing(wisdom, monkeypatch):
    def never(*arguments, **more):
        raise AssertionError("timed in a call that did not ask for it")

    for module, name in ((race, "race"), (table, "time_candidates"), (timing, "interleave")):
        monkeypatch.setattr(module, name, never)
    x, w = random_arrays(PROBLEM)
    ca.plan(PROBLEM)
    ca.explain(PROBLEM)
    ca.conv(x, w, padding=1)
    assert not wisdom.exists()


def test_find_is_remembered(wisdom):
    table = ca.find(PROBLEM, allow=["cpu.im2col.blas", "cpu.im2col.own"])
    assert {r.algorithm for r in table.rows} == {"cpu.im2col.blas", "cpu.im2col.own"}
    known = devices.store().lookup(PROBLEM)
    assert known.keys() == {"cpu.im2col.blas", "cpu.im2col.own"}
    assert all(m.error < 1e-5 and m.prepare_s > 0 and m.version for m in known.values())
    raced = ca.find(NEAR, effort="measure", allow=["cpu.im2col.blas", "cpu.im2col.own"])
    assert raced.rows and all(r.error <= r.error_bound for r in raced.rows)
    assert all(r.algorithm in str(raced) for r in raced.rows)
    with pytest.raises(ValueError, match="effort='estimate'"):
        ca.find(PROBLEM, effort="estimate")
