"""cpu.direct.outer: gradients of linear layers, whose tiles of dy are packed as they are needed."""

import numpy as np
import pytest

import convalgos as ca
from convalgos.cpu.direct_outer import MOST_PIXELS
from convalgos.cpu.gemm import row_panels

BATCH = row_panels.TURNED_TAPS * 2 + 3  # pixels that are packed in three runs, the last one short
FILTERS = row_panels.TURNED * row_panels.MOST_ROWS * 2 + 5  # tiles that are packed in several lots


@pytest.mark.parametrize(
    "text",
    [
        "n1 c3 h1 w1 k1 r1 s1",
        f"n{BATCH} c37 h1 w1 k{FILTERS} r1 s1",
        f"n{BATCH} c2300 h1 w1 k19 r1 s1",  # several blocks of columns, the last one short
        f"n1 c1700 d1 h1 w1 k{FILTERS} t1 r1 s1",
        "n3 c51 h3 w7 k33 r1 s1 channels_last",
        "n2 c16 w301 k40 s1 channels_last",
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_of_dw_are_exact(text, dtype):
    p = ca.ConvProblem.parse(f"{text} {dtype} backward_weights")
    rng = np.random.default_rng(7)
    x, dy = (rng.integers(-4, 5, shape).astype(dtype) for shape in p.array_shapes[:2])
    dw = np.full(p.w_shape, np.nan, dtype)
    plan = ca.plan(p, algorithm="cpu.direct.outer")
    for _ in range(2):  # in scratch that holds the tiles of before
        plan(x, dy, out=dw)
        assert np.array_equal(dw, ca.plan(p, algorithm="cpu.reference")(x, dy))
        x, dw = x + 1, np.full_like(dw, np.nan)


def test_no_filter_meets_pixels_or_filters_beside_it():
    """Each is multiplied by zeros where it is not finite: tiles are loaded a vector at a time."""
    p = ca.ConvProblem.parse("n9 c40 h1 w1 k21 r1 s1 backward_weights")
    x, dy = np.ones(p.x_shape, np.float32), np.ones(p.y_shape, np.float32)
    x[4, 17], dy[3, 5] = np.nan, np.inf
    dw = ca.plan(p, algorithm="cpu.direct.outer")(x, dy)[:, :, 0, 0]
    expected = np.full((21, 40), 9, np.float32)
    expected[5], expected[:, 17] = np.inf, np.nan
    assert np.array_equal(dw, expected, equal_nan=True)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("n2 c8 h5 w5 k8 r3 s3", "a 1x1 filter without stride, padding or groups"),
        ("n2 c8 h1 w1 k8 r1 s1 groups2", "a 1x1 filter without stride, padding or groups"),
        ("n2 c8 h5 w5 k8 r1 s1", "those of channels_last, or of maps of one pixel"),
        (
            f"n{MOST_PIXELS + 1} c8 h1 w1 k8 r1 s1",
            f"at most {MOST_PIXELS}, and here there are {MOST_PIXELS + 1}",
        ),
    ],
)
def test_it_tells_what_it_does_not_serve(text, reason):
    with pytest.raises(ca.Unsupported, match=reason):
        ca.plan(ca.ConvProblem.parse(f"{text} backward_weights"), algorithm="cpu.direct.outer")
