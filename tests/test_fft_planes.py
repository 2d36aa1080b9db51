"""`cpu.fft_planes`: tiles of every shape, borders, several filters for a map, and what it refuses."""

import numpy as np
import pytest
from helpers import check

import convalgos as ca
from convalgos.cpu import fft_planes
from convalgos.select import find_algorithm

PLANES = find_algorithm("cpu.fft_planes")


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("n1 c1 h40 w50 k1 r5 s5 p2", (32, 64)),
        ("n2 c3 h40 w150 k3 r11 s9 p5,2 groups3", (32, 64)),
        ("n1 c2 h70 w100 k6 r9 s9 p3:1,4:0 groups2 reflect dilation3,2", (96, 64)),
        ("n1 c1 h160 w70 k1 r31 s1 p15,0 wrap", (96, 32)),
        ("n1 c2 h64 w64 k2 r63 s63 p31 groups2 constant fill2.5", (192, 128)),
        ("n1 c2 h90 w60 k2 r63 s63 p31 groups2", (128, 96)),  # one tile: borders of zeros are shared
        ("n1 c1 h40 w133 k1 r15 s15 p20 wrap,edge float64 convolution", (32, 64)),
        ("n1 c1 h9 w9 k1 r9 s9 p8", (32, 32)),
        ("n1 c1 h70 w50 k1 r31 s31 p27:3,0:30", (96, 96)),  # whose border before it fits in no tile with it
        ("n1 c1 h70 w50 k1 r31 s31 p3:27,30:0", (128, 64)),
    ],
)
def test_tiles(monkeypatch, text, lengths):
    problem = ca.ConvProblem.parse(text)
    parts = tuple(n // fft_planes.POINTS for n in lengths)
    choices = iter([parts])
    monkeypatch.setattr(fft_planes, "product", lambda *_: choices)  # of the sides of tiles
    fft_planes._cut.cache_clear()
    plan = ca.plan(problem, algorithm=PLANES.id)
    rows, columns = plan._cut[:2]
    assert (rows.length, columns.length) == lengths
    check(PLANES, problem, "reals", [(True, None), (False, "relu")], plan=plan)
    fft_planes._cut.cache_clear()


def test_a_nan_stays_in_its_tiles():
    problem = ca.ConvProblem.parse("n1 c1 h300 w300 k1 r9 s9 p4")
    x, w = np.ones(problem.x_shape, np.float32), np.ones(problem.w_shape, np.float32)
    x[0, 0, 0, 0] = np.nan
    y = ca.plan(problem, algorithm=PLANES.id)(x, w)
    assert np.isnan(y[0, 0, 0, 0]) and np.isfinite(y[0, 0, -20:, -20:]).all()
    assert "fft" not in ca.plan(problem, strict_nan=True).algorithm


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("n1 c4 h40 w40 k4 r9 s9", "a filter sums over several"),
        ("n1 c1 h40 w40 k1 r9 s9 stride2", "without a stride"),
        ("n1 c2 w40 k2 s9 groups2", "of two dimensions"),
        ("n1 c2 h40 w40 k2 r9 s9 groups2 channels_last", "channels_first"),
        ("n1 c1 h400 w400 k1 r9 s300", "tiles of up to 256x256"),
    ],
)
def test_refused(text, reason):
    assert reason in (PLANES.why_not(PLANES.computed(ca.ConvProblem.parse(text))) or "")


def test_large_windows_of_single_channels_are_picked():
    picked = [
        ca.plan(ca.ConvProblem.parse(f"n1 c1 h512 w512 k1 r{k} s{k} p{k // 2}")).algorithm for k in (3, 31)
    ]
    assert picked[0] != PLANES.id and picked[1] == PLANES.id
    wide = ca.ConvProblem.parse("n1 c32 h200 w200 k32 r31 s31 p15 groups32 channels_last")
    assert ca.plan(wide).algorithm == f"{PLANES.id}.reordered"
