"""`ndimage.correlate` and `convolve`: SciPy's answers, exactly where they are integers, else nearly."""

from functools import reduce

import numpy as np
import pytest
import scipy.ndimage

import convalgos as ca
from convalgos.core.setting import threads_of_calls
from convalgos.cpu.filtering.outer_products import line_factors, outer_products
from convalgos.cpu.filtering.windows import sum_type
from convalgos.ndimage.arguments import BOUNDARY_OF

TYPES = "?bBhHiIqQfd"
WINDOWS = (  # shapes of an array and of weights
    ((9,), (4,)),
    ((1, 1), (3, 3)),
    ((3, 4), (9, 11)),  # larger than the array
    ((40, 150), (5, 4)),
    ((50, 70), (7, 1)),
    ((33, 300), (1, 7)),
    ((64, 700), (9, 13)),
    ((9, 13, 40), (3, 2, 5)),
    ((4, 5, 6, 7), (2, 3, 1, 3)),
    ((30, 40), (1, 1)),
    ((20, 90, 3), (5, 4, 1)),  # pixels of several elements
    ((3, 9, 11, 2), (2, 3, 5, 1)),
    ((50, 40), (7, 1)),
)


def random_input(rng, shape, dtype):
    dtype = np.dtype(dtype)
    if dtype.kind in "fc":
        return (rng.standard_normal(shape) + (1j if dtype.kind == "c" else 0)).astype(dtype)
    return rng.integers(0, 2 if dtype.kind == "b" else 120, shape).astype(dtype)


def random_windows(rng, shape):
    """Weights of all kinds: reals, integers with zeros, few that are not 0, an outer product of integers."""
    yield rng.standard_normal(shape)
    yield rng.integers(-3, 4, shape) * 1.0
    yield np.where(rng.random(shape) < 0.7, 0.0, rng.integers(-3, 4, shape) / 7)
    product = np.ones(())
    for size in shape:
        product = product[..., None] * rng.choice([-2.0, -1.0, 1.0, 3.0], size)
    yield product


def check(found, expected, x, w):
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    if expected.dtype.kind in "biu":
        np.testing.assert_array_equal(found, expected != 0 if expected.dtype.kind == "b" else expected)
        return
    size = scipy.ndimage.correlate(np.abs(x).astype(float), np.abs(w), mode="constant").max(initial=1)
    off = np.abs(found.astype(np.complex128) - expected).max(initial=0)
    assert off <= np.finfo(expected.dtype).eps * (w.size + 4) * size


