"""Strided gradients of the input slice by slice: how they are cut, and that the cut changes nothing."""

from itertools import product

import numpy as np
import pytest
from helpers import KINDS, check

import convalgos as ca
from convalgos.core.backward.polyphase import phases
from convalgos.cpu.backward import interleave, slices
from convalgos.cpu.backward.subproblems import subproblems
from convalgos.cpu.layout import streaming
from convalgos.cpu.runtime.threads import SingleThreaded
from convalgos.select import algorithms_on, current_machine, find_algorithm
from convalgos.select.measure.accuracy import random_arrays

numba = pytest.importorskip("numba")

LONE = [
    a
    for a in algorithms_on("cpu", "backward_data")
    if isinstance(getattr(a, "inner", None), SingleThreaded) and "channels_first" in a.inner.reads
]
PROBLEMS = (
    "n5 c6 h9 w8 k4 r3 s3 p1 stride2",
    "n4 c5 h11 w40 k3 r5 s4 p0:1,2:0 stride2",  # rows of several vectors
    "n4 c18 h12 w13 k18 r3 s3 p1 stride2 groups18",
    "n1 c23 h9 w70 k23 r5 s5 p2 stride2 groups23",  # groups that slices do not divide
    "n2 c36 h7 w9 k18 r3 s3 p1 stride2,1 groups18",
    "n4 c3 h10 w9 k4 r1 s1 stride2",  # three phases that no tap reaches
    "n4 c4 h11 w12 k4 r2 s2 stride5 groups4",
    "n4 c5 h13 w14 k3 r4 s4 p1 stride3",
    "n4 c4 h15 w17 k4 r7 s7 p3 stride4 groups4",
    "n4 c2 w35 k6 s5 p2 stride2 dilation2 groups2",
    "n4 c3 h6 w1 k4 r3 s1 p1,0 stride2",
    "n4 c3 d5 h6 w7 k4 t3 r3 s3 p1 stride2",
    "n2 c8 d4 h5 w6 k8 t1 r3 s3 p0,1,1 stride1,2,2 groups8",
)


@pytest.fixture(params=["in place", "around the caches"])
def stored(request, monkeypatch):
    """Each way in which dx is stored, in slices of one image or few groups."""
    monkeypatch.setattr(slices, "cache_sizes", lambda: (1 << 9, 1 << 9, 1 << 20))
    monkeypatch.setattr(interleave, "cache_sizes", lambda: (1 << 9, 1 << 9, 1 << 20))
    monkeypatch.setattr(streaming, "STREAMED_SLICES", 0 if request.param == "around the caches" else 1)
    slices.cut_for.cache_clear()
    yield
    slices.cut_for.cache_clear()


def cut_of(algorithm, problem):
    return algorithm.slicing(problem)


@pytest.mark.parametrize("algorithm", LONE, ids=lambda a: a.id)
def test_answers_in_slices(algorithm, stored):
    served = 0
    for text, layout, dtype in product(PROBLEMS, ("channels_first", "channels_last"), ("float32", "float64")):
        problem = ca.ConvProblem.parse(text).replace(layout=layout, dtype=dtype, direction="backward_data")
        if algorithm.why_not(problem) is None and cut_of(algorithm, problem):
            served += 1
            for kind in KINDS:
                check(algorithm, problem, kind)
    assert served


def test_the_last_slice_overlaps_the_one_before():
    problem = ca.ConvProblem.parse("n7 c10 h4 w4 k10 r3 s3 p1 stride2 groups10 backward_data")
    assert slices.Slicing(problem, 3, 10).starts == ([0, 3, 4], [0])
    cut = slices.Slicing(problem, 1, 4)
    assert cut.starts == ([0, 1, 2, 3, 4, 5, 6], [0, 4, 6])
    assert str(cut.slice) == "n1 c4 h4 w4 k4 r3 s3 p1 stride2 groups4 backward_data"
    assert cut.share(3) == 7 * 10 / (3 * 7 * 4)  # 21 slices, 12 groups for 10


