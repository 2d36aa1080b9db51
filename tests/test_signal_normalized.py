"""Convolution of arrays with missing pixels, against its definition, and astropy where it is installed."""

import itertools
import math

import numpy as np
import pytest

from convalgos.signal.normalized import convolve_normalized


def array(shape, holes=0.2, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape) + 3
    x[rng.random(shape) < holes] = np.nan
    return x


def defined(x, w, boundary="fill", fill_value=0.0, nan_treatment="interpolate", normalize_kernel=True):
    """Pixel by pixel."""
    half = [size // 2 for size in w.shape]
    y = np.zeros(x.shape)
    interpolates = nan_treatment == "interpolate" and (
        np.isnan(x).any() or (boundary == "fill" and math.isnan(fill_value))
    )
    for place in np.ndindex(x.shape):
        top = bottom = 0.0
        skipped = False
        for tap in np.ndindex(w.shape):
            at = [p + h - t for p, h, t in zip(place, half, tap, strict=True)]
            inside = all(0 <= a < n for a, n in zip(at, x.shape, strict=True))
            if boundary is None and not inside:
                skipped = True
                break
            if boundary == "wrap":
                value = x[tuple(a % n for a, n in zip(at, x.shape, strict=True))]
            elif boundary == "extend":
                value = x[tuple(min(max(a, 0), n - 1) for a, n in zip(at, x.shape, strict=True))]
            else:
                value = x[tuple(at)] if inside else fill_value
            if nan_treatment == "fill" and math.isnan(value):
                value = fill_value
            if not (interpolates and math.isnan(value)):
                top += value * w[tap]
                bottom += w[tap]
        if skipped:
            continue
        if interpolates:
            y[place] = (top / bottom if bottom else math.nan) * (1 if normalize_kernel else w.sum())
        else:
            y[place] = top / w.sum() if normalize_kernel else top
    return y


def same(ours, theirs, tolerance=1e-12):
    assert ours.shape == theirs.shape and np.array_equal(np.isnan(ours), np.isnan(theirs))
    assert np.nanmax(np.abs(ours - theirs), initial=0) <= tolerance * np.nanmax(np.abs(theirs), initial=1)


CASES = [((23,), (5,)), ((6,), (9,)), ((9, 8), (3, 5)), ((4, 5, 6), (3, 1, 5)), ((1, 7), (3, 3))]


@pytest.mark.parametrize("boundary", ["fill", "wrap", "extend", None])
def test_the_definition(boundary):
    for (shape, size), holes, treatment, whole in itertools.product(
        CASES, (0, 0.3), ("interpolate", "fill"), (True, False)
    ):
        if boundary is None and any(n < k for n, k in zip(shape, size, strict=True)):
            continue
        x, w = array(shape, holes), np.abs(array(size, 0, 1))
        for fill in (0.0, 2.5, math.nan) if boundary == "fill" else (0.0,):
            if math.isnan(fill) and treatment == "fill":
                continue
            options = {
                "boundary": boundary,
                "fill_value": fill,
                "nan_treatment": treatment,
                "normalize_kernel": whole,
            }
            same(convolve_normalized(x, w, **options), defined(x, w, **options))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_holes_wider_than_the_filter_and_rims_of_little_weight(dtype):
    """A transform leaves noise there, of which a quotient would make numbers."""
    x = array((150, 140), 0.01).astype(dtype)
    x[30:120, 20:110] = np.nan
    r = np.hypot(*np.mgrid[-20:21, -20:21])
    w = np.exp(-(r**2) / 18)  # its corners are 2e-10 of its middle
    y = convolve_normalized(x, w)
    known = np.isfinite(x)
    for row, column in [(29, 70), (48, 65), (49, 60), (50, 70), (51, 75), (119, 100), (100, 38), (75, 75)]:
        window = np.s_[max(0, row - 20) : row + 21, max(0, column - 20) : column + 21]
        part = w[max(0, 20 - row) :, max(0, 20 - column) :][: x[window].shape[0], : x[window].shape[1]]
        weights = (part * known[window]).sum()
        sums = (part * np.where(known[window], x[window], 0)).sum(dtype="f8")
        if row + 20 < 150 and row >= 20 and column + 20 < 140 and column >= 20:
            expected = sums / weights if weights else np.nan
            assert np.isclose(y[row, column], expected, rtol=1e-8 if dtype == "f8" else 1e-3, equal_nan=True)
    assert np.isnan(y[55:95, 45:85]).all() and np.isfinite(y[:30]).all() and y.dtype == dtype


def test_a_constant_stays_what_it_is():
    x = np.full((90, 80), 7.0)
    x[array(x.shape, 0.6, 3) != array(x.shape, 0.6, 3)] = np.nan
    y = convolve_normalized(x, np.ones((9, 9)), boundary="extend")
    assert np.allclose(y, 7, rtol=1e-13)


def test_masks_and_what_is_preserved():
    x = array((20, 21), 0)
    mask = np.random.default_rng(5).random(x.shape) < 0.2
    w, holes = np.ones((3, 3)), np.where(mask, np.nan, x)
    expected = convolve_normalized(holes, w)
    same(convolve_normalized(x, w, mask=mask), expected)
    same(convolve_normalized(np.ma.array(x, mask=mask), w), expected)
    assert np.array_equal(np.isnan(convolve_normalized(holes, w, preserve_nan=True)), mask)
    assert np.array_equal(np.isnan(holes), mask)  # the inputs are not written
    big_endian = holes.astype(">f4")
    assert convolve_normalized(big_endian, w).dtype == big_endian.dtype
    assert convolve_normalized([1, 2, 3], [1, 1, 1]).dtype == "f8"


@pytest.mark.parametrize(
    ("arguments", "options", "told"),
    [
        (([1.0, 2.0], [1.0, 1.0]), {}, "kernel has the shape \\(2,\\).*odd"),
        (([[1.0, 2.0]], [1.0]), {}, "must have 2 dimensions"),
        ((np.ones((1, 1, 1, 1)), np.ones((1, 1, 1, 1))), {}, "1 to 3 dimensions"),
        (([], [1.0]), {}, "elements"),
        (([1.0, 2.0], [1.0]), {"boundary": "none"}, "boundary='none'"),
        (([1.0, 2.0], [1.0]), {"nan_treatment": "none"}, "nan_treatment='none'"),
        (([1.0, 2.0], [1.0] * 3), {"boundary": None}, "larger than array"),
        (([1.0, 2.0], [-1.0, 0.0, 1.0]), {}, "normalize_kernel=False"),
        (([1.0, np.nan], [-1.0, 0.0, 1.0]), {"normalize_kernel": False}, "nan_treatment='fill' needs"),
        (([1.0, 2.0], [1.0]), {"mask": [True]}, "mask has the shape"),
        (([1j, 2.0], [1.0]), {}, "real"),
    ],
)
def test_errors_name_the_argument(arguments, options, told):
    with pytest.raises(ValueError, match=told):
        convolve_normalized(*arguments, **options)


def test_weights_of_both_signs():
    """astropy#20403: convolve_fft gives 0 where such weights meet a hole, as if nothing were known there."""
    image = np.arange(49.0).reshape(7, 7)
    image[3, 3] = np.nan
    w = np.array([[1.0, -2, 1], [-2, 5, -2], [1, -2, 2]])
    y = convolve_normalized(image, w, boundary="wrap")
    same(y, defined(image, w, boundary="wrap"))
    assert np.isclose(y[3, 3], 80 / 3)


def test_kernels_whose_sum_is_zero_serve_where_nothing_is_missing():
    x = array((12, 11), 0)
    w = np.array([[0, -1, 0], [-1, 4, -1], [0, -1, 0.0]])
    same(convolve_normalized(x, w, normalize_kernel=False), defined(x, w, normalize_kernel=False))


@pytest.mark.parametrize("boundary", ["fill", "wrap", "extend", None])
def test_astropy_says_the_same(boundary):
    theirs = pytest.importorskip("astropy.convolution").convolve
    for holes, treatment, whole, keep in itertools.product(
        (0, 0.2), ("interpolate", "fill"), (True, False), (True, False)
    ):
        x, w = array((31, 30), holes), np.abs(array((5, 7), 0, 2))
        options = {
            "boundary": boundary,
            "nan_treatment": treatment,
            "normalize_kernel": whole,
            "preserve_nan": keep,
        }
        same(convolve_normalized(x, w, **options), theirs(x, w, **options))
