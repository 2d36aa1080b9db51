"""Boxes are summed at nearly the same cost whatever their size, and sums do not drift along a row."""

import numpy as np
import pytest

import convalgos as ca
from convalgos.cpu.reference import reference

LAYERS = [
    "n2 c3 h40 w150 k3 r21 s9 p10 groups3 stride2x1 box",
    "n1 c2 d9 h20 w40 k2 t12 r3 s17 p8 groups2 stride3x2x1 box",
    "n1 c1 h30 w20 k1 r3 s64 p40 box",
    "n3 c1 w5000 k1 s1001 p500 box",
    "n2 c3 h40 w150 k3 r7 s9 p10 groups3 stride2,3 dilation3,2 box",
    "n1 c2 d9 h90 w40 k2 t3 r12 s7 p5 groups2 stride3,4,1 dilation2,6,5 box",
    "n2 c5 h40 w70 k5 r12 s9 p6 groups5 channels_last box",
    "n1 c19 d7 h9 w32 k19 t3 r3 s5 p2 groups19 stride1,2,2 dilation2,1,3 channels_last box",
]


def filled(shape, values):
    return np.broadcast_to(np.reshape(values, (-1, *(1,) * (len(shape) - 1))), shape).copy()


BORDERS = ["zero", "constant", "edge", "reflect", "symmetric", "wrap"]


@pytest.mark.parametrize("border", BORDERS)
def test_integers_are_exact_with_every_border(border):
    """Of each border and layer one type in turn: the type changes neither windows nor borders."""
    rng = np.random.default_rng(0)
    for turn, text in enumerate(LAYERS, BORDERS.index(border)):
        dtype = ("float32", "float64")[turn % 2]
        p = ca.ConvProblem.parse(text).replace(dtype=dtype, boundary=border, fill_value=3.0)
        x, last = rng.integers(-9, 10, p.x_shape).astype(dtype), p.layout == "channels_last"
        w = filled(p.w_shape, rng.integers(1, 5, p.K)).astype(dtype)
        bias = rng.integers(-9, 10, p.K).astype(dtype)
        y = np.full(p.y_shape, np.nan, dtype)
        y = np.moveaxis(y, 1, -1).copy() if last else y
        ca.plan(p, algorithm="cpu.box")(
            np.moveaxis(x, 1, -1).copy() if last else x, w, bias=bias, activation="relu", out=y
        )
        y = np.moveaxis(y, -1, 1) if last else y
        expected = np.maximum(reference(p, x, w) + bias.reshape(-1, *(1,) * p.ndim), 0)
        assert np.array_equal(y, expected), text


def test_long_rows_do_not_drift():
    p = ca.ConvProblem.parse("n1 c1 w1000000 k1 s10001 p5000 box")
    x = np.random.default_rng(0).standard_normal(p.x_shape, np.float32)
    x[..., :100] = 1e12  # what running sums would keep a part of
    y = ca.plan(p, algorithm="cpu.box")(x, np.ones(p.w_shape, np.float32))
    sums = np.concatenate([[0], np.cumsum(x[0, 0, 100:], dtype=np.float64)])
    expected = sums[10001:] - sums[:-10001]
    error = np.abs(y[0, 0, 5100:-5000] - expected)
    assert error.max() <= 4 * np.sqrt(10001) * 2.0**-23 * np.sqrt(10001)


def test_what_is_no_box_is_refused():
    p = ca.ConvProblem.parse("n1 c1 h9 w9 k1 r3 s3 box")
    with pytest.raises(ValueError, match="pattern 'box'"):
        ca.plan(p, algorithm="cpu.box").prepare(np.arange(9, dtype="f4").reshape(1, 1, 3, 3))
    with pytest.raises(ca.Unsupported, match="a filter sums over several"):
        ca.plan(p.replace(x_shape=(1, 2, 9, 9), w_shape=(1, 2, 3, 3)), algorithm="cpu.box")
