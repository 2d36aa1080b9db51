"""Large windows of `ndimage.correlate` and `convolve`: by transforms, with SciPy's answers."""

import numpy as np
import pytest
import scipy.ndimage

import convalgos as ca
from convalgos.core.axis_windows import AxisWindow
from convalgos.ndimage import transformed_windows
from convalgos.ndimage.transformed_windows import plans

MODES = ("reflect", "constant", "nearest", "mirror", "wrap")
WINDOWS = (  # shapes of an array and of weights
    ((700,), (211,)),
    ((50, 15), (40, 21)),  # larger than the array along the last axis
    ((61, 75), (17, 20)),
    ((3, 41, 52), (1, 16, 9)),
    ((11, 20, 17), (6, 5, 7)),
    ((2, 3, 90, 7), (1, 1, 60, 3)),
    ((2, 31, 42, 3), (1, 16, 9, 1)),  # pixels of several elements
)


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """Small arrays are transformed, too, and what was summed in their place is told."""
    monkeypatch.setattr(transformed_windows, "FEWEST_PRODUCTS", 0)
    monkeypatch.setattr(transformed_windows, "_seconds_of_sums", lambda *given: 1e3)
    plans.clear()


def input_of(rng, shape, dtype):
    if np.dtype(dtype).kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(0, 2 if dtype == "?" else 250 if dtype == "B" else 30000, shape).astype(dtype)


