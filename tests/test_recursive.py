"""`cpu.recursive`: within the error of its weights on every size, width and border, and only where asked."""

import numpy as np
import pytest

import convalgos as ca
from convalgos.core.setting import threads_of_calls
from convalgos.cpu.filtering.recursive_windows import window_halves
from convalgos.cpu.recursive import APART
from convalgos.select.registry import find_algorithm
from convalgos.testing.answers import check

LAYERS = [
    "n2 c3 h40 w133 k3 r8 s9 p2:3,1:4 groups3",
    "n70 c2 w30 k2 s8 pfull groups2",  # more lines than a panel has
    "n1 c2 d9 h9 w30 k2 t5 r4 s7 p1 groups2",
    "n1 c3 h9 w10 k3 r1 s1 p1 groups3",
    "n1 c2 h20 w70 k2 r21 s15 p10 groups2 reflect",
    "n1 c1 h20 w9 k1 r31 s15 p25,20 wrap",  # padding beyond the map
    "n1 c1 h20 w9 k1 r5 s3 p2,1 constant fill3",
]


@pytest.mark.parametrize("pairs", [2, 3])
def test_layers(pairs):
    recursive = find_algorithm(f"cpu.recursive.pairs{pairs}")
    for n, text in enumerate(LAYERS):
        p = ca.ConvProblem.parse(f"{text} gaussian").replace(dtype=("float32", "float64")[n % 2])
        with threads_of_calls(1 + n % 3):
            check(recursive, p, plan=ca.plan(p, algorithm=recursive.id, max_rel_error=0.1))


@pytest.mark.parametrize("pairs", [2, 3])
def test_errors_of_the_weights(pairs):
    """Of narrow and wide Gaussians and boxes, and an impulse shows them."""
    for taps in (1, 2, 3, 8, 9, 31, 64, 301):
        for sigma in (0.3, 1.0, *(taps * np.linspace(0.05, 2, 12)), np.inf):
            assert window_halves(float(sigma), taps, pairs).error < APART[pairs]
    p = ca.ConvProblem.parse("n1 c1 w201 k1 s60 p30 gaussian float64")
    d = np.arange(60) - 29.5
    w = np.exp(-0.5 * (d / 17) ** 2)[None, None]
    x = np.zeros(p.x_shape)
    x[..., 100] = 1
    y = ca.plan(p, algorithm=f"cpu.recursive.pairs{pairs}", max_rel_error=0.01)(x, w)
    exact = ca.conv(x, w, padding=30, algorithm="cpu.reference")
    told = window_halves(17.0, 60, pairs).error * w.sum()
    assert np.abs(y - exact).sum() == pytest.approx(told, rel=1e-3)


def test_what_left_the_window_is_forgotten():
    p = ca.ConvProblem.parse("n1 c1 w3000 k1 s31 p15 gaussian")
    x = np.ones(p.x_shape, np.float32)
    x[..., :9] = 1e6
    y = ca.plan(p, algorithm="cpu.recursive.pairs3", max_rel_error=1e-3)(x, np.ones(p.w_shape, np.float32))
    assert np.abs(y[0, 0, 2000:2900] - 31).max() < 1e-2


def test_it_is_chosen_where_an_error_is_allowed():
    p = ca.ConvProblem.parse("n1 c1 h1000 w1000 k1 r201 s201 p100 gaussian")
    assert ca.plan(p, max_rel_error=1e-3).algorithm == "cpu.recursive.pairs3"
    assert ca.plan(p, max_rel_error=1e-2).algorithm == "cpu.recursive.pairs2"
    for exact in (p, p.replace(direction="backward_data")):
        assert not ca.plan(exact).algorithm.startswith("cpu.recursive")
    short = "n1 c4 h50 w25 k4 r3 s3 groups4 backward_data float16 gaussian"
    with pytest.raises(ca.Unsupported, match="float32 and float64 only"):
        ca.plan(ca.ConvProblem.parse(short), algorithm="cpu.recursive.pairs2", max_rel_error=0.1)
    plan = ca.plan(p, algorithm="cpu.recursive.pairs3", max_rel_error=1e-3)
    with pytest.raises(ValueError, match="pattern 'gaussian'"):
        plan.prepare(np.tri(201, dtype=np.float32)[None, None])
    with pytest.raises(ca.Unsupported, match="without a stride"):
        ca.plan(p.replace(stride=2), algorithm="cpu.recursive.pairs3", max_rel_error=1e-3)
