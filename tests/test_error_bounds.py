"""What errors are relative to where outputs are few and small, and what they are beyond a type."""

import warnings

import numpy as np
import pytest
from helpers import may_serve

import convalgos as ca
from convalgos.core.errors import missing
from convalgos.core.plan import numpy_dtype
from convalgos.core.problem import DIRECTIONS
from convalgos.cpu.reference import answer, deviation, error_scale
from convalgos.select import algorithms_on, find_algorithm
from convalgos.select.measure.accuracy import AccuracyCheck

ONE_SUM = [  # in each direction a problem of one output, the sum of a few products
    ca.ConvProblem.parse("n1 c2 w1 k1 s1 stride2"),
    ca.ConvProblem.parse("n1 c1 w1 k2 s1 backward_data"),
    ca.ConvProblem.parse("n2 c1 d1 h1 w1 k1 t1 r1 s1 backward_weights"),
]
HALVES = [ca.ConvProblem.parse(f"n2 c3 h9 w8 k5 r3 s3 p1 float16 {d}") for d in DIRECTIONS]


def each_candidate(problems):
    served = [(p, a) for p in problems for a in algorithms_on("cpu", p.direction) if may_serve(a, p)]
    ids = [f"{p.direction}-{a.id}" for p, a in served]
    return pytest.mark.parametrize(("problem", "algorithm"), served, ids=ids)


def plan_or_skip(algorithm, problem):
    if reason := next(filter(None, map(missing, algorithm.needs)), None):
        pytest.skip(reason)
    return algorithm.serve(problem)


@each_candidate(ONE_SUM)
def test_a_sum_that_cancels_errs_by_the_size_of_its_products(problem, algorithm):
    plan, rng = plan_or_skip(algorithm, problem), np.random.default_rng(0)
    first, second, _ = problem.array_shapes
    for _ in range(25):
        x, w = (rng.standard_normal(shape).astype(np.float32) for shape in (first, second))
        w.flat[1] = -x.flat[0] * w.flat[0] / x.flat[1]  # rounded: a little is left of the sum
        y = answer(problem, x, w)
        assert AccuracyCheck(problem, arrays=(x, w)).error(plan(x, w)) <= algorithm.error_bound(problem)
        if problem.direction != "backward_weights":
            bias = np.float32(-y).reshape(1) + np.float32(1e-6)  # cancels once more, below and above zero
            expected = np.maximum(y + bias, 0)
            off = deviation("float32", plan(x, w, bias=bias, activation="relu"), expected).max()
            assert off <= algorithm.error_bound(problem) * error_scale(problem, x, w, y + bias)


@each_candidate(HALVES)
def test_what_is_beyond_float16_is_infinite_without_a_word(problem, algorithm):
    plan, rng = plan_or_skip(algorithm, problem), np.random.default_rng(0)
    x, w = ((150 * rng.standard_normal(s)).astype(np.float16) for s in problem.array_shapes[:2])
    exact = answer(problem, x, w)
    beyond = np.abs(exact) > 65600
    assert beyond.any() and not beyond.all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = plan(x, w)
    assert np.array_equal(found[beyond], np.sign(exact[beyond]) * np.inf)
    assert np.isfinite(found[np.abs(exact) < 65400]).all()
    assert AccuracyCheck(problem, arrays=(x, w)).error(found) < problem.eps


def test_the_gradient_of_the_bias_beyond_float16():
    x, dy = np.ones((1, 1, 90, 90), np.float16), np.full((1, 1, 90, 90), 9, np.float16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, db = ca.conv_backward_weights(x, dy, (1, 1, 1, 1), return_bias=True)
    assert db.dtype == np.float16 and np.isposinf(db).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_infinity_counts_as_the_least_that_rounds_to_it(dtype):
    bits = {"float16": 0x7BFF, "bfloat16": 0x7F7F}[dtype]  # of the largest number
    below, largest = np.array([bits - 1, bits], np.uint16).view(numpy_dtype(dtype)).astype(float)
    half = (largest - below) / 2
    found = np.array([np.inf, -np.inf, np.inf, largest, np.nan])
    exact = np.array([2 * largest, -largest - half, largest, np.inf, 1.0])
    off = deviation(dtype, found, exact)
    assert np.array_equal(off, [0, 0, half, half, np.nan], equal_nan=True)
    assert deviation("float32", np.array([np.inf]), np.array([1.0])) == np.inf


def test_bounds_mostly_hold_relative_to_the_largest_output_alone():
    """Of these sums of two products and a bias 21 were over a bound that knew nothing of their number."""
    problem = ca.ConvProblem.parse("n1 c2 w1 k1 s1 stride2")
    algorithm = find_algorithm("cpu.direct")
    plan, rng, over = algorithm.serve(problem), np.random.default_rng(1), 0
    for _ in range(2000):
        x, w = (rng.standard_normal(s, np.float32) for s in problem.array_shapes[:2])
        bias = rng.standard_normal(1, np.float32)
        exact = answer(problem, x, w) + bias
        error = np.abs(plan(x, w, bias=bias) - exact).max() / np.abs(exact).max()
        over += error > algorithm.error_bound(problem)
    assert over < 10
