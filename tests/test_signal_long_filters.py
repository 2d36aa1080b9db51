"""Short lines with filters that are longer, lines of complex numbers, and marks of sizes that came."""

import itertools

import numpy as np
import pytest
import scipy.signal

import convalgos as ca
from convalgos.signal import new_sizes, problems, short_lines


def array(rng, shape, char):
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if char in "FD" else x).astype(char)


def check(y, expected, char):
    assert y.shape == expected.shape and y.dtype == expected.dtype
    np.testing.assert_array_equal(np.isfinite(y), np.isfinite(expected))
    finite = np.isfinite(expected)
    most = np.abs(expected[finite]).max(initial=0)
    assert np.abs(y[finite] - expected[finite]).max(initial=0) <= (2e-5 if char in "fF" else 1e-11) * most


@pytest.mark.parametrize("char", "fdFD")
@pytest.mark.parametrize("value", [0, np.nan, np.inf])
def test_filters_longer_than_lines(char, value):
    """In products of few rows at a time, and of both ends; what is not finite stays in its line."""
    rng = np.random.default_rng(5)
    for lines, n, taps, axis in itertools.product((2, 70), (2, 9, 64), (10, 65, 150), (0, 1)):
        x, h = array(rng, (lines, n), char), array(rng, taps, char)
        x[-1, n // 2] += value
        zi = array(rng, (lines, taps - 1), char)
        x, zi = (x, zi) if axis else (np.ascontiguousarray(x.T), np.ascontiguousarray(zi.T))
        with np.errstate(all="ignore"):
            expected = scipy.signal.lfilter(h, 1.0, x, axis, zi)
            for y, theirs in zip(ca.signal.lfilter(h, 1.0, x, axis, zi), expected, strict=True):
                check(y, theirs, char)


def test_any_outputs_of_filters_longer_than_lines():
    rng = np.random.default_rng(5)
    x, h = array(rng, (3, 7, 2), "d"), array(rng, 30, "d")
    whole = np.apply_along_axis(np.convolve, 1, x, h)  # (3, 36, 2)
    for first, count in ((0, 36), (5, 20), (30, 6), (35, 1)):
        y = short_lines.by_longer_filter(x, h, 1, first, count)
        check(y, whole[:, first : first + count], "d")
    assert short_lines.by_longer_filter(x, h[:7], 1, 0, 13) is None


@pytest.mark.parametrize("chars", ["FF", "DD", "Fd", "fF", "Dd", "fD"])
@pytest.mark.parametrize("mode", ["full", "same", "valid"])
def test_lines_of_complex_numbers(chars, mode):
    """By transforms, and from the first call to those that come often; what is not finite is not spread."""
    rng = np.random.default_rng(5)
    for n, taps in ((900, 40), (3000, 500), (700, 650)):
        x, w = array(rng, n, chars[0]), array(rng, taps, chars[1])
        for function, _ in itertools.product(("convolve", "correlate", "fftconvolve"), range(4)):
            y, theirs = (getattr(m, function)(x, w, mode) for m in (ca.signal, scipy.signal))
            check(y, theirs, "f" if "f" in chars.lower() else "d")
        x[5] = np.nan
        y = ca.signal.convolve(x, w, mode)
        assert np.isnan(y).any() and (mode == "valid" or not np.isnan(y).all())


def test_transforms_of_complex_lines_are_chosen(monkeypatch):
    asked, plan = [], problems.signal_plan
    monkeypatch.setattr(problems, "signal_plan", lambda *given: asked.append(given[5]) or plan(*given))
    monkeypatch.setattr(problems, "is_new", lambda *given: False)
    rng = np.random.default_rng(5)
    x, few, many = array(rng, (2, 1, 5000), "D"), array(rng, 31, "d"), array(rng, 32, "d")
    for h, method in ((few, "auto"), (many, "fft")):
        problems.convolved_along(x, h.reshape(1, 1, -1), "full", None, "auto")
        assert asked.pop() == method


def test_marks_of_sizes_that_came(monkeypatch):
    ca.forget_plans()
    keys = [(i, "full") for i in range(100)]
    assert sum(map(new_sizes.is_first, keys)) >= 95 and not any(map(new_sizes.is_first, keys))
    ca.forget_plans()
    assert new_sizes.is_first(keys[0])
    monkeypatch.setattr(new_sizes, "MOST_MARKS", 10)
    for i in range(1000):
        new_sizes.is_first((i, "same"))
        assert sum(new_sizes._came) <= 10
