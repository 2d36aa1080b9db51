"""Gaussians by recursion: within the error that is allowed, at every border, and exact where none is."""

import numpy as np
import pytest
from scipy import ndimage as scipys

from convalgos import ndimage
from convalgos.cpu.filtering.recursive_gaussians import gaussian_recursion, parts_of_lines, recursions_within
from convalgos.ndimage import approximations

MODES = ["reflect", "mirror", "nearest", "wrap", "constant"]


@pytest.fixture(autouse=True)
def _also_few_lines(monkeypatch):
    monkeypatch.setattr(approximations, "RECURSED", 0)
    monkeypatch.setattr(approximations, "_coarse", lambda *_: None)


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
                error = np.abs(y - exact).sum()  # less where a line is cut: tails end with its parts
                assert 0.8 * by.error < error < 1.001 * by.error
            else:
                assert np.array_equal(y, exact)  # narrow ones are no faster


def test_what_no_recursion_serves_is_exact(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(approximations, "_coarse", lambda *_: None)
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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_long_lines_are_filtered_in_parts(dtype):
    """Of parts that divide a line and that do not, whose neighbours or borders lie around them."""
    rng = np.random.default_rng(3)
    for mode in MODES:
        for shape, sigma in ((9000,), 8.0), ((3, 4097), 12.0), ((2501, 2), 7.0), ((1, 20_000), 40.0):
            axis = int(np.argmax(shape))
            reach, count = int(4 * sigma + 0.5), int(np.prod(shape)) // shape[axis]
            assert parts_of_lines(count, shape[axis], reach, np.dtype(dtype).itemsize)[0] > 1
            x = (rng.random(shape) - 0.3).astype(dtype)
            how = {"mode": mode, "cval": 0.9, "axes": (axis,)}
            y = np.full(shape, np.nan, dtype)
            ndimage.gaussian_filter(x, sigma, output=y, max_rel_error=1e-3, **how)
            expected = scipys.gaussian_filter(x.astype(np.float64), sigma, **how)
            assert np.abs(y - expected).max() <= 1e-3 * 0.9
    assert parts_of_lines(1000, 9000, 100, 4)[0] == 1
