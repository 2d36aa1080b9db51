"""Choosing for ever new shapes: the same picks as the full ranking, or those of the class of a shape."""

import math
import random
from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest
from helpers import random_problems

import convalgos as ca
from convalgos.api import call_plans
from convalgos.core.algorithm import Algorithm
from convalgos.core.wrapped_plans import EmptyPlan
from convalgos.select import choose, devices, estimate, registry, shape_buckets
from convalgos.select.constraints import Constraints
from convalgos.select.measured import Measured, family
from convalgos.select.search import filled_outputs, search
from convalgos.tools.bench.suites import suites

FREE = Constraints()
SUITE = [layer.problem for layers in suites().values() for layer in layers]


def shapes(count, text="c32 k64 r5 s5 p2"):
    rng = random.Random(1)
    rest = ca.ConvProblem.parse(f"n1 h9 w9 {text}")
    return [
        rest.replace(x_shape=(rng.randint(1, 8), rest.C, rng.randint(10, 90), rng.randint(10, 90)))
        for _ in range(count)
    ]


@pytest.fixture(autouse=True)
def fresh(wisdom):
    shape_buckets.forget_choices()


@pytest.fixture
def pick(monkeypatch):
    """The algorithm that a choice takes; its plan is not built."""
    monkeypatch.setattr(Algorithm, "built", lambda a, p, computed, choice: EmptyPlan(p, a).chosen(choice))
    return lambda problem: choose.choose_plan(problem, "cpu", FREE).algorithm


# --- one shape -------------------------------------------------------------------------------


def test_a_bound_is_one():
    figures = devices.current_machine()
    clocks = [
        n * figures.paced_cycles / figures.threads for n in (1, 2)
    ]  # two vectors of products in n cycles
    machines = cycle([replace(figures, clock=clock) for clock in clocks])
    for problem, machine in zip(SUITE + shapes(20) + random_problems(100), machines, strict=False):
        for a in registry.algorithms("cpu"):
            if a.why_not(problem) is None:
                bound = max(a.least(problem, machine), a.closely(problem, machine))
                assert bound <= a.cost(problem, machine) * (1 + 1e-9), (a.id, str(problem))
                least = a.least(problem, machine)
                assert a.least_of_all(problem, machine) <= least * (1 + 1e-9), (a.id, str(problem))
            else:
                assert a.least(problem, machine) >= 0


@pytest.mark.parametrize(
    "constraints",
    [FREE, Constraints(strict_nan=True), Constraints(workspace_limit=1 << 18), Constraints(expected_calls=1)],
    ids=["free", "strict_nan", "workspace", "once"],
)
def test_the_choice_is_that_of_the_full_ranking(constraints):
    for problem in (
        SUITE[len(str(constraints)) % 8 :: 8] + shapes(2) + random_problems(40, seed=str(constraints.active))
    ):
        first = [c.algorithm for c in choose.rank(problem, "cpu", constraints).candidates[:1]]
        assert [c.algorithm for c in search(problem, "cpu", constraints)[:1]] == first


def test_candidates_that_come_close_are_all_found():
    for problem in SUITE[::12] + random_problems(40, seed=11):
        rates = {
            c.id: c.estimate_s / filled_outputs(problem, c.algorithm.granule(c.computed))
            for c in choose.rank(problem, "cpu", FREE).candidates
        }
        close = [i for i, rate in rates.items() if rate <= 1.25 * min(rates.values())]
        found = [c.id for c in search(problem, "cpu", FREE, slack=1.25, per_output=True)]
        assert found == sorted(close, key=lambda i: (rates[i], i)), str(problem)


def test_bounds_are_close_enough_for_a_choice_to_ask_for_few_costs(monkeypatch):
    asked = []
    cost = estimate.cost_of
    monkeypatch.setattr(estimate, "cost_of", lambda a, *given: asked.append(a.id) or cost(a, *given))
    problems = SUITE + random_problems(100)
    for problem in problems:
        search(problem, "cpu", FREE)
    assert len(asked) < 3.5 * len(problems)  # of some 20 that serve


