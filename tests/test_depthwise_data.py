"""cpu.depthwise.data: the gradient of the input with stride 2, both phases of a row in one pass."""

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
        "n3 c35 h14 w14 k35 r3 s3 p1 channels_last",  # the last vector of channels overlaps
        "n2 c16 h15 w13 k16 r3 s3 p0:1,0:1 channels_last",
        "n1 c48 h7 w3 k48 r5 s5 p2 channels_last",  # less than a block of columns
        "n2 c32 h28 w75 k32 r7 s7 p3 channels_last",  # several blocks, of which some meet no border
        "n1 c64 h9 w34 k64 r2 s4 p0 channels_last",
        "n1 c17 h8 w8 k17 r1 s1 p0 channels_last",
        "n2 c33 h12 w40 k33 r3 s5 p3:1,4:2 channels_last",
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
    dx = np.full(p.array_shapes[2], np.nan, dtype)
    plan(dy, w, out=dx)
    expected = ca.plan(p, algorithm="cpu.reference")(dy, w)
    assert np.array_equal(dx, expected)
    finished = plan(dy, w, bias=bias, activation="relu")
    along = bias if p.layout == "channels_last" else bias[:, None, None]
    assert np.array_equal(finished, np.maximum(expected + along, 0))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("n1 c4 h9 w9 k4 r3 s3 p1 groups4", "images with stride 2 along both dimensions"),
        ("n1 c4 h9 w9 k4 r3 s3 p1 stride2 groups2", "one input channel and one filter in each group"),
        ("n1 c3 h9 w9 k3 r3 s3 p1 stride2 groups3 channels_last", "channels_last, and here are 3"),
        ("n1 c4 h19 w19 k4 r3 s9 p4 stride2 groups4", "up to 4 pairs of taps of a row, and here are 9 taps"),
    ],
)
def test_it_tells_what_it_does_not_serve(text, reason):
    with pytest.raises(ca.Unsupported, match=reason):
        ca.plan(ca.ConvProblem.parse(f"{text} backward_data"), algorithm="cpu.depthwise.data")