def test_slices_fit_the_cache_and_fill_the_threads(monkeypatch):
    problem = ca.ConvProblem.parse("n8 c96 h112 w112 k96 r3 s3 p1 stride2 groups96 backward_data")
    (rows,) = (a for a in LONE if a.id == "cpu.depthwise.rows")
    cut = cut_of(rows, problem)
    assert cut.images == 1 and cut.bytes <= slices.cache_sizes()[1]
    assert rows.workspace_bytes(problem) < problem.x_bytes / 8
    plan = rows.plan(problem)
    assert plan.workspace_bytes == rows.workspace_bytes(problem)
    monkeypatch.setattr(slices, "plan_threads", lambda: 64)  # 3 images are nothing for so many
    (direct,) = (a for a in LONE if a.id == "cpu.direct")
    dense = ca.ConvProblem.parse("n3 c64 h56 w56 k64 r3 s3 p1 stride2 backward_data")
    assert cut_of(direct, dense) is None
    assert cut_of(direct, dense.replace(stride=1)) is None


def test_the_same_bits_with_any_number_of_threads():
    threads = numba.get_num_threads()
    texts = ("n6 c5 h21 w33 k7 r3 s3 p1 stride2", "n1 c40 h20 w30 k40 r5 s5 p2 stride2 groups40")
    found = []
    for count in (1, threads):
        numba.set_num_threads(count)
        try:
            for algorithm, text in product(LONE, texts):
                problem = ca.ConvProblem.parse(text).replace(direction="backward_data")
                if algorithm.why_not(problem) is None:
                    dy, w = random_arrays(problem)
                    found.append((count, algorithm.id, text, algorithm.serve(problem)(dy, w)))
        finally:
            numba.set_num_threads(threads)
    half = len(found) // 2
    assert {name for _, name, _, _ in found} == {a.id for a in LONE}
    for (_, name, text, alone), (_, _, _, together) in zip(found[:half], found[half:], strict=True):
        assert np.array_equal(alone, together), f"{name} on {text}"


def test_a_bias_of_one_call_does_not_stay():
    problem = ca.ConvProblem.parse("n4 c3 h10 w9 k4 r1 s1 stride2 backward_data")
    dy, w = random_arrays(problem)
    plan = ca.plan(problem, algorithm="cpu.direct")
    alone = plan(dy, w)
    bias = np.array([1, -2, 3], np.float32)
    biased = plan(dy, w, bias=bias)
    np.testing.assert_array_equal(biased[:, :, 1], np.broadcast_to(bias[:, None], (4, 3, 9)))
    active = plan(dy, w, bias=bias, activation="relu")
    np.testing.assert_array_equal(active[:, :, 1], np.broadcast_to(np.maximum(bias, 0)[:, None], (4, 3, 9)))
    np.testing.assert_array_equal(plan(dy, w), alone)


# --- phases computed together ----------------------------------------------------------------

FEW = (
    "n4 c3 h12 w13 k5 r7 s7 p3 stride2",
    "n5 c1 h11 w40 k6 r5 s5 p0:1,2:0 stride2",
    "n4 c4 h14 w11 k3 r2 s2 stride2",  # windows that end where dy does
    "n4 c3 h19 w23 k4 r11 s11 stride4",
    "n4 c2 h9 w8 k3 r6 s3 p2:3,1 stride3,1 dilation1,2",
    "n4 c1 w37 k6 s10 stride5",
    "n1 c3 d8 h6 w7 k3 t7 r3 s1 p3,1,0 stride2,1,1",
)


@pytest.mark.parametrize("algorithm", ["cpu.direct", "cpu.direct.pixels", "cpu.winograd.f4x3"])
def test_phases_of_few_channels_together(algorithm, stored):
    served = 0
    for text, layout in product(FEW, ("channels_first", "channels_last")):
        problem = ca.ConvProblem.parse(text).replace(layout=layout, direction="backward_data")
        found = find_algorithm(algorithm, problem)
        (subproblem,) = found.subproblems(problem)
        assert len(subproblem.phases) == len(phases(problem)) > 1
        (apart,) = found.variants(problem)
        assert apart.id == f"{algorithm}.apart"
        for tried in (found, apart):
            if tried.why_not(problem) is None:
                served += 1
                assert find_algorithm(tried.id, problem) == tried
                for kind in KINDS:
                    check(tried, problem, kind)
    assert served


