"""Winograd on 16-bit maps gives what Winograd gives on float32 copies of them, to the last bit."""

import numpy as np
import pytest

from convalgos import ConvProblem
from convalgos.core.plan import numpy_dtype
from convalgos.cpu.winograd import Winograd
from convalgos.cpu.winograd_half import WinogradHalf
from convalgos.select.registry import facing


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("m", "r", "text"),
    [
        (4, 3, "n2 c35 h13 w30 k20 r3 s3 p1"),
        (4, 3, "n2 c35 h9 w11 k36 r3 s3 p0:2,3:1 groups1 channels_last"),
        (4, 2, "n1 c6 h21 w26 k10 r3 s3 p1 stride2"),
        (2, 3, "n2 c16 d7 h9 w18 k16 t3 r3 s3 p1 groups2 channels_last"),
    ],
    ids=str,
)
def test_it_is_winograd_on_copies(m, r, text, dtype):
    problem, rng = ConvProblem.parse(f"{text} {dtype}"), np.random.default_rng(5)
    element = numpy_dtype(dtype)
    x, w, bias = (
        rng.standard_normal(shape).astype(element) for shape in (*problem.array_shapes[:2], (problem.K,))
    )
    x.flat[:4] = np.array([np.nan, np.inf, 2**-24, 65504.0]).astype(element)  # 2**-24 is denormal in float16
    for given in ({}, {"bias": bias, "activation": "relu"}):
        answers = [a.serve(problem)(x, w, **given) for a in (WinogradHalf(m, r), Winograd(m, r))]
        assert np.array_equal(*(a.astype(np.float32) for a in answers), equal_nan=True)


def test_it_is_cheaper_than_with_copies():
    problem = ConvProblem.parse("n1 c64 h56 w56 k64 r3 s3 p1 bfloat16")
    assert WinogradHalf(4).error_bound(problem) < 1.1 * 2**-8
    assert "y of x's type" in WinogradHalf(4).why_not(problem.replace(y_dtype="float32"))


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_gradients_rotate_their_filter_in_16_bits(layout):
    problem = ConvProblem.parse(f"n2 c20 h13 w14 k24 r3 s3 p1 bfloat16 backward_data {layout}")
    rng = np.random.default_rng(5)
    dy, w, bias = (
        rng.standard_normal(shape).astype(numpy_dtype("bfloat16"))
        for shape in (*problem.array_shapes[:2], (problem.C,))
    )
    ways = [facing(a, "backward_data") for a in (WinogradHalf(4, 3), Winograd(4, 3))]
    assert np.array_equal(*(a.serve(problem)(dy, w, bias=bias).astype(np.float32) for a in ways))
