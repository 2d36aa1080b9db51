"""`savgol_filter` where SciPy's answers are coarse, and the ways around its coefficients."""

import tracemalloc

import numpy as np
import pytest
import scipy.signal
from numpy.polynomial import legendre

import convalgos as ca
from convalgos.signal import filters


def noise(shape, dtype):
    return (9 * np.random.default_rng(0).standard_normal(shape)).astype(dtype)


@pytest.mark.parametrize(("window", "order"), [(9, 8), (19, 5), (31, 20), (57, 10), (101, 12), (301, 8)])
def test_polynomials_are_fitted_also_where_scipy_fits_none(window, order):
    """Powers of 101 samples are singular in float64."""
    n = 2 * window + 1
    at = np.linspace(-1, 1, n)
    polynomials = legendre.legvander(at, order).T  # (order + 1, n)
    for dtype, share in (("f8", 1e-11), ("f4", 1e-6)):
        for deriv in (0, 1, 2):
            wanted = legendre.legval(at, legendre.legder(np.eye(order + 1), deriv))
            steepest = (2 * order**2) ** deriv  # of errors that are a polynomial in a window
            y = ca.signal.savgol_filter(polynomials.astype(dtype), window, order, deriv, 2 / (n - 1))
            assert y.dtype == dtype and np.abs(y - wanted).max() <= share * steepest, (dtype, deriv)


@pytest.mark.parametrize(("window", "order"), [(5, 4), (8, 5), (58, 5), (101, 5)])
def test_errors_of_float32_are_within_the_bound_also_at_the_ends(window, order):
    """SciPy's ends of float32 miss by up to 2000 times as much."""
    x = noise((7, 3 * window), "f4")
    exact = scipy.signal.savgol_filter(x.astype("f8"), window, order)
    bound = 2.0**-24 * window * np.abs(scipy.signal.savgol_coeffs(window, order)).sum() * np.abs(x).max()
    errors = np.abs(ca.signal.savgol_filter(x, window, order) - exact)  # (7, 3 * window)
    half = window // 2
    assert errors.max() <= bound
    assert (
        max(errors[:, :half].max(), errors[:, -half:].max()) <= 2.0**-24 * np.abs(exact).max()
    )  # rounded once


def test_derivatives_above_the_degree_are_zero_without_a_filter(monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(filters, "_coefficients", None)
        for dtype, wide in (("f4", "f4"), ("f8", "f8"), ("f2", "f8"), ("u1", "f8")):
            for mode in ("interp", "mirror", "constant"):
                x = np.asfortranarray(abs(noise((5, 40), "f4")).astype(dtype))
                y = ca.signal.savgol_filter(x, 5, 1, 2, axis=1, mode=mode, cval=3)
                assert y.dtype == wide and y.shape == x.shape and y.flags.c_contiguous and not y.any()
    x = noise((5, 40), "f8")
    x[2, 20] = np.nan  # which spreads all the same
    for mode in ("interp", "mirror", "wrap"):
        ours, theirs = (m.savgol_filter(x, 5, 1, 2, mode=mode) for m in (ca.signal, scipy.signal))
        np.testing.assert_array_equal(ours, theirs)


def test_large_windows_take_little_memory():
    x = noise(40_000, "f8")
    ca.signal.savgol_filter(x[:100], 5, 2)
    tracemalloc.start()
    try:
        ca.signal.savgol_filter(x, 9001, 3)
        assert tracemalloc.get_traced_memory()[1] < 2**25
    finally:
        tracemalloc.stop()