def test_few_candidates_are_asked_for_their_cost(monkeypatch):
    asked = []
    cost = estimate.cost_of
    monkeypatch.setattr(estimate, "cost_of", lambda a, *given: asked.append(a.id) or cost(a, *given))
    problem = ca.ConvProblem.parse("n8 c128 h28 w28 k128 r3 s3 p1")
    search(problem, "cpu", FREE)
    assert not any(i.startswith("cpu.fft.") for i in asked)
    assert len(asked) < len(choose.rank(problem).candidates)


def test_nothing_serves():
    rounded = ca.ConvProblem.parse("n1 c4 w9 k4 s3 compute_tf32")
    assert search(rounded, "cpu", FREE) == []
    with pytest.raises(ca.Unsupported, match="not in tf32"):
        ca.plan(rounded)


# --- many shapes -----------------------------------------------------------------------------


def test_the_first_shapes_are_exact_and_repeat():
    problems = shapes(shape_buckets.EXACT)
    picks = [ca.plan(p).algorithm for p in problems]
    assert picks == [ca.explain(p).candidates[0].id for p in problems]
    shapes_later = shapes(20)[shape_buckets.EXACT :]
    later = [ca.plan(p).algorithm for p in shapes_later]
    assert picks == [ca.plan(p).algorithm for p in problems]
    assert later == [ca.plan(p).algorithm for p in shapes_later]


def test_a_bucket_does_not_depend_on_what_came_before(pick):
    problems = shapes(40)

    def picks(order):
        shape_buckets.forget_choices()
        for p in shapes(shape_buckets.EXACT, "c32 k64 r5 s5 p1"):
            pick(p)
        return {str(p): pick(p) for p in order}

    forward, backward = picks(problems), picks(problems[::-1])
    ends = {str(p) for p in problems[: shape_buckets.EXACT] + problems[-shape_buckets.EXACT :]}
    assert {k: v for k, v in forward.items() if k not in ends} == {
        k: v for k, v in backward.items() if k not in ends
    }


def test_1000_shapes_take_few_searches_and_lose_little(pick, monkeypatch):
    searched = []
    monkeypatch.setattr(choose, "search", lambda p, *a, **k: searched.append(p) or search(p, *a, **k))
    machine, lost = devices.current_machine(), []
    for i, p in enumerate(shapes(1000)):
        algorithm = registry.find_algorithm(pick(p))
        if i % 25 == 24:
            best = search(p, "cpu", FREE)[0].predicted_s
            lost.append(math.log(estimate.cost(algorithm, p, machine) / best))
    assert len(searched) <= 20
    assert math.exp(sum(lost) / len(lost)) < 1.05
    assert max(lost) < math.log(1.5)


def test_what_is_kept_is_bounded_and_forgotten(pick, monkeypatch):
    monkeypatch.setattr(shape_buckets, "LAYERS", 3)
    monkeypatch.setattr(shape_buckets, "BUCKETS", 4)
    for c in range(1, 8):
        for w in range(9, 90, 9):
            pick(ca.ConvProblem.parse(f"n1 c{c} w{w} k4 s3"))
    assert len(shape_buckets._layers) == 3 and len(shape_buckets._buckets) == 4
    assert all(len(layer.chosen) == shape_buckets.EXACT for layer in shape_buckets._layers.values())
    ca.forget_plans()
    assert not shape_buckets._layers and not shape_buckets._buckets


def test_a_kernel_larger_than_the_shape_of_a_bucket():
    layer = family(ca.ConvProblem.parse("n1 c4 w100 k4 s70"))
    assert shape_buckets.shape_of(layer, (1, 64)) is None
    for w in range(71, 110, 3):  # 64 stands for them all
        assert ca.plan(ca.ConvProblem.parse(f"n1 c4 w{w} k4 s70")).problem.spatial == (w,)


