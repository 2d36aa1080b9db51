"""Gaussians by recursion: within the error that is allowed, at every border, and exact where none is."""

import numpy as np
import pytest
from scipy import ndimage as scipys

from convalgos import ndimage
from convalgos.cpu.filtering.recursive_gaussians import gaussian_recursion, recursions_within
from convalgos.ndimage import approximations

MODES = ["reflect", "mirror", "nearest", "wrap", "constant"]


@pytest.fixture(autouse=True)
def _also_few_lines(monkeypatch):
    monkeypatch.setattr(approximations, "RECURSED", 0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("allowed", [1e-3, 2e-4])
def test_results_are_within_the_error(dtype, allowed):
    rng = np.random.default_rng(0)
    calls = [((301,), 20), ((40, 133), (7, 30)), ((150, 5), (25, 0)), ((3, 70, 5), (0, 9, 6.5))]
    for mode in MODES:
        for shape, sigma in calls:
            x = (rng.random(shape) - 0.3).astype(dtype)
            how = {"mode": mode, "cval": 0.9}
            y = np.full(shape, np.nan, dtype)
            ndimage.gaussian_filter(x, sigma, output=y, max_rel_error=allowed, **how)
            expected = scipys.gaussian_filter(x.astype(np.float64), sigma, **how)
            assert np.abs(y - expected).max() <= allowed * 0.9
            assert np.abs(y - expected).max() > 1e-6  # it is a recursion


def test_errors_are_those_of_the_weights():
    """An impulse shows what stands in the place of the weights."""
    for sigma in (1.5, 8.0, 60.0):
        reach = int(4 * sigma + 0.5)
        x = np.zeros(40 * int(sigma + 1) + 1)
        x[len(x) // 2] = 1
        exact = ndimage.gaussian_filter1d(x, sigma, mode="constant")
        for pairs, most in ((2, 6e-4), (3, 8e-5)):
            by = gaussian_recursion(sigma, reach, pairs)
            found = recursions_within([(sigma, reach)], x.dtype, by.error * 1.0001)
            assert found is not None and found[0].pairs == pairs and by.error < most
            y = ndimage.gaussian_filter(x, sigma, mode="constant", max_rel_error=by.error * 1.0001)
            if reach >= 24:
                assert np.abs(y - exact).sum() == pytest.approx(by.error, rel=1e-3)
            else:
                assert np.array_equal(y, exact)  # narrow ones are no faster


def test_what_no_recursion_serves_is_exact(monkeypatch):
    monkeypatch.undo()
    x = np.random.default_rng(0).random((90, 80))
    few = ndimage.gaussian_filter(x[0], 30, max_rel_error=1e-3)  # lines, which sums take less time for
    assert np.array_equal(few, ndimage.gaussian_filter(x[0], 30))
    for how in ({"max_rel_error": 1e-9}, {"max_rel_error": 1e-3, "order": 1}, {"max_rel_error": 1e-3}):
        given = x if len(how) > 1 or how["max_rel_error"] < 1e-8 else (x * 255).astype(np.int32)
        kept = {k: v for k, v in how.items() if k == "order"}
        assert np.array_equal(
            ndimage.gaussian_filter(given, 10, **how), ndimage.gaussian_filter(given, 10, **kept)
        )
    with pytest.raises(ValueError, match="max_rel_error=0 must be a number above 0"):
        ndimage.gaussian_filter(x, 10, max_rel_error=0)