def random_origin(rng, taps):
    return [int(rng.integers(-(n // 2), (n - 1) // 2 + 1)) for n in taps]


@pytest.mark.parametrize(("shape", "taps"), WINDOWS)
@pytest.mark.parametrize(("name", "dtype"), [("correlate", "f"), ("convolve", "d")])
def test_floats(shape, taps, name, dtype):
    rng = np.random.default_rng(len(shape))
    x, w = input_of(rng, shape, dtype), rng.standard_normal(taps)
    for mode in MODES:
        told = {"mode": mode, "cval": 2.5, "origin": random_origin(rng, taps)}
        output = np.full(shape, np.nan, dtype)
        getattr(ca.ndimage, name)(x, w, output, **told)
        expected = getattr(scipy.ndimage, name)(x, w, "float64", **told)
        bound = np.finfo(dtype).eps * 64 * np.abs(w).sum() * max(2.5, np.abs(x).max())
        assert np.abs(output - expected).max() <= bound
    assert len(plans)


@pytest.mark.parametrize("dtype", "?bBhiQ")
@pytest.mark.parametrize("output", [None, "int16", "float32", np.bool_])
def test_integers_are_exact(dtype, output):
    rng = np.random.default_rng(5)
    for shape, taps in WINDOWS[1:4]:
        x, w = input_of(rng, shape, dtype), rng.integers(-9, 12, taps)
        told = {"mode": MODES[len(shape)], "cval": 3, "origin": random_origin(rng, taps), "output": output}
        found, expected = (f.correlate(x, w, **told) for f in (ca.ndimage, scipy.ndimage))
        if expected.dtype.kind == "b":
            expected = expected != 0
        assert found.dtype == expected.dtype and np.array_equal(found, expected)
    assert len(plans) == 3


@pytest.mark.parametrize("dtype", "Bhf")
@pytest.mark.parametrize("mode", MODES)
def test_whole_parts_of_sums(dtype, mode, monkeypatch):
    """Near whole numbers the order of a sum decides, and a mean of what is alike is one."""
    rng = np.random.default_rng(6)
    x = np.rint(input_of(rng, (43, 60), "B")).astype(dtype)
    x[10:38, 20:45] = 77
    monkeypatch.setattr(transformed_windows, "SAMPLE", 0)
    for w in (rng.random((11, 12)) - 0.3, np.full((11, 13), 1 / 143), np.linspace(0, 1, 143).reshape(13, 11)):
        w = w / w.sum()
        w[3, 4:6] = 0
        w[3, 3] += 1 - w.sum()
        told = {"mode": mode, "cval": 0.7, "output": "uint8", "origin": (-1, 2)}
        found, expected = (f.correlate(x, w, **told) for f in (ca.ndimage, scipy.ndimage))
        assert np.array_equal(found, expected)
    assert len(plans)


def test_sums_again():
    """All of them, in SciPy's order: to the last bit."""
    rng = np.random.default_rng(7)
    x, w = input_of(rng, (5, 12, 13), "f"), rng.standard_normal((3, 4, 5))
    w[1, 2:] = 0
    axes = [AxisWindow(n, k, k // 2, "constant") for n, k in zip(x.shape, w.shape, strict=True)]
    z = transformed_windows._summed_in_order(x, w, axes, 0.1, np.arange(x.size))
    expected = scipy.ndimage.correlate(x, w, "float64", mode="constant", cval=0.1)
    assert np.array_equal(z, expected.reshape(-1))


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_what_a_transform_would_spread_stays_local(value):
    rng = np.random.default_rng(8)
    x = input_of(rng, (60, 70), "f")
    x[30, 35] = value
    found = ca.ndimage.correlate(x, np.full((13, 15), 1e-3) + np.eye(13, 15))
    assert not len(plans)
    touched = np.zeros(x.shape, bool)
    touched[24:37, 28:43] = True
    assert np.isfinite(found[~touched]).all() and np.abs(found[~touched]).max() < 20


def test_integers_that_rounding_may_miss_are_summed():
    rng = np.random.default_rng(9)
    x = rng.integers(2**50, 2**51, (40, 50))
    w = rng.integers(1, 3, (12, 11))
    assert np.array_equal(ca.ndimage.correlate(x, w), scipy.ndimage.correlate(x, w))
    assert not len(plans)


def test_any_steps_in_place_and_complex_numbers():
    rng = np.random.default_rng(10)
    x, w = input_of(rng, (120, 90), "d"), rng.standard_normal((15, 14))
    turned = x.T[::-1, ::2]
    expected = scipy.ndimage.correlate(turned, w)
    np.testing.assert_allclose(ca.ndimage.correlate(turned, w), expected, atol=1e-11)
    assert ca.ndimage.correlate(turned, w, output=turned) is turned
    np.testing.assert_allclose(turned, expected, atol=1e-11)
    z = x + 1j * x[::-1]
    np.testing.assert_allclose(
        ca.ndimage.convolve(z, w - 2j * w), scipy.ndimage.convolve(z, w - 2j * w), atol=1e-10
    )


def test_saturated_images_are_summed(monkeypatch):
    x = np.full((60, 60), 255, np.uint8)
    w = np.random.default_rng(11).random((13, 14))
    w /= w.sum()
    monkeypatch.setattr(transformed_windows, "GATHER", 1.0)
    for saturated in (x, x, x // 2):
        plans.clear()
        assert np.array_equal(ca.ndimage.correlate(saturated, w), scipy.ndimage.correlate(saturated, w))
    assert not len(plans)  # by the first one a transform was tried
    noise = np.random.default_rng(12).integers(0, 255, x.shape, np.uint8)
    assert np.array_equal(ca.ndimage.correlate(noise, w), scipy.ndimage.correlate(noise, w))
    assert len(plans)


def test_weights_of_many_bytes_are_told_by_all():
    x, w = input_of(np.random.default_rng(13), (50, 60), "d"), np.random.default_rng(14).random((31, 33))
    for place in range(0, w.size, 97):
        w.flat[place] += 1
        np.testing.assert_allclose(ca.ndimage.correlate(x, w), scipy.ndimage.correlate(x, w), atol=1e-10)


def test_small_windows_are_summed(monkeypatch):
    monkeypatch.undo()
    x = np.ones((32, 32), np.float32)
    for w in (np.ones((3, 3)), np.ones((31, 31)), np.eye(31), np.random.default_rng(1).random((31, 31))):
        ca.ndimage.correlate(x, w)
    assert not len(plans)