def test_phases_are_together_where_it_spares_more_than_it_costs():
    for text in (
        "n1 c8 h9 w9 k4 r4 s4 p1 stride2",  # 36 taps for 16
        "n1 c4 h9 w9 k4 r7 s7 p3 stride2 groups4",
        "n1 c3 h9 w9 k4 r1 s1 stride2",  # phases without taps
        "n1 c3 h19 w19 k4 r7 s7 p3 stride2 dilation3",  # phases that meet different rows of dy
        "n1 c3 h9 w9 k4 r7 s7 p3",
    ):
        problem = ca.ConvProblem.parse(text).replace(direction="backward_data")
        assert len(subproblems(problem, 0.0)) == len(phases(problem))
        assert [p.phases for p in subproblems(problem, 2.0)] == [(p,) for p in phases(problem)]


def test_phases_stay_apart_where_a_nan_must_not_spread():
    problem = ca.ConvProblem.parse("n1 c3 h32 w32 k8 r7 s7 p3 stride2 backward_data")
    dy, w = random_arrays(problem)
    dy[0, 0, 8, 8] = np.nan
    plan = ca.plan(problem, strict_nan=True)
    assert plan.algorithm.endswith(".apart")
    reached = np.isnan(plan(dy, w)).any((0, 1))
    rows = (np.arange(32) >= 16 - 3) & (np.arange(32) < 16 + 4)
    np.testing.assert_array_equal(reached, rows[:, None] & rows)


def test_sums_of_many_channels_stay_apart():
    problem = ca.ConvProblem.parse("n1 c8 h9 w9 k4 r5 s5 p2 stride2 backward_data")
    direct, winograd = (find_algorithm(i, problem) for i in ("cpu.direct", "cpu.winograd.f4x3"))
    assert len(direct.subproblems(problem)) == 4
    assert [str(f) for f in winograd.forwards(problem)] == ["n1 c4 h5 w5 k32 r3 s3 p1"]
    assert winograd.why_not(problem) is None
    check(winograd, problem, "reals")


# --- many phases -----------------------------------------------------------------------------


def test_equal_phases_are_priced_and_planned_once(monkeypatch):
    """A stride of thousands has thousands of phases, of which a few differ: to choose took 4 s."""
    problem = ca.ConvProblem.parse("n1 c8 w5446 k8 s439 p438 stride439 dilation8 groups8 backward_data")
    algorithm = find_algorithm("cpu.im2col.own", problem)
    forwards = algorithm.forwards(problem)
    assert len(forwards) == 439
    assert len({id(f) for f in forwards}) == len(set(forwards)) < 20
    asked = []
    cost = type(algorithm.inner).cost
    monkeypatch.setattr(type(algorithm.inner), "cost", lambda a, p, m: asked.append(p) or cost(a, p, m))
    assert algorithm.cost(problem, current_machine()) > 0
    assert len(asked) == len(set(asked)) < 20
    plan = algorithm.plan(problem)
    assert len({id(p) for p in plan._plans}) < 20


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize(
    "text",
    [
        "n2 c4 w300 k4 s43 p42 stride43 dilation3 groups4",
        "n1 c6 w700 k5 s40 stride20",
        "n2 c3 h30 w40 k2 r9 s20 stride8,16",
        "n1 c2 h21 w33 k2 r2 s3 stride9,16 groups2",
    ],
)
def test_many_phases(text, layout):
    problem = ca.ConvProblem.parse(text).replace(layout=layout, direction="backward_data")
    for name in ("cpu.im2col.own", "cpu.direct", "cpu.depthwise.channels"):
        algorithm = find_algorithm(name, problem)
        if algorithm.why_not(problem) is None:
            check(algorithm, problem)
