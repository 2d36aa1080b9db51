"""`cpu.separable`: ranks, dimensions, borders, and what it refuses."""

import numpy as np
import pytest
from helpers import check

import convalgos as ca
from convalgos.core.filter_patterns import pattern_of
from convalgos.select import find_algorithm
from convalgos.select.measure.accuracy import random_arrays

SEPARABLE = find_algorithm("cpu.separable")


@pytest.mark.parametrize(
    "text",
    [
        "n2 c3 h40 w150 k3 r7 s5 p3,2 groups3 rank2",
        "n1 c1 h9 w300 k1 r4 s9 p2:1,4 rank3 reflect",
        "n1 c2 h30 w20 k2 r15 s1 p7,0 groups2 rank1 constant fill2.5",
        "n1 c2 d7 h12 w40 k2 t3 r5 s4 p1,2,1:2 groups2 rank2 wrap,edge,symmetric",
        "n1 c2 d7 h12 w40 k2 t3 r2 s4 p1,1:0,1:2 groups2 rank1 constant fill-1 float64",
        "n1 c4 h20 w20 k4 r5 s5 groups4 box float64 convolution",
        "n1 c1 h12 w30 k1 r9 s9 p20 gaussian",
        "n1 c1 h3 w3 k1 r3 s3 p1 rank8",
        "n2 c3 h41 w331 k3 r7 s5 p3,2 stride2 groups3 rank2",
        "n1 c2 h40 w90 k6 r6 s9 p4 stride1,3 dilation3,2 groups2 rank1 reflect",  # three filters per map
        "n1 c1 h29 w400 k2 r2 s3 p1 stride5,4 rank1 constant fill2.5",  # steps longer than windows
        "n1 c2 d9 h12 w40 k4 t3 r4 s4 p2 stride2,3,10 dilation2,1,3 groups2 rank1 wrap float64",
        "n1 c1 h30 w70 k1 r9 s9 p8 stride3,1 dilation2,1 box convolution",
        "n2 c3 h40 w80 k3 r9 s11 p4,5 groups3 rank2~0.01",
        "n1 c2 d7 h12 w40 k2 t3 r5 s4 p1 groups2 rank2~0.02 float64",
    ],
)
def test_filters_of_few_products(text):
    problem = ca.ConvProblem.parse(text)
    check(SEPARABLE, problem, "reals", [(True, None), (False, "relu")])
    if problem.pattern in ("rank1", "box"):
        check(SEPARABLE, problem, "integers", [(True, "relu")])


def test_another_filter_is_refused_where_it_is_prepared():
    problem = ca.ConvProblem.parse("n1 c2 h20 w20 k2 r5 s5 groups2 rank1")
    _, w = random_arrays(problem)
    plan = ca.plan(problem, algorithm="cpu.separable")
    plan.prepare(w)
    w[1, 0, 2, 3] += 1
    with pytest.raises(ValueError, match=r"w\[1\] must be a sum of 1 outer products"):
        plan.prepare(w)
    assert ca.filter_pattern(w) == "rank2"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("n1 c2 h20 w20 k2 r5 s5 groups2", "needs a filter of pattern 'rank1' or 'gaussian' or 'box'"),
        ("n1 c2 h20 w20 k2 r5 s5 rank1", "a filter sums over several"),
        ("n1 c2 w20 k2 s5 groups2 rank1", "is a line"),
        ("n1 c2 h20 w20 k2 r5 s5 groups2 rank1 channels_last", "channels_first"),
        ("n1 c2 h20 w20 k2 r5 s5 groups2 rank1 float16", "computes float32 and float64 only"),
    ],
)
def test_refused(text, reason):
    assert reason in (SEPARABLE.why_not(SEPARABLE.computed(ca.ConvProblem.parse(text))) or "")


def test_what_leaves_out_some_of_a_filter_asks_for_a_limit():
    rows, columns = np.mgrid[-15:16, -15:16]
    w = (1 / (1 + np.exp((np.hypot(rows, columns) - 12) / 2))).astype(np.float32)[None, None]  # a soft disk
    pattern = ca.filter_pattern(w, 1e-2)
    assert pattern.startswith("rank2~") or pattern.startswith("rank3~")
    problem = ca.ConvProblem((1, 1, 300, 400), w.shape, padding=15, pattern=pattern)
    bound = SEPARABLE.error_bound(problem)
    sums = {"strict_nan": True}  # without transforms, which may be as fast
    assert ca.plan(problem, max_rel_error=1e-2, **sums).algorithm == "cpu.separable" and 1e-3 < bound <= 1e-2
    for limits in ({}, {"max_rel_error": bound / 2}, {"deterministic": True}):
        assert ca.plan(problem, **limits, **sums).algorithm != "cpu.separable"
    assert "max_rel_error" in str(ca.explain(problem))  # why it is out
    x = np.random.default_rng(0).standard_normal(problem.x_shape, np.float32)
    exact = ca.conv(x, w, padding=15)
    near = ca.conv(x, w, padding=15, max_rel_error=1e-2, **sums)  # which looks at the filter
    assert 1e-5 < np.abs(near - exact).max() / np.abs(exact).max() < bound
    assert np.abs(near - exact).max() <= pattern_of(pattern).left_out * np.abs(w).sum() * np.abs(x).max()


def test_large_filters_of_few_products_are_picked():
    large = ca.ConvProblem.parse("n1 c1 h512 w512 k1 r15 s15 p7 rank1")
    assert ca.plan(large).algorithm == "cpu.separable"
    assert ca.plan(large.replace(pattern="unstructured")).algorithm != "cpu.separable"
