"""Winograd's products as sums of three bfloat16 or digits, as exact as in float32, in boxes of any height."""

import numpy as np
import pytest

from convalgos.core.layouts import laid, to_logical
from convalgos.core.problem import ConvProblem
from convalgos.cpu.reference import reference
from convalgos.cpu.vectors import matrix_tiles
from convalgos.cpu.winograd import Winograd, WinogradPlan, one_box

M, R = 4, 3
MAP = ConvProblem.parse("n1 c40 h13 w18 k50 r3 s3 p1 blocked16")
BOXES = {  # cuts along images, slices, rows and columns, and whether a team shares each box
    "n1 c40 h13 w18 k50 r3 s3 p1 blocked16": ((1, 1, 2, 1), False),  # 10 tiles: one matrix tile
    "n2 c64 h30 w22 k160 r3 s3 p1 blocked16": ((1, 1, 2, 2), True),  # 24 tiles, split between products
    "n1 c33 h28 w23 k20 r3 s3 p1 channels_last": (
        (1, 1, 1, 1),
        True,
    ),  # 42: three, and one panel of one vector
    "n1 c96 h14 w24 k288 r3 s3 p1 groups3": ((1, 1, 1, 1), False),
    "n1 c32 h33 w36 k136 r5 s5 p2 stride2 blocked16": (
        (1, 1, 1, 1),
        True,
    ),  # phases, of which points lack some
    "n3 c64 w70 k200 s3 p1 channels_last": ((2, 1, 1, 1), False),  # 1-D
}


SHARES = {"bf16x3": 1 / 10, "int8x3": 1 / 2}  # of the error bound, which a term that is left out would exceed


def split_or_skip(problem, form="int8x3"):
    split = Winograd(M, R, split=form)
    if reason := split.why_not(problem):
        pytest.skip(f"{split.id} {reason}")
    return split


@pytest.mark.parametrize("form", SHARES)
@pytest.mark.parametrize("text", BOXES)
def test_points_are_multiplied(text, form):
    """Against float64, within a share of the bound."""
    problem, rng = ConvProblem.parse(text), np.random.default_rng(3)
    algorithm = split_or_skip(problem, form)
    cuts, team = BOXES[text]
    cut = one_box(problem, M, R, 2, algorithm.kind).cut_into(cuts, team)
    plan = WinogradPlan(problem, algorithm, cut)
    x, w, bias = (
        rng.standard_normal(s).astype(np.float32) for s in (problem.x_shape, problem.w_shape, problem.K)
    )
    y = np.full(problem.array_shapes[2], np.nan, np.float32)
    plan(laid(x, problem.layout), w, bias=bias, activation="relu", out=y)
    y = to_logical(y, problem.y_layout, problem.K)
    plain = problem.replace(layout="channels_first", y_layout="channels_first", dtype="float64")
    exact = reference(plain, x.astype(float), w.astype(float)) + bias.reshape(-1, *(1,) * problem.ndim)
    error = np.abs(y - np.maximum(exact, 0)).max() / np.abs(exact).max()
    assert error <= SHARES[form] * algorithm.error_bound(problem)


@pytest.mark.parametrize("text", BOXES)
@pytest.mark.parametrize(("of_x", "of_w"), [(60, 60), (1e3, 1e4), (1e8, 0)])
def test_channels_of_unlike_sizes(text, of_x, of_w):
    """Digits of channels that are much larger than others, or of which nothing counts, keep the bound."""
    problem, rng = ConvProblem.parse(text), np.random.default_rng(4)
    algorithm = split_or_skip(problem)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in (problem.x_shape, problem.w_shape))
    own = problem.C // problem.groups  # channels of a group
    x[:, 3::own] *= of_x
    w[:, -2 if of_w else 3] *= of_w
    y = np.full(problem.array_shapes[2], np.nan, np.float32)
    algorithm.plan(problem)(laid(x, problem.layout), w, out=y)
    y = to_logical(y, problem.y_layout, problem.K)
    plain = problem.replace(layout="channels_first", y_layout="channels_first", dtype="float64")
    exact = reference(plain, x.astype(float), w.astype(float))
    error = np.abs(y - exact).max() / np.abs(exact).max()
    assert error <= SHARES["int8x3"] * algorithm.error_bound(problem)


@pytest.mark.parametrize("form", SHARES)
def test_filters_serve_all_sizes_of_maps(form):
    algorithm, rng = split_or_skip(MAP, form), np.random.default_rng(0)
    small, large = (algorithm.plan(MAP.replace(x_shape=(1, 40, *maps))) for maps in ((6, 7), (40, 45)))
    x, w = (rng.standard_normal(s).astype(np.float32) for s in (large.problem.x_shape, MAP.w_shape))
    x = laid(x, "blocked16")
    answers = [to_logical(large(x, given), "blocked16", MAP.K) for given in (small.prepare(w), w)]
    assert np.array_equal(*answers)


def test_who_cannot_says_so(monkeypatch):
    split = split_or_skip(MAP)
    plain = MAP.replace(layout="channels_last", y_layout="channels_last", dtype="float64")
    assert "float32 only" in split.why_not(plain)
    deep = ConvProblem.parse("n1 c32 d5 h9 w9 k32 t3 r3 s3 p1")
    assert "one and two spatial dimensions" in split.why_not(deep)
    monkeypatch.setattr(matrix_tiles, "permitted", lambda: False)
    assert "AMX" in split.why_not(MAP)