@pytest.mark.parametrize(("shape", "taps"), WINDOWS)
def test_answers_of_scipy(shape, taps):
    rng = np.random.default_rng(len(shape) + taps[0])
    modes = [*BOUNDARY_OF]
    for i, dtype in enumerate(TYPES):
        x = random_input(rng, shape, dtype)
        for j, w in enumerate(random_windows(rng, taps)):
            mode, cval = modes[(i + j) % len(modes)], (2.5, 3, -1, 2)[j]
            origin = [int(rng.integers(-(n // 2), (n - 1) // 2 + 1)) for n in taps]
            for name in ("correlate", "convolve"):
                if name == "convolve":
                    origin = 0
                told = {"mode": mode, "cval": cval, "origin": origin}
                expected = getattr(scipy.ndimage, name)(x, w, **told)
                check(getattr(ca.ndimage, name)(x, w, **told), expected, x, w)


@pytest.mark.parametrize("mode", ["reflect", "constant", "nearest", "mirror", "wrap"])
def test_outer_products_line_by_line(mode):
    """Windows of several axes, filtered one after the other where that is as exact."""
    rng = np.random.default_rng(1)
    for shape, taps in (((12, 30, 40), (5, 3, 5)), ((3, 5, 30, 40), (3, 1, 5, 7)), ((60, 200), (15, 15))):
        for dtype in "Bhfd":
            x = random_input(rng, shape, dtype)
            for w in (*random_windows(rng, taps),)[-1], np.ones(taps) / 3:
                expected = scipy.ndimage.correlate(x, w, mode=mode, cval=3)
                check(ca.ndimage.correlate(x, w, mode=mode, cval=3), expected, x, w)


@pytest.mark.parametrize("char", "fdhB")
@pytest.mark.parametrize(
    "taps", [(1, 5, 4, 1), (1, 1, 5, 4), (5, 4, 1, 1), (1, 5, 1, 4), (3, 1, 5, 1), (1, 5, 3, 4)]
)
def test_axes_of_single_taps_around_outer_products(taps, char):
    """Such as images one after the other, with their channels last: none may take the scale with it."""
    rng = np.random.default_rng(2)
    x = random_input(rng, (3, 24, 35, 2), char)
    for w in (np.full(taps, 0.05), np.full(taps, 3.0), -reduce(np.multiply.outer, map(rng.random, taps))):
        check(ca.ndimage.correlate(x, w), scipy.ndimage.correlate(x, w), x, w)


@pytest.mark.parametrize("mode", ["reflect", "mirror", "nearest", "wrap", "constant"])
def test_products_of_float32_lines(mode):
    """Whose rounding hides in that of the sums; pixels of several elements, and the input is float64, too."""
    rng = np.random.default_rng(12)
    for shape, taps in (
        ((40, 90), (5, 8)),
        ((9, 20, 33), (3, 3, 5)),
        ((20, 30, 3), (7, 4, 1)),
        ((1, 9), (4, 3)),
    ):
        w: np.ndarray = np.array(rng.uniform(0.5, 1), "f4")
        for size in taps:
            w = w[..., None] * rng.standard_normal(size).astype("f4") if size > 1 else w[..., None]
        assert w.dtype == np.float32 and line_factors(w.astype(float), is_single=True)
        for dtypes in (("f4", "f4"), ("f4", "f8"), ("f8", "f8"), ("f8", "f4")):
            x, y = rng.standard_normal(shape).astype(dtypes[0]), np.full(shape, np.nan, dtypes[1])
            for cval in (0.0, 1.5):
                ca.ndimage.correlate(x, w, y, mode, cval)
                expected = scipy.ndimage.correlate(x, w, dtypes[1], mode, cval)
                most = max(1.5, np.abs(x).max()) * np.abs(w).sum()
                assert np.abs(y - expected).max() <= np.finfo(y.dtype).eps * (w.size + 4) * most
    assert line_factors(np.array([[1.0, 2], [2, 4 + 1e-5]]), is_single=True) is None


def test_outputs_axes_and_complex_numbers():
    rng = np.random.default_rng(2)
    x, w = random_input(rng, (11, 12, 13), "h"), rng.standard_normal((3, 4))
    for output in ("float32", np.float64, "uint8", np.int32, complex):
        for axes in ((0, 2), (-1, 1), (1, 0)):
            told = {"output": output, "axes": axes, "origin": (1, -1)}
            if output is complex:
                y, expected = (f.correlate(x, w + 1j, **told) for f in (ca.ndimage, scipy.ndimage))
            else:
                y, expected = (f.correlate(x, w, **told) for f in (ca.ndimage, scipy.ndimage))
            assert y.dtype == expected.dtype
            np.testing.assert_allclose(y, expected, rtol=1e-6 if y.dtype.kind in "fc" else 0, atol=1e-3)
    z = random_input(rng, (20, 21), "D")
    for name in ("correlate", "convolve"):
        found = getattr(ca.ndimage, name)(z, w + 1j, mode="constant", cval=1 - 2j)
        np.testing.assert_allclose(
            found, getattr(scipy.ndimage, name)(z, w + 1j, mode="constant", cval=1 - 2j)
        )
    image = random_input(rng, (40, 50), "f")
    expected = ca.ndimage.correlate(image, w)
    before = image.copy()
    strided = np.full((80, 50), np.nan, np.float32)[::2]
    assert ca.ndimage.correlate(image[:, ::-1][:, ::-1], w, output=strided) is strided
    assert np.array_equal(strided, expected) and np.array_equal(image, before)
    assert ca.ndimage.correlate(image, w, output=image) is image and np.array_equal(image, expected)
    nothing = np.zeros((0, 5))  # of which SciPy takes complex outputs
    assert ca.ndimage.convolve(nothing, w, "complex64").dtype == np.complex64
    with pytest.raises(RuntimeError, match="real dtype"):
        ca.ndimage.convolve(image, w, "complex64")


@pytest.mark.parametrize("cval", [0, 2.5, 2.5 - 1j, 1 + 1j])
def test_complex_numbers_by_pairs_or_parts(cval):
    rng = np.random.default_rng(4)
    x = (rng.standard_normal((9, 11, 8, 2)) @ [1, 1j]).astype("c8")
    for w, axes, origin in (((3, 4), (2, 0), (1, -1)), ((2, 3, 5), (1, 0, 2), (0, 1, -2)), ((30,), 1, -12)):
        for mode in ("constant", "wrap"):
            given = rng.standard_normal(w), None, mode, cval, origin
            found = ca.ndimage.convolve(x, *given, axes=axes)
            expected = scipy.ndimage.convolve(x.astype("c16"), *given, axes=axes)
            assert found.dtype == x.dtype
            assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()


def test_zero_weights_meet_no_nan():
    x = np.zeros((20, 40), np.float32)
    x[10, 20] = np.nan
    w = np.array([[1.0, 0, 1], [0, 2, 0], [1, 1e-17, 1]])  # SciPy leaves out the last, too
    found, expected = (np.isnan(f.correlate(x, w)) for f in (ca.ndimage, scipy.ndimage))
    assert np.array_equal(found, expected) and found.sum() == 5
    assert not ca.ndimage.correlate(x, np.zeros((3, 3))).any()


def test_types_of_sums():
    thirds, whole = np.full((3, 3), 1 / 3), np.ones((3, 3))
    kinds = {name: np.dtype(name) for name in ("uint8", "int32", "int64", "float32", "float64")}
    exactly, fused, in_order = (4, 0), 0, 1
    assert sum_type(kinds["uint8"], kinds["uint8"], whole, 0) == exactly
    assert sum_type(kinds["uint8"], kinds["uint8"], whole, 0.5) == (8, in_order)
    assert sum_type(kinds["uint8"], kinds["uint8"], whole * 1e4, 0) == (8, fused)
    assert sum_type(kinds["int32"], kinds["int32"], whole, 0) == (8, fused)
    assert sum_type(kinds["int64"], kinds["int64"], whole, 0) == (8, in_order)
    assert sum_type(kinds["uint8"], kinds["float32"], thirds, 0) == (8, in_order)
    assert sum_type(kinds["float32"], kinds["float32"], thirds, 0) == (4, fused)
    assert sum_type(kinds["float32"], kinds["int32"], thirds, 0) == (8, in_order)


def test_threads_have_the_same_bits():
    rng = np.random.default_rng(3)
    x, w = random_input(rng, (300, 400), "d"), rng.standard_normal((7, 9))
    with threads_of_calls(1):
        alone = ca.ndimage.correlate(x, w)
    assert np.array_equal(ca.ndimage.correlate(x, w), alone)


def test_outer_products():
    rng = np.random.default_rng(4)
    lines = line_factors(np.einsum("i,j,k->ijk", [2.0, -4, 6], [3.0, 1], [5.0, 5, 10]))
    assert np.array_equal(
        np.einsum("i,j,k->ijk", *lines), np.einsum("i,j,k->ijk", [2, -4, 6], [3, 1], [5, 5, 10])
    )
    assert all((line == np.rint(line)).all() for line in lines)
    assert line_factors(np.eye(3)) is None and line_factors(np.zeros((2, 2))) is None
    w = rng.standard_normal((3, 5, 2)) @ rng.standard_normal((3, 2, 6))
    for terms in (2, 4, 8):
        left, right = outer_products(w, terms)
        assert left.shape == (3, terms, 5) and right.shape == (3, terms, 6)
        np.testing.assert_allclose(np.einsum("ktr,kts->krs", left, right), w, atol=1e-14)
    with pytest.raises(ValueError, match=r"w\[0\] must be a sum of 1 outer products"):
        outer_products(w, 1)


@pytest.mark.parametrize(
    ("changes", "error", "told"),
    [
        ({"weights": np.ones(3)}, RuntimeError, r"weights.ndim \(1\) must match len\(axes\) \(2\)"),
        ({"weights": np.ones((0, 3))}, ValueError, "be at least 1"),
        ({"origin": 2}, ValueError, "Invalid origin"),
        ({"mode": "mirrored"}, ValueError, "boundary mode not supported"),
        ({"mode": ["wrap", "wrap"]}, RuntimeError, "sequence of modes is not supported"),
        ({"input": np.ones((4, 4), np.float16)}, TypeError, "input has dtype float16"),
        ({"axes": (0, 0)}, ValueError, "axes must be unique"),
    ],
)
def test_refused(changes, error, told):
    given = {"input": np.ones((4, 4)), "weights": np.ones((3, 3))} | changes
    with pytest.raises(error, match=told):
        ca.ndimage.correlate(**given)


@pytest.mark.parametrize("kind", ["any", "flat", "at the limits"])
def test_bytes_whose_sums_come_near_whole_numbers(kind):
    """Weights that add up to one: sums of flat parts are whole numbers but for their rounding."""
    rng = np.random.default_rng(3)
    for turn, dtype in enumerate(["uint8", "int8"] * 6):
        limits, shape = np.iinfo(dtype), (int(rng.integers(1, 60)), int(rng.integers(1, 300)))
        x = rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
        if kind == "flat":
            x[:, : shape[1] // 2 + 1] = rng.integers(limits.min, limits.max)
        elif kind == "at the limits":
            x = np.where(rng.random(shape) < 0.5, limits.max, limits.min).astype(dtype)
        w = rng.random((int(rng.integers(1, 8)), int(rng.integers(1, 8))))
        w /= w.sum()
        how = {"mode": [*BOUNDARY_OF][turn % len(BOUNDARY_OF)], "cval": 2.5}
        assert np.array_equal(ca.ndimage.correlate(x, w, **how), scipy.ndimage.correlate(x, w, **how))
        for sigma in (0.4, 1.3, (0.7, 2.2)):
            y = ca.ndimage.gaussian_filter(x, sigma, **how)
            assert np.array_equal(y, scipy.ndimage.gaussian_filter(x, sigma, **how))
