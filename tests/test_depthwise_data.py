"""cpu.depthwise.data: the gradient of the input with stride 2, both phases of a row in one vector."""

import numpy as np
import pytest

import convalgos as ca


@pytest.mark.parametrize(
    "text",
    [
        "n3 c5 h14 w14 k5 r3 s3 p1",
        "n2 c3 h15 w13 k3 r3 s3 p1",
        "n1 c7 h7 w7 k7 r5 s5 p2",
        "n2 c2 h28 w75 k2 r7 s7 p3",  # several vectors of a row
        "n1 c4 h9 w34 k4 r2 s4 p0",  # rows and columns at the end that no tap reaches
        "n1 c3 h8 w8 k3 r1 s1 p0",  # every other element of dx is 0
        "n2 c3 h12 w40 k3 r3 s5 p0:1,1:2",
        "n1 c2 h5 w64 k2 r4 s3 p3:0,2:0",
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dx_is_exact(text, dtype):
    channels = text.split()[1]
    p = ca.ConvProblem.parse(f"{text} stride2 groups{channels[1:]} {dtype} backward_data")
    rng = np.random.default_rng(7)
    dy, w = (rng.integers(-4, 5, shape).astype(dtype) for shape in p.array_shapes[:2])
    bias = rng.integers(-4, 5, p.C).astype(dtype)
    plan = ca.plan(p, algorithm="cpu.depthwise.data")
    dx = np.full(p.x_shape, np.nan, dtype)
    plan(dy, w, out=dx)
    expected = ca.plan(p, algorithm="cpu.reference")(dy, w)
    assert np.array_equal(dx, expected)
    finished = plan(dy, w, bias=bias, activation="relu")
    assert np.array_equal(finished, np.maximum(expected + bias[:, None, None], 0))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("n1 c4 h9 w9 k4 r3 s3 p1 groups4", "images with stride 2 along both dimensions"),
        ("n1 c4 h9 w9 k4 r3 s3 p1 stride2 groups2", "one input channel and one filter in each group"),
        ("n1 c4 h9 w9 k4 r3 s3 p1 stride2 groups4 channels_last", "rows of channels_first maps"),
        ("n1 c4 h19 w19 k4 r3 s9 p4 stride2 groups4", "up to 4 pairs of taps of a row, and here are 9 taps"),
    ],
)
def test_it_tells_what_it_does_not_serve(text, reason):
    with pytest.raises(ca.Unsupported, match=reason):
        ca.plan(ca.ConvProblem.parse(f"{text} backward_data"), algorithm="cpu.depthwise.data")