@pytest.mark.parametrize(
    "how",
    [
        {"padding": 1},
        {"padding": "same", "stride": 2},
        {"padding": ((2, 0), (1, 3)), "stride": (2, 1), "dilation": 2},
        {"padding": 2, "boundary": "reflect"},
        {"padding": 1, "groups": 2, "mode": "convolution"},
    ],
    ids=str,
)
def test_many_sizes_by_turns(how):
    """Each problem is that of its own call, and each result that of its own sizes."""
    rng, w = np.random.default_rng(3), np.arange(-27, 27, dtype="f4")
    w = w.reshape(3 if how.get("groups", 1) == 1 else 6, -1, 3, 3)
    c = w.shape[1] * how.get("groups", 1)
    maps = [rng.integers(-4, 5, (1, c, h, 40 - h)).astype("f4") for h in range(8, 32)]
    for turn in range(2):
        for x in maps if turn else reversed(maps):
            problem = ca.ConvProblem(x.shape, w.shape, **how)
            of_call = call_plans.plan_for(
                x.shape, w.shape, how.get("stride", 1), how["padding"], how.get("dilation", 1),
                how.get("groups", 1), how.get("mode", "cross_correlation"), "channels_first", x.dtype, "auto",
                "cpu", "forward", False, None, None, how.get("boundary", "zero"),
            ).problem  # fmt: skip
            assert of_call == problem and hash(of_call) == hash(problem) and of_call.flops == problem.flops
            wanted = ca.plan(problem, algorithm="cpu.reference")(x, w)
            np.testing.assert_allclose(ca.conv(x, w, **how), wanted, rtol=1e-4, atol=1e-2)


def test_buckets_ask_nothing_of_what_cannot_serve():
    """Tiles of int8 are of layers without a stride."""
    for size in range(10, 18):
        made = ca.plan(ca.ConvProblem.parse(f"n1 c12 h{size} w{size} k16 r3 s3 stride3 int8"))
        assert made.problem.spatial == (size, size)


@pytest.mark.parametrize("seen", [0, shape_buckets.EXACT + 3], ids=["new layer", "known layer"])
def test_nothing_is_asked_twice_of_the_pick(pick, monkeypatch, seen):
    """Whether it serves, and what it costs where that is not scaled from another shape."""
    *before, problem = shapes(seen + 1)
    for p in before:
        pick(p)
    asked = []

    def count(algorithm, name):
        true = getattr(type(algorithm), name)

        def counted(self, p, *more):
            if p == problem:
                asked.append((name, self.id))
            return true(self, p, *more)

        monkeypatch.setattr(type(algorithm), name, counted)

    for kind in {type(a): a for a in registry.algorithms("cpu")}.values():
        for name in ("why_not", "cost"):
            if getattr(type(kind), name) is not getattr(Algorithm, name):
                count(kind, name)
    estimate.cost.cache_clear()
    picked = pick(problem)
    assert asked.count(("why_not", picked)) == 1
    assert asked.count(("cost", picked)) == (seen == 0)
    assert len(asked) == len(set(asked))


def test_a_near_shape_that_was_measured_decides(wisdom):
    known, near, far = shapes(3)
    near = known.replace(x_shape=(known.N, known.C, known.spatial[0] + 1, known.spatial[1]))
    devices.store().record(known, {"cpu.im2col.own": Measured((1e-9,) * 5)})
    assert ca.plan(near).algorithm == "cpu.im2col.own"
    assert f"cpu.im2col.own by what suits {known}, scaled" in ca.plan(near).explain()
    assert ca.plan(known).algorithm == "cpu.im2col.own"
    assert ca.plan(far).algorithm != "cpu.im2col.own"
    ca.wisdom.forget()
    assert ca.plan(near).algorithm != "cpu.im2col.own"


def test_limits_have_classes_of_their_own():
    for p in shapes(12):
        ca.plan(p)
        plan = ca.plan(p, strict_nan=True)
        assert not any(word in plan.algorithm for word in ("fft", "winograd"))
        small = ca.plan(p, workspace_limit=1_000_000)
        assert small.workspace_bytes <= 1_000_000


def test_a_granule_divides_what_is_computed():
    problem = ca.ConvProblem.parse("n1 c16 h12 w12 k16 r3 s3 p1")
    granules = {a.id: a.granule(problem) for a in registry.algorithms("cpu") if a.why_not(problem) is None}
    assert granules["cpu.winograd.f4x3"] == (4, 4) and granules["cpu.fft_tiles.t16"] == (14, 14)
    assert granules["cpu.direct"] == (1, 1)
    line = ca.ConvProblem.parse("n1 c16 w40 k16 s3 dilation2")
    assert registry.find_algorithm("cpu.winograd.f4x3").granule(line) == (8,)
    volume = ca.ConvProblem.parse("n1 c16 d4 h12 w12 k16 t3 r3 s3")
    assert registry.find_algorithm("cpu.winograd.f2x3").granule(volume) == (1, 2, 2)
