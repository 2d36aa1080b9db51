"""Number formats chosen like algorithms: what is converted, what it costs, and how far the answer is off."""

import numpy as np
import pytest
from click.testing import CliRunner

import convalgos as ca
from convalgos.cpu.layout.converted import Converted, format_error
from convalgos.cpu.reference import Reference, reference
from convalgos.cpu.runtime import quantise
from convalgos.testing import Guarded
from convalgos.tools.cli.main import main

LAYERS = (
    "n2 c5 h9 w8 k7 r3 s3 p1",
    "n1 c64 h7 w9 k20 r1 s1 channels_last",
    "n1 c6 h12 w11 k6 r5 s5 p0:2,3:1 stride2 groups6",
    "n1 c3 w40 k4 s7 dilation2 convolution",
)


def arrays(problem, seed=0):
    rng = np.random.default_rng(seed)
    x, w = (rng.standard_normal(shape, np.float32) for shape in (problem.x_shape, problem.w_shape))
    return x, w, rng.standard_normal(problem.K, np.float32)


@pytest.mark.parametrize("text", LAYERS)
@pytest.mark.parametrize("activation", [None, "relu", "silu"])
def test_int8_is_within_its_bound_and_near_the_best_that_eight_bits_give(text, activation):
    problem = ca.ConvProblem.parse(text)
    algorithm = Converted(Reference(), "int8")
    x, w, bias = arrays(problem)
    exact = reference(problem, x, w, bias)
    if activation == "relu":
        exact = np.maximum(exact, 0)
    if activation == "silu":
        exact = exact / (1 + np.exp(-exact))
    last = problem.layout == "channels_last"
    plan = algorithm.serve(problem)
    found = plan(np.moveaxis(x, 1, -1) if last else x, plan.prepare(w), bias=bias, activation=activation)
    assert found.dtype == np.float32
    error = np.abs((np.moveaxis(found, -1, 1) if last else found) - exact).max() / np.abs(exact).max()
    assert 0 < error <= algorithm.error_bound(problem)


@pytest.mark.parametrize("text", LAYERS[:2])
def test_a_pick_in_another_format_is_within_its_bound(text):
    problem = ca.ConvProblem.parse(text)
    x, w, bias = arrays(problem)
    x = np.ascontiguousarray(np.moveaxis(x, 1, -1)) if problem.layout == "channels_last" else x
    exact = ca.plan(problem, algorithm="cpu.reference")(x, w, bias=bias)
    for precision in ("bfloat16", "int8"):
        ranking = ca.explain(problem, precisions=precision)
        if not ranking.candidates:
            assert precision == "bfloat16"  # which needs instructions of its own
            continue
        plan = ca.plan(problem, precisions=precision)
        assert plan.algorithm == ranking.candidates[0].id and plan.algorithm.endswith(f".as_{precision}")
        found = plan(x, plan.prepare(w), bias=bias)
        assert 0 < np.abs(found - exact).max() / np.abs(exact).max() <= ranking.candidates[0].error_bound
        assert np.array_equal(ca.plan(problem, algorithm=plan.algorithm)(x, w, bias=bias), found)


def test_a_bias_beyond_the_sums_is_added_in_float32():
    problem = ca.ConvProblem.parse(LAYERS[0])
    plan = Converted(Reference(), "int8").serve(problem)
    x, w, bias = arrays(problem)
    far = bias * np.float32(1e9)
    assert np.allclose(plan(x, w, bias=far), far.reshape(-1, 1, 1), rtol=1e-6)
    assert (plan(x, w, bias=-np.abs(far), activation="relu") == 0).all()


def test_zeros_stay_zeros_and_what_has_no_range_is_not_a_number():
    problem = ca.ConvProblem.parse(LAYERS[0])
    plan = Converted(Reference(), "int8").serve(problem)
    x, w, _ = arrays(problem)
    assert (plan(np.zeros_like(x), w) == 0).all()
    for value in (np.nan, np.inf, -np.inf):
        x[1, 2, 3, 4] = value
        assert np.isnan(plan(x, w)).all()
    w[3, 0, 0, 0] = np.nan
    found = plan(np.ones_like(x), w)
    assert np.isnan(found[:, 3]).all() and np.isfinite(np.delete(found, 3, axis=1)).all()


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 100, 70_001])
@pytest.mark.parametrize("shift", [-9.0, 0.0, 9.0])
def test_numbers_become_the_nearest_of_their_range(count, shift):
    x = (np.random.default_rng(count).standard_normal(count) + shift).astype(np.float32)
    out = Guarded((count,), np.dtype(np.uint8))
    scale, zero_point = quantise.quantise(x, out.array)
    assert out.intact()
    low, high = min(0, x.min(initial=0)), max(0, x.max(initial=0))
    assert scale == pytest.approx((high - low) / 255 or 1.0)
    back = (out.array.astype(np.float64) - zero_point) * scale
    # a step at the ends: the zero point is rounded
    assert np.abs(back - x).max(initial=0) <= 1.01 * scale
    assert np.mean(np.abs(back - x) > 0.501 * scale) < 0.05 if count else True


def test_one_ranking_across_formats(monkeypatch):
    problem = ca.ConvProblem.parse("n1 c64 h28 w28 k64 r3 s3 p1")
    ranking = ca.explain(problem, precisions=("float32", "bfloat16", "int8"), max_rel_error=5e-3)
    formats = {c.precision for c in ranking.candidates}
    assert "float32" in formats
    assert all(c.error_bound <= 5e-3 for c in ranking.candidates)
    assert "int8" not in formats and format_error(problem, "int8") > 5e-3 > format_error(problem, "bfloat16")
    bounds = [c.error_bound for c in ranking.frontier]
    assert bounds == sorted(bounds, reverse=True) and ranking.frontier[0] is ranking.candidates[0]
    assert {c.precision for c in ca.explain(problem).candidates} == {"float32"}


@pytest.mark.parametrize(
    ("text", "precisions", "told"),
    [
        (LAYERS[0], ("float32", "int4"), "precisions='int4' must be one of 'float32'"),
        (LAYERS[0] + " float64", "int8", "a choice for a float32 problem, forward, on the CPU"),
        (LAYERS[0] + " backward_data", ("float32", "int8"), "a choice for a float32 problem, forward"),
    ],
)
def test_what_cannot_be_chosen_is_refused(text, precisions, told):
    with pytest.raises(ValueError, match=told):
        ca.plan(ca.ConvProblem.parse(text), precisions=precisions)


def test_the_page_draws_error_against_time(tmp_path):
    path = tmp_path / "page.html"
    given = ["explain", LAYERS[0], "--precision", "float32", "--precision", "bfloat16", "--html", str(path)]
    told = CliRunner().invoke(main, given)
    assert told.exit_code == 0, told.output
    text = path.read_text()
    assert "Error against time" in text and "cpu.direct" in text and "relative to max|y|" in text
