"""Bytes smoothed by three taps: SciPy's integers, of noise and of equal neighbours; axes of one element."""

from itertools import product

import numpy as np
import pytest
import scipy.ndimage
from narrow_vectors import run_on_haswell

import convalgos as ca
from convalgos.core.axis_windows import AxisWindow
from convalgos.cpu.filtering import line_passes
from convalgos.cpu.filtering.byte_passes import BytePass, smoothing, why_not_bytes
from convalgos.cpu.filtering.line_filters import line_filter
from convalgos.cpu.filtering.line_steps import LineStep
from convalgos.ndimage import known_calls
from convalgos.ndimage.arguments import BOUNDARY_OF
from convalgos.ndimage.gaussian import gaussian_weights

FALLING, PLAIN = 0.8, 1.0  # sigmas of weights whose sums of equal bytes are less for some, and for none
BYTES = np.dtype(np.uint8)
SHAPES = (1,), (33,), (1100,), (1, 70), (67, 1), (40, 129), (130, 40), (9, 20, 3)


def images(rng, shape):
    """Noise, steps, and every byte beside equal ones."""
    yield rng.integers(0, 256, shape, dtype=np.uint8)
    yield rng.integers(0, 256, shape, dtype=np.uint8) // 64 * 85
    yield (np.arange(np.prod(shape)) // 4 % 256).astype(np.uint8).reshape(shape)


def check_smoothing():
    rng = np.random.default_rng(8)
    for number, shape in enumerate(SHAPES):
        for x in images(rng, shape):
            for mode in BOUNDARY_OF:
                sigma = (FALLING, PLAIN, 0.37)[number % 3]
                axes = tuple(int(a) for a in rng.permutation(len(shape)))[: 1 + number % 2]
                told = {"radius": 1, "mode": mode, "cval": 201, "axes": axes}
                y = np.full_like(x, 7)
                ca.ndimage.gaussian_filter(x, sigma, output=y, **told)
                np.testing.assert_array_equal(y, scipy.ndimage.gaussian_filter(x, sigma, **told))


@pytest.mark.parametrize("shared", [0, 1 << 17])
def test_scipys_integers(shared, monkeypatch):
    monkeypatch.setattr(line_passes, "SHARED", shared)
    known_calls._forget()
    check_smoothing()
    known_calls._forget()


def test_narrow_vectors():
    run_on_haswell("from test_ndimage_bytes import check_smoothing; check_smoothing()")


def step_of(weights, fill=0.0, boundary="constant"):
    return LineStep(0, tuple(weights), AxisWindow(50, len(weights), 1, boundary), fill)


def test_which_filters_are_summed_in_fixed_point():
    weights = gaussian_weights(FALLING, 0, 1)
    assert line_filter(BYTES, BYTES, (step_of(weights),)).kind is BytePass
    falls = [smoothing(tuple(gaussian_weights(sigma, 0, 1)))[0]["falls"][0] for sigma in (FALLING, PLAIN)]
    assert falls == [1, 0]
    for refused in (
        step_of(weights, 0.5), step_of(weights, 300.0), step_of((0.25, 0.5, 0.2)), step_of((0.5, 0.5)),
        step_of((1 / 3, 1 / 3, 1 / 3)), step_of((-0.2, 1.4, -0.2)), step_of((0.3, 0.5, 0.2)),
    ):  # fmt: skip
        assert why_not_bytes(BYTES, BYTES, [refused]) is not None
    assert why_not_bytes(BYTES, np.dtype(np.int8), [step_of(weights)]) is not None


@pytest.mark.parametrize("char", "?Bhidf")
def test_axes_of_one_element(char):
    """Windows that are longer than an axis, wherever that lies: each element is its own neighbour there."""
    rng = np.random.default_rng(12)
    for shape in ((1,), (1, 1), (13, 1), (6, 9, 1), (1, 40, 1), (5, 1, 7), (1, 6, 1, 5)):
        x = (rng.standard_normal(shape) * 50).astype(char)
        taps = [int(n) for n in rng.integers(1, 5, len(shape))]
        whole, parts = rng.integers(-3, 4, taps), rng.random(taps)
        for mode, (name, given) in product(
            ("reflect", "constant", "wrap"),
            (("correlate", whole), ("convolve", parts), ("gaussian_filter", 1.1), ("laplace", None),
             ("correlate1d", whole.ravel()), ("gaussian_laplace", 0.9)),
        ):  # fmt: skip
            arguments = () if given is None else (given,)
            expected = getattr(scipy.ndimage, name)(x, *arguments, mode=mode, cval=2)
            y = np.full_like(x, 1 if x.dtype.kind in "biu" else np.nan)
            getattr(ca.ndimage, name)(x, *arguments, mode=mode, cval=2, output=y)
            if x.dtype.kind in "biu":
                np.testing.assert_array_equal(y, expected)
            else:
                most = 60 * (1 if given is None else np.abs(given).sum()) * np.abs(x).max()
                np.testing.assert_allclose(y, expected, rtol=0, atol=most * np.finfo(x.dtype).eps + 1e-9)
