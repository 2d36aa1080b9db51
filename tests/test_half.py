"""Conversions between 16 bits and float32: the same bits as NumPy's and ml_dtypes', for every number."""

import numpy as np
import pytest
from narrow_vectors import run_on_haswell

pytest.importorskip("llvmlite")
ml_dtypes = pytest.importorskip("ml_dtypes")

import convalgos as ca  # noqa: E402
from convalgos.cpu.runtime import half  # noqa: E402

HALVES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@pytest.fixture(params=HALVES)
def dtype(request):
    return np.dtype(HALVES[request.param])


def assert_same(found: np.ndarray, expected: np.ndarray, bits: str) -> None:
    nan = np.isnan(expected.astype("f4"))
    assert (np.isnan(found.astype("f4")) == nan).all()
    np.testing.assert_array_equal(found.view(bits)[~nan], expected.view(bits)[~nan])


def test_every_half_becomes_its_float32(dtype):
    halves = np.arange(1 << 16, dtype="u2").view(dtype)
    wide = np.full(halves.size, np.nan, "f4")
    half.convert(halves, wide)
    assert_same(wide, halves.astype("f4"), "u4")


@pytest.mark.filterwarnings("error")
def test_float32_is_rounded_to_the_nearest_half(dtype):
    rng = np.random.default_rng(3)
    near = np.arange(1 << 16, dtype="u2").view(dtype).astype("f4").view("u4")
    steps = np.arange(0, 1 << 14, 37, dtype="u4")
    wide = np.concatenate(
        [
            rng.integers(0, 1 << 32, 1 << 20, dtype="u4"),  # any bits
            *(near + np.uint32(o) for o in (0, 1, 0xFFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001, 0xFFFF)),
            *(np.uint32(start) + steps for start in (0x33000000, 0x33800000, 0x387FE000, 0x477FE000)),
        ]
    ).view("f4")
    found = np.zeros(wide.size, dtype)
    half.convert(wide, found)
    with np.errstate(all="ignore"):
        assert_same(found, wide.astype(dtype), "u2")


@pytest.mark.parametrize("count", [half.SMALL, half.SMALL + 1, 3 * half.PIECE + 7])
def test_nothing_beyond_the_ends_is_written(dtype, count):
    wide = np.arange(count, dtype="f4") % 255
    around = np.full(count + 2, -1, dtype)
    half.convert(wide, around[1:-1])
    assert around[0] == around[-1] == -1
    np.testing.assert_array_equal(around[1:-1].astype("f4"), wide)
    back = np.full(count + 2, -1, "f4")
    half.convert(around[1:-1], back[1:-1])
    assert back[0] == back[-1] == -1
    np.testing.assert_array_equal(back[1:-1], wide)


def test_convolutions_are_those_of_float32_rounded_once(dtype):
    rng = np.random.default_rng(4)
    x, w = (rng.standard_normal(s).astype(dtype) for s in ((2, 8, 40, 41), (16, 8, 3, 3)))
    for algorithm in ("cpu.direct", "cpu.winograd.f4x3", "cpu.im2col.own", "cpu.reference"):
        wide = ca.conv(x.astype("f4"), w.astype("f4"), padding=1, algorithm=algorithm)
        found = ca.conv(x, w, padding=1, algorithm=algorithm)
        np.testing.assert_array_equal(found.astype("f4"), wide.astype(dtype).astype("f4"))
        dy, shape = found, w.shape
        if algorithm == "cpu.direct":
            dw = ca.conv_backward_weights(x, dy, shape, padding=1)
            exact = ca.conv_backward_weights(x.astype("f8"), dy.astype("f8"), shape, padding=1)
            assert abs(dw.astype("f8") - exact).max() < 0.01 * abs(exact).max()


def check_rows_of_pixels(dtype):
    """`cpu.direct.pixels` widens rows as it copies them: strides, borders, images side by side, a bias."""
    rng = np.random.default_rng(5)
    for text, native in (
        ("n3 c5 h3 w13 k7 r1 s1", True),
        ("n1 c3 h21 w70 k9 r3 s3 p1:2,0:1 stride2", True),
        ("n1 c2 d3 h4 w40 k3 t2 r2 s3 p1 stride1,2,3", True),
        ("n1 c2 w99 k4 s3 p2 stride9", False),
    ):
        problem = ca.ConvProblem.parse(text)
        x, w, bias = (
            rng.standard_normal(s).astype(dtype) for s in (problem.x_shape, problem.w_shape, problem.K)
        )
        wide = ca.plan(problem, algorithm="cpu.direct.pixels")
        short = ca.plan(problem.replace(dtype=dtype.name), algorithm="cpu.direct.pixels")
        assert native == (short.problem.dtype == dtype.name and not hasattr(short, "_inner"))
        given = {"bias": bias, "activation": "relu"}
        found = short(x, short.prepare(w), **given)
        expected = wide(x.astype("f4"), wide.prepare(w.astype("f4")), **given | {"bias": bias.astype("f4")})
        np.testing.assert_array_equal(found.astype("f4"), expected.astype(dtype).astype("f4"))


def test_rows_of_pixels(dtype):
    check_rows_of_pixels(dtype)


def test_rows_of_pixels_on_a_narrower_machine():
    run_on_haswell(
        """
import sys
sys.path.insert(0, "tests")
import numpy as np
from test_half import check_rows_of_pixels
check_rows_of_pixels(np.dtype("float16"))
""",
        features="+f16c",
    )


@pytest.mark.filterwarnings("error")
def test_overflow_is_infinity_without_a_word():
    x, w = np.full((1, 8, 64, 64), 3e4, "f2"), np.ones((8, 8, 1, 1), "f2")
    for algorithm in ("cpu.direct", "cpu.reference", "cpu.fft.overlap"):
        assert np.isposinf(ca.conv(x, w, algorithm=algorithm)).all()
